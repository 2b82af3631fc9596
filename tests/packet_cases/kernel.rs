//! The BPF programs with their maps, in the network of a case.

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nodelb_core::datapath::Limits;
use nodelb_core::packets::sweep::SweepTimeouts;
use nodelb_core::state::entries::MapState;
use nodelb_datapath::packets::{
    self, PacketBloom, PacketHook, PacketMaps, PacketOptions, PacketPrograms, PacketSettings, Sweep, XdpMode,
    XdpProgram,
};
use nodelb_model::connections::{TableLimits, Tables};
use nodelb_model::key::Hook;
use nodelb_model::node::{Packet, Reason, Settings, Unknown};

use crate::layout;
use crate::network::Network;
use crate::world::World;

/// The maps that the programs write.
const TABLES: [&str; 4] = ["connections", "half_open", "fragments", "affinity"];
/// The maps that are written for each world; `services` and `slots` are arrays.
const CONTENT: [&str; 5] = ["outside", "frontends", "source_ranges", "uplinks", "node_addrs"];

/// Entries that are read at a time, and more than a bucket of a map has.
const BATCH: u32 = 256;
const MOST_IN_BUCKET: usize = 32;

/// Where the counts by reason begin in `struct packet_counts`.
const DROPPED: usize = 40;

const REASONS: [Reason; 16] = [
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
    Reason::ReversePath,
    Reason::MtuNoDf,
    Reason::FragmentRate,
];

/// What the programs made of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) bytes: Vec<u8>,
    /// The reasons that were counted.
    pub(crate) reasons: Vec<Reason>,
}

/// The key and the value of an entry.
pub(crate) type Entry = (Vec<u8>, Vec<u8>);

/// The entries of a map, in the kernel's order.
type Entries = Vec<Entry>;

/// The loaded programs, and what they were loaded for.
pub(crate) struct Kernel {
    programs: PacketPrograms,
    pub(crate) xdp: XdpProgram,
    /// The number of packets that the XDP program has translated.
    pub(crate) translated_early: usize,
    bloom: PacketBloom,
    sweep: Sweep,
    network: Network,
    settings: Settings,
    limits: TableLimits,
    state: MapState,
    /// The content of [`TABLES`] when they were last read, and the same decoded.
    read: [Entries; TABLES.len()],
    tables: Tables,
    /// Whether anything may have changed the tables since.
    is_outdated: bool,
    rings: layout::Rings,
    /// The counts after the last packet.
    counts: Counts,
}

/// Bytes of `struct packet_settings`.
const SETTINGS: usize = 24;

/// More than the largest number of a backend.
const CURSORS: u32 = 128;

/// The counts by reason of each CPU: dropped or answered, then passed on.
type Counts = Vec<Vec<u8>>;

/// The entries that are missing or differ, and those that replace them.
fn changes<'a>(before: &'a [Entry], after: &'a [Entry]) -> [Vec<&'a Entry>; 2] {
    let (mut gone, mut put) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (before, after);
    while let ([first, rest @ ..], [other, others @ ..]) = (old, new) {
        if first == other {
            (old, new) = (rest, others);
        } else if old.len() >= new.len() {
            gone.push(first);
            old = rest;
        } else {
            put.push(other);
            new = others;
        }
    }
    gone.extend(old);
    put.extend(new);
    [gone, put]
}

fn load(settings: &Settings, limits: TableLimits) -> (PacketPrograms, XdpProgram, PacketBloom, Sweep) {
    let size = |entries: usize| u32::try_from(entries).unwrap();
    let options = PacketOptions {
        nodeport_range: settings.nodeport_range.clone(),
        source_ports: settings.source_ports.clone(),
        limits: Limits {
            frontends: 256,
            services: 128,
            slots: 16_384,
            affinity: 1_024,
            outside: 256,
            source_ranges: 64,
        },
        max_connections: size(limits.connections) / 2,
        max_handshakes: size(limits.half_open) / 2,
        max_fragments: size(limits.fragments),
        count_connections: true,
        has_pods: true,
        foreign_connections: None,
        xdp: Some(XdpMode::Generic),
        settings: PacketSettings::default(),
    };
    let programs = PacketPrograms::load(&options, PacketMaps::default()).unwrap_or_else(|error| panic!("{error}"));
    let sweep = Sweep::load(programs.maps()).unwrap_or_else(|error| panic!("{error}"));
    let xdp = XdpProgram::load(&options, programs.maps()).unwrap_or_else(|error| panic!("{error}"));
    let bloom =
        PacketBloom::new(programs.maps(), options.nodeport_range.clone(), options.source_ports.clone()).unwrap();
    (programs, xdp, bloom, sweep)
}

impl Kernel {
    pub(crate) fn new(world: &World) -> Self {
        let (programs, xdp, bloom, sweep) = load(&world.settings, world.limits);
        let (settings, limits) = (world.settings.clone(), world.limits);
        let mut kernel = Self {
            programs,
            xdp,
            translated_early: 0,
            bloom,
            sweep,
            network: Network::default(),
            settings,
            limits,
            state: MapState::default(),
            read: Default::default(),
            tables: Tables::new(limits),
            is_outdated: true,
            rings: layout::Rings::new(),
            counts: Counts::new(),
        };
        kernel.counts = kernel.read_counts();
        kernel.set(world);
        kernel
    }

    pub(crate) fn map(&self, name: &str) -> &MapHandle {
        self.programs.maps().get(name).unwrap_or_else(|| panic!("no map {name}"))
    }

    fn put(&self, map: &str, key: &[u8], value: &[u8]) {
        self.map(map).update(key, value, MapFlags::ANY).unwrap_or_else(|error| panic!("{map}: {error}"));
    }

    /// Writes these keys and values with one system call.
    fn put_all(&self, map: &str, keys: &[u8], values: &[u8]) {
        let (name, map) = (map, self.map(map));
        let count = u32::try_from(keys.len()).unwrap() / map.key_size();
        if count > 0 {
            let put = map.update_batch(keys, values, count, MapFlags::ANY, MapFlags::ANY);
            put.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    /// Writes the first entries of an array.
    pub(crate) fn put_first(&self, array: &str, values: &[u8]) {
        let count = u32::try_from(values.len()).unwrap() / self.map(array).value_size();
        self.put_all(array, &(0..count).flat_map(u32::to_ne_bytes).collect::<Vec<_>>(), values);
    }

    fn clear(&self, map: &str) {
        let map = self.map(map);
        for key in map.keys().collect::<Vec<_>>() {
            map.delete(&key).unwrap();
        }
    }

    /// Makes empty tables for a case on this node.
    pub(crate) fn start(&mut self, world: &World) {
        let loaded = |settings: &Settings| (settings.nodeport_range.clone(), settings.source_ports.clone());
        if loaded(&self.settings) != loaded(&world.settings) || self.limits != world.limits {
            (self.programs, self.xdp, self.bloom, self.sweep) = load(&world.settings, world.limits);
            self.limits = world.limits;
            self.state = MapState::default();
            self.counts = self.read_counts();
        }
        TABLES.iter().for_each(|map| self.clear(map));
        (self.read, self.tables, self.is_outdated) = (Default::default(), Tables::new(self.limits), true);
        self.put_first("packet_bloom", &vec![0; 8 * self.map("packet_bloom").max_entries() as usize]);
        self.put_first("snat_cursors", &[0; 4 * CURSORS as usize]);
        self.put("udp_entries", &[0; 4], &[0; 4]);
        self.put("packet_settings", &[0; 4], &[0; SETTINGS]);
        self.set(world);
        self.bloom.fill(self.programs.maps()).unwrap();
    }

    /// Makes network, settings and content those of the world.
    pub(crate) fn set(&mut self, world: &World) {
        self.network.set(world);
        Self::describe_devices(&self.xdp, world);
        let settings = &world.settings;
        let unknown = match settings.unknown {
            Unknown::Pass => 0,
            Unknown::Reset => 1,
            Unknown::Auto => 2_u32,
        };
        let [is_draining, answers, always_masquerades] =
            [settings.is_draining, settings.answers, settings.always_masquerades].map(u32::from);
        let fields = [is_draining, unknown, answers, always_masquerades].map(u32::to_ne_bytes).concat();
        // The programs write has_direct_return.
        let mut value = self.map("packet_settings").lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        assert_eq!(value.len(), SETTINGS);
        value[..fields.len()].copy_from_slice(&fields);
        self.put("packet_settings", &[0; 4], &value);
        self.settings = settings.clone();
        if self.state != world.state {
            self.write(&world.state);
            self.state = world.state.clone();
        }
    }

    fn write(&mut self, state: &MapState) {
        CONTENT.iter().for_each(|map| self.clear(map));
        // Entries of UDP connections refer to the content before.
        let epoch = self.map("frontend_epoch").lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        let epoch = u64::from_ne_bytes(epoch.try_into().unwrap()) + 2;
        self.put("frontend_epoch", &[0; 4], &epoch.to_ne_bytes());
        let (mut services, mut slots) = (vec![0; 32 * 128], Vec::new());
        for (id, entry) in state.services.iter() {
            let (value, more) = layout::service(entry, slots.len() / layout::SLOT, &mut self.rings);
            slots.extend(more);
            services[id.0 as usize * 32..][..32].copy_from_slice(&value);
        }
        self.put_first("slots", &slots);
        self.put_first("services", &services);
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
        // The programs add what else they write.
        if state.outside != self.state.outside {
            self.bloom.fill(self.programs.maps()).unwrap();
        }
    }

    /// Lets the tables look as they do after this time without packets.
    pub(crate) fn age(&mut self, seconds: u32) {
        self.is_outdated = true;
        for map in ["connections", "half_open"] {
            self.change(map, |key, value| layout::make_older(key, value, seconds));
        }
        self.change("fragments", |_, value| {
            let time = u16::from_ne_bytes(value[4..6].try_into().unwrap());
            value[4..6].copy_from_slice(&time.wrapping_sub(u16::try_from(seconds).unwrap()).to_ne_bytes());
        });
        self.change("affinity", |_, value| {
            let time = u64::from_ne_bytes(value[..8].try_into().unwrap());
            value[..8].copy_from_slice(&(time - u64::from(seconds) * 1_000_000_000).to_ne_bytes());
        });
    }

    fn change(&self, map: &str, change: impl Fn(&[u8], &mut [u8])) {
        let mut entries = self.entries(map);
        entries.iter_mut().for_each(|(key, value)| change(key, value));
        self.put_entries(map, &entries);
    }

    pub(crate) fn put_entries(&self, map: &str, entries: &[Entry]) {
        let (keys, values): (Vec<_>, Vec<_>) = entries.iter().cloned().unzip();
        self.put_all(map, &keys.concat(), &values.concat());
    }

    /// Removes an entry of `half_open`, as the kernel does when the map is full.
    pub(crate) fn displace(&mut self, number: usize) {
        self.is_outdated = true;
        let map = self.map("half_open");
        let keys: Vec<_> = map.keys().collect();
        if !keys.is_empty() {
            map.delete(&keys[number % keys.len()]).unwrap();
        }
    }

    /// Deletes what is due.
    pub(crate) fn sweep(&mut self, timeouts: &SweepTimeouts) {
        self.is_outdated = true;
        self.sweep.run(timeouts, &mut |_| {}).unwrap();
    }

    pub(crate) fn entries(&self, map: &str) -> Entries {
        let map = self.map(map);
        let read = |batch| -> Entries { map.lookup_batch(batch, MapFlags::ANY, MapFlags::ANY).unwrap().collect() };
        let entries = read(BATCH);
        // The kernel ends a batch before a bucket that does not fit, and libbpf-rs takes such a batch for the last one.
        if entries.len() + MOST_IN_BUCKET < BATCH as usize { entries } else { read(map.max_entries()) }
    }

    /// What the programs remember. Everything is read again after each packet; only what differs is decoded again.
    pub(crate) fn tables(&mut self) -> Tables {
        if std::mem::take(&mut self.is_outdated) {
            let read = TABLES.map(|map| self.entries(map));
            for (table, (before, after)) in self.read.iter().zip(&read).enumerate() {
                let [gone, put] = changes(before, after);
                gone.iter().for_each(|(key, _)| remove(&mut self.tables, table, key));
                put.iter().for_each(|(key, value)| insert(&mut self.tables, table, key, value));
            }
            self.read = read;
        }
        self.tables.clone()
    }

    /// Where the searches for a source port begin.
    pub(crate) fn cursors(&self) -> impl Iterator<Item = (u32, u32)> {
        let map = self.map("snat_cursors");
        let all = map.lookup_batch(CURSORS, MapFlags::ANY, MapFlags::ANY).unwrap();
        let number = |bytes: Vec<u8>| u32::from_ne_bytes(bytes.try_into().unwrap());
        all.take(CURSORS as usize).map(move |(index, value)| (number(index), number(value)))
    }

    fn read_counts(&self) -> Counts {
        let mut cpus = self.map("packet_counts").lookup_percpu(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        cpus.iter_mut().for_each(|cpu| *cpu = cpu[DROPPED..][..2 * 8 * REASONS.len()].to_vec());
        cpus
    }

    /// The reasons that were counted since the last call.
    fn counted(&mut self) -> Vec<Reason> {
        let after = self.read_counts();
        let before = std::mem::replace(&mut self.counts, after);
        if before == self.counts {
            return Vec::new();
        }
        let differs = |place: usize| {
            let count = 8 * place..8 * place + 8;
            before.iter().zip(&self.counts).any(|(old, new)| old[count.clone()] != new[count.clone()])
        };
        let is_counted = |reason: &usize| differs(*reason) || differs(REASONS.len() + *reason);
        (0..REASONS.len()).filter(is_counted).map(|reason| REASONS[reason]).collect()
    }

    /// Runs the program of the packet's hook; `None` if the kernel cannot run it on such a packet.
    pub(crate) fn run(&mut self, packet: &Packet) -> Option<Ran> {
        // The kernel reads an Ethernet header also for a device without one.
        if packet.l2_length == 0 {
            return None;
        }
        let hook = match packet.hook {
            Hook::In => PacketHook::UplinkIn,
            Hook::Out => PacketHook::UplinkOut,
            Hook::PodIn => PacketHook::PodIn,
            Hook::PodOut => PacketHook::PodOut,
        };
        let gso_size = if packet.is_gso { 1_000 } else { 0 };
        let input =
            packets::Packet { bytes: packet.bytes.clone(), ifindex: packet.ifindex, came_by: packet.came_by, gso_size };
        self.is_outdated = true;
        let verdict = self.programs.run(hook, &input).ok()?;
        Some(Ran { code: verdict.code, bytes: verdict.bytes, reasons: self.counted() })
    }
}

/// Decodes an entry of the table with this index in [`TABLES`], and adds it.
fn insert(tables: &mut Tables, table: usize, key: &[u8], value: &[u8]) {
    match TABLES[table] {
        "connections" => drop(tables.connections.insert(layout::packet_key(key), layout::connection(value))),
        "half_open" => drop(tables.half_open.insert(layout::packet_key(key), layout::connection(value))),
        "fragments" => drop(tables.fragments.insert(layout::fragment_key(key), layout::fragment(value))),
        _ => drop(tables.affinity.insert(layout::affinity_key(key), layout::affinity(value))),
    }
}

/// Removes the entry.
fn remove(tables: &mut Tables, table: usize, key: &[u8]) {
    match TABLES[table] {
        "connections" => drop(tables.connections.remove(&layout::packet_key(key))),
        "half_open" => drop(tables.half_open.remove(&layout::packet_key(key))),
        "fragments" => drop(tables.fragments.remove(&layout::fragment_key(key))),
        _ => drop(tables.affinity.remove(&layout::affinity_key(key))),
    }
}
