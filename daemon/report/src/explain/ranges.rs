//! Which clients the source ranges of a service admit at an address, as the programs decide: `bpf/clients.h` for sockets of
//! the node and its pods, `bpf/begin.h` for packets of clients outside.

use std::ops::RangeInclusive;

use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::source_range::SourceRange;
use nodelb_core::packets::admission::{Admission, admission};
use nodelb_core::state::entries::MapState;
use nodelb_core::trace::lookup_outside;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub admission: Admission,
    /// The ranges that decide if the address of the client is not known; otherwise empty.
    pub ranges: Vec<SourceRange>,
}

impl Admitted {
    /// For a client that gets one of these source addresses; `None` if they are not known.
    pub(crate) fn new(
        state: &MapState,
        nodeport_range: &RangeInclusive<u16>,
        to: L4Addr,
        sources: Option<&[Addr]>,
    ) -> Self {
        let known = |admission| Self { admission, ranges: Vec::new() };
        let Some((_, entry)) = lookup_outside(state, nodeport_range, to) else { return known(Admission::All) };
        let Some(sources) = sources else {
            let all = state.ranges_of(entry.service).filter(|range| range.family() == to.addr.family());
            let ranges: Vec<SourceRange> = all.collect();
            return match admission(state, *entry, None) {
                Admission::Unknown if ranges.is_empty() => known(Admission::No),
                admission @ Admission::Unknown => Self { admission, ranges },
                admission => known(admission),
            };
        };
        let each = sources.iter().map(|source| admission(state, *entry, Some(*source)));
        known(each.into_iter().find(|it| *it != Admission::No).unwrap_or(match entry.has_ranges {
            true => Admission::No,
            false => Admission::All,
        }))
    }
}

#[cfg(test)]
#[path = "tests/ranges.rs"]
mod tests;
