use std::time::Duration;

use nodelb_core::model::addr::Family;
use nodelb_core::model::health_check::Method;
use nodelb_core::model::named::{
    AnswerState, DnsName, NameAnswer, NameRecords, Named, NamedAddress, Question, RecordType,
};
use nodelb_core::model::service::{self, Origin, SliceName, SlicePort};
use nodelb_core::state::entries::{BackendId, OutsideEntry, ServiceEntry, ServiceId, Slot};
use nodelb_core::state::owner::{self, OwnerTag};
use nodelb_core::table::Table;
use proptest::prelude::*;

use super::*;
use crate::checks::CheckOutcome;

const REFUSED: &str = "connection refused";

fn name(name: &str) -> ServiceName {
    ServiceName::new("shop", name)
}

fn check(port: Option<u16>, starts_healthy: bool) -> HealthCheck {
    HealthCheck { port, starts_healthy, ..HealthCheck::default() }
}

fn described(service: &str, check: Option<HealthCheck>) -> Change {
    Change::UpsertService(Service { health_check: check.map(Arc::new), ..Service::new(name(service), Source::Files) })
}

fn backend(last: u8, port: u16) -> service::Backend {
    service::Backend::new(addr(last), port)
}

fn addr(last: u8) -> Addr {
    format!("192.0.2.{last}").parse().unwrap()
}

fn listed_as(slice: &str, service: &str, protocol: Protocol, backends: Vec<service::Backend>) -> Change {
    Change::UpsertSlice(Slice {
        name: SliceName::new("shop", slice),
        service: name(service),
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "".into(), protocol, backends }],
        problem: None,
    })
}

fn listed(service: &str, lasts: &[u8]) -> Change {
    listed_as(service, service, Protocol::Tcp, lasts.iter().map(|last| backend(*last, 80)).collect())
}

fn unlisted(slice: &str) -> Change {
    Change::RemoveSlice(SliceName::new("shop", slice), Source::Files)
}

fn synced() -> Change {
    Change::Synced { source: Source::Files, incomplete: None }
}

impl Board {
    fn holds_nothing(&self) -> bool {
        let Self { subjects, targets, unhealthy_before, unreported, last, .. } = self;
        last.is_empty()
            && subjects.is_empty()
            && targets.is_empty()
            && unhealthy_before.is_empty()
            && unreported.is_empty()
    }
}

/// A board, and the table of the owner task.
#[derive(Default)]
struct Stage {
    board: Board,
    table: Table,
    now: Moment,
    /// The number of changes that the owner task has received from the board.
    changes: usize,
}

/// The entry of a service of a file with these lists.
fn in_use(service: &str, cluster: &[u8], local: &[u8]) -> ServiceEntry {
    let tag = Some(OwnerTag { source: Source::Files, service: owner::hash_of(&name(service)), port: 0 });
    let slot = |last: &u8| Slot { backend: BackendId(1), addr: L4Addr::new(addr(*last), 80, Protocol::Tcp) };
    let [cluster, local] = [cluster, local].map(|list| list.iter().map(slot).collect());
    ServiceEntry { cluster, local, tag, ..ServiceEntry::default() }
}

impl Stage {
    fn recalling(remembered: &[(&str, u8)]) -> Self {
        Self::continuing(remembered, &[], None)
    }

    /// With these backends of file services in the maps.
    fn continuing(remembered: &[(&str, u8)], in_maps: &[(&str, u8)], kubernetes: Option<Guard>) -> Self {
        let mut unhealthy: BTreeMap<ServiceName, Quarantine> = BTreeMap::new();
        for (service, last) in remembered {
            unhealthy.entry(name(service)).or_default().insert((addr(*last), 80), "from before".into());
        }
        let mut maps = MapState::default();
        for (number, (service, last)) in (1..).zip(in_maps) {
            maps.services.insert(ServiceId(number), Arc::new(in_use(service, &[*last], &[])));
        }
        let mut board = Board::new((Used::of(&maps, |_| true), Used::of_passed(&maps, |_| true)), kubernetes);
        board.recall(unhealthy);
        let mut stage = Self { board, table: Table::new(&maps, &BTreeSet::new()), ..Self::default() };
        stage.publish();
        stage
    }

    /// Returns what the board follows; the text of the owner task is that before it has the results.
    fn follow(&mut self, changes: &[Change]) -> Followed {
        let checked_before = self.table.checked.clone();
        changes.iter().for_each(|change| drop(self.table.apply(change.clone())));
        self.table.resolve_names();
        let before = self.text();
        let followed = self.board.follow(&self.table);
        self.publish();
        // A backend may share the port that is checked, or was, with one that has failed.
        let shares_port = |(name, service): (&ServiceName, &Arc<Service>), line: &str| {
            line.starts_with(&format!("{name}:")) && service.health_check.as_ref().is_some_and(|it| it.port.is_some())
        };
        let is_late = |line: &String| {
            !before.iter().any(|known| without_error(known) == without_error(line))
                && !self.table.checked.iter().chain(&checked_before).any(|service| shares_port(service, line))
        };
        let late: Vec<String> = self.text().into_iter().filter(is_late).collect();
        assert!(late.is_empty(), "in use until the board has seen the snapshot: {late:?}");
        followed
    }

    fn publish(&mut self) {
        for change in self.board.changes(self.now) {
            assert!(matches!(change, Change::Quarantine(..) | Change::Passed(..)), "{change:?}");
            self.changes += usize::from(matches!(change, Change::Quarantine(..)));
            self.table.apply(change);
        }
    }

    /// Returns the target of a service that checks this address.
    fn target(&self, service: &str, last: u8, port: u16) -> Option<TargetId> {
        let subject = self.board.subjects.get(&name(service))?;
        subject.targets.get(&(addr(last), port)).map(|target| target.id)
    }

    /// Takes this number of equal answers of a backend on port 80; returns the turns.
    fn answers(&mut self, service: &str, last: u8, answer: Result<(), &str>, count: u32) -> Vec<Transition> {
        let id = self.target(service, last, 80).unwrap();
        let outcome = if answer.is_ok() { CheckOutcome::Passed } else { CheckOutcome::Refused };
        self.board.note(id, LastCheck { outcome, at: self.now, took: Duration::from_millis(1) });
        let turns = (0..count).filter_map(|_| self.board.record(id, answer.map_err(Arc::from))).collect();
        self.publish();
        turns
    }

    /// Returns `shop/web: 192.0.2.1:80 connection refused`, one line per backend that is unhealthy according to the table.
    fn text(&self) -> Vec<String> {
        let line = |name: &ServiceName, (backend, error): (&Backend, &Arc<str>)| {
            format!("{name}: {}:{} {error}", backend.0, backend.1)
        };
        let all = self.table.quarantine.iter();
        all.flat_map(|(name, failed)| failed.iter().map(move |failure| line(name, failure))).collect()
    }
}

fn without_error(line: &str) -> Vec<&str> {
    line.split(' ').take(2).collect()
}

#[test]
fn failures_are_reported_and_cleared() {
    let mut stage = Stage::default();
    let followed = stage.follow(&[listed("web", &[1, 2]), described("web", Some(check(None, true))), synced()]);
    assert_eq!(
        (followed.entered.len(), followed.left.len(), stage.changes),
        (2, 0, 0),
        "healthy until an answer is bad"
    );
    let turns = stage.answers("web", 1, Err(REFUSED), 1);
    let turn =
        Transition { service: name("web"), backend: "192.0.2.1:80".parse().unwrap(), failure: Some(REFUSED.into()) };
    assert_eq!(turns, [turn]);
    assert_eq!(stage.text(), ["shop/web: 192.0.2.1:80 connection refused"]);
    assert_eq!(stage.answers("web", 2, Ok(()), 5), [], "it was healthy all along");
    assert_eq!(stage.answers("web", 1, Ok(()), 1), []);
    assert_eq!(stage.answers("web", 1, Ok(()), 1).len(), 1);
    assert_eq!(stage.text(), [""; 0]);
}

#[test]
fn before_its_first_answer_a_backend_is_as_the_service_says() {
    let mut stage = Stage::default();
    stage.follow(&[listed("web", &[1]), described("web", Some(check(None, false)))]);
    assert_eq!(stage.text(), ["shop/web: 192.0.2.1:80 not checked yet"]);
    assert_eq!(stage.answers("web", 1, Ok(()), 1).len(), 1, "the first answer decides");
    assert_eq!(stage.text(), [""; 0]);
    stage.follow(&[listed("web", &[1, 2])]);
    assert_eq!(stage.text(), ["shop/web: 192.0.2.2:80 not checked yet"], "in the round that brings it");
}

/// A new error text is sent only from time to time, and never costs the owner task one change per check.
#[test]
fn another_error_is_reported_after_a_while() {
    let mut stage = Stage::default();
    stage.follow(&[listed("web", &[1]), described("web", Some(check(None, true)))]);
    stage.answers("web", 1, Err(REFUSED), 1);
    for _ in 0..100 {
        stage.answers("web", 1, Err("no answer within 2 s"), 1);
        stage.answers("web", 1, Err(REFUSED), 1);
        stage.answers("web", 1, Err("status 503, expected 200-399"), 1);
    }
    assert_eq!((stage.changes, stage.text()), (1, vec!["shop/web: 192.0.2.1:80 connection refused".to_owned()]));
    stage.now = stage.now.plus(TEXT_EVERY);
    stage.publish();
    assert_eq!(stage.text(), ["shop/web: 192.0.2.1:80 status 503, expected 200-399"]);
}

#[test]
fn backends_that_are_drained_or_not_ready_are_not_asked() {
    let mut stage = Stage::default();
    let in_state = |last, state| service::Backend { state, ..backend(last, 80) };
    let backends = vec![
        in_state(1, BackendState::Active),
        in_state(2, BackendState::Terminating),
        in_state(3, BackendState::Maintenance),
        in_state(4, BackendState::NotReady),
        service::Backend { weight: 0, ..backend(5, 80) },
    ];
    stage.follow(&[listed_as("a", "web", Protocol::Tcp, backends), described("web", Some(check(None, false)))]);
    let asked: Vec<bool> = (1..=5).map(|last| stage.target("web", last, 80).is_some()).collect();
    assert_eq!(asked, [true, true, false, false, false]);
    let drained = vec![in_state(1, BackendState::Maintenance)];
    let followed = stage.follow(&[listed_as("a", "web", Protocol::Tcp, drained)]);
    assert_eq!((followed.left.len(), stage.text()), (2, Vec::new()), "its health is of no interest now");
}

#[test]
fn a_port_of_its_own_is_asked_once_per_address() {
    let mut stage = Stage::default();
    let both = vec![backend(1, 53), backend(1, 9153), backend(2, 53)];
    let slice = listed_as("dns", "dns", Protocol::Udp, both);
    stage.follow(&[slice.clone(), described("dns", Some(check(None, true)))]);
    assert_eq!(stage.board.counts(), BTreeMap::new(), "nothing answers over TCP at a port of UDP");
    let followed = stage.follow(&[described("dns", Some(check(Some(8080), true)))]);
    assert_eq!(followed.entered.len(), 2);
    let id = stage.target("dns", 1, 8080).unwrap();
    assert_eq!(
        stage.board.question(id, &MapState::default()).map(|question| question.at.to_string()).as_deref(),
        Some("192.0.2.1:8080")
    );
    let turn = stage.board.record(id, Err(REFUSED.into())).unwrap();
    assert_eq!(turn.backend.to_string(), "192.0.2.1:53");
    stage.publish();
    let expected = ["shop/dns: 192.0.2.1:53 connection refused", "shop/dns: 192.0.2.1:9153 connection refused"];
    assert_eq!(stage.text(), expected);
    let followed = stage.follow(&[described("dns", Some(check(Some(8081), true)))]);
    assert_eq!((followed.entered.len(), followed.left.len()), (2, 2));
    assert_eq!(stage.text(), expected, "asked elsewhere: unhealthy until the first answer from there");
}

/// Edits of a file keep the state of the backends that stay.
#[test]
fn an_edit_keeps_how_backends_stand() {
    let mut stage = Stage::default();
    stage.follow(&[listed("web", &[1, 2]), described("web", Some(check(None, true)))]);
    stage.answers("web", 1, Err(REFUSED), 1);
    stage.answers("web", 2, Ok(()), 1);
    let id = stage.target("web", 1, 80);
    let followed = stage.follow(&[listed("web", &[1, 3])]);
    assert_eq!((followed.entered.len(), followed.left.len(), stage.target("web", 1, 80)), (1, 1, id));
    assert_eq!(stage.text(), ["shop/web: 192.0.2.1:80 connection refused"]);

    let counts = HealthCheck { rise: 1, fall: 9, ..check(None, true) };
    assert_eq!(stage.follow(&[described("web", Some(counts.clone()))]), Followed::default(), "checks nothing");
    let often = HealthCheck { interval: Duration::from_secs(1), ..counts.clone() };
    assert_eq!(stage.follow(&[described("web", Some(often))]).entered.len(), 2, "the old interval may be long");

    let status = 200..=399;
    let http = HealthCheck { method: Method::Http { path: "/".into(), host: None, status }, ..counts };
    assert_eq!(stage.follow(&[described("web", Some(http))]).entered.len(), 2);
    assert_eq!(stage.text(), ["shop/web: 192.0.2.1:80 connection refused"], "as before until it is asked that");
    assert_eq!(stage.answers("web", 1, Ok(()), 1).len(), 1, "and the first answer decides");
    assert_eq!(stage.follow(&[listed("web", &[1, 3])]), Followed::default(), "the same again");
}

/// A backend's answer to the previous check does not count for the present one.
#[test]
fn an_answer_to_the_question_before_an_edit_counts_for_nothing() {
    let mut stage = Stage::default();
    stage.follow(&[listed("web", &[1]), described("web", Some(check(None, true)))]);
    stage.answers("web", 1, Ok(()), 1);
    let before = stage.target("web", 1, 80).unwrap();
    let http = Method::Http { path: "/".into(), host: None, status: 200..=299 };
    let followed = stage.follow(&[described("web", Some(HealthCheck { method: http, ..check(None, true) }))]);
    let now = stage.target("web", 1, 80).unwrap();
    assert_eq!((followed.entered[0].id, followed.entered.len(), followed.left), (now, 1, vec![before]));
    assert_eq!(stage.board.record(before, Err(REFUSED.into())), None);
    assert_eq!(stage.text(), [""; 0]);
    assert_eq!(stage.answers("web", 1, Err(REFUSED), 1).len(), 1);
}

#[test]
fn a_service_that_loses_its_checks_leaves_nothing_behind() {
    for last in [described("web", None), Change::RemoveService(name("web"), Source::Files), unlisted("web")] {
        let mut stage = Stage::default();
        stage.follow(&[listed("web", &[1]), described("web", Some(check(None, true)))]);
        let id = stage.target("web", 1, 80).unwrap();
        stage.answers("web", 1, Err(REFUSED), 1);
        let followed = stage.follow(&[last]);
        assert_eq!((followed.left, stage.text()), (vec![id], Vec::new()));
        assert_eq!(stage.board.record(id, Err(REFUSED.into())), None, "an answer that comes too late");
        assert!(stage.board.question(id, &MapState::default()).is_none());
        stage.follow(&[unlisted("web"), Change::RemoveService(name("web"), Source::Files)]);
        assert!(stage.board.holds_nothing());
    }
}

#[test]
fn unhealthy_backends_of_the_previous_run_are_known_before_the_first_batch() {
    let mut stage = Stage::recalling(&[("web", 1), ("web", 9), ("gone", 1), ("late", 1)]);
    let incomplete = Change::Synced { source: Source::Files, incomplete: Some("late.toml cannot be used".into()) };
    assert_eq!(stage.text().len(), 4);
    stage.follow(&[listed("web", &[1, 2]), described("web", Some(check(None, true))), incomplete]);
    let others = ["shop/gone: 192.0.2.1:80 from before", "shop/late: 192.0.2.1:80 from before"];
    assert_eq!(stage.text(), [&others[..], &["shop/web: 192.0.2.1:80 from before"]].concat());
    let kept = stage.board.unhealthy();
    assert_eq!(kept.keys().map(|name| &*name.name).collect::<Vec<_>>(), ["gone", "late", "web"], "not reported of yet");
    assert_eq!(kept[&name("web")].len(), 1, "its other backend is gone");
    assert_eq!(stage.answers("web", 1, Ok(()), 1), [], "it needs as many good answers as without the restart");

    stage.follow(&[listed("late", &[1]), described("late", Some(check(None, true))), synced()]);
    assert_eq!(stage.text(), ["shop/late: 192.0.2.1:80 from before", "shop/web: 192.0.2.1:80 from before"]);
    assert_eq!(stage.board.unhealthy().len(), 2, "everything is reported, so the other is gone");
}

#[test]
fn a_backend_that_the_maps_use_is_not_unhealthy_because_of_an_older_file() {
    let mut stage = Stage::continuing(&[("web", 1), ("web", 2)], &[("web", 1)], None);
    assert_eq!(stage.text(), ["shop/web: 192.0.2.2:80 from before"]);
    stage.follow(&[listed("web", &[1, 2]), described("web", Some(check(None, false))), synced()]);
    assert_eq!(stage.text(), ["shop/web: 192.0.2.2:80 from before"]);
}

/// A list has all of its backends if each had failed.
#[test]
fn a_last_resort_in_the_maps_is_no_sign_of_health() {
    let failed = || BTreeMap::from([(name("web"), [((addr(1), 80), "from before".into())].into())]);
    let unhealthy_after = |entry| {
        let maps =
            MapState { services: [(ServiceId(1), Arc::new(entry))].into_iter().collect(), ..MapState::default() };
        let mut board = Board::new((Used::of(&maps, |_| true), Used::of_passed(&maps, |_| true)), None);
        board.recall(failed());
        board.unhealthy().len()
    };
    assert_eq!(unhealthy_after(in_use("web", &[1], &[1])), 0, "it has passed since");
    assert_eq!(unhealthy_after(ServiceEntry { is_last_resort: true, ..in_use("web", &[1], &[]) }), 1);
    assert_eq!(unhealthy_after(ServiceEntry { is_local_last_resort: true, ..in_use("web", &[2], &[1]) }), 1);
}

/// A disk that hangs at the start: what has been found out since then is newer.
#[test]
fn what_is_recalled_late_does_not_replace_what_a_check_has_found() {
    let mut stage = Stage::continuing(&[], &[("web", 5)], None);
    let web = [listed("web", &[1, 2, 3, 5]), described("web", Some(check(None, true)))];
    stage.follow(&[&web[..], &[incomplete()]].concat());
    stage.answers("web", 1, Ok(()), 1);
    stage.answers("web", 2, Err("new"), 1);
    assert_eq!(stage.text(), ["shop/web: 192.0.2.2:80 new"]);
    let before = |lasts: &[u8]| lasts.iter().map(|last| ((addr(*last), 80), "from before".into())).collect();
    stage.board.recall([(name("web"), before(&[1, 2, 3, 4, 5])), (name("late"), before(&[1]))].into());
    stage.publish();
    let web = ["shop/web: 192.0.2.2:80 new", "shop/web: 192.0.2.3:80 from before"];
    assert_eq!(stage.text(), [&["shop/late: 192.0.2.1:80 from before"], &web[..]].concat());
    stage.follow(&[synced()]);
    assert_eq!(stage.text(), web);
    // After everything is known, nothing waits.
    stage.board.recall([(name("late"), before(&[1]))].into());
    stage.publish();
    assert_eq!(stage.text(), web);
}

/// The names of a service that have no answer yet may have the backends: these were newcomers when they had one.
#[test]
fn what_is_remembered_waits_for_the_names_of_the_service() {
    let question = Question { name: DnsName::of_labels("web.example").unwrap(), record: RecordType::A };
    let named = Change::UpsertNamed(Named {
        slice: SliceName::new("shop", "dns:web"),
        service: name("web"),
        port: "".into(),
        protocols: vec![Protocol::Tcp],
        families: vec![Family::Ipv4],
        backend: backend(0, 80),
        question: question.clone(),
    });
    let records = |lasts: &[u8]| NameRecords {
        priorities: vec![lasts.iter().map(|last| NamedAddress { addr: addr(*last), srv: None }).collect()],
        server: "s".into(),
        since: 1,
        is_recalled: false,
    };
    let answer = |lasts: &[u8]| {
        let answer =
            NameAnswer { records: Some(records(lasts)), state: AnswerState::Answered, ..NameAnswer::default() };
        Change::Answer(question.clone(), Some(answer))
    };
    for literals in [&[][..], &[9]] {
        let mut stage = Stage::continuing(&[("web", 1), ("web", 2), ("gone", 1)], &[("web", 3)], None);
        stage.follow(&[described("web", Some(check(None, true))), listed("web", literals), named.clone(), synced()]);
        let text = ["shop/web: 192.0.2.1:80 from before", "shop/web: 192.0.2.2:80 from before"];
        assert_eq!(stage.text(), text, "{literals:?}");
        assert_eq!(stage.board.unhealthy()[&name("web")].len(), 2, "{literals:?}");
        stage.follow(&[answer(&[1, 3, 4])]);
        assert_eq!(stage.text(), text[..1]);
        assert_eq!(after_bad_answers(&mut stage, "web", 3, 2), text[..1], "it needs three, as without the restart");
        assert_eq!(after_bad_answers(&mut stage, "web", 4, 1).len(), 2, "it is new");
        assert!(stage.board.unhealthy_before.is_empty());
        stage.follow(&[answer(&[1, 2])]);
        assert_eq!(stage.text(), text[..1], "what is listed later is new");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Follow(Vec<Change>),
    Record(u8, u8, bool),
    Wait(u64),
}

fn change() -> impl Strategy<Value = Change> {
    let service = prop::sample::select(vec!["web", "we", "api"]);
    let a_check = (prop::option::of(prop::sample::select(vec![80_u16, 81])), any::<bool>(), 1..3_u8)
        .prop_map(|(port, starts_healthy, rise)| HealthCheck { rise, fall: 2, ..check(port, starts_healthy) });
    let state = prop_oneof![4 => Just(BackendState::Active), 1 => Just(BackendState::Maintenance)];
    let a_backend =
        (1..4_u8, 80..82_u16, state).prop_map(|(last, port, state)| service::Backend { state, ..backend(last, port) });
    let slice = prop::sample::select(vec!["s1", "s2"]);
    let protocol = prop_oneof![3 => Just(Protocol::Tcp), 1 => Just(Protocol::Udp)];
    prop_oneof![
        4 => (service.clone(), prop::option::of(a_check)).prop_map(|(service, check)| described(service, check)),
        1 => service.clone().prop_map(|service| Change::RemoveService(name(service), Source::Files)),
        4 => (slice.clone(), service, protocol, prop::collection::vec(a_backend, 0..4))
            .prop_map(|(slice, service, protocol, backends)| listed_as(slice, service, protocol, backends)),
        1 => slice.prop_map(unlisted),
        1 => Just(synced()),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => prop::collection::vec(change(), 1..4).prop_map(Step::Follow),
        3 => (0..3_u8, any::<u8>(), any::<bool>()).prop_map(|(service, target, is_good)| Step::Record(service, target, is_good)),
        1 => (0..6_000_u64).prop_map(Step::Wait),
    ]
}

proptest! {
    /// After any sequence of edits and answers, the owner task knows exactly the unhealthy targets, and the targets are
    /// those that a new board would have. Exactly those are checked; and when all files are removed, nothing is left.
    #[test]
    fn the_owner_knows_exactly_what_is_unhealthy(steps in prop::collection::vec(step(), 1..60)) {
        let mut stage = Stage::recalling(&[("web", 1), ("api", 2), ("gone", 3)]);
        let mut schedule: BTreeSet<TargetId> = BTreeSet::new();
        let mut facts: BTreeMap<String, Change> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Follow(changes) => {
                    for change in &changes {
                        let (key, is_there) = match change {
                            Change::UpsertService(service) => (format!("service {}", service.name), true),
                            Change::RemoveService(name, _) => (format!("service {name}"), false),
                            Change::UpsertSlice(slice) => (format!("slice {}", slice.name), true),
                            Change::RemoveSlice(name, _) => (format!("slice {name}"), false),
                            _ => continue,
                        };
                        facts.remove(&key);
                        if is_there {
                            facts.insert(key, change.clone());
                        }
                    }
                    let Followed { entered, left } = stage.follow(&changes);
                    schedule.extend(entered.into_iter().map(|entered| entered.id));
                    for id in left {
                        prop_assert!(schedule.remove(&id), "{:?} left twice, or was never there", id);
                    }
                }
                Step::Record(service, target, is_good) => {
                    let service = name(["web", "we", "api"][usize::from(service)]);
                    let targets = stage.board.subjects.get(&service).map(|subject| &subject.targets);
                    let ids: Vec<TargetId> = targets.into_iter().flatten().map(|(_, target)| target.id).collect();
                    if let Some(id) = ids.get(usize::from(target) % ids.len().max(1)) {
                        stage.board.record(*id, if is_good { Ok(()) } else { Err(REFUSED.into()) });
                        stage.publish();
                    }
                }
                Step::Wait(millis) => {
                    stage.now = stage.now.plus(millis);
                    stage.publish();
                }
            }
            let (mut expected, mut ids) = (BTreeMap::new(), BTreeSet::new());
            for (name, subject) in &stage.board.subjects {
                ids.extend(subject.targets.values().map(|target| target.id));
                let check = subject.service.as_ref().and_then(|service| service.health_check.as_ref());
                let is_unhealthy =
                    |target: &&CheckedTarget| check.is_some_and(|check| !target.health.is_healthy(check));
                let unhealthy = subject.targets.values().filter(is_unhealthy);
                let mut failed: BTreeSet<Backend> = unhealthy.flat_map(|target| target.backends.clone()).collect();
                let passed = subject.results().1;
                let before = stage.board.unhealthy_before.get(name).into_iter().flat_map(|before| before.keys().copied());
                failed.extend(before.filter(|backend| !passed.contains(backend)));
                if !failed.is_empty() {
                    expected.insert(name.clone(), failed);
                }
            }
            let known = |(name, failed): (&ServiceName, &Arc<Quarantine>)| (name.clone(), failed.keys().copied().collect());
            prop_assert_eq!(stage.table.quarantine.iter().map(known).collect::<BTreeMap<_, BTreeSet<_>>>(), expected);
            prop_assert_eq!(&ids, &schedule);
            prop_assert_eq!(&stage.board.targets.keys().copied().collect::<BTreeSet<_>>(), &ids);

            let (mut scratch, mut table) = (Board::default(), Table::default());
            facts.values().for_each(|change| drop(table.apply(change.clone())));
            scratch.follow(&table);
            let asked = |board: &Board| {
                let all = board.subjects.iter().flat_map(|(name, subject)| subject.targets.keys().map(|at| (name.clone(), *at)));
                all.collect::<BTreeSet<_>>()
            };
            prop_assert_eq!(asked(&scratch), asked(&stage.board));
        }
        let removal = |change: &Change| match change {
            Change::UpsertService(service) => Change::RemoveService(service.name.clone(), Source::Files),
            Change::UpsertSlice(slice) => Change::RemoveSlice(slice.name.clone(), Source::Files),
            other => other.clone(),
        };
        stage.follow(&facts.values().map(removal).chain([synced()]).collect::<Vec<_>>());
        prop_assert!(stage.board.holds_nothing() && stage.table.quarantine.is_empty(), "{:?}", stage.board);
    }
}

/// The change as the Kubernetes source sends it.
fn of_kubernetes(change: Change) -> Change {
    match change {
        Change::UpsertService(service) => {
            Change::UpsertService(Service { source: Source::Kubernetes, created: Some(1), ..service })
        }
        Change::UpsertSlice(slice) => Change::UpsertSlice(Slice { source: Source::Kubernetes, ..slice }),
        other => other,
    }
}

/// As in the core's table, the description from a file takes precedence, with its own backends only.
#[test]
fn of_two_sources_only_the_one_with_precedence_is_checked() {
    let mut stage = Stage::continuing(&[], &[], Some(Guard::default()));
    let kubernetes = [described("web", Some(check(None, true))), listed("web", &[1])].map(of_kubernetes);
    stage.follow(&kubernetes);
    assert!(stage.target("web", 1, 80).is_some());
    stage.follow(&[described("web", None), listed("web", &[2])]);
    assert_eq!((stage.target("web", 1, 80), stage.target("web", 2, 80)), (None, None));
    stage.follow(&[described("web", Some(check(None, true)))]);
    assert!(stage.target("web", 1, 80).is_none() && stage.target("web", 2, 80).is_some());
    stage.follow(&[Change::RemoveService(name("web"), Source::Files), unlisted("web")]);
    assert!(stage.target("web", 1, 80).is_some() && stage.target("web", 2, 80).is_none());
    let removed = [
        Change::RemoveService(name("web"), Source::Kubernetes),
        Change::RemoveSlice(SliceName::new("shop", "web"), Source::Kubernetes),
    ];
    stage.follow(&removed);
    assert!(stage.board.holds_nothing(), "{:?}", stage.board);
}

/// A user of the cluster must not make the host connect to addresses that are valid only there, nor to nodelb itself.
#[test]
fn a_kubernetes_service_cannot_make_the_host_ask_itself() {
    let admin = ("192.0.2.9".parse().unwrap(), 9890);
    let guard = Guard { admin: vec![admin], ..Guard::default() };
    let mut stage = Stage::continuing(&[], &[], Some(guard));
    let backends = |port| {
        let addresses =
            ["127.0.0.1", "::1", "169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1", "192.0.2.9", "192.0.2.1"];
        let backends = addresses.map(|addr| service::Backend::new(addr.parse().unwrap(), port));
        listed_as("web", "web", Protocol::Tcp, backends.into())
    };
    let asked = |stage: &Stage| stage.board.subjects[&name("web")].targets.keys().copied().collect::<Vec<_>>();
    let changes = [described("web", Some(check(Some(9890), true))), backends(80)];
    stage.follow(&changes.clone().map(of_kubernetes));
    assert_eq!(asked(&stage), [(addr(1), 9890)]);
    stage.follow(&[described("web", Some(check(None, true)))].map(of_kubernetes));
    assert_eq!(asked(&stage), [(addr(1), 80), (addr(9), 80)]);
    let mut stage = Stage::default();
    stage.follow(&changes);
    assert_eq!(asked(&stage).len(), 8, "the operator's own files may name any address");
}

/// What was unhealthy before a restart stays so until both sources have sent their services.
#[test]
fn what_is_remembered_waits_for_every_source() {
    let mut stage = Stage::continuing(&[("web", 1)], &[], Some(Guard::default()));
    stage.follow(&[synced()]);
    stage.follow(&[described("web", Some(check(None, true))), listed("web", &[1])].map(of_kubernetes));
    assert_eq!(stage.text(), ["shop/web: 192.0.2.1:80 from before"]);
    stage.follow(&[Change::Synced { source: Source::Kubernetes, incomplete: None }]);
    assert!(stage.board.unhealthy_before.is_empty());
}

fn incomplete() -> Change {
    Change::Synced { source: Source::Files, incomplete: Some("broken.toml cannot be used".into()) }
}

/// The text of all backends after this number of bad answers of this one.
fn after_bad_answers(stage: &mut Stage, service: &str, last: u8, count: u32) -> Vec<String> {
    stage.answers(service, last, Err(REFUSED), count);
    stage.text()
}

/// A broken file once kept every new service from being checked before its first connection.
#[test]
fn a_new_service_is_a_newcomer_although_a_file_is_broken() {
    let in_maps = [("web", 1), ("broken", 2)];
    let mut stage = Stage::continuing(&[("broken", 3)], &in_maps, None);
    let unhealthy_at_first = || Some(check(None, false));
    stage.follow(&[listed("web", &[1]), described("web", unhealthy_at_first()), incomplete()]);
    let broken = ["shop/broken: 192.0.2.3:80 from before"];
    assert_eq!(stage.text(), broken, "the others were in use a moment ago");
    assert_eq!(after_bad_answers(&mut stage, "web", 1, 2), broken, "it needs three, as without the restart");
    stage.follow(&[listed("new", &[1, 2]), described("new", unhealthy_at_first())]);
    assert_eq!(stage.text()[1..], ["shop/new: 192.0.2.1:80 not checked yet", "shop/new: 192.0.2.2:80 not checked yet"]);
    stage.follow(&[listed("web", &[1, 4])]);
    assert_eq!(stage.text()[3..], ["shop/web: 192.0.2.4:80 not checked yet"], "another backend of the service");
    stage.follow(&[listed("broken", &[2, 3]), described("broken", unhealthy_at_first()), synced()]);
    assert_eq!(stage.text()[0], "shop/broken: 192.0.2.3:80 from before", "what could not be read continues");
    assert_eq!(after_bad_answers(&mut stage, "broken", 2, 2).len(), 4);
}

#[test]
fn a_service_that_is_removed_and_created_again_is_a_newcomer_although_a_file_is_broken() {
    let mut stage = Stage::continuing(&[("web", 1), ("late", 1)], &[("web", 2)], None);
    let web = [listed("web", &[1, 2]), described("web", Some(check(None, true)))];
    stage.follow(&[&web[..], &[incomplete()]].concat());
    let late = "shop/late: 192.0.2.1:80 from before";
    assert_eq!(stage.text(), [late, "shop/web: 192.0.2.1:80 from before"]);
    stage.follow(&[Change::RemoveService(name("web"), Source::Files), unlisted("web")]);
    assert_eq!(stage.board.unhealthy().keys().collect::<Vec<_>>(), [&name("late")], "nothing is stored of it");
    stage.follow(&web);
    assert_eq!(stage.text(), [late]);
    assert_eq!(after_bad_answers(&mut stage, "web", 2, 1), [late, "shop/web: 192.0.2.2:80 connection refused"]);
}

/// An apiserver that is unreachable changes nothing for the services of files.
#[test]
fn what_is_remembered_ends_for_each_source() {
    let mut stage = Stage::continuing(&[("web", 1)], &[("web", 2)], Some(Guard::default()));
    stage.follow(&[synced()]);
    stage.follow(&[listed("web", &[1, 2]), described("web", Some(check(None, false)))]);
    assert_eq!(stage.text(), ["shop/web: 192.0.2.1:80 not checked yet", "shop/web: 192.0.2.2:80 not checked yet"]);
}

#[test]
fn what_kubernetes_does_not_let_nodelb_read_is_remembered() {
    let mut stage = Stage::continuing(&[("web", 1), ("api", 1)], &[], Some(Guard::default()));
    stage.table.apply(Change::Unread(["other".into()].into()));
    let incomplete = Change::Synced { source: Source::Kubernetes, incomplete: Some("other may not be read".into()) };
    stage.follow(&[synced(), incomplete.clone()]);
    assert!(stage.board.unhealthy().is_empty());

    let mut stage = Stage::continuing(&[("web", 1), ("api", 1)], &[], Some(Guard::default()));
    stage.follow(&[described("api", Some(check(None, true))), listed("api", &[1])].map(of_kubernetes));
    stage.follow(&[synced(), Change::Unread(["shop".into()].into()), incomplete]);
    stage.follow(&[described("web", Some(check(None, true))), listed("web", &[1])].map(of_kubernetes));
    assert_eq!(stage.text(), ["shop/api: 192.0.2.1:80 from before", "shop/web: 192.0.2.1:80 from before"]);
}

/// A service at these addresses, in ports with these names.
fn forwarded(forward: Forward, check: HealthCheck, frontends: &[(&str, &str, FrontendKind)]) -> Service {
    let port = |(name, at, kind): &(&str, &str, FrontendKind)| {
        let at: SocketAddr = at.parse().unwrap();
        let frontends = vec![FrontendSpec { addr: at.ip().into(), port: at.port(), kind: *kind }];
        service::ServicePort { name: (*name).into(), protocol: Protocol::Tcp, frontends }
    };
    Service {
        health_check: Some(Arc::new(check)),
        ports: frontends.iter().map(port).collect(),
        forward,
        is_outside: true,
        ..Service::new(name("web"), Source::Files)
    }
}

/// Maps that serve these addresses for clients outside, each for the service of this name and source.
fn serving(addresses: &[(&str, (&str, Source), Forward)]) -> MapState {
    let mut maps = MapState::default();
    for (number, (address, (of, source), forward)) in (1..).zip(addresses) {
        let (id, tag) = (ServiceId(number), OwnerTag { source: *source, service: owner::hash_of(&name(of)), port: 0 });
        let entry = ServiceEntry { forward: *forward, tag: Some(tag), ..ServiceEntry::default() };
        maps.services.insert(id, Arc::new(entry));
        maps.outside.insert(at(address), OutsideEntry { service: id, local: false, has_ranges: false });
    }
    maps
}

fn at(address: &str) -> L4Addr {
    let address: SocketAddr = address.parse().unwrap();
    L4Addr::new(address.ip().into(), address.port(), Protocol::Tcp)
}

/// The way of the check of the service's backend.
fn way(service: Service, slice: Change, maps: &MapState) -> Option<(L4Addr, Forward)> {
    let mut stage = Stage::continuing(&[], &[], Some(Guard::default()));
    let port = service.health_check.as_ref().and_then(|check| check.port).unwrap_or(80);
    let Change::UpsertSlice(slice) = slice else { panic!("{slice:?}") };
    let slice = Change::UpsertSlice(Slice { source: service.source, ..slice });
    stage.follow(&[Change::UpsertService(service), slice]);
    let target = stage.target("web", 1, port).unwrap();
    stage.board.question(target, maps).unwrap().way
}

const ADDRESS: &str = "198.51.100.1:443";

/// Clients' packets reach the backends by the ways; a check by another way says nothing about them.
#[test]
fn checks_go_the_way_of_clients_packets() {
    let own = || check(None, true);
    let alone = |forward, check| forwarded(forward, check, &[("", ADDRESS, FrontendKind::Static)]);
    for forward in [Forward::Direct, Forward::Tunnel] {
        let maps = serving(&[(ADDRESS, ("web", Source::Files), forward)]);
        let way_of = |service| way(service, listed("web", &[1]), &maps);
        assert_eq!(way_of(alone(forward, own())), Some((at(ADDRESS), forward)));
        assert_eq!(way_of(alone(forward, check(Some(81), true))), None, "no client reaches this port");
        let inside = Service { is_outside: false, ..alone(forward, own()) };
        assert_eq!(way_of(inside), None);
        for kind in [FrontendKind::ClusterIP, FrontendKind::NodePort] {
            assert_eq!(way_of(forwarded(forward, own(), &[("", ADDRESS, kind)])), None);
        }
        let others = [("metrics", ADDRESS, FrontendKind::Static), ("", "[2001:db8::1]:443", FrontendKind::Static)];
        assert_eq!(way_of(forwarded(forward, own(), &others)), None, "the name of the port, and the family");
        let balanced = || forwarded(forward, own(), &[("", ADDRESS, FrontendKind::LoadBalancer)]);
        assert_eq!(way_of(balanced()), Some((at(ADDRESS), forward)));
        let limited = Service { source_ranges: Some(vec!["203.0.113.0/24".parse().unwrap()]), ..balanced() };
        assert_eq!(way_of(limited), None, "this host may not be in them");
        let mut terminating = backend(1, 80);
        terminating.state = BackendState::Terminating;
        let slice = listed_as("web", "web", Protocol::Tcp, vec![terminating]);
        assert_eq!(way(alone(forward, own()), slice, &maps), None, "it gets no new connections");
        assert_eq!(way_of(alone(Forward::Translate, own())), None);
    }
}

/// What the service claims is no way if clients do not reach it there.
#[test]
fn an_address_that_is_not_served_is_no_way() {
    const OTHER: &str = "198.51.100.2:443";
    let service = || {
        let frontends = [("", ADDRESS, FrontendKind::Static), ("", OTHER, FrontendKind::Static)];
        forwarded(Forward::Tunnel, check(None, true), &frontends)
    };
    let way_with = |maps: &[_]| way(service(), listed("web", &[1]), &serving(maps)).map(|(way, _)| way);
    assert_eq!(way_with(&[]), None);
    let own = ("web", Source::Files);
    let [first, second] = [ADDRESS, OTHER].map(|address| (address, own, Forward::Tunnel));
    assert_eq!(way_with(&[first, second]), Some(at(ADDRESS)));
    assert_eq!(way_with(&[second]), Some(at(OTHER)));
    for owner in [("other", Source::Files), ("web", Source::Kubernetes)] {
        assert_eq!(way_with(&[(ADDRESS, owner, Forward::Tunnel), second]), Some(at(OTHER)));
    }
    assert_eq!(way_with(&[(ADDRESS, own, Forward::Translate)]), None, "as the programs still do");
}

/// A change of the way is no new check: what is known of the backend stays.
#[test]
fn a_change_of_the_way_applies_to_the_next_check() {
    let mut stage = Stage::default();
    let service = |forward| {
        let frontends = [("", ADDRESS, FrontendKind::Static)];
        Change::UpsertService(forwarded(forward, check(None, true), &frontends))
    };
    stage.follow(&[service(Forward::Translate), listed("web", &[1])]);
    let target = stage.target("web", 1, 80).unwrap();
    assert_eq!(stage.follow(&[service(Forward::Tunnel)]), Followed::default());
    let maps = serving(&[(ADDRESS, ("web", Source::Files), Forward::Tunnel)]);
    assert!(matches!(stage.board.question(target, &maps).unwrap().way, Some((_, Forward::Tunnel))));
}

/// A check in Kubernetes goes to no address of a service that a check of a backend must not connect to.
#[test]
fn a_refused_address_is_no_way() {
    const LINK_LOCAL: &str = "169.254.169.254:80";
    for (source, has_way) in [(Source::Files, true), (Source::Kubernetes, false)] {
        let frontends = [("", LINK_LOCAL, FrontendKind::ExternalIP)];
        let service = Service { source, ..forwarded(Forward::Direct, check(None, true), &frontends) };
        let maps = serving(&[(LINK_LOCAL, ("web", source), Forward::Direct)]);
        assert_eq!(way(service, listed("web", &[1]), &maps).is_some(), has_way, "{source}");
    }
}
