//! The facts as rules see them, and what several rules say alike.

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodelb_core::durations;
use nodelb_core::state::status::Status;
use nodelb_core::text::{self, listed};
use nodelb_report::problems::Problem;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding};

use crate::diagnose::catalogue::{self, FindingEntry};
use crate::diagnose::facts::{Cluster, Daemon, Facts, Outcome};
use crate::diagnose::objects::{self, conditions, is_ready, last_write, list, phase_and_ip, pod_name, seconds};

/// The facts, and what several rules need of them.
pub(super) struct Context<'f> {
    pub(super) facts: &'f Facts,
    pub(super) daemon: Option<&'f Daemon>,
    pub(super) cluster: Option<&'f Cluster>,
    pub(super) service: Option<&'f Service>,
    /// The slices of the service, if they could be listed.
    pub(super) slices: Option<&'f [EndpointSlice]>,
    /// The pods that the selector matches, if there is a selector and the pods could be listed.
    pub(super) pods: Option<&'f [Pod]>,
}

impl<'f> Context<'f> {
    pub(super) fn new(facts: &'f Facts) -> Self {
        let (daemon, cluster) = (facts.daemon.ok(), facts.cluster.ok());
        let service = cluster.and_then(|cluster| cluster.service.as_ref().ok()?.as_ref());
        let slices = cluster.and_then(|cluster| cluster.slices.as_deref().ok()).filter(|_| service.is_some());
        let pods = cluster.and_then(|cluster| cluster.pods.as_ref()?.as_deref().ok());
        Self { facts, daemon, cluster, service, slices, pods }
    }

    /// Creates a finding of this kind, in the words of `/status` if that reports the same.
    pub(super) fn finding(&self, kind: Kind, what: impl Into<String>) -> Finding {
        self.finding_in(kind, what, "", &[])
    }

    /// The same with the remedy for this case, and these values in it.
    pub(super) fn finding_in(
        &self,
        kind: Kind,
        what: impl Into<String>,
        case: &str,
        values: &[(&str, &str)],
    ) -> Finding {
        let entry = catalogue::finding(kind);
        let mut finding = entry.new_finding(what);
        if let Some(problem) = self.problem(entry) {
            problem.cause.clone_into(&mut finding.what);
            finding.since = problem.since;
            finding.command = command(problem);
        }
        let name = &self.facts.service;
        let full = name.to_string();
        let own = [("service", full.as_str()), ("namespace", &name.namespace), ("name", &name.name)];
        let values: Vec<(&str, &str)> = own.into_iter().chain(values.iter().copied()).collect();
        let remedy = entry.remedy_for(case).or(finding.remedy.as_deref());
        finding.remedy = remedy.map(|remedy| filled(remedy, &values));
        finding
    }

    /// Returns the problem of `/status` for the same situation.
    fn problem(&self, entry: &FindingEntry) -> Option<&'f Problem> {
        let is_meant = |it: &&Problem| entry.of_node || self.concerns(entry, it);
        self.daemon?.problems.iter().filter(|it| entry.problems.contains(&it.reason)).find(is_meant)
    }

    /// Whether a problem concerns the service: by its name, by one of its addresses, or as it concerns every service.
    pub(super) fn concerns(&self, entry: &FindingEntry, problem: &Problem) -> bool {
        let is_address = || {
            let mut rows = self.daemon.iter().flat_map(|daemon| &daemon.frontends);
            rows.any(|row| row.address == problem.object)
        };
        entry.for_all || problem.object == self.facts.service.to_string() || is_address()
    }

    /// Whether the service is one for proxies.
    pub(super) fn is_for_proxies(&self) -> bool {
        self.service.is_some_and(objects::is_for_proxies)
    }

    pub(super) fn endpoints(&self) -> impl Iterator<Item = &'f Endpoint> {
        self.slices.into_iter().flatten().flat_map(|slice| list(&slice.endpoints))
    }

    /// Returns the endpoints that may get new connections: the ready ones, or else those that serve while they
    /// terminate.
    pub(super) fn usable(&self) -> Vec<&'f Endpoint> {
        let ready: Vec<_> = self.endpoints().filter(|endpoint| is_ready(endpoint)).collect();
        if ready.is_empty() { self.endpoints().filter(|endpoint| is_last_resort(endpoint)).collect() } else { ready }
    }

    /// Whether an address of the service is held.
    pub(super) fn is_held(&self) -> bool {
        self.daemon.is_some_and(|daemon| daemon.frontends.iter().any(|row| row.status == Some(Status::Held)))
    }

    /// Whether a connection from here has failed.
    pub(super) fn has_failed_connect(&self) -> bool {
        self.facts.connect_tests.iter().any(|connect| matches!(connect.outcome, Outcome::Failed(..)))
    }

    /// Returns the time since `at`, such as `30s ago`.
    pub(super) fn ago(&self, at: u64) -> String {
        format!("{} ago", durations::human(self.facts.now.saturating_sub(at).saturating_mul(1000)))
    }

    /// Returns the last writer of an object, and when it wrote.
    pub(super) fn written(&self, metadata: &ObjectMeta) -> String {
        let write = last_write(metadata);
        let writer = match write.map_or("", |write| objects::text(&write.manager)) {
            "" => "an unknown writer".into(),
            writer => shown(writer),
        };
        let at = write.and_then(|write| seconds(&write.time));
        let at = at.map(|at| format!(" {}", self.ago(at))).unwrap_or_default();
        let version = objects::text(&metadata.resource_version);
        format!("last written by {writer}{at} (resourceVersion {})", shown(version))
    }
}

/// Returns the command that shows more; `None` if it is this one.
fn command(problem: &Problem) -> Option<String> {
    (!problem.command.starts_with("nodelb diagnose")).then(|| problem.command.clone())
}

/// Returns the text with the values in place of their names in braces.
pub(super) fn filled(text: &str, values: &[(&str, &str)]) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let value = values.iter().find_map(|(name, value)| {
            let after = rest.strip_prefix('{')?.strip_prefix(name)?.strip_prefix('}')?;
            Some((value, after))
        });
        match value {
            Some((value, after)) => {
                out.push_str(value);
                rest = after;
            }
            None => {
                out.push('{');
                rest = &rest[1..];
            }
        }
    }
    out + rest
}

pub(super) fn is_last_resort(endpoint: &Endpoint) -> bool {
    let conditions = conditions(endpoint);
    conditions.serving.unwrap_or_else(|| is_ready(endpoint)) && conditions.terminating == Some(true)
}

pub(super) fn is_pod_of(endpoint: &Endpoint, pod: &Pod) -> bool {
    let by_name = pod_name(endpoint).is_some_and(|name| Some(name) == pod.metadata.name.as_deref());
    by_name || endpoint.addresses.iter().any(|address| *address == phase_and_ip(pod).1)
}

/// Returns a name in printable form.
pub(super) fn shown(text: &str) -> String {
    text::name(text).into_owned()
}

/// Returns a text that a user wrote in printable form.
pub(super) fn quoted(text: &str) -> String {
    text::sentence(text.trim()).into_owned()
}

/// Returns the first few, and the number of the others.
pub(super) fn some(each: impl IntoIterator<Item = String>) -> String {
    listed(each, 5)
}

/// Returns the protocol; the default is `TCP`.
pub(super) fn protocol(field: &Option<String>) -> &str {
    field.as_deref().filter(|text| !text.is_empty()).unwrap_or("TCP")
}
