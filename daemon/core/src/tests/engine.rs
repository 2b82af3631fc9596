use std::collections::BTreeSet;
use std::sync::Arc;

use super::{CompiledService, Engine};
use crate::change::Change;
use crate::claimed::claimed;
use crate::compile::guard::Guard;
use crate::config::{EngineConfig, PacketsConfig};
use crate::datapath::{Datapath, Limits};
use crate::history::What;
use crate::memory::MemoryDatapath;
use crate::model::addr::{L4Addr, Protocol};
use crate::model::moment::Moment;
use crate::model::node::NodeFacts;
use crate::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};
use crate::state::entries::{MapOp, MapState};
use crate::state::status::Status;
use crate::trace::{Verdict, trace};

#[path = "engine/before.rs"]
mod before;
#[path = "engine/checks_before_sync.rs"]
mod checks_before_sync;
#[path = "engine/deferred.rs"]
mod deferred;
#[path = "../../../../tests/dump.rs"]
mod dump;
#[path = "engine/dumped.rs"]
mod dumped;
#[path = "engine/firstsync.rs"]
mod firstsync;
#[path = "engine/full.rs"]
mod full;
#[path = "engine/numbers.rs"]
mod numbers;
#[path = "engine/outside.rs"]
mod outside;
#[path = "engine/rig.rs"]
mod rig;
#[path = "engine/storms.rs"]
mod storms;

use dump::dump;
use rig::{LIMITS, describe, engine_with, failing, l4, name, new_pair, service, serving, slice, synced, text, upsert};

#[test]
fn a_service_reaches_the_kernel_in_one_round() {
    let (mut engine, mut datapath) = new_pair();
    upsert(&mut engine, "shop/web", "198.51.100.10:80/TCP", &["192.0.2.1:8080", "192.0.2.2:8080"]);
    engine.change(synced());
    let round = engine.reconcile(&mut datapath, Moment(0));
    assert_eq!(round.failed, 0);
    assert!(engine.is_ready());
    assert_eq!(
        text(&engine, &datapath),
        "frontend 198.51.100.10:80/TCP  shop/web:http/TCP/IPv4  inside=cluster outside=cluster\n\
         service  shop/web:http/TCP/IPv4  cluster=[192.0.2.1:8080/TCP, 192.0.2.2:8080/TCP]\n"
    );
    let snapshot = engine.snapshot(Moment(0));
    assert!(snapshot.desired.services.ptr_eq(&snapshot.realised.services), "equal maps share their memory");
    let rows = claimed(&snapshot);
    assert_eq!(rows.iter().map(|row| row.status).collect::<Vec<_>>(), [Status::Ok]);
}

/// Step 4 of the incident: an annotation must not cause an operation on the maps.
#[test]
fn a_change_that_changes_nothing_is_no_operation() {
    let (mut engine, mut datapath) = serving("shop/web", "198.51.100.10:80/TCP", &["192.0.2.1:8080"]);
    let mut again = service("shop/web", "198.51.100.10:80/TCP");
    again.origin.resource_version = "2".into();
    engine.change(Change::UpsertService(again));
    let mut again = slice("shop/web", "a", &["192.0.2.1:8080"]);
    again.origin.resource_version = "3".into();
    engine.change(Change::UpsertSlice(again));
    let round = engine.reconcile(&mut datapath, Moment(1));
    assert_eq!((round.done, round.compiled.len()), (0, 0));
}

#[test]
fn everything_is_given_back_when_the_last_service_goes() {
    let (mut engine, mut datapath) = new_pair();
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    let empty = engine.sizes();
    upsert(&mut engine, "shop/web", "198.51.100.10:80/TCP", &["192.0.2.1:8080"]);
    engine.reconcile(&mut datapath, Moment(1));
    engine.change(Change::RemoveSlice(SliceName::new("shop", "a"), Source::Files));
    engine.change(Change::RemoveService(name("shop/web"), Source::Files));
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!(engine.sizes(), empty);
    assert_eq!(datapath.slots_used().0, 0);
    assert_eq!(text(&engine, &datapath), "");
}

/// Entries in the maps are kept until every source has reported everything.
#[test]
fn nothing_is_pruned_before_the_source_is_synced_and_complete() {
    let (engine, mut datapath) = serving("shop/web", "198.51.100.10:80/TCP", &["192.0.2.1:8080"]);
    let before = text(&engine, &datapath);

    let mut engine = engine_with(&datapath);
    engine.reconcile(&mut datapath, Moment(1));
    engine.change(Change::UpsertService(service("shop/web", "198.51.100.10:80/TCP")));
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!(text(&engine, &datapath), before, "known again, but its slices are not there yet");

    let incomplete = Some(Arc::from("web.toml: line 3"));
    let mut engine = engine_with(&datapath);
    engine.change(Change::Synced { source: Source::Files, incomplete });
    engine.reconcile(&mut datapath, Moment(3));
    assert!(engine.is_ready());
    assert_eq!(datapath.dump().expect("readable").frontends.len(), 3, "kept: the unread file may own it");

    engine.change(synced());
    let round = engine.reconcile(&mut datapath, Moment(4));
    assert_eq!(round.pruned.count(), 1);
    assert_eq!(text(&engine, &datapath), "");
}

/// A client's affinity and a socket's earlier choice are stored by id.
#[test]
fn ids_survive_a_restart() {
    let (mut engine, mut datapath) = new_pair();
    for (index, full) in ["a/one", "a/two", "a/three"].iter().enumerate() {
        engine.change(Change::UpsertService(service(full, &format!("198.51.100.{index}:80/TCP"))));
        engine.change(Change::UpsertSlice(slice(full, full, &[&format!("192.0.2.{index}:80/TCP")])));
    }
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    let before = datapath.dump().expect("readable");

    let mut engine = engine_with(&datapath);
    for (index, full) in ["a/three", "a/two"].iter().enumerate() {
        let index = 2 - index;
        engine.change(Change::UpsertService(service(full, &format!("198.51.100.{index}:80/TCP"))));
        engine.change(Change::UpsertSlice(slice(full, full, &[&format!("192.0.2.{index}:80/TCP")])));
    }
    engine.change(synced());
    let round = engine.reconcile(&mut datapath, Moment(1));
    assert_eq!((round.done, round.pruned.count()), (2, 1), "only the one that is gone: its frontend and its entry");
    let after = datapath.dump().expect("readable");
    assert!(after.services.iter().all(|(id, entry)| before.services.get(id) == Some(entry)));
}

#[test]
fn a_list_that_does_not_fit_names_the_key_to_raise_and_is_written_when_there_is_room() {
    let mut datapath = MemoryDatapath::new(Limits { slots: 2, ..LIMITS });
    let mut engine = engine_with(&datapath);
    (1..=3).for_each(|index| describe(&mut engine, &format!("a/s{index}"), &format!("198.51.100.{index}:80/TCP")));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    let rows = claimed(&engine.snapshot(Moment(0)));
    let errors: Vec<_> = rows.iter().filter_map(|row| row.error.clone()).collect();
    assert_eq!(errors, ["map slots is full (2 entries): raise datapath.max-slots and restart nodelb"]);

    engine.change(Change::RemoveService(name("a/s1"), Source::Files));
    let mut now = Moment(1);
    engine.reconcile(&mut datapath, now);
    while let Some(at) = engine.next_round() {
        assert!(at < Moment(60_000), "never converges");
        now = at.max(now.plus(1));
        engine.reconcile(&mut datapath, now);
    }
    let rows = claimed(&engine.snapshot(now));
    assert!(rows.iter().all(|row| row.status == Status::Ok), "{rows:?}");
}

/// Otherwise two ports of one name would each take an id, and the second one would never be released.
#[test]
fn ports_of_equal_name_share_one_entry() {
    let (mut engine, mut datapath) = new_pair();
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    let empty = engine.sizes();
    let mut twice = service("a/twice", "198.51.100.10:80/TCP");
    twice.ports.extend(service("a/twice", "198.51.100.10:81/TCP").ports);
    engine.change(Change::UpsertSlice(slice("a/twice", "a", &["192.0.2.1:80"])));
    engine.change(Change::UpsertService(twice));
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(engine.sizes().service_ids, 1);
    engine.change(Change::UpsertSlice(slice("a/twice", "a", &["192.0.2.2:80"])));
    engine.reconcile(&mut datapath, Moment(2));
    engine.change(Change::RemoveSlice(SliceName::new("a", "a"), Source::Files));
    engine.change(Change::RemoveService(name("a/twice"), Source::Files));
    engine.reconcile(&mut datapath, Moment(3));
    assert_eq!(engine.sizes(), empty);
}

/// A list that could not be written and is then withdrawn leaves nothing to write, so there is no error either.
#[test]
fn a_failure_is_forgotten_when_its_cause_goes_away() {
    let mut datapath = failing(|op| matches!(op, MapOp::PutService(_, entry) if entry.cluster.len() == 2));
    let mut engine = engine_with(&datapath);
    upsert(&mut engine, "a/s", "198.51.100.10:80/TCP", &["192.0.2.1:80"]);
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    engine.change(Change::UpsertSlice(slice("a/s", "a", &["192.0.2.1:80", "192.0.2.2:80"])));
    assert_eq!(engine.reconcile(&mut datapath, Moment(1)).failed, 1);
    engine.change(Change::UpsertSlice(slice("a/s", "a", &["192.0.2.1:80"])));
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!((engine.sizes().failed, engine.next_round()), (0, None));
    assert_eq!(claimed(&engine.snapshot(Moment(2)))[0].status, Status::Ok);
}

/// The entry is written because its list changes, before the retry of the failed operation is due.
#[test]
fn a_frontend_is_written_as_soon_as_its_entry_is() {
    let mut datapath = failing(|op| matches!(op, MapOp::PutService(_, entry) if entry.cluster.len() == 1));
    let mut engine = engine_with(&datapath);
    upsert(&mut engine, "a/s", "198.51.100.10:80/TCP", &["192.0.2.1:80"]);
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    engine.change(Change::UpsertSlice(slice("a/s", "a", &["192.0.2.1:80", "192.0.2.2:80"])));
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(claimed(&engine.snapshot(Moment(1)))[0].status, Status::Ok);
    assert_eq!(datapath.dump().expect("readable").frontends.len(), 3, "the service's and two canaries");
}

/// The waiting service is reported first and its name comes first. The owner must still get its previous id.
#[test]
fn the_owner_of_a_contested_address_finds_its_id_again() {
    let (mut engine, mut datapath) = new_pair();
    let facts = || {
        let young = Service { created: Some(200), ..service("a/young", "198.51.100.10:80/TCP") };
        let old = Service { created: Some(100), ..service("b/old", "198.51.100.10:80/TCP") };
        let slices = ["a/young", "b/old"].map(|full| slice(full, full, &["192.0.2.1:80"]));
        slices.into_iter().map(Change::UpsertSlice).chain([young, old].map(Change::UpsertService))
    };
    facts().for_each(|change| engine.change(change));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    let before = datapath.dump().expect("readable").frontends;
    let mut engine = engine_with(&datapath);
    facts().for_each(|change| engine.change(change));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(datapath.dump().expect("readable").frontends, before);
}

/// An id must not be assigned to another service while a frontend that could not be deleted still points at it.
#[test]
fn an_id_stays_taken_while_a_frontend_points_at_it() {
    let mut datapath = failing(|op| matches!(op, MapOp::DeleteFrontend(_)));
    let mut engine = engine_with(&datapath);
    engine.change(Change::UpsertService(service("a/s", "198.51.100.10:80/TCP")));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    engine.change(Change::RemoveService(name("a/s"), Source::Files));
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(engine.sizes().service_ids, 1);
    datapath.clear_fault();
    engine.reconcile(&mut datapath, engine.next_round().expect("a retry is due"));
    assert_eq!((engine.sizes().service_ids, engine.sizes().failed, engine.next_round()), (0, 0, None));
    assert_eq!(text(&engine, &datapath), "");
}

/// The service's own file is readable, but the file with its backends is not, so the absence of backends is no
/// evidence.
#[test]
fn an_adopted_list_is_not_emptied_while_a_file_is_unread() {
    let (engine, mut datapath) = serving("a/s", "198.51.100.10:80/TCP", &["192.0.2.1:80"]);
    let before = text(&engine, &datapath);
    let mut engine = engine_with(&datapath);
    engine.change(Change::UpsertService(service("a/s", "198.51.100.10:80/TCP")));
    engine.change(Change::Synced { source: Source::Files, incomplete: Some("slices.yaml: line 3".into()) });
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(text(&engine, &datapath), before);
    engine.change(Change::UpsertSlice(slice("a/s", "a", &["192.0.2.2:80"])));
    engine.reconcile(&mut datapath, Moment(2));
    assert!(text(&engine, &datapath).contains("192.0.2.2"), "new backends come in at once");
    engine.change(Change::UpsertSlice(slice("a/s", "a", &[])));
    engine.reconcile(&mut datapath, Moment(3));
    assert!(text(&engine, &datapath).contains("cluster=[]  empty"), "what a source once gave, it can take");
}

/// The order of the reports does not matter: its own file has given the list since the start. Seed 7016 of the truth test.
#[test]
fn a_list_given_before_the_source_is_synced_can_be_taken_while_another_file_is_unread() {
    let (_, mut datapath) = serving("a/s", "198.51.100.10:80/TCP", &["192.0.2.1:80"]);
    let mut engine = engine_with(&datapath);
    engine.change(Change::UpsertService(service("a/s", "198.51.100.10:80/TCP")));
    engine.change(Change::UpsertSlice(slice("a/s", "a", &["192.0.2.1:80"])));
    engine.reconcile(&mut datapath, Moment(1));
    engine.change(Change::Synced { source: Source::Files, incomplete: Some("b.toml: line 3".into()) });
    engine.reconcile(&mut datapath, Moment(2));
    engine.change(Change::UpsertSlice(slice("a/s", "a", &[])));
    engine.reconcile(&mut datapath, Moment(3));
    assert!(text(&engine, &datapath).contains("cluster=[]  empty"));
}

/// The apiserver is unreachable, and a file claims one of two addresses of a service that only the apiserver knows.
#[test]
fn a_synced_source_does_not_write_into_an_entry_of_a_service_that_is_not_reported_yet() {
    let kubernetes = |mut service: Service| {
        service.source = Source::Kubernetes;
        service
    };
    let config = || EngineConfig {
        sources: BTreeSet::from([Source::Files, Source::Kubernetes]),
        max_services: LIMITS.services,
        ..EngineConfig::default()
    };
    let mut datapath = MemoryDatapath::new(LIMITS);
    let mut engine = Engine::new(config(), MapState::default());
    let mut two = kubernetes(service("a/s", "198.51.100.10:80/TCP"));
    two.ports[0].frontends.extend(service("a/s", "198.51.100.11:80/TCP").ports[0].frontends.clone());
    engine.change(Change::UpsertService(two));
    engine.change(Change::UpsertSlice(Slice { source: Source::Kubernetes, ..slice("a/s", "a", &["192.0.2.1:80"]) }));
    engine.reconcile(&mut datapath, Moment(0));

    let mut engine = Engine::new(config(), datapath.dump().expect("readable"));
    engine.change(Change::UpsertService(service("b/s", "198.51.100.10:80/TCP")));
    engine.change(Change::UpsertSlice(slice("b/s", "b", &["192.0.2.2:80"])));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(1));
    let state = datapath.dump().expect("readable");
    let backend = |address: &str| match trace(&state, &(30_000..=32_767), l4(address)) {
        Verdict::Forwarded(_, slots) => slots[0].addr.to_string(),
        other => format!("{other:?}"),
    };
    assert_eq!(backend("198.51.100.10:80"), "192.0.2.2:80/TCP", "files are synced and older");
    assert_eq!(backend("198.51.100.11:80"), "192.0.2.1:80/TCP");
}

/// At the start, connections would be refused without reason between the reports of the service and of its slices.
#[test]
fn a_new_address_waits_for_backends_until_its_source_has_synced() {
    let (mut engine, mut datapath) = new_pair();
    let frontends = |datapath: &MemoryDatapath| datapath.dump().expect("readable").frontends.len() - 2;
    engine.change(Change::UpsertService(service("a/s", "198.51.100.10:80/TCP")));
    engine.change(Change::UpsertService(service("a/empty", "198.51.100.11:80/TCP")));
    engine.reconcile(&mut datapath, Moment(0));
    assert_eq!(frontends(&datapath), 0);
    engine.change(Change::UpsertSlice(slice("a/s", "a", &["192.0.2.1:80"])));
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(frontends(&datapath), 1);
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!(frontends(&datapath), 2);
}

/// The canary must also be restored if its entry could not be written at first.
#[test]
fn the_canary_is_tried_again() {
    let mut datapath = failing(|_| true);
    let mut engine = engine_with(&datapath);
    engine.reconcile(&mut datapath, Moment(0));
    datapath.clear_fault();
    engine.reconcile(&mut datapath, engine.next_round().expect("a retry is due"));
    assert_eq!(datapath.dump().expect("readable").frontends.len(), 2);
}

/// Kubernetes is synced and files are not. A file with the same service name must not remove anything from the maps.
#[test]
fn a_source_that_has_not_synced_takes_nothing_from_another() {
    let config = || EngineConfig {
        sources: BTreeSet::from([Source::Files, Source::Kubernetes]),
        max_services: LIMITS.services,
        ..EngineConfig::default()
    };
    let facts = || {
        let service = Service { source: Source::Kubernetes, ..service("a/s", "198.51.100.10:80/TCP") };
        let slice = Slice { source: Source::Kubernetes, ..slice("a/s", "a", &["192.0.2.1:80"]) };
        [Change::UpsertService(service), Change::UpsertSlice(slice)]
    };
    let synced = |source| Change::Synced { source, incomplete: None };
    let mut datapath = MemoryDatapath::new(LIMITS);
    let mut engine = Engine::new(config(), MapState::default());
    facts().into_iter().for_each(|change| engine.change(change));
    engine.reconcile(&mut datapath, Moment(0));
    let before = text(&engine, &datapath);

    let mut engine = Engine::new(config(), datapath.dump().expect("readable"));
    facts().into_iter().for_each(|change| engine.change(change));
    engine.change(synced(Source::Kubernetes));
    engine.reconcile(&mut datapath, Moment(1));
    engine.change(Change::UpsertService(Service { ports: Vec::new(), ..service("a/s", "198.51.100.10:80/TCP") }));
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!(text(&engine, &datapath), before);
    engine.change(synced(Source::Files));
    engine.reconcile(&mut datapath, Moment(3));
    assert_eq!(text(&engine, &datapath), "");
}

/// A frontend without a claim stays until everything is known. While it stays, the entry that it points at, which is
/// still in use, must not be emptied.
#[test]
fn an_entry_is_not_emptied_under_a_frontend_that_is_only_kept() {
    let config = || EngineConfig {
        sources: BTreeSet::from([Source::Files, Source::Kubernetes]),
        max_services: LIMITS.services,
        ..EngineConfig::default()
    };
    let mut two = service("a/s", "198.51.100.10:80/TCP");
    two.ports[0].frontends.extend(service("a/s", "198.51.100.11:80/TCP").ports[0].frontends.clone());
    let mut datapath = MemoryDatapath::new(LIMITS);
    let mut engine = Engine::new(config(), MapState::default());
    engine.change(Change::UpsertService(two.clone()));
    engine.change(Change::UpsertSlice(slice("a/s", "a", &["192.0.2.1:80"])));
    engine.reconcile(&mut datapath, Moment(0));

    let mut engine = Engine::new(config(), datapath.dump().expect("readable"));
    engine.change(Change::UpsertService(two));
    engine.change(Change::UpsertSlice(slice("a/s", "a", &["192.0.2.1:80"])));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(1));
    upsert(&mut engine, "a/s", "198.51.100.10:80/TCP", &[]);
    engine.reconcile(&mut datapath, Moment(2));
    assert!(text(&engine, &datapath).contains("frontend 198.51.100.11:80/TCP"), "Kubernetes may claim it");
    assert!(text(&engine, &datapath).contains("cluster=[192.0.2.1:80/TCP]"), "and then it needs its backends");
    engine.change(Change::Synced { source: Source::Kubernetes, incomplete: None });
    engine.reconcile(&mut datapath, Moment(3));
    assert_eq!(
        text(&engine, &datapath),
        "frontend 198.51.100.10:80/TCP  a/s:http/TCP/IPv4  inside=cluster outside=cluster\n\
         service  a/s:http/TCP/IPv4  cluster=[]  empty\n"
    );
}

#[test]
fn an_address_of_the_node_makes_only_its_claimants_dirty() {
    let (mut engine, mut datapath) = new_pair();
    for (full, frontend) in [("a/s", "198.51.100.10:80"), ("a/t", "198.51.100.11:80"), ("a/u", "198.51.100.10:81")] {
        engine.change(Change::UpsertService(service(full, frontend)));
        engine.change(Change::UpsertSlice(slice(full, full, &["192.0.2.1:80"])));
    }
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    let node = |own: &[&str]| {
        Change::Node(NodeFacts { addresses: own.iter().map(|text| l4(text).addr).collect(), ..NodeFacts::default() })
    };
    let status = |engine: &Engine| {
        let rows = claimed(&engine.snapshot(Moment(0)));
        rows.iter().map(|row| row.status).collect::<Vec<_>>()
    };
    for (at, own, statuses) in
        [(1, &["198.51.100.10:1"][..], [Status::Refused, Status::Refused, Status::Ok]), (2, &[], [Status::Ok; 3])]
    {
        engine.change(node(own));
        let round = engine.reconcile(&mut datapath, Moment(at));
        let changed = |text| CompiledService { name: name(text), what: Some(What::Changed) };
        assert_eq!(round.compiled, [changed("a/s"), changed("a/u")]);
        assert_eq!((round.done, status(&engine)), (2, statuses.to_vec()));
    }
    engine.change(node(&["203.0.113.1:1"]));
    assert_eq!(engine.reconcile(&mut datapath, Moment(3)).compiled, []);
}

/// An older nodelb served it, and nodelb's own listener cannot be opened or reached while the NodePort exists.
#[test]
fn a_nodeport_on_nodelbs_own_port_goes_before_any_source_has_synced() {
    let (mut engine, mut datapath) = new_pair();
    let node_port = |port| {
        let mut service = service("shop/web", &format!("0.0.0.0:{port}"));
        service.ports[0].frontends[0].kind = FrontendKind::NodePort;
        Change::UpsertService(service)
    };
    engine.change(node_port(30_990));
    engine.change(Change::UpsertSlice(slice("shop/web", "web", &["192.0.2.1:80"])));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(1));
    assert!(datapath.dump().unwrap().frontends.contains_key(&l4("0.0.0.0:30990")));

    let sources = BTreeSet::from([Source::Files]);
    let guard = Guard { own_ports: vec![(30_990, "admin.listen")], ..Guard::default() };
    let config = EngineConfig { guard, sources, max_services: LIMITS.services, ..EngineConfig::default() };
    let mut engine = Engine::new(config, datapath.dump().unwrap());
    let before = datapath.dump().unwrap().frontends.len();
    engine.reconcile(&mut datapath, Moment(2));
    let held = datapath.dump().unwrap();
    assert!(!held.frontends.contains_key(&l4("0.0.0.0:30990")), "{held:?}");
    assert_eq!(held.frontends.len(), before - 1, "nothing else goes before the source has synced");
    engine.change(node_port(30_990));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(3));
    let rows = claimed(&engine.snapshot(Moment(3)));
    let row = rows.iter().find(|row| row.address == l4("0.0.0.0:30990")).unwrap();
    assert_eq!(row.status, Status::Refused);
    assert!(
        row.error.as_ref().unwrap().contains("nodelb itself listens on port 30990, as admin.listen specifies"),
        "{row:?}"
    );
}
