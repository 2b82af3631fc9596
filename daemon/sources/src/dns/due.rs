//! When questions are asked again. Pure.

use std::collections::BTreeSet;

use nodelb_core::model::moment::Moment;
use nodelb_core::model::named::Question;

use super::entry::Entry;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    All,
    NotFailed,
}

/// The times of the next queries. Questions of which the last query failed are apart: the others do not wait for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    failed: BTreeSet<(Moment, Question)>,
    others: BTreeSet<(Moment, Question)>,
}

impl Due {
    fn of(&mut self, entry: &Entry) -> &mut BTreeSet<(Moment, Question)> {
        if entry.failures > 0 { &mut self.failed } else { &mut self.others }
    }

    pub(super) fn insert(&mut self, question: &Question, entry: &Entry) {
        self.of(entry).insert((entry.due, question.clone()));
    }

    pub(super) fn remove(&mut self, question: &Question, entry: &Entry) {
        self.of(entry).remove(&(entry.due, question.clone()));
    }

    pub(super) fn first(&self, which: Which) -> Option<&(Moment, Question)> {
        let failed = self.failed.first().filter(|_| which == Which::All);
        self.others.first().into_iter().chain(failed).min()
    }
}
