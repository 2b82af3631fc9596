//! Decides which apiserver address to use: contains all known addresses, their state, and the decisions. Has no sockets
//! and no clock: the time is a parameter, the supervisor reports events, and decisions are return values.
//!
//! Configured addresses come first, in their order, and never change. Learned and remembered addresses follow; they are
//! forgotten only after they have failed for a long time. No decision is final: if an address fails, the next one is
//! used immediately, and the first one is used again after it has worked for a while.

mod candidate;
mod choice;
pub(super) mod report;
mod servers;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use fastrand::Rng;
use nodelb_core::model::moment::Moment;
use serde::{Deserialize, Serialize};

pub use self::candidate::{Candidate, Origin, Outcome, ServerStatus};
pub use self::choice::Choice;
pub use self::report::{PoolReport, Row};
use self::servers::InUse;
pub use self::servers::Pool;
use super::timeouts::PoolTimeouts;
use crate::apiserver::address::{Address, Host, Server};

/// The maximum number of learned addresses, and also of remembered ones.
pub const MOST_LEARNED: usize = 32;

/// How long a learned or remembered address that fails and is not listed is kept, in milliseconds: one day is more than
/// the maintenance of a server takes.
const FORGET_AFTER: u64 = 86_400_000;

/// The range of the random factor for waiting times, in thousandths.
const JITTER: RangeInclusive<u64> = 750..=1250;

/// The name that the certificate of a learned address must contain, if the configuration does not have one. Every
/// apiserver certificate of a managed or kubeadm cluster contains it, whatever the server's addresses are.
pub const DEFAULT_SERVER_NAME: &str = "kubernetes";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberedServer {
    #[serde(flatten)]
    pub server: Server,
    /// The time when it last worked, in seconds since 1970.
    pub worked: u64,
}

impl Pool {
    /// A pool of the configured servers without duplicates. `seed` differs between the nodes of a cluster, so that they
    /// prefer different learned addresses.
    pub fn new(configured: &[Server], timeouts: PoolTimeouts, seed: u64, now: Moment) -> Self {
        let mut pool = Self {
            timeouts,
            candidates: Vec::new(),
            in_use: None,
            lost: None,
            last_used: None,
            switches: 0,
            listed: BTreeSet::new(),
            learned_name: learned_name(configured),
            seed,
            random: Rng::with_seed(seed),
        };
        for (order, server) in (0..).zip(configured) {
            if pool.find(&server.address).is_none() {
                pool.candidates.push(Candidate::new(server.clone(), Origin::Configured, order, now));
            }
        }
        pool
    }

    /// Adds a configured server after the others. Does not affect the session in use. Returns whether the server is
    /// new.
    pub fn configure(&mut self, server: Server, now: Moment) -> bool {
        let configured = |pool: &Self| pool.candidates.iter().filter(|c| c.origin == Origin::Configured).count();
        let known = self.position(&server.address);
        let is_configured = known.is_some_and(|known| self.candidates[known].origin == Origin::Configured);
        let order = configured(self);
        if is_configured || order >= 2 * MOST_LEARNED {
            return false;
        }
        let order = u64::try_from(order).unwrap_or(u64::MAX);
        let mut candidate = match known {
            Some(known) => self.candidates.remove(known),
            None => Candidate::new(server.clone(), Origin::Configured, order, now),
        };
        (candidate.server, candidate.origin, candidate.order) = (server, Origin::Configured, order);
        candidate.listed_at = None;
        self.insert(candidate);
        true
    }

    pub fn remember(&mut self, remembered: impl IntoIterator<Item = RememberedServer>, now: Moment) {
        for (order, RememberedServer { server, worked }) in (0..).zip(remembered).take(2 * MOST_LEARNED) {
            match self.position(&server.address) {
                Some(known) => self.candidates[known].worked_before = Some(worked),
                None => {
                    let mut candidate = Candidate::new(server, Origin::Remembered, order, now);
                    candidate.worked_before = Some(worked);
                    self.insert(candidate);
                }
            }
        }
    }

    /// Adds addresses of which only this is known, that they were learned in this boot.
    pub fn remember_backends(&mut self, backends: Vec<SocketAddr>, now: Moment) {
        for at in backends.into_iter().take(MOST_LEARNED) {
            let address = Address::from(at);
            if self.position(&address).is_none() {
                let order = self.order_of(&address);
                self.insert(Candidate::new(self.learned_server(at), Origin::Remembered, order, now));
            }
        }
    }

    /// Sets the addresses that the cluster lists, which must have been validated. Adds new ones and removes none.
    /// Returns the addresses that exceed the limit.
    pub fn learn(&mut self, listed: &BTreeSet<SocketAddr>, now: Moment) -> Vec<SocketAddr> {
        let mut left_out = Vec::new();
        self.listed.clone_from(listed);
        for &at in listed {
            let address = Address::from(at);
            let order = self.order_of(&address);
            match self.position(&address) {
                Some(known) if self.candidates[known].origin == Origin::Remembered => {
                    let mut known = self.candidates.remove(known);
                    (known.origin, known.order) = (Origin::Learned, order);
                    self.insert(known);
                }
                Some(_) => {}
                None if self.make_room() => {
                    self.insert(Candidate::new(self.learned_server(at), Origin::Learned, order, now));
                }
                None => left_out.push(at),
            }
        }
        left_out
    }

    pub fn learned_server(&self, at: SocketAddr) -> Server {
        Server { address: at.into(), tls_server_name: Some(Arc::clone(&self.learned_name)) }
    }

    /// Forgets learned addresses that are now refused, except the one in use and all that have ever worked: a service
    /// with the address of an apiserver does not affect nodelb, because its own connections are not translated. Returns
    /// the forgotten addresses.
    pub fn forget_refused(&mut self, is_refused: impl Fn(SocketAddr) -> bool) -> Vec<Address> {
        self.forget(|candidate| !candidate.has_worked() && candidate.server.address.socket().is_some_and(&is_refused))
    }

    /// Downgrades learned addresses to remembered ones, because they come from the state of the previous run. They are
    /// learned again when the cluster lists them.
    pub fn demote_learned(&mut self) {
        for candidate in &mut self.candidates {
            if candidate.origin == Origin::Learned {
                (candidate.origin, candidate.listed_at) = (Origin::Remembered, None);
            }
        }
        self.candidates.sort_by_key(|candidate| (candidate.origin, candidate.order));
    }

    /// Forgets learned and remembered addresses that the cluster does not list and that have failed for a very long
    /// time, if another one has been in use for a while. Returns the forgotten addresses.
    pub fn forget_stale(&mut self, now: Moment) -> Vec<Address> {
        let settled = self.in_use.as_ref().is_some_and(|in_use| in_use.opened.plus(self.timeouts.stable_after) <= now);
        if !settled || self.listed.is_empty() {
            return Vec::new();
        }
        let listed = self.listed.clone();
        self.forget(|candidate| {
            let is_listed = candidate.server.address.socket().is_some_and(|at| listed.contains(&at));
            !is_listed && candidate.is_out_for(FORGET_AFTER, now)
        })
    }

    fn forget(&mut self, is_unwanted: impl Fn(&Candidate) -> bool) -> Vec<Address> {
        let in_use = self.in_use.as_ref().map(|in_use| in_use.address.clone());
        let mut forgotten = Vec::new();
        let mut left = self.candidates.len();
        self.candidates.retain(|candidate| {
            let address = &candidate.server.address;
            let goes = candidate.origin != Origin::Configured
                && in_use.as_ref() != Some(address)
                && left > 1
                && is_unwanted(candidate);
            if goes {
                left -= 1;
                forgotten.push(address.clone());
            }
            !goes
        });
        forgotten
    }

    /// Frees a slot for another learned address, if necessary by forgetting one that fails and is not listed.
    fn make_room(&mut self) -> bool {
        let learned = |pool: &Self| pool.candidates.iter().filter(|c| c.origin == Origin::Learned).count();
        if learned(self) < MOST_LEARNED {
            return true;
        }
        let in_use = self.in_use.as_ref().map(|in_use| &in_use.address);
        let stale = self.candidates.iter().position(|candidate| {
            let is_listed = candidate.server.address.socket().is_some_and(|at| self.listed.contains(&at));
            candidate.origin == Origin::Learned
                && candidate.is_out()
                && !is_listed
                && in_use != Some(&candidate.server.address)
        });
        stale.map(|stale| self.candidates.remove(stale)).is_some()
    }

    /// The order of a learned address among the others, which depends only on the address and the seed.
    fn order_of(&self, address: &Address) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, address).hash(&mut hasher);
        hasher.finish()
    }

    /// Records that an attempt to connect has started.
    pub fn connecting(&mut self, now: Moment, address: &Address) {
        if let Some(candidate) = self.find_mut(address) {
            candidate.connecting = Some(now);
        }
    }

    /// Records the result of an attempt to connect, or of a request.
    pub fn note(&mut self, now: Moment, address: &Address, outcome: Outcome) {
        if let Some(candidate) = self.find_mut(address) {
            candidate.connecting = None;
        }
        self.apply(now, address, outcome);
    }

    /// Records an outcome, and sets the time of the next probe.
    fn apply(&mut self, now: Moment, address: &Address, outcome: Outcome) {
        let (timeouts, jitter) = (self.timeouts, self.random.u64(JITTER));
        if let Some(candidate) = self.find_mut(address) {
            candidate.apply(now, outcome, &timeouts, jitter);
        }
        self.schedule(now, address);
    }

    /// Records a new session over this address, which is now in use. Other attempts have lost the race.
    pub fn opened(&mut self, now: Moment, address: &Address) {
        let (timeouts, jitter) = (self.timeouts, self.random.u64(JITTER));
        for candidate in &mut self.candidates {
            let Some(since) = candidate.connecting.take() else { continue };
            let took = now.0.saturating_sub(since.0);
            if candidate.server.address != *address && timeouts.hedge <= took {
                let error = format!("no response within {took} ms, while {address} responded");
                candidate.apply(now, Outcome::Failed(error), &timeouts, jitter);
            }
        }
        if let Some(candidate) = self.find_mut(address)
            && !candidate.is_unready()
        {
            candidate.apply(now, Outcome::Worked, &timeouts, jitter);
        }
        if self.last_used.as_ref().is_some_and(|last| last != address) {
            self.switches += 1;
        }
        self.last_used = Some(address.clone());
        // The age of the session includes earlier links to the same address.
        let opened = self.in_use.as_ref().filter(|in_use| in_use.address == *address).map_or(now, |it| it.opened);
        self.in_use = Some(InUse { address: address.clone(), opened, has_failed_session: false, strikes: 0 });
        self.schedule_all(now);
    }

    /// Records that replacing the session in use with another one over the same address has failed. The old session
    /// remains.
    pub fn not_reopened(&mut self, address: &Address) {
        if let Some(candidate) = self.find_mut(address) {
            candidate.connecting = None;
        }
    }

    /// Records that the session in use has failed; the supervisor reports the state of the address with
    /// [`note`](Self::note). The end of a very short session counts as a failure of the address.
    pub fn closed(&mut self, now: Moment, error: &str) {
        let Some(InUse { address, opened, .. }) = self.in_use.take() else { return };
        self.lost = Some(now);
        let (timeouts, lasted) = (self.timeouts, now.0.saturating_sub(opened.0));
        if let Some(candidate) = self.find_mut(&address) {
            candidate.relapsed(lasted, &timeouts);
            candidate.error = Some((now, error.to_owned()));
        }
        if lasted < timeouts.short_lived {
            let error = format!("the session ended {lasted} ms after it was opened: {error}");
            self.note(now, &address, Outcome::Failed(error));
        }
    }

    /// Records that requests over the session in use keep failing although probes succeed, so that any other address is
    /// better. The first report counts as a session that ended badly.
    pub fn fail_session(&mut self, now: Moment, error: String) {
        let Some(in_use) = &mut self.in_use else { return };
        let is_new = !std::mem::replace(&mut in_use.has_failed_session, true);
        let (timeouts, address, lasted) =
            (self.timeouts, in_use.address.clone(), now.0.saturating_sub(in_use.opened.0));
        if let Some(candidate) = self.find_mut(&address).filter(|_| is_new) {
            candidate.relapsed(lasted, &timeouts);
        }
        self.note(now, &address, Outcome::NotReady(error, 0));
    }

    /// Records that the server in use denies a permission that nodelb needs. Usually all servers deny it, but they may
    /// differ: nodelb tries each of the others once, and then stays with the permissions that it has.
    pub fn denied(&mut self, now: Moment, error: String) {
        let Some(address) = self.in_use().cloned() else { return };
        let until = now.plus(self.timeouts.stable_after);
        if let Some(candidate) = self.find_mut(&address) {
            candidate.denied_until = Some(until);
        }
        let is_hopeful =
            |other: &Candidate| other.server.address != address && other.denied_until.is_none_or(|at| at <= now);
        if self.candidates.iter().any(is_hopeful) {
            self.fail_session(now, error);
        }
    }

    /// Retries all addresses that refused or were not ready immediately, because the credentials have changed.
    pub fn retry_refused(&mut self, now: Moment) {
        let timeouts = self.timeouts;
        for candidate in &mut self.candidates {
            if matches!(candidate.status(now, &timeouts), ServerStatus::Refused | ServerStatus::NotReady) {
                candidate.retry_at = now;
                candidate.probe_at = now;
            }
        }
    }

    pub fn in_use(&self) -> Option<&Address> {
        self.in_use.as_ref().map(|in_use| &in_use.address)
    }

    /// All known addresses in order of preference.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    pub fn find(&self, address: &Address) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.server.address == *address)
    }

    fn find_mut(&mut self, address: &Address) -> Option<&mut Candidate> {
        self.candidates.iter_mut().find(|candidate| candidate.server.address == *address)
    }

    fn position(&self, address: &Address) -> Option<usize> {
        self.candidates.iter().position(|candidate| candidate.server.address == *address)
    }

    fn insert(&mut self, candidate: Candidate) {
        let key = |c: &Candidate| (c.origin, c.order);
        let place = self.candidates.partition_point(|known| key(known) <= key(&candidate));
        self.candidates.insert(place, candidate);
    }
}

/// The name in the first configured server's certificate; see [`DEFAULT_SERVER_NAME`].
pub(in crate::apiserver) fn learned_name(configured: &[Server]) -> Arc<str> {
    let first = configured.first().and_then(|server| match (&server.tls_server_name, &server.address.host) {
        (Some(name), _) | (None, Host::Name(name)) => Some(Arc::clone(name)),
        (None, Host::Ip(_)) => None,
    });
    first.unwrap_or_else(|| DEFAULT_SERVER_NAME.into())
}

#[cfg(test)]
#[path = "tests/pool.rs"]
mod tests;
