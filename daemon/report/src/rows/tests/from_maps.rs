use std::collections::BTreeSet;

use super::*;
use crate::explain::explanation::explain;
use crate::explain::reports;
use crate::time::Clocks;
use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::Engine;
use nodelb_core::history::{Event, History, Stamp, What};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::cause::Cause;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{Backend, FrontendSpec, ServicePort, Slice, SliceName, SlicePort, TrafficPolicy};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{BackendId, FrontendEntry};

const LIMITS: Limits = Limits { frontends: 64, services: 64, slots: 640, affinity: 16, outside: 0, source_ranges: 0 };

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

fn service(name: &str, addresses: &[(&str, FrontendKind)]) -> Service {
    let spec =
        |(text, kind): &(&str, FrontendKind)| FrontendSpec { addr: l4(text).addr, port: l4(text).port, kind: *kind };
    let frontends = addresses.iter().map(spec).collect();
    let port = ServicePort { name: "http".into(), protocol: l4(addresses[0].0).protocol, frontends };
    Service { ports: vec![port], ..Service::new(name.parse().expect("valid in a test"), Source::Files) }
}

fn slice(name: &str, backends: &[(&str, u16)]) -> Slice {
    let service: ServiceName = name.parse().expect("valid in a test");
    let backend =
        |(text, weight): &(&str, u16)| Backend { weight: *weight, ..Backend::new(l4(text).addr, l4(text).port) };
    let backends = backends.iter().map(backend).collect();
    let port = SlicePort { name: "http".into(), protocol: l4("192.0.2.1:1").protocol, backends };
    let (name, origin) = (SliceName::new(&service.namespace, &service.name), Default::default());
    Slice { name, service, source: Source::Files, origin, ports: vec![port], problem: None }
}

fn services() -> [Service; 3] {
    let web =
        service("shop/web", &[("198.51.100.1:80", FrontendKind::Static), ("0.0.0.0:30080", FrontendKind::NodePort)]);
    let local = service("shop/local", &[("10.96.0.2:80", FrontendKind::ClusterIP)]);
    let local = Service { internal_policy: TrafficPolicy::Local, affinity_seconds: Some(60), ..local };
    [web, local, service("shop/empty", &[("10.96.0.3:80", FrontendKind::ClusterIP)])]
}

/// The services in the maps, what a daemon reports, and what the maps alone show with these names.
fn written(names: Names) -> (Snapshot, MapContent) {
    let config = EngineConfig { sources: BTreeSet::from([Source::Files]), max_services: 64, ..EngineConfig::default() };
    let nodeport_range = config.guard.nodeport_range.clone();
    let mut datapath = MemoryDatapath::new(LIMITS);
    let mut engine = Engine::new(config, MapState::default());
    let addresses = BTreeSet::from([l4("203.0.113.1:1").addr]);
    engine.change(Change::Node(NodeFacts { name: "n1".into(), addresses, ..NodeFacts::default() }));
    services().into_iter().for_each(|service| engine.change(Change::UpsertService(service)));
    engine.change(Change::UpsertSlice(slice("shop/web", &[("192.0.2.1:8080", 3), ("192.0.2.2:8080", 1)])));
    engine.change(Change::UpsertSlice(slice("shop/local", &[("192.0.2.3:8080", 1)])));
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    assert_eq!(engine.reconcile(&mut datapath, Moment(0)).failed, 0);
    let state = datapath.dump().expect("memory can be read");
    (engine.snapshot(Moment(0)), MapContent { state, names, nodeport_range, has_outside: false })
}

fn known() -> Names {
    let mut names = Names::default();
    services().iter().for_each(|service| names.add_service(service));
    names
}

#[test]
fn the_maps_show_the_same_frontends_as_the_daemon() {
    let (snapshot, content) = written(known());
    let clocks = Clocks { moment: Moment(0), time: crate::time::Time(0) };
    for filter in [Filter::default(), Filter::for_service(&"shop/local".parse().expect("valid in a test"))] {
        let reported = reports::frontends(&snapshot, &filter).into_iter();
        let reported: Vec<FrontendRow> = reported.map(|row| FrontendRow::new(row, clocks)).collect();
        let comparable = |row: FrontendRow| FrontendRow { since: None, error: None, ..row };
        assert_eq!(content.frontends(&filter), reported.into_iter().map(comparable).collect::<Vec<_>>());
    }
    let empty = Filter { status: Some(Status::NoBackends), ..Filter::default() };
    let at = |filter: &Filter| content.frontends(filter).iter().map(|row| row.address).collect::<Vec<_>>();
    assert_eq!(at(&empty), [l4("10.96.0.2:80"), l4("10.96.0.3:80")]);
    let nodeports = Filter { kind: Some(FrontendKind::NodePort), ..Filter::default() };
    assert_eq!(at(&nodeports), [l4("0.0.0.0:30080")]);
    assert_eq!(at(&Filter { address: Some(l4("198.51.100.1:1").addr), ..Filter::default() }), [l4("198.51.100.1:80")]);
}

/// Without the daemon, it was said to have no backends: clients on the node get the local view, which is empty.
#[test]
fn an_ipv4_address_with_ipv6_backends_has_them() {
    let mut state = MapState::default();
    let at = FrontendEntry { service: ServiceId(1), inside_local: true, outside_local: false };
    state.frontends.insert(l4("198.51.100.2:80"), at);
    let cluster = [Slot { backend: BackendId(1), addr: l4("[2001:db8:1::1]:80") }].into();
    let entry = ServiceEntry { cluster, has_backends: true, ..ServiceEntry::default() };
    state.services.insert(ServiceId(1), entry.into());
    let content = MapContent { state, names: Names::default(), nodeport_range: 1..=1, has_outside: false };
    let rows = content.frontends(&Filter::default());
    assert_eq!((rows[0].status, &*rows[0].backends), (Status::Ok, &[l4("[2001:db8:1::1]:80")][..]));
}

#[test]
fn the_maps_lead_to_the_same_places_as_the_daemon_says() {
    let (snapshot, content) = written(known());
    for to in ["198.51.100.1:80", "203.0.113.1:30080", "10.96.0.2:80", "10.96.0.3:80", "203.0.113.1:30081"].map(l4) {
        for from in [Client::Host, Client::Pod, Client::Outside] {
            let (explained, traced) = (explain(&snapshot, to, from), content.trace(to, from));
            assert_eq!(traced.result, explained.result, "{to} from {from}");
            let slots = |found: &MapMatch<'_>| found.backends.clone();
            let candidates = explained.backends.iter().map(|it| (it.row.address, it.share.0)).collect::<Vec<_>>();
            if from != Client::Outside {
                assert_eq!(traced.found.as_ref().map(|it| it.at), explained.found.as_ref().map(|it| it.at), "{to}");
                assert_eq!(traced.found.as_ref().map(slots).unwrap_or_default(), candidates, "{to} from {from}");
            }
        }
    }
}

#[test]
fn backends_have_the_weight_of_their_slots() {
    let (_, content) = written(known());
    let rows = content.backends(&Filter::default());
    let rows: Vec<_> = rows.iter().map(|row| (row.service.as_deref(), row.address, row.weight)).collect();
    let web = Some("shop/web");
    assert_eq!(
        rows,
        [(Some("shop/local"), l4("192.0.2.3:8080"), 1), (web, l4("192.0.2.1:8080"), 3), (web, l4("192.0.2.2:8080"), 1)]
    );
    let one = Filter { address: Some(l4("192.0.2.2:1").addr), ..Filter::default() };
    assert_eq!(content.backends(&one).len(), 1);
}

/// Without the files, everything but the names is still shown.
#[test]
fn unknown_names_are_absent() {
    let (_, content) = written(Names::default());
    let rows = content.frontends(&Filter::default());
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.service.is_none() && row.port.is_none()), "{rows:?}");
    let kinds: Vec<Option<&str>> = rows.iter().map(|row| row.kind.as_deref()).collect();
    assert_eq!(kinds.iter().flatten().collect::<Vec<_>>(), [&"NodePort"], "{rows:?}");
    assert!(content.frontends(&Filter::for_service(&"shop/web".parse().expect("valid in a test"))).is_empty());
    assert!(content.services().is_empty() && content.services_at(l4("198.51.100.1:80").addr).is_empty());
    assert_eq!(content.name_of(ServiceId::CANARY).as_deref(), Some("canary"));
    let traced = content.trace(l4("198.51.100.1:80"), Client::Host);
    assert_eq!(traced.result, ConnectResult::Forwarded(2));
    assert!(traced.found.is_some_and(|found| found.port.is_none()));
}

/// A service without a description, because its file is gone, is known from the recorded changes.
#[test]
fn names_come_from_recorded_changes_too() {
    let (_, content) = written(known());
    let key = content.port(content.state.frontends[&l4("198.51.100.1:80")].service).expect("it is known");
    let mut history = History::default();
    history.add(Event::for_port(key, Some(Source::Files), What::Changed, Cause::default()), Stamp::default());
    let mut names = Names::default();
    history.after(0).for_each(|record| names.add_record(record));
    let (_, content) = written(names);
    let known: BTreeSet<String> = content.services().iter().map(ToString::to_string).collect();
    assert_eq!(known, BTreeSet::from(["shop/web".to_owned()]));
    assert_eq!(content.services_at(l4("198.51.100.1:80").addr).len(), 1);
}

/// Two ports with the same hashes: neither name may be shown for the other.
#[test]
fn an_ambiguous_tag_has_no_name() {
    let (_, mut content) = written(known());
    let id = content.state.frontends[&l4("198.51.100.1:80")].service;
    let tag = content.state.services[&id].tag.expect("it is stored");
    let other = PortKey {
        service: "evil/twin".parse().expect("valid in a test"),
        ..(**content.port(id).expect("known")).clone()
    };
    content.names.ports.entry(tag).and_modify(|known| *known = Some(Arc::new(other)));
    content.names.add_service(&services()[0]);
    assert_eq!(content.name_of(id), None);
}

/// Otherwise a service whose connections fail is OK as soon as the daemon does not run.
#[test]
fn without_the_daemon_a_last_resort_stays_one() {
    let at = l4("198.51.100.1:80");
    let (_, mut content) = written(known());
    let id = content.state.frontends[&at].service;
    Arc::make_mut(content.state.services.get_mut(&id).expect("it is there")).is_last_resort = true;
    let rows = content.frontends(&Filter::default());
    let statuses: Vec<Status> = rows.iter().filter(|row| row.address == at).map(|row| row.status).collect();
    assert_eq!(statuses, [Status::LastResort]);
    assert!(content.trace(at, Client::Host).found.is_some_and(|found| found.is_last_resort));
}
