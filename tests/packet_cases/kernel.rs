//! The BPF programs with their maps, in the network of a case.

use std::cell::RefCell;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nodelb_core::datapath::Limits;
use nodelb_core::packets::connections::{TableLimits, Tables};
use nodelb_core::packets::key::Hook;
use nodelb_core::packets::node::{Packet, Reason, Settings};
use nodelb_core::packets::sweep::SweepTimeouts;
use nodelb_core::state::entries::MapState;
use nodelb_datapath::packets::{
    self, LinkLayer, PacketBloom, PacketHook, PacketLimits, PacketMaps, PacketOptions, PacketPrograms, Sweep,
};

use crate::layout;
use crate::network::Network;
use crate::world::World;

/// The maps that the programs write.
const TABLES: [&str; 4] = ["connections", "half_open", "fragments", "affinity"];
/// The maps that are written for each world; `services` and `slots` are arrays.
const CONTENT: [&str; 5] = ["outside", "frontends", "source_ranges", "uplinks", "node_addrs"];

/// Entries that a system call reads.
const BATCH: u32 = 256;

/// Where the counts by reason begin in `struct packet_counts`.
const DROPPED: usize = 40;

const REASONS: [Reason; 13] = [
    Reason::Short,
    Reason::Ttl,
    Reason::Mtu,
    Reason::Fragment,
    Reason::NoBackend,
    Reason::NoLocalBackend,
    Reason::SourceRange,
    Reason::NoPort,
    Reason::NoRoute,
    Reason::NoForwarding,
    Reason::NoRoom,
    Reason::Unknown,
    Reason::AnswerRate,
];

/// What the programs made of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) bytes: Vec<u8>,
    /// The reasons that were counted.
    pub(crate) reasons: Vec<Reason>,
}

/// The loaded programs, and what they were loaded for.
pub(crate) struct Kernel {
    programs: PacketPrograms,
    bloom: PacketBloom,
    sweep: Sweep,
    network: Network,
    settings: Settings,
    limits: TableLimits,
    state: MapState,
    /// The tables when they were last read, unless something else than a packet has changed them since.
    known: RefCell<Option<Tables>>,
}

fn load(settings: &Settings, limits: TableLimits) -> (PacketPrograms, PacketBloom, Sweep) {
    let size = |entries: usize| u32::try_from(entries).unwrap();
    let options = PacketOptions {
        nodeport_range: settings.nodeport_range.clone(),
        source_ports: settings.source_ports.clone(),
        limits: PacketLimits {
            outside: 256,
            connections: size(limits.connections) / 2,
            handshakes: size(limits.half_open) / 2,
            fragments: size(limits.fragments),
            source_ranges: 64,
        },
        services: Limits {
            frontends: 256,
            services: 128,
            slots: 16_384,
            affinity: 1_024,
            outside: 256,
            source_ranges: 64,
        },
        count_connections: true,
        has_pods: true,
    };
    let programs = PacketPrograms::load(&options, PacketMaps::default()).unwrap_or_else(|error| panic!("{error}"));
    let sweep = Sweep::load(programs.maps()).unwrap_or_else(|error| panic!("{error}"));
    let bloom = PacketBloom::new(programs.maps(), &options).unwrap();
    (programs, bloom, sweep)
}

impl Kernel {
    pub(crate) fn new(world: &World) -> Self {
        let (programs, bloom, sweep) = load(&world.settings, world.limits);
        let (settings, limits) = (world.settings.clone(), world.limits);
        let (network, state) = (Network::default(), MapState::default());
        let mut kernel = Self { programs, bloom, sweep, network, settings, limits, state, known: RefCell::default() };
        kernel.set(world);
        kernel
    }

    fn map(&self, name: &str) -> &MapHandle {
        self.programs.maps().get(name).unwrap_or_else(|| panic!("no map {name}"))
    }

    fn put(&self, map: &str, key: &[u8], value: &[u8]) {
        self.map(map).update(key, value, MapFlags::ANY).unwrap_or_else(|error| panic!("{map}: {error}"));
    }

    /// Sets the first entries of an array.
    fn fill(&self, map: &str, values: &[u8]) {
        let map = self.map(map);
        let count = u32::try_from(values.len()).unwrap() / map.value_size();
        let keys: Vec<u8> = (0..count).flat_map(u32::to_ne_bytes).collect();
        if count > 0 {
            map.update_batch(&keys, values, count, MapFlags::ANY, MapFlags::ANY).unwrap();
        }
    }

    fn zero(&self, map: &str, count: u32) {
        let value = self.map(map).value_size();
        self.fill(map, &vec![0; (count * value) as usize]);
    }

    fn clear(&self, map: &str) {
        self.known.take();
        let map = self.map(map);
        for key in map.keys().collect::<Vec<_>>() {
            map.delete(&key).unwrap();
        }
    }

    /// Makes empty tables for a case on this node.
    pub(crate) fn start(&mut self, world: &World) {
        let loaded = |settings: &Settings| (settings.nodeport_range.clone(), settings.source_ports.clone());
        if loaded(&self.settings) != loaded(&world.settings) || self.limits != world.limits {
            (self.programs, self.bloom, self.sweep) = load(&world.settings, world.limits);
            self.limits = world.limits;
            self.state = MapState::default();
        }
        TABLES.iter().for_each(|map| self.clear(map));
        self.zero("packet_bloom", self.map("packet_bloom").max_entries());
        self.zero("snat_cursors", 128);
        self.set(world);
        self.bloom.fill(self.programs.maps()).unwrap();
    }

    /// Makes network, settings and content those of the world.
    pub(crate) fn set(&mut self, world: &World) {
        self.network.set(world);
        let settings = &world.settings;
        let fields = [settings.is_draining, settings.resets_unknown, settings.answers, settings.always_masquerades];
        self.put("packet_settings", &[0; 4], &fields.map(|field| u32::from(field).to_ne_bytes()).concat());
        self.settings = settings.clone();
        if self.state != world.state {
            self.write(&world.state);
            self.state = world.state.clone();
        }
    }

    fn write(&self, state: &MapState) {
        CONTENT.iter().for_each(|map| self.clear(map));
        // Entries of UDP connections refer to the content before.
        let epoch = self.map("frontend_epoch").lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        let epoch = u64::from_ne_bytes(epoch.try_into().unwrap()) + 2;
        self.put("frontend_epoch", &[0; 4], &epoch.to_ne_bytes());
        self.zero("services", 128);
        let (mut first, mut all_slots) = (0_u32, Vec::new());
        for (id, entry) in &state.services {
            let (value, slots) = layout::service(entry, first);
            first += u32::try_from(slots.len()).unwrap();
            all_slots.extend(slots.concat());
            self.put("services", &id.0.to_ne_bytes(), &value);
        }
        self.fill("slots", &all_slots);
        for (address, entry) in &state.outside {
            let key = layout::frontend_key(address);
            let flags = u32::from(entry.local) | u32::from(entry.has_ranges) << 1;
            self.put("outside", &key, &layout::frontend(&key, entry.service, flags));
        }
        for (address, entry) in &state.frontends {
            let key = layout::frontend_key(address);
            self.put("frontends", &key, &layout::frontend(&key, entry.service, u32::from(entry.inside_local)));
        }
        for (service, range) in &state.source_ranges {
            self.put("source_ranges", &layout::range_key(*service, range.addr, range.prefix), &[0; 4]);
        }
        for (ifindex, entry) in &state.uplinks {
            self.put("uplinks", &ifindex.to_ne_bytes(), &layout::uplink(entry));
        }
        for addr in &state.node_addrs {
            self.put("node_addrs", &addr.octets(), &[0; 4]);
        }
        self.bloom.fill(self.programs.maps()).unwrap();
    }

    /// Lets the tables look as they do after this time without packets.
    pub(crate) fn age(&self, seconds: u32) {
        for map in ["connections", "half_open"] {
            self.change(map, |key, value| layout::make_older(key, value, seconds));
        }
        self.change("fragments", |_, value| {
            let time = u32::from_ne_bytes(value[4..8].try_into().unwrap());
            value[4..8].copy_from_slice(&time.wrapping_sub(seconds).to_ne_bytes());
        });
        self.change("affinity", |_, value| {
            let time = u64::from_ne_bytes(value[..8].try_into().unwrap());
            value[..8].copy_from_slice(&(time - u64::from(seconds) * 1_000_000_000).to_ne_bytes());
        });
    }

    fn change(&self, map: &str, change: impl Fn(&[u8], &mut [u8])) {
        self.known.take();
        let map = self.map(map);
        for key in map.keys().collect::<Vec<_>>() {
            let mut value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
            change(&key, &mut value);
            map.update(&key, &value, MapFlags::ANY).unwrap();
        }
    }

    /// Removes an entry of `half_open`, as the kernel does when the map is full.
    pub(crate) fn displace(&self, number: usize) {
        self.known.take();
        let map = self.map("half_open");
        let keys: Vec<_> = map.keys().collect();
        if !keys.is_empty() {
            map.delete(&keys[number % keys.len()]).unwrap();
        }
    }

    /// Deletes what is due.
    pub(crate) fn sweep(&mut self, timeouts: &SweepTimeouts) {
        self.known.take();
        self.sweep.run(timeouts, &mut |_| {}).unwrap();
    }

    fn entries(&self, map: &str) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        self.map(map).lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY).unwrap()
    }

    /// What the programs remembered after the last packet.
    pub(crate) fn tables_before(&self) -> Tables {
        let known = self.known.borrow().clone();
        known.unwrap_or_else(|| self.tables())
    }

    /// What the programs remember.
    pub(crate) fn tables(&self) -> Tables {
        let mut tables = Tables::new(self.limits);
        for (key, value) in self.entries("connections") {
            tables.connections.insert(layout::packet_key(&key), layout::connection(&value));
        }
        for (key, value) in self.entries("half_open") {
            tables.half_open.insert(layout::packet_key(&key), layout::connection(&value));
        }
        for (key, value) in self.entries("fragments") {
            tables.fragments.insert(layout::fragment_key(&key), layout::fragment(&value));
        }
        for (key, value) in self.entries("affinity") {
            let (key, value) = layout::affinity(&key, &value);
            tables.affinity.insert(key, value);
        }
        self.known.replace(Some(tables.clone()));
        tables
    }

    fn counts(&self) -> [u64; REASONS.len()] {
        let cpus = self.map("packet_counts").lookup_percpu(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        std::array::from_fn(|reason| {
            // Dropped or answered, and passed on.
            let places = [reason, REASONS.len() + reason].map(|place| DROPPED + 8 * place);
            let count = |cpu: &Vec<u8>, at: usize| u64::from_ne_bytes(cpu[at..at + 8].try_into().unwrap());
            cpus.iter().map(|cpu| places.map(|at| count(cpu, at)).iter().sum::<u64>()).sum()
        })
    }

    /// Runs the program of the packet's hook; `None` if the kernel cannot run it on such a packet.
    pub(crate) fn run(&self, packet: &Packet) -> Option<Ran> {
        // The kernel reads an Ethernet header also for a device without one.
        if packet.l2_length == 0 {
            return None;
        }
        let before = self.counts();
        let hook = match packet.hook {
            Hook::In => PacketHook::UplinkIn,
            Hook::Out => PacketHook::UplinkOut,
            Hook::PodIn => PacketHook::PodIn,
            Hook::PodOut => PacketHook::PodOut,
        };
        let gso_size = if packet.is_gso { 1_000 } else { 0 };
        let input = packets::Packet { bytes: packet.bytes.clone(), ifindex: packet.ifindex, gso_size };
        let verdict = self.programs.run(hook, LinkLayer::Ethernet, &input).ok()?;
        let after = self.counts();
        let reasons = REASONS.iter().zip(before.iter().zip(after)).filter(|(_, (before, after))| *before != after);
        Some(Ran { code: verdict.code, bytes: verdict.bytes, reasons: reasons.map(|(reason, _)| *reason).collect() })
    }
}
