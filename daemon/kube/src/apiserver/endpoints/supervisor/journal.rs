//! The log messages of the supervisor: one when no apiserver is reachable and one when an apiserver is reachable again,
//! one when the address in use changes, and one when an address fails with a new error. Retries are not logged.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_core::model::moment::Moment;
use nodelb_host::messages;
use tracing::{debug, info, warn};

use crate::apiserver::address::Address;
use crate::apiserver::endpoints::pool::report::lasting;
use crate::apiserver::endpoints::timeouts::PoolTimeouts;

/// The minimum time in milliseconds between two log messages about one address if its errors differ.
const SAME_ADDRESS: u64 = 60_000;

/// The maximum number of different errors that are logged while no apiserver is reachable.
const REASONS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Journal {
    timeouts: PoolTimeouts,
    /// Since when there is no session, and whether this has been logged.
    down: Option<(Moment, bool)>,
    /// The errors that have been logged since then.
    reasons: BTreeSet<String>,
    used: Option<Address>,
    errors: BTreeMap<Address, (Moment, String)>,
    /// The errors of the new credentials that have been logged since the last ones that worked.
    renewals: BTreeSet<String>,
    credentials: Option<String>,
}

impl Journal {
    pub(super) fn new(timeouts: PoolTimeouts, now: Moment) -> Self {
        Self { timeouts, down: Some((now, false)), ..Self::default() }
    }

    /// Logs a failed attempt or probe. After the message that no apiserver is reachable, each error only once.
    pub(super) fn failed(&mut self, now: Moment, address: &Address, error: &str) {
        let is_reported = match self.down {
            Some((_, true)) => self.reasons.contains(error) || self.reasons.len() >= REASONS,
            _ => self.errors.get(address).is_some_and(|(at, known)| known == error || now < at.plus(SAME_ADDRESS)),
        };
        if is_reported {
            debug!(apiserver = %address, "{error}");
        } else {
            self.reasons.insert(error.to_owned());
            warn!(message_id = %messages::APISERVER_FAILED, apiserver = %address, "apiserver {address}: {error}");
            self.errors.insert(address.clone(), (now, error.to_owned()));
        }
    }

    /// Records that an address works, so that its next error is new.
    pub(super) fn works(&mut self, address: &Address) {
        self.errors.remove(address);
    }

    pub(super) fn opened(&mut self, now: Moment, address: &Address, why: &str) {
        let is_same = self.used.replace(address.clone()).is_some_and(|used| used == *address);
        self.reasons.clear();
        match self.down.take() {
            Some((since, true)) => {
                let lasted = lasting(now.0.saturating_sub(since.0));
                info!(
                    message_id = %messages::APISERVER_IN_USE,
                    apiserver = %address, "connected to apiserver {address} after {lasted} without one"
                );
            }
            _ if is_same => debug!(apiserver = %address, "reconnected to apiserver {address}"),
            _ => info!(
                message_id = %messages::APISERVER_IN_USE,
                apiserver = %address, "using apiserver {address}: {why}"
            ),
        }
        self.works(address);
    }

    pub(super) fn closed(&mut self, now: Moment) {
        if self.down.is_none() {
            self.down = Some((now, false));
            self.reasons.clear();
        }
    }

    /// The time to log the loss of the session; `None` if it has been logged or there is a session.
    pub(super) fn loss_is_due(&self) -> Option<Moment> {
        self.down.filter(|(_, is_said)| !is_said).map(|(since, _)| since.plus(self.timeouts.lost))
    }

    /// Logs that no apiserver has been reachable for some time, if this is due.
    pub(super) fn lost(&mut self, now: Moment, first_error: Option<&str>) {
        if self.loss_is_due().is_none_or(|due| now < due) {
            return;
        }
        if let Some((_, is_said)) = &mut self.down {
            *is_said = true;
            let why = first_error.unwrap_or("none is known yet");
            warn!(
                message_id = %messages::APISERVER_NONE,
                "no apiserver is reachable (retrying); serving the last known state. The first one: {why}. See `nodelb \
                 apiservers`"
            );
        }
    }

    /// Logs why new credentials do not replace those of the session in use, each reason once until some do. Unlike the
    /// errors of an address, this does not end when the address works.
    pub(super) fn not_renewed(&mut self, address: &Address, error: &str) {
        if self.is_new_of_renewal(error) {
            warn!(message_id = %messages::APISERVER_FAILED, apiserver = %address, "apiserver {address}: {error}");
        } else {
            debug!(apiserver = %address, "{error}");
        }
    }

    pub(super) fn is_new_of_renewal(&mut self, error: &str) -> bool {
        self.renewals.len() < REASONS && self.renewals.insert(error.to_owned())
    }

    /// Records that the session in use has the current credentials.
    pub(super) fn renewed(&mut self) {
        self.renewals.clear();
    }

    pub(super) fn credentials(&mut self, problem: Option<String>) {
        if let Some(problem) = problem.as_ref().filter(|problem| self.credentials.as_ref() != Some(problem)) {
            warn!(message_id = %messages::LOGIN_FAILED, "cannot connect to any apiserver: {problem}");
        }
        self.credentials = problem;
    }
}
