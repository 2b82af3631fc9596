//! The status of each watch: its row in `/sources`, and the log messages about missing permissions and
//! failures.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::Source;
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_host::messages;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{info, warn};

use super::store::Tally;
use super::watch::State;
use crate::api::decode::Kind;
use crate::api::scope::Scope;
use crate::apiserver::connection::error::LinkError;
use nodelb_host::clock::unix_seconds;

/// The maximum number of notices and problems in a row.
const MAX_SHOWN: usize = 10;

/// The number of consecutive failures before a message.
const MIN_FAILURES: u32 = 3;

/// How long a kind must fail before that is logged, and work before its recovery counts: a watch may be accepted and
/// fail immediately, every time.
const STABLE_AFTER: Duration = Duration::from_secs(5);

pub(super) struct WatchStatus {
    pub(super) scope: Scope,
    state: State,
    /// When the state began. Consecutive failures keep the time of the first one.
    since: SystemTime,
    /// When the apiserver last sent an event of this kind.
    last_received: Option<Moment>,
    failures: Failures,
    pub(super) list_again: Arc<Notify>,
}

impl WatchStatus {
    pub(super) fn new(scope: Scope) -> Self {
        Self {
            scope,
            state: State::Waiting,
            since: SystemTime::now(),
            last_received: None,
            failures: Failures::default(),
            list_again: Arc::default(),
        }
    }

    pub(super) fn record_events(&mut self, now: Moment) {
        self.last_received = Some(now);
    }

    /// Records a new state, and logs whether the permission to watch is missing. Returns whether the row changes.
    pub(super) fn set_state(&mut self, state: State) -> bool {
        self.failures.record(Instant::now(), &state);
        // A retry does not end the failure.
        if self.state == state || state == State::Asking && matches!(self.state, State::Failing(_)) {
            return false;
        }
        match (missing_permission(&self.scope, &self.state), missing_permission(&self.scope, &state)) {
            (before, Some(missing)) if before.as_ref() != Some(&missing) => warn!(
                message_id = %messages::WATCH_FORBIDDEN,
                "{missing}; still serving the last known state"
            ),
            (Some(_), None) if state == State::Watching => info!(
                message_id = %messages::WATCH_WORKS,
                "nodelb may watch {} now", self.scope
            ),
            _ => {}
        }
        if std::mem::discriminant(&self.state) != std::mem::discriminant(&state) {
            self.since = SystemTime::now();
        }
        self.state = state;
        true
    }

    /// Logs that the kind keeps failing, or works again.
    pub(super) fn log_failures(&mut self, is_connected: bool) {
        let scope = &self.scope;
        match self.failures.transition(Instant::now(), is_connected) {
            Some(Transition::Failing(failures, error)) => warn!(
                message_id = %messages::WATCH_FAILED,
                "{scope}: {failures} requests failed, so {}: {error}; still serving the last known state",
                consequence(scope.kind)
            ),
            Some(Transition::Works) => info!(
                message_id = %messages::WATCH_WORKS,
                "nodelb watches {scope} again"
            ),
            None => {}
        }
    }

    /// The row of `/sources`. `is_listed` is whether its objects have been listed since the daemon started.
    pub(super) fn row(&self, tally: &Tally, is_listed: bool) -> SourceReport {
        let kind = self.scope.kind;
        let state = match self.state {
            State::Watching => SourceState::Ok,
            _ if is_listed || tally.served > 0 => SourceState::LastGood,
            _ => SourceState::Error,
        };
        let mut notices = Vec::new();
        if tally.left_out > 0 {
            let reasons = "headless, ExternalName, handled by another proxy, or without a service";
            notices.push(format!("{} left out: {reasons}", tally.left_out));
        }
        if self.state == State::Watching && self.is_about_missing_service(tally) {
            notices.push("there is no such Service, or its labels do not match".into());
        }
        if self.state == State::Waiting {
            // Nothing has failed here. If no apiserver responds, that is a problem of its own.
            notices.push("waiting for an apiserver; see `nodelb apiservers`".into());
        }
        notices.extend(shortened(&tally.notices));
        let mut problems: Vec<String> = self.problem().into_iter().collect();
        if tally.skipped > 0 {
            problems.push(format!("{} skipped since the start because they could not be decoded", tally.skipped));
        }
        problems.extend(shortened(&tally.problems));
        let served = |of: Kind| if kind == of { tally.served } else { 0 };
        SourceReport {
            source: Source::Kubernetes,
            path: self.scope.to_string(),
            kind: Some(kind.resource()),
            state,
            services: served(Kind::Service),
            slices: served(Kind::EndpointSlice),
            content: None,
            notices,
            problems,
            since: unix_seconds(self.since),
            last_received: self.last_received,
        }
    }

    /// Whether the cluster lacks the one Service that the watch is about.
    fn is_about_missing_service(&self, tally: &Tally) -> bool {
        let Scope { kind, names, .. } = &self.scope;
        *kind == Kind::Service && !names.is_empty() && *tally == Tally::default()
    }

    fn problem(&self) -> Option<String> {
        match &self.state {
            State::Watching | State::Waiting => None,
            State::Asking => {
                Some("an apiserver is connected but has not answered yet; still serving the last known state".into())
            }
            State::Failing(error) => {
                Some(missing_permission(&self.scope, &self.state).unwrap_or_else(|| error.to_string()))
            }
        }
    }
}

fn shortened(texts: &[String]) -> impl Iterator<Item = String> {
    let more = texts.len().saturating_sub(MAX_SHOWN);
    texts.iter().take(MAX_SHOWN).cloned().chain((more > 0).then(|| format!("and {more} more")))
}

/// The consequence of a kind that cannot be read.
fn consequence(kind: Kind) -> &'static str {
    if kind == Kind::Node {
        "nodelb does not see changes of the node's zone, or its removal"
    } else {
        "nodelb does not see their changes"
    }
}

/// The missing permission and a command that shows it; `None` if the watch has no such problem.
fn missing_permission(scope: &Scope, state: &State) -> Option<String> {
    let State::Failing(LinkError::Forbidden(message)) = state else { return None };
    let resource = scope.kind.resource();
    let full = if scope.kind == Kind::EndpointSlice { "endpointslices.discovery.k8s.io" } else { resource };
    let (within, of, remedy) = match &scope.namespace {
        None => (String::new(), "--all-namespaces".to_owned(), ""),
        Some(namespace) => (
            format!(" in namespace {namespace}"),
            format!("--namespace {namespace}"),
            ", and create the Role and RoleBinding of this namespace (/usr/share/nodelb/kubernetes/rbac-namespaces.yaml)",
        ),
    };
    Some(format!(
        "{resource}{within} may not be read, so {}: {message}; see `kubectl auth can-i watch {full} {of}` as this user{remedy}",
        consequence(scope.kind)
    ))
}

#[derive(Debug, PartialEq, Eq)]
enum Transition {
    /// The number of consecutive failures, and the latest error.
    Failing(u32, LinkError),
    Works,
}

/// The failures of one kind while an apiserver is connected. Decides when to log them, and the recovery; each once.
/// Missing permissions and a missing apiserver are logged elsewhere.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    failing_since: Option<Instant>,
    working_since: Option<Instant>,
    error: Option<LinkError>,
    is_logged: bool,
}

impl Failures {
    fn record(&mut self, now: Instant, state: &State) {
        match state {
            State::Failing(LinkError::Forbidden(_)) => self.working_since = None,
            State::Failing(error) => {
                self.count = self.count.saturating_add(1);
                self.failing_since = self.failing_since.or(Some(now));
                self.working_since = None;
                self.error = Some(error.clone());
            }
            State::Watching => self.working_since = self.working_since.or(Some(now)),
            State::Waiting if !self.is_logged => *self = Self::default(),
            State::Waiting | State::Asking => {}
        }
    }

    fn transition(&mut self, now: Instant, is_connected: bool) -> Option<Transition> {
        let is_stable = |since: Option<Instant>| since.is_some_and(|since| now.duration_since(since) >= STABLE_AFTER);
        if is_stable(self.working_since) {
            return std::mem::take(self).is_logged.then_some(Transition::Works);
        }
        if self.is_logged || !is_connected || self.count < MIN_FAILURES || !is_stable(self.failing_since) {
            return None;
        }
        let error = self.error.clone()?;
        self.is_logged = true;
        Some(Transition::Failing(self.count, error))
    }
}

#[cfg(test)]
#[path = "tests/status.rs"]
mod tests;
