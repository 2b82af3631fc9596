//! The rows of `/sources` for the watched kinds. Pure.

use std::time::SystemTime;

use nodelb_core::model::service::Source;
use nodelb_core::source_report::{SourceReport, SourceState};

use super::store::Tally;
use super::watch::State;
use crate::api::decode::Kind;
use crate::apiserver::error::LinkError;
use crate::clock::unix_seconds;

/// The maximum number of notices and problems in a row.
const SHOWN: usize = 10;

/// The input for the row of one kind.
pub(super) struct KindReport<'a> {
    pub(super) kind: Kind,
    pub(super) state: &'a State,
    pub(super) since: SystemTime,
    /// The time at which the apiserver last sent anything about this kind.
    pub(super) heard: Option<SystemTime>,
    pub(super) tally: Tally,
    /// Whether the kind has been listed since the daemon started.
    pub(super) is_listed: bool,
}

pub(super) fn row(report: &KindReport<'_>) -> SourceReport {
    let KindReport { kind, state, since, heard, tally, is_listed } = report;
    let state_shown = match state {
        State::Watching => SourceState::Ok,
        _ if *is_listed || tally.served > 0 => SourceState::LastGood,
        _ => SourceState::Error,
    };
    let mut notices = Vec::new();
    if tally.left_out > 0 {
        notices
            .push(format!("{} left out: headless, ExternalName, of another proxy, or of no service", tally.left_out));
    }
    notices.extend(shortened(&tally.notices));
    let mut problems: Vec<String> = trouble(*kind, state).into_iter().collect();
    if tally.skipped > 0 {
        problems.push(format!("{} skipped since the start, since they made no sense", tally.skipped));
    }
    problems.extend(shortened(&tally.problems));
    let served = |of: Kind| if *kind == of { tally.served } else { 0 };
    SourceReport {
        source: Source::Kubernetes,
        path: kind.resource().into(),
        kind: Some(kind.resource()),
        state: state_shown,
        services: served(Kind::Service),
        slices: served(Kind::EndpointSlice),
        notices,
        problems,
        since: unix_seconds(*since),
        last_received: heard.map(unix_seconds),
    }
}

fn shortened(texts: &[String]) -> impl Iterator<Item = String> {
    let more = texts.len().saturating_sub(SHOWN);
    texts.iter().take(SHOWN).cloned().chain((more > 0).then(|| format!("and {more} more")))
}

fn trouble(kind: Kind, state: &State) -> Option<String> {
    match state {
        State::Watching => None,
        State::Waiting => Some("waiting for an apiserver; see `nodelb apiservers`".into()),
        State::Asking => Some("an apiserver is connected and has not answered yet; what is known stays served".into()),
        State::Failing(error) => Some(permission(kind, state).unwrap_or_else(|| error.to_string())),
    }
}

/// The consequence of a kind that cannot be read.
pub(super) fn consequence(kind: Kind) -> &'static str {
    if kind == Kind::Node {
        "nothing new is heard of the node's zone, or of its end"
    } else {
        "nothing new is heard of them"
    }
}

/// The missing permission and a command that shows it; `None` if the watch has no such problem.
pub(super) fn permission(kind: Kind, state: &State) -> Option<String> {
    let resource = match kind {
        Kind::EndpointSlice => "endpointslices.discovery.k8s.io",
        _ => kind.resource(),
    };
    let consequence = consequence(kind);
    match state {
        State::Failing(LinkError::Forbidden(message)) => Some(format!(
            "{} may not be read, so {consequence}: {message}; see `kubectl auth can-i watch {resource} --all-namespaces` as this user",
            kind.resource()
        )),
        _ => None,
    }
}

#[cfg(test)]
#[path = "tests/report.rs"]
mod tests;
