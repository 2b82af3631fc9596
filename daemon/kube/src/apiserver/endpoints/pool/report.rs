//! The pool for readers: one row per address, with the reason why it is in use or not.

use std::collections::BTreeMap;

use strum::IntoEnumIterator;

use nodelb_core::model::moment::Moment;

use super::candidate::{Candidate, Origin, ServerStatus};
use super::servers::{InUse, Pool};
use crate::apiserver::address::Address;

/// An error of this length in bytes or more appears only once in the table.
const LONG_ERROR: usize = 80;

/// A copy of the pool and of the session's state. The default is the report of a daemon without Kubernetes.
#[derive(Clone, Debug, Default)]
pub struct PoolReport {
    /// The addresses; `None` if Kubernetes is not configured.
    pub pool: Option<Pool>,
    /// The time when the server last sent anything over a session: a response, an event, a bookmark, or the response to
    /// a probe.
    pub last_response: Option<Moment>,
    /// The reason why nodelb cannot try to connect, for example a kubeconfig that cannot be read.
    pub problem: Option<String>,
    /// Why the session in use still has the previous credentials, and since when.
    pub not_renewed: Option<(Moment, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub address: Address,
    pub origin: Origin,
    pub status: ServerStatus,
    pub since: Moment,
    pub in_use: bool,
    /// The time since it last worked, in milliseconds; `None` if it has never worked.
    pub worked: Option<u64>,
    pub error: Option<(Moment, String)>,
    /// The reason why the address is in use or not.
    pub why: String,
}

impl PoolReport {
    /// One row per address in order of preference. `unix` is the current time in seconds since 1970.
    pub fn rows(&self, now: Moment, unix: u64) -> Vec<Row> {
        let Some(pool) = &self.pool else { return Vec::new() };
        let mut rows: Vec<_> = pool.candidates.iter().map(|candidate| pool.row(candidate, now, unix)).collect();
        if let Some(error) = &self.not_renewed {
            rows.iter_mut().filter(|row| row.in_use).for_each(|row| row.error = Some(error.clone()));
        }
        rows
    }

    pub fn statuses(&self, now: Moment) -> BTreeMap<ServerStatus, usize> {
        let mut counts: BTreeMap<_, _> = ServerStatus::iter().map(|status| (status, 0)).collect();
        for candidate in self.pool.iter().flat_map(|pool| &pool.candidates) {
            let status = candidate.status(now, &self.pool.as_ref().map(|pool| pool.timeouts).unwrap_or_default());
            *counts.entry(status).or_default() += 1;
        }
        counts
    }

    pub fn in_use(&self) -> Option<&Address> {
        self.pool.as_ref()?.in_use()
    }

    /// Since when no address has been in use; `None` if one is, or none ever was.
    pub fn without_server_since(&self) -> Option<Moment> {
        self.pool.as_ref().filter(|pool| pool.in_use.is_none())?.lost
    }

    /// The number of times that the address in use has changed.
    pub fn switches(&self) -> u64 {
        self.pool.as_ref().map_or(0, |pool| pool.switches)
    }
}

impl Pool {
    fn row(&self, candidate: &Candidate, now: Moment, unix: u64) -> Row {
        let in_use = self.in_use() == Some(&candidate.server.address);
        let ago = |worked: Moment| now.0.saturating_sub(worked.0);
        let before = candidate.worked_before.map(|worked| unix.saturating_sub(worked).saturating_mul(1000));
        Row {
            address: candidate.server.address.clone(),
            origin: candidate.origin,
            status: candidate.status(now, &self.timeouts),
            since: candidate.since(now, &self.timeouts),
            in_use,
            worked: candidate.worked.map(ago).or(before),
            error: candidate.error.clone(),
            why: if in_use { self.reason_shown(candidate, now) } else { self.reason_not(candidate, now) },
        }
    }

    /// Like [`Self::reason`], but a long error that the column of errors contains is not repeated.
    fn reason_shown(&self, candidate: &Candidate, now: Moment) -> String {
        let mut reason = self.reason(candidate, now);
        let errors = self.candidates.iter().filter_map(|other| other.error.as_ref()).map(|(_, error)| error);
        let long = errors.filter(|error| error.len() > LONG_ERROR).find(|error| reason.ends_with(error.as_str()));
        if let Some(error) = long {
            reason.truncate(reason.len() - error.len());
            reason.push_str("see Error");
        }
        reason
    }

    /// The reason to use this address: the problem of the first address before it.
    pub(super) fn reason(&self, candidate: &Candidate, now: Moment) -> String {
        let before = self.candidates.iter().take_while(|other| other.server.address != candidate.server.address);
        let Some(first) =
            before.clone().find(|other| other.origin < candidate.origin).or_else(|| before.clone().next())
        else {
            return match candidate.origin {
                Origin::Configured => "it is the preferred one".into(),
                Origin::Learned | Origin::Remembered => "it is the first one known".into(),
            };
        };
        let address = &first.server.address;
        let preferred = if first.origin == Origin::Configured { ", which is preferred," } else { "" };
        let why_not = match (first.status(now, &self.timeouts), &first.error) {
            (ServerStatus::Failed | ServerStatus::Refused | ServerStatus::NotReady, Some((at, error))) => {
                format!("failed {} ago: {error}", seconds(*at, now))
            }
            (ServerStatus::Failed | ServerStatus::Refused | ServerStatus::NotReady, None) => "failed".into(),
            (ServerStatus::Healthy | ServerStatus::Recovering, Some((at, error))) if first.has_just_failed() => {
                format!("failed {} ago: {error}", seconds(*at, now))
            }
            (ServerStatus::Recovering, _) => format!(
                "works again since {}; it is used again after {}",
                seconds(first.since(now, &self.timeouts), now),
                lasting(self.min_uptime_of(first, now))
            ),
            (ServerStatus::Untried, _) => "has not been tried yet".into(),
            (ServerStatus::Healthy, _) if first.origin != Origin::Configured => {
                return "it works; learned and remembered addresses have equal preference".into();
            }
            (ServerStatus::Healthy, _) => {
                format!("works, but only since {}", seconds(first.since(now, &self.timeouts), now))
            }
        };
        format!("{address}{preferred} {why_not}")
    }

    fn min_uptime_of(&self, candidate: &Candidate, now: Moment) -> u64 {
        let until = self.returns_at(candidate, now).unwrap_or(now);
        until.0.saturating_sub(candidate.since(now, &self.timeouts).0)
    }

    fn reason_not(&self, candidate: &Candidate, now: Moment) -> String {
        if candidate.connecting.is_some() {
            return "being tried".into();
        }
        let status = candidate.status(now, &self.timeouts);
        let Some(InUse { address, .. }) = &self.in_use else {
            return match status {
                ServerStatus::Failed | ServerStatus::Refused | ServerStatus::NotReady if now < candidate.retry_at => {
                    format!("retried in {}", lasting(candidate.retry_at.0 - now.0))
                }
                _ => "next to be tried".into(),
            };
        };
        if let Some(until) = candidate.fresh_until(&self.timeouts).filter(|until| now < *until) {
            return format!("listed recently; usable in {}", lasting(until.0 - now.0));
        }
        let used = self.position(address);
        let is_preferred = candidate.origin == Origin::Configured && used > self.position(&candidate.server.address);
        match (is_preferred, status) {
            (true, ServerStatus::Healthy | ServerStatus::Recovering) => {
                let until = self.returns_at(candidate, now).unwrap_or(now).0.saturating_sub(now.0);
                format!("preferred; used again in {} if it keeps working", lasting(until))
            }
            (_, ServerStatus::Healthy | ServerStatus::Recovering) => {
                format!("works, but {address} is in use and works too")
            }
            (_, ServerStatus::Untried) => "not needed yet".into(),
            (_, ServerStatus::NotReady | ServerStatus::Failed | ServerStatus::Refused) => {
                format!("probed again in {}", lasting(candidate.probe_at.0.saturating_sub(now.0)))
            }
        }
    }
}

fn seconds(since: Moment, now: Moment) -> String {
    lasting(now.0.saturating_sub(since.0))
}

/// A duration as `0.3 s`, `12 s`, `5 min`, `26 h`.
pub(in crate::apiserver) fn lasting(millis: u64) -> String {
    match millis / 1_000 {
        0 => format!("0.{} s", millis / 100),
        seconds @ 1..=119 => format!("{seconds} s"),
        seconds @ 120..=7_199 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3_600),
    }
}
