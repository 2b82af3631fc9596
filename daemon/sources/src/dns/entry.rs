//! What is known about a question. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodelb_core::model::moment::Moment;
use nodelb_core::model::named::{NameRecords, Named, Question, RecordType};
use nodelb_core::model::service::SliceName;
use serde::{Deserialize, Serialize};

use super::answer::{Records, Ttl};

/// The maximum number of targets of one SRV answer that are asked for separately.
pub(super) const MAX_TARGETS: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) records: Records,
    pub(super) server: Arc<str>,
    /// The time since which they are the same, in seconds since 1970.
    pub(super) since: u64,
}

/// Since when a name has not existed: on the clock since the boot, and in seconds since 1970.
pub(super) type GoneSince = (Moment, u64);

/// Why the last records of a question are not current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) problem: Arc<str>,
    pub(super) gone_since: Option<GoneSince>,
}

/// What is kept over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    pub(super) answers: BTreeMap<Question, Known>,
    /// The backends in use, which are not those of the last answer if that is of no use.
    pub(super) used: BTreeMap<Question, NameRecords>,
    pub(super) held: BTreeMap<Question, Held>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) known: Option<Known>,
    /// Why there are no current records; `None` if `known` is current.
    pub(super) problem: Option<Arc<str>>,
    /// The server of the last answer.
    pub(super) server: Option<Arc<str>>,
    /// The TTL of the last answer, in seconds.
    pub(super) ttl: Option<Ttl>,
    pub(super) due: Moment,
    /// The time since which `problem` is or is not there.
    pub(super) since: Moment,
    /// Whether a query was answered or failed since the start.
    pub(super) was_asked: bool,
    pub(super) was_answered: bool,
    pub(super) is_open: bool,
    /// Whether `known` is of an earlier run.
    pub(super) is_recalled: bool,
    pub(super) failures: u32,
    /// Since when each answer was that the name does not exist.
    pub(super) gone_since: Option<GoneSince>,
    /// Whether that has been so for the whole time of the hold.
    pub(super) is_gone: bool,
    pub(super) slices: BTreeSet<SliceName>,
}

impl Entry {
    /// Takes what an earlier run has stored about the question, of which no records are known since. Returns whether it has
    /// stored anything.
    pub(super) fn recall(&mut self, recalled: &mut Saved, question: &Question) -> bool {
        let (known, held) = (recalled.answers.remove(question), recalled.held.remove(question));
        if known.is_none() && held.is_none() {
            return false;
        }
        (self.is_recalled, self.known) = (known.is_some(), known);
        let Some(Held { problem, gone_since }) = held else { return true };
        // An answer that the name does not exist continues the hold, and any other one has ended it.
        if !self.was_answered || self.gone_since.is_some() {
            self.gone_since = gone_since.or(self.gone_since);
        }
        if !self.was_asked {
            self.problem = Some(problem);
        }
        true
    }

    /// Whether the last records are in use although they are not current.
    pub(super) fn is_held(&self) -> bool {
        self.known.is_some() && self.problem.is_some()
    }

    pub(super) fn held(&self) -> Option<Held> {
        let problem = self.problem.clone().filter(|_| self.is_held())?;
        Some(Held { problem, gone_since: self.gone_since })
    }
}

/// The questions about targets of these records, which have no addresses for them.
pub(super) fn separate_targets(named: &Named, known: Option<&Known>) -> BTreeSet<Question> {
    let Some(Known { records: Records::Targets(targets), .. }) = known else { return BTreeSet::new() };
    let (mut names, mut questions) = (BTreeSet::new(), BTreeSet::new());
    for target in targets {
        let missing = target.missing(&named.families).map(RecordType::of);
        let asked: Vec<_> = missing.map(|record| Question { name: target.name.clone(), record }).collect();
        if asked.is_empty() || names.len() == MAX_TARGETS && !names.contains(&target.name) {
            continue;
        }
        names.insert(&target.name);
        questions.extend(asked);
    }
    questions
}
