//! The nodes that are compared.

use std::fs;
use std::ops::ControlFlow;

use nodelb_core::change::Change;
use nodelb_core::datapath::Limits;
use nodelb_core::model::addr::{Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::uplink::{Uplink, UplinkEntry};
use nodelb_core::packets::sweep::{Interval, SweepTimeouts};
use nodelb_datapath::OpenedPackets;
use nodelb_datapath::XdpState;
use nodelb_datapath::packets::{Connection, ConnectionState, PacketOptions, PacketSettings, XdpMode};
use nodelb_datapath::{Attach, DeviceSide, HookedDevice, Options, XdpFit};

use crate::generator::Generator;
use crate::sandbox::Sandbox;
use crate::site::{
    ADDRESSES, BACKEND_PORT, MACHINE, PLUGIN, POD, Site, TO_MACHINE, Translation, UPLINK, early, filter, index,
    kube_proxy, nth,
};
use crate::world::services::{frontend, service, slice, synced};
use crate::world::{self, World};

/// Numbers of services: of which ten with local and ten with remote backends are used.
const FEW: u32 = 20;
const MANY: u32 = 50_000;
/// nftables takes minutes to load more.
const MANY_RULES: u32 = 10_000;
/// The numbers of the TCP services with local and remote backends.
pub(crate) const TCP: [u32; 2] = [60_000, 60_001];

/// The timeouts by which the sweep deletes every connection.
const NOW: SweepTimeouts =
    SweepTimeouts { handshake: 0, closed: 0, reset: 0, tcp_idle: 0, udp_idle: 0, forwarded_idle: 0 };

/// The sizes of the maps.
const LIMITS: Limits = Limits { outside: 65_536, source_ranges: 16, ..world::LIMITS };

/// The options of the packet path: the daemon's defaults, but with room for [`crate::udp::MANY`] connections: those of
/// UDP may have half of it.
pub(crate) fn packet_options() -> PacketOptions {
    PacketOptions {
        nodeport_range: 30_000..=32_767,
        source_ports: 10_000..=29_999,
        limits: LIMITS,
        max_connections: 262_144,
        max_handshakes: 32_768,
        max_fragments: 8_192,
        count_connections: true,
        has_pods: true,
        direct_return: true,
        tunnel_sources: Vec::new(),
        foreign_connections: None,
        xdp: None,
        settings: PacketSettings { answers: true, ..PacketSettings::default() },
        policies: None,
    }
}

/// Creates empty maps with those of the packet path under a pin directory and a cgroup of this name.
pub(crate) fn with_packets(sandbox: &Sandbox, name: &str, xdp: Option<XdpMode>) -> (World, OpenedPackets) {
    let cgroup = sandbox.cgroup.join(name);
    fs::create_dir(&cgroup).unwrap();
    let mut world = World::open(Options {
        pin_directory: sandbox.bpffs.join(name),
        cgroup: Some(cgroup),
        limits: LIMITS,
        nodeport_range: 30_000..=32_767,
        protect_nodeports: true,
        count_connections: true,
        packets: Some(PacketOptions { xdp, ..packet_options() }),
        hook_method: None,
        layout: nodelb_datapath::LAYOUT,
        crash_after: None,
    });
    let packets = world.datapath.take_packets().unwrap();
    (world, packets)
}

/// A node with nodelb's programs at its uplinks.
pub(crate) struct Balanced {
    pub(crate) site: Site,
    pub(crate) world: World,
    pub(crate) packets: std::cell::RefCell<OpenedPackets>,
}

/// All nodes.
pub(crate) struct Nodes {
    /// Drops packets where they arrive.
    pub(crate) dropping: Site,
    /// Drops packets before it makes a buffer for them.
    pub(crate) dropping_early: Site,
    pub(crate) plain: Site,
    /// Plain forwarding with conntrack.
    pub(crate) tracked: Site,
    /// Programs that do nothing at both uplinks.
    pub(crate) empty: Site,
    /// The same with conntrack.
    pub(crate) empty_tracked: Site,
    /// A program that only stores entries for packets of clients; those at the other hooks do nothing.
    pub(crate) storing: Site,
    /// An XDP program that asks the kernel for what a new connection needs, and sends the packets on.
    pub(crate) beginning_early: Site,
    /// kube-proxy's rules for few and for many services.
    pub(crate) rules_few: Site,
    pub(crate) rules_many: Site,
    /// nodelb with few and with many services.
    pub(crate) few: Balanced,
    pub(crate) many: Balanced,
    /// nodelb with few services, with conntrack.
    pub(crate) with_conntrack: Balanced,
    /// nodelb with few services and XDP.
    pub(crate) with_xdp: Balanced,
    /// nodelb with few services and direct return, in the order of [`FORWARDED`].
    pub(crate) forwarding: [Balanced; FORWARDED.len()],
}

/// Every packet is translated, by the programs at tc.
const TRANSLATED: (Forward, Option<XdpMode>) = (Forward::Translate, None);

/// The ways of direct return.
const FORWARDED: [(Forward, Option<XdpMode>); 4] = [
    (Forward::Direct, None),
    (Forward::Tunnel, None),
    (Forward::Direct, Some(XdpMode::Auto)),
    (Forward::Tunnel, Some(XdpMode::Auto)),
];

/// The variants that most tables compare, in the order of [`Nodes::variants`].
pub(crate) const VARIANTS: [&str; 6] = [
    "plain forwarding",
    "plain forwarding, conntrack active",
    "nftables, 20 services",
    "nodelb, 20 services",
    "nodelb, 50,000 services",
    "nodelb, 20 services, conntrack active",
];

impl Nodes {
    /// The node of each variant, and whether clients connect to a service there instead of a backend.
    pub(crate) fn variants(&self) -> [(&Site, bool); VARIANTS.len()] {
        [
            (&self.plain, false),
            (&self.tracked, false),
            (&self.rules_few, true),
            (&self.few.site, true),
            (&self.many.site, true),
            (&self.with_conntrack.site, true),
        ]
    }

    pub(crate) fn new(sandbox: &Sandbox, generator: &Generator) -> Self {
        let site = || Site::new(&generator.pins);
        let with_rules = |rules: &str| {
            let site = site();
            site.nft(rules);
            site
        };
        let early_site = || {
            let site = site();
            // The driver of a pair of devices sends only to a device with a program.
            early(&site.client, "eth0", &generator.pins.discard_early);
            early(&site.machine, "eth0", &generator.pins.receive_early);
            site
        };
        let nodes = Self {
            dropping: site(),
            dropping_early: site(),
            plain: site(),
            tracked: with_rules(PLUGIN),
            empty: site(),
            empty_tracked: with_rules(PLUGIN),
            storing: site(),
            beginning_early: early_site(),
            rules_few: with_rules(&kube_proxy(&translations(FEW))),
            rules_many: with_rules(&kube_proxy(&translations(MANY_RULES))),
            few: Balanced::new(sandbox, "few", site(), FEW, TRANSLATED),
            many: Balanced::new(sandbox, "many", site(), MANY, TRANSLATED),
            with_conntrack: Balanced::new(sandbox, "conntrack", with_rules(PLUGIN), FEW, TRANSLATED),
            with_xdp: Balanced::new(sandbox, "xdp", early_site(), FEW, (Forward::Translate, Some(XdpMode::Auto))),
            forwarding: FORWARDED.map(|(forward, xdp)| {
                let site = if xdp.is_some() { early_site() } else { site() };
                Balanced::new(sandbox, &format!("{forward}-{}", xdp.is_some()), site, FEW, (forward, xdp))
            }),
        };
        filter(&nodes.dropping.node, UPLINK.0, "ingress", &generator.pins.discard);
        early(&nodes.dropping_early.node, UPLINK.0, &generator.pins.discard_early);
        early(&nodes.beginning_early.node, UPLINK.0, &generator.pins.begin_early);
        for (site, at_uplink) in [
            (&nodes.empty, &generator.pins.empty),
            (&nodes.empty_tracked, &generator.pins.empty),
            (&nodes.storing, &generator.pins.store),
        ] {
            filter(&site.node, UPLINK.0, "ingress", at_uplink);
            for (device, direction) in [(UPLINK.0, "egress"), (TO_MACHINE.0, "ingress"), (TO_MACHINE.0, "egress")] {
                filter(&site.node, device, direction, &generator.pins.empty);
            }
        }
        nodes
    }
}

impl Balanced {
    /// Creates the maps, attaches the programs to the uplinks, and adds the services.
    fn new(
        sandbox: &Sandbox,
        name: &str,
        site: Site,
        services: u32,
        (forward, xdp): (Forward, Option<XdpMode>),
    ) -> Self {
        let (mut world, mut packets) = with_packets(sandbox, name, xdp);
        let mut uplinks = Vec::new();
        for (device, address) in [UPLINK, TO_MACHINE] {
            let ifindex = site.node.within(|| index(device));
            let v4 = Some(Addr::from(std::net::IpAddr::from(address)));
            uplinks.push(Uplink {
                ifindex,
                name: device.into(),
                entry: UplinkEntry {
                    v4,
                    v6: None,
                    mtu: 1_500,
                    l2_length: 14,
                    is_v4_source: false,
                    is_v6_source: false,
                    is_strict: false,
                },
            });
            let device = HookedDevice { ifindex, side: DeviceSide::Uplink, l2_length: 14, xdp: XdpFit::Fits };
            site.node.within(|| packets.hooks.attach(device)).unwrap();
        }
        let early = site.node.within(|| packets.hooks.keep_xdp());
        assert!(early.len() == xdp.map_or(0, |_| 2) && early.values().all(|it| *it == XdpState::Native), "{early:?}");
        let addresses = uplinks.iter().filter_map(|uplink: &Uplink| uplink.entry.v4).collect();
        let facts = NodeFacts { addresses, ..NodeFacts::default() };
        world.apply([Change::Node(facts), Change::Uplinks(uplinks)].into_iter().chain(changes(services, forward)));
        Self { site, world, packets: packets.into() }
    }

    /// The number of connections with direct return.
    pub(crate) fn forwarded(&self) -> usize {
        let mut count = 0;
        let see = &mut |connection: Connection| {
            count += usize::from(connection.state == ConnectionState::Forwarded);
            ControlFlow::Continue(())
        };
        self.packets.borrow().connections.read(see).unwrap();
        count
    }

    /// Deletes all connections; returns how many.
    pub(crate) fn end_connections(&self) -> usize {
        self.sweep(&NOW)
    }

    /// Deletes the connections that are due; returns how many.
    pub(crate) fn sweep(&self, timeouts: &SweepTimeouts) -> usize {
        let mut count = 0;
        let mut packets = self.packets.borrow_mut();
        let sweep = packets.sweep.as_mut().unwrap_or_else(|error| panic!("{error}"));
        sweep.run(timeouts, Interval::default(), &mut |_| count += 1).unwrap();
        count
    }
}

/// The services: those with even numbers have a local backend, the others a remote one. The first
/// ten of each kind have the ten addresses of the pod or of the machine.
fn backend(number: u32) -> (std::net::Ipv4Addr, u16) {
    let first = if number.is_multiple_of(2) { POD } else { MACHINE };
    (nth(first, number / 2 % ADDRESSES), BACKEND_PORT)
}

/// The numbers of all services, with their protocols.
fn numbers(count: u32) -> impl Iterator<Item = (u32, Protocol)> {
    (0..count).map(|number| (number, Protocol::Udp)).chain(TCP.map(|number| (number, Protocol::Tcp)))
}

fn changes(count: u32, forward: Forward) -> impl Iterator<Item = Change> {
    let both = move |(number, protocol)| {
        let mut service = service(number, protocol);
        if let Change::UpsertService(service) = &mut service {
            service.forward = forward;
        }
        let (addr, port) = backend(number);
        // Packets that stay as they are have the service's port.
        let port = if forward == Forward::Direct { frontend(number, protocol).port } else { port };
        [service, slice(number, protocol, [(addr, port)].into_iter())]
    };
    numbers(count).flat_map(both).chain([synced()])
}

fn translations(count: u32) -> Vec<Translation> {
    let translation = |(number, protocol)| {
        let service = frontend(number, protocol);
        let std::net::IpAddr::V4(addr) = service.addr.ip() else { unreachable!("services have IPv4 addresses") };
        let protocol = if protocol == Protocol::Tcp { "tcp" } else { "udp" };
        Translation { service: (addr, service.port), protocol, backend: backend(number) }
    };
    numbers(count).map(translation).collect()
}
