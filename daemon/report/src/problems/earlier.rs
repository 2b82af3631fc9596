//! Since when problems of the daemon and the node have lasted, over a restart: most of them are found only by looking, so
//! that a start looks like their beginning. Problems of services follow from the statuses of their frontends instead.

use std::collections::BTreeMap;

use super::reason::Reason;
use crate::time::Time;

/// The maximum number of problems that are accepted from a file.
const MAX_PROBLEMS: usize = 1_000;

/// The maximum length of the object of such a problem, in bytes.
const MAX_OBJECT: usize = 1_024;

/// How much the times of one beginning may differ, in milliseconds.
pub(super) const CLOCKS_DIFFER: u64 = 1_000;

/// The beginnings of problems, by reason and object.
pub type Beginnings = BTreeMap<(Reason, String), Time>;

/// A problem that this run finds by itself: reason and object, and its beginning, if that is known.
pub type Found = ((Reason, String), Option<Time>);

/// The problems of the previous run that have not ended since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Earlier(BTreeMap<(Reason, String), Known>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    since: Time,
    /// The time that this run has found for its beginning; the outer `None` until it has found it. A later one is another
    /// beginning.
    found: Option<Option<Time>>,
}

impl Earlier {
    /// Accepts what the previous run has stored. The file is not trusted.
    pub fn new(beginnings: impl IntoIterator<Item = ((Reason, String), Time)>, start: Time) -> Self {
        let is_plausible =
            |((_, object), since): &((Reason, String), Time)| object.len() <= MAX_OBJECT && *since <= start;
        let plausible = beginnings.into_iter().filter(is_plausible).take(MAX_PROBLEMS);
        Self(plausible.map(|(key, since)| (key, Known { since, found: None })).collect())
    }

    /// Takes note of the problems that this run finds by itself. `is_complete` says whether it has had the time to find all.
    pub fn note(&mut self, found: &[Found], is_complete: bool) {
        let own: BTreeMap<&(Reason, String), Option<Time>> = found.iter().map(|(key, since)| (key, *since)).collect();
        self.0.retain(|key, known| match (own.get(key), known.found) {
            (Some(own), Some(before)) => is_same(*own, before),
            (Some(own), None) => {
                known.found = Some(*own);
                true
            }
            (None, before) => before.is_none() && !is_complete,
        });
    }

    /// Since when the problem has lasted; `own` is what this run has found.
    pub fn since(&self, reason: Reason, object: &str, own: Option<Time>) -> Option<Time> {
        if self.0.is_empty() {
            return own;
        }
        let known =
            self.0.get(&(reason, object.to_owned())).filter(|it| it.found.is_none_or(|found| is_same(own, found)));
        known.map_or(own, |known| Some(own.map_or(known.since, |own| own.min(known.since))))
    }

    /// What the next run needs: the beginnings of these problems, and those of the previous run that may still last.
    pub fn beginnings(&self, found: &[Found]) -> Beginnings {
        let known = self.0.iter().map(|(key, known)| (key.clone(), known.since));
        let since = |(key, own): &Found| Some((key.clone(), self.since(key.0, &key.1, *own)?));
        known.chain(found.iter().filter_map(since)).take(MAX_PROBLEMS).collect()
    }
}

/// Whether this run still finds the same beginning as before, up to the difference of two readings of the clocks.
fn is_same(own: Option<Time>, before: Option<Time>) -> bool {
    match (own, before) {
        (Some(own), Some(before)) => own.0 <= before.0.saturating_add(CLOCKS_DIFFER),
        (own, before) => own == before,
    }
}

#[cfg(test)]
#[path = "../tests/earlier.rs"]
mod tests;
