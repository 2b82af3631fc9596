//! One address of the pool and everything known about it. Owns its state; which address is chosen is decided elsewhere.

use std::fmt;

use nodelb_core::model::moment::Moment;
use serde::Serialize;

use crate::apiserver::address::Server;
use crate::apiserver::timing::Timing;

/// Where an address is known from, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Origin {
    /// The operator wrote it down; never forgotten, never changed.
    Configured,
    /// The cluster lists it as an endpoint of `default/kubernetes`.
    Learned,
    /// It worked before nodelb was started.
    Remembered,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Configured => "Configured",
            Self::Learned => "Learned",
            Self::Remembered => "Remembered",
        })
    }
}

/// How an address stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Standing {
    /// Nothing is known yet.
    Untried,
    /// It works.
    Healthy,
    /// It works again, not yet for long enough to be preferred.
    Recovering,
    /// It answers, and says that it is not ready; used when nothing better is known.
    NotReady,
    /// It does not answer.
    Failed,
    /// It answers as somebody we cannot talk to: wrong certificate, credentials refused, another cluster.
    Refused,
}

impl Standing {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Untried, Self::Healthy, Self::Recovering, Self::NotReady, Self::Failed, Self::Refused];
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Untried => "Untried",
            Self::Healthy => "Healthy",
            Self::Recovering => "Recovering",
            Self::NotReady => "NotReady",
            Self::Failed => "Failed",
            Self::Refused => "Refused",
        })
    }
}

/// What came of an attempt or a probe, with the words to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It answered as it should.
    Worked,
    /// It answered that it is not ready, or with server errors.
    NotReady(String),
    /// No connection, or no answer in time.
    Failed(String),
    /// It answered with too many requests, and asks to be left alone for so many milliseconds.
    Busy(String, u64),
    /// It answered that it is not ready, or with server errors, and names a pause of so many milliseconds: a guess, often
    /// of a load balancer before it.
    Unavailable(String, u64),
    /// It refuses everything, its readiness included: as an apiserver does that has just started, or one that does not
    /// know these credentials.
    Unproven(String),
    /// Wrong certificate, credentials refused, permission missing.
    Refused(String),
    /// Another cluster answers there, twice: no server does that because it starts.
    Another(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Untried,
    Works { dwells: bool },
    NotReady,
    Failed,
    Refused,
}

/// An address, where it is known from and how it stands.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Where, and what its certificate must carry.
    pub server: Server,
    /// Where it is known from.
    pub origin: Origin,
    /// Among those of the same origin, the lower one first.
    pub(super) order: u64,
    state: State,
    since: Moment,
    /// When it became known.
    pub(super) seen: Moment,
    /// It was known before the cluster listed it: the listing is no news.
    pub(super) is_settled: bool,
    /// Network failures and answers of a server that is not ready, in a row, and sessions that ended badly one soon
    /// after the other.
    failures: u32,
    /// Refusals in a row; nothing else counts here.
    refusals: u32,
    /// When there was last no connection, or no answer in time.
    unreachable: Option<Moment>,
    /// Since when it answers, and refuses everything.
    unproven: Option<Moment>,
    relapses: u32,
    /// When it last did not allow a reader something.
    pub(super) denied: Option<Moment>,
    /// Not dialled before; meaningful for those that failed or were refused.
    pub(super) retry_at: Moment,
    /// When it was last dialled or probed, for whose turn it is.
    pub(super) tried: Option<Moment>,
    /// Since when it is being dialled.
    pub(super) dialling: Option<Moment>,
    /// Being probed right now.
    pub(super) probing: bool,
    /// When the next probe is due.
    pub(super) probe_at: Moment,
    /// When it last worked in this run.
    pub worked: Option<Moment>,
    /// When it last worked before this run, in seconds since 1970.
    pub worked_before: Option<u64>,
    /// What was last wrong, and when.
    pub error: Option<(Moment, String)>,
}

impl Candidate {
    pub(super) fn new(server: Server, origin: Origin, order: u64, now: Moment) -> Self {
        Self {
            server,
            origin,
            order,
            state: State::Untried,
            since: now,
            seen: now,
            is_settled: false,
            failures: 0,
            refusals: 0,
            unreachable: None,
            unproven: None,
            relapses: 0,
            denied: None,
            retry_at: now,
            tried: None,
            dialling: None,
            probing: false,
            probe_at: now,
            worked: None,
            worked_before: None,
            error: None,
        }
    }

    /// How it stands now.
    pub fn standing(&self, now: Moment, timing: &Timing) -> Standing {
        match self.state {
            State::Untried => Standing::Untried,
            State::Works { dwells: true } if now < self.settles(timing) => Standing::Recovering,
            State::Works { .. } => Standing::Healthy,
            State::NotReady => Standing::NotReady,
            State::Failed => Standing::Failed,
            State::Refused => Standing::Refused,
        }
    }

    /// Since when it stands so.
    pub fn since(&self, now: Moment, timing: &Timing) -> Moment {
        match self.state {
            State::Works { dwells: true } if self.settles(timing) <= now => self.settles(timing),
            _ => self.since,
        }
    }

    /// When it will have worked for long enough to be returned to; `None` unless it works. An address whose sessions
    /// keep ending badly has to work for longer each time.
    pub(super) fn preferable(&self, timing: &Timing) -> Option<Moment> {
        matches!(self.state, State::Works { .. }).then(|| self.settles(timing))
    }

    /// Until when it is not returned to from one that allows more.
    pub(super) fn denied_until(&self, timing: &Timing) -> Option<Moment> {
        self.denied.map(|at| at.plus(10 * timing.refused_most))
    }

    /// Whether the last that was heard of it is that it failed, although it worked until then.
    pub(super) fn has_just_failed(&self) -> bool {
        let worked = self.worked;
        self.error.as_ref().is_some_and(|(at, _)| worked.is_none_or(|worked| worked <= *at))
    }

    fn settles(&self, timing: &Timing) -> Moment {
        let doublings = self.relapses.saturating_sub(1).min(4);
        self.since.plus(timing.dwell << doublings)
    }

    /// Whether the listing is too fresh to be acted upon: an apiserver that starts lists itself, goes and comes back.
    pub(super) fn is_fresh(&self, now: Moment, timing: &Timing) -> bool {
        let is_news = self.origin == Origin::Learned && !self.is_settled;
        is_news && self.state == State::Untried && now < self.seen.plus(timing.debounce)
    }

    /// Whether nothing is to be had from it at the moment.
    pub(super) fn is_out(&self) -> bool {
        matches!(self.state, State::Failed | State::Refused)
    }

    /// Whether it ever worked, in this run or before.
    pub(super) fn has_worked(&self) -> bool {
        self.worked.is_some() || self.worked_before.is_some()
    }

    pub(super) fn is_unready(&self) -> bool {
        self.state == State::NotReady
    }

    /// Whether what was last heard of it is nothing good.
    pub(super) fn is_bad(&self) -> bool {
        self.is_out() || self.is_unready()
    }

    /// Whether it has been out for `millis`.
    pub(super) fn is_out_for(&self, millis: u64, now: Moment) -> bool {
        self.is_out() && self.since.plus(millis) <= now
    }

    /// Takes the outcome down. `jitter` stretches what waits, in thousandths.
    pub(super) fn apply(&mut self, now: Moment, outcome: Outcome, timing: &Timing, jitter: u64) {
        self.tried = Some(now);
        match outcome {
            Outcome::Worked => self.works(now, timing),
            Outcome::NotReady(error) => self.not_ready(now, error, timing, jitter),
            Outcome::Busy(error, wait) => {
                self.not_ready(now, error, timing, jitter);
                self.is_asked_to_wait(now, wait.min(timing.retry_after_most));
            }
            Outcome::Unavailable(error, wait) => {
                self.not_ready(now, error, timing, jitter);
                self.is_asked_to_wait(now, wait.min(timing.retry_most));
            }
            Outcome::Failed(error) => {
                (self.unreachable, self.unproven) = (Some(now), None);
                let wait = next_wait(self.failures, (timing.retry_first, timing.retry_most), jitter);
                self.failures = self.failures.saturating_add(1);
                self.is_wrong(now, State::Failed, error, wait);
            }
            Outcome::Unproven(error) => {
                let since = *self.unproven.get_or_insert(now);
                if now < since.plus(timing.starting) || self.has_just_come(now, timing) {
                    self.not_ready(now, error, timing, jitter);
                } else {
                    self.refused(now, error, timing, jitter);
                }
            }
            Outcome::Refused(error) if self.has_just_come(now, timing) => self.not_ready(now, error, timing, jitter),
            Outcome::Refused(error) | Outcome::Another(error) => self.refused(now, error, timing, jitter),
        }
    }

    fn is_asked_to_wait(&mut self, now: Moment, wait: u64) {
        self.retry_at = self.retry_at.max(now.plus(wait));
    }

    /// Whether it was unreachable a moment ago: what a server answers while it starts is no verdict yet.
    fn has_just_come(&self, now: Moment, timing: &Timing) -> bool {
        self.unreachable.is_some_and(|at| now < at.plus(timing.starting))
    }

    fn not_ready(&mut self, now: Moment, error: String, timing: &Timing, jitter: u64) {
        if self.state == State::Failed {
            // It answers: how long it did not says nothing about how long this takes.
            self.failures = 0;
        }
        let wait = next_wait(self.failures, (timing.retry_first, timing.retry_most), jitter);
        self.failures = self.failures.saturating_add(1);
        self.is_wrong(now, State::NotReady, error, wait);
    }

    fn refused(&mut self, now: Moment, error: String, timing: &Timing, jitter: u64) {
        let wait = next_wait(self.refusals, (timing.refused_first, timing.refused_most), jitter);
        self.refusals = self.refusals.saturating_add(1);
        self.is_wrong(now, State::Refused, error, wait);
    }

    fn works(&mut self, now: Moment, timing: &Timing) {
        (self.refusals, self.unproven) = (0, None);
        match self.state {
            State::Works { .. } if self.since.plus(timing.short_lived) <= now => self.failures = 0,
            State::Works { .. } => {}
            State::Untried => self.turn(now, State::Works { dwells: false }),
            _ => self.turn(now, State::Works { dwells: true }),
        }
        self.worked = Some(now);
    }

    fn is_wrong(&mut self, now: Moment, state: State, error: String, wait: u64) {
        self.turn(now, state);
        self.retry_at = now.plus(wait);
        self.error = Some((now, error));
    }

    fn turn(&mut self, now: Moment, state: State) {
        if self.state != state {
            self.state = state;
            self.since = now;
        }
    }

    /// A session over this address ended badly after `lasted` milliseconds.
    pub(super) fn relapsed(&mut self, lasted: u64, timing: &Timing) {
        self.relapses = if lasted < timing.steady { self.relapses.saturating_add(1) } else { 1 };
    }
}

/// The wait after so many failures: `first`, doubled with each further one, with jitter and at most `most`.
fn next_wait(failures: u32, (first, most): (u64, u64), jitter: u64) -> u64 {
    // The longest ones are spread, too: below `most`.
    scaled(first.saturating_mul(1 << failures.min(16)).min(most - most / 5), jitter)
}

pub(super) const fn scaled(millis: u64, permille: u64) -> u64 {
    millis.saturating_mul(permille) / 1000
}
