//! What the answers to a question say about backends. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::durations;
use nodelb_core::model::addr::Family;
use nodelb_core::model::named::{
    AnswerState, MAX_BACKENDS, NameAnswer, NameRecords, NamedAddress, Question, RecordType, refusal,
};
use nodelb_core::model::service::Backend;
use nodelb_core::table::Facts;

use super::answer::{Records, Target};
use super::entry::{Entry, Known};

/// What is known of a question about a target.
#[derive(Default)]
pub(super) struct TargetAnswer<'a> {
    pub(super) known: Option<&'a Known>,
    pub(super) problem: Option<&'a Arc<str>>,
    pub(super) was_asked: bool,
    /// Whether the records are of an earlier run.
    pub(super) is_recalled: bool,
}

impl<'a> TargetAnswer<'a> {
    pub(super) fn of(entry: &'a Entry) -> Self {
        let Entry { known, problem, was_asked, is_recalled, .. } = entry;
        Self { known: known.as_ref(), problem: problem.as_ref(), was_asked: *was_asked, is_recalled: *is_recalled }
    }
}

type Lookup<'a> = &'a dyn Fn(&Question) -> Option<TargetAnswer<'a>>;

/// The addresses by priority, and why those of targets are not current, if so. `None` while a target has not been asked for.
pub(super) fn assemble<'a>(
    (known, is_recalled): (&Known, bool),
    families: &'a BTreeSet<Family>,
    lookup: Lookup<'a>,
) -> Option<(NameRecords, Option<Arc<str>>)> {
    let mut collected = Collected { families, lookup, is_recalled, problem: None, count: 0 };
    let priorities = match &known.records {
        Records::Addresses(addresses) => {
            vec![addresses.iter().map(|addr| NamedAddress { addr: *addr, srv: None }).collect()]
        }
        Records::Targets(targets) => {
            let by_priority = targets.chunk_by(|a, b| a.priority == b.priority);
            by_priority.map(|targets| collected.addresses_of(targets)).collect::<Option<_>>()?
        }
    };
    let Collected { is_recalled, problem, .. } = collected;
    let records = NameRecords { priorities, server: Arc::clone(&known.server), since: known.since, is_recalled };
    Some((records, problem))
}

/// The answer for the owner task.
pub(super) fn answer_of(entry: &Entry, records: Option<NameRecords>, hold: Option<Duration>) -> NameAnswer {
    let state = match (entry.is_gone, entry.was_answered) {
        (true, _) => AnswerState::Ended(hold.map(|hold| format!(" ({})", durations::exact(hold))).unwrap_or_default()),
        (false, true) => AnswerState::Answered,
        (false, false) => AnswerState::Unanswered,
    };
    NameAnswer { records: records.filter(|_| !entry.is_gone), problem: entry.problem.clone(), state }
}

/// The backends that are in use for each question.
pub(super) fn in_use(facts: &Facts) -> BTreeMap<Question, NameRecords> {
    let mut used = BTreeMap::new();
    for named in facts.named.values() {
        let slices = facts.owner(&named.service).map_or(&[][..], |(_, slices)| slices);
        let slice = slices.iter().find(|slice| slice.name == named.slice);
        let Some(port) = slice.and_then(|slice| slice.ports.first()).filter(|port| !port.backends.is_empty()) else {
            continue;
        };
        let origin = slice.map(|slice| slice.origin.clone()).unwrap_or_default();
        let is_srv = named.question.record == RecordType::Srv;
        let address = |it: &Backend| NamedAddress { addr: it.addr, srv: is_srv.then_some((it.port, it.weight)) };
        let priorities = vec![port.backends.iter().map(address).collect()];
        let since = origin.written.unwrap_or_default();
        let records = NameRecords { priorities, server: origin.writer, since, is_recalled: true };
        used.insert(named.question.clone(), records);
    }
    used
}

struct Collected<'a> {
    families: &'a BTreeSet<Family>,
    lookup: Lookup<'a>,
    /// Whether any record is of an earlier run.
    is_recalled: bool,
    problem: Option<Arc<str>>,
    count: usize,
}

impl Collected<'_> {
    /// The addresses of targets of one priority.
    fn addresses_of(&mut self, targets: &[Target]) -> Option<Vec<NamedAddress>> {
        let (mut addresses, mut problem) = (Vec::new(), None);
        let is_first = self.count == 0;
        let families: Vec<Family> = self.families.iter().copied().collect();
        for target in targets {
            // A weight of 0 stands for a small share, not for none (RFC 2782).
            let srv = Some((target.port, target.weight.max(1)));
            let mut found = Vec::new();
            for family in target.missing(&families) {
                let question = Question { name: target.name.clone(), record: RecordType::of(family) };
                let Some(answer) = (self.lookup)(&question) else { continue };
                match answer.known.map(|known| &known.records) {
                    Some(Records::Addresses(addresses)) => {
                        self.is_recalled |= answer.is_recalled;
                        problem = problem.or(answer.problem);
                        found.extend(addresses.iter().copied());
                    }
                    None if !answer.was_asked => return None,
                    _ => {}
                }
            }
            found.extend(target.addresses.iter().filter(|addr| families.contains(&addr.family())).copied());
            found.retain(|addr| refusal(*addr).is_none());
            // One more shows that there are too many.
            found.truncate((MAX_BACKENDS + 1).saturating_sub(self.count));
            self.count += found.len();
            addresses.extend(found.into_iter().map(|addr| NamedAddress { addr, srv }));
        }
        // Later priorities are not used.
        if is_first {
            self.problem = problem.cloned();
        }
        Some(addresses)
    }
}
