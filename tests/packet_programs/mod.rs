//! Shared by the tests: a node with devices and routes, the programs with their maps, and one family's addresses.

mod entries;
mod events;
mod former;
mod fragments;
mod frames;
mod hostile;
mod icmp;
mod pods;
mod refusal;
mod routes;
mod sweep;
mod traffic;
mod translation;
mod variants;
mod verifier;

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nodelb_core::datapath::Limits;
use nodelb_datapath::packets::{
    ForeignConnections, Packet, PacketHook, PacketMaps, PacketOptions, PacketPrograms, PacketSettings, REASONS,
};

use self::frames::{Frame, NODE_MAC, PEER_MAC, Seen, read};
use crate::sandbox::{self, command};

/// The verdict that passes a packet on: to other programs, then to the network stack.
const NEXT: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

/// A service that all tests use, and the index of the first slot of its views.
const SERVICE: u32 = 3;

/// Bits of `enum service_flags`.
const DIRECT: u32 = 128;
const TUNNEL: u32 = 256;

/// Bits of `enum connection_flags`.
const REDIRECTED: u32 = 1;
const REVERSE: u32 = 2;
const REPLIED: u32 = 4;

/// The addresses of one family. The node's network has no route to the service's address.
#[derive(Clone, Copy, Debug)]
struct Family {
    client: &'static str,
    node: &'static str,
    service: &'static str,
    /// Backends on this node: in a pod, and a process of the node.
    pod: &'static str,
    process: &'static str,
    /// A backend on another machine.
    remote: &'static str,
    /// The node's address towards them.
    node_at_remote: &'static str,
}

const V4: Family = Family {
    client: "203.0.113.2:40000",
    node: "203.0.113.1:30080",
    service: "198.51.100.200:80",
    pod: "203.0.113.130:8080",
    process: "192.0.2.7:8080",
    remote: "198.51.100.10:8080",
    node_at_remote: "198.51.100.1",
};

const V6: Family = Family {
    client: "[2001:db8:1::2]:40000",
    node: "[2001:db8:1::1]:30080",
    service: "[2001:db8:f::1]:80",
    pod: "[2001:db8:3::2]:8080",
    process: "[2001:db8:b::7]:8080",
    remote: "[2001:db8:2::10]:8080",
    node_at_remote: "2001:db8:2::1",
};

/// Both families with both protocols.
fn all_kinds() -> impl Iterator<Item = (Family, u8)> {
    [V4, V6].into_iter().flat_map(|family| [(family, frames::TCP), (family, frames::UDP)])
}

/// The node: its devices, its programs and their maps.
struct Node {
    programs: PacketPrograms,
    /// Index of the device to the clients.
    uplink: u32,
    /// Index of the device to other machines.
    inner: u32,
    /// Index of the device of a pod.
    pod: u32,
}

/// Runs a test with a node in a sandbox.
fn with_node(test: &str, body: impl FnOnce(&Node)) {
    sandbox::run(test, |_| body(&Node::new()));
}

fn ip(words: &str) {
    command("ip", &words.split(' ').collect::<Vec<_>>());
}

/// Adds a device with these addresses of the node and with a peer that is always there.
fn device(name: &str, addresses: &[&str], peers: &[&str]) -> u32 {
    let mac = |bytes: [u8; 6]| bytes.map(|byte| format!("{byte:02x}")).join(":");
    ip(&format!("link add {name} address {} type veth peer name {name}-peer", mac(NODE_MAC)));
    ip(&format!("link set {name} up"));
    ip(&format!("link set {name}-peer up"));
    for address in addresses {
        ip(&format!("address add {address} dev {name}{}", if address.contains(':') { " nodad" } else { "" }));
    }
    for peer in peers {
        ip(&format!("neighbour replace {peer} lladdr {} dev {name} nud permanent", mac(PEER_MAC)));
    }
    index_of(name)
}

/// Index of a device of this network namespace.
fn index_of(name: &str) -> u32 {
    let output = sandbox::program("ip").args(["-o", "link", "show", "dev", name]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split(':').next().unwrap().parse().unwrap()
}

impl Node {
    fn new() -> Self {
        let uplink = device("up0", &["203.0.113.1/25", "2001:db8:1::1/64"], &["203.0.113.2", "2001:db8:1::2"]);
        let inner = device(
            "inner0",
            &["198.51.100.1/25", "2001:db8:2::1/64"],
            &["198.51.100.10", "198.51.100.11", "2001:db8:2::10", "2001:db8:2::11"],
        );
        let pod = device("pod0", &["203.0.113.129/25", "2001:db8:3::1/64"], &["203.0.113.130", "2001:db8:3::2"]);
        let node = Self { uplink, inner, pod, ..Self::without_devices() };
        node.describe();
        node
    }

    /// This node, with other programs and empty maps.
    fn with_programs(&self, source_ports: RangeInclusive<u16>) -> Self {
        self.with_listed(source_ports, None)
    }

    /// This node, with programs that do not query connection tracking if connections of others are listed.
    fn with_listed(&self, source_ports: RangeInclusive<u16>, listed: Option<ForeignConnections>) -> Self {
        let node = Self { programs: load(source_ports, listed), ..*self };
        node.settings([0, 0, 1, 0]);
        node.describe();
        node
    }

    /// Writes the node's devices and addresses into the maps.
    fn describe(&self) {
        self.set_uplink(self.uplink, "203.0.113.1", "2001:db8:1::1");
        self.set_uplink(self.inner, "198.51.100.1", "2001:db8:2::1");
        self.set("node_addrs", &addr("203.0.113.1".parse().unwrap()), &[0; 4]);
        self.set("node_addrs", &addr("2001:db8:1::1".parse().unwrap()), &[0; 4]);
    }

    /// The programs and maps of a node that forwards packets.
    fn without_devices() -> Self {
        for file in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/net/{file}"), "1").unwrap();
        }
        let node = Self { programs: load(10_000..=10_099, None), uplink: 0, inner: 0, pod: 0 };
        node.settings([0, 0, 1, 0]);
        node
    }

    fn map(&self, name: &str) -> &MapHandle {
        self.programs.maps().get(name).unwrap_or_else(|| panic!("no map {name}"))
    }

    fn set(&self, map: &str, key: &[u8], value: &[u8]) {
        self.map(map).update(key, value, MapFlags::ANY).unwrap_or_else(|error| panic!("{map}: {error}"));
    }

    fn set_uplink(&self, ifindex: u32, v4: &str, v6: &str) {
        let mut value = addr(v4.parse().unwrap()).to_vec();
        value.extend(addr(v6.parse().unwrap()));
        value.extend(1500_u32.to_ne_bytes());
        value.extend([14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        self.set("uplinks", &ifindex.to_ne_bytes(), &value);
    }

    /// Sets the fields of `struct packet_settings` that the daemon writes.
    fn settings(&self, fields: [u32; 4]) {
        let [draining, unknown, answers, always_masquerades] = fields;
        // No other proxy is there. The programs write has_direct_return, the seventh one; each eighth is padding.
        let fields = [draining, unknown, answers, always_masquerades, 1, 0, 0, 0, 0, 0];
        self.set("packet_settings", &[0; 4], &fields.map(u32::to_ne_bytes).concat());
    }

    /// Sets the service's lists.
    fn serve(&self, lists: &Lists<'_>) {
        let (cluster, local) = (lists.cluster, lists.local);
        self.fill(0, cluster, lists.protocol);
        self.fill(2000, local, lists.protocol);
        let view = |first: u32, list: &[&str]| {
            let count = u16::try_from(list.len()).unwrap();
            [&first.to_ne_bytes()[..], &count.to_ne_bytes(), &[0; 2]].concat()
        };
        let flags = 2 | u32::from(lists.has_backends) | if lists.ring.is_empty() { 0 } else { 32 };
        let mut value = [view(0, cluster), view(2000, local)].concat();
        value.extend(flags.to_ne_bytes());
        value.extend(lists.affinity_seconds.to_ne_bytes());
        value.extend([0; 8]);
        self.set("services", &SERVICE.to_ne_bytes(), &value);
        for (index, offsets) in lists.ring.chunks(12).enumerate() {
            let mut slot: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_ne_bytes()).collect();
            slot.resize(24, 0);
            let at = u32::try_from(cluster.len() + index).unwrap();
            self.set("slots", &at.to_ne_bytes(), &slot);
        }
    }

    fn fill(&self, first: u32, list: &[&str], protocol: u8) {
        for (index, backend) in (first..).zip(list) {
            let backend: SocketAddr = backend.parse().unwrap();
            let mut slot = addr(backend.ip()).to_vec();
            slot.extend(backend.port().to_be_bytes());
            slot.extend([protocol, 0]);
            slot.extend(backend_id(backend).to_ne_bytes());
            self.set("slots", &index.to_ne_bytes(), &slot);
        }
    }

    /// Gives the service direct return: [`DIRECT`] or [`TUNNEL`].
    fn forward(&self, flag: u32) {
        self.change("services", |service| {
            let flags = u32::from_ne_bytes(service[16..20].try_into().unwrap()) | flag;
            service[16..20].copy_from_slice(&flags.to_ne_bytes());
        });
    }

    /// Makes the service available at an address; flags are those of `enum outside_flags`.
    fn publish(&self, address: &str, protocol: u8, flags: u32) {
        let key = frontend_key(address.parse().unwrap(), protocol);
        self.set("outside", &key, &sealed(&key, flags));
        if key[..16].iter().any(|byte| ![0, 0xff].contains(byte)) {
            self.set("outside_addrs", &key[..16], &[0; 4]);
        }
    }

    /// The service with one backend at the family's address.
    fn serve_one(&self, family: Family, protocol: u8, backend: &str) {
        self.serve(&Lists { cluster: &[backend], protocol, ..Lists::default() });
        self.publish(family.service, protocol, 0);
    }

    fn run(&self, hook: PacketHook, ifindex: u32, bytes: &[u8]) -> (i32, Vec<u8>) {
        let packet = Packet { bytes: bytes.to_vec(), ifindex, came_by: 0, gso_size: 0 };
        let verdict = self.programs.run(hook, &packet).unwrap();
        (verdict.code, verdict.bytes)
    }

    /// A packet arrives from the clients.
    fn arrives(&self, frame: &Frame) -> (i32, Seen) {
        let (code, bytes) = self.run(PacketHook::UplinkIn, self.uplink, &frame.bytes());
        (code, read(&bytes))
    }

    /// A packet arrives from another machine.
    fn answered(&self, frame: &Frame) -> (i32, Seen) {
        let (code, bytes) = self.run(PacketHook::UplinkIn, self.inner, &frame.bytes());
        (code, read(&bytes))
    }

    /// A packet leaves to the clients.
    fn leaves(&self, frame: &Frame) -> (i32, Seen) {
        let (code, bytes) = self.run(PacketHook::UplinkOut, self.uplink, &frame.bytes());
        (code, read(&bytes))
    }

    /// A packet arrives and must be left as it is.
    fn ignores(&self, what: &str, bytes: &[u8]) {
        let before = self.entries();
        assert_eq!(self.run(PacketHook::UplinkIn, self.uplink, bytes), (NEXT, bytes.to_vec()), "{what}");
        assert_eq!(self.entries(), before, "{what}: entries");
    }

    /// The entries of `connections` and `half_open`.
    fn entries(&self) -> (Vec<Entry>, Vec<Entry>) {
        (self.entries_of("connections"), self.entries_of("half_open"))
    }

    fn entries_of(&self, map: &str) -> Vec<Entry> {
        let map = self.map(map);
        let read = |key: Vec<u8>| {
            let value = map.lookup(&key, MapFlags::ANY).unwrap()?;
            Some(Entry::read(&key, &value))
        };
        let mut entries: Vec<Entry> = map.keys().filter_map(read).collect();
        entries.sort();
        entries
    }

    /// A number of `struct packet_counts`, by its position.
    fn counted(&self, index: usize) -> u64 {
        let counts = self.map("packet_counts").lookup_percpu(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        counts.iter().map(|cpu| u64::from_ne_bytes(cpu[8 * index..][..8].try_into().unwrap())).sum()
    }

    /// Number of packets dropped or answered for this reason.
    fn dropped(&self, reason: usize) -> u64 {
        self.counted(5 + reason)
    }

    /// Number of packets passed on for this reason. The counts follow those of the drops.
    fn passed(&self, reason: usize) -> u64 {
        self.dropped(REASONS.len() + reason)
    }

    /// The numbers of `packet_drops`: packets by service, reason and verdict.
    fn drops(&self) -> Vec<((u32, u16, u16), u64)> {
        let map = self.map("packet_drops");
        let number = |key: &[u8], at: usize| u16::from_ne_bytes(key[at..at + 2].try_into().unwrap());
        let packets = |key: &[u8]| {
            let of_cpus = map.lookup_percpu(key, MapFlags::ANY).unwrap().unwrap();
            of_cpus.iter().map(|cpu| u64::from_ne_bytes(cpu[..8].try_into().unwrap())).sum()
        };
        let service = |key: &[u8]| u32::from_ne_bytes(key[..4].try_into().unwrap());
        let keys = map.keys();
        let mut found: Vec<_> =
            keys.map(|key| ((service(&key), number(&key, 4), number(&key, 6)), packets(&key))).collect();
        found.sort_unstable();
        found
    }

    /// Changes all entries of a map.
    fn change(&self, map: &str, change: impl Fn(&mut [u8])) {
        let map = self.map(map);
        for key in map.keys().collect::<Vec<_>>() {
            let mut value = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
            change(&mut value);
            map.update(&key, &value, MapFlags::ANY).unwrap();
        }
    }
}

/// The lists of the service.
#[derive(Clone, Copy, Debug)]
struct Lists<'a> {
    cluster: &'a [&'a str],
    local: &'a [&'a str],
    protocol: u8,
    has_backends: bool,
    affinity_seconds: u32,
    /// Offsets of the cluster list; empty: no ring.
    ring: &'a [u16],
}

impl Default for Lists<'_> {
    fn default() -> Self {
        Self { cluster: &[], local: &[], protocol: frames::TCP, has_backends: true, affinity_seconds: 0, ring: &[] }
    }
}

fn load(source_ports: RangeInclusive<u16>, foreign_connections: Option<ForeignConnections>) -> PacketPrograms {
    let options = options(source_ports, foreign_connections);
    PacketPrograms::load(&options, PacketMaps::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn options(source_ports: RangeInclusive<u16>, foreign_connections: Option<ForeignConnections>) -> PacketOptions {
    PacketOptions {
        nodeport_range: 30000..=32767,
        source_ports,
        limits: Limits { frontends: 64, services: 16, slots: 4096, affinity: 64, outside: 64, source_ranges: 64 },
        max_connections: 512,
        max_handshakes: 512,
        max_fragments: 64,
        count_connections: true,
        has_pods: true,
        direct_return: true,
        tunnel_sources: Vec::new(),
        foreign_connections,
        xdp: None,
        settings: PacketSettings::default(),
        policies: None,
    }
}

/// An address in 16 bytes.
fn addr(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn backend_id(backend: SocketAddr) -> u32 {
    let text = backend.to_string();
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

fn frontend_key(address: SocketAddr, protocol: u8) -> Vec<u8> {
    let mut key = addr(address.ip()).to_vec();
    key.extend(address.port().to_be_bytes());
    key.extend([protocol, 0]);
    key
}

/// A value of `outside`: the seal is that of bpf/service.h.
fn sealed(key: &[u8], flags: u32) -> Vec<u8> {
    let odd = [0x85eb_ca6b_u32, 0xc2b2_ae35, 0x27d4_eb2f, 0x1656_67b1, 0x2c1b_3c6d];
    let words = key.chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
    let start = SERVICE.wrapping_mul(0x9e37_79b1).wrapping_add(flags);
    let sum = words.zip(odd).fold(start, |sum, (word, odd)| sum.wrapping_add(word.wrapping_mul(odd)));
    let flags = ((sum ^ sum >> 15) & !3) | flags;
    [SERVICE.to_ne_bytes(), flags.to_ne_bytes()].concat()
}

/// An entry of `connections` or `half_open`: from what to what it translates.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    source: SocketAddr,
    target: SocketAddr,
    protocol: u8,
    leaving: bool,
    new_source: SocketAddr,
    new_target: SocketAddr,
    backend: u32,
    flags: u32,
    bytes: u64,
}

impl Entry {
    fn read(key: &[u8], value: &[u8]) -> Self {
        let side = |bytes: &[u8], ip: usize, port: usize| {
            let ip = std::net::Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[ip..ip + 16]).unwrap()).to_canonical();
            SocketAddr::new(ip, u16::from_be_bytes(bytes[port..port + 2].try_into().unwrap()))
        };
        let word = |at: usize| u32::from_ne_bytes(value[at..at + 4].try_into().unwrap());
        Self {
            source: side(key, 0, 32),
            target: side(key, 16, 34),
            protocol: key[36],
            leaving: key[37] == 1,
            new_source: side(value, 0, 32),
            new_target: side(value, 16, 34),
            backend: word(40),
            flags: word(60),
            bytes: u64::from_ne_bytes(value[72..80].try_into().unwrap()),
        }
    }
}
