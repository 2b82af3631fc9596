//! Random worlds with few names and few addresses, so that conflicts are frequent, and mostly
//! ordinary values, so that most services have backends. Names are prefixes of each other, slice
//! names repeat in different namespaces, and many services share each backend address.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::compile::guard::Guard;
use nodelb_core::config::PacketsConfig;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::drain::{Drain, DrainCause, Drained, Drains};
use nodelb_core::model::health_check::{HealthCheck, Quarantine};
use nodelb_core::model::named::Question;
use nodelb_core::model::node::{NodeFacts, NodeObject};
use nodelb_core::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Hints, Origin, Service, ServiceName, ServicePort, Slice,
    SliceName, SlicePort, Source, TrafficPolicy,
};
use nodelb_core::model::uplink::{Uplink, UplinkEntry};
use proptest::prelude::*;
use proptest::sample::select;

use crate::memory_maps;
use crate::model::{Host, ROOMY};

pub(crate) const SOURCES: [Source; 2] = [Source::Files, Source::Kubernetes];

const NAMES: [&str; 6] = ["default/tes", "default/test", "default/test-extended", "default-test/x", "a/b-c", "a-b/c"];
const FILES: [&str; 3] = ["a.toml", "shop.toml", "zz.yaml"];
const SLICES: [&str; 3] = ["test", "test-1", "x"];
const NODES: [&str; 2] = ["n1", "n2"];
const ZONES: [&str; 2] = ["z1", "z2"];

const SERVED: usize = 7;
/// Those after the first `SERVED` are refused, each for a different reason; NodePorts are accepted
/// on [`NODE_ADDRS`].
const FRONTENDS: [(&str, FrontendKind); 13] = [
    ("198.51.100.1:80", FrontendKind::ClusterIP),
    ("198.51.100.1:80", FrontendKind::Static),
    ("198.51.100.2:80", FrontendKind::LoadBalancer),
    ("198.51.100.3:80", FrontendKind::ExternalIP),
    ("[2001:db8::1]:80", FrontendKind::ClusterIP),
    ("0.0.0.0:30080", FrontendKind::NodePort),
    ("[::]:30080", FrontendKind::NodePort),
    ("127.0.0.1:80", FrontendKind::Static),
    ("0.0.0.0:80", FrontendKind::Static),
    ("0.0.0.0:8080", FrontendKind::NodePort),
    ("203.0.113.5:80", FrontendKind::ExternalIP),
    ("192.0.0.8:80", FrontendKind::LoadBalancer),
    ("0.0.0.0:30990", FrontendKind::NodePort),
];

/// Two are in the network namespace of a node with this address and have the number of a NodePort.
/// The last two are refused: nodelb's own address, and the unspecified address.
const BACKENDS: [&str; 10] = [
    "192.0.2.1:8080",
    "192.0.2.2:8080",
    "192.0.2.3:8080",
    "192.0.2.3:8081",
    "[2001:db8:1::1]:8080",
    "[2001:db8:1::2]:8080",
    "203.0.113.1:30080",
    "[2001:db8:2::1]:30080",
    "192.0.2.9:9890",
    "0.0.0.0:8080",
];

/// The last two are also frontends, as long as the node does not have them.
const NODE_ADDRS: [&str; 5] = ["203.0.113.1", "203.0.113.2", "2001:db8:2::1", "198.51.100.2", "2001:db8::1"];
const NODEPORT_ADDRESSES: [&str; 4] = ["primary", "203.0.113.2", "0.0.0.0/0", "::/0"];

pub(crate) fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

pub(crate) fn guard() -> Guard {
    let bypass = vec!["203.0.113.4/30".parse().expect("a network")];
    let external_ips = vec!["198.51.100.0/29".parse().expect("a network")];
    let (admin, own_ports) = (vec![(l4(BACKENDS[8]).addr, 9890)], vec![(30_990, "admin.listen")]);
    Guard { admin, own_ports, bypass, external_ips, ..Guard::default() }
}

/// Clients outside the node are served.
pub(crate) const PACKETS: PacketsConfig =
    PacketsConfig { is_on: true, cluster_ips: false, is_consistent: true, direct_return: true };

/// A host that waits for both sources, knows the refused addresses and serves clients outside.
pub(crate) fn host() -> Host {
    host_with(memory_maps::create(ROOMY, None))
}

/// A host with these maps.
pub(crate) fn host_with(maps: MemoryDatapath) -> Host {
    let mut host = Host::new(maps, SOURCES, guard());
    host.packets = PACKETS;
    host.restart();
    host
}

/// Addresses of clients outside, inside and outside of the [`SOURCE_RANGES`].
pub(crate) const CLIENTS: [&str; 4] = ["192.0.2.130", "192.0.2.200", "2001:db8:c::1", "2001:db8:d::1"];

const SOURCE_RANGES: [&str; 6] =
    ["192.0.2.128/26", "192.0.2.128/25", "192.0.2.200/32", "0.0.0.0/0", "2001:db8:c::/48", "::/0"];

/// A host after these changes, with every source synced and no retries left.
pub(crate) fn settled(changes: &[Change]) -> Host {
    let mut host = host();
    host.send(changes.iter().cloned());
    host.send_synced();
    host.settle();
    host
}

/// Every address that a client might connect to in such a world.
pub(crate) fn destinations() -> Vec<L4Addr> {
    let frontends = FRONTENDS.iter().map(|(text, _)| l4(text));
    let nodeports = NODE_ADDRS.iter().map(|text| L4Addr::new(text.parse().expect("valid"), 30_080, Protocol::Tcp));
    let tcp: Vec<L4Addr> = frontends.chain(nodeports).collect();
    let udp = tcp.iter().map(|address| L4Addr { protocol: Protocol::Udp, ..*address });
    tcp.iter().copied().chain(udp).collect()
}

/// The object of a change: changes of one object keep their order, others may be reordered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    Service(ServiceName, Source),
    Slice(SliceName, Source),
    Answer(Question),
    Node,
    Kubernetes,
    HealthCheckPortError(Option<ServiceName>),
    Quarantine(ServiceName),
    Passed(ServiceName),
    Drains(ServiceName),
    DrainsUnread,
    Bound,
    Uplinks,
    Apiservers,
    Remember,
    Recalled(Source),
    Unread,
    Translation,
    Happened,
    Synced(Source),
}

pub(crate) fn object(change: &Change) -> Object {
    match change {
        Change::UpsertService(service) => Object::Service(service.name.clone(), service.source),
        Change::RemoveService(name, source) | Change::Unselect(name, source, _) => {
            Object::Service(name.clone(), *source)
        }
        Change::UpsertSlice(slice) => Object::Slice(slice.name.clone(), slice.source),
        Change::UpsertNamed(named) => Object::Slice(named.slice.clone(), Source::Files),
        Change::Answer(question, _) => Object::Answer(question.clone()),
        Change::RemoveSlice(name, source) => Object::Slice(name.clone(), *source),
        Change::Node(_) => Object::Node,
        Change::NodeObject(_) | Change::NodeObjectUnknown => Object::Kubernetes,
        Change::HealthCheckPortError(of, _) => Object::HealthCheckPortError(of.clone()),
        Change::Quarantine(name, _) => Object::Quarantine(name.clone()),
        Change::Passed(name, _) => Object::Passed(name.clone()),
        Change::Drains(name, ..) => Object::Drains(name.clone()),
        Change::DrainsUnread(_) => Object::DrainsUnread,
        Change::Bound(_) => Object::Bound,
        Change::Uplinks(_) => Object::Uplinks,
        Change::Apiservers(_) => Object::Apiservers,
        Change::Remember(_) => Object::Remember,
        Change::Recalled(source) => Object::Recalled(*source),
        Change::Unread(_) => Object::Unread,
        Change::Translation(_) => Object::Translation,
        Change::Happened(_) => Object::Happened,
        Change::Synced { source, .. } => Object::Synced(*source),
    }
}

/// The facts after these changes, those of the node first, as a daemon sends them at its start.
pub(crate) fn facts(changes: &[Change]) -> Vec<Change> {
    let mut last: BTreeMap<Object, &Change> = BTreeMap::new();
    for change in changes {
        last.insert(object(change), change);
    }
    let is_removal =
        |change: &Change| matches!(change, Change::RemoveService(..) | Change::Unselect(..) | Change::RemoveSlice(..));
    let is_fact = |change: &&Change| !is_removal(change);
    let mut facts: Vec<Change> = last.into_values().filter(is_fact).cloned().collect();
    facts.sort_by_key(|change| !matches!(change, Change::Node(_)));
    facts
}

/// The services in these facts, each with the description that takes effect.
pub(crate) fn described(facts: &[Change]) -> BTreeMap<ServiceName, &Service> {
    let mut services: BTreeMap<ServiceName, &Service> = BTreeMap::new();
    for change in facts {
        let Change::UpsertService(service) = change else { continue };
        let known = services.entry(service.name.clone()).or_insert(service);
        if (rank(service), service.source) < (rank(known), known.source) {
            *known = service;
        }
    }
    services
}

/// The priority of a claim to an address, before current ownership is considered.
pub(crate) fn rank(service: &Service) -> u64 {
    service.created.unwrap_or(0)
}

/// Every address that the service claims.
pub(crate) fn claims_of(service: &Service) -> BTreeSet<L4Addr> {
    let ports = service.ports.iter();
    ports.flat_map(|port| port.frontends.iter().map(|frontend| frontend.l4(port.protocol))).collect()
}

/// The addresses that services of equal rank claim: their owner depends on history.
pub(crate) fn disputed(facts: &[Change]) -> BTreeSet<L4Addr> {
    let mut seen: BTreeSet<(L4Addr, u64)> = BTreeSet::new();
    let mut disputed = BTreeSet::new();
    for service in described(facts).values() {
        disputed.extend(claims_of(service).into_iter().filter(|address| !seen.insert((*address, rank(service)))));
    }
    disputed
}

/// The addresses that more than one service claims.
pub(crate) fn contested(facts: &[Change]) -> BTreeSet<L4Addr> {
    let (mut seen, mut contested) = (BTreeSet::new(), BTreeSet::new());
    for service in described(facts).values() {
        contested.extend(claims_of(service).into_iter().filter(|address| !seen.insert(*address)));
    }
    contested
}

/// A dump without the frontends at these addresses.
pub(crate) fn without(text: &str, addresses: &BTreeSet<L4Addr>) -> String {
    let is_other = |line: &&str| {
        let mut words = line.split_whitespace();
        !matches!(words.next(), Some("frontend" | "outside"))
            || words.next().is_none_or(|address| !addresses.contains(&l4(address)))
    };
    text.lines().filter(is_other).flat_map(|line| [line, "\n"]).collect()
}

/// The change that removes the fact.
pub(crate) fn removal(change: &Change) -> Option<Change> {
    match change {
        Change::UpsertService(service) => Some(Change::RemoveService(service.name.clone(), service.source)),
        Change::UpsertSlice(slice) => Some(Change::RemoveSlice(slice.name.clone(), slice.source)),
        Change::Node(_) => Some(Change::Node(NodeFacts::default())),
        Change::Quarantine(name, _) => Some(Change::Quarantine(name.clone(), Quarantine::new())),
        Change::Passed(name, _) => Some(Change::Passed(name.clone(), BTreeSet::new())),
        Change::Drains(name, ..) => Some(Change::Drains(name.clone(), Drains::new(), None)),
        Change::NodeObject(_) => Some(Change::NodeObject(None)),
        Change::Uplinks(_) => Some(Change::Uplinks(Vec::new())),
        _ => None,
    }
}

/// The changes in another order; those of one object keep theirs. `order` selects the next object.
pub(crate) fn reordered(changes: &[Change], order: &[usize]) -> Vec<Change> {
    let mut queues: BTreeMap<Object, std::collections::VecDeque<&Change>> = BTreeMap::new();
    for change in changes {
        queues.entry(object(change)).or_default().push_back(change);
    }
    let turn = |index: &usize| queues.get_mut(&object(&changes[*index]))?.pop_front().cloned();
    order.iter().filter_map(turn).collect()
}

/// A sequence of changes and another order for it.
pub(crate) fn changes_and_order(len: usize) -> impl Strategy<Value = (Vec<Change>, Vec<usize>)> {
    changes(len).prop_flat_map(|changes| {
        let order: Vec<usize> = (0..changes.len()).collect();
        (Just(changes), Just(order).prop_shuffle())
    })
}

pub(crate) fn changes(len: usize) -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(change(), 1..len)
}

pub(crate) fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        5 => service().prop_map(Change::UpsertService),
        1 => (name(), source(), any::<bool>()).prop_map(|(name, source, is_selected)| match is_selected {
            true => Change::RemoveService(name, source),
            false => Change::Unselect(name, source, "not selected".into()),
        }),
        6 => slice().prop_map(Change::UpsertSlice),
        1 => (slice_name(), source()).prop_map(|(name, source)| Change::RemoveSlice(name, source)),
        1 => node().prop_map(Change::Node),
        1 => uplinks().prop_map(Change::Uplinks),
        2 => (name(), quarantine()).prop_map(|(name, backends)| Change::Quarantine(name, backends)),
        2 => (name(), quarantine()).prop_map(|(name, backends)| Change::Passed(name, backends.into_keys().collect())),
        2 => (name(), drains(), any::<bool>()).prop_map(|(name, drains, is_news)| {
            Change::Drains(name, drains, is_news.then(|| DrainCause::Begun("drain by root".into())))
        }),
        2 => prop_oneof![
            3 => node_object().prop_map(|object| Change::NodeObject(Some(object))),
            1 => Just(Change::NodeObjectUnknown),
        ],
    ]
}

fn uplinks() -> impl Strategy<Value = Vec<Uplink>> {
    let uplink = |ifindex| {
        (prop::option::of(select(&NODE_ADDRS[..2])), 1_280..1_501_u32).prop_map(move |(v4, mtu)| Uplink {
            ifindex,
            name: format!("eth{ifindex}").into(),
            entry: UplinkEntry {
                v4: v4.map(|text| text.parse().expect("valid")),
                v6: None,
                mtu,
                l2_length: 14,
                is_v4_source: mtu % 2 == 0,
                is_v6_source: mtu % 3 == 0,
                is_strict: mtu % 5 == 0,
            },
        })
    };
    (prop::option::of(uplink(2)), prop::option::of(uplink(3))).prop_map(|(a, b)| a.into_iter().chain(b).collect())
}

/// Includes backends that the service does not have, and services that have no checks or do not
/// exist.
fn quarantine() -> impl Strategy<Value = Quarantine> {
    let backend = select(&BACKENDS[..8]).prop_map(|text| (l4(text).addr, l4(text).port));
    let error = prop_oneof![Just("connection refused".into()), Just("no answer within 2 s".into())];
    prop::collection::btree_map(backend, error, 0..6)
}

/// Every backend of every service has passed its check, unless it has failed.
pub(crate) fn all_passed() -> Vec<Change> {
    let backends: BTreeSet<_> = BACKENDS.iter().map(|text| (l4(text).addr, l4(text).port)).collect();
    let passed = |name: &str| Change::Passed(name.parse().expect("valid"), backends.clone());
    NAMES.iter().map(|name| passed(name)).collect()
}

/// Like [`quarantine`], with some drains of all ports of an address.
fn drains() -> impl Strategy<Value = Drains> {
    let backend = (select(&BACKENDS[..8]), prop::bool::weighted(0.8)).prop_map(|(text, has_port)| {
        let L4Addr { addr, port, .. } = l4(text);
        Drained { addr, port: has_port.then_some(port) }
    });
    let drain = prop::option::of(1..9_u64).prop_map(|until| Drain { by: "root".into(), since: 0, until });
    prop::collection::btree_map(backend, drain, 0..4)
}

/// With a last resort, the maps do not tell which backends were healthy before a restart, so there all start healthy.
fn health_check() -> impl Strategy<Value = Arc<HealthCheck>> {
    any::<(bool, bool)>().prop_map(|(last_resort, starts_healthy)| {
        let starts_healthy = starts_healthy || last_resort;
        Arc::new(HealthCheck { last_resort, starts_healthy, ..HealthCheck::default() })
    })
}

pub(crate) fn name() -> impl Strategy<Value = ServiceName> {
    select(&NAMES).prop_map(|text| text.parse().expect("valid"))
}

fn slice_name() -> impl Strategy<Value = SliceName> {
    (name(), select(&SLICES)).prop_map(|(service, name)| SliceName::new(&service.namespace, name))
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![3 => Just(TrafficPolicy::Cluster), 1 => Just(TrafficPolicy::Local)]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![16 => Just(Protocol::Tcp), 2 => Just(Protocol::Udp), 1 => Just(Protocol::Sctp)]
}

fn source() -> impl Strategy<Value = Source> {
    prop_oneof![3 => Just(Source::Files), 1 => Just(Source::Kubernetes)]
}

fn port_name() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![4 => Just("http".into()), 1 => Just("".into())]
}

fn text(words: &'static [&'static str]) -> impl Strategy<Value = Arc<str>> {
    select(words).prop_map(Arc::from)
}

pub(crate) fn service() -> impl Strategy<Value = Service> {
    let policies = (policy(), policy(), prop::option::weighted(0.2, Just(10_800)));
    let created = prop::option::weighted(0.3, select(&[100_u64, 200]));
    let origin = (source(), created, prop::option::of(health_check()), select(&FILES));
    let ranges = select(&SOURCE_RANGES).prop_map(|text| text.parse().expect("valid"));
    let outside = (prop::option::weighted(0.4, prop::collection::vec(ranges, 0..3)), any::<bool>());
    (name(), origin, prop::collection::vec(service_port(), 0..4), policies, outside).prop_map(
        |(name, (source, created, health_check, file), ports, policies, (source_ranges, is_outside))| {
            let (internal_policy, external_policy, affinity_seconds) = policies;
            let object = if source == Source::Files { file.into() } else { format!("Service {name}").into() };
            Service {
                origin: Origin { object, ..Origin::default() },
                created,
                ports,
                internal_policy,
                external_policy,
                affinity_seconds,
                health_check,
                source_ranges,
                is_outside: is_outside && source == Source::Files,
                ..Service::new(name, source)
            }
        },
    )
}

fn service_port() -> impl Strategy<Value = ServicePort> {
    let frontend = prop_oneof![6 => select(&FRONTENDS[..SERVED]), 1 => select(&FRONTENDS[SERVED..])];
    let frontend = frontend.prop_map(|(text, kind)| {
        let L4Addr { addr, port, .. } = l4(text);
        FrontendSpec { addr, port, kind }
    });
    (port_name(), protocol(), prop::collection::vec(frontend, 0..4))
        .prop_map(|(name, protocol, frontends)| ServicePort { name, protocol, frontends })
}

pub(crate) fn slice() -> impl Strategy<Value = Slice> {
    (name(), select(&SLICES), source(), prop::collection::vec(slice_port(), 0..4)).prop_map(
        |(service, name, source, ports)| Slice {
            name: SliceName::new(&service.namespace, name),
            service,
            source,
            origin: Origin::default(),
            ports,
            problem: None,
        },
    )
}

fn slice_port() -> impl Strategy<Value = SlicePort> {
    (port_name(), protocol(), prop::collection::vec(backend(), 0..5)).prop_map(|(name, protocol, backends)| SlicePort {
        name,
        protocol,
        backends,
    })
}

fn backend() -> impl Strategy<Value = Backend> {
    let state = prop_oneof![
        8 => Just(BackendState::Active),
        2 => Just(BackendState::Terminating),
        1 => Just(BackendState::Maintenance),
        1 => Just(BackendState::NotReady),
    ];
    let weight = prop_oneof![12 => Just(1_u16), 1 => Just(0), 1 => Just(3), 1 => Just(65_535)];
    let hints = (prop::collection::vec(text(&ZONES), 0..2), prop::collection::vec(text(&NODES), 0..2))
        .prop_map(|(zones, nodes)| Arc::new(Hints { zones, nodes }));
    let place = (prop::option::of(text(&NODES)), prop::option::of(text(&ZONES)), prop::option::weighted(0.3, hints));
    (prop_oneof![6 => select(&BACKENDS[..8]), 1 => select(&BACKENDS[8..])], state, weight, place).prop_map(
        |(address, state, weight, (node, zone, hints))| {
            let L4Addr { addr, port, .. } = l4(address);
            Backend { addr, port, state, weight, node, zone, hints }
        },
    )
}

fn node() -> impl Strategy<Value = NodeFacts> {
    let policy = select(&NODEPORT_ADDRESSES).prop_map(|text| text.parse().expect("valid"));
    let policy = prop::collection::vec(policy, 0..3);
    (text(&NODES), text(&ZONES), node_addresses(), node_addresses(), policy).prop_map(
        |(name, zone, addresses, primary, nodeport_addresses)| NodeFacts {
            name,
            zone,
            addresses,
            primary,
            nodeport_addresses,
        },
    )
}

fn node_addresses() -> impl Strategy<Value = BTreeSet<Addr>> {
    prop::collection::btree_set(select(&NODE_ADDRS).prop_map(|text| text.parse().expect("valid")), 0..3)
}

/// Never `None`: in that case the previous Node object, which is not part of the facts, stays in
/// effect.
fn node_object() -> impl Strategy<Value = NodeObject> {
    (text(&ZONES), node_addresses()).prop_map(|(zone, addresses)| NodeObject { zone, addresses, leaving: None })
}
