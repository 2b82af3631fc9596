//! The decisions: which address is opened next, which ones are probed now, when to look again.

use nodelb_core::model::moment::Moment;

use super::candidate::scaled;
use super::{Candidate, InUse, JITTER, Origin, Outcome, Pool, Standing};
use crate::apiserver::address::{Address, Server};

/// The most attempts to connect at a time.
const MOST_ATTEMPTS: usize = 4;

/// Probes of the address in use that must fail in a row.
const STRIKES: u32 = 2;

/// What to open next, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Where to connect.
    pub server: Server,
    /// In words.
    pub why: String,
}

/// Lower is tried sooner.
type Rank = (u8, Option<Moment>);

const KNOWN_TO_WORK: u8 = 0;
const PROMISING: u8 = 1;
const UNREADY: u8 = 2;
const FRESH: u8 = 3;
const OUT: u8 = 4;

impl Pool {
    /// What to open now; `None` when everything is as it should be or there is nothing to do but wait until
    /// [`wake`](Self::wake).
    pub fn next(&self, now: Moment) -> Option<Choice> {
        let candidate = match &self.in_use {
            None => self.next_without_session(now),
            Some(in_use) => self.next_instead(in_use, now),
        }?;
        Some(Choice { server: candidate.server.clone(), why: self.reason(candidate, now) })
    }

    fn next_without_session(&self, now: Moment) -> Option<&Candidate> {
        let attempts = self.candidates.iter().filter_map(|candidate| candidate.dialling);
        if attempts.clone().count() >= MOST_ATTEMPTS
            || attempts.max().is_some_and(|youngest| now < youngest.plus(self.timing.hedge))
        {
            return None;
        }
        let ranked = self.candidates.iter().filter_map(|candidate| Some((self.rank(candidate, now)?, candidate)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, candidate)| candidate)
    }

    /// `None`: not now. Those that are out take turns, whoever was tried longest ago first.
    fn rank(&self, candidate: &Candidate, now: Moment) -> Option<Rank> {
        if candidate.dialling.is_some() {
            return None;
        }
        let is_due = candidate.retry_at <= now;
        match candidate.standing(now, &self.timing) {
            Standing::Healthy => Some((KNOWN_TO_WORK, None)),
            Standing::Untried if candidate.is_fresh(now, &self.timing) => Some((FRESH, None)),
            Standing::Recovering | Standing::Untried => Some((PROMISING, None)),
            Standing::NotReady => is_due.then_some((UNREADY, candidate.tried)),
            Standing::Failed | Standing::Refused => is_due.then_some((OUT, candidate.tried)),
        }
    }

    /// What is better than the address in use: a configured one before it that has worked for long enough, or any that may
    /// work when the one in use says that it does not.
    fn next_instead(&self, in_use: &InUse, now: Moment) -> Option<&Candidate> {
        let attempting = self.candidates.iter().any(|candidate| candidate.dialling.is_some());
        let place = self.position(&in_use.address)?;
        if attempting {
            return None;
        }
        if self.candidates[place].is_unready() {
            let others = self.candidates.iter().filter(|candidate| candidate.server.address != in_use.address);
            let ranked = others.filter_map(|candidate| Some((self.rank(candidate, now)?, candidate)));
            let better = ranked.filter(|((tier, _), _)| *tier < UNREADY);
            return better.min_by_key(|(rank, _)| *rank).map(|(_, candidate)| candidate);
        }
        if now < in_use.opened.plus(self.timing.dwell) {
            return None;
        }
        self.preferred(place).find(|candidate| self.returns_at(candidate, now).is_some_and(|at| at <= now))
    }

    /// When a preferred address is returned to; `None` unless it works. Not for long to one that denied something, while
    /// the one in use denies nothing.
    pub(super) fn returns_at(&self, candidate: &Candidate, now: Moment) -> Option<Moment> {
        let preferable = candidate.preferable(&self.timing)?;
        let in_use = self.in_use().and_then(|in_use| self.find(in_use));
        let is_denied = in_use.and_then(|in_use| in_use.denied_until(&self.timing)).is_some_and(|until| now < until);
        let denied = candidate.denied_until(&self.timing).filter(|_| !is_denied);
        Some(denied.map_or(preferable, |denied| preferable.max(denied)))
    }

    /// Those that are returned to. Among learned and remembered ones none is better than another.
    pub(super) fn preferred(&self, place: usize) -> impl Iterator<Item = &Candidate> {
        self.candidates[..place].iter().filter(|candidate| candidate.origin == Origin::Configured)
    }

    /// When to ask again at the latest, unless something happens; `None` if only something that happens can change the
    /// answers.
    pub fn wake(&self, now: Moment) -> Option<Moment> {
        let timing = &self.timing;
        let of_candidate = |candidate: &Candidate| {
            [
                Some(candidate.retry_at),
                candidate.preferable(timing),
                candidate.denied_until(timing),
                Some(candidate.seen.plus(timing.debounce)),
                candidate.dialling.map(|since| since.plus(timing.hedge)),
                self.in_use.as_ref().filter(|_| !candidate.probing).map(|_| candidate.probe_at),
            ]
        };
        let of_session = self.in_use.as_ref().map(|in_use| in_use.opened.plus(timing.dwell));
        let moments = self.candidates.iter().flat_map(of_candidate).chain([of_session]).flatten();
        moments.filter(|moment| now < *moment).min()
    }

    /// What to probe now. The result of each is told with [`probed`](Self::probed).
    pub fn probes(&mut self, now: Moment) -> Vec<Server> {
        if self.in_use.is_none() {
            return Vec::new();
        }
        let timing = self.timing;
        let idle = |candidate: &&mut Candidate| {
            !candidate.probing && candidate.dialling.is_none() && !candidate.is_fresh(now, &timing)
        };
        let (is_poor, in_use) = (self.is_poorly_served(), self.in_use().cloned());
        let is_due = |candidate: &&mut Candidate| {
            let is_wanted = is_poor && in_use.as_ref() != Some(&candidate.server.address) && candidate.is_bad();
            candidate.probe_at <= now || is_wanted && candidate.retry_at <= now
        };
        let due = self.candidates.iter_mut().filter(idle).filter(is_due);
        due.map(|candidate| {
            candidate.probing = true;
            candidate.server.clone()
        })
        .collect()
    }

    /// Whether the address in use says that it is not ready: then all others are probed as often as they would be dialled
    /// without a session, for one that works again is wanted now.
    fn is_poorly_served(&self) -> bool {
        self.in_use().and_then(|in_use| self.find(in_use)).is_some_and(Candidate::is_unready)
    }

    /// The address in use is probed at once, and one failure decides: something else failed over it already. A probe that
    /// is under way is too patient.
    pub fn doubt(&mut self, now: Moment) {
        let again = self.timing.probe_again;
        let Some(in_use) = &mut self.in_use else { return };
        let is_news = in_use.strikes < STRIKES - 1;
        in_use.strikes = in_use.strikes.max(STRIKES - 1);
        let address = in_use.address.clone();
        if let Some(candidate) = self.find_mut(&address) {
            let soon = candidate.tried.map_or(now, |tried| now.max(tried.plus(again)));
            candidate.probe_at = candidate.probe_at.min(soon);
            candidate.probing &= !is_news;
        }
    }

    /// Whether the address is in use and its next failure decides.
    pub fn is_doubted(&self, address: &Address) -> bool {
        self.in_use.as_ref().is_some_and(|in_use| in_use.address == *address && in_use.strikes + 1 >= STRIKES)
    }

    /// Takes down what a probe found. The address in use gets a second chance soon after a first failure.
    pub fn probed(&mut self, now: Moment, address: &Address, outcome: Outcome) {
        let again = self.timing.probe_again;
        if let Some(candidate) = self.find_mut(address) {
            candidate.probing = false;
            candidate.probe_at = now.plus(again);
        }
        if let Some(in_use) = self.in_use.as_mut().filter(|in_use| in_use.address == *address) {
            if outcome == Outcome::Worked {
                in_use.strikes = 0;
            } else {
                in_use.strikes = in_use.strikes.saturating_add(1);
                if in_use.strikes < STRIKES {
                    return;
                }
            }
        }
        let (timing, jitter) = (self.timing, self.random.u64(JITTER));
        if let Some(candidate) = self.find_mut(address) {
            candidate.apply(now, outcome, &timing, jitter);
        }
        self.schedule(now, address);
    }

    /// Why the session in use cannot go on; `None` while it can.
    pub fn lost(&self) -> Option<String> {
        let candidate = self.find(self.in_use()?)?;
        let (_, error) = candidate.error.as_ref().filter(|_| candidate.is_out())?;
        Some(error.clone())
    }

    /// Sets when the address is probed next.
    pub(super) fn schedule(&mut self, now: Moment, address: &Address) {
        if let Some(place) = self.position(address) {
            self.candidates[place].probe_at = self.next_probe(now, place);
        }
    }

    /// The same for all of them, after another one came into use: none is put off.
    pub(super) fn schedule_all(&mut self, now: Moment) {
        for place in 0..self.candidates.len() {
            let next = self.next_probe(now, place);
            let candidate = &mut self.candidates[place];
            let is_pending = now < candidate.probe_at && candidate.probe_at < next;
            candidate.probe_at = if is_pending { candidate.probe_at } else { next };
        }
    }

    fn next_probe(&mut self, now: Moment, place: usize) -> Moment {
        let jitter = self.random.u64(900..=1100);
        let used = self.in_use().and_then(|in_use| self.position(in_use));
        let candidate = &self.candidates[place];
        let every = match used {
            Some(used) if place == used => self.timing.probe_every,
            Some(used)
                if place < used
                    && candidate.origin == Origin::Configured
                    && candidate.standing(now, &self.timing) != Standing::Refused =>
            {
                self.timing.probe_preferred_every
            }
            _ => self.timing.probe_others_every,
        };
        now.plus(scaled(every, jitter))
    }
}
