use std::collections::BTreeSet;

use crate::change::Change;
use crate::compile::guard::Guard;
use crate::config::EngineConfig;
use crate::datapath::{Datapath, Limits};
use crate::engine::{Engine, Round};
use crate::history::{Event, Kernel, MAX_SHOWN, What};
use crate::holds::ReleaseReason;
use crate::memory::MemoryDatapath;
use crate::model::addr::{L4Addr, Protocol};
use crate::model::cause::HOLD_ENDED;
use crate::model::drain::{Drain, DrainCause, Drains};
use crate::model::moment::Moment;
use crate::model::node::NodeFacts;
use crate::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};
use crate::state::entries::MapOp;
use crate::state::kernel_check::{Content, EntryKey};
use crate::state::status::Status;

const LIMITS: Limits =
    Limits { frontends: 4_096, services: 4_096, slots: 65_536, affinity: 16, outside: 0, source_ranges: 0 };

/// The address that nodelb listens on in these tests.
const ADMIN: &str = "127.0.0.1:9890";

struct Host {
    engine: Engine,
    datapath: MemoryDatapath,
    now: Moment,
}

impl Host {
    fn new(datapath: MemoryDatapath) -> Self {
        let admin = L4Addr { port: 9890, ..l4(ADMIN) };
        let guard = Guard { admin: [(admin.addr, admin.port)].into(), ..Guard::default() };
        let sources = BTreeSet::from([Source::Files]);
        let config = EngineConfig { guard, sources, max_services: LIMITS.services, ..EngineConfig::default() };
        let engine = Engine::new(config, datapath.dump().expect("memory can be read"));
        Self { engine, datapath, now: Moment(0) }
    }

    /// A synced engine with `shop/web` at 198.51.100.1:80 and these backends.
    fn with_web(backends: &[&str]) -> Self {
        let mut host = Self::new(MemoryDatapath::new(LIMITS));
        let events = host.send([upsert(web()), slice(backends), synced()]).events;
        assert_eq!(whats(&events), [What::Synced]);
        host
    }

    fn send(&mut self, changes: impl IntoIterator<Item = Change>) -> Round {
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.now = self.now.plus(10_000);
        self.engine.reconcile(&mut self.datapath, self.now)
    }
}

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

fn service(full: &str, frontend: &str) -> Service {
    let address = l4(frontend);
    let spec = FrontendSpec { addr: address.addr, port: address.port, kind: FrontendKind::Static };
    let port = ServicePort { name: "http".into(), protocol: address.protocol, frontends: vec![spec] };
    let origin = Origin { object: format!("{full}.toml").into(), ..Origin::default() };
    let name = full.parse().expect("valid in a test");
    Service { ports: vec![port], origin, ..Service::new(name, Source::Files) }
}

fn web() -> Service {
    service("shop/web", "198.51.100.1:80")
}

fn upsert(service: Service) -> Change {
    Change::UpsertService(service)
}

fn slice_of(full: &str, backends: impl IntoIterator<Item = L4Addr>) -> Slice {
    let service: ServiceName = full.parse().expect("valid in a test");
    let backends = backends.into_iter().map(|at| Backend::new(at.addr, at.port)).collect();
    Slice {
        name: SliceName::new(&service.namespace, &service.name),
        service,
        source: Source::Files,
        origin: Origin { object: "a.toml".into(), writer: "writer".into(), ..Origin::default() },
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    }
}

fn slice(backends: &[&str]) -> Change {
    Change::UpsertSlice(slice_of("shop/web", backends.iter().map(|text| l4(text))))
}

fn synced() -> Change {
    Change::Synced { source: Source::Files, incomplete: None }
}

fn whats(events: &[Event]) -> Vec<What> {
    events.iter().map(|event| event.what).collect()
}

fn only(round: Round) -> Event {
    assert_eq!(round.events.len(), 1, "{:#?}", round.events);
    round.events.into_iter().next().expect("there is one")
}

#[test]
fn a_start_is_one_event_however_many_services_there_are() {
    let mut host = Host::new(MemoryDatapath::new(LIMITS));
    let services =
        (0..2_000).map(|n| service(&format!("shop/s{n}"), &format!("198.51.{}.{}:80", n / 250, n % 250 + 1)));
    assert_eq!(host.send(services.map(upsert).collect::<Vec<_>>()).events, []);
    let event = only(host.send([synced()]));
    assert_eq!((event.what, event.source, event.port), (What::Synced, Some(Source::Files), None));
    assert_eq!(event.detail.as_deref(), Some("files: 2000 services at the start"));
}

#[test]
fn a_changed_list_names_added_and_removed_backends_and_the_writer() {
    let mut host = Host::with_web(&["192.0.2.1:80", "192.0.2.2:80"]);
    let event = only(host.send([slice(&["192.0.2.2:80", "192.0.2.3:80", ADMIN])]));
    assert_eq!((event.what, &event.kernel), (What::Changed, &Kernel::Done));
    assert_eq!((event.added.shown, event.removed.shown), (vec![l4("192.0.2.3:80")], vec![l4("192.0.2.1:80")]));
    assert_eq!(event.refused.shown, [l4(ADMIN)]);
    assert_eq!((&*event.cause.origin.object, &*event.cause.origin.writer), ("a.toml", "writer"));
    let event = only(host.send([slice(&[])]));
    assert_eq!((event.what, event.removed.shown.len()), (What::Emptied, 2));
}

#[test]
fn a_change_without_effect_is_not_an_event() {
    let mut host = Host::with_web(&["192.0.2.1:80"]);
    let annotated = Service { origin: Origin { resource_version: "7".into(), ..Origin::default() }, ..web() };
    assert_eq!(host.send([upsert(annotated)]).events, []);
    assert_eq!(host.send([slice(&["192.0.2.1:80"])]).events, []);
    assert_eq!(host.send([slice(&["192.0.2.2:80"]), slice(&["192.0.2.1:80"])]).events, [], "it comes to the same");
}

#[test]
fn a_port_comes_and_goes() {
    let mut host = Host::with_web(&["192.0.2.1:80"]);
    let other = Change::UpsertSlice(slice_of("shop/other", [l4("192.0.2.9:80")]));
    let event = only(host.send([upsert(service("shop/other", "198.51.100.2:80")), other]));
    assert_eq!((event.what, event.added.shown), (What::Added, vec![l4("192.0.2.9:80")]));
    assert_eq!((event.frontends.shown, event.withdrawn.shown), (vec![l4("198.51.100.2:80")], vec![]));
    let event = only(host.send([Change::RemoveService("shop/other".parse().expect("valid"), Source::Files)]));
    assert_eq!((event.what, event.removed.shown), (What::Removed, vec![l4("192.0.2.9:80")]));
    assert_eq!((event.kernel, event.cause.is_removed), (Kernel::Done, true));
    assert_eq!((event.frontends.shown, event.withdrawn.shown), (vec![], vec![l4("198.51.100.2:80")]));
}

/// The slices of a service usually go with it, in the same round.
#[test]
fn a_removed_service_names_its_own_description_as_the_cause() {
    let mut host = Host::with_web(&["192.0.2.1:80"]);
    let name: ServiceName = "shop/web".parse().expect("valid in a test");
    let slice = SliceName::new(&name.namespace, &name.name);
    let event =
        only(host.send([Change::RemoveService(name, Source::Files), Change::RemoveSlice(slice, Source::Files)]));
    assert_eq!((event.what, &*event.cause.origin.object), (What::Removed, "shop/web.toml"));
    assert_eq!(event.withdrawn.shown, [l4("198.51.100.1:80")]);
}

/// An address that a service gives up is remembered although its list of backends stays the same.
#[test]
fn an_address_that_moves_is_in_the_events_of_both_services() {
    let mut host = Host::with_web(&["192.0.2.1:80"]);
    let with = |full: &str, addresses: &[&str]| {
        let mut service = service(full, addresses[0]);
        let spec = |text: &&str| FrontendSpec { addr: l4(text).addr, port: 80, kind: FrontendKind::Static };
        service.ports[0].frontends = addresses.iter().map(spec).collect();
        upsert(service)
    };
    let event = only(host.send([with("shop/web", &["198.51.100.1:80", "198.51.100.3:80"])]));
    assert_eq!((event.what, event.frontends.shown), (What::Changed, vec![l4("198.51.100.3:80")]));
    assert_eq!((event.detail, event.kernel), (None, Kernel::Done));
    let moved = [with("shop/web", &["198.51.100.1:80"]), with("shop/other", &["198.51.100.3:80"])];
    let events = host.send(moved).events;
    let lists = events.iter().map(|event| (event.what, &event.frontends.shown[..], &event.withdrawn.shown[..]));
    let at = [l4("198.51.100.3:80")];
    let (changed, added): (_, (What, &[L4Addr], &[L4Addr])) =
        ((What::Changed, &[][..], &at[..]), (What::Added, &at, &[]));
    assert_eq!(lists.collect::<Vec<_>>(), [changed, added]);
}

/// A claim that never had its address does not give it up.
#[test]
fn only_the_owner_gives_an_address_up() {
    let mut host = Host::with_web(&["192.0.2.1:80"]);
    let late = Service { created: Some(9), ..service("shop/late", "198.51.100.1:80") };
    host.send([upsert(late)]);
    let event = only(host.send([Change::RemoveService("shop/late".parse().expect("valid"), Source::Files)]));
    assert_eq!((event.what, event.withdrawn.is_empty()), (What::Removed, true));
}

#[test]
fn another_choice_among_the_same_backends_is_described_in_words() {
    let mut host = Host::with_web(&["192.0.2.1:80", "192.0.2.2:80"]);
    let mut heavier = slice_of("shop/web", ["192.0.2.1:80", "192.0.2.2:80"].map(l4));
    heavier.ports[0].backends[0].weight = 3;
    let event = only(host.send([Change::UpsertSlice(heavier)]));
    assert_eq!((event.detail.as_deref(), event.added.is_empty()), (Some("other weights"), true));
    let event = only(host.send([upsert(Service { affinity_seconds: Some(60), ..web() })]));
    assert_eq!(event.detail.as_deref(), Some("clients keep their backend for 60 s"));
}

#[test]
fn a_rejected_entry_is_reported_once_and_so_is_its_acceptance() {
    let fails = |op: &MapOp| matches!(op, MapOp::PutService(_, entry) if entry.cluster.len() == 2);
    let mut host = Host::new(MemoryDatapath::new(LIMITS).with_fault(Box::new(fails)));
    host.send([upsert(web()), slice(&["192.0.2.1:80"]), synced()]);
    let event = only(host.send([slice(&["192.0.2.1:80", "192.0.2.2:80"])]));
    assert!(matches!(&event.kernel, Kernel::Failed(error) if error.contains("injected")), "{event:?}");
    assert_eq!((event.what, event.frontends.shown), (What::Changed, vec![l4("198.51.100.1:80")]));
    assert_eq!(host.send([]).events, [], "it fails again");
    host.datapath.clear_fault();
    let event = only(host.send([]));
    assert_eq!((event.what, event.kernel), (What::Healed, Kernel::Done));
    assert_eq!(event.frontends.shown, [l4("198.51.100.1:80")]);
    assert_eq!(host.send([]).events, []);
}

#[test]
fn a_change_before_the_retry_is_reported_as_itself() {
    let fails = |op: &MapOp| matches!(op, MapOp::PutService(_, entry) if entry.cluster.len() == 2);
    let mut host = Host::new(MemoryDatapath::new(LIMITS).with_fault(Box::new(fails)));
    host.send([upsert(web()), slice(&["192.0.2.1:80"]), synced()]);
    host.send([slice(&["192.0.2.1:80", "192.0.2.2:80"])]);
    let event = only(host.send([slice(&["192.0.2.3:80"])]));
    assert_eq!((event.what, event.kernel), (What::Changed, Kernel::Done));
    assert_eq!(host.send([]).events, []);
}

#[test]
fn conflicts_and_takeovers_are_reported() {
    let mut host = Host::with_web(&["192.0.2.1:80"]);
    // Older, so that it takes the address from its owner.
    let older = Service { created: Some(0), ..service("shop/a", "198.51.100.1:80") };
    let web = Service { created: Some(9), ..web() };
    host.send([upsert(web)]);
    let events = host.send([upsert(older)]).events;
    assert_eq!(whats(&events), [What::Added, What::Conflict]);
    let conflict = &events[1];
    assert_eq!(conflict.port.as_ref().map(|port| port.service.to_string()), Some("shop/web".into()));
    assert!(conflict.detail.as_ref().is_some_and(|text| text.contains("owned by shop/a")), "{conflict:?}");
    assert_eq!(conflict.frontends.shown, [l4("198.51.100.1:80")]);
    let events = host.send([Change::RemoveService("shop/a".parse().expect("valid"), Source::Files)]).events;
    assert_eq!(whats(&events), [What::Removed, What::TakenOver]);
    assert!(events[1].detail.as_ref().is_some_and(|text| text.contains("from shop/a")), "{:?}", events[1]);
}

#[test]
fn a_refused_address_is_reported_when_that_changes() {
    let mut host = Host::with_web(&["192.0.2.1:80"]);
    let node = |own: &[&str]| {
        let addresses = own.iter().map(|text| text.parse().expect("valid in a test")).collect();
        Change::Node(NodeFacts { addresses, ..NodeFacts::default() })
    };
    let event = only(host.send([node(&["198.51.100.1"])]));
    assert_eq!((event.what, event.frontends.shown), (What::Refused, vec![l4("198.51.100.1:80")]));
    assert_eq!(host.send([node(&["198.51.100.1", "203.0.113.1"])]).events, []);
    let event = only(host.send([node(&["203.0.113.1"])]));
    assert_eq!((event.what, event.frontends.shown), (What::Admitted, vec![l4("198.51.100.1:80")]));
}

/// The daemon was stopped. Changes since then are recorded; unchanged lists are not.
#[test]
fn a_list_that_changed_while_the_daemon_was_down_is_reported_after_the_restart() {
    let before = Host::with_web(&["192.0.2.1:80", "192.0.2.2:80"]);
    let mut host = Host::new(before.datapath);
    assert_eq!(host.send([upsert(web()), slice(&["192.0.2.2:80", "192.0.2.3:80"])]).events, []);
    let events = host.send([synced()]).events;
    assert_eq!(whats(&events), [What::Changed, What::Synced]);
    let event = events[0].clone();
    assert_eq!((event.what, &*event.cause.origin.object), (What::Changed, "a.toml"));
    assert_eq!((event.added.shown, event.removed.shown), (vec![l4("192.0.2.3:80")], vec![l4("192.0.2.1:80")]));
    assert!(event.detail.is_some_and(|text| text.contains("while nodelb was not running")));
    let mut again = Host::new(host.datapath);
    let round = again.send([upsert(web()), slice(&["192.0.2.2:80", "192.0.2.3:80"]), synced()]);
    assert_eq!(whats(&round.events), [What::Synced]);
}

/// A file cannot be read, so that a service that another one has emptied waits. Seed 7016 of the truth test.
#[test]
fn a_service_that_waits_to_be_emptied_is_reported_when_its_clients_are_refused() {
    let before = Host::with_web(&["192.0.2.1:80"]);
    let incomplete = || Change::Synced { source: Source::Files, incomplete: Some("b.toml cannot be used".into()) };
    let mut killed = Host::new(before.datapath);
    let round = killed.send([upsert(web()), slice(&[]), incomplete()]);
    assert_eq!((whats(&round.events), round.emptied), (vec![What::Synced], vec![]));

    let mut host = Host::new(killed.datapath);
    let round = host.send([upsert(web()), slice(&[]), incomplete()]);
    assert_eq!((whats(&round.events), round.emptied), (vec![What::Synced], vec![]));
    let round = host.send([synced()]);
    let losses: Vec<_> = round.emptied.iter().map(|lost| (&*lost.cause.origin.object, lost.is_kept)).collect();
    assert_eq!(losses, [("a.toml", false)]);
    let event = only(round);
    assert_eq!((event.what, event.kernel, &*event.cause.origin.object), (What::Emptied, Kernel::Done, "a.toml"));
}

/// A thousand new endpoints result in one event with a bounded list, and many services in a bounded number of events.
#[test]
fn large_changes_are_bounded() {
    let mut host = Host::with_web(&["192.0.2.1:80"]);
    let many = (0..10_000_u16).map(|n| L4Addr { port: n + 1, ..l4("192.0.2.7:1") });
    let event = only(host.send([Change::UpsertSlice(slice_of("shop/web", many))]));
    assert_eq!((event.added.shown.len(), event.added.more), (MAX_SHOWN, 10_000 - MAX_SHOWN));
    let services =
        (0..2_000).map(|n| service(&format!("shop/s{n}"), &format!("198.51.{}.{}:81", n / 250, n % 250 + 1)));
    let mut changes: Vec<Change> = services.map(upsert).collect();
    changes.push(slice(&[]));
    let events = host.send(changes).events;
    assert_eq!(events.len(), super::MAX_EVENTS + 1);
    assert_eq!(whats(&events[..2]), [What::Emptied, What::Added], "who lost everything comes first");
    let more = events.last().and_then(|event| event.detail.clone()).expect("the rest is counted");
    assert_eq!(&*more, "1489 more changes at the same time are not recorded individually");
}

#[test]
fn times_of_slices_come_out_when_the_kernel_has_what_they_say() {
    let fails = |op: &MapOp| matches!(op, MapOp::PutService(_, entry) if entry.cluster.len() == 2);
    let mut host = Host::new(MemoryDatapath::new(LIMITS).with_fault(Box::new(fails)));
    let triggered = |at, backends: &[&str]| {
        let mut slice = slice_of("shop/web", backends.iter().map(|text| l4(text)));
        slice.origin.triggered = Some(at);
        Change::UpsertSlice(slice)
    };
    let round = host.send([upsert(web()), triggered(5, &["192.0.2.1:80"]), synced()]);
    assert_eq!(round.triggers, [0_u64; 0], "the time of an initial slice shows its age, not a delay");
    assert_eq!(host.send([triggered(17, &["192.0.2.2:80"])]).triggers, [17]);
    assert_eq!(host.send([triggered(18, &["192.0.2.2:80"])]).triggers, [0_u64; 0], "it says the same as before");
    assert_eq!(host.send([triggered(19, &["192.0.2.2:80", "192.0.2.3:80"])]).triggers, [0_u64; 0]);
    assert_eq!(
        host.send([triggered(20, &["192.0.2.2:80", "192.0.2.4:80"])]).triggers,
        [0_u64; 0],
        "the oldest waits for both"
    );
    host.datapath.clear_fault();
    assert_eq!(host.send([]).triggers, [19], "the kernel has it now");
}

#[test]
fn drift_is_reported_with_its_owner() {
    let mut host = Host::with_web(&["192.0.2.1:80"]);
    let at = l4("198.51.100.1:80");
    let keys = [EntryKey::Frontend(at)];
    host.datapath.apply(&[MapOp::DeleteFrontend(at)], host.now);
    let state = host.datapath.dump().expect("memory can be read");
    assert_eq!(host.engine.accept_actual(&Content { state, ..Content::default() }, &keys), 1);
    let event = only(host.send([]));
    assert_eq!((event.what, &event.kernel, &event.frontends.shown[..]), (What::Repaired, &Kernel::Done, &[at][..]));
    assert_eq!(event.port.map(|port| port.service.to_string()), Some("shop/web".into()));
}

fn failing(backends: &[&str]) -> Change {
    let failing = backends.iter().map(|text| ((l4(text).addr, l4(text).port), "connection refused".into()));
    Change::Quarantine("shop/web".parse().expect("valid in a test"), failing.collect())
}

/// Both backends stay in the list while both fail, so nothing in the maps changes.
#[test]
fn an_outage_by_health_checks_is_in_the_history_with_its_cause_and_its_end() {
    let mut host = Host::with_web(&["192.0.2.11:80", "192.0.2.12:80"]);
    let checked = Service { health_check: Some(std::sync::Arc::default()), ..web() };
    host.send([upsert(checked)]);
    let status = |host: &Host| {
        let (snapshot, address) = (host.engine.snapshot(host.now), l4("198.51.100.1:80"));
        let status = snapshot.status_of(&snapshot.rows[&address], 0, address);
        (status.status, status.since)
    };
    let event = only(host.send([failing(&["192.0.2.11:80", "192.0.2.12:80"])]));
    assert_eq!(
        (event.what, &*event.cause.origin.object),
        (What::LastResort, "health checks (192.0.2.11:80: connection refused)")
    );
    assert_eq!(status(&host), (Status::LastResort, host.now));
    let event = only(host.send([failing(&["192.0.2.12:80"])]));
    assert_eq!(
        (event.what, &*event.cause.origin.object),
        (What::Recovered, "health checks (192.0.2.11:80 is healthy again)")
    );
    assert_eq!((event.added.shown, event.removed.shown), (vec![], vec![l4("192.0.2.12:80")]));
    let recovered = host.now;
    assert_eq!(status(&host), (Status::Ok, recovered));
    let event = only(host.send([failing(&[])]));
    assert_eq!(
        (event.what, &*event.cause.origin.object),
        (What::Changed, "health checks (192.0.2.12:80 is healthy again)")
    );
    assert_eq!(status(&host), (Status::Ok, recovered), "connections got what they get now");
}

#[test]
fn a_service_is_ok_only_since_its_outage() {
    let mut host = Host::with_web(&["192.0.2.11:80"]);
    let since = |host: &Host| {
        let (snapshot, address) = (host.engine.snapshot(host.now), l4("198.51.100.1:80"));
        let status = snapshot.status_of(&snapshot.rows[&address], 0, address);
        (status.status, status.since)
    };
    let start = host.now;
    assert_eq!(since(&host), (Status::Ok, start));
    host.send([slice(&[])]);
    assert_eq!(since(&host), (Status::NoBackends, host.now));
    host.send([slice(&["192.0.2.11:80"])]);
    let filled = host.now;
    host.send([slice(&["192.0.2.11:80", "192.0.2.12:80"])]);
    assert_eq!(since(&host), (Status::Ok, filled));
}

/// A DNS source keeps the last known backends for a while, and then reports that there are none.
#[test]
fn a_hold_that_ends_without_backends_says_so() {
    let mut host = Host::with_web(&["192.0.2.11:80"]);
    let last_known = |problem: Option<&str>, backends: &[&str]| {
        let slice = slice_of("shop/web", backends.iter().map(|text| l4(text)));
        Change::UpsertSlice(Slice { problem: problem.map(Into::into), ..slice })
    };
    let event = only(host.send([last_known(Some("no server answers"), &["192.0.2.11:80"])]));
    assert_eq!(event.what, What::Held);
    let round = host.send([last_known(None, &[])]);
    assert_eq!(round.released.iter().map(|release| release.reason).collect::<Vec<_>>(), [ReleaseReason::Emptied]);
    let event = only(round);
    assert_eq!(event.what, What::Emptied);
    let detail = "its source has no backends for it, and connections are refused";
    assert_eq!(event.detail.as_deref(), Some(detail));
    host.send([last_known(None, &["192.0.2.11:80"]), last_known(Some("no server answers"), &["192.0.2.11:80"])]);
    let Change::UpsertSlice(mut ended) = last_known(Some("NXDOMAIN"), &[]) else { unreachable!() };
    (ended.origin.object, ended.ports) =
        (format!("{HOLD_ENDED} (15s) of DNS A record of web.example").into(), Vec::new());
    let round = host.send([Change::UpsertSlice(ended)]);
    assert_eq!(round.released.iter().map(|release| release.reason).collect::<Vec<_>>(), [ReleaseReason::Expired]);
    let event = only(round);
    assert!(event.cause.origin.object.starts_with(HOLD_ENDED));
    assert_eq!(event.detail.as_deref(), Some("connections are refused"), "the end of the hold is reported once");
    host.send([last_known(None, &["192.0.2.11:80"]), last_known(Some("no server answers"), &["192.0.2.11:80"])]);
    let event = only(host.send([last_known(None, &["192.0.2.11:80"])]));
    assert_eq!((event.what, event.detail.as_deref()), (What::Released, Some("it has backends again")));
}

fn drained(backends: &[&str], cause: DrainCause) -> Change {
    let drain = Drain { by: "root".into(), since: 0, until: None };
    let drains: Drains = backends.iter().map(|text| (text.parse().expect("a backend"), drain.clone())).collect();
    Change::Drains("shop/web".parse().expect("a name"), drains, Some(cause))
}

#[test]
fn a_drain_and_its_end_are_events_whatever_they_change() {
    let (begun, ended) = (|| DrainCause::Begun("drain by root".into()), || DrainCause::Ended("undrain by root".into()));
    let mut host = Host::with_web(&["192.0.2.1:80", "192.0.2.2:80"]);
    let event = only(host.send([drained(&["192.0.2.1:80"], begun())]));
    assert_eq!((event.what, &*event.cause.origin.object), (What::Drained, "drain by root"));
    assert_eq!((event.removed.shown, event.detail), (vec![l4("192.0.2.1:80")], None));
    // Its source withdraws the backend and adds it again.
    let event = only(host.send([slice(&["192.0.2.2:80", "192.0.2.3:80"])]));
    assert_eq!((event.what, event.added.shown), (What::Changed, vec![l4("192.0.2.3:80")]));
    assert_eq!(only(host.send([slice(&["192.0.2.1:80", "192.0.2.2:80"])])).added.shown, []);
    let event = only(host.send([drained(&[], ended())]));
    assert_eq!((event.what, &*event.cause.origin.object), (What::Undrained, "undrain by root"));
    assert_eq!(event.added.shown, [l4("192.0.2.1:80")]);
    // A backend that gets no connections anyway, another change at the same time, the last backend, no service.
    let event = only(host.send([drained(&["192.0.2.9"], begun())]));
    assert_eq!(
        (event.what, event.port.map(|key| key.to_string())),
        (What::Drained, Some("shop/web:http/TCP/IPv4".into()))
    );
    let events =
        host.send([drained(&["192.0.2.1"], begun()), slice(&["192.0.2.1:80", "192.0.2.2:80", "192.0.2.4:80"])]).events;
    assert_eq!(whats(&events), [What::Changed, What::Drained]);
    let event = only(host.send([drained(&["192.0.2.1", "192.0.2.2", "192.0.2.4"], begun())]));
    assert_eq!((event.what, &*event.cause.origin.object), (What::Emptied, "drain by root"));
    host.send([Change::RemoveService("shop/web".parse().expect("a name"), Source::Files)]);
    let event = only(host.send([drained(&[], ended())]));
    assert_eq!(
        (event.what, event.port, event.detail.as_deref()),
        (What::Undrained, None, Some("shop/web: undrain by root"))
    );
    // The drains of an earlier run are no news.
    let Change::Drains(name, drains, _) = drained(&["192.0.2.1"], begun()) else { return };
    assert_eq!(host.send([Change::Drains(name, drains, None)]).events, []);
}
