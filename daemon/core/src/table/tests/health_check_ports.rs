use std::sync::Arc;

use Family::{Ipv4, Ipv6};

use super::*;
use crate::change::Change;
use crate::config::EngineConfig;
use crate::datapath::{Datapath, Limits};
use crate::engine::Engine;
use crate::memory::MemoryDatapath;
use crate::model::addr::Protocol;
use crate::model::drain::{Drain, Drains};
use crate::model::moment::Moment;
use crate::model::node::{NodeFacts, NodeObject};
use crate::model::service::{
    Backend, BackendState, FrontendSpec, Origin, ServicePort, Slice, SliceName, SlicePort, Source, TrafficPolicy,
};
use crate::snapshot::Snapshot;
use crate::state::entries::Realised;

fn name(text: &str) -> ServiceName {
    text.parse().expect("valid in a test")
}

fn service(full: &str, clusters: &[&str], port: u16, created: u64) -> Service {
    let frontend = |addr: &&str| FrontendSpec {
        addr: addr.parse().expect("valid in a test"),
        port: 80,
        kind: FrontendKind::ClusterIP,
    };
    let port_of = |name: &str| ServicePort {
        name: name.into(),
        protocol: Protocol::Tcp,
        frontends: clusters.iter().map(frontend).collect(),
    };
    Service {
        created: Some(created),
        ports: vec![port_of("http"), port_of("metrics")],
        external_policy: TrafficPolicy::Local,
        health_check_port: Some(port).filter(|port| *port != 0),
        ..Service::new(name(full), Source::Kubernetes)
    }
}

/// A slice with ports of these names. Each backend is `address node state`.
fn slice(full: &str, slice: &str, ports: &[&str], backends: &[(&str, &str, BackendState)]) -> Slice {
    let service = name(full);
    let backend = |(addr, node, state): &(&str, &str, BackendState)| Backend {
        state: *state,
        node: Some(Arc::from(*node)).filter(|node: &Arc<str>| !node.is_empty()),
        ..Backend::new(addr.parse().expect("valid in a test"), 8080)
    };
    let port = |name: &&str| SlicePort {
        name: Arc::from(*name),
        protocol: Protocol::Tcp,
        backends: backends.iter().map(backend).collect(),
    };
    Slice {
        name: SliceName::new(&service.namespace, slice),
        service,
        source: Source::Kubernetes,
        origin: Origin::default(),
        ports: ports.iter().map(port).collect(),
        problem: None,
    }
}

fn snapshot(changes: impl IntoIterator<Item = Change>) -> Snapshot {
    let mut engine = Engine::new(EngineConfig { max_services: 64, ..EngineConfig::default() }, Realised::default());
    engine.change(Change::Node(NodeFacts { name: "n1".into(), ..NodeFacts::default() }));
    changes.into_iter().for_each(|change| engine.change(change));
    engine.snapshot(Moment(0))
}

#[test]
fn ports_come_and_go_with_their_services() {
    let ports = |changes: Vec<Change>| {
        let snapshot = snapshot(changes);
        let ports = snapshot.facts.health_check_ports;
        assert_eq!((ports.len(), ports.is_empty()), (ports.iter().count(), ports.iter().next().is_none()));
        ports.iter().map(|(name, port)| (name.to_string(), port)).collect::<Vec<_>>()
    };
    let upsert = |port| Change::UpsertService(service("shop/web", &["198.51.100.1"], port, 1));
    let other = || Change::UpsertService(service("shop/other", &["198.51.100.2"], 0, 1));
    assert_eq!(ports(vec![upsert(31_000), other()]), [("shop/web".to_owned(), 31_000)]);
    assert_eq!(ports(vec![upsert(31_000), upsert(31_001)]), [("shop/web".to_owned(), 31_001)]);
    assert_eq!(ports(vec![upsert(31_000), upsert(0)]), []);
    assert_eq!(ports(vec![upsert(31_000), Change::RemoveService(name("shop/web"), Source::Kubernetes)]), []);
    let mut of_file = service("shop/web", &["198.51.100.1"], 0, 0);
    (of_file.source, of_file.created) = (Source::Files, None);
    let file = || Change::UpsertService(of_file.clone());
    assert_eq!(ports(vec![upsert(31_000), file()]), [], "the description that counts has none");
    let gone = Change::RemoveService(name("shop/web"), Source::Files);
    assert_eq!(ports(vec![upsert(31_000), file(), gone]), [("shop/web".to_owned(), 31_000)]);
}

#[test]
fn the_index_is_the_same_until_it_changes() {
    let web = service("shop/web", &["198.51.100.1"], 31_000, 1);
    let mut ports = HealthCheckPorts::default();
    ports.note(&web.name, Some(&web));
    let before = ports.clone();
    ports.note(&web.name, Some(&Service { affinity_seconds: Some(1), ..web.clone() }));
    assert!(ports.is_same(&before));
    ports.note(&web.name, Some(&Service { health_check_port: Some(31_001), ..web.clone() }));
    assert!(!ports.is_same(&before));
}

#[test]
fn the_oldest_owns_a_port_in_each_family() {
    let mut ports = HealthCheckPorts::default();
    for service in [
        service("a/young", &["198.51.100.1"], 31_000, 9),
        service("z/old", &["198.51.100.2", "2001:db8:f::2"], 31_000, 1),
        service("a/old", &["2001:db8:f::3"], 31_000, 1),
        service("b/other", &["198.51.100.4"], 31_001, 1),
    ] {
        ports.note(&service.name, Some(&service));
    }
    let line = |port, family| {
        let Claimants { owner, waiting } = ports.by_port().remove(&(port, family)).expect("a claimant");
        [owner].into_iter().chain(waiting).map(|name| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(line(31_000, Ipv4), ["z/old", "a/young"]);
    assert_eq!(line(31_000, Ipv6), ["a/old", "z/old"]);
    assert_eq!(line(31_001, Ipv4), ["b/other"]);
    assert_eq!(ports.by_port().len(), 3);
}

#[test]
fn addresses_that_are_here_and_ready_count_once() {
    use BackendState::{Active, Maintenance, NotReady, Quarantined, Terminating};
    let web = "shop/web";
    let count = |slices: &[Slice]| {
        let described = Change::UpsertService(service(web, &["198.51.100.1", "2001:db8:f::1"], 31_000, 1));
        let slices = slices.iter().cloned().map(Change::UpsertSlice);
        let snapshot = snapshot(std::iter::once(described).chain(slices));
        [Ipv4, Ipv6].map(|family| snapshot.local_ready(&name(web), family))
    };
    let both = ["http", "metrics"];
    assert_eq!(count(&[]), [0, 0]);
    let here = slice(web, "a", &both, &[("192.0.2.1", "n1", Active), ("192.0.2.2", "n2", Active)]);
    assert_eq!(count(std::slice::from_ref(&here)), [1, 0], "one address with two ports");
    let again = slice(web, "b", &["http"], &[("192.0.2.1", "n1", Active), ("192.0.2.3", "n1", Active)]);
    assert_eq!(count(&[here.clone(), again]), [2, 0], "two slices");
    let v6 = slice(web, "c", &["http"], &[("2001:db8:b::1", "n1", Active)]);
    assert_eq!(count(&[here, v6]), [1, 1], "each family for itself");
    let others = [("192.0.2.1", Terminating), ("192.0.2.2", NotReady), ("192.0.2.3", Quarantined)];
    for (addr, state) in others.into_iter().chain([("192.0.2.4", Maintenance)]) {
        assert_eq!(count(&[slice(web, "d", &both, &[(addr, "n1", state)])]), [0, 0], "{state:?}");
    }
    assert_eq!(count(&[slice(web, "e", &["unknown"], &[("192.0.2.1", "n1", Active)])]), [0, 0], "no such port");
    assert_eq!(count(&[slice(web, "f", &both, &[("192.0.2.1", "", Active)])]), [0, 0], "on no node");
    assert_eq!(count(&[slice(web, "g", &both, &[("127.0.0.1", "n1", Active)])]), [0, 0], "refused");
    assert_eq!(count(&[slice("shop/we", "h", &both, &[("192.0.2.1", "n1", Active)])]), [0, 0], "of another service");
}

/// Services may arrive before EndpointSlices, while the maps serve what they have from before.
#[test]
fn backends_that_the_maps_have_kept_count_until_the_source_has_reported_everything() {
    use BackendState::{Active, Terminating};
    let (web, both) = ("shop/web", ["http", "metrics"]);
    let limits = Limits { frontends: 64, services: 64, slots: 512, affinity: 8, outside: 0, source_ranges: 0 };
    let mut maps = MemoryDatapath::new(limits);
    let config = || EngineConfig {
        sources: BTreeSet::from([Source::Kubernetes]),
        max_services: limits.services,
        ..EngineConfig::default()
    };
    let described = || Change::UpsertService(service(web, &["198.51.100.1"], 31_000, 1));
    let whole = slice(web, "a", &both, &[("192.0.2.1", "n1", Active), ("192.0.2.2", "n2", Active)]);
    let synced = || Change::Synced { source: Source::Kubernetes, incomplete: None };
    let count = |maps: &mut MemoryDatapath, changes: Vec<Change>| {
        let mut engine = Engine::new(config(), maps.dump().expect("memory can be read"));
        engine.change(Change::Node(NodeFacts { name: "n1".into(), ..NodeFacts::default() }));
        changes.into_iter().for_each(|change| engine.change(change));
        engine.reconcile(maps, Moment(1));
        [Ipv4, Ipv6].map(|family| engine.snapshot(Moment(1)).local_ready(&name(web), family))
    };
    assert_eq!(count(&mut maps, vec![described()]), [0, 0], "the maps have nothing after a reboot");
    assert_eq!(count(&mut maps, vec![described(), Change::UpsertSlice(whole), synced()]), [1, 0]);
    assert_eq!(count(&mut maps, vec![described()]), [1, 0], "after a restart");
    let part = |addr, node, state| Change::UpsertSlice(slice(web, "b", &both, &[(addr, node, state)]));
    assert_eq!(count(&mut maps, vec![described(), part("192.0.2.3", "n2", Active)]), [1, 0], "another slice");
    assert_eq!(count(&mut maps, vec![described(), part("192.0.2.1", "n1", Terminating)]), [0, 0], "it terminates");
    let drain = Drain { by: "root".into(), since: 0, until: None };
    let drains = Drains::from([("192.0.2.1".parse().expect("valid in a test"), drain)]);
    let drains = Change::Drains(name(web), drains, None);
    assert_eq!(count(&mut maps, vec![described(), drains]), [0, 0], "it is drained");
    let denied = Change::Synced { source: Source::Kubernetes, incomplete: Some("they may not be read".into()) };
    assert_eq!(count(&mut maps, vec![described(), denied]), [1, 0], "the maps keep it");
    assert_eq!(count(&mut maps, vec![described(), synced()]), [0, 0], "there is no slice");
}

#[test]
fn a_node_is_leaving_when_kubernetes_says_so() {
    let reported = |leaving: Option<&str>| {
        let zone = Arc::from("z1");
        Change::NodeObject(Some(NodeObject { zone, leaving: leaving.map(Arc::from), ..NodeObject::default() }))
    };
    let gone = || Change::NodeObject(None);
    let seen = |changes: Vec<Change>| {
        let snapshot = snapshot(changes);
        let facts = &snapshot.facts;
        (facts.leaving().map(str::to_owned), facts.node().zone.to_string(), facts.is_node_missing)
    };
    let (missing, zone) = (Some("Kubernetes has no such Node".to_owned()), "z1".to_owned());
    assert_eq!(seen(vec![]), (None, String::new(), false), "no report, no result");
    assert_eq!(seen(vec![reported(None)]), (None, zone.clone(), false));
    assert_eq!(seen(vec![reported(Some("taint"))]), (Some("taint".into()), zone.clone(), false));
    assert_eq!(seen(vec![gone()]), (missing.clone(), String::new(), true));
    assert_eq!(seen(vec![reported(None), gone()]), (missing, zone.clone(), true), "the machine has not moved");
    assert_eq!(seen(vec![reported(Some("taint")), gone(), reported(None)]), (None, zone, false));
}

#[test]
fn what_is_not_answered_is_known_with_its_service() {
    let web = service("shop/web", &["198.51.100.1"], 31_000, 1);
    let error =
        |of: Option<&str>, error: Option<&str>| Change::HealthCheckPortError(of.map(name), error.map(Arc::from));
    let upsert = Change::UpsertService(web);
    let snapshot_of = |changes: Vec<Change>| snapshot(std::iter::once(upsert.clone()).chain(changes));
    let shown = |changes: Vec<Change>| {
        snapshot_of(changes).facts.health_check_port_error(Some(&name("shop/web"))).map(ToString::to_string)
    };
    assert_eq!(shown(vec![error(Some("shop/web"), Some("in use"))]).as_deref(), Some("in use"));
    assert_eq!(shown(vec![error(Some("shop/web"), Some("in use")), error(Some("shop/web"), None)]), None);
    assert_eq!(shown(vec![error(None, Some("in use"))]), None);
    let snapshot = snapshot_of(vec![error(None, Some("in use")), error(Some("shop/web"), Some("too"))]);
    let facts = &snapshot.facts;
    assert_eq!(
        (
            facts.health_check_port_error(None).map(|error| &**error),
            facts.health_check_port_errors.keys().flatten().count()
        ),
        (Some("in use"), 1)
    );
}
