//! The cost of a UDP packet: known connections, new ones, and packets that are no service's.

use crate::generator::{Flows, Generator, Targets};
use crate::goals::Goals;
use crate::nodes::{Balanced, Nodes, VARIANTS, packet_options};
use crate::rounds::{Times, in_turn};
use crate::site::{ADDRESSES, BACKEND_PORT, MACHINE, POD, Site};

/// Rounds of each comparison.
pub(crate) const ROUNDS: usize = 13;
/// Packets of one measurement.
const PACKETS: u32 = 50_000;
/// New connections of one measurement.
const NEW: u32 = 20_000;
/// Handshakes that fill nodelb's map of them.
const FULL: u32 = 40_000;
/// Flows of known connections: few and many.
const FEW: u32 = 1_000;
pub(crate) const MANY: u32 = 100_000;

const ABOVE_EARLY: &str = "to nftables, each above a drop by XDP";

/// Where the backend is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// In a pod on the node.
    Local,
    /// On another machine.
    Remote,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Local, Self::Remote];

    /// Where the backend is, for the chart.
    pub(crate) fn place(self) -> &'static str {
        if self == Self::Local { "backend on the node" } else { "backend elsewhere" }
    }

    /// The services with backends on this side: see [`crate::nodes::translations`].
    pub(crate) fn services(self) -> Targets {
        let first = [198, 51, 100, if self == Self::Local { 1 } else { 2 }].into();
        Targets { first, count: ADDRESSES, step: 2, port: 1_000 }
    }

    /// The backends themselves.
    pub(crate) fn backends(self) -> Targets {
        let first = if self == Self::Local { POD } else { MACHINE };
        Targets { first, count: ADDRESSES, step: 1, port: BACKEND_PORT }
    }
}

/// Nanoseconds of the variants of one table, above those of a packet that is dropped where it
/// arrives.
struct Table<const N: usize> {
    times: [[Times; N]; 2],
    dropped: f64,
}

impl<const N: usize> Table<N> {
    /// The costs of a variant by minimum and first quartile.
    fn cost(&self, side: Side, variant: usize) -> [f64; 2] {
        let times = &self.times[side as usize][variant];
        [times.min() - self.dropped, times.p25() - self.dropped]
    }

    fn ratio(&self, side: Side, variant: usize, base: usize) -> [f64; 2] {
        let (of, base) = (self.cost(side, variant), self.cost(side, base));
        [of[0] / base[0], of[1] / base[1]]
    }

    /// The ratio towards a remote backend with the cost of the buffer, which XDP does not make: each above a drop by XDP.
    fn whole_ratio(&self, variant: usize, base: usize, early: [f64; 2]) -> [f64; 2] {
        let (of, base) = (self.cost(Side::Remote, variant), self.cost(Side::Remote, base));
        [(of[0] - early[0]) / (base[0] - early[0]), (of[1] - early[1]) / (base[1] - early[1])]
    }

    /// Adds a row to the chart for each side, with plain forwarding, nodelb and nftables as numbers of variants.
    fn add_to(&self, goals: &mut Goals, what: &str, variants: [usize; 3]) {
        for side in Side::BOTH {
            goals.chart.add(format!("{what}, {}", side.place()), variants.map(|variant| self.cost(side, variant)[0]));
        }
    }

    fn print(&self, names: [&str; N]) {
        println!("| | local, min | local, p25 | remote, min | remote, p25 |\n|---|---|---|---|---|");
        for (variant, name) in names.iter().enumerate() {
            let [[a, b], [c, d]] = Side::BOTH.map(|side| self.cost(side, variant));
            println!("| {name} | {a:.0} | {b:.0} | {c:.0} | {d:.0} |");
        }
    }
}

/// All tables.
pub(crate) fn run(generator: &mut Generator, nodes: &mut Nodes, goals: &mut Goals) {
    println!(
        "CPU time of one packet at the node in nanoseconds, above that of a packet that is dropped where it arrives.\n"
    );
    let early = known(generator, nodes, goals);
    new(generator, nodes, goals, early);
    many(generator, nodes, goals);
}

/// The cheapest drop. Takes the minimum for all tables, because it is subtracted from all.
fn dropped(generator: &Generator, nodes: &Nodes) -> f64 {
    let flows = Flows { first: 0, count: FEW };
    let [times] =
        in_turn(ROUNDS, |_| generator.measure_dropped(&nodes.dropping, Side::Local.services(), flows, PACKETS));
    times.min()
}

/// The variants of known connections, in the order of [`known_sites`].
const KNOWN: [&str; 18] = [
    "plain forwarding",
    "plain forwarding, conntrack active",
    "empty programs",
    "nftables, 20 services",
    "nftables, 10,000 services",
    "nodelb, 20 services",
    "nodelb, 50,000 services",
    "nodelb, 20 services, conntrack active",
    "nodelb, packet of no service",
    "nodelb, packet of no service, conntrack active",
    "nodelb, 20 services, XDP",
    "nodelb, packet of no service, XDP",
    "dropped by XDP",
    "nodelb, direct return by the link layer",
    "nodelb, direct return by a tunnel",
    "nodelb, direct return by the link layer, XDP",
    "nodelb, direct return by a tunnel, XDP",
    "empty programs, conntrack active",
];

/// The node of each variant, and whether clients connect to a service there instead of a backend.
fn known_sites(nodes: &Nodes) -> [(&Site, bool); KNOWN.len()] {
    let [direct, tunnel, direct_early, tunnel_early] = nodes.forwarding.each_ref().map(|node| &node.site);
    [
        (&nodes.plain, false),
        (&nodes.tracked, false),
        (&nodes.empty, false),
        (&nodes.rules_few, true),
        (&nodes.rules_many, true),
        (&nodes.few.site, true),
        (&nodes.many.site, true),
        (&nodes.with_conntrack.site, true),
        (&nodes.few.site, false),
        (&nodes.with_conntrack.site, false),
        (&nodes.with_xdp.site, true),
        (&nodes.with_xdp.site, false),
        (&nodes.dropping_early, false),
        (direct, true),
        (tunnel, true),
        (direct_early, true),
        (tunnel_early, true),
        (&nodes.empty_tracked, false),
    ]
}

/// Returns the cost of a packet that is dropped by XDP.
fn known(generator: &mut Generator, nodes: &Nodes, goals: &mut Goals) -> [f64; 2] {
    let flows = Flows { first: 0, count: FEW };
    let sites = known_sites(nodes);
    let times = Side::BOTH.map(|side| {
        in_turn(ROUNDS, |variant| {
            let (site, is_service) = sites[variant];
            let to = if is_service { side.services() } else { side.backends() };
            if std::ptr::eq(site, &raw const nodes.dropping_early) {
                return generator.measure_dropped(site, to, flows, PACKETS);
            }
            if (13..=16).contains(&variant) && side == Side::Remote {
                // Answers do not come back through the node.
                generator.send(site, to, flows, 2 * flows.count);
            } else {
                generator.establish(site, to, flows);
            }
            generator.measure(site, to, flows, PACKETS)
        })
    });
    let forwarded = nodes.forwarding.each_ref().map(Balanced::forwarded);
    assert_eq!(forwarded, [FEW as usize; 4], "connections with direct return");
    let table = Table { times, dropped: dropped(generator, nodes) };
    println!("### Known connections\n\n1,000 connections take turns.\n");
    table.print(KNOWN);
    table.add_to(goals, "Known connection", [0, 5, 3]);
    let (local, remote) = (Side::Local, Side::Remote);
    let to_nftables = |variant: usize| table.ratio(local, variant, 3);
    goals.add_with_floor(("G1", "known connection, local: to nftables", 0.55), to_nftables(5), to_nftables(2));
    goals.add_with_floor(("G1", "the same, conntrack active", 0.80), to_nftables(7), to_nftables(17));
    goals.add("G2", "known connection, remote: to nftables", 0.50, table.ratio(remote, 5, 3));
    let early = table.cost(remote, 12);
    for (variant, what) in [
        (10, "known connection, remote, XDP"),
        (15, "the same, direct return by the link layer, XDP"),
        (16, "the same, direct return by a tunnel, XDP"),
    ] {
        goals.add("G2", &format!("{what}: {ABOVE_EARLY}"), 0.25, table.whole_ratio(variant, 3, early));
    }
    goals.add("G2", "direct return by the link layer, tc: to nftables", 0.60, table.ratio(remote, 13, 3));
    goals.add("G2", "direct return by a tunnel, tc: to nftables", 0.70, table.ratio(remote, 14, 3));
    goals.add("G2", "known connection, remote: to plain forwarding", 1.5, table.ratio(remote, 5, 0));
    for side in Side::BOTH {
        let whole = |times: &Times| [times.min(), times.p25()];
        let of = |variant: usize| whole(&table.times[side as usize][variant]);
        let ratio = [of(8)[0] / of(0)[0], of(8)[1] / of(0)[1]];
        goals.add("G4", &format!("packet of no service, {side:?}: to plain forwarding, whole way"), 1.15, ratio);
    }
    for side in Side::BOTH {
        goals.add("G8", &format!("50,000 services to 20, {side:?}"), 1.10, table.ratio(side, 6, 5));
    }
    for side in Side::BOTH {
        println!("\n{side:?}, nftables, 10,000 services to 20: {:.2} (min).", table.ratio(side, 4, 3)[0]);
    }
    early
}

fn new(generator: &mut Generator, nodes: &Nodes, goals: &mut Goals, early: [f64; 2]) {
    const NAMES: [&str; VARIANTS.len() + 8] = {
        let [a, b, c, d, e, f] = VARIANTS;
        let more = ["nodelb, 20 services, room for handshakes is full", "programs that only store two entries"];
        let early = ["nodelb, 20 services, XDP", "a program that only asks the kernel what it must, XDP"];
        let [.., direct, tunnel, direct_early, tunnel_early, _] = KNOWN;
        [a, b, c, d, e, f, more[0], more[1], direct, tunnel, direct_early, tunnel_early, early[0], early[1]]
    };
    let mut first = 1_000_000;
    let [direct, tunnel, direct_early, tunnel_early] = &nodes.forwarding;
    let balanced = [
        (3, &nodes.few),
        (4, &nodes.many),
        (5, &nodes.with_conntrack),
        (8, direct),
        (9, tunnel),
        (10, direct_early),
        (11, tunnel_early),
        (12, &nodes.with_xdp),
    ];
    let times = Side::BOTH.map(|side| {
        in_turn(ROUNDS, |variant| {
            let is_full = variant == VARIANTS.len();
            let (site, is_service) = match variant {
                7 => (&nodes.storing, false),
                8..=11 => (&nodes.forwarding[variant - 8].site, true),
                12 => (&nodes.with_xdp.site, true),
                13 => (&nodes.beginning_early, false),
                _ => nodes.variants()[if is_full { 3 } else { variant }],
            };
            let to = if is_service { side.services() } else { side.backends() };
            // Each variant begins without connections, except for the last one.
            if [1, 2, 5].contains(&variant) {
                site.flush_conntrack();
            }
            if let Some((_, node)) = balanced.iter().find(|(number, _)| *number == variant) {
                node.end_connections();
            }
            if is_full {
                first += FULL;
                generator.send(site, to, Flows { first, count: u32::MAX - first }, FULL);
            }
            first += 5 * NEW;
            generator.measure(site, to, Flows { first, count: u32::MAX - first }, NEW)
        })
    });
    let table = Table { times, dropped: dropped(generator, nodes) };
    println!(
        "\n### New connections\n\nEvery packet begins a connection. Before each measurement, all connections are deleted, \
         also those of conntrack; if the room for handshakes is full, each new one evicts another one instead.\n"
    );
    table.print(NAMES);
    table.add_to(goals, "New connection", [0, 3, 2]);
    for (side, limit) in [(Side::Local, 0.50), (Side::Remote, 0.65)] {
        let to_nftables = |variant: usize| table.ratio(side, variant, 2);
        let what = format!("new connection, {side:?}: to nftables");
        goals.add_with_floor(("G3", &what, limit), to_nftables(3), to_nftables(7));
    }
    for (variant, what) in [(8, "by the link layer"), (9, "by a tunnel")] {
        let what = format!("new connection, direct return {what}, tc: to nftables");
        goals.add("G3", &what, 0.45, table.ratio(Side::Remote, variant, 2));
    }
    let to_nftables = |variant: usize| table.whole_ratio(variant, 2, early);
    let what = format!("new connection, remote, XDP: {ABOVE_EARLY}");
    goals.add_with_floor(("G3", &what, 0.45), to_nftables(12), to_nftables(13));
    for (variant, what) in
        [(10, "the same, direct return by the link layer, XDP"), (11, "the same, direct return by a tunnel, XDP")]
    {
        goals.add("G3", &format!("{what}: {ABOVE_EARLY}"), 0.45, to_nftables(variant));
    }
}

fn many(generator: &mut Generator, nodes: &Nodes, goals: &mut Goals) {
    const NAMES: [&str; 6] = [
        "plain forwarding, 1,000",
        "plain forwarding, 100,000",
        "nftables, 1,000",
        "nftables, 100,000",
        "nodelb, 1,000",
        "nodelb, 100,000",
    ];
    let sites = [&nodes.plain, &nodes.rules_few, &nodes.few.site];
    let times = Side::BOTH.map(|side| {
        // A node has room for the connections of one side.
        nodes.few.end_connections();
        for site in sites {
            generator.establish(site, side.services_or_backends(site, nodes), Flows { first: 0, count: MANY });
        }
        in_turn(ROUNDS, |variant| {
            let (site, count) = (sites[variant / 2], if variant % 2 == 0 { FEW } else { MANY });
            let (to, flows) = (side.services_or_backends(site, nodes), Flows { first: 0, count });
            generator.send(site, to, flows, 2 * count);
            generator.measure(site, to, flows, PACKETS)
        })
    });
    let table = Table { times, dropped: dropped(generator, nodes) };
    println!(
        "\n### Number of connections\n\nnodelb has room for them: `packets.max-connections = {}`, of which UDP may \
         use half.\n",
        packet_options().max_connections
    );
    table.print(NAMES);
    for side in Side::BOTH {
        goals.add("G8", &format!("100,000 connections to 1,000, {side:?}"), 1.5, table.ratio(side, 5, 4));
        println!("\n{side:?}, nftables: {:.2} (min).", table.ratio(side, 3, 2)[0]);
    }
}

impl Side {
    fn services_or_backends(self, site: &Site, nodes: &Nodes) -> Targets {
        if std::ptr::eq(site, &raw const nodes.plain) { self.backends() } else { self.services() }
    }
}
