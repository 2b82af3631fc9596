//! `/status`: the state of the daemon and the node on one screen. It summarises other routes and has no facts of its
//! own.

use nodelb_kube::api::scope::Selection;
use nodelb_report::status_report::{ApiserverSummary, ChangeSummary, SourceSummary, StatusReport};
use nodelb_report::time::Clocks;

use super::observed::apiserver;
use super::state::{AdminState, latest};

pub(super) fn status(state: &AdminState, now: Clocks) -> StatusReport {
    let (snapshot, apiservers) = (state.snapshot(), state.apiservers());
    let summary = apiservers.pool.is_some().then(|| apiserver(&apiservers, now));
    let selection = || latest(&state.config).kubernetes.selection().narrowed_from(&Selection::default());
    StatusReport {
        node: snapshot.facts.node().name.to_string(),
        version: env!("CARGO_PKG_VERSION").into(),
        time: now.time,
        uptime_seconds: now.moment.0.saturating_sub(state.started.0) / 1_000,
        ready: state.is_ready(now),
        kernel: state.datapath.kernel().cloned(),
        checks: state.readiness(now),
        problems: state.problems(now),
        counts: state.summaries.of(&snapshot).counts.clone(),
        apiserver: summary.map(|it| ApiserverSummary {
            address: it.in_use,
            last_response: it.last_response,
            selection: selection(),
        }),
        sources: state.sources(now).iter().map(|row| SourceSummary::from(&**row)).collect(),
        changes: ChangeSummary::latest(state.history().latest_first().map(|record| &**record)),
    }
}

#[cfg(test)]
#[path = "tests/status.rs"]
mod tests;
