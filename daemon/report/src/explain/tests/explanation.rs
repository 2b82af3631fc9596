use crate::explain::explanation::{self, Client, ConnectResult, Explanation, NearMatch, ViewKind, ViewReason};
use crate::explain::reports::{self, frontends};
use crate::explain::rows::OutsideAccess;
use crate::filter::Filter;
use crate::rows::described;
use nodelb_core::change::Change;
use nodelb_core::compile::select::Choice;
use nodelb_core::config::{EngineConfig, PacketsConfig};
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::{NodeFacts, NodePortAddress};
use nodelb_core::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName,
    SlicePort, Source, TrafficPolicy,
};
use nodelb_core::model::uplink::Translation;
use nodelb_core::packets::admission::Refusal;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::MapState;
use nodelb_core::state::status::Status;

const LIMITS: Limits = Limits { frontends: 100, services: 100, slots: 100, affinity: 4, outside: 0, source_ranges: 0 };

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

/// A node `here` that answers NodePorts at 192.0.2.1.
fn node() -> Change {
    Change::Node(NodeFacts {
        name: "here".into(),
        addresses: [l4("192.0.2.1:1").addr, l4("192.0.2.9:1").addr, l4("127.0.0.1:1").addr].into(),
        primary: [l4("192.0.2.1:1").addr].into(),
        nodeport_addresses: vec![NodePortAddress::Primary],
        ..NodeFacts::default()
    })
}

fn service(name: &str, frontends: &[(&str, FrontendKind)]) -> Service {
    let spec =
        |(text, kind): &(&str, FrontendKind)| FrontendSpec { addr: l4(text).addr, port: l4(text).port, kind: *kind };
    let port =
        ServicePort { name: "http".into(), protocol: Protocol::Tcp, frontends: frontends.iter().map(spec).collect() };
    Service { ports: vec![port], ..Service::new(name.parse().unwrap(), Source::Files) }
}

fn slice(name: &str, backends: Vec<Backend>) -> Change {
    let service: ServiceName = name.parse().unwrap();
    Change::UpsertSlice(Slice {
        name: SliceName::new(&service.namespace, &service.name),
        service,
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    })
}

fn backend(text: &str, node: &str) -> Backend {
    Backend { node: Some(node.into()), ..Backend::new(l4(text).addr, l4(text).port) }
}

fn snapshot_of(changes: impl IntoIterator<Item = Change>) -> Snapshot {
    let packets = PacketsConfig { direct_return: true, ..PacketsConfig::default() };
    let config =
        EngineConfig { sources: [Source::Files].into(), max_services: 100, packets, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    changes.into_iter().chain([node()]).for_each(|change| engine.change(change));
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    engine.reconcile(&mut MemoryDatapath::new(LIMITS), Moment(0));
    engine.snapshot(Moment(0))
}

/// A ClusterIP and a NodePort, with backends on this node and elsewhere and one that is not ready.
fn shop(policy: TrafficPolicy) -> Snapshot {
    let frontends = [("10.96.7.7:80", FrontendKind::ClusterIP), ("0.0.0.0:30080", FrontendKind::NodePort)];
    let web = Service { internal_policy: policy, ..service("shop/web", &frontends) };
    let unready = Backend { state: BackendState::NotReady, ..backend("10.1.0.3:8080", "here") };
    let backends = vec![backend("10.1.0.1:8080", "here"), backend("10.1.0.2:8080", "there"), unready];
    snapshot_of([Change::UpsertService(web), slice("shop/web", backends)])
}

fn explanation(snapshot: &Snapshot, to: &str, from: Client) -> Explanation {
    explanation::explain(snapshot, l4(to), from)
}

#[test]
fn a_cluster_ip_leads_to_every_selected_backend() {
    let explained = explanation(&shop(TrafficPolicy::Cluster), "10.96.7.7:80", Client::Pod);
    let found = explained.found.clone().unwrap();
    assert_eq!((found.at, found.view), (l4("10.96.7.7:80"), ViewKind::Cluster));
    assert_eq!(found.why, ViewReason::InternalPolicy(TrafficPolicy::Cluster));
    assert!(found.is_in_kernel);
    assert_eq!(explained.result, ConnectResult::Forwarded(2));
    assert_eq!(explained.hooks, ["connect4"]);
    assert_eq!(explained.claims[0].status, Status::Ok);
    let rows: Vec<_> = explained.backends.iter().map(|it| (it.row.choice, it.share, it.is_elsewhere)).collect();
    let selected = (Choice::Selected, (1, 2), false);
    assert_eq!(rows, [selected, selected, (Choice::NotReady, (0, 2), false)]);
}

#[test]
fn a_local_policy_selects_only_local_backends() {
    let explained = explanation(&shop(TrafficPolicy::Local), "10.96.7.7:80", Client::Host);
    assert_eq!(explained.found.as_ref().map(|found| found.view), Some(ViewKind::Local));
    assert_eq!(explained.result, ConnectResult::Forwarded(1));
    let shares: Vec<_> = explained.backends.iter().map(|it| (it.share, it.is_elsewhere)).collect();
    assert_eq!(shares, [((1, 1), false), ((0, 1), true), ((0, 1), false)]);
}

#[test]
fn a_node_port_is_answered_on_the_right_addresses_only() {
    let snapshot = shop(TrafficPolicy::Local);
    let explained = explanation(&snapshot, "192.0.2.1:30080", Client::Host);
    let found = explained.found.clone().unwrap();
    assert_eq!((found.at, found.view, found.why), (l4("0.0.0.0:30080"), ViewKind::Cluster, ViewReason::ShortCut));
    assert_eq!(explained.result, ConnectResult::Forwarded(2));
    let other = explanation(&snapshot, "192.0.2.9:30080", Client::Host);
    assert_eq!(other.near, [NearMatch::NotAnsweredOn("shop/web".parse().unwrap())]);
    assert_eq!(other.result, ConnectResult::PassedThrough);
    assert_eq!(explanation(&snapshot, "192.0.2.1:30081", Client::Host).near, [NearMatch::NoSuchNodePort]);
    let any = explanation(&snapshot, "0.0.0.0:30080", Client::Host);
    assert_eq!(
        (any.to, any.result),
        (l4("0.0.0.0:30080"), ConnectResult::PassedThrough),
        "loopback, which does not answer it"
    );
    assert_eq!(any.near, [NearMatch::NotAnsweredOn("shop/web".parse().unwrap())]);
    assert_eq!(any.claims.len(), 1, "the row under this address is shown");
}

/// The service was said not to get its NodePort, and the kernel to serve it as before the start.
#[test]
fn the_loopback_address_of_a_pod_is_not_the_nodes() {
    let node = NodeFacts {
        addresses: [l4("127.0.0.1:1").addr].into(),
        nodeport_addresses: vec![NodePortAddress::Loopback],
        ..NodeFacts::default()
    };
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 100, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    let web = service("shop/web", &[("0.0.0.0:30080", FrontendKind::NodePort)]);
    let backends = slice("shop/web", vec![backend("10.1.0.1:8080", "here")]);
    let synced = Change::Synced { source: Source::Files, incomplete: None };
    let changes = [Change::Node(node), Change::UpsertService(web), backends, synced];
    changes.into_iter().for_each(|change| engine.change(change));
    engine.reconcile(&mut MemoryDatapath::new(LIMITS), Moment(0));
    let snapshot = engine.snapshot(Moment(0));
    let of_node = explanation(&snapshot, "127.0.0.1:30080", Client::Host);
    assert_eq!(of_node.result, ConnectResult::Forwarded(1));
    let of_pod = explanation(&snapshot, "127.0.0.1:30080", Client::Pod);
    assert_eq!(of_pod.result, ConnectResult::PassedThrough);
    assert_eq!(of_pod.near, [NearMatch::NodesLoopback("shop/web".parse().unwrap())]);
    assert_eq!(of_pod.claims, []);
}

/// The reason was that the backend is on another node, which it is not, and that the policy is Local.
#[test]
fn a_backend_of_the_other_family_is_not_excluded_for_its_node() {
    let web = service("shop/web", &[("198.51.100.9:80", FrontendKind::Static)]);
    let web = Service { forward: Forward::Tunnel, ..web };
    let backends = slice("shop/web", vec![backend("[2001:db8:b::1]:80", "here")]);
    let explained = explanation(&snapshot_of([Change::UpsertService(web), backends]), "198.51.100.9:80", Client::Host);
    assert_eq!(explained.found.map(|found| found.why), Some(ViewReason::OtherFamily));
    assert!(!explained.backends[0].is_elsewhere);
}

#[test]
fn a_client_outside_sees_the_view_and_passes_through() {
    let explained = explanation(&shop(TrafficPolicy::Cluster), "192.0.2.1:30080", Client::Outside);
    assert_eq!((explained.result, explained.hooks.len()), (ConnectResult::PassedThrough, 0));
    assert_eq!(explained.found.map(|found| found.why), Some(ViewReason::ExternalPolicy(TrafficPolicy::Cluster)));
}

#[test]
fn refusals_have_their_errno() {
    let web = service("shop/web", &[("10.96.7.7:80", FrontendKind::ClusterIP)]);
    let empty = snapshot_of([Change::UpsertService(web.clone())]);
    assert_eq!(explanation(&empty, "10.96.7.7:80", Client::Host).result, ConnectResult::Refused(Refusal::NoBackend));
    let local = Service { internal_policy: TrafficPolicy::Local, ..web };
    let elsewhere =
        snapshot_of([Change::UpsertService(local), slice("shop/web", vec![backend("10.1.0.2:8080", "there")])]);
    let explained = explanation(&elsewhere, "10.96.7.7:80", Client::Host);
    assert_eq!(explained.result, ConnectResult::Refused(Refusal::NoLocalBackend));
    assert!(explained.backends[0].is_elsewhere);
}

#[test]
fn near_misses_are_named() {
    let all = [
        service("shop/a", &[("10.96.7.7:80", FrontendKind::ClusterIP)]),
        service("shop/b", &[("10.96.9.9:80", FrontendKind::ClusterIP)]),
        service("shop/own", &[("192.0.2.1:80", FrontendKind::LoadBalancer)]),
    ];
    let snapshot = snapshot_of(all.map(Change::UpsertService));
    let port = explanation(&snapshot, "10.96.7.7:443", Client::Host);
    assert_eq!(port.near, [NearMatch::OtherPorts(vec![l4("10.96.7.7:80")])]);
    let between = explanation(&snapshot, "10.96.8.1:80", Client::Host);
    assert_eq!(between.near, [NearMatch::Between(l4("10.96.7.7:80"), l4("10.96.9.9:80"))]);
    assert_eq!(explanation(&snapshot, "198.51.100.1:80", Client::Host).near, []);
    assert_eq!(explanation(&snapshot, "10.96.7.7:80/SCTP", Client::Host).near, [NearMatch::Sctp]);
    let refused = explanation(&snapshot, "192.0.2.1:80", Client::Host);
    assert_eq!((refused.result, refused.claims[0].status), (ConnectResult::PassedThrough, Status::Refused));
}

#[test]
fn the_address_of_a_client_determines_its_location() {
    let snapshot = shop(TrafficPolicy::Cluster);
    for (addr, client) in [
        ("192.0.2.1", Some(Client::Host)),
        ("127.0.0.1", Some(Client::Host)),
        ("10.1.0.1", Some(Client::Pod)),
        ("10.1.0.2", Some(Client::Outside)),
        ("198.51.100.1", None),
    ] {
        assert_eq!(explanation::client_at(&snapshot, addr.parse().unwrap()), client, "{addr}");
    }
}

/// The services of a node that was restarted without an API server, while a file took the address of one of Kubernetes.
#[test]
fn an_address_that_stays_with_another_service_is_a_frontend_of_that_service() {
    let at = "10.96.7.7:80";
    let [api, file] = ["shop/api", "shop/file"].map(|name| service(name, &[(at, FrontendKind::ClusterIP)]));
    let api = Service { source: Source::Kubernetes, created: Some(1), ..api };
    let Change::UpsertSlice(list) = slice("shop/api", vec![backend("10.1.0.1:8080", "here")]) else { return };
    let kubernetes =
        [Change::UpsertService(api), Change::UpsertSlice(Slice { source: Source::Kubernetes, ..list }), node()];
    let config = EngineConfig {
        sources: [Source::Files, Source::Kubernetes].into(),
        max_services: 100,
        ..EngineConfig::default()
    };
    let synced = |source| Change::Synced { source, incomplete: None };
    let mut maps = MemoryDatapath::new(LIMITS);
    let mut engine = Engine::new(config.clone(), MapState::default());
    let all = [synced(Source::Files), synced(Source::Kubernetes)];
    kubernetes.clone().into_iter().chain(all).for_each(|change| engine.change(change));
    engine.reconcile(&mut maps, Moment(0));
    let mut engine = Engine::new(config, maps.dump().unwrap());
    let taken = [Change::UpsertService(file), synced(Source::Files)];
    kubernetes.into_iter().chain(taken).for_each(|change| engine.change(change));
    engine.reconcile(&mut maps, Moment(1));
    let explained = explanation(&engine.snapshot(Moment(1)), at, Client::Host);
    assert_eq!(explained.result, ConnectResult::Forwarded(1));
    let claims: Vec<(String, Status)> =
        explained.claims.iter().map(|claim| (claim.service.to_string(), claim.status)).collect();
    assert_eq!(claims, [("shop/api".into(), Status::Kept), ("shop/file".into(), Status::Pending)]);
    assert_eq!(explained.backends.iter().map(|it| it.share).collect::<Vec<_>>(), [(1, 1)]);
    assert_eq!(explained.found.map(|found| found.is_in_kernel), Some(false));
}

/// A file took the address of a service whose own file cannot be read since a restart.
#[test]
fn an_address_that_stays_with_a_service_that_is_not_described_is_not_that_of_its_claimant() {
    let at = "10.96.7.7:80";
    let [before, now] = ["shop/web", "shop/b"].map(|name| service(name, &[(at, FrontendKind::ClusterIP)]));
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 100, ..EngineConfig::default() };
    let synced =
        |incomplete: Option<&str>| Change::Synced { source: Source::Files, incomplete: incomplete.map(Into::into) };
    let mut maps = MemoryDatapath::new(LIMITS);
    let mut engine = Engine::new(config.clone(), MapState::default());
    let list = slice("shop/web", vec![backend("10.1.0.1:8080", "here")]);
    [Change::UpsertService(before), list, node(), synced(None)].into_iter().for_each(|change| engine.change(change));
    engine.reconcile(&mut maps, Moment(0));
    let mut engine = Engine::new(config, maps.dump().unwrap());
    let list = slice("shop/b", vec![backend("10.1.0.2:8080", "here")]);
    let changes = [Change::UpsertService(now), list, node(), synced(Some("web.toml cannot be used"))];
    changes.into_iter().for_each(|change| engine.change(change));
    engine.reconcile(&mut maps, Moment(1));
    let snapshot = engine.snapshot(Moment(1));
    assert_eq!(snapshot.kept().map(|(address, ..)| address).collect::<Vec<_>>(), [at.parse().unwrap()]);
    let rows: Vec<_> =
        frontends(&snapshot, &Filter::default()).into_iter().map(|row| (row.status, row.backends)).collect();
    assert_eq!(rows, [(Status::Pending, Vec::new())], "its backends get no connections");
    for client in [Client::Host, Client::Pod] {
        let explained = explanation(&snapshot, at, client);
        assert_eq!(explained.result, ConnectResult::Forwarded(1));
        assert_eq!((explained.found, explained.backends.len()), (None, 0));
        let [NearMatch::Kept(backends, _)] = &explained.near[..] else { panic!("{:?}", explained.near) };
        assert_eq!(backends[..], ["10.1.0.1:8080".parse().unwrap()]);
    }
}

/// The backend that the stored state described was said to be selected, while connections got the one in the maps.
#[test]
fn backends_are_those_that_connections_get() {
    let at = "10.96.7.7:80";
    let web = service("shop/web", &[(at, FrontendKind::ClusterIP)]);
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 100, ..EngineConfig::default() };
    let of = |address: &str| {
        let list = slice("shop/web", vec![backend(address, "here"), backend("10.1.0.3:8080", "here")]);
        [Change::UpsertService(web.clone()), list, node()]
    };
    let mut maps = MemoryDatapath::new(LIMITS);
    let mut engine = Engine::new(config.clone(), MapState::default());
    of("10.1.0.2:8080").into_iter().for_each(|change| engine.change(change));
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    engine.reconcile(&mut maps, Moment(0));
    let mut engine = Engine::new(config, maps.dump().unwrap());
    of("10.1.0.1:8080").into_iter().for_each(|change| engine.change(change));
    engine.reconcile(&mut maps, Moment(1));
    let snapshot = engine.snapshot(Moment(1));
    let expected =
        [("10.1.0.1:8080", Choice::Pending), ("10.1.0.2:8080", Choice::Held), ("10.1.0.3:8080", Choice::Selected)];
    let expected = expected.map(|(address, choice)| (l4(address), choice));
    let rows = reports::backends(&snapshot, &Filter::default());
    assert_eq!(rows.iter().map(|row| (row.address, row.choice)).collect::<Vec<_>>(), expected);
    assert_eq!(described::services(&snapshot, &Filter::default()).next().unwrap().selectable, 2);
    let explained = explanation(&snapshot, at, Client::Host);
    assert_eq!((explained.result, explained.claims[0].status), (ConnectResult::Forwarded(2), Status::Kept));
    let shares: Vec<_> = explained.backends.iter().map(|it| (it.row.address, it.share)).collect();
    assert_eq!(shares, [(expected[0].0, (0, 2)), (expected[1].0, (1, 2)), (expected[2].0, (1, 2))]);
    assert_eq!(frontends(&snapshot, &Filter::default())[0].backends, [expected[1].0, expected[2].0]);
}

#[test]
fn clients_outside_keep_services_of_files_while_another_proxy_serves_the_others() {
    for (source, access) in [(Source::Files, OutsideAccess::Served), (Source::Kubernetes, OutsideAccess::Draining)] {
        let balancer = Service { source, ..service("shop/web", &[("198.51.100.1:80", FrontendKind::LoadBalancer)]) };
        let packets = PacketsConfig { is_on: true, ..PacketsConfig::default() };
        let config = EngineConfig { sources: [source].into(), max_services: 100, packets, ..EngineConfig::default() };
        let mut engine = Engine::new(config, MapState::default());
        let files = Change::Translation(Translation::Files);
        let synced = Change::Synced { source, incomplete: None };
        [node(), Change::UpsertService(balancer), files, synced].into_iter().for_each(|it| engine.change(it));
        engine.reconcile(&mut MemoryDatapath::new(Limits { outside: 9, source_ranges: 9, ..LIMITS }), Moment(0));
        let explained = explanation(&engine.snapshot(Moment(0)), "198.51.100.1:80", Client::Outside);
        assert_eq!(explained.outside.map(|outside| outside.access), Some(access), "{source}");
    }
}

/// If no device has the programs, no client outside is served, whatever the policy and the source ranges are: the packets
/// pass to the stack, and nothing is dropped.
#[test]
fn what_is_not_translated_is_not_said_to_be_served() {
    let balancer = service("shop/web", &[("198.51.100.1:80", FrontendKind::LoadBalancer)]);
    let local = Service { external_policy: TrafficPolicy::Local, ..balancer.clone() };
    let of_other_family = Service { source_ranges: Some(vec!["2001:db8::/32".parse().unwrap()]), ..balancer };
    for service in [local, of_other_family] {
        let packets = PacketsConfig { is_on: true, ..PacketsConfig::default() };
        let config =
            EngineConfig { sources: [Source::Files].into(), max_services: 100, packets, ..EngineConfig::default() };
        let mut engine = Engine::new(config, MapState::default());
        let backends = slice("shop/web", vec![backend("10.1.0.2:8080", "there")]);
        let off = Change::Translation(Translation::Off);
        let synced = Change::Synced { source: Source::Files, incomplete: None };
        [node(), Change::UpsertService(service), backends, off, synced].into_iter().for_each(|it| engine.change(it));
        engine.reconcile(&mut MemoryDatapath::new(Limits { outside: 9, source_ranges: 9, ..LIMITS }), Moment(0));
        let explained = explanation(&engine.snapshot(Moment(0)), "198.51.100.1:80", Client::Outside);
        assert_eq!(explained.outside.map(|outside| outside.access), Some(OutsideAccess::Off));
    }
}
