//! What waits until more is known is done as soon as nothing speaks against it any more, whatever has ended the wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::history::{Event, What};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::{ServiceName, Source};
use nodelb_core::state::owner::hash_of;
use nodelb_core::state::status::Status;
use nodelb_report::explain::reports;
use nodelb_report::explain::summary::Summary;
use nodelb_report::problems::{Observed, problems};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::cases;
use crate::model::Host;
use crate::world::{SOURCES, change, changes, facts, settled};

#[derive(Clone, Debug)]
enum Step {
    /// A fact from before the start.
    Again(Index),
    Changed(Box<Change>),
    /// A source is synced, completely or without one file.
    Synced(Source, bool),
    Round,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<Index>().prop_map(Step::Again),
        4 => change().prop_map(|change| Step::Changed(Box::new(change))),
        1 => (select(&SOURCES[..]), any::<bool>()).prop_map(|(source, is_whole)| Step::Synced(source, is_whole)),
        2 => Just(Step::Round),
    ];
    prop::collection::vec(step, 1..40)
}

fn synced(source: Source, is_whole: bool) -> Change {
    let incomplete = (!is_whole).then(|| Arc::from("b.toml: line 3"));
    Change::Synced { source, incomplete }
}

/// The rows of each address agree with the maps: whether new connections reach a backend of the service. A row that is not
/// right is a problem, too.
fn check_rows(host: &Host) -> Result<(), TestCaseError> {
    let snapshot = host.engine.snapshot(host.now);
    let mut usable: BTreeMap<(L4Addr, ServiceName), bool> = BTreeMap::new();
    let rows = reports::frontends(&snapshot, &Default::default());
    for row in reports::frontends(&snapshot, &Default::default()) {
        let is_usable = row.status.is_usable() || row.status == Status::LastResort;
        *usable.entry((row.address, row.service)).or_default() |= is_usable;
    }
    for ((address, service), is_usable) in usable {
        let entry = snapshot.realised.frontends.get(&address);
        let tag = entry.and_then(|entry| snapshot.realised.services.get(&entry.service)?.tag);
        let is_own = tag.is_some_and(|tag| tag.service == hash_of(&service));
        prop_assert_eq!(
            is_usable,
            is_own && !snapshot.realised.refuses(address),
            "{} of {}: {:?} {:?}",
            address,
            service,
            rows,
            entry
        );
    }
    let summary = Arc::new(Summary::new(&snapshot));
    let observed = Observed { summary, snapshot: Arc::new(snapshot), ..Observed::default() };
    let problems = problems(&observed);
    for row in rows.iter().filter(|row| !matches!(row.status, Status::Ok | Status::Kept | Status::Pending)) {
        let objects = [row.service.to_string(), row.address.to_string()];
        prop_assert!(
            problems.iter().any(|problem| objects.iter().any(|object| problem.is_of(object))),
            "{:?} {:?}",
            row,
            problems
        );
    }
    Ok(())
}

/// Until every source has reported everything, no event says that an address is refused that still reaches a backend of
/// the service.
fn check_events(host: &Host, events: &[Event]) -> Result<(), TestCaseError> {
    let snapshot = host.engine.snapshot(host.now);
    for event in events.iter().filter(|event| event.what == What::Refused && !snapshot.is_complete()) {
        let Some(key) = &event.port else { continue };
        for address in &event.frontends.shown {
            prop_assert!(!snapshot.realised.serves(*address, hash_of(&key.service)), "{:?}", event);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(2_048))]

    /// A source that repeats what it has reported makes the engine look at everything that waits: there must be nothing
    /// left to do.
    #[test]
    fn what_waits_is_done_without_a_further_touch(world in changes(24), steps in steps()) {
        let mut host = settled(&world);
        let before = facts(&world);
        host.restart();
        let mut said: BTreeMap<Source, bool> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Again(index) if !before.is_empty() => host.send([index.get(&before).clone()]),
                Step::Again(_) => {}
                Step::Changed(change) => host.send([*change]),
                Step::Synced(source, is_whole) => {
                    said.insert(source, is_whole);
                    host.send([synced(source, is_whole)]);
                }
                Step::Round => {
                    let round = host.round();
                    check_rows(&host)?;
                    check_events(&host, &round.events)?;
                }
            }
        }
        prop_assert!(host.settle());
        check_rows(&host)?;
        let before = host.text();
        host.send(said.into_iter().map(|(source, is_whole)| synced(source, is_whole)));
        host.settle();
        prop_assert_eq!(before, host.text());
    }
}
