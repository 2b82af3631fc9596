//! The summary of the daemon and the node: the data of `/status`. [`crate::status_text`] renders it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::explain::summary::ObjectCounts;
use crate::problems::Problem;
use crate::rows::SAME_TIME;
use crate::time::Time;
use nodelb_core::history::{Addresses, Record, What};
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_core::text::filled;

/// The maximum number of changes in a summary.
pub const MAX_CHANGES: usize = 5;

/// The maximum number of records that these come from.
const MOST_RECORDS: usize = 1_024;

/// The summary of the daemon and the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// The name of the node.
    pub node: String,
    /// The version of nodelb.
    pub version: String,
    /// The time of the report.
    pub time: Time,
    /// The time since the start of the daemon, in seconds.
    pub uptime_seconds: u64,
    /// Whether `/readyz` returns 200.
    pub ready: bool,
    /// The kernel; absent if the maps are in memory.
    pub kernel: Option<Kernel>,
    /// The conditions of readiness.
    pub checks: Vec<Check>,
    /// What is wrong, the worst first.
    pub problems: Vec<Problem>,
    /// The numbers of objects.
    pub counts: ObjectCounts,
    /// The apiservers; absent if Kubernetes is not configured.
    pub apiserver: Option<ApiserverSummary>,
    /// The places that sources read.
    pub sources: Vec<SourceSummary>,
    /// The latest changes, the latest first.
    pub changes: Vec<ChangeSummary>,
}

/// The kernel, as far as nodelb depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Kernel {
    /// The release, such as `6.12.41`.
    pub release: String,
    /// The optional features that it lacks, each with the consequence.
    pub missing_features: Vec<String>,
}

/// The apiserver in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ApiserverSummary {
    /// The address; absent if no apiserver is in use.
    pub address: Option<String>,
    /// The time of the last response; absent before the first one.
    pub last_response: Option<Time>,
    /// The configuration keys that select services, with their values; absent if all are selected.
    pub selection: Option<String>,
}

/// A place that a source reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceSummary {
    /// The source: `files` or `kubernetes`.
    pub source: String,
    /// The file, directory, or kind of objects.
    pub path: String,
    /// Whether nodelb serves the current content of the place.
    pub state: SourceState,
    /// The number of services read from it.
    pub services: usize,
}

impl From<&SourceReport> for SourceSummary {
    fn from(report: &SourceReport) -> Self {
        let SourceReport { source, path, state, services, .. } = report;
        Self { source: source.to_string(), path: path.clone(), state: *state, services: *services }
    }
}

/// A change of a service, or of nodelb itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeSummary {
    /// The time when nodelb received the change.
    pub time: Time,
    /// The service; absent for a change of nodelb itself.
    pub service: Option<String>,
    /// All services, if the same has happened to several at the same time.
    #[serde(default)]
    pub services: Vec<String>,
    /// The kind of the change.
    pub change: What,
    /// The backends that can be selected since the change.
    pub added: Vec<String>,
    /// The backends that can no longer be selected.
    pub removed: Vec<String>,
    /// The object that caused the change; absent if there is none.
    pub object: Option<String>,
    /// The version of the object; absent if it is not known.
    pub resource_version: Option<String>,
    /// The client that wrote the object; absent if it is not known.
    pub writer: Option<String>,
    /// Further information; absent if there is none.
    pub detail: Option<String>,
}

impl ChangeSummary {
    /// The latest changes, of these, which begin with the latest one. What happens to several services at the same time and
    /// for the same cause is one change.
    pub fn latest<'r>(records: impl Iterator<Item = &'r Record>) -> Vec<Self> {
        let mut latest: Vec<Self> = Vec::new();
        for change in records.take(MOST_RECORDS).map(Self::from) {
            match latest.iter().position(|it| it.is_same(&change)) {
                Some(at) => latest[at].join(change),
                None if latest.len() < MAX_CHANGES => latest.push(change),
                None => break,
            }
        }
        latest
    }

    /// Whether the same has happened to another service.
    fn is_same(&self, other: &Self) -> bool {
        let Self { time, service, services: _, change, added, removed, object, resource_version, writer, detail } =
            self;
        service.is_some()
            && other.service.is_some()
            && time.0.abs_diff(other.time.0) <= SAME_TIME
            && (*change, added, removed) == (other.change, &other.added, &other.removed)
            && (object, resource_version, writer) == (&other.object, &other.resource_version, &other.writer)
            && *detail == other.detail
    }

    fn join(&mut self, other: Self) {
        if self.services.is_empty() {
            self.services.extend(self.service.clone());
        }
        self.services.extend(other.service.filter(|service| !self.services.contains(service)));
    }
}

impl From<&Record> for ChangeSummary {
    fn from(record: &Record) -> Self {
        let event = &record.event;
        let addresses = |list: &Addresses| list.shown.iter().map(ToString::to_string).collect();
        let removed = if event.cause.is_removed { " (removed)" } else { "" };
        let object = &event.cause.origin.object;
        Self {
            time: Time(record.at),
            service: event.port.as_ref().map(|port| port.service.to_string()),
            services: Vec::new(),
            change: event.what,
            added: addresses(&event.added),
            removed: addresses(&event.removed),
            object: filled(object).map(|object| object + removed),
            resource_version: filled(&event.cause.origin.resource_version),
            writer: filled(&event.cause.origin.writer),
            detail: event.detail.as_deref().and_then(filled),
        }
    }
}
