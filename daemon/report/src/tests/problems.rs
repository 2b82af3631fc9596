use std::sync::Arc;

use super::{
    ApiserverState, DroppedPackets, HOOKS, Observed, Problem, Reason, Reloads, Severity, TableUsage, Untranslated,
    is_ready, problems,
};
use crate::check::Check;
use crate::explain::reports;
use crate::explain::summary::Summary;
use crate::filter::Filter;
use crate::rows::described;
use crate::time::{Clocks, Time};
use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::Engine;
use nodelb_core::history::{Event, History, Kernel, Record, Stamp, What};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Family, L4Addr, Protocol};
use nodelb_core::model::cause::{Cause, HOLD_ENDED};
use nodelb_core::model::drain::Drain;
use nodelb_core::model::health_check::{HealthCheck, Method};
use nodelb_core::model::ipsec::Policies;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::{NodeFacts, NodeObject};
use nodelb_core::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Origin, PortKey, Service, ServiceName, ServicePort, Slice,
    SliceName, SlicePort, Source, TrafficPolicy,
};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_core::state::entries::MapState;
use nodelb_core::state::status::Status;

const LIMITS: Limits = Limits { frontends: 9, services: 9, slots: 30, affinity: 4, outside: 0, source_ranges: 0 };
/// The time of day of the first moment.
const START: u64 = 1_000_000_000;

/// A node with maps in memory, and its clock.
struct Node {
    engine: Engine,
    maps: MemoryDatapath,
    now: Moment,
}

impl Node {
    fn new() -> Self {
        Self::with(LIMITS)
    }

    fn with(limits: Limits) -> Self {
        Self::configured(limits, &[])
    }

    fn configured(limits: Limits, unchecked: &[Source]) -> Self {
        let mut node = Self::started(limits, unchecked);
        node.send([Source::Files, Source::Kubernetes].map(|source| Change::Synced { source, incomplete: None }));
        node
    }

    /// No source has reported everything yet.
    fn started(limits: Limits, unchecked: &[Source]) -> Self {
        Self::started_with(limits, unchecked, MapState::default())
    }

    /// The maps contain this.
    fn started_with(limits: Limits, unchecked: &[Source], content: MapState) -> Self {
        let config = EngineConfig {
            sources: [Source::Files, Source::Kubernetes].into(),
            unchecked_sources: unchecked.iter().copied().collect(),
            max_services: 8,
            ..EngineConfig::default()
        };
        Self { engine: Engine::new(config, content), maps: MemoryDatapath::new(limits), now: Moment(0) }
    }

    /// Sends the changes a minute after the previous ones.
    fn send(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.now = self.now.plus(60_000);
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.engine.reconcile(&mut self.maps, self.now);
    }

    fn observed(&self) -> Observed {
        let snapshot = self.engine.snapshot(self.now);
        Observed {
            clocks: Clocks { moment: self.now, time: Time(START + self.now.0) },
            summary: Arc::new(Summary::new(&snapshot)),
            snapshot: Arc::new(snapshot),
            ..Observed::default()
        }
    }

    fn problems(&self) -> Vec<Problem> {
        problems(&self.observed())
    }
}

fn service(name: &str, frontend: &str) -> Service {
    let address: L4Addr = frontend.parse().unwrap();
    let frontends = vec![FrontendSpec { addr: address.addr, port: address.port, kind: FrontendKind::Static }];
    let ports = vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, frontends }];
    Service { ports, ..Service::new(name.parse().unwrap(), Source::Files) }
}

fn slice(name: &str, backends: &[&str]) -> Change {
    let service: ServiceName = name.parse().unwrap();
    let backends = backends.iter().map(|backend| {
        let address: L4Addr = backend.parse().unwrap();
        Backend::new(address.addr, address.port)
    });
    let ports = vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, backends: backends.collect() }];
    let origin = Origin {
        object: format!("EndpointSlice {name}").into(),
        writer: "bob".into(),
        resource_version: "15".into(),
        ..Origin::default()
    };
    let name = SliceName::new(&service.namespace, &service.name);
    Change::UpsertSlice(Slice { name, service, source: Source::Files, origin, ports, problem: None })
}

fn only(problems: &[Problem]) -> &Problem {
    let [problem] = problems else { panic!("one problem is expected: {problems:#?}") };
    problem
}

#[test]
fn a_good_node_has_no_problem() {
    let mut node = Node::new();
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80")), slice("shop/web", &["192.0.2.1:80"])]);
    assert_eq!(node.problems(), []);
}

#[test]
fn the_end_of_a_hold_is_named_once() {
    let mut node = Node::new();
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80")), slice("shop/web", &["192.0.2.1:80"])]);
    let Change::UpsertSlice(mut emptied) = slice("shop/web", &[]) else { panic!("a slice") };
    emptied.origin.object = format!("{HOLD_ENDED} (5s) of DNS A record of web.example").into();
    emptied.problem = Some("NXDOMAIN".into());
    emptied.ports.clear();
    node.send([Change::UpsertSlice(emptied)]);
    let cause = "no usable backend: the end of dns.hold (5s) of DNS A record of web.example: NXDOMAIN";
    assert_eq!(only(&node.problems()).cause, cause);
}

/// A DNS server that is down was one row for each service.
#[test]
fn services_without_an_answer_of_dns_servers_are_one_problem() {
    let mut node = Node::new();
    for (name, address) in [("shop/a", "198.51.100.1:80"), ("shop/b", "198.51.100.2:80")] {
        node.send([Change::UpsertService(service(name, address)), slice(name, &BOTH)]);
    }
    let mut fail = |backends: &[&str]| {
        let slices = ["shop/a", "shop/b"].map(|name| {
            let Change::UpsertSlice(mut slice) = slice(name, backends) else { panic!("a slice") };
            slice.origin.object = format!("DNS A record of {name}.example").into();
            slice.problem = Some("192.0.2.53:53 answers SERVFAIL".into());
            slice.ports.retain(|port| !port.backends.is_empty());
            Change::UpsertSlice(slice)
        });
        node.send(slices);
        let found = node.problems();
        let Problem { reason, object, cause, command, services, .. } = only(&found).clone();
        assert_eq!(
            (&*object, &*command, &*services),
            ("DNS names", "nodelb dns", &["shop/a".into(), "shop/b".into()][..])
        );
        (reason, cause)
    };
    let cause = |what: &str| format!("2 services: {what}: 192.0.2.53:53 answers SERVFAIL: shop/a, shop/b");
    assert_eq!(fail(&BOTH), (Reason::Held, cause("held")));
    assert_eq!(fail(&[]), (Reason::NoBackends, cause("no usable backend")));
}

#[test]
fn a_service_that_lost_its_last_backend_is_critical_and_names_the_writer() {
    let mut node = Node::new();
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80")), slice("shop/web", &["192.0.2.1:80"])]);
    node.send([slice("shop/web", &[])]);
    let emptied = node.now;
    node.now = node.now.plus(3_000);
    let found = node.problems();
    let problem = only(&found);
    assert_eq!((problem.severity, problem.reason), (Severity::Critical, Reason::NoBackends));
    assert_eq!(problem.cause, "no usable backend: EndpointSlice shop/web emptied by bob (resourceVersion 15)");
    assert_eq!(problem.since, Some(Time(START + emptied.0)));
    assert_eq!(problem.command, "nodelb diagnose shop/web");
    node.send([slice("shop/web", &["192.0.2.1:80"])]);
    assert_eq!(node.problems(), []);
}

/// A restart reads the empty list again, but who emptied it is in the history.
#[test]
fn who_emptied_a_service_is_known_after_a_restart() {
    let mut node = Node::new();
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80")), slice("shop/web", &["192.0.2.1:80"])]);
    let emptied = node.now.plus(60_000);
    node.engine.change(slice("shop/web", &[]));
    let mut events = node.engine.reconcile(&mut node.maps, emptied).events.into_iter();
    let event = events.find(|event| event.what == What::Emptied).unwrap();
    let mut history = History::default();
    let record = history.add(event, Stamp { at: START + emptied.0, to_kernel: 1 });
    let mut node = Node::new();
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80")), slice("shop/web", &[])]);
    let cause = |at: u64| {
        let mut history = History::default();
        history.restore(Record { at, ..Record::clone(&record) });
        let observed = Observed { history: Arc::new(history), ..node.observed() };
        only(&problems(&observed)).cause.clone()
    };
    let since = node.observed().clocks.time.0;
    assert_eq!(cause(since), "no usable backend: EndpointSlice shop/web emptied by bob (resourceVersion 15)");
    assert!(cause(since - 60_000).starts_with("no usable backend: none since"));
}

#[test]
fn severity_is_what_new_connections_get() {
    let mut node = Node::new();
    let never = service("shop/web", "198.51.100.1:80");
    node.send([Change::UpsertService(never.clone())]);
    let found = node.problems();
    assert_eq!((only(&found).severity, only(&found).reason), (Severity::Critical, Reason::NoBackends));
    // Another port of it has a backend.
    let mut partly = never;
    partly.ports.push(ServicePort { name: "other".into(), ..service("shop/web", "198.51.100.1:81").ports[0].clone() });
    let Change::UpsertSlice(mut backends) = slice("shop/web", &["192.0.2.1:80"]) else { panic!("a slice") };
    backends.ports[0].name = "other".into();
    node.send([Change::UpsertService(partly), Change::UpsertSlice(backends)]);
    let found = node.problems();
    assert_eq!((only(&found).severity, only(&found).reason), (Severity::Warning, Reason::NoBackends));
    // Another service has its only address.
    let second = Service { created: Some(9), ..service("shop/second", "198.51.100.1:81") };
    node.send([Change::UpsertService(second), slice("shop/second", &["192.0.2.1:80"])]);
    let found = node.problems();
    let conflict = found.iter().find(|problem| problem.object == "shop/second").unwrap();
    assert_eq!((conflict.severity, conflict.reason), (Severity::Critical, Reason::Conflict));
}

#[test]
fn backends_that_are_not_ready_or_have_another_port_are_named() {
    let mut node = Node::new();
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80")), slice("shop/web", &["192.0.2.1:80"])]);
    let Change::UpsertSlice(good) = slice("shop/web", &["192.0.2.1:80", "192.0.2.2:80"]) else { panic!("a slice") };
    let mut unready = good.clone();
    unready.ports[0].backends.iter_mut().for_each(|backend| backend.state = BackendState::NotReady);
    node.send([Change::UpsertSlice(unready)]);
    let by = ", since EndpointSlice shop/web was changed by bob (resourceVersion 15)";
    let expected = format!("no usable backend: none of its 2 backends is ready{by}");
    assert_eq!(only(&node.problems()).cause, expected);
    let mut renamed = good;
    renamed.ports[0].name = "web".into();
    node.send([Change::UpsertSlice(renamed)]);
    let expected = format!("no usable backend: its slices have no port http, but web{by}");
    assert_eq!(only(&node.problems()).cause, expected);
}

#[test]
fn a_removed_service_has_no_problem() {
    let mut node = Node::new();
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80"))]);
    node.send([Change::RemoveService("shop/web".parse().unwrap(), Source::Files)]);
    assert_eq!(node.problems(), []);
}

#[test]
fn failed_health_checks_are_shown_for_some_backends_and_for_all() {
    let mut node = Node::new();
    let checked = |last_resort| Service {
        health_check: Some(HealthCheck { last_resort, ..HealthCheck::default() }.into()),
        ..service("shop/web", "198.51.100.1:80")
    };
    node.send([Change::UpsertService(checked(true)), slice("shop/web", &BOTH), failed(&BOTH[..1])]);
    let found = node.problems();
    assert_eq!(only(&found).reason, Reason::BackendsQuarantined);
    let cause = "1 of 2 backends failed their health checks: 192.0.2.1:80/TCP: connection refused";
    assert_eq!(only(&found).cause, cause);
    node.send([failed(&BOTH)]);
    let found = node.problems();
    assert_eq!((only(&found).reason, only(&found).severity), (Reason::LastResort, Severity::Critical));
    node.send([Change::UpsertService(checked(false))]);
    let found = node.problems();
    assert_eq!((only(&found).reason, only(&found).severity), (Reason::NoBackends, Severity::Critical));
    assert!(only(&found).cause.contains("2 backends failed their health checks"), "{found:#?}");
}

/// A wrong check made a service critical although all its clients were served. By HTTP, a backend that accepts connections
/// may still fail, and what was accepted before the checks failed says nothing.
#[test]
fn a_last_resort_by_which_clients_are_served_is_a_warning() {
    let found = |method: Method, is_after: bool| {
        let mut node = Node::new();
        let check = Some(HealthCheck { method, ..HealthCheck::default() }.into());
        let checked = Service { health_check: check, ..service("shop/web", "198.51.100.1:80") };
        node.send([Change::UpsertService(checked), slice("shop/web", &BOTH)]);
        node.send([failed(&BOTH)]);
        let observed = node.observed();
        let (id, _) = observed.snapshot.owners.get_min().cloned().unwrap();
        let begun = if is_after { node.now } else { Moment(node.now.0 - 1) };
        let accepted = Arc::new([(id, begun)].into());
        let found = problems(&Observed { accepted, ..observed });
        let problem = only(&found);
        assert_eq!(problem.reason, Reason::LastResort);
        let why = "last resort: 2 backends failed their health checks: 192.0.2.1:80/TCP: connection refused";
        (
            problem.severity,
            problem.cause.split_once("; ").map(|(_, but)| but.to_owned()),
            problem.cause.starts_with(why),
        )
    };
    let http = Method::Http { path: "/".into(), host: None, status: 200..=399 };
    let but = |text: &str| Some(text.to_owned());
    let right = but("but clients outside the node are connected: is the check right?");
    assert_eq!(found(Method::Tcp, true), (Severity::Warning, right, true));
    assert_eq!(found(Method::Tcp, false), (Severity::Critical, None, true));
    assert_eq!(found(http, true), (Severity::Critical, but("clients outside the node are connected"), true));
}

/// The drain of a host with twelve services was ten rows and "2 more".
#[test]
fn the_drain_of_a_host_is_one_notice_with_its_services() {
    let mut node = Node::new();
    for (name, frontend) in [("shop/a", "198.51.100.1:80"), ("shop/b", "198.51.100.2:80")] {
        let drain = Drain { by: "root".into(), since: 1_000_000, until: None };
        let drains = [("192.0.2.1".parse().unwrap(), drain)].into();
        node.send([
            Change::UpsertService(service(name, frontend)),
            slice(name, &["192.0.2.1:80", "192.0.2.2:80"]),
            Change::Drains(name.parse().unwrap(), drains, None),
        ]);
    }
    let found = node.problems();
    let problem = only(&found);
    assert_eq!((problem.reason, &*problem.object), (Reason::BackendsDrained, "192.0.2.1"));
    assert_eq!(problem.cause, "2 services: drained by root until nodelb undrain: shop/a, shop/b");
    assert_eq!(problem.command, "nodelb backends 192.0.2.1");
}

#[test]
fn a_drain_is_a_notice_with_its_author_and_end_while_another_backend_is_left() {
    let mut node = Node::new();
    let both = ["192.0.2.1:80", "192.0.2.2:80"];
    let drains = |backends: &[&str]| {
        let drain = Drain { by: "root (login alice)".into(), since: 1_000_000, until: Some(1_003_600) };
        let drains = backends.iter().map(|backend| (backend.parse().unwrap(), drain.clone())).collect();
        Change::Drains("shop/web".parse().unwrap(), drains, None)
    };
    node.send([
        Change::UpsertService(service("shop/web", "198.51.100.1:80")),
        slice("shop/web", &both),
        drains(&both[..1]),
    ]);
    let found = node.problems();
    let problem = only(&found);
    assert_eq!((problem.severity, problem.reason), (Severity::Notice, Reason::BackendsDrained));
    let drained = "drained by root (login alice) until 1970-01-12T14:46:40Z";
    assert_eq!(problem.cause, format!("192.0.2.1:80 is {drained}"));
    assert_eq!(problem.since, Some(Time::from_seconds(1_000_000)));
    let observed = node.observed();
    assert_eq!(observed.summary.counts.backends_by_state[&BackendState::Maintenance], 1);
    let rows = reports::backends(&observed.snapshot, &Filter::default());
    assert_eq!(rows.iter().map(|row| row.choice.to_string()).collect::<Vec<_>>(), ["Maintenance", "Selected"]);
    assert_eq!(rows[0].reason.as_deref(), Some(drained));
    let frontends = reports::frontends(&observed.snapshot, &Filter::default());
    assert_eq!(frontends[0].flags, ["Drained=1"]);

    node.send([drains(&both)]);
    let reasons: Vec<Reason> = node.problems().iter().map(|problem| problem.reason).collect();
    assert_eq!(reasons, [Reason::NoBackends, Reason::BackendsDrained]);
    let cause = format!("no usable backend: 2 backends not used: 192.0.2.1:80/TCP is {drained} (and 1 more)");
    assert_eq!(node.problems()[0].cause, cause);
    // A drain outlives its service, and is shown.
    node.send([Change::RemoveService("shop/web".parse().unwrap(), Source::Files)]);
    assert_eq!(only(&node.problems()).cause, format!("192.0.2.1:80 is {drained} (and 1 more)"));
    node.send([drains(&[])]);
    assert_eq!(node.problems(), []);
}

/// The list of backends said Maintenance, the summary Active.
#[test]
fn a_backend_of_weight_0_is_counted_as_it_is_listed() {
    let mut node = Node::new();
    let Change::UpsertSlice(mut slice) = slice("shop/web", &["192.0.2.1:80", "192.0.2.2:80"]) else { panic!() };
    slice.ports[0].backends[0].weight = 0;
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80")), Change::UpsertSlice(slice)]);
    let observed = node.observed();
    let listed: Vec<_> = reports::backends(&observed.snapshot, &Filter::default()).iter().map(|it| it.state).collect();
    assert_eq!(listed, [BackendState::Maintenance, BackendState::Active]);
    let counts = &observed.summary.counts.backends_by_state;
    assert_eq!((counts[&BackendState::Maintenance], counts[&BackendState::Active]), (1, 1));
}

/// With the switch off, the row of the service shows it, and nothing else does.
#[test]
fn health_checks_that_cannot_be_made_are_a_problem_only_if_the_source_is_checked() {
    let error = "its backends are not checked: annotation x: `y` is not a check";
    let asking = |error: Option<&str>| Service {
        source: Source::Kubernetes,
        health_check: error.is_none().then(|| HealthCheck::default().into()),
        health_check_error: error.map(|error| Arc::new(error.to_owned())),
        ..service("shop/web", "198.51.100.1:80")
    };
    let slice = Change::UpsertSlice(match slice("shop/web", &["192.0.2.1:80"]) {
        Change::UpsertSlice(slice) => Slice { source: Source::Kubernetes, ..slice },
        _ => unreachable!(),
    });
    let row = |node: &mut Node| {
        let snapshot = node.engine.snapshot(node.now);
        let flags = reports::frontends(&snapshot, &Filter::default()).remove(0).flags;
        (described::services(&snapshot, &Filter::default()).next().unwrap().error, flags)
    };

    let mut node = Node::new();
    node.send([slice.clone(), Change::UpsertService(asking(Some(error)))]);
    let found = node.problems();
    assert_eq!((only(&found).reason, &*only(&found).cause), (Reason::HealthCheckInvalid, error));
    assert_eq!(row(&mut node), (Some(error.into()), vec![]));
    node.send([Change::UpsertService(asking(None))]);
    assert_eq!((node.problems(), row(&mut node)), (vec![], (None, vec!["HealthCheck".to_owned()])));

    let mut node = Node::configured(LIMITS, &[Source::Kubernetes]);
    for asking in [asking(Some(error)), asking(None)] {
        node.send([slice.clone(), Change::UpsertService(asking)]);
        assert_eq!(node.problems(), []);
        let (notice, flags) = row(&mut node);
        assert!(notice.unwrap().contains("kubernetes.health-checks is false; set it to true") && flags.is_empty());
    }
}

#[test]
fn conflicts_and_services_that_two_sources_describe_are_shown() {
    let mut node = Node::new();
    let cluster = Service { source: Source::Kubernetes, created: Some(1), ..service("shop/web", "198.51.100.2:80") };
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80")), slice("shop/web", &["192.0.2.1:80"])]);
    node.send([
        Change::UpsertService(service("shop/thief", "198.51.100.1:80")),
        slice("shop/thief", &["192.0.2.1:80"]),
        Change::UpsertService(cluster),
    ]);
    let found = node.problems();
    let seen: Vec<_> = found.iter().map(|it| (it.reason, it.object.as_str())).collect();
    assert_eq!(seen, [(Reason::Conflict, "shop/thief"), (Reason::Conflict, "shop/web")], "{found:#?}");
    assert!(found[1].cause.contains("a local file takes precedence over Kubernetes"), "{found:#?}");
}

#[test]
fn an_entry_that_the_maps_do_not_accept_is_critical() {
    let mut node = Node::with(Limits { slots: 1, ..LIMITS });
    let backends = ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80"];
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80")), slice("shop/web", &backends)]);
    let found = node.problems();
    assert_eq!((only(&found).reason, only(&found).severity), (Reason::ReconcileFailing, Severity::Critical));
    assert!(only(&found).cause.contains("map slots is full"), "{found:#?}");
}

#[test]
fn a_full_map_is_one_problem_however_many_services_it_concerns() {
    let mut node = Node::with(Limits { services: 2, ..LIMITS });
    let add = |n: u32| {
        let name = format!("shop/s{n}");
        [Change::UpsertService(service(&name, &format!("198.51.100.{n}:80"))), slice(&name, &["192.0.2.1:80"])]
    };
    node.send(add(1).into_iter().chain(add(2)));
    let found = node.problems();
    let one = only(&found);
    assert_eq!((one.object.as_str(), one.command.as_str()), ("shop/s2", "nodelb diff"));
    node.send(add(3).into_iter().chain(add(4)));
    let found = node.problems();
    let one = only(&found);
    assert_eq!((one.object.as_str(), one.severity), ("map services", Severity::Critical));
    assert_eq!(one.command, "nodelb frontends --status Refused");
    let start = "3 addresses of 3 services are not served: map services is full (2 entries): raise";
    assert!(one.cause.starts_with(start), "{found:#?}");
}

/// The advice for an address of keepalived would have ended a node-local DNS cache, and ServiceLB of k3s.
#[test]
fn an_address_that_a_process_of_the_node_is_meant_to_have_is_a_notice() {
    let own = ["10.96.0.10", "192.0.2.1", "198.51.100.7"].map(|it| it.parse().unwrap());
    let facts =
        NodeFacts { name: "node".into(), addresses: own.into(), primary: [own[1]].into(), ..NodeFacts::default() };
    let found = |frontend: &str, kind| {
        let mut node = Node::new();
        let mut web = service("shop/web", frontend);
        web.ports[0].frontends[0].kind = kind;
        node.send([Change::Node(facts.clone()), Change::UpsertService(web), slice("shop/web", &["203.0.113.11:80"])]);
        let found = problems(&node.observed());
        (only(&found).reason, only(&found).severity, only(&found).cause.contains("datapath.own-addresses"))
    };
    let (refused, notice) = (Reason::Refused, Severity::Notice);
    assert_eq!(found("10.96.0.10:53", FrontendKind::ClusterIP), (refused, notice, false), "a node-local cache");
    assert_eq!(found("192.0.2.1:80", FrontendKind::LoadBalancer), (refused, notice, false), "ServiceLB");
    let of_keepalived = found("198.51.100.7:80", FrontendKind::LoadBalancer);
    assert_eq!(of_keepalived, (refused, Severity::Critical, true));
}

#[test]
fn a_policy_without_a_backend_on_this_node_is_critical() {
    let mut node = Node::new();
    let local = Service { internal_policy: TrafficPolicy::Local, ..service("shop/web", "198.51.100.1:80") };
    node.send([Change::UpsertService(local), slice("shop/web", &["192.0.2.1:80"])]);
    let found = node.problems();
    assert_eq!((only(&found).reason, only(&found).severity), (Reason::NoLocalBackend, Severity::Critical));
}

#[test]
fn last_resort_is_a_problem_before_the_source_has_reported_everything() {
    let mut node = Node::started(LIMITS, &[]);
    let check = Some(HealthCheck { last_resort: true, ..HealthCheck::default() }.into());
    let checked = Service { health_check: check, ..service("shop/web", "198.51.100.1:80") };
    node.send([Change::UpsertService(checked), slice("shop/web", &BOTH[..1]), failed(&BOTH[..1])]);
    let found = node.problems();
    assert!(found.iter().any(|problem| problem.reason == Reason::LastResort), "{found:#?}");
}

/// A service of which clients on this node get the backends on this node alone.
fn local(last_resort: bool) -> Change {
    let check = Some(HealthCheck { last_resort, ..HealthCheck::default() }.into());
    let service = service("shop/web", "198.51.100.1:80");
    Change::UpsertService(Service { internal_policy: TrafficPolicy::Local, health_check: check, ..service })
}

/// The first backend is on this node, the other one is not.
fn of_two_nodes(backends: &[&str]) -> Change {
    let Change::UpsertSlice(mut slice) = slice("shop/web", backends) else { panic!("a slice") };
    slice.ports[0].backends.iter_mut().filter(|it| it.addr.to_string() == "192.0.2.1").for_each(|backend| {
        backend.node = Some("".into());
    });
    Change::UpsertSlice(slice)
}

fn failed(backends: &[&str]) -> Change {
    let failures = backends.iter().map(|it| it.parse::<L4Addr>().unwrap());
    let failures = failures.map(|it| ((it.addr, it.port), "connection refused".into()));
    Change::Quarantine("shop/web".parse().unwrap(), failures.collect())
}

const BOTH: [&str; 2] = ["192.0.2.1:80", "192.0.2.2:80"];

/// Found as: refused since the creation of the service, and after that OK since then.
#[test]
fn no_backend_on_this_node_has_the_time_of_its_beginning_and_of_its_end() {
    let at: L4Addr = "198.51.100.1:80".parse().unwrap();
    let mut node = Node::new();
    node.send([local(true), of_two_nodes(&BOTH)]);
    assert_eq!(node.problems(), []);
    node.send([of_two_nodes(&BOTH[1..])]);
    let (begun, found) = (Some(Time(START + node.now.0)), node.problems());
    assert_eq!((only(&found).reason, only(&found).since), (Reason::NoLocalBackend, begun));
    node.send([of_two_nodes(&BOTH)]);
    let snapshot = node.engine.snapshot(node.now);
    let status = snapshot.status_of(&snapshot.rows[&at], 0, at);
    assert_eq!((status.status, status.since), (Status::Ok, node.now));
}

/// Found as: OK, while every connection of the node went to the only backend there, which failed its health checks.
#[test]
fn a_last_resort_of_the_backends_on_this_node_is_one_although_others_are_healthy() {
    let mut node = Node::new();
    node.send([local(true), of_two_nodes(&BOTH)]);
    node.send([failed(&BOTH[..1])]);
    let (begun, found) = (Some(Time(START + node.now.0)), node.problems());
    let problem = found.iter().find(|it| it.reason == Reason::LastResort).expect("a last resort");
    assert_eq!((problem.severity, problem.since), (Severity::Critical, begun), "{found:#?}");
    node.send([failed(&[])]);
    assert_eq!(node.problems(), []);
}

/// Found as: critical and refused, while all clients had the previous backends.
#[test]
fn a_change_that_the_maps_do_not_accept_is_critical_only_if_connections_are_lost() {
    let mut node = Node::with(Limits { slots: 3, ..LIMITS });
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80")), slice("shop/web", &BOTH[..1])]);
    assert_eq!(node.problems(), []);
    node.send([slice("shop/web", &["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80", "192.0.2.4:80"])]);
    let found = node.problems();
    assert_eq!(
        (only(&found).reason, only(&found).severity),
        (Reason::ReconcileFailing, Severity::Warning),
        "{found:#?}"
    );
}

/// Found as: held, and a warning, while every connection went to a backend that failed its health checks.
#[test]
fn a_held_list_of_which_every_backend_failed_is_a_last_resort() {
    let mut node = Node::new();
    let check = Some(HealthCheck::default().into());
    let checked = Service { health_check: check, ..service("shop/web", "198.51.100.1:80") };
    let Change::UpsertSlice(mut held) = slice("shop/web", &BOTH) else { panic!("a slice") };
    held.problem = Some("SERVFAIL".into());
    node.send([Change::UpsertService(checked), slice("shop/web", &BOTH)]);
    node.send([Change::UpsertSlice(held), failed(&BOTH)]);
    node.send([]);
    let found = node.problems();
    let problem = found.iter().find(|it| it.reason == Reason::LastResort).expect("a last resort");
    assert_eq!(problem.severity, Severity::Critical, "{found:#?}");
}

/// Found as: kept, and the backends "are not used", while the maps had no others.
#[test]
fn a_list_from_earlier_starts_of_which_every_backend_failed_is_a_last_resort() {
    let mut node = Node::new();
    let check = Some(HealthCheck { last_resort: false, ..HealthCheck::default() }.into());
    let checked = Service { health_check: check, ..service("shop/web", "198.51.100.1:80") };
    let described = [Change::UpsertService(checked), slice("shop/web", &BOTH)];
    node.send(described.clone());
    let maps = node.maps.dump().unwrap();
    node = Node { maps: node.maps, ..Node::started_with(LIMITS, &[], maps) };
    node.send(described.into_iter().chain([failed(&BOTH)]));
    let found = node.problems();
    let problem = found.iter().find(|it| it.reason == Reason::LastResort).expect("a last resort");
    assert_eq!(problem.severity, Severity::Critical, "{found:#?}");
    let snapshot = node.engine.snapshot(node.now);
    let rows: Vec<_> = reports::frontends(&snapshot, &Filter::default()).into_iter().collect();
    assert_eq!((rows[0].status, rows[0].backends.len()), (Status::LastResort, 2), "{rows:#?}");
    assert!(rows[0].flags.contains(&"LastResort".to_owned()), "{rows:#?}");
}

/// Connections are refused, although the list of all nodes is used as a last resort.
#[test]
fn a_last_resort_without_a_backend_on_this_node_is_none() {
    let mut node = Node::new();
    node.send([local(true), slice("shop/web", &BOTH[..1]), failed(&BOTH[..1])]);
    let found = node.problems();
    assert!(found.iter().any(|problem| problem.reason == Reason::NoLocalBackend), "{found:#?}");
}

/// Clients reach the backends of another service, which had the address before the start.
#[test]
fn a_service_that_waits_for_an_address_in_use_is_pending_and_not_without_backends() {
    const AT: &str = "198.51.100.1:80";
    let mut node = Node::new();
    let api = Service { source: Source::Kubernetes, created: Some(1), ..service("shop/api", AT) };
    let Change::UpsertSlice(list) = slice("shop/api", &["192.0.2.1:80"]) else { panic!("a slice") };
    let list = Slice { source: Source::Kubernetes, ..list };
    let kubernetes = [Change::UpsertService(api), Change::UpsertSlice(list)];
    node.send(kubernetes.clone());
    let config = EngineConfig {
        sources: [Source::Files, Source::Kubernetes].into(),
        max_services: 8,
        ..EngineConfig::default()
    };
    node.engine = Engine::new(config, node.maps.dump().unwrap());
    let synced = Change::Synced { source: Source::Files, incomplete: None };
    node.send(kubernetes.into_iter().chain([Change::UpsertService(service("shop/file", AT)), synced]));
    node.send([]);
    let of_file: Vec<_> = node.problems().into_iter().filter(|problem| problem.object == "shop/file").collect();
    assert_eq!((only(&of_file).reason, only(&of_file).severity), (Reason::Pending, Severity::Warning), "{of_file:#?}");
}

#[test]
fn a_missing_apiserver_explains_why_nothing_is_synced() {
    let engine = Engine::new(
        EngineConfig { sources: [Source::Kubernetes].into(), ..EngineConfig::default() },
        MapState::default(),
    );
    let why = "kubeconfig /etc/nodelb/kubeconfig cannot be read";
    let observed = Observed {
        snapshot: Arc::new(engine.snapshot(Moment(0))),
        checks: vec![Check::failed("reconcile", "waiting for the initial sync of: kubernetes")],
        apiserver: Some(ApiserverState { problem: Some(why.into()), ..ApiserverState::default() }),
        ..Observed::default()
    };
    let found = problems(&observed);
    let problem = only(&found);
    assert_eq!((problem.reason, problem.blocks_readiness), (Reason::NoApiserver, true));
    assert!(problem.cause.ends_with(why), "{problem:#?}");
    assert!(!is_ready(&observed.checks));
}

#[test]
fn nothing_that_has_not_been_tried_yet_has_failed() {
    let engine = Engine::new(
        EngineConfig { sources: [Source::Kubernetes].into(), ..EngineConfig::default() },
        MapState::default(),
    );
    let watch = |state, problems: &[&str]| SourceReport {
        source: Source::Kubernetes,
        path: "services".into(),
        kind: Some("services"),
        state,
        services: 0,
        slices: 0,
        content: None,
        notices: vec!["waiting for an apiserver".into()],
        problems: problems.iter().map(ToString::to_string).collect(),
        since: 7,
        last_received: None,
    };
    let reasons = |apiserver: ApiserverState, sources: Vec<SourceReport>| {
        let snapshot = Arc::new(engine.snapshot(Moment(0)));
        let sources = sources.into_iter().map(Arc::new).collect();
        let found = problems(&Observed { snapshot, apiserver: Some(apiserver), sources, ..Observed::default() });
        found.into_iter().map(|problem| problem.reason).collect::<Vec<_>>()
    };
    let waiting = || vec![watch(SourceState::Error, &[])];
    let connected = || ApiserverState { in_use: Some("192.0.2.1:6443".into()), ..ApiserverState::default() };
    assert_eq!(reasons(ApiserverState::default(), waiting()), [], "the first attempt is in progress");
    assert_eq!(reasons(connected(), waiting()), [], "the first list is in progress");
    assert_eq!(reasons(connected(), vec![watch(SourceState::LastGood, &[])]), [], "as after a restart");
    let failed = ApiserverState { problem: Some("connection refused".into()), ..ApiserverState::default() };
    let lost = ApiserverState { last_response: Some(Time(7)), lost: Some(Time(9)), ..ApiserverState::default() };
    assert_eq!(reasons(failed, waiting()), [Reason::NoApiserver]);
    assert_eq!(reasons(lost, waiting()), [Reason::NoApiserver]);
    assert_eq!(reasons(connected(), vec![watch(SourceState::Error, &["403"])]), [Reason::SourceFailing]);
}

/// An idle watch receives nothing for a minute: the age of the last response is not that of the problem.
#[test]
fn there_is_no_api_server_since_the_last_connection_ended() {
    let lost = ApiserverState { last_response: Some(Time(7)), lost: Some(Time(60_007)), ..ApiserverState::default() };
    let found = problems(&Observed { apiserver: Some(lost), ..Node::new().observed() });
    assert_eq!((only(&found).reason, only(&found).since), (Reason::NoApiserver, Some(Time(60_007))));
}

/// The wall clock was set an hour ahead, or back: watches were stale that were not, and the reverse.
#[test]
fn the_age_of_what_a_watch_received_does_not_follow_the_wall_clock() {
    let report = |source, kind: &'static str| SourceReport {
        source,
        path: kind.into(),
        kind: Some(kind),
        state: SourceState::Ok,
        services: 0,
        slices: 0,
        content: None,
        notices: Vec::new(),
        problems: Vec::new(),
        since: 7,
        last_received: Some(Moment(60_000)),
    };
    let rows = [report(Source::Kubernetes, "services"), report(Source::Files, "directory")].map(Arc::new);
    let found = |moment, time| {
        let clocks = Clocks { moment: Moment(moment), time: Time(time) };
        let apiserver = Some(ApiserverState { in_use: Some("192.0.2.1:6443".into()), ..ApiserverState::default() });
        problems(&Observed { clocks, sources: rows.to_vec(), apiserver, ..Node::new().observed() })
    };
    assert_eq!(found(90_000, START + 3_600_000), []);
    let stale = found(660_001, START);
    let shown: Vec<_> = stale.iter().map(|it| (it.reason, &*it.command, it.since)).collect();
    let since = Some(Time(START - 600_001));
    let expected = [("nodelb sources", since), ("nodelb apiservers", since)];
    assert_eq!(shown, expected.map(|(command, since)| (Reason::WatchStale, command, since)));
}

#[test]
fn credentials_that_would_be_refused_at_the_next_connect_are_a_problem() {
    let why = "the new credentials do not work, and the connection in use keeps the previous ones: 401";
    let state = ApiserverState {
        in_use: Some("192.0.2.1:6443".into()),
        not_renewed: Some((Time(7), why.into())),
        ..ApiserverState::default()
    };
    let found = problems(&Observed { apiserver: Some(state), ..Node::new().observed() });
    let Problem { reason, severity, since, cause, .. } = only(&found);
    assert_eq!((*reason, *severity, *since), (Reason::CredentialsRefused, Severity::Warning, Some(Time(7))));
    assert_eq!(cause, why);
}

#[test]
fn files_that_are_not_served_are_shown_with_their_first_problem() {
    let report = |path: &str, state, problems: &[&str]| SourceReport {
        source: Source::Files,
        path: path.into(),
        kind: None,
        state,
        services: 0,
        slices: 0,
        content: None,
        notices: Vec::new(),
        problems: problems.iter().map(ToString::to_string).collect(),
        since: 7,
        last_received: None,
    };
    let sources = vec![
        report("/etc/nodelb/services.d/good.toml", SourceState::Ok, &[]),
        report("/etc/nodelb/services.d/more.toml", SourceState::Error, &["line 3: no IPv6 backend", "line 9: x"]),
        // Its typo is why the service has no frontends.
        report("/etc/name.toml", SourceState::Error, &["line 1: x has no frontends", "line 3: x: unknown key `f`"]),
        report("/etc/nodelb/services.d/shop.toml", SourceState::LastGood, &["line 7: unknown key"]),
    ];
    let sources = sources.into_iter().map(Arc::new).collect();
    let found = problems(&Observed { sources, ..Node::new().observed() });
    let seen: Vec<_> = found.iter().map(|it| (it.object.as_str(), it.cause.as_str())).collect();
    let expected = [
        ("more.toml", "not served: line 3: no IPv6 backend (and 1 more)"),
        ("name.toml", "not served: line 3: x: unknown key `f` (and 1 more)"),
        ("shop.toml", "the last valid version is served: line 7: unknown key"),
    ];
    assert_eq!(seen, expected);
    assert!(found.iter().all(|it| it.reason == Reason::FileNotServed && it.since == Some(Time(7_000))));
    let severities: Vec<Severity> = found.iter().map(|it| it.severity).collect();
    assert_eq!(
        severities,
        [Severity::Critical, Severity::Critical, Severity::Warning],
        "nothing of two files is served"
    );
}

#[test]
fn conditions_of_the_node_have_the_time_of_the_first_report() {
    let mut node = Node::new();
    let bound = |ports: &[&str]| {
        Change::Bound(ports.iter().map(|at| (at.parse().unwrap(), "python3 has bound it".into())).collect())
    };
    node.send([Change::NodeObject(None), bound(&["0.0.0.0:30080"])]);
    let first = node.observed().clocks.time;
    node.send([Change::NodeObject(None), bound(&["0.0.0.0:30080", "0.0.0.0:30081"])]);
    let second = node.observed().clocks.time;
    let since = |node: &Node| node.problems().into_iter().map(|it| (it.object, it.since)).collect::<Vec<_>>();
    let port = |port: u16, at| (format!("0.0.0.0:{port}/TCP"), Some(at));
    assert_eq!(since(&node), [("node ".into(), Some(first)), port(30_081, second), port(30_080, first)]);
    node.send([Change::NodeObject(Some(NodeObject::default())), bound(&["0.0.0.0:30081"])]);
    assert_eq!(since(&node), [port(30_081, second)]);
}

#[test]
fn services_without_room_for_their_consistent_choice_are_named() {
    let mut node = Node::new();
    node.send([Change::UpsertService(service("shop/web", "198.51.100.1:80")), slice("shop/web", &["192.0.2.1:80"])]);
    let observed = node.observed();
    let mut snapshot = Snapshot::clone(&observed.snapshot);
    snapshot.ringless = snapshot.owners.keys().map(|id| (*id, 88_usize)).collect();
    let found = problems(&Observed { snapshot: snapshot.into(), ..observed });
    let Problem { reason, object, cause, .. } = only(&found);
    assert_eq!((*reason, &**object), (Reason::NotConsistent, "map slots"));
    assert_eq!(cause, "no room for the consistent choice of shop/web: raise datapath.max-slots and restart nodelb");
}

#[test]
fn the_daemon_reports_its_own_problems_worst_first() {
    let table = |name, used, is_cache| TableUsage {
        name,
        used: Some(used),
        limit: 100,
        key: "datapath.max",
        is_cache,
        full_since: None,
    };
    let mut node = Node::new();
    node.send([Change::NodeObject(None)]);
    let observed = Observed {
        checks: vec![Check::failed("canary", "connected"), Check::passed("reconcile", "done")],
        is_in_memory: true,
        tables: vec![table("slots", 91, false), table("services", 90, false), table("affinity", 100, true)],
        is_reaper_down: true,
        open_files: Some((81, 100)),
        reloads: Reloads { restart: Some((Time(1), vec!["x".into()])), refused: Some((Time(1), "y".into())) }.into(),
        closed_listeners: vec![("127.0.0.1:9890".into(), "in use".into())],
        drops: vec![
            dropped("no-port", node.observed().clocks.time),
            dropped("no-route", Time(0)),
            dropped("ttl", node.observed().clocks.time),
        ],
        unwritten: vec![(Time(5), "/s/a cannot be written: c".into()), (Time(4), "b".into())],
        unread: vec![(Time(3), "/s/d cannot be read: e".into())],
        sweep_failures: 1,
        ..node.observed()
    };
    let found = problems(&observed);
    let of_state = found.iter().find(|it| it.reason == Reason::StateUnwritten).unwrap();
    assert_eq!((&*of_state.cause, of_state.since), ("/s/a cannot be written: c (and 1 more file)", Some(Time(4))));
    let seen: Vec<Reason> = found.iter().map(|it| it.reason).collect();
    let expected = [
        Reason::HooksNotInEffect,
        Reason::NotTranslated,
        Reason::NodeMissing,
        Reason::MapNearlyFull,
        Reason::PacketPortsExhausted,
        Reason::SweepFailing,
        Reason::ReaperDown,
        Reason::FilesShort,
        Reason::StateUnwritten,
        Reason::StateUnread,
        Reason::ConfigRefused,
        Reason::ListenerClosed,
        Reason::RestartPending,
    ];
    assert_eq!(seen, expected);
}

fn dropped(reason: &'static str, last: Time) -> DroppedPackets {
    DroppedPackets { reason, verdict: "dropped", packets: 3, first: last, last }
}

#[test]
fn packets_that_are_not_forwarded_are_a_problem_as_long_as_the_setting_lasts() {
    let node = Node::new();
    let now = node.observed().clocks.time;
    let first = Time(now.0 - 11_000);
    let found = |is_read: bool, first| {
        let drops = vec![DroppedPackets { verdict: "passed", packets: 4, first, ..dropped("no-forwarding", now) }];
        problems(&Observed { drops, not_forwarding: is_read.then(Vec::new), ..node.observed() })
    };
    assert_eq!(found(true, first), [], "it is 1 again");
    let unread = found(false, first);
    let Problem { reason, since, cause, .. } = only(&unread);
    assert_eq!((*reason, *since), (Reason::PacketsNotRouted, Some(first)), "since the first packet");
    assert!(cause.ends_with("is 0 on a device; 4 packets of clients lost"), "{cause}");
    assert_eq!(only(&found(false, Time(now.0 - 3_600_000))).since, None, "there may have been a gap");
}

/// The uplink was down, nothing could be reached, and `nodelb status` found no problem.
#[test]
fn a_node_without_an_address_and_checks_that_cannot_be_sent_are_problems() {
    let mut node = Node::new();
    let facts = |address: &str| NodeFacts {
        name: "node-7".into(),
        addresses: ["127.0.0.1", address].map(|it| it.parse().unwrap()).into(),
        ..NodeFacts::default()
    };
    let web = service("shop/web", "10.96.7.7:80");
    node.send([
        Change::Node(facts("169.254.7.7")),
        Change::UpsertService(web),
        slice("shop/web", &["203.0.113.11:80"]),
    ]);
    let found = problems(&node.observed());
    assert_eq!((only(&found).reason, &*only(&found).object), (Reason::NodeWithoutAddress, "node node-7"));
    node.send([slice("shop/web", &["127.0.0.1:80"])]);
    assert_eq!(problems(&node.observed()), [], "no service needs another machine");
    node.send([Change::Node(facts("192.0.2.1")), slice("shop/web", &["203.0.113.11:80"])]);
    assert_eq!(problems(&node.observed()), []);
    let cut_off = problems(&Observed { is_cut_off: true, ..node.observed() });
    assert_eq!(only(&cut_off).reason, Reason::NodeWithoutAddress, "the address is one towards pods");
    let unsent_checks = Some((Time(START), "health checks could not be sent: network is unreachable".into()));
    let found = problems(&Observed { unsent_checks, ..node.observed() });
    assert_eq!((only(&found).reason, only(&found).since), (Reason::ChecksUnsent, Some(Time(START))));
}

#[test]
fn what_ipsec_protects_is_a_problem() {
    let node = Node::new();
    let now = node.observed().clocks.time;
    let drops = vec![dropped("ipsec", now)];
    let found = problems(&Observed { drops: drops.clone(), ..node.observed() });
    let Problem { reason, cause, .. } = only(&found);
    assert_eq!(*reason, Reason::IpsecProtects);
    let expected = "policies of IPsec protect packets that nodelb cannot encrypt: clients outside the node that they cover are \
                    dropped; 3 packets dropped";
    assert_eq!(cause, expected);
    let policies = Arc::new(Policies { is_cut: true, ..Policies::default() });
    let cut = problems(&Observed { drops, policies, ..node.observed() });
    assert!(only(&cut).cause.starts_with("there are more policies of IPsec than nodelb follows"), "{cut:?}");
    let old = vec![dropped("ipsec", Time(now.0 - 3_600_000))];
    assert_eq!(problems(&Observed { drops: old, ..node.observed() }), []);
}

#[test]
fn services_of_a_source_that_is_no_longer_configured_are_a_problem() {
    let config = EngineConfig {
        sources: [Source::Files].into(),
        previous_sources: [Source::Kubernetes].into(),
        max_services: 8,
        ..EngineConfig::default()
    };
    let mut node =
        Node { engine: Engine::new(config, MapState::default()), maps: MemoryDatapath::new(LIMITS), now: Moment(0) };
    node.send([Change::Synced { source: Source::Files, incomplete: None }]);
    let of_history = |node: &Node, history: &History| {
        reports::absent_sources(&node.engine.snapshot(node.now), history, Time(7_000)).collect::<Vec<_>>()
    };
    let sources = |node: &Node| of_history(node, &History::default());
    assert_eq!(sources(&node), [], "nothing is kept");
    // From the stored state.
    let Change::UpsertSlice(slice) = slice("shop/web", &["192.0.2.1:80"]) else { panic!("a slice") };
    let stored = Service { source: Source::Kubernetes, ..service("shop/web", "198.51.100.1:80") };
    let stored_slice = Slice { source: Source::Kubernetes, ..slice };
    node.send([Change::UpsertService(stored), Change::UpsertSlice(stored_slice)]);
    let shared = |sources: Vec<SourceReport>| sources.into_iter().map(Arc::new).collect();
    let found = problems(&Observed { sources: shared(sources(&node)), ..node.observed() });
    assert_eq!((only(&found).reason, only(&found).since), (Reason::SourceAbsent, Some(Time(7_000))));
    assert!(only(&found).cause.starts_with("no longer configured: 1 service port kept as last known"), "{found:#?}");
    // It was configured at the second start for the last time.
    let (started, synced) = (Event::for_daemon(What::Started, ""), Event::for_daemon(What::Synced, ""));
    let synced = Event { source: Some(Source::Kubernetes), ..synced };
    let mut history = History::default();
    for (at, event) in (1..).zip([&started, &started, &synced, &started, &started]) {
        history.add(event.clone(), Stamp { at: at * 1_000, to_kernel: 0 });
    }
    let found = problems(&Observed { sources: shared(of_history(&node, &history)), ..node.observed() });
    assert_eq!(only(&found).since, Some(Time(4_000)));
}

#[test]
fn a_refused_configuration_is_a_problem_until_one_is_applied() {
    let keys = vec!["datapath.max-slots".to_owned()];
    let mut reloads = Reloads::default().applied(Time(1), keys.clone()).refused(Time(2), "x".into());
    reloads = reloads.refused(Time(3), "line 3: y".into());
    let seen = |reloads: &Reloads| {
        let observed = Observed { reloads: reloads.clone().into(), ..Node::new().observed() };
        problems(&observed).into_iter().map(|it| (it.reason, it.since, it.cause)).collect::<Vec<_>>()
    };
    let why = "not reloaded, and a start with the configuration that was read would fail: line 3: y; when `nodelb \
               check-config` accepts it, `systemctl reload nodelb` loads it";
    let restart = (Reason::RestartPending, Some(Time(1)), "restart needed for: datapath.max-slots".to_owned());
    assert_eq!(seen(&reloads), [(Reason::ConfigRefused, Some(Time(2)), why.to_owned()), restart.clone()]);
    assert_eq!(seen(&reloads.applied(Time(4), keys)), [restart]);
    assert_eq!(seen(&reloads.applied(Time(5), Vec::new())), []);
}

#[test]
fn repaired_hooks_are_not_called_kernel_maps() {
    let mut history = History::default();
    let repaired = Event::for_daemon(What::Repaired, format!("{HOOKS}recreated pins; the programs stayed attached"));
    history.add(repaired, Stamp { at: START, to_kernel: 0 });
    let clocks = Clocks { time: Time(START), ..Clocks::default() };
    let found = problems(&Observed { clocks, history: Arc::new(history), ..Node::new().observed() });
    let Problem { object, cause, .. } = only(&found);
    assert_eq!((&**object, &**cause), ("hooks", "repaired: recreated pins; the programs stayed attached"));
}

#[test]
fn the_recent_history_shows_restarts_changes_by_others_and_slow_changes() {
    let mut history = History::default();
    let now = START;
    for minute in 0..4 {
        history.add(Event::for_daemon(What::Started, ""), Stamp { at: now - minute, to_kernel: 0 });
    }
    history.add(Event::for_daemon(What::Repaired, "frontend x"), Stamp { at: now - 1_000, to_kernel: 0 });
    let observed = |millis| Observed {
        clocks: Clocks { time: Time(now + millis), ..Clocks::default() },
        history: Arc::new(history.clone()),
        ..Node::new().observed()
    };
    let reasons = |millis| problems(&observed(millis)).iter().map(|it| it.reason).collect::<Vec<_>>();
    assert_eq!(reasons(0), [Reason::Restarts, Reason::ExternalChanges]);
    assert_eq!(reasons(20 * 60_000), [Reason::Restarts], "the repair is more than 15 minutes ago");
    assert_eq!(reasons(40 * 60_000), []);
}

/// Thousands of changes of services, one in each namespace, left no start and no repair in the history.
#[test]
fn what_the_daemon_counts_does_not_end_with_many_changes_of_services() {
    let mut history = History::default();
    for _ in 0..4 {
        history.add(Event::for_daemon(What::Started, ""), Stamp { at: START, to_kernel: 0 });
    }
    let of_port = |number: usize, what, cause| {
        let port = PortKey {
            service: ServiceName::new(&format!("n{number}"), "web"),
            port: "".into(),
            protocol: Protocol::Tcp,
            family: Family::Ipv4,
        };
        Event::for_port(&Arc::new(port), Some(Source::Kubernetes), what, cause)
    };
    history.add(of_port(0, What::Repaired, Cause::default()), Stamp { at: START, to_kernel: 0 });
    let slow = Origin { triggered: Some(START - 11_000), ..Origin::default() };
    for number in 0..20_000 {
        let origin = if number < 500 { slow.clone() } else { Origin { triggered: Some(START), ..Origin::default() } };
        let event = of_port(number, What::Changed, Cause { origin, is_removed: false });
        history.add(Event { kernel: Kernel::Done, ..event }, Stamp { at: START, to_kernel: 0 });
    }
    let clocks = Clocks { time: Time(START + 1_000), ..Clocks::default() };
    let found = problems(&Observed { clocks, history: Arc::new(history), ..Node::new().observed() });
    let reasons: Vec<_> = found.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [Reason::ProgrammingSlow, Reason::Restarts, Reason::ExternalChanges]);
    assert!(found[0].cause.starts_with("500 of 20000 changes"), "{}", found[0].cause);
}

/// `systemctl restart nodelb`, three times within half an hour, was reported as a loop of crashes.
#[test]
fn planned_restarts_are_no_loop_of_crashes() {
    let reasons = |whats: &[What]| {
        let mut history = History::default();
        for (minute, what) in (0..).zip(whats) {
            history.add(Event::for_daemon(*what, ""), Stamp { at: START + minute * 60_000, to_kernel: 0 });
        }
        let clocks = Clocks { time: Time(START + 10 * 60_000), ..Clocks::default() };
        let found = problems(&Observed { clocks, history: Arc::new(history), ..Node::new().observed() });
        found.iter().map(|it| it.reason).collect::<Vec<_>>()
    };
    let (start, stop) = (What::Started, What::Stopped);
    assert_eq!(reasons(&[start, stop, start, stop, start, stop, start, stop, start]), []);
    assert_eq!(reasons(&[start, start, stop, start, start, stop, start]), [], "two crashes");
    assert_eq!(reasons(&[start, start, stop, start, start, start]), [Reason::Restarts], "three");
}

#[test]
fn the_catalogue_is_complete() {
    assert_eq!(Reason::ALL.len(), Reason::CATALOGUE.len());
    for reason in Reason::ALL {
        let entry = reason.entry();
        assert_eq!(serde_json::to_value(reason).unwrap(), entry.name);
        assert!(!entry.command.is_empty() && !entry.meaning.ends_with('.'), "{}", entry.name);
    }
}

#[test]
fn a_taken_health_check_port_is_a_notice_while_another_proxy_answers() {
    let mut node = Node::new();
    node.send([Change::HealthCheckPortError(None, Some("another process listens there".into()))]);
    let severity = |has_other_proxy| {
        let found = problems(&Observed { has_other_proxy, ..node.observed() });
        let problem = only(&found);
        assert_eq!(problem.reason, Reason::HealthCheckPortClosed);
        problem.severity
    };
    assert_eq!((severity(true), severity(false)), (Severity::Notice, Severity::Warning));
}

/// Found as: with `packets.mode = "drain"`, all new connections from outside were refused, and status found no problems;
/// the same if no program was attached because it could not be read whether another service proxy is present.
#[test]
fn connections_from_outside_without_a_program_are_a_problem() {
    let found =
        |has_other_proxy: bool, (is_draining, is_of_kubernetes): (bool, bool), serves_outside_from_files: bool| {
            let untranslated = Some(Untranslated { reason: "because".into(), is_draining, is_of_kubernetes });
            let summary = Arc::new(Summary { serves_outside_from_files, ..Summary::default() });
            let found = problems(&Observed { untranslated, has_other_proxy, summary, ..Node::new().observed() });
            assert!(found.iter().all(|it| (it.reason, it.cause.as_str()) == (Reason::OutsideUntranslated, "because")));
            found.first().map(|it| it.severity)
        };
    let (all, draining, of_kubernetes) = ((false, false), (true, false), (true, true));
    assert_eq!(found(false, draining, false), Some(Severity::Warning));
    assert_eq!(found(false, all, false), Some(Severity::Warning));
    assert_eq!(found(true, draining, false), Some(Severity::Notice), "the other proxy has the new ones");
    assert_eq!(found(true, all, false), None);
    assert_eq!(found(true, all, true), Some(Severity::Warning), "no other proxy knows services of files");
    assert_eq!(found(true, of_kubernetes, true), Some(Severity::Notice), "nodelb serves those of files");
}

#[test]
fn a_device_that_only_the_configuration_knows_is_a_notice() {
    let found = |missing_devices: Option<&str>| {
        let missing_devices = missing_devices.map(str::to_owned);
        let found = problems(&Observed { missing_devices, ..Node::new().observed() });
        found.into_iter().map(|it| (it.reason, it.severity, it.cause)).collect::<Vec<_>>()
    };
    assert_eq!(found(Some("no eth1")), [(Reason::DeviceMissing, Severity::Notice, "no eth1".into())]);
    assert_eq!(found(None), []);
}

#[test]
fn pins_that_others_can_change_are_a_warning_and_no_failed_check() {
    let foreign_pins = Some("the pin directory belongs to uid 1000".to_owned());
    let found = problems(&Observed { foreign_pins, ..Node::new().observed() });
    let found: Vec<_> = found.iter().map(|it| (it.reason, it.severity, it.blocks_readiness)).collect();
    assert_eq!(found, [(Reason::PinsNotOwn, Severity::Warning, false)]);
}

#[test]
fn other_software_at_xdp_is_a_notice_because_packets_are_translated_later() {
    let xdp_taken = vec!["XDP is not used on eth0".to_owned()];
    let found = problems(&Observed { xdp_taken, ..Node::new().observed() });
    assert_eq!((only(&found).reason, only(&found).severity), (Reason::XdpTaken, Severity::Notice));
}

#[test]
fn programs_of_others_at_the_hooks_are_a_notice_with_their_order() {
    let found = |first: &[&str], later: &[&str]| {
        let socket_programs = [first, later].map(|names| names.iter().map(ToString::to_string).collect());
        problems(&Observed { socket_programs, ..Node::new().observed() })
    };
    assert_eq!(found(&[], &[]), []);
    let shared = found(&["a (1) at connect4", "b (2) at connect6"], &["c (3) at connect4"]);
    let expected = [
        "programs of other software run before nodelb's: a (1) at connect4, b (2) at connect6; nodelb leaves the \
         addresses that they translate to them",
        "programs of other software run after nodelb's: c (3) at connect4; they see the backends of nodelb's services",
    ];
    assert_eq!(shared.iter().map(|it| it.cause.as_str()).collect::<Vec<_>>(), expected);
    assert!(shared.iter().all(|it| (it.reason, it.severity) == (Reason::HooksShared, Severity::Notice)));
}
