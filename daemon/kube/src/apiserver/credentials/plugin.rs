//! Stores the output of an exec plugin, and decides when to run it again. No caller waits for a run while the previous
//! output is still valid.

use std::time::{Duration, SystemTime};

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::timeouts::CredentialTimeouts;
use crate::apiserver::credentials::exec::{Credential, Plugin};
use crate::apiserver::credentials::login::CredentialsError;

/// The state of the current login, which decides whether to run the plugin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    /// Whether there is a login, even if it expires soon.
    pub(super) has_login: bool,
    pub(super) is_rejected: bool,
    /// The expiry of the login, if known.
    pub(super) ends: Option<SystemTime>,
}

pub(super) struct Printed {
    plugin: Plugin,
    last_good: Option<Credential>,
    failure: Option<CredentialsError>,
    /// Whether an apiserver has rejected the latest output, and the plugin has not run since.
    is_refused: bool,
    started: Option<Instant>,
    running: Option<JoinHandle<Result<Credential, CredentialsError>>>,
}

impl Drop for Printed {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

impl Printed {
    pub(super) fn new(plugin: Plugin) -> Self {
        Self { plugin, last_good: None, failure: None, is_refused: false, started: None, running: None }
    }

    pub(super) fn is_of(&self, plugin: &Plugin) -> bool {
        self.plugin == *plugin
    }

    pub(super) fn last_good(&self) -> Option<&Credential> {
        self.last_good.as_ref()
    }

    /// Runs the plugin if necessary. Waits for it only if there is no valid output.
    pub(super) async fn refresh(
        &mut self,
        authority: &[u8],
        want: Want,
        timeouts: &CredentialTimeouts,
    ) -> Result<(), CredentialsError> {
        let now = SystemTime::now();
        let ends_within = |time: Duration| want.ends.is_some_and(|ends| ends <= now + time);
        self.is_refused |= want.is_rejected;
        let is_due =
            self.is_refused || self.last_good.is_none() || self.failure.is_some() || ends_within(timeouts.early);
        let is_rested = self.started.is_none_or(|at| at.elapsed() >= timeouts.plugin_pause);
        if self.running.is_none() && is_due && is_rested {
            let (plugin, authority, timeout) = (self.plugin.clone(), authority.to_vec(), timeouts.plugin);
            (self.started, self.is_refused) = (Some(Instant::now()), false);
            self.running = Some(tokio::spawn(async move { plugin.run(&authority, timeout).await }));
        }
        let must_wait = !want.has_login || want.is_rejected || ends_within(Duration::ZERO);
        self.take(if must_wait { Duration::MAX } else { Duration::ZERO }).await;
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Takes the result of the current run if it finishes within `timeout`; the run itself has a time limit.
    async fn take(&mut self, timeout: Duration) {
        let Some(running) = &mut self.running else { return };
        let Ok(outcome) = tokio::time::timeout(timeout, running).await else { return };
        self.running = None;
        let broken =
            |error| Err(CredentialsError(format!("{}: the task that runs it failed: {error}", self.plugin.origin())));
        match outcome.unwrap_or_else(broken) {
            Ok(credential) => {
                self.last_good = Some(credential);
                self.failure = None;
            }
            Err(error) => self.failure = Some(error),
        }
    }
}
