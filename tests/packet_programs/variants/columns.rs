//! The table: a column for each option that decides what is loaded. An option without a column fails the test, see
//! [`super::coverage`].

use std::ops::RangeInclusive;

use nodelb_core::datapath::Limits;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::source_range::SourceRange;
use nodelb_datapath::packets::{ForeignConnections, PacketOptions, PacketSettings, XdpMode};
use nodelb_datapath::{LAYOUT, Options};

use crate::sandbox::Sandbox;

/// What a start is given.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) options: Options,
    /// Whether the kernel has types (BTF).
    pub(super) has_types: bool,
    /// Whether the process may lock memory (RLIMIT_MEMLOCK).
    pub(super) may_lock: bool,
}

/// An option.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Whether the option has no effect without the packet path.
    pub(super) is_of_packets: bool,
    pub(super) values: &'static [Value],
}

/// A value of an option.
#[derive(Debug)]
pub(super) struct Value {
    pub(super) name: &'static str,
    /// Whether a start with it has no packet path.
    pub(super) ends_packets: bool,
    set: Set,
}

/// Changes a start.
pub(super) type Set = fn(&mut Start);

const fn value(name: &'static str, set: Set) -> Value {
    Value { name, ends_packets: false, set }
}

const fn sockets(name: &'static str, values: &'static [Value]) -> Column {
    Column { name, is_of_packets: false, values }
}

const fn of_packets(name: &'static str, values: &'static [Value]) -> Column {
    Column { name, is_of_packets: true, values }
}

/// The columns. The first value of each is that of [`with_packets`].
pub(super) const COLUMNS: [Column; 13] = [
    sockets("packets", &[value("on", |_| {}), Value { name: "off", ends_packets: true, set: without_packets }]),
    sockets(
        "object",
        &[
            value("usual", |_| {}),
            value("next layout", |start| start.options.layout = LAYOUT + 1),
            Value { name: "without types", ends_packets: true, set: |start| start.has_types = false },
        ],
    ),
    sockets("counters", &[value("on", |_| {}), value("off", |start| count(start, false))]),
    sockets("nodeports", &[value("usual", |_| {}), value("none", no_nodeports)]),
    sockets(
        "nodeports are",
        &[value("protected", |_| {}), value("free", |start| start.options.protect_nodeports = false)],
    ),
    sockets("maps", &[value("large", |_| {}), value("smallest", smallest)]),
    sockets("locked memory", &[value("allowed", |_| {}), value("none", |start| start.may_lock = false)]),
    of_packets("pods", &[value("with", |_| {}), value("without", |start| packets(start).has_pods = false)]),
    of_packets(
        "xdp",
        &[
            value("off", |_| {}),
            value("auto", |start| packets(start).xdp = Some(XdpMode::Auto)),
            value("generic", |start| packets(start).xdp = Some(XdpMode::Generic)),
        ],
    ),
    of_packets(
        "connection tracking",
        &[
            value("queried", |_| {}),
            value("listed", |start| packets(start).foreign_connections = Some(ForeignConnections::new())),
        ],
    ),
    of_packets(
        "direct return",
        &[
            value("yes", |_| {}),
            value("no", |start| packets(start).direct_return = false),
            value("of 16 networks", tunnels_of_all_kinds),
        ],
    ),
    of_packets(
        "source ports",
        &[value("own", |_| {}), value("of sockets", |start| packets(start).source_ports = SHARED_PORTS)],
    ),
    of_packets("packet maps", &[value("large", |_| {}), value("smallest", smallest_of_packets)]),
];

/// Ports within the `ip_local_port_range` of a new network namespace.
const SHARED_PORTS: RangeInclusive<u16> = 40_000..=40_999;

/// Sizes of the maps that every start has.
const LIMITS: Limits =
    Limits { frontends: 1024, services: 256, slots: 4096, affinity: 1024, outside: 16_384, source_ranges: 64 };

impl Start {
    /// The start with these values of [`COLUMNS`], with its pins in a directory of its own.
    pub(super) fn new(env: &Sandbox, name: &str, row: &[usize]) -> Self {
        let mut start = with_packets(env, name);
        // The packet path ends last: the other columns change its options.
        for (column, value) in COLUMNS.iter().zip(row).rev() {
            (column.values[*value].set)(&mut start);
        }
        start
    }
}

/// A start with the packet path, as by default but for sizes.
pub(super) fn with_packets(env: &Sandbox, name: &str) -> Start {
    let packets = PacketOptions {
        nodeport_range: 30000..=32767,
        source_ports: 10_000..=10_999,
        limits: LIMITS,
        max_connections: 1024,
        max_handshakes: 1024,
        max_fragments: 256,
        count_connections: true,
        has_pods: true,
        direct_return: true,
        tunnel_sources: Vec::new(),
        foreign_connections: None,
        xdp: None,
        settings: PacketSettings::default(),
        policies: None,
    };
    let options = Options {
        pin_directory: env.bpffs.join(name),
        cgroup: Some(env.cgroup.clone()),
        limits: LIMITS,
        nodeport_range: 30000..=32767,
        protect_nodeports: true,
        count_connections: true,
        packets: Some(packets),
        hook_method: None,
        layout: LAYOUT,
        crash_after: None,
    };
    Start { options, has_types: true, may_lock: true }
}

pub(super) fn packets(start: &mut Start) -> &mut PacketOptions {
    start.options.packets.as_mut().expect("the columns begin with the packet path")
}

fn tunnels_of_all_kinds(start: &mut Start) {
    let net = |prefix| SourceRange::new(Addr::from_octets([0x20; 16]), prefix);
    packets(start).tunnel_sources = (1..17).map(net).collect();
}

fn without_packets(start: &mut Start) {
    start.options.packets = None;
    start.options.limits = Limits { outside: 0, source_ranges: 0, ..start.options.limits };
}

fn count(start: &mut Start, counts: bool) {
    start.options.count_connections = counts;
    packets(start).count_connections = counts;
}

fn no_nodeports(start: &mut Start) {
    let none = RangeInclusive::new(1, 0);
    start.options.nodeport_range = none.clone();
    packets(start).nodeport_range = none;
}

fn smallest(start: &mut Start) {
    let limits = Limits { frontends: 1, services: 1, slots: 1, affinity: 1, outside: 1, source_ranges: 1 };
    start.options.limits = limits;
    packets(start).limits = limits;
}

fn smallest_of_packets(start: &mut Start) {
    let packets = packets(start);
    (packets.max_connections, packets.max_handshakes, packets.max_fragments) = (64, 64, 64);
}
