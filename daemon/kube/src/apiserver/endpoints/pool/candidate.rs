//! The state of one address in the pool. The decisions are made elsewhere.

use nodelb_core::model::moment::Moment;

use crate::apiserver::address::Server;
use crate::apiserver::endpoints::timeouts::PoolTimeouts;

/// The origin of an address, with the highest priority first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
pub enum Origin {
    /// The configuration; such an address is never forgotten or changed.
    Configured,
    /// The endpoints of `default/kubernetes`.
    Learned,
    /// The state file; the address worked before nodelb was started.
    Remembered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display, strum::EnumIter)]
pub enum ServerStatus {
    Untried,
    Healthy,
    /// It works again, but not long enough to be preferred.
    Recovering,
    /// It responds that it is not ready. It is used if no better address is known.
    NotReady,
    Failed,
    /// It responds, but nodelb cannot use it: wrong certificate, rejected credentials, or another cluster.
    Refused,
}

/// The result of an attempt or a probe, with an error message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Worked,
    /// The server responded that it is not ready, that there are too many requests, or with a server error. The number
    /// is the pause in milliseconds that it may request; 0 if it did not.
    NotReady(String, u64),
    /// No connection, or a timeout.
    Failed(String),
    /// The server refuses all requests including the readiness check. An apiserver that has just started does that, and
    /// so does one that does not know these credentials.
    Unproven(String),
    /// Wrong certificate, rejected credentials, or a missing permission.
    Refused(String),
    /// Another cluster responds at this address, confirmed by a second request. Unlike other refusals, a starting
    /// server never causes this.
    Another(String),
}

#[derive(Clone, Debug)]
pub struct Candidate {
    pub server: Server,
    pub origin: Origin,
    /// The order among addresses of the same origin; lower values come first.
    pub(super) order: u64,
    /// The state, except that [`ServerStatus::Recovering`] ends when the address has worked for long enough.
    state: ServerStatus,
    since: Moment,
    /// The time when the cluster first listed the address; `None` if it was known before.
    pub(super) listed_at: Option<Moment>,
    /// The number of consecutive failures of one kind. A session that ends shortly after it was opened is a failure.
    failures: u32,
    /// Until when refusals are attributed to a server that starts.
    starts_until: Option<Moment>,
    /// The number of sessions that ended badly shortly after each other.
    relapses: u32,
    /// Until when an address with more permissions is kept in use instead of this one.
    pub(super) denied_until: Option<Moment>,
    /// The time of the next attempt, for addresses that failed or were refused.
    pub(super) retry_at: Moment,
    /// The time of the latest attempt or probe; the address with the earliest time is tried next.
    pub(super) tried: Option<Moment>,
    /// The start of the current attempt to connect.
    pub(super) connecting: Option<Moment>,
    pub(super) probing: bool,
    pub(super) probe_at: Moment,
    /// The time when the address last worked in this run.
    pub worked: Option<Moment>,
    /// The time when the address last worked before this run, in seconds since 1970.
    pub worked_before: Option<u64>,
    pub error: Option<(Moment, String)>,
}

impl Candidate {
    pub(super) fn new(server: Server, origin: Origin, order: u64, now: Moment) -> Self {
        Self {
            server,
            origin,
            order,
            state: ServerStatus::Untried,
            since: now,
            listed_at: (origin == Origin::Learned).then_some(now),
            failures: 0,
            starts_until: None,
            relapses: 0,
            denied_until: None,
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

    pub fn status(&self, now: Moment, timeouts: &PoolTimeouts) -> ServerStatus {
        match self.state {
            ServerStatus::Recovering if self.settles(timeouts) <= now => ServerStatus::Healthy,
            state => state,
        }
    }

    pub fn since(&self, now: Moment, timeouts: &PoolTimeouts) -> Moment {
        match self.state {
            ServerStatus::Recovering if self.settles(timeouts) <= now => self.settles(timeouts),
            _ => self.since,
        }
    }

    /// The time when the address will have worked long enough to be preferred again; `None` unless it works. The time
    /// doubles each time that a session over the address ends badly.
    pub(super) fn preferable(&self, timeouts: &PoolTimeouts) -> Option<Moment> {
        matches!(self.state, ServerStatus::Healthy | ServerStatus::Recovering).then(|| self.settles(timeouts))
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

    /// Until when the address counts as listed by the cluster too recently: an apiserver that starts lists itself, and
    /// may disappear and return.
    pub(super) fn fresh_until(&self, timeouts: &PoolTimeouts) -> Option<Moment> {
        self.listed_at.filter(|_| self.state == ServerStatus::Untried).map(|at| at.plus(timeouts.debounce))
    }

    /// Whether the cluster has listed the address too recently.
    pub(super) fn is_fresh(&self, now: Moment, timeouts: &PoolTimeouts) -> bool {
        self.fresh_until(timeouts).is_some_and(|until| now < until)
    }

    /// Whether the address cannot be used at the moment.
    pub(super) fn is_out(&self) -> bool {
        matches!(self.state, ServerStatus::Failed | ServerStatus::Refused)
    }

    /// Whether the address has ever worked, in this run or before.
    pub(super) fn has_worked(&self) -> bool {
        self.worked.is_some() || self.worked_before.is_some()
    }

    pub(super) fn is_unready(&self) -> bool {
        self.state == ServerStatus::NotReady
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
        let (state, error, pause) = match outcome {
            Outcome::Worked => return self.works(now, timeouts),
            Outcome::NotReady(error, pause) => {
                self.responded(now);
                (ServerStatus::NotReady, error, pause)
            }
            Outcome::Failed(error) => {
                self.starts_until = Some(now.plus(timeouts.starting));
                (ServerStatus::Failed, error, 0)
            }
            Outcome::Unproven(error) => {
                self.starts_until.get_or_insert(now.plus(timeouts.starting));
                (self.refusal(now), error, 0)
            }
            Outcome::Refused(error) => (self.refusal(now), error, 0),
            Outcome::Another(error) => (ServerStatus::Refused, error, 0),
        };
        if self.is_bad() && self.state != state {
            // The duration of a failure of another kind does not predict the duration of this one: a server that
            // responds again will soon be ready.
            self.failures = 0;
        }
        let range = match state {
            ServerStatus::Refused => (timeouts.retry_most, timeouts.slow_retry),
            _ => (timeouts.retry_first, timeouts.retry_most),
        };
        self.retry_at = now.plus(next_wait(self.failures, range, jitter).max(pause));
        self.failures = self.failures.saturating_add(1);
        self.error = Some((now, error));
        self.turn(now, state);
    }

    /// The state after a refusal, which is not final if it comes from a server that starts.
    fn refusal(&self, now: Moment) -> ServerStatus {
        match self.starts_until {
            Some(until) if now < until => ServerStatus::NotReady,
            _ => ServerStatus::Refused,
        }
    }

    /// Records a response that is no refusal: the next refusal of all requests may be that of another start.
    fn responded(&mut self, now: Moment) {
        self.starts_until = self.starts_until.filter(|until| now < *until);
    }

    fn works(&mut self, now: Moment, timeouts: &PoolTimeouts) {
        self.responded(now);
        match self.state {
            ServerStatus::Healthy | ServerStatus::Recovering => {
                if self.since.plus(timeouts.short_lived) <= now {
                    self.failures = 0;
                }
            }
            ServerStatus::Untried => self.turn(now, ServerStatus::Healthy),
            _ => self.turn(now, ServerStatus::Recovering),
        }
        self.worked = Some(now);
    }

    fn turn(&mut self, now: Moment, state: ServerStatus) {
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
