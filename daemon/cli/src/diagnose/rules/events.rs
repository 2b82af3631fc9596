//! The Service's recent Kubernetes Events, explained by the catalogue.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Event;

use super::context::{Context, quoted, some};
use crate::diagnose::catalogue;
use crate::diagnose::objects::{last_seen, text};
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

/// Age in seconds after which a warning says nothing about the present.
const RECENT: u64 = 3600;

/// Maximum number of reasons that are shown.
const MOST: usize = 10;

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let Some(events) = context.cluster.and_then(|cluster| cluster.events.as_deref().ok()) else { return Vec::new() };
    let (warnings, normal): (Vec<&Event>, Vec<&Event>) =
        events.iter().partition(|event| text(&event.type_) == "Warning");
    let mut found: Vec<Finding> =
        latest(&warnings).into_iter().take(MOST).map(|event| explained(context, event)).collect();
    if !normal.is_empty() {
        let reasons = latest(&normal).into_iter().map(|event| catalogue::one_line(event, context.facts.now));
        let what = format!("Kubernetes reports: {}", some(reasons));
        found.push(context.finding(Kind::Event, what).severity(Severity::Info));
    }
    found
}

/// Returns the latest Event of each reason, the latest first.
fn latest<'e>(events: &[&'e Event]) -> Vec<&'e Event> {
    let mut by_reason: BTreeMap<&str, &Event> = BTreeMap::new();
    for event in events {
        let known = by_reason.entry(text(&event.reason)).or_insert(event);
        if last_seen(known) < last_seen(event) {
            *known = event;
        }
    }
    let mut latest: Vec<&Event> = by_reason.into_values().collect();
    latest.sort_by_key(|event| std::cmp::Reverse(last_seen(event)));
    latest
}

fn explained(context: &Context<'_>, event: &Event) -> Finding {
    let is_recent = last_seen(event).is_some_and(|at| context.facts.now.saturating_sub(at) <= RECENT);
    let severity = if is_recent { Severity::Warning } else { Severity::Info };
    let said = catalogue::one_line(event, context.facts.now);
    let Some(entry) = catalogue::find(text(&event.reason)) else {
        let what = format!("Kubernetes warns: {said}");
        return context.finding(Kind::Event, what).severity(severity);
    };
    let cause = entry.cause_of(text(&event.message));
    let (means, remedy) = cause.map_or((&entry.meaning, &entry.remedy), |cause| (&cause.means, &cause.remedy));
    let what = format!("Kubernetes warns: {}: {means}", quoted(text(&event.reason)));
    let finding = context.finding(Kind::Event, what).severity(severity);
    let finding = finding.evidence([said, format!("in general: {}", entry.meaning)]);
    if remedy.is_empty() { finding } else { finding.remedy(remedy.as_str()) }
}
