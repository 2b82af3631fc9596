//! Since when frontends have had their status, over restarts.

use super::*;
use crate::before::{Lasting, Statuses};
use crate::engine::Round;
use crate::history::Event;
use crate::model::forward::Forward;
use crate::model::health_check::HealthCheck;
use crate::model::service::{PortKey, TrafficPolicy};

#[path = "complete.rs"]
mod complete;
#[path = "gained.rs"]
mod gained;

const WEB: &str = "198.51.100.1:80";
const OTHER: &str = "198.51.100.2:80";

struct Run {
    engine: Engine,
    datapath: MemoryDatapath,
    now: Moment,
}

impl Run {
    fn first() -> Self {
        let datapath = MemoryDatapath::new(LIMITS);
        Self { engine: engine_with(&datapath), datapath, now: Moment(1_000) }
    }

    /// The next run, which starts a minute after the last round.
    fn restarted(self) -> Self {
        let statuses = self.engine.snapshot(self.now).statuses();
        self.restarted_with(statuses)
    }

    fn restarted_with(self, statuses: Statuses) -> Self {
        let (mut engine, now) = (engine_with(&self.datapath), self.now.plus(60_000));
        engine.recall(statuses, now);
        Self { engine, now, ..self }
    }

    fn send(&mut self, changes: impl IntoIterator<Item = Change>) -> Round {
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.now = self.now.plus(1_000);
        self.engine.reconcile(&mut self.datapath, self.now)
    }

    fn status(&self, address: &str) -> (Status, u64) {
        let (snapshot, address) = (self.engine.snapshot(self.now), l4(address));
        match snapshot.rows.get(&address) {
            Some(row) => {
                let status = snapshot.status_of(row, 0, address);
                (status.status, status.since.0)
            }
            None => {
                let (.., kept) = snapshot.kept().find(|(kept, ..)| *kept == address).expect("it is in the maps");
                (kept.status, kept.since.0)
            }
        }
    }
}

fn checked(full: &str, frontend: &str) -> Change {
    Change::UpsertService(Service { health_check: Some(Arc::new(HealthCheck::default())), ..service(full, frontend) })
}

fn list(full: &str, backends: &[&str]) -> Change {
    Change::UpsertSlice(slice(full, full, backends))
}

fn failed_checks(full: &str, backends: &[&str]) -> Change {
    let failed = backends.iter().map(|text| ((l4(text).addr, l4(text).port), "refused".into()));
    Change::Quarantine(name(full), failed.collect())
}

const BACKEND: &str = "192.0.2.1:80";

fn objects() -> [Change; 4] {
    let (web, other) = (checked("shop/web", WEB), Change::UpsertService(service("shop/other", OTHER)));
    [web, list("shop/web", &[BACKEND]), other, list("shop/other", &[BACKEND])]
}

/// A run in which every backend of shop/web has failed since 3 s, and shop/other has been OK since 2 s.
fn failed() -> Run {
    let mut run = Run::first();
    run.send(objects().into_iter().chain([synced()]));
    run.send([failed_checks("shop/web", &[BACKEND])]);
    run.send([]);
    assert_eq!([run.status(WEB), run.status(OTHER)], [(Status::LastResort, 3_000), (Status::Ok, 2_000)]);
    run
}

#[test]
fn a_restart_that_changes_nothing_changes_no_since() {
    let mut run = failed();
    for _ in 0..2 {
        run = run.restarted();
        assert_eq!([run.status(WEB), run.status(OTHER)], [(Status::LastResort, 3_000), (Status::Kept, 2_000)]);
        run.send([failed_checks("shop/web", &[BACKEND])].into_iter().chain(objects()).chain([synced()]));
        assert_eq!([run.status(WEB), run.status(OTHER)], [(Status::LastResort, 3_000), (Status::Ok, 2_000)]);
        let snapshot = run.engine.snapshot(run.now);
        assert_eq!(snapshot.degraded().map(|(_, degraded)| degraded.since).collect::<Vec<_>>(), [Moment(3_000)]);
        assert!(run.engine.before.statuses.is_empty(), "nothing is kept that is known");
    }
    run.send([failed_checks("shop/web", &[])]);
    assert_eq!(run.status(WEB), (Status::Ok, run.now.0));
}

/// The list of the clients that get the backends on this node alone, and that of the others, had one time.
#[test]
fn a_service_with_local_policy_keeps_its_since() {
    let local = Service { internal_policy: TrafficPolicy::Local, ..service("shop/web", WEB) };
    let objects = |backends: &[&str]| [Change::UpsertService(local.clone()), list("shop/web", backends)];
    let mut run = Run::first();
    run.send(objects(&[BACKEND]).into_iter().chain([synced()]));
    assert_eq!(run.status(WEB), (Status::NoBackends, 2_000), "none is on this node");
    run.send(objects(&[]));
    run = run.restarted();
    run.send(objects(&[]).into_iter().chain([synced()]));
    assert_eq!(run.status(WEB), (Status::NoBackends, 2_000));
    let snapshot = run.engine.snapshot(run.now);
    assert!(snapshot.degraded().all(|(_, degraded)| degraded.since <= Moment(3_000)));
    assert_eq!(snapshot.degraded().count(), 1);
    // The policy changes, and there are backends again.
    run.send([Change::UpsertService(service("shop/web", WEB)), list("shop/web", &[BACKEND])]);
    assert_eq!(run.status(WEB), (Status::Ok, run.now.0));
}

/// Each start invented that the service was emptied: clients on this node get no backend of the other family.
#[test]
fn an_ipv4_address_in_tunnels_to_ipv6_backends_keeps_its_since() {
    let tunnels = Service { forward: Forward::Tunnel, ..service("shop/web", WEB) };
    let objects = || [Change::UpsertService(tunnels.clone()), list("shop/web", &["[2001:db8:1::1]:80"])];
    let mut run = Run::first();
    run.send(objects().into_iter().chain([synced()]));
    assert_eq!(run.status(WEB), (Status::Ok, 2_000));
    run = run.restarted();
    assert_eq!(run.status(WEB), (Status::Kept, 2_000));
    run.send(objects().into_iter().chain([synced()]));
    assert_eq!(run.status(WEB), (Status::Ok, 2_000));
}

/// The backends are elsewhere.
#[test]
fn a_service_is_ok_since_its_policy_admits_other_nodes() {
    let local = Service { internal_policy: TrafficPolicy::Local, ..service("shop/web", WEB) };
    let mut run = Run::first();
    run.send([Change::UpsertService(local), list("shop/web", &[BACKEND]), synced()]);
    run.send([Change::UpsertService(service("shop/web", WEB))]);
    assert_eq!(run.status(WEB), (Status::Ok, 3_000));
}

/// The daemon was killed while it waited for its sources.
#[test]
fn what_is_not_known_yet_is_stored_for_the_next_run() {
    let run = failed().restarted().restarted();
    assert_eq!([run.status(WEB), run.status(OTHER)], [(Status::LastResort, 3_000), (Status::Kept, 2_000)]);
    let mut run = run.restarted();
    let [web, web_list, ..] = objects();
    run.send([web, web_list, failed_checks("shop/web", &[BACKEND])]);
    let mut run = run.restarted();
    run.send([failed_checks("shop/web", &[BACKEND])].into_iter().chain(objects()).chain([synced()]));
    assert_eq!([run.status(WEB), run.status(OTHER)], [(Status::LastResort, 3_000), (Status::Ok, 2_000)]);
}

#[test]
fn what_changed_during_the_restart_has_changed_at_the_start() {
    let mut run = failed().restarted();
    run.send(objects().into_iter().chain([synced()]));
    assert_eq!([run.status(WEB), run.status(OTHER)], [(Status::Ok, run.now.0), (Status::Ok, 2_000)]);
    let since = run.now.0;
    let mut run = run.restarted();
    run.send(objects().into_iter().chain([synced()]));
    assert_eq!(run.status(WEB), (Status::Ok, since));
}

#[test]
fn emptied_and_refused_services_keep_their_since() {
    let mut run = Run::first();
    let admin = |changes: &mut Vec<Change>| changes.push(Change::UpsertService(service("shop/multi", "224.0.0.1:80")));
    let mut all: Vec<Change> = objects().into();
    all[3] = list("shop/other", &[]);
    admin(&mut all);
    all.push(synced());
    run.send(all.clone());
    let expected = [(Status::NoBackends, 2_000), (Status::Refused, 2_000)];
    assert_eq!([run.status(OTHER), run.status("224.0.0.1:80")], expected);
    let mut run = run.restarted();
    run.send(all);
    assert_eq!([run.status(OTHER), run.status("224.0.0.1:80")], expected);
}

/// Another service, maps that have lost the address, as after a reboot, and times that are not over yet.
#[test]
fn only_what_can_be_true_is_believed() {
    let mut run = failed().restarted();
    run.send([Change::UpsertService(service("shop/third", OTHER)), list("shop/third", &[BACKEND]), synced()]);
    assert_eq!(run.status(OTHER), (Status::Ok, run.now.0));

    let statuses = failed().engine.snapshot(Moment(9_000)).statuses();
    let mut run = Run::first().restarted_with(statuses.clone());
    run.send(objects().into_iter().chain([synced()]));
    assert_eq!(run.status(OTHER), (Status::Ok, run.now.0));

    let future = |mut it: Lasting| {
        it.since = Moment(u64::MAX);
        it
    };
    let mut run = failed().restarted_with(statuses.into_iter().map(|(key, it)| (key, future(it))).collect());
    let start = run.now.0;
    assert_eq!(run.status(OTHER), (Status::Kept, start));
    run.send(objects().into_iter().chain([synced()]));
    assert_eq!(run.status(OTHER), (Status::Ok, run.now.0));
}

/// A file that cannot be read makes nothing else than before for connections.
#[test]
fn a_source_that_cannot_be_read_for_a_while_changes_no_since() {
    let incomplete = || Change::Synced { source: Source::Files, incomplete: Some("b.toml cannot be used".into()) };
    let mut run = failed().restarted();
    run.send([incomplete()]);
    assert_eq!(run.status(OTHER), (Status::Kept, 2_000));
    run.send(objects());
    assert_eq!(run.status(OTHER), (Status::Ok, 2_000));
}

/// kubernetes.jsonl was older than the maps: seed 203 of the truth test.
#[test]
fn what_was_stored_of_a_source_before_the_last_change_is_no_change() {
    let of_kubernetes = |backends: &[&str]| {
        let service = Service { source: Source::Kubernetes, ..service("shop/web", WEB) };
        let slice = Slice { source: Source::Kubernetes, ..slice("shop/web", "a", backends) };
        [Change::UpsertService(service), Change::UpsertSlice(slice)]
    };
    let synced = || Change::Synced { source: Source::Kubernetes, incomplete: None };
    let kubernetes = |datapath: &MemoryDatapath| {
        let (sources, max_services) = ([Source::Kubernetes].into(), LIMITS.services);
        let config = EngineConfig { sources, max_services, ..EngineConfig::default() };
        Engine::new(config, datapath.dump().expect("memory can be read"))
    };
    let mut run = Run::first();
    run.engine = kubernetes(&run.datapath);
    run.send(of_kubernetes(&[BACKEND]).into_iter().chain([synced()]));
    run.send(of_kubernetes(&[]));
    assert_eq!(run.status(WEB), (Status::NoBackends, 3_000));
    for _ in 0..2 {
        let statuses = run.engine.snapshot(run.now).statuses();
        run.engine = kubernetes(&run.datapath);
        run.now = run.now.plus(60_000);
        run.engine.recall(statuses, run.now);
        run.send(of_kubernetes(&[BACKEND]));
    }
    run.send(of_kubernetes(&[]).into_iter().chain([synced()]));
    assert_eq!(run.status(WEB), (Status::NoBackends, 3_000));
}

#[test]
fn an_outage_before_the_source_has_reported_ends_what_was_stored() {
    let incomplete = || Change::Synced { source: Source::Files, incomplete: Some("b.toml cannot be used".into()) };
    let mut run = failed().restarted();
    run.send(objects().into_iter().chain([incomplete()]));
    assert_eq!(run.status(OTHER), (Status::Ok, 2_000));
    run.send([list("shop/other", &[])]);
    assert_eq!(run.status(OTHER).0, Status::NoBackends);
    run.send([list("shop/other", &[BACKEND])]);
    assert_eq!(run.status(OTHER), (Status::Ok, run.now.0));
    let since = run.now.0;
    let mut run = run.restarted();
    run.send(objects().into_iter().chain([synced()]));
    assert_eq!(run.status(OTHER), (Status::Ok, since));
}

#[test]
fn checks_that_fail_before_the_source_has_reported_continue_a_last_resort() {
    let mut run = failed().restarted();
    run.send(objects());
    run.send([]);
    run.send([failed_checks("shop/web", &[BACKEND])]);
    run.send([synced()]);
    assert_eq!(run.status(WEB), (Status::LastResort, 3_000));
}

#[test]
fn an_address_that_another_service_had_meanwhile_begins_again() {
    let mut run = failed().restarted();
    let other = service("shop/third", OTHER);
    run.send([Change::UpsertService(other), list("shop/third", &[BACKEND]), synced()]);
    assert_eq!(run.status(OTHER), (Status::Ok, run.now.0));
    run.send([Change::RemoveService(name("shop/third"), Source::Files)]);
    run.send(objects());
    assert_eq!(run.status(OTHER), (Status::Ok, run.now.0));
}

#[test]
fn a_refusal_ends_when_no_source_describes_it() {
    let mut run = Run::first();
    let loser = || [Change::UpsertService(service("shop/third", OTHER)), list("shop/third", &[BACKEND])];
    run.send(objects().into_iter().chain([synced()]));
    run.send(loser());
    let snapshot = run.engine.snapshot(run.now);
    let stored = snapshot.statuses();
    assert!(stored.values().any(|it| it.status == Status::Conflict), "{stored:?}");
    let mut run = run.restarted();
    run.send(objects().into_iter().chain([synced()]));
    assert!(run.engine.before.statuses.is_empty(), "{:?}", run.engine.before.statuses);
}

#[test]
fn a_file_with_a_million_refusals_occupies_no_memory() {
    let run = failed();
    let mut statuses = run.engine.snapshot(run.now).statuses();
    let refused = Lasting { status: Status::Refused, since: Moment(1) };
    statuses.extend((0..100_000).map(|service| ((l4("198.51.100.9:80"), service), refused)));
    let run = run.restarted_with(statuses);
    assert_eq!(run.engine.before.statuses.len(), 2 + LIMITS.services as usize);
    assert_eq!(run.status(OTHER), (Status::Kept, 2_000));
}

/// The names that the previous run stored.
fn names_of(run: &Run) -> Vec<PortKey> {
    run.engine.snapshot(run.now).port_names().map(|port| PortKey::clone(port)).collect()
}

/// What the history tells of an event: the service, the kind, the addresses that it has lost, and the details.
fn reported(round: &Round) -> Vec<(String, What, Vec<String>, String)> {
    let of_service = |event: &&Event| event.port.is_some();
    let tell = |event: &Event| {
        let service = event.port.as_ref().map(|port| port.service.to_string()).unwrap_or_default();
        let withdrawn = event.withdrawn.shown.iter().map(ToString::to_string).collect();
        (service, event.what, withdrawn, event.detail.as_deref().unwrap_or_default().to_owned())
    };
    round.events.iter().filter(of_service).map(tell).collect()
}

const NOT_SEEN: &str = "while nodelb was not running or not synced";

#[test]
fn an_address_that_moved_to_another_service_during_the_restart_is_in_the_history() {
    let run = failed();
    let names = names_of(&run);
    let mut run = run.restarted();
    run.engine.recall_ports(names);
    let third = || [Change::UpsertService(service("shop/third", OTHER)), list("shop/third", &[BACKEND])];
    let [web, web_list, ..] = objects();
    let round = run.send([web, web_list].into_iter().chain(third()).chain([synced()]));
    let moved = vec![format!("{OTHER}/TCP")];
    let taken = format!("takes over {OTHER}/TCP from shop/other:http/TCP/IPv4");
    let expected = [
        ("shop/third".to_owned(), What::TakenOver, vec![], taken),
        ("shop/other".to_owned(), What::Removed, moved, NOT_SEEN.to_owned()),
    ];
    assert_eq!(reported(&round), expected);
    assert!(run.engine.snapshot(run.now).port_names().count() == 2, "a name is kept as long as it is needed");
    // Without the names, at least the change is reported.
    let mut run = failed().restarted();
    let [web, web_list, ..] = objects();
    let round = run.send([web, web_list].into_iter().chain(third()).chain([synced()]));
    let taken = format!("takes over {OTHER}/TCP from another service");
    assert_eq!(reported(&round), [("shop/third".to_owned(), What::TakenOver, vec![], taken)]);
}

#[test]
fn a_service_that_was_removed_during_the_restart_is_named_in_the_history() {
    let run = failed();
    let names = names_of(&run);
    let mut run = run.restarted();
    run.engine.recall_ports(names);
    let [web, web_list, ..] = objects();
    let incomplete = Change::Synced { source: Source::Files, incomplete: Some("b.toml cannot be used".into()) };
    assert_eq!(reported(&run.send([web, web_list, incomplete])), [], "b.toml may have it");
    let names = names_of(&run);
    let mut run = run.restarted();
    run.engine.recall_ports(names);
    let [web, web_list, ..] = objects();
    let round = run.send([web, web_list, synced()]);
    let lost = vec![format!("{OTHER}/TCP")];
    assert_eq!(reported(&round), [("shop/other".to_owned(), What::Removed, lost, NOT_SEEN.to_owned())]);
    assert_eq!(round.events.iter().filter(|event| event.what == What::Pruned).count(), 0);
    let mut run = run.restarted();
    let [web, web_list, ..] = objects();
    assert_eq!(reported(&run.send([web, web_list, synced()])), []);
}

#[test]
fn an_address_that_is_refused_since_the_restart_is_in_the_history() {
    let mut run = failed().restarted();
    let own = Change::Node(NodeFacts { addresses: [l4(OTHER).addr].into(), ..NodeFacts::default() });
    let round = run.send([own].into_iter().chain(objects()).chain([synced()]));
    let [(service, What::Refused, _, why)] = &reported(&round)[..] else { panic!("{:?}", reported(&round)) };
    assert_eq!((&**service, why.starts_with(OTHER)), ("shop/other", true), "{why}");
    assert!(round.pruned.is_empty(), "a source describes it");
}

#[test]
fn the_loss_of_an_address_is_reported_if_its_next_service_has_withdrawn_it() {
    let run = failed();
    let names = names_of(&run);
    let mut run = run.restarted();
    run.engine.recall_ports(names);
    let [web, web_list, ..] = objects();
    let third = [Change::UpsertService(service("shop/third", OTHER)), list("shop/third", &[BACKEND])];
    let incomplete = Change::Synced { source: Source::Files, incomplete: Some("b.toml cannot be used".into()) };
    run.send([web, web_list].into_iter().chain(third).chain([incomplete]));
    run.send([Change::RemoveService(name("shop/third"), Source::Files)]);
    let lost = ("shop/other".to_owned(), What::Removed, vec![format!("{OTHER}/TCP")], NOT_SEEN.to_owned());
    assert_eq!(reported(&run.send([synced()])), [lost]);
}

#[test]
fn conflicts_and_holds_of_the_previous_run_are_no_news() {
    let loser = || [Change::UpsertService(service("shop/third", OTHER)), list("shop/third", &[BACKEND])];
    let held = || {
        let slice = Slice { problem: Some("no server answers".into()), ..slice("shop/web", "shop/web", &[BACKEND]) };
        Change::UpsertSlice(slice)
    };
    let mut run = Run::first();
    run.send(objects().into_iter().chain([synced()]));
    let kinds = |round: &Round| reported(round).into_iter().map(|(_, what, ..)| what).collect::<Vec<_>>();
    assert_eq!(kinds(&run.send(loser().into_iter().chain([held()]))), [What::Added, What::Held, What::Conflict]);
    for _ in 0..2 {
        run = run.restarted();
        assert_eq!(kinds(&run.send(objects().into_iter().chain(loser()).chain([held(), synced()]))), []);
        assert_eq!(run.status(WEB).0, Status::Held);
    }
    // Both end and begin again.
    run.send(objects().into_iter().chain([Change::RemoveService(name("shop/third"), Source::Files)]));
    assert_eq!(kinds(&run.send(loser().into_iter().chain([held()]))), [What::Added, What::Held, What::Conflict]);
}

/// Files have reported everything, and an API server does not respond for hours.
#[test]
fn what_changes_hands_while_another_source_is_awaited_is_reported_once() {
    let run = failed();
    let (names, statuses) = (names_of(&run), run.engine.snapshot(run.now).statuses());
    let (sources, max_services) = ([Source::Files, Source::Kubernetes].into(), LIMITS.services);
    let config = EngineConfig { sources, max_services, ..EngineConfig::default() };
    let mut run = Run { engine: Engine::new(config, run.datapath.dump().expect("memory can be read")), ..run };
    run.engine.recall(statuses, run.now);
    run.engine.recall_ports(names);
    run.send(objects().into_iter().chain([synced()]));
    let third = [Change::UpsertService(service("shop/third", OTHER)), list("shop/third", &[BACKEND])];
    let round = run.send([Change::RemoveService(name("shop/other"), Source::Files)].into_iter().chain(third));
    let kinds =
        |round: &Round| reported(round).into_iter().map(|(service, what, ..)| (service, what)).collect::<Vec<_>>();
    assert_eq!(kinds(&round), [("shop/other".into(), What::Removed), ("shop/third".into(), What::Added)]);
    let round = run.send([Change::Synced { source: Source::Kubernetes, incomplete: None }]);
    assert_eq!(kinds(&round), [("shop/other".into(), What::Healed)], "only the removal of its entry had to wait");
}

fn engine_of_both(datapath: &MemoryDatapath) -> Engine {
    let (sources, max_services) = ([Source::Files, Source::Kubernetes].into(), LIMITS.services);
    let config = EngineConfig { sources, max_services, ..EngineConfig::default() };
    Engine::new(config, datapath.dump().expect("memory can be read"))
}

fn of_kubernetes() -> [Change; 2] {
    let api = Service { source: Source::Kubernetes, created: Some(1), ..service("shop/api", WEB) };
    let list = Slice { source: Source::Kubernetes, ..slice("shop/api", "shop/api", &[BACKEND]) };
    [Change::UpsertService(api), Change::UpsertSlice(list)]
}

fn synced_kubernetes() -> Change {
    Change::Synced { source: Source::Kubernetes, incomplete: None }
}

/// A run that served shop/api, after a restart without an API server.
fn without_kubernetes() -> Run {
    let mut run = Run::first();
    run.engine = engine_of_both(&run.datapath);
    run.send(of_kubernetes().into_iter().chain([synced(), synced_kubernetes()]));
    assert_eq!(run.status(WEB).0, Status::Ok);
    let names = names_of(&run);
    let mut run = Run { engine: engine_of_both(&run.datapath), ..run };
    run.engine.recall_ports(names);
    run
}

#[test]
fn a_service_that_still_has_its_address_is_in_no_conflict() {
    let mut run = without_kubernetes();
    let file = [Change::UpsertService(service("shop/file", WEB)), list("shop/file", &[])];
    let round = run.send(of_kubernetes().into_iter().chain(file).chain([synced()]));
    let of_api = |run: &Run| {
        let (snapshot, address) = (run.engine.snapshot(run.now), l4(WEB));
        let row = snapshot.rows[&address].clone();
        assert_eq!(row.claims()[1].key.service, name("shop/api"));
        snapshot.status_of(&row, 1, address)
    };
    let status = of_api(&run);
    assert_eq!(status.status, Status::Kept, "{:?}", status.error);
    for (service, what, _, detail) in reported(&round) {
        let is_as_before = what != What::Conflict || detail.starts_with("in use as before the start");
        assert!(is_as_before, "{service} {what:?} {detail}");
    }
    let round = run.send([synced_kubernetes()]);
    assert_eq!(of_api(&run).status, Status::Conflict);
    assert!(reported(&round).iter().any(|(service, what, ..)| (&**service, *what) == ("shop/file", What::TakenOver)));
}

fn refusals(round: &Round) -> Vec<What> {
    let kinds = reported(round).into_iter().map(|(_, what, ..)| what);
    kinds.filter(|what| matches!(what, What::Refused | What::Admitted)).collect()
}

fn own(addresses: &[&str]) -> Change {
    let addresses = addresses.iter().map(|address| l4(address).addr).collect();
    Change::Node(NodeFacts { addresses, ..NodeFacts::default() })
}

#[test]
fn a_refusal_is_in_the_history_when_it_takes_effect() {
    let mut run = without_kubernetes();
    run.send(of_kubernetes().into_iter().chain([synced()]));
    for addresses in [&[WEB][..], &[], &[WEB]] {
        assert_eq!(refusals(&run.send([own(addresses)])), [], "connections reach the backends");
    }
    assert_eq!(run.status(WEB).0, Status::Kept);
    assert_eq!(refusals(&run.send([synced_kubernetes()])), [What::Refused]);
    assert_eq!(refusals(&run.send([own(&[])])), [What::Admitted]);
}

/// Otherwise the history does not have the outage of a service whose source is no longer configured.
#[test]
fn a_refusal_of_a_source_that_reports_nothing_more_is_in_the_history() {
    let file = [Change::UpsertService(service("shop/file", WEB)), list("shop/file", &[BACKEND])];
    let mut run = Run::first();
    run.engine = engine_of_both(&run.datapath);
    run.send(of_kubernetes().into_iter().chain(file.clone()).chain([synced(), synced_kubernetes()]));
    let mut run = Run { engine: engine_with(&run.datapath), ..run };
    run.send(of_kubernetes().into_iter().chain(file).chain([synced()]));
    run.send([Change::RemoveService(name("shop/file"), Source::Files)]);
    assert_eq!(run.status(WEB).0, Status::Ok, "shop/api takes over");
    let round = run.send([own(&[WEB])]);
    assert_eq!((run.status(WEB).0, refusals(&round)), (Status::Refused, vec![What::Refused]));
    assert_eq!(refusals(&run.send([own(&[])])), [What::Admitted]);
}
