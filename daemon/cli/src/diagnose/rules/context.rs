//! The facts as rules see them, and what several rules say alike.

use std::fmt::Display;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use nodelb_core::state::status::Status;
use nodelb_core::text::{self, listed};
use nodelb_report::durations;
use nodelb_report::problems::{Problem, Severity as ProblemSeverity};
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

use crate::diagnose::catalogue::{self, FindingEntry};
use crate::diagnose::facts::{Cluster, Daemon, Difference, Facts};
use crate::diagnose::objects::{
    self, canonical, conditions, is_ready, last_write, list, phase_and_ip, pod_name, seconds,
};

/// The facts, and what several rules need of them.
pub(super) struct Context<'f> {
    pub(super) facts: &'f Facts,
    pub(super) daemon: Option<&'f Daemon>,
    pub(super) differences: &'f [Difference],
    pub(super) cluster: Option<&'f Cluster>,
    pub(super) service: Option<&'f Service>,
    /// The slices of the service, if they could be listed.
    pub(super) slices: Option<&'f [EndpointSlice]>,
    /// The pods that the selector matches, if there is a selector and the pods could be listed.
    pub(super) pods: Option<&'f [Pod]>,
}

impl<'f> Context<'f> {
    pub(super) fn new(facts: &'f Facts) -> Self {
        let (daemon, cluster, service) = (facts.daemon.ok(), facts.cluster.ok(), facts.kubernetes_service());
        let differences = daemon.map_or(&[][..], |daemon| &daemon.differences);
        let slices = cluster.and_then(|cluster| cluster.slices.as_deref().ok()).filter(|_| service.is_some());
        let pods = cluster.and_then(|cluster| cluster.pods.as_ref()?.as_deref().ok());
        Self { facts, daemon, differences, cluster, service, slices, pods }
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
            finding.severity = match problem.severity {
                ProblemSeverity::Notice => Severity::Info,
                ProblemSeverity::Warning => Severity::Warning,
                ProblemSeverity::Critical => Severity::Critical,
            };
            // A command that is this one shows no more.
            finding.command = Some(&problem.command).filter(|it| !it.starts_with("nodelb diagnose")).cloned();
        }
        let name = &self.facts.service;
        let own = [("service", &*name.to_string()), ("namespace", &name.namespace), ("name", &name.name)];
        let fill = |text: String, (name, value): &(&str, &str)| text.replace(&format!("{{{name}}}"), value);
        let remedy = entry.remedies.get(case).cloned().or(finding.remedy);
        finding.remedy = remedy.map(|remedy| own.iter().chain(values).fold(remedy, fill));
        finding
    }

    /// Returns the problem of `/status` for the same situation.
    pub(super) fn problem(&self, entry: &FindingEntry) -> Option<&'f Problem> {
        let is_meant = |it: &&Problem| entry.of_node || self.concerns(entry, it);
        self.daemon?.problems.iter().filter(|it| entry.problems.contains(&it.reason)).find(is_meant)
    }

    /// Whether a problem concerns the service: by its name, by one of its addresses, or as it concerns every service.
    pub(super) fn concerns(&self, entry: &FindingEntry, problem: &Problem) -> bool {
        let is_address = || {
            let mut rows = self.daemon.iter().flat_map(|daemon| &daemon.frontends);
            rows.any(|row| row.address == problem.object)
        };
        entry.for_all || problem.is_of(&self.facts.service.to_string()) || is_address()
    }

    /// Returns the Service if it is one for proxies.
    pub(super) fn proxied(&self) -> Option<&'f Service> {
        self.service.filter(|service| objects::is_for_proxies(service))
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

    pub(super) fn has_failed_connect(&self) -> bool {
        self.facts.connect_tests.iter().any(|connect| connect.failure().is_some())
    }

    /// Returns the time since `at`, such as `30s ago`.
    pub(super) fn ago(&self, at: u64) -> String {
        format!("{} ago", durations::human(self.facts.now.saturating_sub(at).saturating_mul(1000)))
    }

    /// Returns the last writer of an object, and when it wrote.
    pub(super) fn written(&self, metadata: &ObjectMeta) -> String {
        let write = last_write(metadata);
        let writer = match write.map_or("", |write| objects::text(&write.manager)) {
            "" => "an unknown writer",
            writer => writer,
        };
        let at = write.and_then(|write| seconds(&write.time));
        let at = at.map(|at| format!(" {}", self.ago(at))).unwrap_or_default();
        format!("last written by {writer}{at} (resourceVersion {})", objects::text(&metadata.resource_version))
    }

    pub(super) fn slices_written(&self) -> impl Iterator<Item = String> {
        let slices = self.slices.into_iter().flatten().take(5);
        slices.map(|slice| format!("slice {}: {}", named(&slice.metadata), self.written(&slice.metadata)))
    }
}

/// Returns `critical` if the service is affected now, otherwise `warning`.
pub(super) fn critical_if(is_affected: bool) -> Severity {
    if is_affected { Severity::Critical } else { Severity::Warning }
}

pub(super) fn is_last_resort(endpoint: &Endpoint) -> bool {
    let conditions = conditions(endpoint);
    conditions.serving.unwrap_or_else(|| is_ready(endpoint)) && conditions.terminating == Some(true)
}

pub(super) fn is_pod_of(endpoint: &Endpoint, pod: &Pod) -> bool {
    let by_name = pod_name(endpoint).is_some_and(|name| Some(name) == pod.metadata.name.as_deref());
    let ip = canonical(phase_and_ip(pod).1);
    by_name || endpoint.addresses.iter().any(|address| canonical(address) == ip)
}

pub(super) fn named(metadata: &ObjectMeta) -> &str {
    objects::text(&metadata.name)
}

/// Returns a text that a user wrote, shortened.
pub(super) fn quoted(text: &str) -> String {
    text::sentence(text.trim()).into_owned()
}

/// Returns the reason after a colon, if there is one.
pub(super) fn because<'a>(why: impl IntoIterator<Item = &'a String>) -> String {
    why.into_iter().map(|why| format!(": {}", quoted(why))).collect()
}

/// Returns the first few, and the number of the others.
pub(super) fn some(each: impl IntoIterator<Item = impl Display>) -> String {
    listed(each, 5)
}

/// Returns an age in seconds as text, to the second.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an age, shown to the second")]
pub(super) fn lasting(seconds: f64) -> String {
    durations::human((seconds.max(0.0) * 1000.0) as u64)
}

/// Returns the protocol; the default is `TCP`.
pub(super) fn protocol(field: &Option<String>) -> &str {
    field.as_deref().filter(|text| !text.is_empty()).unwrap_or("TCP")
}
