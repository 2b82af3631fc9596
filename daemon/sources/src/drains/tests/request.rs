use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{L4Addr, Protocol};
use nodelb_core::model::health_check::HealthCheck;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Origin, Service, ServicePort, Slice, SliceName, SlicePort,
    Source, TrafficPolicy,
};

use super::*;

const LIMITS: Limits = Limits { frontends: 64, services: 32, slots: 128, affinity: 16, outside: 0, source_ranges: 0 };

/// An owner with maps in memory and one source.
pub(in crate::drains) struct Owner {
    engine: Engine,
    maps: MemoryDatapath,
}

impl Owner {
    /// With the service shop/web, which has these backends in these states.
    pub(in crate::drains) fn with(backends: &[(&str, BackendState)]) -> Self {
        let backend = |(text, state): &(&str, BackendState)| Backend { state: *state, ..backend_at(text) };
        Self::of(described(), backends.iter().map(backend).collect())
    }

    fn of(service: Service, backends: Vec<Backend>) -> Self {
        let config = EngineConfig { sources: [Source::Files].into(), max_services: 32, ..EngineConfig::default() };
        let mut owner = Self { engine: Engine::new(config, Default::default()), maps: MemoryDatapath::new(LIMITS) };
        let node = NodeFacts { name: "here".into(), ..NodeFacts::default() };
        owner.send([
            Change::Node(node),
            Change::UpsertService(service),
            listed(backends),
            Change::Synced { source: Source::Files, incomplete: None },
        ]);
        owner
    }

    pub(in crate::drains) fn send(&mut self, changes: impl IntoIterator<Item = Change>) -> Snapshot {
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.engine.reconcile(&mut self.maps, Moment(1));
        self.engine.snapshot(Moment(1))
    }
}

fn described() -> Service {
    let at: L4Addr = "198.51.100.10:80".parse().unwrap();
    let frontends = vec![FrontendSpec { addr: at.addr, port: at.port, kind: FrontendKind::Static }];
    let ports = vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, frontends }];
    Service { ports, ..Service::new(web(), Source::Files) }
}

fn listed(backends: Vec<Backend>) -> Change {
    Change::UpsertSlice(Slice {
        name: SliceName::new("shop", "web"),
        service: web(),
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    })
}

fn backend_at(text: &str) -> Backend {
    let at: L4Addr = text.parse().unwrap();
    Backend::new(at.addr, at.port)
}

fn web() -> ServiceName {
    ServiceName::new("shop", "web")
}

fn backend(text: &str) -> Drained {
    text.parse().unwrap()
}

fn drain() -> Drain {
    Drain { by: "root".into(), since: 1, until: None }
}

fn wanted(snapshot: &Snapshot, all: &All, service: &str, text: &str, is_forced: bool) -> Result<Drains, Refusal> {
    let service: ServiceName = service.parse().unwrap();
    let then = with_drains(snapshot, all, (std::slice::from_ref(&service), backend(text)), (&drain(), is_forced))?;
    Ok(then[&service].clone())
}

const THREE: [(&str, BackendState); 3] = [
    ("192.0.2.11:8080", BackendState::Active),
    ("192.0.2.11:8081", BackendState::NotReady),
    ("192.0.2.12:8080", BackendState::Active),
];

#[test]
fn what_does_not_exist_is_named_with_what_is_near() {
    let snapshot = Owner::with(&THREE).send([]);
    for (service, text, expected) in [
        ("shop/wbe", "192.0.2.11:8080", "there is no service shop/wbe; did you mean shop/web?"),
        ("a/b", "192.0.2.11:8080", "there is no service a/b; see `nodelb services`"),
        (
            "shop/web",
            "192.0.2.11:80",
            "shop/web has no backend 192.0.2.11:80; did you mean 192.0.2.11:8080, 192.0.2.11:8081?",
        ),
        ("shop/web", "192.0.2.1:8080", "shop/web has no backend 192.0.2.1:8080; did you mean 192.0.2.11:8080?"),
        (
            "shop/web",
            "203.0.113.77",
            "shop/web has no backend 203.0.113.77; it has 192.0.2.11:8080, 192.0.2.11:8081, 192.0.2.12:8080",
        ),
    ] {
        let refusal = wanted(&snapshot, &All::new(), service, text, true).unwrap_err();
        assert_eq!(refusal, Refusal::Unknown(expected.into()));
    }
}

#[test]
fn the_last_healthy_backend_is_drained_only_by_force() {
    let mut owner = Owner::with(&THREE);
    let snapshot = owner.send([]);
    let drains = wanted(&snapshot, &All::new(), "shop/web", "192.0.2.11", false).unwrap();
    let snapshot = owner.send([Change::Drains(web(), drains.clone(), None)]);
    let all = All::from([(web(), drains)]);
    let refusal = wanted(&snapshot, &all, "shop/web", "192.0.2.12:8080", false).unwrap_err();
    let by = "drained by root until nodelb undrain";
    let expected = format!(
        "192.0.2.12:8080 is the last healthy backend of shop/web on http/TCP/IPv4 (192.0.2.11:8080/TCP is Maintenance, \
         {by}, 192.0.2.11:8081/TCP is NotReady, {by}); drain it nevertheless with --force"
    );
    assert_eq!(refusal, Refusal::Refused(expected));
    assert_eq!(wanted(&snapshot, &all, "shop/web", "192.0.2.12:8080", true).unwrap().len(), 2);
    // A drain of a backend that gets nothing anyway loses nothing.
    assert!(wanted(&snapshot, &All::new(), "shop/web", "192.0.2.11:8081", false).is_ok());
}

#[test]
fn the_number_of_drains_is_bounded() {
    let snapshot = Owner::with(&THREE).send([]);
    let others = (0..MAX_DRAINS).map(|number| (backend(&format!("192.0.3.1:{}", number + 1)), drain()));
    let mut all = All::from([("shop/other".parse().unwrap(), others.collect())]);
    let refusal = wanted(&snapshot, &all, "shop/web", "192.0.2.11", false).unwrap_err();
    assert!(matches!(refusal, Refusal::Refused(text) if text.starts_with("1024 backends are drained already")));
    // A drain that is there is replaced.
    all.values_mut().for_each(|drains| drop(drains.pop_first()));
    all.insert(web(), [(backend("192.0.2.11"), drain())].into());
    assert!(wanted(&snapshot, &all, "shop/web", "192.0.2.11", false).is_ok());
}

#[test]
fn only_a_drain_ends() {
    let all = All::from([(web(), [(backend("192.0.2.11"), drain())].into())]);
    let undrained = |service: &str, text: &str| without_drain(&all, (&service.parse().unwrap(), backend(text)));
    assert_eq!(undrained("shop/web", "192.0.2.11"), Ok((Drains::new(), drain())));
    let texts = [("shop/web", "192.0.2.11:8080"), ("shop/api", "192.0.2.11"), ("shop/api", "192.0.2.12")].map(
        |(service, text)| match undrained(service, text) {
            Err(Refusal::Unknown(text)) => text,
            other => format!("{other:?}"),
        },
    );
    let expected = [
        "192.0.2.11:8080 of shop/web is not drained; drained: 192.0.2.11",
        "192.0.2.11 of shop/api is not drained; it is drained for shop/web",
        "192.0.2.12 of shop/api is not drained",
    ];
    assert_eq!(texts, expected);
}

/// A service in last resort serves, and nothing of it counts as healthy.
#[test]
fn the_last_backend_in_last_resort_is_drained_only_by_force() {
    let check = HealthCheck { last_resort: true, ..HealthCheck::default() };
    let service = Service { health_check: Some(Arc::new(check)), ..described() };
    let backends = ["192.0.2.31:8080", "192.0.2.32:8080"];
    let mut owner = Owner::of(service, backends.map(backend_at).into());
    let failed = backends.map(|text| ((backend_at(text).addr, 8080), "status 404, expected 200-399".into()));
    let snapshot = owner.send([Change::Quarantine(web(), failed.into())]);
    let drains = wanted(&snapshot, &All::new(), "shop/web", backends[0], false).unwrap();
    let snapshot = owner.send([Change::Drains(web(), drains.clone(), None)]);
    let all = All::from([(web(), drains)]);
    let Refusal::Refused(text) = wanted(&snapshot, &all, "shop/web", backends[1], false).unwrap_err() else { panic!() };
    assert!(text.starts_with("192.0.2.32:8080 is the last backend of shop/web on http/TCP/IPv4 (192.0.2.31"), "{text}");
    assert!(wanted(&snapshot, &all, "shop/web", backends[1], true).is_ok());
}

#[test]
fn the_last_backend_on_this_node_is_drained_only_by_force_if_a_policy_is_local() {
    let (here, elsewhere) = ("192.0.2.41:8080", "203.0.113.42:8080");
    let on = |node: &str, text| Backend { node: Some(node.into()), ..backend_at(text) };
    let backends = || vec![on("here", here), on("other", elsewhere)];
    for (internal_policy, external_policy) in [
        (TrafficPolicy::Local, TrafficPolicy::Cluster),
        (TrafficPolicy::Cluster, TrafficPolicy::Local),
        (TrafficPolicy::Cluster, TrafficPolicy::Cluster),
    ] {
        let mut service = Service { internal_policy, external_policy, ..described() };
        for (port, kind) in [(80, FrontendKind::ClusterIP), (80, FrontendKind::LoadBalancer)] {
            let addr = format!("198.51.100.{}", if kind == FrontendKind::ClusterIP { 30 } else { 31 });
            service.ports[0].frontends.push(FrontendSpec { addr: addr.parse().unwrap(), port, kind });
        }
        let snapshot = Owner::of(service, backends()).send([]);
        let answer = wanted(&snapshot, &All::new(), "shop/web", here, false);
        if internal_policy == external_policy {
            assert!(answer.is_ok(), "clients may use any node: {answer:?}");
        } else {
            let text = "is the last healthy backend of shop/web on http/TCP/IPv4 on this node;";
            assert!(matches!(&answer, Err(Refusal::Refused(refusal)) if refusal.contains(text)), "{answer:?}");
        }
        assert!(wanted(&snapshot, &All::new(), "shop/web", here, true).is_ok());
        assert!(wanted(&snapshot, &All::new(), "shop/web", elsewhere, false).is_ok());
    }
}

/// The backend would get every connection, and be shown as drained.
#[test]
fn what_nodelb_would_use_nevertheless_is_not_drained() {
    let backends = ["192.0.2.11:8080", "192.0.2.12:8080"];
    let mut owner = Owner::of(described(), backends.map(backend_at).into());
    let apiserver = [(backend_at(backends[0]).addr, 8080)].into();
    let snapshot = owner.send([Change::Apiservers(apiserver)]);
    let drains = wanted(&snapshot, &All::new(), "shop/web", backends[0], false).unwrap();
    assert_eq!(drains.len(), 1, "the other one is used");

    // The only backend of a service that reaches an apiserver: and when it is held.
    for backends in [vec![backend_at(backends[0])], Vec::new()] {
        let snapshot = owner.send([listed(backends)]);
        let refusal = wanted(&snapshot, &All::new(), "shop/web", "192.0.2.11:8080", true).unwrap_err();
        let text = "192.0.2.11:8080 cannot be drained, not even with --force: without it, shop/web has no backend, and";
        assert!(matches!(&refusal, Refusal::Refused(refusal) if refusal.starts_with(text)), "{refusal:?}");
    }
}
