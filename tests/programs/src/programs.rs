//! The packet programs with their maps, as the daemon would load them for a node.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::ipsec::{Policies, Policy};
use nodelb_core::model::source_range::SourceRange;
use nodelb_core::packets::sweep::SweepTimeouts;
use nodelb_core::state::entries::MapState;

pub use crate::answers::Outcome;
use crate::answers::{answer_about_route, outcome, u32_at};
use crate::connections::{TableLimits, Tables};
use crate::host::{Compiler, Host, Request};
use crate::key::Hook;
use crate::layout;
use crate::node::{Draining, Node, Packet, Settings, Unknown};

/// Entries of `services` and words of `packet_bloom` in `host/unit.h`.
const SERVICES: u32 = 128;
const BLOOM_WORDS: u32 = 1_024;

/// The maps that the daemon writes for each change; `services` and `slots` are arrays.
const CONTENT: [&str; 6] = ["outside", "outside_addrs", "frontends", "source_ranges", "uplinks", "node_addrs"];

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;

/// Of `<linux/if_packet.h>`; `PACKET_BROADCAST` counts as `PACKET_MULTICAST`.
const PACKET_HOST: u32 = 0;
const PACKET_MULTICAST: u32 = 2;
const PACKET_OTHERHOST: u32 = 3;

fn packet_type(packet: &Packet) -> u32 {
    match packet.bytes.first() {
        _ if packet.is_for_host => PACKET_HOST,
        Some(first) if packet.l2_length > 0 && first & 1 != 0 => PACKET_MULTICAST,
        _ => PACKET_OTHERHOST,
    }
}

/// Bytes of data in each packet that a device makes of one with `is_gso`.
const SEGMENT: u32 = 1_000;

/// A rule of `bpf/rule.h` that a test can remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    number: u32,
    pub name: &'static str,
}

impl Rule {
    /// All rules that `host/rules.h` lists.
    pub fn all() -> &'static [Self] {
        static ALL: OnceLock<Vec<Rule>> = OnceLock::new();
        ALL.get_or_init(|| {
            let mut host = take_host(Compiler::Gcc);
            host.send(Request::ListRules, &[]);
            let names: &'static str = Box::leak(String::from_utf8_lossy(&host.receive()).into_owned().into());
            keep_host(Compiler::Gcc, host);
            (1..).zip(names.split_whitespace()).map(|(number, name)| Self { number, name }).collect()
        })
    }
}

/// Hosts that wait for the next test, with their compilers.
static IDLE: Mutex<Vec<(Compiler, Host)>> = Mutex::new(Vec::new());

fn take_host(compiler: Compiler) -> Host {
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = idle.iter().position(|(other, _)| *other == compiler);
    let waiting = place.map(|place| idle.swap_remove(place).1);
    drop(idle);
    waiting.unwrap_or_else(|| Host::start(compiler))
}

fn keep_host(compiler: Compiler, host: Host) {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner).push((compiler, host));
}

/// How the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub compiler: Compiler,
    pub limits: TableLimits,
    pub removed: Option<Rule>,
    /// Whether the kernel has the functions and the flags of tunnels that Linux 6.1 does not have.
    pub is_new_kernel: bool,
    /// Whether `bpf_fib_lookup()` has the newer flags, which distributions add to older kernels.
    pub has_route_flags: bool,
    /// Where the random numbers begin.
    pub random: u32,
    /// Whether the daemon lists the ports of tracked connections, because programs cannot ask.
    pub lists_tracked: bool,
    /// Whether services may have direct return.
    pub direct_return: bool,
}

impl Load {
    pub const fn new(limits: TableLimits) -> Self {
        Self {
            compiler: Compiler::Gcc,
            limits,
            removed: None,
            is_new_kernel: true,
            has_route_flags: true,
            random: 1,
            lists_tracked: false,
            direct_return: true,
        }
    }
}

/// What connection tracking says of a packet: `struct tracked` of `host/kernel.c`.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    /// `IPS_*`
    pub status: u32,
    /// Whether the connection has begun in the other direction.
    pub is_answer: bool,
    /// `TCP_CONNTRACK_*`
    pub state: u8,
}

impl Tracked {
    /// An answer to what another proxy has masqueraded.
    pub const ANSWER: Self = Self { status: 2, is_answer: true, state: 3 };
}

/// The loaded programs.
#[derive(Debug)]
pub struct Programs {
    /// Absent only while it is dropped.
    host: Option<Host>,
    load: Load,
    state: MapState,
    /// The settings, and the devices without a link-layer header, that the programs know.
    settings: Option<Settings>,
    bare: Vec<u32>,
    epoch: u64,
    rings: layout::Rings,
    random: Option<u32>,
    /// Whether packets that leave come from the socket of a health check.
    is_check: bool,
    encapsulated: Vec<SourceRange>,
}

impl Programs {
    /// Loads the programs for a node.
    pub fn load(load: Load, node: &Node<'_>) -> Self {
        let host = Some(take_host(load.compiler));
        let (state, rings) = (MapState::default(), HashMap::new());
        let mut programs = Self {
            host,
            load,
            state,
            settings: None,
            bare: Vec::new(),
            epoch: 0,
            rings,
            random: None,
            is_check: false,
            encapsulated: Vec::new(),
        };
        programs.send_constants(Request::Start, node.settings);
        programs.set(node);
        programs.host().send(Request::Bloom, &[]);
        programs
    }

    fn host(&mut self) -> &mut Host {
        self.host.as_mut().expect("it is absent only in drop()")
    }

    /// Sets the constants and sizes that the daemon sets before it loads the programs: `struct start` of `host/serve.c`.
    fn send_constants(&mut self, request: Request, settings: &Settings) {
        let Load { limits, removed, is_new_kernel, has_route_flags, random, .. } = self.load;
        let Load { lists_tracked, direct_return, .. } = self.load;
        let ports = |range: &std::ops::RangeInclusive<u16>| [range.start().to_ne_bytes(), range.end().to_ne_bytes()];
        let mut bytes = [ports(&settings.nodeport_range), ports(&settings.source_ports)].concat().concat();
        let sizes = [limits.connections, limits.half_open, limits.fragments].map(size);
        bytes.extend((BLOOM_WORDS - 1).to_ne_bytes());
        bytes.extend((sizes[0] / 2).to_ne_bytes());
        bytes.extend([u8::from(lists_tracked), u8::from(direct_return), 0, 0]);
        let tunnels = settings.tunnel_source;
        bytes.extend(tunnels.map_or([[0; 16]; 2], |net| [net.addr, net.mask()].map(Addr::octets)).concat());
        bytes.extend(u32::from(tunnels.is_some()).to_ne_bytes());
        let rest = [sizes[0], sizes[1], sizes[2], removed.map_or(0, |rule| rule.number), random];
        let rest = rest.into_iter().chain([is_new_kernel, has_route_flags].map(u32::from));
        bytes.extend(rest.flat_map(u32::to_ne_bytes));
        self.host().send(request, &[&bytes]);
    }

    /// Writes the content of the maps of this node, if it has changed.
    pub fn set(&mut self, node: &Node<'_>) {
        if self.settings.as_ref() != Some(node.settings) {
            if self.settings.is_some() {
                self.send_constants(Request::Change, node.settings);
            }
            self.write_settings(node.settings);
            self.settings = Some(node.settings.clone());
        }
        if self.state != *node.state {
            self.write(node.state);
        }
    }

    /// Changes the size of the maps that the programs write. They keep their entries.
    pub fn limit(&mut self, limits: TableLimits) {
        if self.load.limits != limits
            && let Some(settings) = self.settings.clone()
        {
            self.load.limits = limits;
            self.send_constants(Request::Change, &settings);
        }
    }

    fn write_settings(&mut self, settings: &Settings) {
        let unknown = match settings.unknown {
            Unknown::Pass => 0,
            Unknown::Reset => 1,
            Unknown::Auto => 2_u32,
            Unknown::AutoWithProxy => 3,
        };
        let draining = match settings.draining {
            Draining::None => 0,
            Draining::All => 1_u32,
            Draining::Kubernetes => 2,
        };
        let [answers, always_masquerades] = [settings.answers, settings.always_masquerades].map(u32::from);
        let owns_addresses = u32::from(settings.unknown != Unknown::AutoWithProxy);
        let fields = [draining, unknown, answers, always_masquerades, owns_addresses].map(u32::to_ne_bytes).concat();
        // The programs write has_direct_return.
        let mut value =
            self.list("packet_settings").pop().map_or_else(|| vec![0; layout::SETTINGS], |(_, value)| value);
        value[..fields.len()].copy_from_slice(&fields);
        self.put("packet_settings", &[0; 4], &value);
    }

    fn write(&mut self, state: &MapState) {
        CONTENT.iter().for_each(|map| self.clear(map));
        // Entries of UDP connections refer to the content before.
        self.epoch += 2;
        self.put("frontend_epoch", &[0; 4], &self.epoch.to_ne_bytes());
        if self.state.services != state.services {
            self.write_services(state);
        }
        for (address, entry) in &state.outside {
            let flags = u32::from(entry.local) | u32::from(entry.has_ranges) << 1;
            self.put_frontend("outside", &layout::frontend_key(address), &layout::frontend(entry.service, flags));
        }
        for address in state.outside.keys().filter(|address| !address.addr.is_unspecified()) {
            self.put("outside_addrs", &address.addr.octets(), &[0; 4]);
        }
        for (address, entry) in &state.frontends {
            let value = layout::frontend(entry.service, u32::from(entry.inside_local));
            self.put_frontend("frontends", &layout::frontend_key(address), &value);
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
        if state.outside != self.state.outside {
            self.host().send(Request::Bloom, &[]);
        }
        self.state = state.clone();
    }

    fn write_services(&mut self, state: &MapState) {
        let mut first = 0;
        let known: Vec<u32> = self.state.services.iter().map(|(id, _)| id.0).collect();
        for id in known.into_iter().filter(|id| *id < SERVICES) {
            self.put("services", &id.to_ne_bytes(), &[0; 32]);
        }
        for (id, entry) in state.services.iter() {
            let (value, slots) = layout::service(entry, first, &mut self.rings);
            for slot in slots.chunks(layout::SLOT) {
                self.put("slots", &size(first).to_ne_bytes(), slot);
                first += 1;
            }
            self.put("services", &id.0.to_ne_bytes(), &value);
        }
    }

    pub fn put(&mut self, map: &str, key: &[u8], value: &[u8]) {
        let name = named(map);
        self.host().send(Request::Put, &[&name, key, value]);
    }

    fn put_frontend(&mut self, map: &str, key: &[u8], value: &[u8]) {
        let name = named(map);
        self.host().send(Request::Frontend, &[&name, key, value]);
    }

    pub fn delete(&mut self, map: &str, key: &[u8]) {
        let name = named(map);
        self.host().send(Request::Delete, &[&name, key]);
    }

    pub fn clear(&mut self, map: &str) {
        let name = named(map);
        self.host().send(Request::Clear, &[&name]);
    }

    /// The keys and values of a map; of an array, those with a value that is not 0.
    pub fn list(&mut self, map: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
        let [entries] = self.lists([map]);
        entries
    }

    /// The same of several maps, with one question.
    pub fn lists<const N: usize>(&mut self, maps: [&str; N]) -> [Vec<(Vec<u8>, Vec<u8>)>; N] {
        let host = self.host();
        maps.iter().for_each(|map| host.send(Request::List, &[&named(map)]));
        maps.map(|map| {
            let (key, value) = layout::sizes(map);
            host.receive().chunks(key + value).map(|entry| (entry[..key].to_vec(), entry[key..].to_vec())).collect()
        })
    }

    /// What the programs remember.
    pub fn tables(&mut self) -> Tables {
        let [connections, half_open, fragments, affinity] =
            self.lists(["connections", "half_open", "fragments", "affinity"]);
        let connection = |(key, value): (Vec<u8>, Vec<u8>)| (layout::packet_key(&key), layout::connection(&value));
        Tables {
            connections: connections.into_iter().map(connection).collect(),
            half_open: half_open.into_iter().map(connection).collect(),
            fragments: fragments
                .into_iter()
                .map(|(key, value)| (layout::fragment_key(&key), layout::fragment(&value)))
                .collect(),
            affinity: affinity
                .into_iter()
                .map(|(key, value)| (layout::affinity_key(&key), layout::affinity(&value)))
                .collect(),
        }
    }

    /// The number that the programs get instead of a random one.
    pub const fn fix_random(&mut self, number: Option<u32>) {
        self.random = number;
    }

    /// From now on, what processes of the node send are health checks that go to this address of a service.
    pub fn set_check(&mut self, to: L4Addr, is_tunnel: bool) {
        let way = [&to.addr.octets()[..], &to.port.to_be_bytes(), &u16::from(is_tunnel).to_ne_bytes()].concat();
        self.put("check_ways", &[0; 4], &way);
        self.is_check = true;
    }

    /// A socket of the node is bound to this port.
    pub fn add_socket(&mut self, at: L4Addr) {
        self.add_socket_in(None, at, 7);
    }

    /// A socket of the node is in this state, at this port, and connected from there.
    pub fn add_socket_in(&mut self, from: Option<L4Addr>, at: L4Addr, state: u32) {
        self.put("sockets", &layout::ends(from, at), &state.to_ne_bytes());
    }

    /// Connection tracking knows packets between these ends.
    pub fn add_tracked(&mut self, from: L4Addr, to: L4Addr, tracked: Tracked) {
        let Tracked { status, is_answer, state } = tracked;
        let value = [&status.to_ne_bytes()[..], &[u8::from(is_answer), state, 0, 0]].concat();
        self.put("tracked", &layout::ends(Some(from), to), &value);
    }

    /// The daemon lists the port of a connection that another proxy has masqueraded. Its answers have these ends.
    pub fn add_foreign(&mut self, from: L4Addr, to: L4Addr) {
        self.put("foreign_ports", &layout::ends(Some(from), to), &[0; 4]);
    }

    /// These policies of IPsec are in effect.
    pub fn set_policies(&mut self, policies: &[Policy]) {
        let rules = Policies::new(policies, 1024).rules;
        for (index, rule) in rules.iter().enumerate() {
            self.put("ipsec_policies", &size(index).to_ne_bytes(), &layout::policy(rule));
        }
        let mut value =
            self.list("packet_settings").pop().map_or_else(|| vec![0; layout::SETTINGS], |(_, value)| value);
        value[layout::POLICIES..][..4].copy_from_slice(&size(rules.len()).to_ne_bytes());
        self.put("packet_settings", &[0; 4], &value);
    }

    /// Routes to these addresses have an encapsulation.
    pub fn encapsulate(&mut self, addresses: SourceRange) {
        self.encapsulated.push(addresses);
    }

    /// Reports all packets, for an hour.
    pub fn watch(&mut self, now_ns: u64) {
        let mut value = vec![0; 72];
        value[..8].copy_from_slice(&(now_ns + 3_600_000_000_000).to_ne_bytes());
        self.put("packet_watch", &[0; 4], &value);
    }

    /// Runs the program of the packet's hook.
    pub fn run(&mut self, node: &Node<'_>, packet: &Packet) -> Outcome {
        let program = match packet.hook {
            Hook::In => 0,
            Hook::Out | Hook::PodOut => 1,
            Hook::PodIn => 2,
        };
        self.run_program(node, packet, program)
    }

    /// Runs the program at XDP on a packet that arrives at an uplink. Its verdict is [`Verdict::Next`] if it passes the packet
    /// on.
    pub fn run_xdp(&mut self, node: &Node<'_>, packet: &Packet) -> Outcome {
        self.run_program(node, packet, 3)
    }

    fn run_program(&mut self, node: &Node<'_>, packet: &Packet, program: u32) -> Outcome {
        if packet.l2_length == 0 && !self.bare.contains(&packet.ifindex) {
            self.put("bare_devices", &packet.ifindex.to_ne_bytes(), &[0; 4]);
            self.bare.push(packet.ifindex);
        }
        let request = self.request(node, packet, program);
        let encapsulated = self.encapsulated.clone();
        let host = self.host();
        host.send(Request::Run, &[&request, &packet.bytes]);
        loop {
            let answer = host.receive();
            let kind = u32_at(&answer, 0);
            if kind == 0 {
                return outcome(packet, program, &answer);
            }
            let reply = answer_about_route(node, &encapsulated, &answer);
            host.reply(&reply);
        }
    }

    /// `struct run` of `host/serve.c`.
    fn request(&self, node: &Node<'_>, packet: &Packet, program: u32) -> Vec<u8> {
        let protocol = match packet.l2_length {
            0 => match packet.bytes.first().map(|first| first >> 4) {
                Some(6) => ETH_P_IPV6,
                _ => ETH_P_IP,
            },
            _ => packet.bytes.get(12..14).map_or(0, |kind| u16::from_be_bytes([kind[0], kind[1]])),
        };
        let numbers = [
            program,
            packet.ifindex,
            packet.came_by,
            size(packet.l2_length),
            packet.linear.map_or(u32::MAX, size),
            u32::from(protocol.to_be()),
            packet_type(packet),
            packet.vlan_tag.map_or(0, |tag| 1 << 16 | u32::from(tag)),
            if packet.is_gso { SEGMENT } else { 0 },
            packet.summed as u32,
            u32::from(packet.is_tracked_request),
            u32::from(self.is_check && packet.came_by == 0),
            0,
            self.random.unwrap_or(0),
            u32::from(self.random.is_some()),
            // The struct ends at a multiple of 8 bytes.
            0,
        ];
        let mut bytes = node.now_ns.to_ne_bytes().to_vec();
        bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        bytes
    }

    /// Describes a device to the program at XDP: it has Ethernet, and its driver sends what another one has received.
    pub fn describe_device(&mut self, ifindex: u32, mac: [u8; 6]) {
        self.put("xdp_devices", &ifindex.to_ne_bytes(), &[&mac[..], &1_u16.to_ne_bytes()].concat());
    }

    /// Deletes the connections that are due. Returns how many there were.
    pub fn sweep(&mut self, now_ns: u64, timeouts: &SweepTimeouts) -> u32 {
        let SweepTimeouts { handshake, closed, reset, tcp_idle, udp_idle, forwarded_idle } = *timeouts;
        // Without an interval of which outcomes are counted, and no look.
        let numbers =
            [handshake, closed, reset, tcp_idle, udp_idle, forwarded_idle, 0, 0, 0].map(u32::to_ne_bytes).concat();
        let host = self.host();
        host.send(Request::Sweep, &[&now_ns.to_ne_bytes(), &numbers]);
        u32_at(&host.receive(), 0)
    }

    /// Lets the tables look as they do after this time without packets.
    pub fn age(&mut self, seconds: u32) {
        self.host().send(Request::Age, &[&seconds.to_ne_bytes()]);
    }

    /// Remembers the content of all maps that programs write for [`Self::restore`].
    pub fn save(&mut self) {
        self.host().send(Request::Save, &[]);
    }

    /// Makes all maps that programs write what they were at [`Self::save`].
    pub fn restore(&mut self) {
        self.host().send(Request::Restore, &[]);
        // The addresses of services are not saved, and may have changed since.
        self.host().send(Request::Bloom, &[]);
    }

    /// The maps of connections become those that a start of the daemon replaces, with this index.
    pub fn make_former(&mut self, index: u32) {
        self.host().send(Request::Former, &[&index.to_ne_bytes()]);
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        // What a failed test leaves may be in the middle of an answer.
        if let Some(host) = self.host.take().filter(|_| !std::thread::panicking()) {
            keep_host(self.load.compiler, host);
        }
    }
}

fn size(number: usize) -> u32 {
    u32::try_from(number).expect("a size of 32 bits")
}

fn named(map: &str) -> Vec<u8> {
    let mut name = vec![u8::try_from(map.len()).expect("a short name")];
    name.extend(map.as_bytes());
    name
}
