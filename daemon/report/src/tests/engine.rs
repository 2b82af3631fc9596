//! What reports contain about states that only an engine can reach.

use std::collections::BTreeSet;

use crate::filter::Filter;
use nodelb_core::change::Change;
use nodelb_core::compile::guard::Guard;
use nodelb_core::compile::select::Choice;
use nodelb_core::config::{EngineConfig, PacketsConfig};
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};
use nodelb_core::model::uplink::Translation;
use nodelb_core::state::entries::MapOp;
use nodelb_core::state::status::Status;

use crate::explain::reports;
use crate::explain::rows::OutsideAccess::{Draining, NoSourceRange, NodeOnly, Off, Refused, Served};
use crate::rows::described;

#[path = "../../../../tests/dump.rs"]
mod dump;
#[path = "engine/nodeaddrs.rs"]
mod nodeaddrs;
#[path = "../../../core/src/tests/engine/rig.rs"]
mod rig;

use dump::dump;
use rig::{
    LIMITS, ON, ROOM, backends, engine_on, engine_with, exposed, l4, name, new_pair, service, serving, slice, synced,
};

#[test]
fn the_older_service_owns_an_address_and_the_other_takes_over() {
    let (mut engine, mut datapath) = new_pair();
    let mut young = service("a/young", "198.51.100.10:80/TCP");
    young.created = Some(200);
    let mut old = service("b/old", "198.51.100.10:80/TCP");
    old.created = Some(100);
    for service in [young, old] {
        let full = service.name.to_string();
        engine.change(Change::UpsertSlice(slice(&full, &full, &["192.0.2.1:80/TCP"])));
        engine.change(Change::UpsertService(service));
    }
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    let rows = reports::frontends(&engine.snapshot(Moment(0)), &Filter::default());
    let seen: Vec<_> = rows.iter().map(|row| (row.service.to_string(), row.status)).collect();
    assert_eq!(seen, [("b/old".into(), Status::Ok), ("a/young".into(), Status::Conflict)]);
    assert!(rows[1].error.as_ref().is_some_and(|error| error.contains("owned by b/old")), "{rows:?}");

    engine.change(Change::RemoveService(name("b/old"), Source::Files));
    engine.reconcile(&mut datapath, Moment(1));
    let rows = reports::frontends(&engine.snapshot(Moment(1)), &Filter::default());
    assert_eq!((rows.len(), rows[0].service.to_string(), rows[0].status), (1, "a/young".into(), Status::Ok));
}

#[test]
fn reports_say_whether_outside_clients_are_served() {
    let access = |packets: PacketsConfig, ranges: Option<&[&str]>| {
        let mut datapath = MemoryDatapath::new(ROOM);
        let mut engine = engine_on(&datapath, packets);
        engine.change(Change::UpsertService(exposed(ranges)));
        backends(&mut engine);
        engine.change(synced());
        engine.reconcile(&mut datapath, Moment(0));
        let snapshot = engine.snapshot(Moment(0));
        let rows = reports::frontends(&snapshot, &Filter::default());
        let of = |kind| {
            let mut found: Vec<_> = rows.iter().filter(|row| row.kind == kind).map(|row| row.outside).collect();
            found.dedup();
            found
        };
        let service = described::services(&snapshot, &Filter::default()).next().unwrap().outside;
        (of(FrontendKind::ClusterIP), of(FrontendKind::LoadBalancer), of(FrontendKind::ExternalIP), service)
    };
    assert_eq!(access(ON, None), (vec![NodeOnly], vec![Served], vec![Served, Refused], Served.to_string()));
    let only_v6 = access(ON, Some(&["2001:db8::/32"]));
    assert_eq!(only_v6.1, [NoSourceRange], "the address is IPv4");
    let off = PacketsConfig { is_on: false, ..ON };
    assert_eq!(access(off, None), (vec![Off], vec![Off], vec![Off], Off.to_string()));
}

#[test]
fn no_client_outside_is_served_while_nodelb_drains_or_its_programs_are_off() {
    let mut datapath = MemoryDatapath::new(ROOM);
    let mut engine = engine_on(&datapath, ON);
    engine.change(Change::UpsertService(exposed(None)));
    backends(&mut engine);
    engine.change(synced());
    for (translation, expected) in [
        (Translation::On, Served),
        (Translation::Draining, Draining),
        (Translation::Off, Off),
        (Translation::On, Served),
    ] {
        engine.change(Change::Translation(translation));
        engine.reconcile(&mut datapath, Moment(0));
        let rows = reports::frontends(&engine.snapshot(Moment(0)), &Filter::default());
        let of = |kind| rows.iter().find(|row| row.kind == kind).unwrap().outside;
        assert_eq!(of(FrontendKind::LoadBalancer), expected, "{translation:?}");
        assert_eq!(of(FrontendKind::ClusterIP), NodeOnly, "{translation:?}");
    }
}

#[test]
fn reports_contain_the_backends_of_a_frontend() {
    let (engine, _) = serving("shop/web", "198.51.100.10:80/TCP", &["192.0.2.1:80/TCP", "192.0.2.2:80/TCP"]);
    let rows = reports::frontends(&engine.snapshot(Moment(0)), &Filter::default());
    assert_eq!(rows.iter().map(|row| (row.status, row.backends.len())).collect::<Vec<_>>(), [(Status::Ok, 2)]);
}

#[test]
fn reports_contain_the_error_of_a_health_check_port() {
    let (mut engine, _) = serving("shop/web", "198.51.100.10:80/TCP", &["192.0.2.1:80/TCP"]);
    let error =
        |engine: &Engine| described::services(&engine.snapshot(Moment(1)), &Filter::default()).next().unwrap().error;
    engine.change(Change::HealthCheckPortError(Some(name("shop/web")), Some("in use".into())));
    assert_eq!(error(&engine).as_deref(), Some("in use"));
    engine.change(Change::HealthCheckPortError(Some(name("shop/web")), None));
    assert_eq!(error(&engine), None);
}

#[test]
fn reports_contain_held_backends_with_their_origin() {
    let (full, address) = ("a/proxy", "192.0.2.1:6443/TCP");
    let mut datapath = MemoryDatapath::new(LIMITS);
    let config = EngineConfig {
        sources: BTreeSet::from([Source::Kubernetes]),
        max_services: LIMITS.services,
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(config, datapath.dump().expect("memory can be read"));
    let reported = |backends: &[&str]| {
        let origin = Origin { object: format!("EndpointSlice {full}").into(), ..Origin::default() };
        Change::UpsertSlice(Slice { source: Source::Kubernetes, origin, ..slice(full, full, backends) })
    };
    let apiserver = l4(address);
    for change in [
        reported(&[address]),
        Change::UpsertService(Service { source: Source::Kubernetes, ..service(full, "198.51.100.2:443/TCP") }),
        Change::Synced { source: Source::Kubernetes, incomplete: None },
        Change::Apiservers([(apiserver.addr, apiserver.port)].into()),
    ] {
        engine.change(change);
    }
    engine.reconcile(&mut datapath, Moment(0));
    engine.change(reported(&[]));
    engine.reconcile(&mut datapath, Moment(1));
    let snapshot = engine.snapshot(Moment(1));
    let rows = reports::backends(&snapshot, &Filter::default());
    let shown: Vec<_> = rows.iter().map(|row| (row.address, row.choice, &*row.origin)).collect();
    assert_eq!(shown, [(apiserver, Choice::Held, "EndpointSlice a/proxy")]);
    assert_eq!(described::services(&snapshot, &Filter::default()).next().unwrap().status, Status::Held);
}
