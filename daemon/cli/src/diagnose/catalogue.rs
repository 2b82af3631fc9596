//! The catalogue: the findings with their order, relations and remedies, and the Kubernetes Events about services: what
//! each reason means, what its message usually points to, and the remedy. The data is in `catalogue.toml`. An Event
//! without an entry for its reason is shown as Kubernetes reports it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::Event;
use nodelb_core::text;
use nodelb_report::durations;
use nodelb_report::problems::Reason;
use nodelb_report::rows::{FindingKind, FindingRow, FindingSeverity as Severity};
use serde::Deserialize;

use super::objects::{component, last_seen, text};

/// The file, which a test reads: it has no errors.
static CATALOGUE: LazyLock<Catalogue> =
    LazyLock::new(|| toml::from_str(include_str!("catalogue.toml")).unwrap_or_default());

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    finding: Vec<FindingEntry>,
    event: Vec<EventEntry>,
    cause: BTreeMap<String, Cause>,
    packet: BTreeMap<String, PacketProblem>,
}

/// What all findings of a kind have in common.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FindingEntry {
    pub kind: FindingKind,
    /// The severity, unless the facts say otherwise.
    pub severity: Severity,
    /// The reasons of `/status` for the same situation.
    #[serde(default)]
    pub problems: Vec<Reason>,
    /// Whether such a problem concerns every service.
    #[serde(default)]
    pub for_all: bool,
    /// Whether such a problem concerns the service only if a rule says so.
    #[serde(default)]
    pub of_node: bool,
    /// The findings that follow from this one.
    #[serde(default)]
    pub explains: Vec<FindingKind>,
    /// The findings that say nothing if there is this one.
    #[serde(default)]
    pub suppresses: Vec<FindingKind>,
    /// Whether it is shown only if nothing is wrong.
    #[serde(default)]
    detail: bool,
    #[serde(default)]
    pub(super) remedy: Option<String>,
    /// The remedies of cases that the facts distinguish.
    #[serde(default)]
    pub(super) remedies: BTreeMap<String, String>,
}

impl FindingEntry {
    /// Creates a finding with the severity and the remedy of its kind, which may have placeholders.
    pub(super) fn new_finding(&self, what: impl Into<String>) -> FindingRow {
        FindingRow {
            severity: self.severity,
            kind: self.kind,
            explained_by: None,
            since: None,
            file: None,
            line: None,
            what: what.into(),
            evidence: Vec::new(),
            remedy: self.remedy.clone(),
            command: None,
            is_detail: self.detail,
        }
    }
}

/// The names of values in remedies.
#[cfg(test)]
pub(super) const PLACEHOLDERS: [&str; 12] = [
    "address",
    "service",
    "namespace",
    "name",
    "source",
    "similar",
    "target",
    "at-once",
    "label",
    "value",
    "pod",
    "way",
];

/// Returns every kind of finding in its order.
pub fn findings() -> &'static [FindingEntry] {
    &CATALOGUE.finding
}

/// Returns the entry of a kind of finding.
///
/// # Panics
/// If the file lacks the kind, which a test excludes.
pub(super) fn finding(kind: FindingKind) -> &'static FindingEntry {
    let entry = findings().iter().find(|entry| entry.kind == kind);
    entry.expect("invariant: the catalogue has every kind")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PacketProblem {
    pub severity: Severity,
    pub problem: String,
    pub remedy: String,
}

/// The explanation of one reason.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventEntry {
    /// The value of the field `reason`.
    pub reason: String,
    /// The value of the field `type`: `Normal` or `Warning`.
    pub kind: String,
    /// The component that reports it.
    pub source: String,
    pub severity: Severity,
    pub meaning: String,
    /// The names of the causes that words in the message point to.
    #[serde(default)]
    pub causes: Vec<String>,
    /// The remedy if no word matches; empty if none is needed.
    #[serde(default)]
    pub remedy: String,
}

/// A cause that a word in the message points to.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    /// The word, in any case.
    pub word: String,
    pub means: String,
    pub remedy: String,
}

impl EventEntry {
    pub fn cause_of(&self, message: &str) -> Option<&'static Cause> {
        let message = message.to_lowercase();
        let mut causes = self.causes.iter().filter_map(|name| CATALOGUE.cause.get(name));
        causes.find(|cause| message.contains(&cause.word.to_lowercase()))
    }
}

/// Returns the problem of the packet path with this name. The reasons of `/drops` are names, too.
pub(super) fn packet_problem(name: &str) -> Option<&'static PacketProblem> {
    CATALOGUE.packet.get(name)
}

pub fn find(reason: &str) -> Option<&'static EventEntry> {
    CATALOGUE.event.iter().find(|entry| entry.reason == reason)
}

/// Returns an Event as one line: `SyncLoadBalancerFailed from service-controller, 12 times, last 30s ago: message`.
pub(super) fn one_line(event: &Event, now: u64) -> String {
    let by = match component(event) {
        "" => String::new(),
        component => format!(" from {}", text::name(component)),
    };
    let times = event.count.filter(|count| *count > 1).map(|count| format!(", {count} times")).unwrap_or_default();
    let last = last_seen(event)
        .map(|at| format!(", last {} ago", durations::human(now.saturating_sub(at).saturating_mul(1000))));
    let message = text::sentence(text(&event.message).trim());
    format!("{}{by}{times}{}: {message}", text::name(text(&event.reason)), last.unwrap_or_default())
}

#[cfg(test)]
#[path = "tests/catalogue.rs"]
mod tests;
