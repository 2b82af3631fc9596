//! The node of a case: devices, services, routes and settings, as lines of text.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use nodelb_core::model::addr::{Addr, Family, L4Addr, parse_net};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::service::Source;
use nodelb_core::model::source_range::SourceRange;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::state::entries::{BackendId, FrontendEntry, MapState, OutsideEntry, ServiceEntry, ServiceId, Slot};
use nodelb_core::state::owner::OwnerTag;
use nodelb_programs::connections::TableLimits;
use nodelb_programs::key::{Hook, Side};
use nodelb_programs::node::{Draining, Node, Route, RouteQuery, Routes, Settings, Unknown};

/// The Ethernet address of whatever sends packets to the node.
pub(crate) const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xaa];

/// A device of the node.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) ifindex: u32,
    pub(crate) is_pod: bool,
    pub(crate) is_uplink: bool,
    /// Whether its address is preferred to that of a route.
    pub(crate) is_own_first: bool,
    pub(crate) l2_length: usize,
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    pub(crate) addrs: Vec<Addr>,
    pub(crate) forwards: bool,
}

impl Device {
    pub(crate) fn hook(&self, side: Side) -> Hook {
        match (self.is_pod, side) {
            (false, Side::Leaving) => Hook::Out,
            (true, Side::Leaving) => Hook::PodOut,
            (false, _) => Hook::In,
            (true, _) => Hook::PodIn,
        }
    }

    fn addr(&self, family: Family) -> Option<Addr> {
        self.addrs.iter().copied().find(|addr| addr.family() == family)
    }
}

/// A route to a network: by a device, or to the node itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteLine {
    pub(crate) net: IpNet,
    pub(crate) device: Option<String>,
    pub(crate) is_unreachable: bool,
    pub(crate) preferred: Option<Addr>,
    /// The router that the route leads through.
    pub(crate) neighbor: Option<[u8; 6]>,
    /// The destination of a route to one address, which is itself the next hop.
    pub(crate) host: Option<[u8; 6]>,
    pub(crate) mtu: Option<u32>,
}

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) state: MapState,
    pub(crate) settings: Settings,
    pub(crate) devices: BTreeMap<String, Device>,
    pub(crate) routes: Vec<RouteLine>,
    pub(crate) limits: TableLimits,
    pub(crate) now_ns: u64,
    /// Whether the loopback device forwards IPv6, which has the setting of the node.
    pub(crate) forwards_v6: bool,
}

/// The words of a line.
pub(crate) type Words<'a> = std::vec::IntoIter<&'a str>;

pub(crate) fn words(line: &str) -> Words<'_> {
    line.split_whitespace().collect::<Vec<_>>().into_iter()
}

fn parsed<T: std::str::FromStr>(words: &mut Words<'_>) -> T {
    let word = words.next().expect("a word is missing");
    word.parse().unwrap_or_else(|_| panic!("`{word}` cannot be read"))
}

pub(crate) fn mac(text: &str) -> [u8; 6] {
    let bytes: Vec<u8> = text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    bytes.try_into().expect("six bytes")
}

fn range(text: &str) -> std::ops::RangeInclusive<u16> {
    let (first, last) = text.split_once('-').expect("FIRST-LAST");
    first.parse().unwrap()..=last.parse().unwrap()
}

impl World {
    pub(crate) fn new() -> Self {
        let settings = Settings {
            nodeport_range: 30_000..=32_767,
            source_ports: 10_000..=29_999,
            draining: Draining::None,
            unknown: Unknown::Auto,
            answers: true,
            always_masquerades: false,
            tunnel_source: None,
        };
        let limits = TableLimits { connections: 4_096, half_open: 4_096, fragments: 1_024 };
        let (state, devices, routes) = (MapState::default(), BTreeMap::new(), Vec::new());
        Self { state, settings, devices, routes, limits, now_ns: 1_000_000_000_000, forwards_v6: true }
    }

    pub(crate) fn node(&self) -> Node<'_> {
        Node { state: &self.state, settings: &self.settings, routes: self, now_ns: self.now_ns }
    }

    pub(crate) fn name_of(&self, ifindex: u32) -> &str {
        self.devices.iter().find(|(_, device)| device.ifindex == ifindex).map_or("?", |(name, _)| name)
    }

    /// Adds or changes what the line describes.
    pub(crate) fn apply(&mut self, line: &str) {
        let mut words = words(line);
        let subject = words.next().unwrap_or_else(|| panic!("empty line"));
        match subject {
            "device" => self.device(words),
            "no-forwarding" => match words.next().unwrap() {
                "lo" => self.forwards_v6 = false,
                name => self.devices.get_mut(name).unwrap().forwards = false,
            },
            "strict" => self.strict(words.next().unwrap()),
            "node" => self.state.node_addrs.extend(words.map(|addr| addr.parse::<Addr>().unwrap())),
            "nodeports" => self.settings.nodeport_range = range(words.next().unwrap()),
            "source-ports" => self.settings.source_ports = range(words.next().unwrap()),
            "tunnels-from" => {
                let net = parse_net(words.next().unwrap()).unwrap();
                self.settings.tunnel_source = Some(SourceRange::from(net));
            }
            "service" => self.service(words),
            "backend" => self.backend(words),
            "outside" => self.frontend(words, true),
            "frontend" => self.frontend(words, false),
            "range" => {
                let (id, net) = (ServiceId(parsed(&mut words)), parse_net(words.next().unwrap()).unwrap());
                self.state.source_ranges.insert((id, SourceRange::from(net)));
            }
            "route" => self.route_line(words),
            "limit" => self.limit(words),
            "set" => self.set(words.next().unwrap(), true),
            "unset" => self.set(words.next().unwrap(), false),
            "remove" => self.remove(words),
            _ => panic!("unknown line of a world: {line}"),
        }
    }

    fn device(&mut self, mut words: Words<'_>) {
        let (ifindex, name): (u32, String) = (parsed(&mut words), parsed(&mut words));
        let own = [2, 0, 0, 0, 1, u8::try_from(ifindex).unwrap()];
        let mut device = Device {
            ifindex,
            is_pod: false,
            is_uplink: false,
            is_own_first: false,
            l2_length: 14,
            mac: own,
            mtu: 1_500,
            addrs: Vec::new(),
            forwards: true,
        };
        while let Some(word) = words.next() {
            match word {
                "uplink" => device.is_uplink = true,
                "pod" => device.is_pod = true,
                "own-first" => device.is_own_first = true,
                "plain" => {}
                "l3" => device.l2_length = 0,
                "mtu" => device.mtu = parsed(&mut words),
                addr => device.addrs.push(addr.parse().unwrap()),
            }
        }
        if device.is_uplink {
            let (v4, v6) = (device.addr(Family::Ipv4), device.addr(Family::Ipv6));
            let l2_length = u8::try_from(device.l2_length).unwrap();
            let (is_v4_source, is_v6_source) = (device.is_own_first, device.is_own_first);
            let mtu = device.mtu;
            let entry = UplinkEntry { v4, v6, mtu, l2_length, is_v4_source, is_v6_source, is_strict: false };
            self.state.uplinks.insert(ifindex, entry);
        }
        self.devices.insert(name, device);
    }

    /// The device accepts IPv4 packets only from sources that it leads to.
    fn strict(&mut self, name: &str) {
        self.state.uplinks.get_mut(&self.devices[name].ifindex).expect("an uplink").is_strict = true;
    }

    fn service(&mut self, mut words: Words<'_>) {
        let id = ServiceId(parsed(&mut words));
        let mut entry = ServiceEntry::default();
        while let Some(word) = words.next() {
            match word {
                "affinity" => entry.affinity_seconds = parsed(&mut words),
                "rings" => entry.has_rings = true,
                "no-rings" => entry.has_rings = false,
                "direct" => (entry.forward, entry.has_rings) = (Forward::Direct, true),
                "tunnel" => (entry.forward, entry.has_rings) = (Forward::Tunnel, true),
                "translate" => entry.forward = Forward::Translate,
                "has-backends" => entry.has_backends = true,
                "of-file" => entry.tag = Some(OwnerTag { source: Source::Files, service: 0, port: 0 }),
                _ => panic!("unknown property of a service: {word}"),
            }
        }
        self.state.services.insert(id, Arc::new(entry));
    }

    fn backend(&mut self, mut words: Words<'_>) {
        let (id, addr, service) = (BackendId(parsed(&mut words)), parsed::<L4Addr>(&mut words), parsed(&mut words));
        let (mut is_local, mut weight) = (false, 1_usize);
        while let Some(word) = words.next() {
            match word {
                "local" => is_local = true,
                "weight" => weight = parsed(&mut words),
                _ => panic!("unknown property of a backend: {word}"),
            }
        }
        let add = |view: &Arc<[Slot]>| -> Arc<[Slot]> {
            let mut view = view.to_vec();
            view.extend(std::iter::repeat_n(Slot { backend: id, addr }, weight));
            view.sort_by_key(|slot| slot.addr);
            view.into()
        };
        let entry = Arc::make_mut(self.state.services.get_mut(&ServiceId(service)).expect("the service comes first"));
        entry.has_backends = true;
        entry.cluster = add(&entry.cluster);
        if is_local {
            entry.local = add(&entry.local);
        }
    }

    fn frontend(&mut self, mut words: Words<'_>, is_outside: bool) {
        // 0.0.0.0 and :: are NodePorts.
        let (addr, service) = (parsed::<L4Addr>(&mut words), ServiceId(parsed(&mut words)));
        let flags: Vec<&str> = words.collect();
        let (local, has_ranges) = (flags.contains(&"local"), flags.contains(&"ranges"));
        if is_outside {
            self.state.outside.insert(addr, OutsideEntry { service, local, has_ranges });
        } else {
            let entry = FrontendEntry { service, inside_local: local, outside_local: false };
            self.state.frontends.insert(addr, entry);
        }
    }

    fn route_line(&mut self, mut words: Words<'_>) {
        let net = parse_net(words.next().unwrap()).unwrap();
        let mut route = RouteLine {
            net,
            device: None,
            is_unreachable: false,
            preferred: None,
            neighbor: None,
            host: None,
            mtu: None,
        };
        while let Some(word) = words.next() {
            match word {
                "here" => {}
                "unreachable" => route.is_unreachable = true,
                "dev" => route.device = Some(parsed(&mut words)),
                "src" => route.preferred = Some(parsed(&mut words)),
                "neighbor" => route.neighbor = Some(mac(words.next().unwrap())),
                "host" => route.host = Some(mac(words.next().unwrap())),
                "mtu" => route.mtu = Some(parsed(&mut words)),
                _ => panic!("unknown property of a route: {word}"),
            }
        }
        self.routes.retain(|other| other.net != net || other.device != route.device);
        self.routes.push(route);
    }

    fn limit(&mut self, mut words: Words<'_>) {
        let (table, size) = (words.next().unwrap(), parsed(&mut words));
        match table {
            "connections" => self.limits.connections = size,
            "half-open" => self.limits.half_open = size,
            "fragments" => self.limits.fragments = size,
            _ => panic!("unknown table: {table}"),
        }
    }

    fn set(&mut self, name: &str, is_set: bool) {
        let settings = &mut self.settings;
        match name {
            "draining" => settings.draining = if is_set { Draining::All } else { Draining::None },
            "draining-kubernetes" => settings.draining = if is_set { Draining::Kubernetes } else { Draining::None },
            "resets-unknown" => settings.unknown = if is_set { Unknown::Reset } else { Unknown::Auto },
            "passes-unknown" => settings.unknown = if is_set { Unknown::Pass } else { Unknown::Auto },
            "other-proxy" => settings.unknown = if is_set { Unknown::AutoWithProxy } else { Unknown::Auto },
            "answers" => settings.answers = is_set,
            "always-masquerades" => settings.always_masquerades = is_set,
            _ => panic!("unknown setting: {name}"),
        }
    }

    fn remove(&mut self, mut words: Words<'_>) {
        match words.next().unwrap() {
            "backend" => {
                let (id, service) = (BackendId(parsed(&mut words)), ServiceId(parsed(&mut words)));
                let entry = Arc::make_mut(self.state.services.get_mut(&service).unwrap());
                let without = |view: &Arc<[Slot]>| view.iter().filter(|slot| slot.backend != id).copied().collect();
                (entry.cluster, entry.local) = (without(&entry.cluster), without(&entry.local));
                entry.has_backends = !entry.cluster.is_empty();
            }
            "outside" => drop(self.state.outside.remove(&parsed::<L4Addr>(&mut words))),
            "node" => drop(self.state.node_addrs.remove(&parsed::<Addr>(&mut words))),
            "range" => {
                let (id, net) = (ServiceId(parsed(&mut words)), parse_net(words.next().unwrap()).unwrap());
                self.state.source_ranges.remove(&(id, SourceRange::from(net)));
            }
            "route" => {
                let net = parse_net(words.next().unwrap()).unwrap();
                self.routes.retain(|route| route.net != net);
            }
            other => panic!("cannot remove {other}"),
        }
    }
}

/// The index of the loopback device.
const LOOPBACK: u32 = 1;

impl Routes for World {
    fn route(&self, query: &RouteQuery) -> Route {
        let is_forwarding = match query.ifindex {
            LOOPBACK => self.forwards_v6 && query.target.family() == Family::Ipv6,
            ifindex => self.devices.values().any(|device| device.ifindex == ifindex && device.forwards),
        };
        if !is_forwarding {
            return Route::NoForwarding;
        }
        // The kernel's table of its own addresses is searched first.
        if self.state.node_addrs.contains(&query.target) || query.target.is_loopback() {
            return Route::NotForwarded;
        }
        let fits = |route: &&RouteLine| route.net.contains(&query.target.ip());
        // Of several routes to a network, the first one counts.
        let Some(route) = self.routes.iter().rev().filter(fits).max_by_key(|route| route.net.prefix_len()) else {
            return Route::NotForwarded;
        };
        if route.is_unreachable {
            return Route::Unreachable;
        }
        let Some(name) = &route.device else { return Route::NotForwarded };
        let device = &self.devices[name];
        let preferred = route.preferred.or_else(|| device.addr(query.target.family()));
        let (mtu, is_neighbor) = (route.mtu.unwrap_or(device.mtu), route.neighbor.is_none());
        let macs = route.neighbor.or(route.host).map(|mac| (mac, device.mac));
        Route::Device { ifindex: device.ifindex, mtu, preferred, is_neighbor, macs }
    }
}
