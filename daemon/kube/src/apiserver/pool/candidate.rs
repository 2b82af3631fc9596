//! The state of one address in the pool. The decisions are made elsewhere.

use std::fmt;

use nodelb_core::model::moment::Moment;
use serde::Serialize;

use crate::apiserver::address::Server;
use crate::apiserver::timeouts::PoolTimeouts;

/// The origin of an address, with the highest priority first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Origin {
    /// The configuration; such an address is never forgotten or changed.
    Configured,
    /// The endpoints of `default/kubernetes`.
    Learned,
    /// The state file; the address worked before nodelb was started.
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

/// The state of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ServerStatus {
    /// Not known yet.
    Untried,
    /// It works.
    Healthy,
    /// It works again, but not long enough to be preferred.
    Recovering,
    /// It responds that it is not ready. It is used if no better address is known.
    NotReady,
    /// It does not respond.
    Failed,
    /// It responds, but nodelb cannot use it: wrong certificate, rejected credentials, or another cluster.
    Refused,
}

impl ServerStatus {
    /// All states.
    pub const ALL: [Self; 6] =
        [Self::Untried, Self::Healthy, Self::Recovering, Self::NotReady, Self::Failed, Self::Refused];
}

impl fmt::Display for ServerStatus {
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

/// The result of an attempt or a probe, with an error message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The address works.
    Worked,
    /// The server responded that it is not ready, or with a server error.
    NotReady(String),
    /// No connection, or a timeout.
    Failed(String),
    /// The server responded that there are too many requests, and asked for a pause in milliseconds.
    Busy(String, u64),
    /// The server responded that it is not ready, or with a server error, and asked for a pause in milliseconds. The
    /// pause is a guess, often of a load balancer in front of the server.
    Unavailable(String, u64),
    /// The server refuses all requests including the readiness check. An apiserver that has just started does that, and
    /// so does one that does not know these credentials.
    Unproven(String),
    /// Wrong certificate, rejected credentials, or a missing permission.
    Refused(String),
    /// Another cluster responds at this address, confirmed by a second request. Unlike other refusals, a starting
    /// server never causes this.
    Another(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Untried,
    Works { is_recent: bool },
    NotReady,
    Failed,
    Refused,
}

/// An address with its origin and state.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The address, and the name in its certificate.
    pub server: Server,
    /// The origin.
    pub origin: Origin,
    /// The order among addresses of the same origin; lower values come first.
    pub(super) order: u64,
    state: State,
    since: Moment,
    /// The time when the address became known.
    pub(super) seen: Moment,
    /// Whether the address was known before the cluster listed it, so that the listing is not new.
    pub(super) is_settled: bool,
    /// The number of consecutive network failures, responses of a server that is not ready, and sessions that ended
    /// badly shortly after each other.
    failures: u32,
    /// The number of consecutive refusals.
    refusals: u32,
    /// The time of the latest failure to connect, or timeout.
    unreachable: Option<Moment>,
    /// The time since which the server refuses all requests.
    unproven: Option<Moment>,
    relapses: u32,
    /// The time when the server last denied a permission.
    pub(super) denied: Option<Moment>,
    /// The time of the next attempt, for addresses that failed or were refused.
    pub(super) retry_at: Moment,
    /// The time of the latest attempt or probe; the address with the earliest time is tried next.
    pub(super) tried: Option<Moment>,
    /// The start of the current attempt to connect.
    pub(super) connecting: Option<Moment>,
    /// Whether a probe is in progress.
    pub(super) probing: bool,
    /// The time of the next probe.
    pub(super) probe_at: Moment,
    /// The time when the address last worked in this run.
    pub worked: Option<Moment>,
    /// The time when the address last worked before this run, in seconds since 1970.
    pub worked_before: Option<u64>,
    /// The latest error and its time.
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
            connecting: None,
            probing: false,
            probe_at: now,
            worked: None,
            worked_before: None,
            error: None,
        }
    }

    /// The state of the address.
    pub fn status(&self, now: Moment, timeouts: &PoolTimeouts) -> ServerStatus {
        match self.state {
            State::Untried => ServerStatus::Untried,
            State::Works { is_recent: true } if now < self.settles(timeouts) => ServerStatus::Recovering,
            State::Works { .. } => ServerStatus::Healthy,
            State::NotReady => ServerStatus::NotReady,
            State::Failed => ServerStatus::Failed,
            State::Refused => ServerStatus::Refused,
        }
    }

    /// The time since which the address has this state.
    pub fn since(&self, now: Moment, timeouts: &PoolTimeouts) -> Moment {
        match self.state {
            State::Works { is_recent: true } if self.settles(timeouts) <= now => self.settles(timeouts),
            _ => self.since,
        }
    }

    /// The time when the address will have worked long enough to be preferred again; `None` unless it works. The time
    /// doubles each time that a session over the address ends badly.
    pub(super) fn preferable(&self, timeouts: &PoolTimeouts) -> Option<Moment> {
        matches!(self.state, State::Works { .. }).then(|| self.settles(timeouts))
    }

    /// The time until which an address with more permissions is kept in use instead of this one.
    pub(super) fn denied_until(&self, timeouts: &PoolTimeouts) -> Option<Moment> {
        self.denied.map(|at| at.plus(10 * timeouts.refused_most))
    }

    /// Whether the latest event was a failure, although the address worked before.
    pub(super) fn has_just_failed(&self) -> bool {
        let worked = self.worked;
        self.error.as_ref().is_some_and(|(at, _)| worked.is_none_or(|worked| worked <= *at))
    }

    fn settles(&self, timeouts: &PoolTimeouts) -> Moment {
        let doublings = self.relapses.saturating_sub(1).min(4);
        self.since.plus(timeouts.min_uptime << doublings)
    }

    /// Whether the cluster has listed the address too recently: an apiserver that starts lists itself, and may
    /// disappear and return.
    pub(super) fn is_fresh(&self, now: Moment, timeouts: &PoolTimeouts) -> bool {
        let is_new = self.origin == Origin::Learned && !self.is_settled;
        is_new && self.state == State::Untried && now < self.seen.plus(timeouts.debounce)
    }

    /// Whether the address cannot be used at the moment.
    pub(super) fn is_out(&self) -> bool {
        matches!(self.state, State::Failed | State::Refused)
    }

    /// Whether the address has ever worked, in this run or before.
    pub(super) fn has_worked(&self) -> bool {
        self.worked.is_some() || self.worked_before.is_some()
    }

    pub(super) fn is_unready(&self) -> bool {
        self.state == State::NotReady
    }

    /// Whether the address failed, refused, or was not ready.
    pub(super) fn is_bad(&self) -> bool {
        self.is_out() || self.is_unready()
    }

    /// Whether the address has been unusable for `millis` milliseconds.
    pub(super) fn is_out_for(&self, millis: u64, now: Moment) -> bool {
        self.is_out() && self.since.plus(millis) <= now
    }

    /// Records an outcome. `jitter` is the factor for waiting times, in thousandths.
    pub(super) fn apply(&mut self, now: Moment, outcome: Outcome, timeouts: &PoolTimeouts, jitter: u64) {
        self.tried = Some(now);
        match outcome {
            Outcome::Worked => self.works(now, timeouts),
            Outcome::NotReady(error) => self.not_ready(now, error, timeouts, jitter),
            Outcome::Busy(error, wait) => {
                self.not_ready(now, error, timeouts, jitter);
                self.postpone_retry(now, wait.min(timeouts.retry_after_most));
            }
            Outcome::Unavailable(error, wait) => {
                self.not_ready(now, error, timeouts, jitter);
                self.postpone_retry(now, wait.min(timeouts.retry_most));
            }
            Outcome::Failed(error) => {
                (self.unreachable, self.unproven) = (Some(now), None);
                let wait = next_wait(self.failures, (timeouts.retry_first, timeouts.retry_most), jitter);
                self.failures = self.failures.saturating_add(1);
                self.set_failed(now, State::Failed, error, wait);
            }
            Outcome::Unproven(error) => {
                let since = *self.unproven.get_or_insert(now);
                if now < since.plus(timeouts.starting) || self.has_just_come(now, timeouts) {
                    self.not_ready(now, error, timeouts, jitter);
                } else {
                    self.refused(now, error, timeouts, jitter);
                }
            }
            Outcome::Refused(error) if self.has_just_come(now, timeouts) => {
                self.not_ready(now, error, timeouts, jitter);
            }
            Outcome::Refused(error) | Outcome::Another(error) => self.refused(now, error, timeouts, jitter),
        }
    }

    fn postpone_retry(&mut self, now: Moment, wait: u64) {
        self.retry_at = self.retry_at.max(now.plus(wait));
    }

    /// Whether the address was unreachable a moment ago. Refusals of a server that starts are not final.
    fn has_just_come(&self, now: Moment, timeouts: &PoolTimeouts) -> bool {
        self.unreachable.is_some_and(|at| now < at.plus(timeouts.starting))
    }

    fn not_ready(&mut self, now: Moment, error: String, timeouts: &PoolTimeouts, jitter: u64) {
        if self.state == State::Failed {
            // The server responds: the duration of the outage does not predict how long it takes until the server is
            // ready.
            self.failures = 0;
        }
        let wait = next_wait(self.failures, (timeouts.retry_first, timeouts.retry_most), jitter);
        self.failures = self.failures.saturating_add(1);
        self.set_failed(now, State::NotReady, error, wait);
    }

    fn refused(&mut self, now: Moment, error: String, timeouts: &PoolTimeouts, jitter: u64) {
        let wait = next_wait(self.refusals, (timeouts.refused_first, timeouts.refused_most), jitter);
        self.refusals = self.refusals.saturating_add(1);
        self.set_failed(now, State::Refused, error, wait);
    }

    fn works(&mut self, now: Moment, timeouts: &PoolTimeouts) {
        (self.refusals, self.unproven) = (0, None);
        match self.state {
            State::Works { .. } if self.since.plus(timeouts.short_lived) <= now => self.failures = 0,
            State::Works { .. } => {}
            State::Untried => self.turn(now, State::Works { is_recent: false }),
            _ => self.turn(now, State::Works { is_recent: true }),
        }
        self.worked = Some(now);
    }

    fn set_failed(&mut self, now: Moment, state: State, error: String, wait: u64) {
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

    /// Records that a session over this address ended badly after `lasted` milliseconds.
    pub(super) fn relapsed(&mut self, lasted: u64, timeouts: &PoolTimeouts) {
        self.relapses = if lasted < timeouts.stable_after { self.relapses.saturating_add(1) } else { 1 };
    }
}

/// The waiting time after a number of failures: `first`, doubled for each further failure, with jitter, at most `most`.
fn next_wait(failures: u32, (first, most): (u64, u64), jitter: u64) -> u64 {
    // The limit is lower than `most`, so that the longest times are randomized, too.
    scaled(first.saturating_mul(1 << failures.min(16)).min(most - most / 5), jitter)
}

pub(super) const fn scaled(millis: u64, permille: u64) -> u64 {
    millis.saturating_mul(permille) / 1000
}
