//! From facts to findings: pure. Each rule checks for one problem. It is silent if its witness is missing, or if
//! another rule has the deeper reason. [`finding`](super::finding) sorts the findings.

mod endpoints;
mod events;
mod facts;
mod kernel;
mod policy;
mod proof;
mod service;
mod slices;

use nodelb_core::output::durations;
use nodelb_kube::api::printable;
use nodelb_kube::api::seen::{Endpoint, Pod, Service, Slice};

use super::facts::{Cluster, Daemon, Facts};
use super::finding::{Finding, Kind, Severity, in_order};

/// Returns all findings, the most likely cause first.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let context = Context::of(facts);
    let rules: &[fn(&Context<'_>) -> Vec<Finding>] = &[
        facts::findings,
        service::findings,
        endpoints::findings,
        slices::findings,
        policy::findings,
        kernel::findings,
        proof::findings,
        events::findings,
    ];
    let mut found: Vec<Finding> = rules.iter().flat_map(|rule| rule(&context)).collect();
    let worst = found.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok);
    if worst < Severity::Warning {
        found.push(Finding::new(Severity::Ok, Kind::Works, "No problems found."));
    }
    in_order(&mut found);
    found
}

/// The facts, and what several rules need of them.
struct Context<'f> {
    facts: &'f Facts,
    daemon: Option<&'f Daemon>,
    cluster: Option<&'f Cluster>,
    /// The Service in Kubernetes.
    service: Option<&'f Service>,
    /// The slices of the service, if they could be listed.
    slices: Option<&'f [Slice]>,
    /// The pods that the selector matches, if there is a selector and the pods could be listed.
    pods: Option<&'f [Pod]>,
}

impl<'f> Context<'f> {
    fn of(facts: &'f Facts) -> Self {
        let (daemon, cluster) = (facts.daemon.ok(), facts.cluster.ok());
        let service = cluster.and_then(|cluster| cluster.service.as_ref().ok()?.as_ref());
        let slices = cluster.and_then(|cluster| cluster.slices.as_deref().ok()).filter(|_| service.is_some());
        let pods = cluster.and_then(|cluster| cluster.pods.as_ref()?.as_deref().ok());
        Self { facts, daemon, cluster, service, slices, pods }
    }

    /// Whether the service is one for proxies.
    fn is_for_proxies(&self) -> bool {
        self.service.is_some_and(|service| {
            let has_address = !service.spec.cluster_ip.is_empty() && service.spec.cluster_ip != "None";
            service.spec.kind != "ExternalName" && has_address
        })
    }

    fn endpoints(&self) -> impl Iterator<Item = &'f Endpoint> {
        self.slices.into_iter().flatten().flat_map(|slice| &slice.endpoints)
    }

    /// Returns the endpoints that may get new connections: the ready ones, or else those that serve while they
    /// terminate.
    fn usable(&self) -> Vec<&'f Endpoint> {
        let ready: Vec<_> = self.endpoints().filter(|endpoint| is_ready(endpoint)).collect();
        if ready.is_empty() { self.endpoints().filter(|endpoint| is_last_resort(endpoint)).collect() } else { ready }
    }

    /// Whether an address of the service is held.
    fn is_held(&self) -> bool {
        self.daemon.is_some_and(|daemon| daemon.frontends.iter().any(|row| row.status == "Held"))
    }

    /// Whether a connection from here has failed.
    fn has_failed_connect(&self) -> bool {
        self.facts.connect_tests.iter().any(|connect| matches!(connect.outcome, super::facts::Outcome::Failed(..)))
    }

    /// Returns the time since `at`, such as `30s ago`.
    fn ago(&self, at: u64) -> String {
        format!("{} ago", durations::human(self.facts.now.saturating_sub(at).saturating_mul(1000)))
    }

    /// Returns the last writer of an object, and when it wrote.
    fn written(&self, metadata: &nodelb_kube::api::seen::Metadata) -> String {
        let writer = match metadata.last_write.manager.as_str() {
            "" => "an unknown writer".into(),
            writer => shown(writer),
        };
        let at = metadata.last_write.at.map(|at| format!(" {}", self.ago(at))).unwrap_or_default();
        let version = &metadata.resource_version;
        format!("last written by {writer}{at} (resourceVersion {})", shown(version))
    }
}

/// Whether an endpoint is ready; `null` means true.
fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.ready.unwrap_or(true)
}

fn is_last_resort(endpoint: &Endpoint) -> bool {
    let serves = endpoint.conditions.serving.unwrap_or_else(|| is_ready(endpoint));
    serves && endpoint.conditions.terminating == Some(true)
}

fn is_pod_of(endpoint: &Endpoint, pod: &Pod) -> bool {
    let by_name = endpoint.target_ref.kind == "Pod" && endpoint.target_ref.name == pod.metadata.name;
    by_name || endpoint.addresses.contains(&pod.status.pod_ip)
}

/// Returns a name in printable form.
fn shown(text: &str) -> String {
    printable::name(text).into_owned()
}

/// Returns a text that a user wrote in printable form.
fn quoted(text: &str) -> String {
    printable::sentence(text.trim()).into_owned()
}

/// Returns the first few, and the number of the others.
fn some(each: impl IntoIterator<Item = String>) -> String {
    const MOST: usize = 5;
    let all: Vec<String> = each.into_iter().collect();
    let (first, rest) = all.split_at(all.len().min(MOST));
    match rest.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Returns a number with its noun: `1 pod`, `2 pods`.
fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Returns the protocol; the default is `TCP`.
fn protocol(text: &str) -> &str {
    if text.is_empty() { "TCP" } else { text }
}

#[cfg(test)]
#[path = "tests/rules.rs"]
mod tests;
