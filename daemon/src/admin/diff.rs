//! `/diff`: the differences between source, memory and kernel, with the likely cause and what nodelb does about it.
//! Owns how often the maps are read; the core finds the differences.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use axum::http::StatusCode;
use nodelb_core::difference::{Between, Difference};
use nodelb_core::source_report::SourceReport;
use nodelb_kube::source::live::NotCompared;
use nodelb_report::explain::differences::{self, ATTACHED_AGAIN, NextCheck};
use nodelb_report::explain::reports;
use nodelb_report::filter::Filter;
use nodelb_report::rows::{ComparedRow, DiffAnswer, DifferenceRow};
use nodelb_report::time::Clocks;

use super::maps::held;
use super::query::{Problem, Query};
use super::state::AdminState;
use crate::reconcile::drift::CHECK_EVERY;

/// Time for changes in progress to finish, before maps and snapshot are read again.
const UNDER_WAY: Duration = Duration::from_millis(100);

/// Maximum number of reads before the answer reports that changes are in progress.
const ATTEMPTS: u32 = 5;

pub(super) fn diff(state: &AdminState, query: &Query, now: Clocks) -> Result<DiffAnswer, Problem> {
    let filter = &query.filter;
    let mut live = if query.live { ask_live(state, filter)? } else { Vec::new() };
    live.retain(|row| row.service.as_ref().is_none_or(|service| filter.accepts(service)));
    let mut rows = compare_between_rounds(state, filter, now)?;
    if *filter == Filter::default() {
        let absent = &state.snapshot().absent;
        let listed = state.sources(now).into_iter().filter(|report| !absent.contains(&report.source));
        rows.splice(0..0, listed.filter_map(|report| listed_with_problems(&report)));
        rows.extend(state.datapath.link_faults().into_iter().map(unattached));
    }
    rows.splice(0..0, live);
    Ok(DiffAnswer {
        differences: rows.into_iter().map(DifferenceRow::from).collect(),
        compared: compared(state, filter),
        whole: *filter == Filter::default(),
    })
}

/// The number of services and frontends that the filter accepts.
fn compared(state: &AdminState, filter: &Filter) -> ComparedRow {
    let snapshot = state.snapshot();
    let (services, frontends) = if *filter == Filter::default() {
        let counts = &state.summaries.of(&snapshot).counts;
        (counts.services, counts.frontends)
    } else {
        let frontends = reports::frontends(&snapshot, filter);
        let services: BTreeSet<_> = frontends.iter().map(|row| &row.service).collect();
        (services.len(), frontends.len())
    };
    ComparedRow { services: services as u64, frontends: frontends as u64 }
}

/// Compares the requested service with an apiserver, or the one at the requested address, or all.
fn ask_live(state: &AdminState, filter: &Filter) -> Result<Vec<Difference>, Problem> {
    let Some(kubernetes) = &state.kubernetes else {
        let message = "a comparison with an API server (--live) needs Kubernetes, which is not configured: set \
             [kubernetes] in nodelb.toml(5). Service files are read again whenever they change";
        return Err(Problem::new(StatusCode::CONFLICT, message));
    };
    let at_address = || {
        filter.address?;
        reports::frontends(&state.snapshot(), filter).into_iter().next().map(|row| row.service)
    };
    let service = filter.service.clone().or_else(at_address);
    (kubernetes.live)(service.as_ref()).map_err(|NotCompared { text, is_too_early }| {
        let status = if is_too_early { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::SERVICE_UNAVAILABLE };
        let rest = "without --live, memory and kernel are compared";
        Problem::new(status, format!("not compared with an API server: {text}; {rest}"))
    })
}

/// A difference between memory and kernel counts only if no round ran between reading the maps and reading the
/// snapshot: operations reach the kernel throughout a round, but the snapshot is published at its end.
fn compare_between_rounds(state: &AdminState, filter: &Filter, now: Clocks) -> Result<Vec<Difference>, Problem> {
    let rounds = &state.owner.rounds;
    let is_of_kernel = |row: &Difference| row.between == Between::MemoryKernel;
    let mut rows = Vec::new();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            thread::sleep(UNDER_WAY);
        }
        let before = rounds.resting();
        rows = compare(state, filter, now)?;
        let is_still = before.is_some() && rounds.resting() == before;
        if is_still || !rows.iter().any(is_of_kernel) {
            return Ok(rows);
        }
    }
    rows.retain(|row| !is_of_kernel(row));
    rows.push(under_way());
    Ok(rows)
}

fn under_way() -> Difference {
    Difference {
        between: Between::MemoryKernel,
        what: "maps".into(),
        service: None,
        source: None,
        memory: Some("changes are in progress".into()),
        kernel: Some("is applying them".into()),
        cause: "the maps changed during each comparison".into(),
        action: "ask again".into(),
    }
}

fn compare(state: &AdminState, filter: &Filter, now: Clocks) -> Result<Vec<Difference>, Problem> {
    let held = held(state)?;
    let snapshot = state.snapshot();
    let last = state.owner.drift.borrow().last_check.unwrap_or_default();
    let since = Duration::from_millis(now.moment.0.saturating_sub(last.0));
    let next = NextCheck { seconds: Some(CHECK_EVERY.saturating_sub(since).as_secs()) };
    Ok(differences::differences(&snapshot, &held, next, filter))
}

/// Returns the problem of a source that may make it differ from the objects that are served.
fn listed_with_problems(report: &SourceReport) -> Option<Difference> {
    let cause = report.problems.first()?;
    let more = match report.problems.len() - 1 {
        0 => String::new(),
        more => format!(" (and {more} more: see /sources)"),
    };
    Some(Difference {
        between: Between::SourceMemory,
        what: format!("{} {}", report.source, report.path),
        service: None,
        source: Some("has problems".into()),
        memory: Some(report.state.to_string()),
        kernel: None,
        cause: format!("{cause}{more}"),
        action:
            "valid services are served, and the last valid version of the others; the source is read again when it \
             changes"
                .into(),
    })
}

fn unattached(fault: String) -> Difference {
    Difference {
        between: Between::MemoryKernel,
        what: "hooks".into(),
        service: None,
        source: None,
        memory: Some("attached".into()),
        kernel: Some(fault),
        cause: "another process detached or unpinned it, for example bpftool or a clean-up of /sys/fs/bpf".into(),
        action: ATTACHED_AGAIN.into(),
    }
}

#[cfg(test)]
#[path = "tests/diff.rs"]
mod tests;
