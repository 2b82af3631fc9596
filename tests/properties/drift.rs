//! Another process writes to the maps: one check and one round restore them.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::datapath::Datapath;
use nodelb_core::model::service::Source;
use nodelb_core::model::source_range::SourceRange;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::state::entries::{
    BackendId, FrontendEntry, MapOp, MapState, OutsideEntry, ServiceEntry, ServiceId, Slot,
};
use nodelb_core::state::kernel_check::{Content, EntryKey, differing_entries};
use proptest::prelude::*;
use proptest::sample::select;

use crate::absence::facts_of;
use crate::cases;
use crate::model::Host;
use crate::world::{SOURCES, changes, facts, host, l4};

/// A foreign write to one entry, either an existing one, chosen by an index, or a new one.
#[derive(Clone, Debug)]
enum ForeignWrite {
    DeleteFrontend(usize),
    RedirectFrontend(usize, u32, bool),
    AddFrontend(&'static str, u32),
    DeleteService(usize),
    OverwriteService(usize, u8),
    AddService(u32),
    DeleteNodeAddr(usize),
    AddNodeAddr,
    DeleteOutside(usize),
    OverwriteOutside(usize, u32, bool),
    AddOutside(&'static str, u32),
    DeleteRange(usize),
    AddRange(u32),
    DeleteUplink(usize),
    OverwriteUplink(u32),
}

fn foreign_write() -> impl Strategy<Value = ForeignWrite> {
    prop_oneof![
        any::<usize>().prop_map(ForeignWrite::DeleteFrontend),
        (any::<usize>(), 0..30_u32, any::<bool>())
            .prop_map(|(index, id, is_local)| ForeignWrite::RedirectFrontend(index, id, is_local)),
        (select(&["198.51.100.77:80", "198.51.100.1:81", "[2001:db8::77]:80"]), 0..30_u32)
            .prop_map(|(address, id)| ForeignWrite::AddFrontend(address, id)),
        any::<usize>().prop_map(ForeignWrite::DeleteService),
        (any::<usize>(), 0..4_u8).prop_map(|(index, slots)| ForeignWrite::OverwriteService(index, slots)),
        (0..900_u32).prop_map(ForeignWrite::AddService),
        any::<usize>().prop_map(ForeignWrite::DeleteNodeAddr),
        Just(ForeignWrite::AddNodeAddr),
        any::<usize>().prop_map(ForeignWrite::DeleteOutside),
        (any::<usize>(), 0..30_u32, any::<bool>())
            .prop_map(|(index, id, local)| ForeignWrite::OverwriteOutside(index, id, local)),
        (select(&["198.51.100.77:80", "198.51.100.1:80", "0.0.0.0:30080"]), 0..30_u32)
            .prop_map(|(address, id)| ForeignWrite::AddOutside(address, id)),
        any::<usize>().prop_map(ForeignWrite::DeleteRange),
        (0..30_u32).prop_map(ForeignWrite::AddRange),
        any::<usize>().prop_map(ForeignWrite::DeleteUplink),
        (1..5_u32).prop_map(ForeignWrite::OverwriteUplink),
    ]
}

impl ForeignWrite {
    /// The write as an operation on these maps; `None` if there is no entry to choose.
    fn op(&self, held: &MapState) -> Option<MapOp> {
        let frontend = |index: &usize| held.frontends.keys().nth(index % held.frontends.len().max(1)).copied();
        let service = |index: &usize| held.services.keys().nth(index % held.services.len().max(1));
        let node_addr = |index: &usize| held.node_addrs.iter().nth(index % held.node_addrs.len().max(1)).copied();
        let entry =
            |id: u32, inside_local| FrontendEntry { service: ServiceId(id), inside_local, outside_local: false };
        let outside = |id: u32, local| OutsideEntry { service: ServiceId(id), local, has_ranges: false };
        Some(match self {
            Self::DeleteFrontend(index) => MapOp::DeleteFrontend(frontend(index)?),
            Self::RedirectFrontend(index, id, is_local) => MapOp::PutFrontend(frontend(index)?, entry(*id, *is_local)),
            Self::AddFrontend(address, id) => MapOp::PutFrontend(l4(address), entry(*id, false)),
            Self::DeleteService(index) => MapOp::DeleteService(*service(index)?),
            Self::OverwriteService(index, slots) => MapOp::PutService(*service(index)?, list(*slots)),
            Self::AddService(id) => MapOp::PutService(ServiceId(*id), list(1)),
            Self::DeleteNodeAddr(index) => MapOp::DeleteNodeAddr(node_addr(index)?),
            Self::DeleteOutside(index) => MapOp::DeleteOutside(nth(held.outside.keys(), *index)?),
            Self::OverwriteOutside(index, id, local) => {
                MapOp::PutOutside(nth(held.outside.keys(), *index)?, outside(*id, *local))
            }
            Self::AddOutside(address, id) => MapOp::PutOutside(l4(address), outside(*id, false)),
            Self::DeleteRange(index) => {
                let (id, range) = nth(held.source_ranges.iter(), *index)?;
                MapOp::DeleteSourceRange(id, range)
            }
            Self::AddRange(id) => MapOp::PutSourceRange(ServiceId(*id), SourceRange::new(l4("10.0.0.0:1").addr, 104)),
            Self::DeleteUplink(index) => MapOp::DeleteUplink(nth(held.uplinks.keys(), *index)?),
            Self::OverwriteUplink(index) => MapOp::PutUplink(
                *index,
                UplinkEntry {
                    v4: None,
                    v6: None,
                    mtu: 576,
                    l2_length: 0,
                    is_v4_source: true,
                    is_v6_source: false,
                    is_strict: false,
                },
            ),
            Self::AddNodeAddr => MapOp::PutNodeAddr(l4("203.0.113.99:80").addr),
        })
    }
}

fn nth<'a, T: Copy + 'a>(mut of: impl ExactSizeIterator<Item = &'a T>, index: usize) -> Option<T> {
    let len = of.len();
    of.nth(index.checked_rem(len)?).copied()
}

fn list(slots: u8) -> Arc<ServiceEntry> {
    let slot = |n| Slot { backend: BackendId(n), addr: l4(&format!("203.0.113.{n}:80")) };
    let cluster = (100..100 + u32::from(slots)).map(slot).collect();
    Arc::new(ServiceEntry { cluster, has_backends: slots > 0, ..ServiceEntry::default() })
}

fn key(op: &MapOp) -> EntryKey {
    match op {
        MapOp::PutService(id, _) | MapOp::DeleteService(id) => EntryKey::Service(*id),
        MapOp::PutFrontend(address, _) | MapOp::DeleteFrontend(address) => EntryKey::Frontend(*address),
        MapOp::PutNodeAddr(addr) | MapOp::DeleteNodeAddr(addr) => EntryKey::NodeAddress(*addr),
        MapOp::PutOutside(address, _) | MapOp::DeleteOutside(address) => EntryKey::Outside(*address),
        MapOp::PutSourceRange(id, range) | MapOp::DeleteSourceRange(id, range) => EntryKey::SourceRange(*id, *range),
        MapOp::PutUplink(index, _) | MapOp::DeleteUplink(index) => EntryKey::Uplink(*index),
    }
}

/// The check that the daemon runs periodically.
fn look(host: &mut Host) -> BTreeSet<EntryKey> {
    let content = Content { state: host.held(), ..Content::default() };
    let suspects = differing_entries(&content, &host.engine.snapshot(host.now).realised);
    assert_eq!(host.engine.accept_actual(&content, &suspects), suspects.len());
    suspects.into_iter().collect()
}

proptest! {
    #![proptest_config(cases(512))]

    /// Also what stays in the maps although no source describes it, because a source is not configured any more, and while
    /// a source has not reported everything since a start.
    #[test]
    fn one_round_repairs_any_write_to_the_maps(
        changes in changes(24),
        left in prop::option::of(prop::sample::subsequence(&SOURCES[..], 0..=1)),
        silent in prop::option::of(select(&SOURCES[..])),
        done in prop::collection::vec(foreign_write(), 1..12),
    ) {
        let mut host = host();
        host.send(changes.iter().cloned());
        host.send_synced();
        host.settle();
        if let Some(left) = left {
            host.sources = left.iter().copied().collect();
            host.restart();
            host.send(facts_of(&facts(&changes), &left));
            host.send_synced();
            host.settle();
        } else if let Some(silent) = silent {
            host.restart();
            let others: Vec<Source> = SOURCES.into_iter().filter(|source| *source != silent).collect();
            host.send(facts_of(&facts(&changes), &others));
            host.send(others.into_iter().map(|source| Change::Synced { source, incomplete: None }));
            host.settle();
        }
        let (before, sizes) = (host.held(), host.engine.sizes());
        for foreign_write in &done {
            let now = host.now;
            if let Some(op) = foreign_write.op(&host.held()) {
                host.maps.maps.apply(&[op], now);
            }
        }
        let suspects = look(&mut host);
        let round = host.round();
        prop_assert_eq!(&host.held(), &before);
        prop_assert_eq!(round.repaired.iter().map(|drift| drift.key).collect::<BTreeSet<_>>(), suspects.clone());
        let touched: BTreeSet<EntryKey> = host.maps.log.iter().map(|(op, _)| key(op)).collect();
        prop_assert_eq!(touched, suspects, "nothing else is touched");
        prop_assert_eq!(host.engine.sizes(), sizes);
        prop_assert!(look(&mut host).is_empty());
        prop_assert_eq!(host.engine.next_round(), None);
    }

    /// The checker reads while the owner writes: the owner finds that a reported difference no
    /// longer exists.
    #[test]
    fn a_change_in_flight_is_not_drift(changes in changes(24), at in any::<usize>()) {
        let mut host = host();
        let (first, then) = changes.split_at(at % changes.len());
        host.send(first.iter().cloned());
        host.send_synced();
        host.settle();
        let (believed, early) = (host.engine.snapshot(host.now).realised, host.held());
        host.send(then.iter().cloned());
        host.settle();
        let late = host.held();
        for (seen, believed) in [(early, host.engine.snapshot(host.now).realised), (late, believed)] {
            let suspects = differing_entries(&Content { state: seen, ..Content::default() }, &believed);
            let now = host.maps.read(&suspects).expect("memory can be read");
            prop_assert_eq!(host.engine.accept_actual(&now, &suspects), 0);
        }
        prop_assert!(host.round().repaired.is_empty());
    }
}
