//! What each namespace holds of the bounds that all have in common. The last part of a bound is only for namespaces that
//! hold little of it, so that one that fills the maps leaves room for the first services of others. What a namespace has
//! is never taken away.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::datapath::{Limits, MapError};
use crate::state::entries::{MapOp, Realised, ServiceEntry, ServiceId};
use crate::state::runs;
use crate::state::share::{LAST_PART, may_take};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Services,
    Frontends,
    Outside,
    /// As in [`runs`], a list counts with the length that its longest one had, and without its ring.
    Slots,
    SourceRanges,
}

type Counts = [u32; 5];

#[derive(Clone, Debug, Default)]
struct Entries {
    /// `None` until a source has described the service.
    namespace: Option<Arc<str>>,
    counts: Counts,
    /// The most that there have been.
    most: Counts,
    /// The lengths of the longest lists, the cluster view first.
    longest: [u32; 2],
}

#[derive(Debug, Default)]
pub(super) struct Shares {
    by_id: HashMap<ServiceId, Entries, RandomState>,
    by_namespace: HashMap<Arc<str>, Counts, RandomState>,
    /// What is of no known namespace, and may be of any.
    unowned: Counts,
    sums: Counts,
}

impl Shares {
    pub(super) fn new(realised: &Realised) -> Self {
        let mut shares = Self::default();
        shares.own(ServiceId::CANARY, &"".into());
        realised.services.iter().for_each(|(id, entry)| shares.note_lists(*id, entry));
        realised.frontends.values().for_each(|entry| shares.change(entry.service, Bound::Frontends, 1));
        realised.outside.values().for_each(|entry| shares.change(entry.service, Bound::Outside, 1));
        realised.source_ranges.iter().for_each(|(id, _)| shares.change(*id, Bound::SourceRanges, 1));
        shares
    }

    /// What the namespace holds, with what may be its own.
    pub(super) fn held(&self, namespace: &str, bound: Bound) -> u32 {
        let own = self.by_namespace.get(namespace).map_or(0, |counts| counts[bound as usize]);
        own + self.unowned[bound as usize]
    }

    pub(super) fn left(&self, bound: Bound, limits: Limits) -> u32 {
        bound.limit(limits).saturating_sub(self.sums[bound as usize])
    }

    pub(super) fn count(&self, id: ServiceId, bound: Bound) -> u32 {
        self.by_id.get(&id).map_or(0, |entries| entries.counts[bound as usize])
    }

    /// The most that the service has had: what it leaves in a full map before the next address fits is still its own.
    pub(super) fn most(&self, id: ServiceId, bound: Bound) -> u32 {
        self.by_id.get(&id).map_or(0, |entries| entries.most[bound as usize])
    }

    /// The id is a service's in this namespace.
    pub(super) fn own(&mut self, id: ServiceId, namespace: &Arc<str>) {
        let entries = self.entries(id);
        if entries.namespace.is_some() {
            return;
        }
        let counts = entries.counts;
        entries.namespace = Some(Arc::clone(namespace));
        let of_namespace = self.by_namespace.entry(Arc::clone(namespace)).or_default();
        for ((own, unowned), count) in of_namespace.iter_mut().zip(&mut self.unowned).zip(counts) {
            *own += count;
            *unowned -= count;
        }
    }

    /// Adds or removes entries of a service.
    pub(super) fn note(&mut self, id: ServiceId, bound: Bound, is_added: bool) {
        self.change(id, bound, if is_added { 1 } else { -1 });
    }

    /// Adds and removes entries of the map that lead to these services.
    pub(super) fn note_lead(&mut self, bound: Bound, before: Option<ServiceId>, now_at: Option<ServiceId>) {
        before.into_iter().for_each(|id| self.note(id, bound, false));
        now_at.into_iter().for_each(|id| self.note(id, bound, true));
    }

    pub(super) fn note_lists(&mut self, id: ServiceId, entry: &ServiceEntry) {
        let (more, longest) = self.growth_of_lists(id, entry);
        self.entries(id).longest = longest;
        self.change(id, Bound::Slots, i64::from(more));
    }

    /// The entry is deleted.
    pub(super) fn forget_lists(&mut self, id: ServiceId) {
        let longest = self.by_id.get_mut(&id).map(|entries| std::mem::take(&mut entries.longest)).unwrap_or_default();
        let slots: u32 = longest.iter().sum();
        if slots > 0 {
            self.change(id, Bound::Slots, -i64::from(slots));
        }
    }

    /// The id means no service any more, and nothing leads to it.
    pub(super) fn forget(&mut self, id: ServiceId) {
        self.forget_lists(id);
        if self.by_id.contains_key(&id) {
            self.change(id, Bound::Services, -1);
        }
        let namespace = self.by_id.remove(&id).and_then(|entries| entries.namespace);
        if let Some(namespace) = namespace.filter(|it| self.by_namespace.get(it) == Some(&Counts::default())) {
            self.by_namespace.remove(&namespace);
        }
    }

    /// Takes out the operations that add entries for which the namespace has no share. Those that do not fit at all are
    /// left to the maps. All are of one kind. `is_exempt`: whether the service may have so many more in any case.
    pub(super) fn take_out(
        &self,
        ops: &mut Vec<MapOp>,
        (realised, limits): (&Realised, Limits),
        is_exempt: impl Fn(ServiceId, Bound, u32) -> bool,
    ) -> Vec<(MapOp, Bound)> {
        let Some(bound) = ops.first().and_then(Bound::of) else { return Vec::new() };
        let most = |op: &MapOp| if let MapOp::PutService(_, entry) = op { entry.slot_count() } else { 1 };
        let most: usize = ops.iter().map(most).sum();
        let (limit, mut left) = (bound.limit(limits), self.left(bound, limits));
        if left as usize >= most + (limit / LAST_PART) as usize {
            return Vec::new();
        }
        let (mut taken_by, mut refused) = (HashMap::<&str, u32>::new(), Vec::new());
        for op in std::mem::take(ops) {
            if let Some((id, more)) = self.growth(&op, realised).filter(|(_, more)| (1..=left).contains(more)) {
                let namespace =
                    self.by_id.get(&id).and_then(|entries| entries.namespace.as_deref()).unwrap_or_default();
                let by = taken_by.entry(namespace).or_default();
                let held = self.held(namespace, bound) + *by;
                if !may_take(limit, left, held, more) && !is_exempt(id, bound, more) {
                    refused.push((op, bound));
                    continue;
                }
                (left, *by) = (left - more, *by + more);
            }
            ops.push(op);
        }
        refused
    }

    /// What the operation adds, if it adds anything.
    fn growth(&self, op: &MapOp, realised: &Realised) -> Option<(ServiceId, u32)> {
        match op {
            MapOp::PutFrontend(address, entry) => {
                Some((entry.service, 1)).filter(|_| !realised.frontends.contains_key(address))
            }
            MapOp::PutOutside(address, entry) => {
                Some((entry.service, 1)).filter(|_| !realised.outside.contains_key(address))
            }
            MapOp::PutSourceRange(id, range) => {
                Some((*id, 1)).filter(|_| !realised.source_ranges.contains(&(*id, *range)))
            }
            MapOp::PutService(id, entry) => Some((*id, self.growth_of_lists(*id, entry).0)),
            _ => None,
        }
    }

    fn growth_of_lists(&self, id: ServiceId, entry: &ServiceEntry) -> (u32, [u32; 2]) {
        let mut longest = self.by_id.get(&id).map(|entries| entries.longest).unwrap_or_default();
        let before: u32 = longest.iter().sum();
        for (longest, list) in longest.iter_mut().zip([&entry.cluster, &entry.local]) {
            *longest = u32::try_from(list.len()).unwrap_or(u32::MAX).max(*longest);
        }
        (longest[0].saturating_add(longest[1]) - before, longest)
    }

    fn entries(&mut self, id: ServiceId) -> &mut Entries {
        self.by_id.entry(id).or_insert_with(|| {
            self.unowned[Bound::Services as usize] += 1;
            self.sums[Bound::Services as usize] += 1;
            Entries { counts: [1, 0, 0, 0, 0], ..Entries::default() }
        })
    }

    fn change(&mut self, id: ServiceId, bound: Bound, by: i64) {
        if by == 0 {
            return;
        }
        let add = |count: &mut u32| *count = u32::try_from(i64::from(*count) + by).unwrap_or_default();
        let entries = self.entries(id);
        let count = &mut entries.counts[bound as usize];
        add(count);
        let most = &mut entries.most[bound as usize];
        *most = (*count).max(*most);
        let namespace = entries.namespace.clone();
        let of_owner = namespace.and_then(|namespace| self.by_namespace.get_mut(&namespace));
        add(&mut of_owner.unwrap_or(&mut self.unowned)[bound as usize]);
        add(&mut self.sums[bound as usize]);
    }
}

impl Bound {
    /// What the operation may take more of.
    fn of(op: &MapOp) -> Option<Self> {
        match op {
            MapOp::PutFrontend(..) => Some(Self::Frontends),
            MapOp::PutOutside(..) => Some(Self::Outside),
            MapOp::PutService(..) => Some(Self::Slots),
            MapOp::PutSourceRange(..) => Some(Self::SourceRanges),
            _ => None,
        }
    }

    fn limit(self, limits: Limits) -> u32 {
        match self {
            Self::Services => limits.services,
            Self::Frontends => limits.frontends,
            Self::Outside => limits.outside,
            Self::Slots => runs::with_owner(limits.slots),
            Self::SourceRanges => limits.source_ranges,
        }
    }

    /// The error of an operation for which the namespace has no share.
    pub(super) fn error(self, limits: Limits) -> MapError {
        let (map, limit) = match self {
            Self::Services => ("services", limits.services),
            Self::Frontends => ("frontends", limits.frontends),
            Self::Outside => ("outside", limits.outside),
            Self::Slots => ("slots", limits.slots),
            Self::SourceRanges => ("source_ranges", limits.source_ranges),
        };
        MapError::NoShare { map, limit }
    }
}

#[cfg(test)]
#[path = "tests/shares.rs"]
mod tests;
