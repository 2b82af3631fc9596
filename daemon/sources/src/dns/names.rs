//! Which questions are asked, when, and what is known about each: a state machine to which the time is passed. Pure.
//!
//! The rule that everything else follows from: only an answer replaces an answer. A server that fails, or that answers
//! without records, leaves the last records in use; they are forgotten when the name has not existed for the whole time
//! of `dns.hold`. The table applies the same rule to the backends that follow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::model::addr::Family;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::named::{DnsName, NameAnswer, Named, Question, RecordType};
use nodelb_core::model::service::{ServiceName, SliceName};
use nodelb_core::table::Facts;

use super::answer::{Answer, Ttl, nonexistent, without_end};
use super::assemble::{TargetAnswer, answer_of, assemble, in_use};
use super::entry::{Entry, GoneSince, Held, Known, Saved, separate_targets};
use super::servers::{Asking, MAX_SILENT};
use crate::shares::Share;

/// The first pause after a failure, in milliseconds; each further failure doubles it.
const FIRST_PAUSE: u64 = 1_000;
/// The longest pause after failures, in milliseconds.
pub(super) const MAX_PAUSE: u64 = 30_000;
/// The TTL of an answer without records that has none, in seconds.
const DEFAULT_NEGATIVE_TTL: Ttl = 10;
/// The longest time for which such an answer is believed, in milliseconds: a new record should be found soon.
pub(super) const MAX_NEGATIVE: u64 = 60_000;
/// The bounds of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounds {
    /// The shortest time between two answers to a question.
    pub min_ttl: u64,
    /// The longest time between two answers to a question, except for a tenth of jitter.
    pub max_ttl: u64,
    /// How long the records of a name that does not exist any more are kept; `None`: forever.
    pub hold: Option<u64>,
}

impl Bounds {
    /// The time within the bounds. The minimum wins over a maximum below it.
    fn limit(&self, millis: u64) -> u64 {
        millis.min(self.max_ttl).max(self.min_ttl)
    }
}

/// The names to ask for, by the slice that the answers become.
pub(super) type Wanted = BTreeMap<SliceName, Arc<Named>>;

/// What a server, or all servers together, said to a question.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    Answered(Arc<str>, Answer),
    /// No server has; the text names each with its reason.
    Failed(Arc<str>),
}

#[derive(Default)]
pub(super) struct Names {
    bounds: Bounds,
    seed: u64,
    wanted: Arc<Wanted>,
    /// The services that `wanted` belongs to.
    services: BTreeSet<ServiceName>,
    entries: BTreeMap<Question, Entry>,
    /// The times of the next queries.
    due: BTreeSet<(Moment, Question)>,
    /// What an earlier run has stored about questions that are not asked yet.
    recalled: Saved,
    /// The slices that an answer may have changed.
    dirty: BTreeSet<SliceName>,
    /// The questions of which the owner task has an answer.
    reported: BTreeSet<Question>,
    /// Those of them that no name needs any more.
    left: BTreeSet<Question>,
}

impl Names {
    pub(super) fn new(bounds: Bounds, seed: u64) -> Self {
        Self { bounds, seed, ..Self::default() }
    }

    /// Continues with what an earlier run has stored, also if it arrives late: what has been answered since the start is newer.
    /// Returns the answers in it for the owner task. A hold that would have ended meanwhile begins again with the next answer:
    /// only answers end it.
    pub(super) fn recall(&mut self, mut saved: Saved, now: Moment) -> Vec<Change> {
        let hold = self.bounds.hold.unwrap_or(u64::MAX);
        let lasts = |(since, _): GoneSince| since <= now && since.0.saturating_add(hold) > now.0;
        for held in saved.held.values_mut().filter(|held| !held.gone_since.is_none_or(lasts)) {
            *held = Held { problem: without_end(&held.problem).into(), gone_since: None };
        }
        for (question, _) in self.entries.iter().filter(|(_, entry)| entry.known.is_some() || entry.is_gone) {
            saved.answers.remove(question);
            saved.used.remove(question);
            saved.held.remove(question);
        }
        let used = saved.used.clone();
        let questions: BTreeSet<Question> = saved.answers.keys().chain(used.keys()).cloned().collect();
        self.recalled = saved;
        for (question, entry) in &mut self.entries {
            if entry.recall(&mut self.recalled, question) {
                self.dirty.extend(entry.slices.iter().cloned());
            }
        }
        self.rewire(now);
        let of_maps = |question: &Question| {
            let records = Some(used.get(question)?.clone());
            let mut new = Entry::default();
            let entry = self.entries.get(question).unwrap_or_else(|| {
                new.problem = self.recalled.held.get(question).map(|held| Arc::clone(&held.problem));
                &new
            });
            Some(answer_of(entry, records, self.hold()))
        };
        let answer = |question| Some((of_maps(&question).or_else(|| self.answer_to(&question))?, question));
        let answers: Vec<_> = questions.into_iter().filter_map(answer).collect();
        self.reported.extend(answers.iter().map(|(_, question)| question.clone()));
        answers.into_iter().map(|(answer, question)| Change::Answer(question, Some(answer))).collect()
    }

    pub(super) fn services(&self) -> &BTreeSet<ServiceName> {
        &self.services
    }

    /// Asks for these names from now on, and for no others.
    pub(super) fn follow(&mut self, wanted: Arc<Wanted>, now: Moment) {
        let differing = wanted.iter().filter(|(slice, named)| self.wanted.get(*slice) != Some(named));
        self.dirty.extend(differing.map(|(slice, _)| slice.clone()));
        self.services = wanted.values().map(|named| named.service.clone()).collect();
        self.wanted = wanted;
        self.rewire(now);
        self.withdraw();
    }

    pub(super) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    #[cfg(test)]
    pub(super) fn entry(&self, question: &Question) -> Option<&Entry> {
        self.entries.get(question)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&Question, &Entry)> {
        self.entries.iter()
    }

    pub(super) fn hold(&self) -> Option<Duration> {
        self.bounds.hold.map(Duration::from_millis)
    }

    /// The time of the next query.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Whether the question is to be asked: it was due, and has no answer since.
    pub(super) fn is_open(&self, question: &Question) -> bool {
        self.entries.get(question).is_some_and(|entry| entry.is_open)
    }

    /// A question that is due, if there is one, with the share that its query counts in: it is open until
    /// [`Names::answer`].
    pub(super) fn take_due(&mut self, now: Moment) -> Option<(Share, Question)> {
        loop {
            let (_, question) = self.due.first().filter(|(due, _)| *due <= now)?;
            let question = question.clone();
            self.due.pop_first();
            let Some(entry) = self.entries.get_mut(&question) else { continue };
            let Some(named) = entry.slices.iter().find_map(|slice| self.wanted.get(slice)) else { continue };
            entry.is_open = true;
            return Some((Share { service: named.service.clone(), was_silent: entry.failures > 0 }, question));
        }
    }

    /// Takes the reply to an open question. Returns whether anything that is stored has changed.
    pub(super) fn answer(&mut self, question: &Question, reply: Reply, now: Moment, unix: u64) -> bool {
        let jitter = self.jitter(question, now);
        let Some(entry) = self.entries.get_mut(question) else { return false };
        let before = (entry.known.clone(), entry.problem.clone(), entry.was_asked, entry.is_gone);
        let held_before = (entry.is_held(), entry.gone_since);
        // A question that has left the file and returned may have been asked twice.
        self.due.remove(&(entry.due, question.clone()));
        let pause = entry.take(reply, self.bounds, now, unix);
        entry.is_open = false;
        entry.was_asked = true;
        entry.due = now.plus(pause + pause / 10 * jitter / 1_000);
        self.due.insert((entry.due, question.clone()));
        if before.1.is_some() != entry.problem.is_some() {
            entry.since = now;
        }
        let has_changed = before.0 != entry.known;
        let is_outdated = has_changed || held_before != (entry.is_held(), entry.gone_since);
        if has_changed || before != (entry.known.clone(), entry.problem.clone(), true, entry.is_gone) {
            self.dirty.extend(entry.slices.iter().cloned());
        }
        if has_changed && question.record == RecordType::Srv {
            let (slices, known) = (entry.slices.clone(), entry.known.clone());
            self.rewire_targets(&slices, (before.0.as_ref(), known.as_ref()), now);
        }
        is_outdated
    }

    /// A number below 1,000 that differs between hosts, questions and times.
    fn jitter(&self, question: &Question, now: Moment) -> u64 {
        let mut hash = self.seed ^ now.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in question.name.as_str().bytes().chain([question.record as u8]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        (hash >> 20) % 1_000
    }

    /// The answers that the owner task does not have yet.
    pub(super) fn take_news(&mut self) -> Vec<Change> {
        let dirty = std::mem::take(&mut self.dirty);
        let questions = dirty.iter().filter_map(|slice| Some(self.wanted.get(slice)?.question.clone()));
        let left = std::mem::take(&mut self.left);
        let mut changes: Vec<Change> = left.into_iter().map(|question| Change::Answer(question, None)).collect();
        for question in questions.collect::<BTreeSet<_>>() {
            if let Some(answer) = self.answer_to(&question) {
                self.reported.insert(question.clone());
                changes.push(Change::Answer(question, Some(answer)));
            }
        }
        changes
    }

    /// Finds the answers that no name needs any more.
    fn withdraw(&mut self) {
        let wanted: BTreeSet<&Question> = self.wanted.values().map(|named| &named.question).collect();
        let Saved { answers, used, .. } = &self.recalled;
        let is_recalled = |it: &Question| answers.contains_key(it) || used.contains_key(it);
        let is_needed = |question: &&Question| wanted.contains(question) || is_recalled(question);
        let left: BTreeSet<Question> = self.reported.iter().filter(|question| !is_needed(question)).cloned().collect();
        self.reported.retain(|question| !left.contains(question));
        self.left.extend(left);
    }

    /// What is known about the backends; `None` if that is nothing new, because a target of the answer was not asked for yet.
    fn answer_to(&self, question: &Question) -> Option<NameAnswer> {
        let recalled = || {
            let known = Some(self.recalled.answers.get(question)?.clone());
            Some(Entry { known, is_recalled: true, ..Entry::default() })
        };
        let entry = self.entries.get(question).cloned().or_else(recalled)?;
        let known = match &entry.known {
            Some(known) => known,
            None if entry.was_asked || entry.is_gone => return Some(answer_of(&entry, None, self.hold())),
            None => return None,
        };
        let families: BTreeSet<Family> = self.families(question);
        let lookup = |question: &Question| {
            let of_run = |known| TargetAnswer { known: Some(known), is_recalled: true, ..TargetAnswer::default() };
            self.entries.get(question).map(TargetAnswer::of).or_else(|| self.recalled.answers.get(question).map(of_run))
        };
        let (records, problem) = assemble((known, entry.is_recalled), &families, &lookup)?;
        Some(answer_of(&Entry { problem: entry.problem.clone().or(problem), ..entry }, Some(records), self.hold()))
    }

    /// The families of the addresses that the slices of the question need; both, if there is none yet.
    fn families(&self, question: &Question) -> BTreeSet<Family> {
        let slices = self.entries.get(question).into_iter().flat_map(|entry| &entry.slices);
        let families: BTreeSet<Family> = slices
            .filter_map(|slice| self.wanted.get(slice))
            .flat_map(|named| named.families.iter().copied())
            .collect();
        if families.is_empty() { [Family::Ipv4, Family::Ipv6].into() } else { families }
    }

    pub(super) fn asking(&self) -> Asking<'_> {
        let services_of = |name: &DnsName| self.services_of(name);
        Asking {
            names: self.count_names(MAX_SILENT),
            services: self.services.len(),
            services_of: Box::new(services_of),
        }
    }

    /// The number of different names, at most this one.
    fn count_names(&self, most: usize) -> usize {
        let mut count = 0;
        let mut last = None;
        for question in self.entries.keys() {
            if count == most {
                break;
            }
            count += usize::from(last.replace(&question.name) != Some(&question.name));
        }
        count
    }

    /// The services that the name belongs to, some of many; none if there is no question about it.
    fn services_of(&self, name: &DnsName) -> BTreeSet<ServiceName> {
        let first = Question { name: name.clone(), record: RecordType::A };
        let of_name = self.entries.range(first..).take_while(|(question, _)| question.name == *name);
        let mut services = BTreeSet::new();
        for named in of_name.flat_map(|(_, entry)| &entry.slices).filter_map(|slice| self.wanted.get(slice)) {
            if services.len() == MAX_SILENT {
                break;
            }
            services.insert(named.service.clone());
        }
        services
    }

    /// What is to be stored, also about questions that are not asked yet. The facts have the backends in use.
    pub(super) fn saved(&self, facts: &Facts) -> Saved {
        let Saved { mut answers, mut used, mut held } = self.recalled.clone();
        used.extend(in_use(facts));
        for (question, entry) in &self.entries {
            answers.extend(entry.known.clone().map(|known| (question.clone(), known)));
            held.extend(entry.held().map(|held| (question.clone(), held)));
        }
        Saved { answers, used, held }
    }

    /// Forgets what an earlier run has stored and is not needed, because every source has been read.
    pub(super) fn forget_recalled(&mut self) {
        self.recalled = Saved::default();
        self.withdraw();
    }

    /// Determines the questions and which slices depend on each. The questions about the targets of SRV records follow
    /// from the records.
    fn rewire(&mut self, now: Moment) {
        let mut slices: BTreeMap<Question, BTreeSet<SliceName>> = BTreeMap::new();
        for (slice, named) in &*self.wanted {
            slices.entry(named.question.clone()).or_default().insert(slice.clone());
            if named.question.record != RecordType::Srv {
                continue;
            }
            for question in self.separate_targets(named) {
                slices.entry(question).or_default().insert(slice.clone());
            }
        }
        let due = &mut self.due;
        self.entries.retain(|question, entry| {
            let is_wanted = slices.contains_key(question);
            if !is_wanted {
                due.remove(&(entry.due, question.clone()));
            }
            is_wanted
        });
        for (question, slices) in slices {
            self.ask(&question, now).slices = slices;
        }
        // The records of targets become known when those of the SRV question do.
        let is_recalled = |question: &Question| self.recalled.answers.contains_key(question);
        let is_srv = |named: &&Arc<Named>| named.question.record == RecordType::Srv;
        let has_recalled = !self.recalled.answers.is_empty()
            && self.wanted.values().filter(is_srv).any(|named| self.separate_targets(named).iter().any(is_recalled));
        if has_recalled {
            self.rewire(now);
        }
    }

    /// The same for the slices of one SRV question, the records of which have changed.
    fn rewire_targets(
        &mut self,
        slices: &BTreeSet<SliceName>,
        (old, new): (Option<&Known>, Option<&Known>),
        now: Moment,
    ) {
        let wanted = Arc::clone(&self.wanted);
        let named = || slices.iter().filter_map(|slice| wanted.get_key_value(slice));
        for (slice, named) in named() {
            for question in separate_targets(named, new) {
                self.ask(&question, now).slices.insert(slice.clone());
            }
        }
        for (slice, named) in named() {
            for question in separate_targets(named, old).difference(&separate_targets(named, new)) {
                let Some(entry) = self.entries.get_mut(question) else { continue };
                entry.slices.remove(slice);
                if entry.slices.is_empty() {
                    self.due.remove(&(entry.due, question.clone()));
                    self.entries.remove(question);
                }
            }
        }
    }

    /// The entry of the question, which is asked at once if it is new.
    fn ask(&mut self, question: &Question, now: Moment) -> &mut Entry {
        self.entries.entry(question.clone()).or_insert_with(|| {
            let mut entry = Entry { due: now, since: now, ..Entry::default() };
            entry.recall(&mut self.recalled, question);
            self.due.insert((entry.due, question.clone()));
            entry
        })
    }

    /// The questions about targets that the answer to the SRV question has no addresses for.
    fn separate_targets(&self, named: &Named) -> BTreeSet<Question> {
        let known = self.entries.get(&named.question).and_then(|entry| entry.known.as_ref());
        separate_targets(named, known.or_else(|| self.recalled.answers.get(&named.question)))
    }
}

impl Entry {
    /// Takes the reply. Returns the time until the next query, without jitter, in milliseconds.
    fn take(&mut self, reply: Reply, bounds: Bounds, now: Moment, unix: u64) -> u64 {
        let (server, answer) = match reply {
            Reply::Answered(server, answer) => (server, answer),
            Reply::Failed(why) => {
                self.problem = Some(why);
                self.failures += 1;
                return (FIRST_PAUSE << (self.failures - 1).min(16)).min(MAX_PAUSE).max(bounds.min_ttl);
            }
        };
        self.failures = 0;
        self.was_answered = true;
        let negative = |ttl: Option<Ttl>| {
            let millis = u64::from(ttl.unwrap_or(DEFAULT_NEGATIVE_TTL)) * 1_000;
            bounds.limit(millis.min(MAX_NEGATIVE))
        };
        let pause = match answer {
            Answer::Records(records, ttl) if !records.is_usable() => {
                self.problem = Some(format!("{server} answers only with addresses that name no host").into());
                (self.gone_since, self.ttl) = (None, Some(ttl));
                negative(Some(ttl))
            }
            Answer::Records(records, ttl) => {
                let is_same = self.known.as_ref().is_some_and(|known| known.records == records);
                if !is_same {
                    self.known = Some(Known { records, server: Arc::clone(&server), since: unix });
                }
                (self.problem, self.gone_since, self.ttl) = (None, None, Some(ttl));
                (self.is_recalled, self.is_gone) = (false, false);
                bounds.limit(u64::from(ttl) * 1_000)
            }
            Answer::NoSuchName(ttl) => {
                let (since, since_unix) = *self.gone_since.get_or_insert((now, unix));
                self.ttl = ttl;
                let left = bounds.hold.map(|hold| since.0.saturating_add(hold).saturating_sub(now.0));
                if left == Some(0) {
                    (self.known, self.is_gone) = (None, true);
                }
                let until =
                    bounds.hold.filter(|_| self.known.is_some()).map(|hold| since_unix.saturating_add(hold / 1_000));
                self.problem = Some(nonexistent(&server, until));
                left.filter(|left| *left > 0).unwrap_or(u64::MAX).min(negative(ttl)).max(bounds.min_ttl)
            }
            Answer::Empty(ttl) => {
                (self.gone_since, self.ttl) = (None, ttl);
                self.problem = Some(format!("{server} answers without records").into());
                negative(ttl)
            }
            // `ask` follows aliases, so that none arrives here.
            Answer::Alias(_, ttl) => u64::from(ttl) * 1_000,
        };
        self.server = Some(server);
        pause
    }
}

#[cfg(test)]
#[path = "tests/names.rs"]
mod tests;
