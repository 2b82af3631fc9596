//! The journal's lines about names: one when DNS servers begin to fail, and one when they answer again.

use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_host::messages;
use tracing::{info, warn};

/// Logs the change between two rows of `/sources`.
pub(super) fn log(before: Option<&SourceReport>, now: Option<&SourceReport>) {
    let is_failing = |report: Option<&SourceReport>| report.is_some_and(|report| report.state != SourceState::Ok);
    let Some(now) = now.filter(|now| is_failing(before) != is_failing(Some(now))) else { return };
    match (now.state, now.problems.first()) {
        (SourceState::Ok, _) => info!(message_id = %messages::DNS_FAILING, "DNS servers answer for every name again"),
        (_, problem) => warn!(
            message_id = %messages::DNS_FAILING,
            "DNS names: {}; see `nodelb dns`", problem.map_or("no answer", String::as_str)
        ),
    }
}
