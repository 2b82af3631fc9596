use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::MAX_BACKENDS;
use crate::change::Change;
use crate::model::addr::{Addr, Family, L4Addr, Protocol};
use crate::model::health_check::HealthCheck;
use crate::model::named::{AnswerState, DnsName, NameAnswer, NameRecords, Named, NamedAddress, Question, RecordType};
use crate::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, PortKey, Service, ServiceName, ServicePort, Slice, SliceName,
    SlicePort, Source,
};
use crate::state::entries::{MapState, ServiceEntry, ServiceId, Slot};
use crate::state::ids::BackendIds;
use crate::state::owner::OwnerTag;
use crate::table::Table;

fn service() -> ServiceName {
    ServiceName::new("shop", "web")
}

fn addr(last: u8) -> Addr {
    format!("192.0.2.{last}").parse().expect("valid")
}

fn question(name: &str, record: RecordType) -> Question {
    Question { name: DnsName::of_labels(name).expect("valid"), record }
}

fn named_as(name: &str, record: RecordType) -> Named {
    Named {
        slice: SliceName::new("shop", &format!("dns:web:{name}")),
        service: service(),
        question: question(name, record),
        port: "".into(),
        protocols: vec![Protocol::Tcp],
        families: vec![Family::Ipv4],
        backend: Backend::new(Addr::UNSPECIFIED_V4, 80),
    }
}

fn named(name: &str) -> Change {
    Change::UpsertNamed(named_as(name, RecordType::A))
}

fn described() -> Change {
    let frontends = vec![FrontendSpec { addr: addr(200), port: 80, kind: FrontendKind::Static }];
    let ports = vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, frontends }];
    Change::UpsertService(Service { ports, ..Service::new(service(), Source::Files) })
}

fn listed(lasts: &[u8]) -> Change {
    let backends = lasts.iter().map(|last| Backend::new(addr(*last), 80)).collect();
    Change::UpsertSlice(Slice {
        name: SliceName::new("shop", "file:web"),
        service: service(),
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    })
}

fn records(priorities: Vec<Vec<NamedAddress>>, is_recalled: bool) -> NameRecords {
    NameRecords { priorities, server: "192.0.2.53:53".into(), since: 7, is_recalled }
}

fn answer_with(lasts: &[u8], is_recalled: bool) -> NameAnswer {
    let addresses = lasts.iter().map(|last| NamedAddress { addr: addr(*last), srv: None }).collect();
    let state = if is_recalled { AnswerState::Unanswered } else { AnswerState::Answered };
    NameAnswer { records: Some(records(vec![addresses], is_recalled)), problem: None, state }
}

fn answer(name: &str, lasts: &[u8]) -> Change {
    Change::Answer(question(name, RecordType::A), Some(answer_with(lasts, false)))
}

fn recalled(name: &str, lasts: &[u8]) -> Change {
    Change::Answer(question(name, RecordType::A), Some(answer_with(lasts, true)))
}

fn without_records(name: &str, state: AnswerState) -> Change {
    let problem = Some("192.0.2.53:53 answers without records".into());
    Change::Answer(question(name, RecordType::A), Some(NameAnswer { records: None, problem, state }))
}

/// The table of a start with these backends of the service in the maps.
fn table(used: &[u8]) -> Table {
    let view: Vec<(L4Addr, u16)> = used.iter().map(|last| (L4Addr::new(addr(*last), 80, Protocol::Tcp), 1)).collect();
    let cluster: Arc<[Slot]> = BackendIds::new(&MapState::default()).replace(&[], &view).0;
    let key = PortKey { service: service(), port: "".into(), protocol: Protocol::Tcp, family: Family::Ipv4 };
    let tag = Some(OwnerTag::new(&key, Source::Files));
    let mut maps = MapState::default();
    maps.services.insert(ServiceId(1), Arc::new(ServiceEntry { cluster, tag, ..ServiceEntry::default() }));
    Table::new(&maps, &BTreeSet::new())
}

fn synced() -> Change {
    Change::Synced { source: Source::Files, incomplete: None }
}

/// The slice of the name after a round with these changes.
fn slice(table: &mut Table, name: &str, changes: impl IntoIterator<Item = Change>) -> Arc<Slice> {
    changes.into_iter().for_each(|change| drop(table.apply(change)));
    table.resolve_names();
    let (_, slices) = table.owner(&service()).expect("described");
    let found = slices.iter().find(|slice| *slice.name.name == *format!("dns:web:{name}"));
    Arc::clone(found.expect("a slice"))
}

/// The last numbers of the slice's backends; `None` without the port.
fn backends(slice: &Slice) -> Option<Vec<String>> {
    let backends = &slice.ports.first()?.backends;
    Some(backends.iter().map(|it| it.addr.to_string().replace("192.0.2.", "")).collect())
}

fn after(table: &mut Table, name: &str, changes: impl IntoIterator<Item = Change>) -> Option<Vec<String>> {
    backends(&slice(table, name, changes))
}

fn some(lasts: &[&str]) -> Option<Vec<String>> {
    Some(lasts.iter().map(|last| (*last).to_owned()).collect())
}

#[test]
fn an_answer_that_is_refused_or_empty_replaces_nothing() {
    let mut table = table(&[]);
    let first = slice(&mut table, "a", [described(), named("a"), synced(), answer("a", &[1])]);
    assert_eq!((backends(&first), first.problem.clone()), (some(&["1"]), None));
    let refused = slice(&mut table, "a", [answer("a", &[200])]);
    assert_eq!(backends(&refused), some(&["1"]));
    assert!(refused.problem.as_ref().is_some_and(|it| it.starts_with("192.0.2.200:80 is left out: ")), "{refused:?}");
    let left_out = |table: &Table| table.left_out.values().next().cloned();
    assert!(left_out(&table).is_some());
    assert_eq!(after(&mut table, "a", [without_records("a", AnswerState::Answered)]), some(&["1"]));
    assert_eq!(left_out(&table), None);
    assert_eq!(after(&mut table, "a", [answer("a", &[1, 200])]), some(&["1"]));
    assert!(left_out(&table).is_some());
    // In the round in which the service is removed that claims the address.
    let other = Service { ports: Vec::new(), ..Service::new(service(), Source::Files) };
    assert_eq!(after(&mut table, "a", [Change::UpsertService(other)]), some(&["1", "200"]));
}

#[test]
fn the_end_of_a_hold_is_the_cause() {
    let mut table = table(&[]);
    slice(&mut table, "a", [described(), named("a"), synced(), answer("a", &[1])]);
    let ended = slice(&mut table, "a", [without_records("a", AnswerState::Ended(" (5s)".into()))]);
    assert_eq!(backends(&ended), None);
    assert_eq!(&*ended.origin.object, "the end of dns.hold (5s) of DNS A record of a");
}

#[test]
fn the_first_priority_with_a_usable_address_counts() {
    let mut table = table(&[]);
    let srv = |last, port, weight| NamedAddress { addr: addr(last), srv: Some((port, weight)) };
    let answer = |priorities| {
        let records = Some(records(priorities, false));
        let answer = NameAnswer { records, problem: None, state: AnswerState::Answered };
        Change::Answer(question("s", RecordType::Srv), Some(answer))
    };
    let priorities = vec![vec![srv(200, 80, 1)], vec![srv(1, 81, 3), srv(1, 81, 2)], vec![srv(3, 80, 1)]];
    let named = Change::UpsertNamed(named_as("s", RecordType::Srv));
    let found = slice(&mut table, "s", [described(), named, synced(), answer(priorities)]);
    let found: Vec<_> = found.ports[0].backends.iter().map(|it| (it.addr, it.port, it.weight)).collect();
    assert_eq!(found, [(addr(1), 81, 5)]);
    let many = (0..=MAX_BACKENDS).map(|n| {
        let addr = format!("10.0.{}.{}", n / 256, n % 256).parse().expect("valid");
        NamedAddress { addr, srv: Some((3, 1)) }
    });
    let found = slice(&mut table, "s", [answer(vec![many.collect()])]);
    assert_eq!(found.ports[0].backends.len(), MAX_BACKENDS);
    let left_out = table.left_out.values().next().cloned();
    assert_eq!(left_out.as_deref(), Some("10.0.16.0:3 is left out: only the first 4096 backends of a name are used"));
}

/// A names.json that was older than the maps once replaced the backends in use.
#[test]
fn what_is_remembered_of_a_name_counts_where_the_maps_agree() {
    let start = || [described(), named("a"), synced()];
    let with = |used: &[u8], changes: Vec<Change>| {
        let mut table = table(used);
        after(&mut table, "a", changes.into_iter().chain(start()))
    };
    assert_eq!(with(&[2], vec![recalled("a", &[2])]), some(&["2"]));
    assert_eq!(with(&[2], vec![recalled("a", &[1])]), some(&[]), "the engine keeps what the maps have");
    assert_eq!(with(&[1, 2], vec![recalled("a", &[1])]), some(&["1", "2"]));
    assert_eq!(with(&[], vec![recalled("a", &[1])]), some(&["1"]), "after a reboot");
    assert_eq!(with(&[2], vec![recalled("a", &[1]), answer("a", &[1])]), some(&["1"]), "a server says so");
    assert_eq!(with(&[2, 3], vec![listed(&[3]), recalled("a", &[1])]), some(&["2"]), "next to an address");
    let failed = Change::Quarantine(service(), [((addr(1), 80), "refused".into())].into());
    assert_eq!(with(&[2], vec![failed, recalled("a", &[1, 2])]), some(&["1", "2"]), "a check had taken it out");
}

#[test]
fn each_name_of_a_service_keeps_its_part_of_the_maps() {
    let mut table = table(&[1, 2, 4]);
    let start = [described(), named("a"), named("b"), synced(), recalled("a", &[1]), recalled("b", &[2, 3])];
    assert_eq!(after(&mut table, "b", start), some(&["2"]));
    assert_eq!(after(&mut table, "a", []), some(&["1", "4"]), "what no name explains");
    assert_eq!(after(&mut table, "b", [answer("b", &[4])]), some(&["4"]));
    assert_eq!(after(&mut table, "a", [answer("a", &[5])]), some(&["5"]));
}

#[test]
fn a_name_without_an_answer_is_unknown_and_one_without_records_has_none() {
    let mut table = table(&[]);
    let unanswered = slice(&mut table, "a", [described(), named("a"), synced()]);
    assert_eq!((backends(&unanswered), unanswered.problem.as_deref()), (some(&[]), Some("no server has answered yet")));
    // The maps may have backends of a name that the file source has described at the start.
    assert_eq!(after(&mut table, "a", [without_records("a", AnswerState::Answered)]), some(&[]));
    let later = slice(&mut table, "b", [named("b"), without_records("b", AnswerState::Answered)]);
    assert_eq!(backends(&later), None);
    assert_eq!(after(&mut table, "b", [without_records("b", AnswerState::Unanswered)]), some(&[]));
}

#[test]
fn a_name_that_is_removed_leaves_nothing_behind() {
    let mut table = table(&[]);
    let named = named_as("a", RecordType::A);
    slice(&mut table, "a", [described(), Change::UpsertNamed(named.clone()), answer("a", &[200])]);
    table.apply(Change::RemoveSlice(named.slice, Source::Files));
    table.apply(Change::Answer(named.question, None));
    table.apply(Change::RemoveService(service(), Source::Files));
    assert!(table.named.is_empty() && table.left_out.is_empty() && table.slice_count() == 0);
    let super::Names { answers, slices, siblings, dirty, from_start, .. } = &table.names;
    assert!(
        answers.is_empty() && slices.is_empty() && siblings.is_empty() && dirty.is_empty() && from_start.is_empty()
    );
}

#[derive(Clone, Debug)]
enum Step {
    Answer(Vec<u8>),
    WithoutRecords,
    Unanswered,
    Withdrawn,
    /// The hold has ended.
    Ended,
    /// The service is described again, with another frontend.
    Frontend(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let last = prop_oneof![4 => 1_u8..6, 1 => Just(200_u8), 1 => Just(201)];
    prop_oneof![
        4 => prop::collection::vec(last, 1..4).prop_map(Step::Answer),
        1 => Just(Step::WithoutRecords),
        1 => Just(Step::Unanswered),
        1 => Just(Step::Withdrawn),
        1 => Just(Step::Ended),
        1 => prop_oneof![Just(200_u8), Just(201)].prop_map(Step::Frontend),
    ]
}

proptest! {
    /// A name has the usable addresses of the last answer that had any, and only the end of a hold takes them away. It has
    /// the same whether each change is a round of its own, or all that follow an answer are one round.
    #[test]
    fn only_something_usable_replaces_what_a_name_has(steps in prop::collection::vec(step(), 1..20)) {
        let mut table = table(&[]);
        slice(&mut table, "a", [described(), named("a"), synced()]);
        let (mut expected, mut frontend, mut last): (BTreeSet<u8>, u8, Vec<u8>) = (BTreeSet::new(), 200, Vec::new());
        for step in steps {
            let change = match &step {
                Step::Answer(lasts) => answer("a", lasts),
                Step::WithoutRecords => without_records("a", AnswerState::Answered),
                Step::Unanswered => without_records("a", AnswerState::Unanswered),
                Step::Withdrawn => Change::Answer(question("a", RecordType::A), None),
                Step::Ended => without_records("a", AnswerState::Ended(String::new())),
                Step::Frontend(last) => {
                    let Change::UpsertService(mut service) = described() else { panic!("a service") };
                    service.ports[0].frontends[0].addr = addr(*last);
                    Change::UpsertService(service)
                }
            };
            match step {
                Step::Answer(lasts) => last = lasts,
                Step::Frontend(of) => frontend = of,
                Step::Ended => (last, expected) = (Vec::new(), BTreeSet::new()),
                _ => last.clear(),
            }
            let usable: BTreeSet<u8> = last.iter().copied().filter(|it| *it != frontend).collect();
            if !usable.is_empty() {
                expected = usable;
            }
            let found = after(&mut table, "a", [change]).unwrap_or_default();
            let found: BTreeSet<u8> = found.iter().map(|last| last.parse().expect("a number")).collect();
            prop_assert_eq!(&found, &expected);
        }
    }
}

/// A backend that had been removed came back weeks later: the maps of the start had it, and no file could be read completely.
#[test]
fn a_name_that_is_new_has_nothing_of_the_maps_whatever_another_file_says() {
    let mut table = table(&[1, 2]);
    [listed(&[1, 2]), described(), synced(), listed(&[1])].into_iter().for_each(|change| drop(table.apply(change)));
    let broken = Change::Synced { source: Source::Files, incomplete: Some("z.toml".into()) };
    assert_eq!(after(&mut table, "c", [broken, named("c")]), some(&[]));
}

/// It had the backends from before the start, although it was removed in between.
#[test]
fn a_service_that_is_described_again_has_nothing_of_the_maps() {
    let mut table = table(&[1]);
    let remove = [
        Change::RemoveSlice(named_as("a", RecordType::A).slice, Source::Files),
        Change::RemoveService(service(), Source::Files),
    ];
    let first = [named("a"), described(), synced()];
    first.into_iter().chain(remove).for_each(|change| drop(table.apply(change)));
    let broken = Change::Synced { source: Source::Files, incomplete: Some("z.toml".into()) };
    assert_eq!(after(&mut table, "a", [broken, named("a"), described()]), some(&[]));
}

/// A backend of a name that had no answer yet when its file was read was forgotten, and not used before its first check.
#[test]
fn a_backend_that_the_maps_had_is_healthy_when_its_name_is_answered_later() {
    let check = HealthCheck { starts_healthy: false, ..HealthCheck::default() };
    let checked = Service { health_check: Some(Arc::new(check)), ..Service::new(service(), Source::Files) };
    let mut table = table(&[1, 2]);
    let start = [Change::UpsertService(checked), listed(&[1]), named("a"), named("b"), synced()];
    slice(&mut table, "a", start);
    let mut judged = |name, lasts: &[u8]| {
        slice(&mut table, name, [answer(name, lasts)]);
        let failed = table.quarantine(&service()).cloned().unwrap_or_default();
        failed.into_keys().map(|(at, _)| at.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(judged("a", &[3]), ["192.0.2.3"]);
    assert_eq!(judged("b", &[2]), ["192.0.2.3"]);
    assert_eq!(judged("a", &[2]), [""; 0]);
    assert_eq!(judged("b", &[4]), ["192.0.2.4"]);
    // What is listed later is new.
    assert_eq!(judged("a", &[5]), ["192.0.2.4", "192.0.2.5"]);
    assert_eq!(judged("a", &[2]), ["192.0.2.2", "192.0.2.4"]);
}
