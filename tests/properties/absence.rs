//! A missing source removes nothing: if a source is absent from the configuration of a start, its
//! services stay until the source has synced or the operator has requested their removal.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_core::change::Change;
use nodelb_core::history::History;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::{ServiceName, Source};
use nodelb_core::state::entries::{MapState, ServiceId};
use nodelb_core::trace::{Verdict, trace};
use nodelb_report::explain::reports;
use nodelb_report::time::Time;
use proptest::prelude::*;

use crate::cases;
use crate::model::Host;
use crate::world::{SOURCES, changes, claims_of, described, destinations, disputed, facts, guard, settled, without};

/// The backends that a client reaches at each address.
fn reached(state: &MapState) -> BTreeMap<L4Addr, BTreeSet<L4Addr>> {
    let backends = |to: L4Addr| match trace(state, &guard().nodeport_range, to) {
        Verdict::Forwarded(_, slots) => Some((to, slots.iter().map(|slot| slot.addr).collect())),
        _ => None,
    };
    destinations().into_iter().filter_map(backends).collect()
}

/// The source of a change; changes of the node's facts have none.
fn source_of(change: &Change) -> Option<Source> {
    match change {
        Change::UpsertService(service) => Some(service.source),
        Change::UpsertSlice(slice) => Some(slice.source),
        _ => None,
    }
}

/// The changes from these sources, and those of the node's facts.
pub(crate) fn facts_of(all: &[Change], sources: &[Source]) -> Vec<Change> {
    let is_selected = |change: &&Change| source_of(change).is_none_or(|source| sources.contains(&source));
    all.iter().filter(is_selected).cloned().collect()
}

/// The service that owns each address in the kernel.
fn owners(host: &Host) -> BTreeMap<L4Addr, ServiceName> {
    let snapshot = host.engine.snapshot(host.now);
    let rows = reports::frontends(&snapshot, &Default::default());
    let mut owners = BTreeMap::new();
    for row in rows.into_iter().filter(|row| snapshot.realised.frontends.contains_key(&row.address)) {
        owners.entry(row.address).or_insert(row.service);
    }
    owners
}

proptest! {
    #![proptest_config(cases(512))]

    /// The configuration is empty, was replaced, or lost a section: a start removes nothing that
    /// belongs to the absent source.
    #[test]
    fn a_start_without_a_source_that_was_there_removes_nothing_of_it(
        world in changes(24),
        configured in prop::sample::subsequence(&SOURCES[..], 0..=2),
        starts in 1..3_usize,
    ) {
        let mut host = settled(&world);
        let all = facts(&world);
        let (before, owners) = (reached(&host.held()), owners(&host));
        let services = described(&all);
        let sent = facts_of(&all, &configured);
        let remaining = described(&sent);
        let claimed: BTreeSet<L4Addr> = remaining.values().flat_map(|service| claims_of(service)).collect();
        for _ in 0..starts {
            host.sources = configured.iter().copied().collect();
            host.restart();
            host.send(sent.iter().cloned());
            host.round();
            host.send_synced();
            prop_assert!(host.settle());
            prop_assert!(host.engine.is_ready());
        }
        let held = host.held();
        let after = reached(&held);
        for (address, name) in &owners {
            let is_absent = services.get(name).is_some_and(|service| !configured.contains(&service.source));
            // The description by another source takes effect once the first one is absent.
            if !is_absent || claimed.contains(address) || remaining.contains_key(name) {
                continue;
            }
            prop_assert!(held.frontends.contains_key(address), "{} of {} is gone", address, name);
            if !address.addr.is_unspecified() {
                prop_assert_eq!(after.get(address), before.get(address), "{} of {}", address, name);
            }
        }
        // What stays is shown.
        let snapshot = host.engine.snapshot(host.now);
        let kept: BTreeSet<L4Addr> = snapshot.kept().map(|(address, ..)| address).collect();
        for (address, _) in held.frontends.iter().filter(|(_, entry)| entry.service != ServiceId::CANARY) {
            let is_listed = kept.contains(address) || snapshot.rows.contains_key(address);
            prop_assert!(is_listed, "{} is in no list", address);
        }
        let has_row = reports::absent_sources(&snapshot, &History::default(), Time(0)).next().is_some();
        prop_assert!(has_row || kept.is_empty(), "{:?} of no source", kept);
        // The source is configured again.
        host.sources = SOURCES.into_iter().collect();
        host.restart();
        host.send(all.iter().cloned());
        host.send_synced();
        host.settle();
        let disputed = disputed(&all);
        prop_assert_eq!(without(&host.text(), &disputed), without(&settled(&world).text(), &disputed));
    }
}
