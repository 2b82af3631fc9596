use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Answered, Stale};
use crate::change::Change;
use crate::compile::guard::Guard;
use crate::config::EngineConfig;
use crate::datapath::{Datapath, Limits};
use crate::engine::Engine;
use crate::memory::MemoryDatapath;
use crate::model::addr::{L4Addr, Protocol};
use crate::model::drain::{Drain, Drained, Drains};
use crate::model::moment::Moment;
use crate::model::node::NodeFacts;
use crate::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName,
    SlicePort, Source,
};
use crate::snapshot::Snapshot;
use crate::stale;

const LIMITS: Limits = Limits { frontends: 64, services: 32, slots: 128, affinity: 16, outside: 0, source_ranges: 0 };

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

fn name(text: &str) -> ServiceName {
    text.parse().expect("valid in a test")
}

/// A service with these addresses. An unspecified one is a NodePort.
fn service(full: &str, frontends: &[&str]) -> Change {
    let addresses: Vec<L4Addr> = frontends.iter().map(|text| l4(text)).collect();
    let kind = |address: &L4Addr| match address.addr.is_unspecified() {
        true => FrontendKind::NodePort,
        false => FrontendKind::ClusterIP,
    };
    let spec = |address: &L4Addr| FrontendSpec { addr: address.addr, port: address.port, kind: kind(address) };
    Change::UpsertService(Service {
        ports: vec![ServicePort {
            name: "".into(),
            protocol: addresses[0].protocol,
            frontends: addresses.iter().map(spec).collect(),
        }],
        ..Service::new(name(full), Source::Files)
    })
}

fn slice(full: &str, backends: &[(&str, BackendState)]) -> Change {
    let service = name(full);
    let port = |protocol| SlicePort {
        name: "".into(),
        protocol,
        backends: backends
            .iter()
            .map(|(text, state)| Backend { state: *state, ..Backend::new(l4(text).addr, l4(text).port) })
            .collect(),
    };
    Change::UpsertSlice(Slice {
        name: SliceName::new(&service.namespace, &service.name),
        service,
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![port(Protocol::Tcp), port(Protocol::Udp)],
        problem: None,
    })
}

fn synced() -> Change {
    Change::Synced { source: Source::Files, incomplete: None }
}

/// A node with one address and its maps in memory.
struct Node {
    engine: Engine,
    maps: MemoryDatapath,
}

impl Node {
    fn new() -> Self {
        let maps = MemoryDatapath::new(LIMITS);
        let guard = Guard { nodeport_range: 30_000..=32_767, ..Guard::default() };
        let config = EngineConfig {
            guard,
            sources: BTreeSet::from([Source::Files]),
            max_services: maps.limits().services,
            ..EngineConfig::default()
        };
        let mut engine = Engine::new(config, maps.dump().expect("memory can be read"));
        engine.change(Change::Node(node(&["203.0.113.1:1"])));
        Self { engine, maps }
    }

    fn send(&mut self, changes: impl IntoIterator<Item = Change>) -> Snapshot {
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.engine.reconcile(&mut self.maps, Moment(1));
        self.engine.snapshot(Moment(1))
    }
}

fn node(addresses: &[&str]) -> NodeFacts {
    NodeFacts {
        name: "n".into(),
        addresses: addresses.iter().map(|text| l4(text).addr).collect(),
        nodeport_addresses: vec!["203.0.113.0/24".parse().expect("valid in a test")],
        ..NodeFacts::default()
    }
}

/// The verdict in a word or two.
fn verdict(snapshot: &Snapshot, frontend: &str, backend_of: &str) -> String {
    match stale::stale(snapshot, l4(frontend), l4(backend_of)) {
        None => "right".into(),
        Some(Stale::Backend(key)) => format!("gone from {}", key.service),
        Some(Stale::Frontend(address)) => format!("no service has {address}"),
        Some(Stale::Unready(key, backend)) => {
            assert_eq!(backend, l4(backend_of));
            format!("not ready in {}", key.service)
        }
    }
}

const DNS: &str = "198.51.100.1:53/UDP";
const ONE: &str = "192.0.2.1:53/UDP";
const TWO: &str = "192.0.2.2:53/UDP";

#[test]
fn a_backend_keeps_its_sockets_while_its_state_lets_it() {
    for (state, expected) in [
        (BackendState::Active, "right"),
        (BackendState::Terminating, "right"),
        (BackendState::Maintenance, "right"),
        (BackendState::NotReady, "not ready in shop/dns"),
    ] {
        for protocol in ["UDP", "TCP"] {
            let [frontend, one, two] = [DNS, ONE, TWO].map(|text| text.replace("UDP", protocol));
            let mut node = Node::new();
            let backends = [(one.as_str(), state), (two.as_str(), BackendState::Active)];
            let snapshot = node.send([service("shop/dns", &[&frontend]), slice("shop/dns", &backends), synced()]);
            assert_eq!(verdict(&snapshot, &frontend, &one), expected, "{state} over {protocol}");
            assert_eq!(verdict(&snapshot, &frontend, &two), "right");
            let snapshot = node.send([slice("shop/dns", &backends[1..])]);
            assert_eq!(verdict(&snapshot, &frontend, &one), "gone from shop/dns", "{protocol}");
        }
    }
}

#[test]
fn weight_0_is_drained_and_a_failing_backend_is_left() {
    let mut node = Node::new();
    let both = [(ONE, BackendState::Active), (TWO, BackendState::Active)];
    let mut drained = slice("shop/dns", &both);
    if let Change::UpsertSlice(slice) = &mut drained {
        slice.ports.iter_mut().for_each(|port| port.backends[0].weight = 0);
    }
    let snapshot = node.send([service("shop/dns", &[DNS]), drained, synced()]);
    assert_eq!(verdict(&snapshot, DNS, ONE), "right", "drained");
    let failing = BTreeMap::from([((l4(ONE).addr, 53), Arc::from("no answer"))]);
    let mut checked = service("shop/dns", &[DNS]);
    if let Change::UpsertService(service) = &mut checked {
        service.health_check = Some(Arc::default());
    }
    let snapshot = node.send([checked, slice("shop/dns", &both), Change::Quarantine(name("shop/dns"), failing)]);
    assert_eq!(verdict(&snapshot, DNS, ONE), "not ready in shop/dns");
    assert_eq!(verdict(&snapshot, DNS, TWO), "right");
}

#[test]
fn a_backend_that_the_operator_drains_keeps_its_sockets() {
    for protocol in ["UDP", "TCP"] {
        let [frontend, one, two] = [DNS, ONE, TWO].map(|text| text.replace("UDP", protocol));
        let mut node = Node::new();
        let both = [(one.as_str(), BackendState::Active), (two.as_str(), BackendState::Active)];
        node.send([service("shop/dns", &[&frontend]), slice("shop/dns", &both), synced()]);
        let drain = Drain { by: "root".into(), since: 0, until: None };
        let drains = Drains::from([(Drained { addr: l4(&one).addr, port: None }, drain)]);
        let snapshot = node.send([Change::Drains(name("shop/dns"), drains, None)]);
        assert!(
            snapshot.realised.services.iter().all(|(_, entry)| entry.cluster.iter().all(|slot| slot.addr != l4(&one)))
        );
        assert_eq!(verdict(&snapshot, &frontend, &one), "right", "{protocol}");
        let snapshot = node.send([slice("shop/dns", &both[1..])]);
        assert_eq!(verdict(&snapshot, &frontend, &one), "gone from shop/dns", "{protocol}");
    }
}

/// After an outage of the control plane, every endpoint of the cluster is not ready for some seconds.
#[test]
fn a_backend_that_is_not_ready_keeps_its_sockets_while_there_is_nothing_better() {
    use BackendState::{Active, NotReady};
    let mut node = Node::new();
    node.send([service("shop/dns", &[DNS]), slice("shop/dns", &[(ONE, Active), (TWO, Active)]), synced()]);
    let snapshot = node.send([slice("shop/dns", &[(ONE, NotReady), (TWO, NotReady)])]);
    assert_eq!([ONE, TWO].map(|backend| verdict(&snapshot, DNS, backend)), ["right", "right"], "all are not ready");
    let before = snapshot.stale_generation;
    let snapshot = node.send([slice("shop/dns", &[(ONE, NotReady), (TWO, Active)])]);
    assert_eq!([ONE, TWO].map(|backend| verdict(&snapshot, DNS, backend)), ["not ready in shop/dns", "right"]);
    assert_ne!(snapshot.stale_generation, before, "sockets are looked at when something better appears");
    let snapshot = node.send([slice("shop/dns", &[(ONE, Active), (TWO, Active)])]);
    assert_eq!([ONE, TWO].map(|backend| verdict(&snapshot, DNS, backend)), ["right", "right"]);
    let snapshot = node.send([slice("shop/dns", &[(TWO, NotReady)])]);
    assert_eq!(verdict(&snapshot, DNS, ONE), "gone from shop/dns", "a removed backend does not wait");
    assert_eq!(verdict(&snapshot, DNS, TWO), "right");
}

#[test]
fn no_socket_is_stale_before_every_source_is_synced() {
    let mut node = Node::new();
    let serve = [service("shop/dns", &[DNS]), slice("shop/dns", &[(TWO, BackendState::Active)])];
    let snapshot = node.send(serve);
    assert_eq!(verdict(&snapshot, DNS, ONE), "right", "not synced");
    assert_eq!(verdict(&snapshot, "198.51.100.9:53/UDP", ONE), "right", "not synced");
    let incomplete = Change::Synced { source: Source::Files, incomplete: Some("a.toml".into()) };
    let snapshot = node.send([incomplete]);
    assert_eq!(verdict(&snapshot, DNS, ONE), "gone from shop/dns", "whatever another file says");
    assert_eq!(verdict(&snapshot, "198.51.100.9:53/UDP", ONE), "right", "incomplete");
    let snapshot = node.send([synced()]);
    assert_eq!(verdict(&snapshot, DNS, ONE), "gone from shop/dns");
    assert_eq!(verdict(&snapshot, "198.51.100.9:53/UDP", ONE), "no service has 198.51.100.9:53/UDP");
}

/// Sockets of a removed service stayed for as long as any file was broken.
#[test]
fn a_file_that_breaks_later_keeps_no_socket_of_a_removed_service() {
    let mut node = Node::new();
    node.send([service("shop/dns", &[DNS]), slice("shop/dns", &[(TWO, BackendState::Active)]), synced()]);
    let broken = Change::Synced { source: Source::Files, incomplete: Some("z.toml".into()) };
    let slice_name = SliceName::new("shop", "dns");
    let snapshot = node.send([
        broken,
        Change::RemoveService(name("shop/dns"), Source::Files),
        Change::RemoveSlice(slice_name, Source::Files),
    ]);
    assert_eq!(verdict(&snapshot, DNS, TWO), format!("no service has {DNS}"));
}

#[test]
fn a_backend_that_one_service_loses_may_remain_one_of_another() {
    let mut node = Node::new();
    let other = "198.51.100.2:53/UDP";
    let both = [(ONE, BackendState::Active), (TWO, BackendState::Active)];
    node.send([
        service("shop/dns", &[DNS]),
        service("shop/dns-two", &[other]),
        slice("shop/dns", &both),
        slice("shop/dns-two", &both),
        synced(),
    ]);
    let snapshot = node.send([slice("shop/dns", &both[1..])]);
    assert_eq!(verdict(&snapshot, DNS, ONE), "gone from shop/dns");
    assert_eq!(verdict(&snapshot, other, ONE), "right");
    let snapshot = node.send([Change::RemoveService(name("shop/dns"), Source::Files)]);
    assert_eq!(verdict(&snapshot, DNS, TWO), format!("no service has {DNS}"));
    assert_eq!(verdict(&snapshot, other, TWO), "right");
}

#[test]
fn the_last_backend_leaves_a_service_that_refuses() {
    let mut node = Node::new();
    node.send([service("shop/dns", &[DNS]), slice("shop/dns", &[(ONE, BackendState::Active)]), synced()]);
    let snapshot = node.send([slice("shop/dns", &[])]);
    assert_eq!(verdict(&snapshot, DNS, ONE), "gone from shop/dns");
}

#[test]
fn held_backends_keep_their_sockets() {
    let mut node = Node::new();
    let kubernetes = |backends: &[(&str, BackendState)]| slice("default/kubernetes", backends);
    node.send([service("default/kubernetes", &[DNS]), kubernetes(&[(ONE, BackendState::Active)]), synced()]);
    let snapshot = node.send([kubernetes(&[])]);
    assert_eq!(snapshot.held().count(), 1);
    assert_eq!(verdict(&snapshot, DNS, ONE), "right");
    assert_eq!(verdict(&snapshot, DNS, TWO), "gone from default/kubernetes");
}

#[test]
fn a_nodeport_is_known_by_every_address_of_the_node() {
    let mut node = Node::new();
    let (nodeport, to) = ("0.0.0.0:30053/UDP", "203.0.113.1:30053/UDP");
    node.send([service("shop/dns", &[nodeport]), slice("shop/dns", &[(ONE, BackendState::Active)]), synced()]);
    let snapshot = node.send([slice("shop/dns", &[(TWO, BackendState::Active)])]);
    assert_eq!(verdict(&snapshot, to, ONE), "gone from shop/dns");
    assert_eq!(verdict(&snapshot, to, TWO), "right");
    let snapshot = node.send([Change::Node(self::node(&["203.0.113.9:1"]))]);
    assert_eq!(verdict(&snapshot, to, TWO), "right", "the backend is as good as before");
    let snapshot = node.send([Change::RemoveService(name("shop/dns"), Source::Files)]);
    assert_eq!(verdict(&snapshot, to, TWO), format!("no service has {to}"));
}

#[test]
fn what_the_kernel_would_choose_again_is_no_reason_to_move() {
    let mut node = Node::new();
    node.send([service("shop/dns", &[DNS]), slice("shop/dns", &[(ONE, BackendState::Active)]), synced()]);
    node.maps = MemoryDatapath::new(LIMITS).with_fault(Box::new(|_| true));
    let snapshot = node.send([slice("shop/dns", &[(TWO, BackendState::Active)])]);
    assert_eq!(verdict(&snapshot, DNS, ONE), "right", "the kernel did not take the new list");
}

#[test]
fn each_change_that_matters_counts() {
    let mut node = Node::new();
    let mut last = node.send([synced()]).stale_generation;
    let mut counts = |node: &mut Node, change: Change| {
        let now = node.send([change]).stale_generation;
        let moved = (now.udp != last.udp, now.tcp != last.tcp);
        last = now;
        moved
    };
    let both = [(ONE, BackendState::Active), (TWO, BackendState::Terminating)];
    assert_eq!(counts(&mut node, service("shop/dns", &[DNS])), (true, false));
    assert_eq!(counts(&mut node, slice("shop/dns", &both)), (true, false));
    assert_eq!(counts(&mut node, slice("shop/dns", &both)), (false, false), "nothing new");
    assert_eq!(counts(&mut node, slice("shop/dns", &both[..1])), (true, false), "in no list of the kernel's");
    assert_eq!(counts(&mut node, service("shop/web", &["198.51.100.2:80/TCP"])), (false, true));
    assert_eq!(counts(&mut node, Change::RemoveService(name("shop/dns"), Source::Files)), (true, false));
}

fn answered_since(before: &Answered, now: &Snapshot) -> Vec<String> {
    stale::answered(now).since(before).iter().map(ToString::to_string).collect()
}

#[test]
fn cluster_ips_are_answered_from_the_first_backend_on() {
    let mut node = Node::new();
    let empty = stale::answered(&node.send([service("shop/dns", &[DNS, "0.0.0.0:30053/UDP"]), synced()]));
    assert!(empty.is_empty(), "refused is not answered");
    let snapshot = node.send([slice("shop/dns", &[(ONE, BackendState::Active)])]);
    assert_eq!(answered_since(&empty, &snapshot), [DNS], "at a NodePort a process of the node may have answered");
    assert_eq!(answered_since(&stale::answered(&snapshot), &snapshot), Vec::<String>::new());
    let mut claimed = service("shop/other", &["192.0.2.50:53/UDP"]);
    if let Change::UpsertService(service) = &mut claimed {
        service.ports[0].frontends[0].kind = FrontendKind::Static;
    }
    let before = stale::answered(&snapshot);
    let snapshot = node.send([claimed, slice("shop/other", &[(ONE, BackendState::Active)])]);
    assert_eq!(answered_since(&before, &snapshot), Vec::<String>::new(), "another host may have answered there before");
    let snapshot =
        node.send([service("shop/web", &["198.51.100.2:80/TCP"]), slice("shop/web", &[(ONE, BackendState::Active)])]);
    assert_eq!(answered_since(&before, &snapshot), Vec::<String>::new(), "TCP is no concern");
}
