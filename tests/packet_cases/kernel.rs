//! The BPF programs with their maps in the kernel, and the same programs on the host, which writes the content of the maps.

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use nodelb_core::datapath::Limits;
use nodelb_core::packets::sweep::{Interval, SweepTimeouts};
use nodelb_datapath::packets::{
    self, PacketBloom, PacketHook, PacketMaps, PacketOptions, PacketPrograms, PacketSettings, Sweep, XdpMode,
    XdpProgram,
};
use nodelb_programs::connections::TableLimits;
use nodelb_programs::key::Hook;
use nodelb_programs::node::{Packet, REASONS, Reason, Settings};
use nodelb_programs::programs::{Load, Programs};

use crate::network::Network;
use crate::world::World;

/// The maps that the programs write, apart from counts.
pub(crate) const TABLES: [&str; 4] = ["connections", "half_open", "fragments", "affinity"];
/// The maps that are written for each world.
const CONTENT: [&str; 6] = ["outside", "outside_addrs", "frontends", "source_ranges", "uplinks", "node_addrs"];
/// The arrays that are written for each world, with the bytes of an entry and the entries that are used.
const ARRAYS: [(&str, usize, usize); 3] = [("services", 32, 128), ("slots", 24, 16_384), ("frontend_epoch", 8, 1)];

/// Entries that are read at a time, and more than a bucket of a map has.
const BATCH: u32 = 128;
const MOST_IN_BUCKET: usize = 32;

/// Where the counts by reason begin in `struct packet_counts`.
const DROPPED: usize = 40;

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

/// The entries of a map, sorted by their keys.
pub(crate) type Entries = Vec<Entry>;

/// The content of [`TABLES`].
pub(crate) type Tables = [Entries; TABLES.len()];

/// The loaded programs, and what they were loaded for.
pub(crate) struct Kernel {
    programs: PacketPrograms,
    pub(crate) xdp: XdpProgram,
    /// The number of packets that the XDP program has translated.
    pub(crate) translated_early: usize,
    /// Whether each packet is also run by the XDP program.
    pub(crate) has_xdp: bool,
    bloom: PacketBloom,
    sweep: Sweep,
    network: Network,
    settings: Settings,
    limits: TableLimits,
    /// The same programs on the host. Before each packet, its maps have the same content.
    pub(crate) host: Programs,
    /// The counts after the last packet.
    counts: Counts,
    /// What [`ARRAYS`] have.
    written: [Vec<u8>; ARRAYS.len()],
    /// What [`TABLES`] have in the kernel, unless something has changed them since they were read.
    pub(crate) known: Option<Tables>,
    /// Whether the host has the kernel's cursors.
    pub(crate) has_cursors: bool,
}

/// Bytes of `struct packet_settings`, and of the part that the daemon writes.
const SETTINGS: usize = 40;
const WRITTEN_SETTINGS: usize = 24;

/// More than the largest number of a backend.
const CURSORS: u32 = 128;

/// The counts by reason of each CPU: dropped or answered, then passed on.
type Counts = Vec<Vec<u8>>;

/// The entries that only the first or only the second map has; both are sorted.
pub(crate) fn changes<'a>(before: &'a [Entry], after: &'a [Entry]) -> [Vec<&'a Entry>; 2] {
    let only = |one: &'a [Entry], other: &[Entry]| -> Vec<&'a Entry> {
        one.iter().filter(|entry| other.binary_search(entry).is_err()).collect()
    };
    [only(before, after), only(after, before)]
}

/// The programs for a kernel like this one: the functions that matter are of 6.2, the flags of 6.3.
fn load_as_here(limits: TableLimits) -> Load {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    Load { is_new_kernel: version >= (6, 3), ..Load::new(limits) }
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
        direct_return: true,
        tunnel_sources: settings.tunnel_source.into_iter().collect(),
        foreign_connections: None,
        xdp: Some(XdpMode::Generic),
        settings: PacketSettings::default(),
        policies: None,
    };
    let programs = PacketPrograms::load(&options, PacketMaps::default()).unwrap_or_else(|error| panic!("{error}"));
    let sweep = Sweep::load(programs.maps()).unwrap_or_else(|error| panic!("{error}"));
    let xdp = XdpProgram::load(&options, programs.maps()).unwrap_or_else(|error| panic!("{error}"));
    let bloom =
        PacketBloom::new(programs.maps(), options.nodeport_range.clone(), options.source_ports.clone()).unwrap();
    (programs, xdp, bloom, sweep)
}

/// Keeps this thread, and the host that it starts, on one processor: they answer each other, some ten times for each packet,
/// and waking another processor takes longer than most answers.
fn stay_on_one_processor() {
    let mut one = CpuSet::new();
    one.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &one).unwrap();
}

impl Kernel {
    pub(crate) fn new(world: &World) -> Self {
        stay_on_one_processor();
        let (programs, xdp, bloom, sweep) = load(&world.settings, world.limits);
        let mut kernel = Self {
            programs,
            xdp,
            translated_early: 0,
            has_xdp: true,
            bloom,
            sweep,
            network: Network::default(),
            settings: world.settings.clone(),
            limits: world.limits,
            host: Programs::load(load_as_here(world.limits), &world.node()),
            counts: Counts::new(),
            written: Default::default(),
            known: None,
            has_cursors: false,
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
        self.put_from(0, array, values);
    }

    /// Writes entries of an array, the first one at this index.
    fn put_from(&self, first: usize, array: &str, values: &[u8]) {
        let count = values.len() / self.map(array).value_size() as usize;
        let keys = (first..first + count).flat_map(|index| u32::try_from(index).unwrap().to_ne_bytes());
        self.put_all(array, &keys.collect::<Vec<_>>(), values);
    }

    fn clear(&self, map: &str) {
        let map = self.map(map);
        for key in map.keys().collect::<Vec<_>>() {
            map.delete(&key).unwrap();
        }
    }

    /// Makes empty tables for a case on this node.
    pub(crate) fn start(&mut self, world: &World) {
        let loaded = |settings: &Settings| {
            (settings.nodeport_range.clone(), settings.source_ports.clone(), settings.tunnel_source)
        };
        if loaded(&self.settings) != loaded(&world.settings) || self.limits != world.limits {
            (self.programs, self.xdp, self.bloom, self.sweep) = load(&world.settings, world.limits);
            self.limits = world.limits;
            self.counts = self.read_counts();
            self.written = Default::default();
        }
        self.host = Programs::load(load_as_here(world.limits), &world.node());
        (self.known, self.has_cursors) = (None, false);
        TABLES.iter().for_each(|map| self.clear(map));
        self.put_first("packet_bloom", &vec![0; 8 * self.map("packet_bloom").max_entries() as usize]);
        self.put_first("snat_cursors", &[0; 4 * CURSORS as usize]);
        self.put_first("fragment_ids", &vec![0; 8 * self.map("fragment_ids").max_entries() as usize]);
        self.put("udp_entries", &[0; 4], &[0; 4]);
        self.put("packet_settings", &[0; 4], &[0; SETTINGS]);
        self.set(world);
        self.bloom.fill(self.programs.maps()).unwrap();
    }

    /// Makes network, settings and content those of the world.
    pub(crate) fn set(&mut self, world: &World) {
        self.network.set(world);
        self.settings = world.settings.clone();
        self.host.set(&world.node());
        self.describe_devices(world);
        // The programs write has_direct_return.
        let own = self.host.list("packet_settings").pop().map_or_else(|| vec![0; SETTINGS], |(_, value)| value);
        let mut value = self.map("packet_settings").lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        assert_eq!((value.len(), own.len()), (SETTINGS, SETTINGS));
        value[..WRITTEN_SETTINGS].copy_from_slice(&own[..WRITTEN_SETTINGS]);
        self.put("packet_settings", &[0; 4], &value);
        for map in CONTENT {
            let (before, after) = (sorted(self.entries(map)), sorted(self.host.list(map)));
            let [gone, put] = changes(&before, &after);
            gone.iter().for_each(|(key, _)| self.map(map).delete(key).unwrap());
            put.iter().for_each(|(key, value)| self.put(map, key, value));
        }
        for (number, (array, size, count)) in ARRAYS.into_iter().enumerate() {
            let mut values = vec![0; size * count];
            for (key, value) in self.host.list(array) {
                let index = u32::from_ne_bytes(key.try_into().unwrap()) as usize;
                values[size * index..][..size].copy_from_slice(&value);
            }
            // No entry has these bytes.
            self.written[number].resize(values.len(), 0xff);
            let differs =
                |index: &usize| self.written[number][size * index..][..size] != values[size * index..][..size];
            if let (Some(first), Some(last)) = ((0..count).find(differs), (0..count).rfind(differs)) {
                self.put_from(first, array, &values[size * first..size * (last + 1)]);
                self.written[number] = values;
            }
        }
        // The programs add what else they write.
        self.bloom.fill(self.programs.maps()).unwrap();
    }

    /// Lets the tables look as they do after this time without packets.
    pub(crate) fn age(&mut self, seconds: u32) {
        let both = self.tables();
        self.follow(&both);
        self.host.age(seconds);
        self.known = None;
        for map in TABLES {
            let entries = self.host.list(map);
            self.put_entries(map, &entries);
        }
    }

    pub(crate) fn put_entries(&self, map: &str, entries: &[Entry]) {
        let (keys, values): (Vec<_>, Vec<_>) = entries.iter().cloned().unzip();
        self.put_all(map, &keys.concat(), &values.concat());
    }

    /// Removes an entry of `half_open`, as the kernel does when the map is full.
    pub(crate) fn displace(&mut self, number: usize) {
        self.known = None;
        let entries = sorted(self.entries("half_open"));
        if !entries.is_empty() {
            let (key, _) = &entries[number % entries.len()];
            self.map("half_open").delete(key).unwrap();
            self.host.delete("half_open", key);
        }
    }

    /// Deletes what is due.
    pub(crate) fn sweep(&mut self, timeouts: &SweepTimeouts) {
        self.known = None;
        self.sweep.run(timeouts, Interval::default(), &mut |_| {}).unwrap();
    }

    pub(crate) fn entries(&self, map: &str) -> Entries {
        let map = self.map(map);
        let read = |batch| -> Entries { map.lookup_batch(batch, MapFlags::ANY, MapFlags::ANY).unwrap().collect() };
        let entries = read(BATCH);
        // The kernel ends a batch before a bucket that does not fit, and libbpf-rs takes such a batch for the last one.
        if entries.len() + MOST_IN_BUCKET < BATCH as usize { entries } else { read(map.max_entries()) }
    }

    /// What the programs remember in the kernel.
    pub(crate) fn own_tables(&self) -> Tables {
        TABLES.map(|map| sorted(self.entries(map)))
    }

    /// What the programs remember, in the kernel and on the host.
    pub(crate) fn tables(&mut self) -> [Tables; 2] {
        [self.own_tables(), self.host.lists(TABLES).map(sorted)]
    }

    /// Gives the host what the programs remember in the kernel: their times differ.
    pub(crate) fn follow(&mut self, [kernel, host]: &[Tables; 2]) {
        for (map, (kernel, host)) in TABLES.iter().zip(kernel.iter().zip(host)) {
            let [gone, put] = changes(host, kernel);
            gone.iter().filter(|(key, _)| find(kernel, key).is_none()).for_each(|(key, _)| self.host.delete(map, key));
            put.iter().for_each(|(key, value)| self.host.put(map, key, value));
        }
    }

    /// Lets the host's searches for a source port begin where the kernel's do, which has moved by a random number.
    pub(crate) fn follow_cursors(&mut self) {
        if std::mem::replace(&mut self.has_cursors, true) {
            return;
        }
        let moved: Entries = self.cursors().filter(|(_, value)| value.iter().any(|byte| *byte != 0)).collect();
        moved.iter().for_each(|(index, value)| self.host.put("snat_cursors", index, value));
    }

    pub(crate) fn cursors(&self) -> impl Iterator<Item = Entry> {
        let map = self.map("snat_cursors");
        map.lookup_batch(CURSORS, MapFlags::ANY, MapFlags::ANY).unwrap().take(CURSORS as usize)
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
        let verdict = self.programs.run(hook, &input).ok()?;
        Some(Ran { code: verdict.code, bytes: verdict.bytes, reasons: self.counted() })
    }
}

/// The entries in the order of their keys.
pub(crate) fn sorted(mut entries: Entries) -> Entries {
    entries.sort();
    entries
}

pub(crate) fn find<'e>(entries: &'e [Entry], key: &[u8]) -> Option<&'e Entry> {
    entries.iter().find(|(other, _)| other == key)
}
