//! The decisions: the next address to open, the addresses to probe, and the time of the next decision.

use nodelb_core::model::moment::Moment;

use super::candidate::{Candidate, Origin, Outcome, ServerStatus, scaled};
use super::servers::{InUse, Pool};
use crate::apiserver::address::{Address, Server};

/// The maximum number of simultaneous attempts to connect.
const MOST_ATTEMPTS: usize = 4;

/// The number of consecutive failed probes that end the use of an address.
const STRIKES: u32 = 2;

/// The number of probes of a preferred address within `min_uptime`, so that more than one has succeeded
/// before the address is used again.
const UPTIME_PROBES: u64 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub server: Server,
    pub why: String,
}

/// The priority of an address; lower values come first.
type Rank = (u8, Option<Moment>);

const KNOWN_TO_WORK: u8 = 0;
const PROMISING: u8 = 1;
const UNREADY: u8 = 2;
const FRESH: u8 = 3;
const OUT: u8 = 4;

impl Pool {
    /// The next server to open; `None` if the session in use is the best one, or nodelb must wait until
    /// [`wake`](Self::wake).
    pub fn next(&self, now: Moment) -> Option<Choice> {
        let candidate = match &self.in_use {
            None => self.next_without_session(now),
            Some(in_use) => self.next_instead(in_use, now),
        }?;
        Some(Choice { server: candidate.server.clone(), why: self.reason(candidate, now) })
    }

    fn next_without_session(&self, now: Moment) -> Option<&Candidate> {
        let attempts = self.candidates.iter().filter_map(|candidate| candidate.connecting);
        if attempts.clone().count() >= MOST_ATTEMPTS
            || attempts.max().is_some_and(|youngest| now < youngest.plus(self.timeouts.hedge))
        {
            return None;
        }
        let ranked = self.candidates.iter().filter_map(|candidate| Some((self.rank(candidate, now)?, candidate)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, candidate)| candidate)
    }

    /// The priority; `None` if the address must not be tried now. Among failed addresses, the one that was tried
    /// longest ago comes first.
    fn rank(&self, candidate: &Candidate, now: Moment) -> Option<Rank> {
        if candidate.connecting.is_some() {
            return None;
        }
        let is_due = candidate.retry_at <= now;
        match candidate.status(now, &self.timeouts) {
            ServerStatus::Healthy => Some((KNOWN_TO_WORK, None)),
            ServerStatus::Untried if candidate.is_fresh(now, &self.timeouts) => Some((FRESH, None)),
            ServerStatus::Recovering | ServerStatus::Untried => Some((PROMISING, None)),
            ServerStatus::NotReady => is_due.then_some((UNREADY, candidate.tried)),
            ServerStatus::Failed | ServerStatus::Refused => is_due.then_some((OUT, candidate.tried)),
        }
    }

    /// A better address than the one in use: a configured one before it that has worked long enough, or, if the one in
    /// use is not ready, any that may work.
    fn next_instead(&self, in_use: &InUse, now: Moment) -> Option<&Candidate> {
        let attempting = self.candidates.iter().any(|candidate| candidate.connecting.is_some());
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
        if now < in_use.opened.plus(self.timeouts.min_uptime) {
            return None;
        }
        self.preferred(place).find(|candidate| self.returns_at(candidate, now).is_some_and(|at| at <= now))
    }

    /// The time to return to a preferred address; `None` unless it works. An address that denied a permission has to
    /// wait for a long time, unless the one in use does so, too.
    pub(super) fn returns_at(&self, candidate: &Candidate, now: Moment) -> Option<Moment> {
        let preferable = candidate.preferable(&self.timeouts)?;
        let in_use = self.in_use().and_then(|in_use| self.find(in_use));
        let is_denied = in_use.and_then(|in_use| in_use.denied_until).is_some_and(|until| now < until);
        let denied = candidate.denied_until.filter(|_| !is_denied);
        Some(denied.map_or(preferable, |denied| preferable.max(denied)))
    }

    /// The addresses that nodelb returns to. Learned and remembered ones all have the same preference.
    pub(super) fn preferred(&self, place: usize) -> impl Iterator<Item = &Candidate> {
        self.candidates[..place].iter().filter(|candidate| candidate.origin == Origin::Configured)
    }

    /// The latest time for the next decision if no event occurs; `None` if only an event can change the decisions.
    pub fn wake(&self, now: Moment) -> Option<Moment> {
        let timeouts = &self.timeouts;
        let of_candidate = |candidate: &Candidate| {
            [
                Some(candidate.retry_at),
                candidate.preferable(timeouts),
                candidate.denied_until,
                candidate.fresh_until(timeouts),
                candidate.connecting.map(|since| since.plus(timeouts.hedge)),
                self.in_use.as_ref().filter(|_| !candidate.probing).map(|_| candidate.probe_at),
            ]
        };
        let of_session = self.in_use.as_ref().map(|in_use| in_use.opened.plus(timeouts.min_uptime));
        let moments = self.candidates.iter().flat_map(of_candidate).chain([of_session]).flatten();
        moments.filter(|moment| now < *moment).min()
    }

    /// The servers to probe now. The supervisor reports each result with [`probed`](Self::probed).
    pub fn probes(&mut self, now: Moment) -> Vec<Server> {
        if self.in_use.is_none() {
            return Vec::new();
        }
        let timeouts = self.timeouts;
        let idle = |candidate: &&mut Candidate| {
            !candidate.probing && candidate.connecting.is_none() && !candidate.is_fresh(now, &timeouts)
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

    /// Whether the address in use is not ready. Then the others are probed as often as nodelb would try to connect
    /// without a session, because one that works again is needed immediately.
    fn is_poorly_served(&self) -> bool {
        self.in_use().and_then(|in_use| self.find(in_use)).is_some_and(Candidate::is_unready)
    }

    /// Probes the address in use immediately, and its next failure ends its use, because another request has failed
    /// over it. A probe in progress is repeated, because its timeout is too long.
    pub fn doubt(&mut self, now: Moment) {
        let again = self.timeouts.probe_again;
        let Some(in_use) = &mut self.in_use else { return };
        let is_new = in_use.strikes < STRIKES - 1;
        in_use.strikes = in_use.strikes.max(STRIKES - 1);
        let address = in_use.address.clone();
        if let Some(candidate) = self.find_mut(&address) {
            let soon = candidate.tried.map_or(now, |tried| now.max(tried.plus(again)));
            candidate.probe_at = candidate.probe_at.min(soon);
            candidate.probing &= !is_new;
        }
    }

    /// Whether the address is in use and its next failure ends its use.
    pub fn is_doubted(&self, address: &Address) -> bool {
        self.in_use.as_ref().is_some_and(|in_use| in_use.address == *address && in_use.strikes + 1 >= STRIKES)
    }

    /// Records the result of a probe. After a first failure, the address in use is probed again after a short time.
    pub fn probed(&mut self, now: Moment, address: &Address, outcome: Outcome) {
        let again = self.timeouts.probe_again;
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
        self.apply(now, address, outcome);
    }

    /// The reason why the session in use must end; `None` if it may continue.
    pub fn lost(&self) -> Option<String> {
        let candidate = self.find(self.in_use()?)?;
        let (_, error) = candidate.error.as_ref().filter(|_| candidate.is_out())?;
        Some(error.clone())
    }

    pub(super) fn schedule(&mut self, now: Moment, address: &Address) {
        if let Some(place) = self.position(address) {
            self.candidates[place].probe_at = self.next_probe(now, place);
        }
    }

    /// Sets the time of the next probe of all addresses after the address in use has changed. Never delays a probe.
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
            Some(used) if place == used => self.timeouts.probe_every,
            Some(used)
                if place < used
                    && candidate.origin == Origin::Configured
                    && candidate.status(now, &self.timeouts) != ServerStatus::Refused =>
            {
                self.timeouts.min_uptime / UPTIME_PROBES
            }
            _ => self.timeouts.slow_retry,
        };
        now.plus(scaled(every, jitter))
    }
}
