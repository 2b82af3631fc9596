//! Engines with maps in memory, for the tests of the core and of nodelb-report. The module above imports the types.

#![allow(dead_code, reason = "each of the two packages uses a part")]

use super::*;

pub(super) const LIMITS: Limits =
    Limits { frontends: 64, services: 32, slots: 128, affinity: 16, outside: 0, source_ranges: 0 };

pub(super) fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

pub(super) fn name(text: &str) -> ServiceName {
    text.parse().expect("valid in a test")
}

pub(super) fn service(full: &str, frontend: &str) -> Service {
    let address = l4(frontend);
    Service {
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: address.protocol,
            frontends: vec![FrontendSpec { addr: address.addr, port: address.port, kind: FrontendKind::Static }],
        }],
        ..Service::new(name(full), Source::Files)
    }
}

pub(super) fn slice(full: &str, slice: &str, backends: &[&str]) -> Slice {
    let service = name(full);
    Slice {
        name: SliceName::new(&service.namespace, slice),
        service,
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            backends: backends.iter().map(|text| Backend::new(l4(text).addr, l4(text).port)).collect(),
        }],
        problem: None,
    }
}

pub(super) fn engine_with(datapath: &MemoryDatapath) -> Engine {
    let config = EngineConfig {
        packets: PacketsConfig { direct_return: true, ..PacketsConfig::default() },
        sources: BTreeSet::from([Source::Files]),
        max_services: datapath.limits().services,
        ..EngineConfig::default()
    };
    Engine::new(config, datapath.dump().expect("memory can be read"))
}

pub(super) fn new_pair() -> (Engine, MemoryDatapath) {
    let datapath = MemoryDatapath::new(LIMITS);
    (engine_with(&datapath), datapath)
}

/// Reports a service, and its only slice `a`.
pub(super) fn upsert(engine: &mut Engine, full: &str, frontend: &str, backends: &[&str]) {
    engine.change(Change::UpsertService(service(full, frontend)));
    engine.change(Change::UpsertSlice(slice(full, "a", backends)));
}

/// Reports a service with one backend, and its only slice, which has its name: one of several.
pub(super) fn describe(engine: &mut Engine, full: &str, frontend: &str) {
    engine.change(Change::UpsertService(service(full, frontend)));
    engine.change(Change::UpsertSlice(slice(full, &name(full).name, &["192.0.2.1:80/TCP"])));
}

/// Maps with this service, and the engine that has written them.
pub(super) fn serving(full: &str, frontend: &str, backends: &[&str]) -> (Engine, MemoryDatapath) {
    let (mut engine, mut datapath) = new_pair();
    upsert(&mut engine, full, frontend, backends);
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    (engine, datapath)
}

/// Maps in which exactly the next operations that `fails` selects fail.
pub(super) fn failing(fails: impl Fn(&MapOp) -> bool + Send + 'static) -> MemoryDatapath {
    MemoryDatapath::new(LIMITS).with_fault(Box::new(move |op| fails(op)))
}

pub(super) fn synced() -> Change {
    Change::Synced { source: Source::Files, incomplete: None }
}

pub(super) fn text(engine: &Engine, datapath: &MemoryDatapath) -> String {
    let snapshot = engine.snapshot(Moment(0));
    dump(&datapath.dump().expect("memory can be read"), |id| snapshot.service_of(id))
        .lines()
        .filter(|line| !line.contains("canary"))
        .map(|line| format!("{line}\n"))
        .collect()
}

pub(super) const ROOM: Limits = Limits { slots: 10_000, outside: 16, source_ranges: 16, ..LIMITS };
pub(super) const ON: PacketsConfig =
    PacketsConfig { is_on: true, cluster_ips: false, is_consistent: true, direct_return: true };

pub(super) fn engine_on(datapath: &MemoryDatapath, packets: PacketsConfig) -> Engine {
    let guard = Guard { external_ips: vec!["198.51.100.0/24".parse().expect("a network")], ..Guard::default() };
    let (sources, max_services) = (BTreeSet::from([Source::Files]), datapath.limits().services);
    let config = EngineConfig { sources, guard, max_services, packets, ..EngineConfig::default() };
    Engine::new(config, datapath.dump().expect("memory can be read"))
}

/// A service with an address of every kind; one is refused.
pub(super) fn exposed(ranges: Option<&[&str]>) -> Service {
    let address = |text: &str, kind| FrontendSpec { addr: l4(text).addr, port: l4(text).port, kind };
    let frontends = vec![
        address("10.96.0.1:80", FrontendKind::ClusterIP),
        FrontendSpec { addr: l4("0.0.0.0:1").addr, port: 30_080, kind: FrontendKind::NodePort },
        address("198.51.100.1:80", FrontendKind::LoadBalancer),
        address("198.51.100.2:80", FrontendKind::ExternalIP),
        address("203.0.113.2:80", FrontendKind::ExternalIP),
    ];
    let source_ranges = ranges.map(|texts| texts.iter().map(|text| text.parse().expect("a network")).collect());
    let ports = vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, frontends }];
    Service { ports, source_ranges, ..Service::new(name("shop/web"), Source::Files) }
}

pub(super) fn backends(engine: &mut Engine) {
    engine.change(Change::UpsertSlice(slice("shop/web", "a", &["192.0.2.1:8080", "192.0.2.2:8080"])));
}
