use nodelb_core::change::Change;
use nodelb_core::model::addr::{Addr, Family, Protocol};
use nodelb_core::model::cause::Cause;
use nodelb_core::model::service::{FrontendKind, FrontendSpec, Service, ServiceName, ServicePort, Source};

use super::*;
use crate::world::{World, backends, slice_of};

/// What the journal contains about the services of a round with these changes.
fn said(world: &mut World, changes: impl IntoIterator<Item = Change>) -> Vec<String> {
    changes.into_iter().for_each(|change| world.engine.change(change));
    let round = world.engine.reconcile(&mut world.maps, world.now);
    round.compiled.iter().map(|service| Applied { service, events: &round.events }.to_string()).collect()
}

#[test]
fn the_journal_says_what_became_of_each_service() {
    let mut world = World::new(5);
    let own = backends(4)[0];
    let other = |last: u8| -> Addr { format!("10.250.0.{last}").parse().unwrap() };
    let one = said(&mut world, [slice_of(4, [other(1)])]);
    assert_eq!(one, [format!("production/service-00004 changed (+10.250.0.1:8080/TCP -{own}:8080/TCP)")]);
    let many = said(&mut world, [slice_of(4, (1..=7).map(other))]);
    let shown = "+10.250.0.2:8080/TCP +10.250.0.3:8080/TCP +10.250.0.4:8080/TCP +10.250.0.5:8080/TCP";
    assert_eq!(many, [format!("production/service-00004 changed ({shown} and 2 more)")]);
    let name: ServiceName = "production/service-00004".parse().unwrap();
    let gone = said(&mut world, [Change::RemoveService(name, Source::Kubernetes)]);
    assert!(gone[0].starts_with("production/service-00004 removed (-10.250.0.1:8080/TCP "), "{gone:?}");
}

/// Found as: the journal said of an own address that it was added, while nodelb refused to serve it.
#[test]
fn a_refused_address_is_not_applied_in_the_journal_and_is_named_after_a_start() {
    let mut world = World::new(1);
    let name: ServiceName = "shop/own".parse().unwrap();
    let frontend = FrontendSpec { addr: Addr::LOOPBACK_V4, port: 80, kind: FrontendKind::ClusterIP };
    let port = ServicePort { name: "".into(), protocol: Protocol::Tcp, frontends: vec![frontend] };
    let service = Service { ports: vec![port], ..Service::new(name, Source::Kubernetes) };
    let lines = said(&mut world, [Change::UpsertService(service)]);
    assert_eq!(lines, ["shop/own added, not served at 1 address"]);
    let after: Vec<String> = refused(&world.engine.snapshot(world.now)).collect();
    assert!(after.len() == 1 && after[0].starts_with("shop/own is not served at 127.0.0.1:80/TCP: "), "{after:?}");
}

#[test]
fn services_found_at_the_start_are_only_named() {
    let service = CompiledService { name: "shop/web".parse().unwrap(), what: None };
    assert_eq!(Applied { service: &service, events: &[] }.to_string(), "shop/web");
}

#[test]
fn a_service_of_which_every_backend_failed_has_a_line() {
    let key = Arc::new(PortKey {
        service: "shop/web".parse().unwrap(),
        port: "http".into(),
        protocol: Protocol::Tcp,
        family: Family::Ipv4,
    });
    let event = |what| Event::for_port(&key, Some(Source::Files), what, Cause::default());
    let events = [event(What::Changed), event(What::LastResort), event(What::Recovered)];
    let lines: Vec<String> = last_resorts(&events).map(|(_, text)| text).collect();
    let expected = "every backend failed its health check, and all of them are used as a last resort";
    assert_eq!(lines, [format!("{key}: {expected}")]);
}
