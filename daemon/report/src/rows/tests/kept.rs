use nodelb_core::state::status::Status;

use super::*;
use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, PortKey, Service, ServicePort, Slice, SliceName, SlicePort, Source,
};

const LIMITS: Limits = Limits { frontends: 9, services: 9, slots: 30, affinity: 4, outside: 0, source_ranges: 0 };

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

/// A node that served `shop/web` at two addresses before the start, with these sources now.
fn snapshot(now: Source) -> Snapshot {
    restarted(now, false)
}

/// The same, and whether the previous run has stored the names of the ports.
fn restarted(now: Source, is_named: bool) -> Snapshot {
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 8, ..EngineConfig::default() };
    let (mut maps, [first, second]) = (MemoryDatapath::new(LIMITS), ["198.51.100.1:80", "198.51.100.2:80"].map(l4));
    let spec = |at: L4Addr| FrontendSpec { addr: at.addr, port: at.port, kind: FrontendKind::Static };
    let port =
        ServicePort { name: "http".into(), protocol: first.protocol, frontends: vec![spec(first), spec(second)] };
    let service = Service { ports: vec![port], ..Service::new("shop/web".parse().unwrap(), Source::Files) };
    let backends = ["192.0.2.1:8080", "192.0.2.2:8080"].map(l4).map(|at| Backend::new(at.addr, at.port)).into();
    let slice = Slice {
        name: SliceName::new("shop", "web"),
        service: service.name.clone(),
        source: Source::Files,
        origin: Default::default(),
        ports: vec![SlicePort { name: "http".into(), protocol: first.protocol, backends }],
        problem: None,
    };
    let mut before = Engine::new(config.clone(), Default::default());
    [
        Change::UpsertService(service),
        Change::UpsertSlice(slice),
        Change::Synced { source: Source::Files, incomplete: None },
    ]
    .into_iter()
    .for_each(|it| before.change(it));
    before.reconcile(&mut maps, Moment(0));
    let mut after = Engine::new(EngineConfig { sources: [now].into(), ..config }, maps.dump().unwrap());
    let names = before.snapshot(Moment(0));
    after.recall_ports(names.port_names().filter(|_| is_named).map(|port| PortKey::clone(port)));
    let incomplete = (now == Source::Files).then(|| "a.toml cannot be used".into());
    after.change(Change::Synced { source: now, incomplete });
    after.reconcile(&mut maps, Moment(0));
    after.snapshot(Moment(0))
}

/// Otherwise `nodelb diagnose` of a service that works says that there is none.
#[test]
fn a_kept_service_has_the_name_that_the_previous_run_has_stored() {
    let snapshot = restarted(Source::Files, true);
    for (name, number) in [("shop/web", 2), ("shop/other", 0)] {
        let filter = Filter::for_service(&name.parse().unwrap());
        let found: Vec<FrontendRow> = frontends(&snapshot, &filter, Clocks::default()).collect();
        let names: Vec<Option<&str>> = found.iter().map(|row| row.service.as_deref()).collect();
        assert_eq!(names, vec![Some(name); number]);
        let services = services(&snapshot, &filter);
        let names: Vec<Option<&str>> = services.iter().map(|row| row.service.as_deref()).collect();
        assert_eq!(names, vec![Some(name); number / 2]);
    }
}

#[test]
fn a_kept_service_is_in_every_list() {
    let snapshot = snapshot(Source::Files);
    let all = Filter::default();
    let why = "in use as before the start, until nodelb has read everything from files: a.toml cannot be used";
    let found: Vec<FrontendRow> = frontends(&snapshot, &all, Clocks::default()).collect();
    let at: Vec<L4Addr> = found.iter().map(|row| row.address).collect();
    assert_eq!((at, found[0].error.as_deref()), (vec![l4("198.51.100.1:80"), l4("198.51.100.2:80")], Some(why)));
    let [service] = &services(&snapshot, &all)[..] else { panic!("one service port") };
    assert_eq!((service.service.as_deref(), &*service.source, service.status), (None, "files", Status::Kept));
    assert_eq!(
        (service.frontends, service.backends, service.selectable, &service.ports[..]),
        (2, 2, 2, &["80/TCP".into()][..])
    );
    let found = backends(&snapshot, &all);
    let at: Vec<L4Addr> = found.iter().map(|row| row.address).collect();
    assert_eq!(at, [l4("192.0.2.1:8080"), l4("192.0.2.2:8080")]);
}

#[test]
fn what_a_source_had_that_is_not_configured_is_in_every_list() {
    let snapshot = snapshot(Source::Kubernetes);
    let why = Some("in use as before the start, because files is no longer configured");
    let found: Vec<FrontendRow> = frontends(&snapshot, &Filter::default(), Clocks::default()).collect();
    assert_eq!((found.len(), found[0].status, found[0].error.as_deref()), (2, Status::Kept, why));
    assert_eq!(services(&snapshot, &Filter::default()).len(), 1);
    assert_eq!(backends(&snapshot, &Filter::default()).len(), 2);
}

#[test]
fn a_filter_by_name_finds_none() {
    let snapshot = snapshot(Source::Files);
    let named = Filter::for_service(&"shop/web".parse().unwrap());
    let of_namespace = Filter { namespace: Some("shop".into()), ..Filter::default() };
    for filter in [named, of_namespace, Filter { status: Some(Status::Ok), ..Filter::default() }] {
        assert_eq!(
            (frontends(&snapshot, &filter, Clocks::default()).count(), services(&snapshot, &filter)),
            (0, Vec::new()),
            "{filter:?}"
        );
    }
    let other = Filter { address: Some(l4("192.0.2.2:1").addr), ..Filter::default() };
    assert_eq!(backends(&snapshot, &other).len(), 1, "the address of a backend");
}
