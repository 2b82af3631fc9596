//! Since when frontends have had their status, over restarts.

use super::*;
use crate::before::{Lasting, Statuses};
use crate::model::health_check::HealthCheck;

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

    fn send(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.now = self.now.plus(1_000);
        self.engine.reconcile(&mut self.datapath, self.now);
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
        assert_eq!([run.status(WEB), run.status(OTHER)], [(Status::Kept, 3_000), (Status::Kept, 2_000)]);
        run.send([failed_checks("shop/web", &[BACKEND])].into_iter().chain(objects()).chain([synced()]));
        assert_eq!([run.status(WEB), run.status(OTHER)], [(Status::LastResort, 3_000), (Status::Ok, 2_000)]);
        let snapshot = run.engine.snapshot(run.now);
        assert_eq!(snapshot.degraded().map(|(_, degraded)| degraded.since).collect::<Vec<_>>(), [Moment(3_000)]);
        assert!(run.engine.before.statuses.is_empty(), "nothing is kept that is known");
    }
    run.send([failed_checks("shop/web", &[])]);
    assert_eq!(run.status(WEB), (Status::Ok, run.now.0));
}

/// The daemon was killed while it waited for its sources.
#[test]
fn what_is_not_known_yet_is_stored_for_the_next_run() {
    let run = failed().restarted().restarted();
    assert_eq!([run.status(WEB), run.status(OTHER)], [(Status::Kept, 3_000), (Status::Kept, 2_000)]);
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
