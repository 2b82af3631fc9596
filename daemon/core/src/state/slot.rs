//! The entries of backend lists.

use std::collections::BTreeSet;

use crate::model::addr::L4Addr;

/// A stable number for one backend address, the same in every service that has it. 0 is no backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId(pub u32);

/// One selectable entry of a view. A backend of weight 3 has three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    pub backend: BackendId,
    pub addr: L4Addr,
}

/// Each backend of a view once, in the view's order, with its number of slots.
pub fn backends_of(view: &[Slot]) -> impl Iterator<Item = (L4Addr, usize)> {
    view.chunk_by(|a, b| a.addr == b.addr).map(|run| (run[0].addr, run.len()))
}

/// The maximum number of slots in one view: the count has 16 bits in the kernel's view word.
pub const MAX_VIEW_SLOTS: usize = u16::MAX as usize;

/// The backends that only one of the lists has.
pub(crate) fn differing_backends(one: &[Slot], other: &[Slot]) -> Vec<L4Addr> {
    let of = |list: &[Slot]| backends_of(list).map(|(addr, _)| addr).collect::<BTreeSet<_>>();
    of(one).symmetric_difference(&of(other)).copied().collect()
}
