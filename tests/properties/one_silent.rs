//! A source that does not answer after a start, and of which the last known state is stored, changes nothing for the
//! services of another one; nor does a part that a source cannot read and that nodelb has never known.

use std::collections::BTreeSet;

use nodelb_core::change::Change;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::{Service, Slice, Source};
use nodelb_core::state::status::Status;
use nodelb_core::trace::{Verdict, trace};
use nodelb_report::explain::reports;
use nodelb_report::filter::Filter;
use proptest::prelude::*;

use crate::absence::facts_of;
use crate::cases;
use crate::model::Host;
use crate::world::{change, changes, claims_of, destinations, disputed, facts, guard, name, settled, without};

const KUBERNETES: Source = Source::Kubernetes;

/// The objects of files among these changes.
fn of_files(changes: Vec<Change>) -> Vec<Change> {
    changes.into_iter().filter(|change| change.is_object_of(Source::Files)).collect()
}

/// Every address that at most one service claims, and that is none of a service that Kubernetes describes, too, or of one
/// with backends that are used after their first check unless the maps have them.
fn of_one(changes: &[Change]) -> Vec<L4Addr> {
    let services = || {
        changes.iter().filter_map(|change| match change {
            Change::UpsertService(service) => Some(service),
            _ => None,
        })
    };
    let is_other = |service: &&Service| {
        service.source == KUBERNETES || service.health_check.as_ref().is_some_and(|check| !check.starts_healthy)
    };
    let names: BTreeSet<_> = services().filter(is_other).map(|service| &service.name).collect();
    let (of_others, disputed): (BTreeSet<L4Addr>, _) = (
        services().filter(|service| names.contains(&service.name)).flat_map(claims_of).collect(),
        disputed(&facts(changes)),
    );
    let is_of_one = |at: &L4Addr| !of_others.contains(at) && !disputed.contains(at);
    destinations().into_iter().filter(|at| is_of_one(at) && is_of_one(&at.wildcard())).collect()
}

/// What clients get at the address: whether nodelb translates it, and the backends.
fn at(host: &Host, to: L4Addr) -> (bool, BTreeSet<L4Addr>) {
    match trace(&host.held(), &guard().nodeport_range, to) {
        Verdict::Forwarded(_, slots) => (true, slots.iter().map(|slot| slot.addr).collect()),
        verdict => (!matches!(verdict, Verdict::PassedThrough), BTreeSet::new()),
    }
}

fn synced(incomplete: Option<&str>) -> Change {
    Change::Synced { source: Source::Files, incomplete: incomplete.map(Into::into) }
}

/// No address is said to stay as it was, and none is.
fn check_rows(host: &Host) -> Result<(), TestCaseError> {
    let snapshot = host.engine.snapshot(host.now);
    let kept: Vec<L4Addr> = snapshot.kept().map(|(address, ..)| address).collect();
    prop_assert_eq!(kept, Vec::<L4Addr>::new());
    for row in reports::frontends(&snapshot, &Filter::default()) {
        prop_assert!(!matches!(row.status, Status::Kept | Status::Pending), "{:?}", row);
    }
    Ok(())
}

fn slice_of(change: &Change) -> Option<&Slice> {
    match change {
        Change::UpsertSlice(slice) => Some(slice),
        _ => None,
    }
}

proptest! {
    #![proptest_config(cases(1_024))]

    /// Found as: a removed file stayed in use until an API server answered, and the files were blamed.
    #[test]
    fn a_source_that_is_silent_delays_nothing_of_another_one(
        world in changes(24),
        meanwhile in changes(8),
        later in prop::collection::vec(change(), 0..8),
        is_recalled_first: bool,
    ) {
        let (meanwhile, later) = (of_files(meanwhile), of_files(later));
        let mut host = settled(&world);
        let now: Vec<Change> = world.iter().chain(&meanwhile).cloned().collect();
        host.restart();
        let recalled = facts_of(&facts(&now), &[KUBERNETES]).into_iter().chain([Change::Recalled(KUBERNETES)]);
        let read = facts_of(&facts(&now), &[Source::Files]).into_iter().chain([synced(None)]);
        if is_recalled_first {
            host.send(recalled);
            host.round();
            host.send(read);
        } else {
            host.send(read);
            host.round();
            host.send(recalled);
        }
        prop_assert!(host.settle());
        for change in &later {
            host.send([change.clone()]);
            host.round();
        }
        prop_assert!(host.settle());
        let all: Vec<Change> = now.into_iter().chain(later).collect();
        let other = settled(&all);
        for to in of_one(&all) {
            prop_assert_eq!(at(&host, to), at(&other, to), "{}", to);
        }
    }

    /// Found as: clients of remembered services without backends waited instead of being refused.
    #[test]
    fn a_reboot_without_an_answer_serves_all_that_was_known(world in changes(24)) {
        let known = settled(&world);
        let mut host = settled(&world);
        host.reboot();
        host.send(facts(&world).into_iter().chain([Change::Recalled(KUBERNETES), synced(None)]));
        prop_assert!(host.settle());
        let disputed = disputed(&facts(&world));
        for to in destinations().into_iter().filter(|to| !disputed.contains(to) && !disputed.contains(&to.wildcard())) {
            prop_assert_eq!(at(&host, to), at(&known, to), "{}", to);
        }
    }

    /// Found as: an address of a service without backends led to those of the service that had it, without end.
    #[test]
    fn a_part_that_was_never_known_makes_nothing_doubtful_that_is_known(
        world in changes(24),
        later in prop::collection::vec((change(), any::<bool>()), 1..12),
    ) {
        let world = of_files(world);
        let mut host = settled(&world);
        host.send([synced(Some("x.toml cannot be used"))]);
        prop_assert!(host.settle());
        let later: Vec<_> = later.into_iter().filter(|(change, _)| change.is_object_of(Source::Files)).collect();
        for (change, has_round) in &later {
            host.send([change.clone()]);
            if *has_round {
                host.round();
            }
        }
        prop_assert!(host.settle());
        check_rows(&host)?;
        let all: Vec<Change> = world.into_iter().chain(later.into_iter().map(|(change, _)| change)).collect();
        let disputed: BTreeSet<L4Addr> = disputed(&facts(&all));
        prop_assert_eq!(without(&host.text(), &disputed), without(&settled(&all).text(), &disputed));
    }

    /// Found as: services were shown as held, with the problem of DNS servers that had answered since, as long as a file
    /// could not be read. What the maps have did not change with the hold.
    #[test]
    fn a_hold_is_shown_as_long_as_it_lasts(
        world in changes(24),
        unread in name(),
        later in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..24),
    ) {
        let mut host = settled(&world);
        let unread = Change::RemoveService(unread, Source::Files);
        let known = facts(&world.into_iter().chain([unread]).collect::<Vec<_>>());
        let slices: Vec<Slice> = known.iter().filter_map(slice_of).cloned().collect();
        prop_assume!(!slices.is_empty());
        host.restart();
        host.send(known.iter().cloned());
        host.send([synced(Some("x.toml cannot be used")), Change::Synced { source: KUBERNETES, incomplete: None }]);
        host.round();
        for (index, is_unknown) in later {
            let problem = is_unknown.then(|| "no server answers".into());
            host.send([Change::UpsertSlice(Slice { problem, ..index.get(&slices).clone() })]);
            // It compares what is held with the rows.
            host.round();
        }
    }
}
