//! Whether the service exists, whether it is one for proxies, and whether it gets here what it asks for: health checks,
//! backends on this node, a load balancer.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::Endpoint;
use nodelb_core::compile::select::Choice;
use nodelb_core::history::What;
use nodelb_kube::api::health_check::ANNOTATION;
use nodelb_kube::api::scope::Selection;
use nodelb_kube::api::selector;
use nodelb_report::durations;
use nodelb_report::rows::HistoryRow;
use nodelb_report::time::Time;
use serde::Deserialize;

use super::context::{Context, quoted, some};
use crate::diagnose::catalogue;
use crate::diagnose::facts::Daemon;
use crate::diagnose::objects::{label, list, seconds, spec, text};
use crate::similar::similar_names;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

/// The label of services that another proxy serves, whatever its value.
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// Time in seconds that clouds usually take to create a load balancer.
const USUAL: u64 = 300;

const NO_LOCAL_BACKEND: &str = "no backend on this node (internalTrafficPolicy: Local)";
const UNREACHABLE: &str = "clients on this node get EHOSTUNREACH";

pub(super) fn missing(context: &Context<'_>) -> Option<Finding> {
    let of_cluster = context.cluster.and_then(|cluster| cluster.service.as_ref().ok().map(Option::is_some));
    let has = [of_cluster, context.daemon.map(|daemon| !daemon.services.is_empty())];
    if has.contains(&Some(true)) || has == [None, None] {
        return None;
    }
    let name = &context.facts.service;
    let known = context.daemon.into_iter().flat_map(|daemon| &daemon.names);
    let known = known.chain(context.cluster.into_iter().flat_map(|cluster| &cluster.names));
    let full = name.to_string();
    let near: Vec<&str> = similar_names(&full, known.map(String::as_str)).collect();
    let unknown = match has {
        [Some(_), Some(_)] => "neither Kubernetes nor the daemon knows",
        [Some(_), None] => "Kubernetes does not know",
        _ => "the daemon does not know",
    };
    let what = format!("there is no service {name}: {unknown} one of this name");
    if let Some(gone) = removal(context) {
        return Some(context.finding_in(Kind::NoSuchService, what, "removed", &[]).evidence([gone]));
    }
    let case = if near.is_empty() { "" } else { "similar" };
    let similar = near.first().copied().unwrap_or_default();
    let finding = context.finding_in(Kind::NoSuchService, what, case, &[("similar", similar)]);
    Some(finding.evidence((near.len() > 1).then(|| format!("names like it: {}", near.join(", ")))))
}

fn removal(context: &Context<'_>) -> Option<String> {
    let row = context.daemon?.history.last()?;
    let row = HistoryRow::deserialize(row).ok().filter(|row| row.what == What::Removed)?;
    Some(row.gone(Time(context.facts.now.saturating_mul(1_000))))
}

pub(super) fn not_for_proxies(context: &Context<'_>) -> Option<Finding> {
    let service = context.service.filter(|_| context.proxied().is_none())?;
    let target = text(&spec(service).external_name);
    let (what, case) = if text(&spec(service).type_) == "ExternalName" {
        (format!("it is of type ExternalName: a DNS name for {target}, which no proxy serves"), "external-name")
    } else if text(&spec(service).cluster_ip) == "None" {
        (
            "it is headless (clusterIP: None): clients get the addresses of the pods from DNS, without a proxy".into(),
            "headless",
        )
    } else {
        ("it has no clusterIP yet, so there is no address to serve".into(), "no-address")
    };
    Some(context.finding_in(Kind::NotForProxies, what, case, &[("target", target)]))
}

pub(super) fn unknown_to_daemon(context: &Context<'_>, service: &Service) -> Option<Finding> {
    let daemon = context.daemon.filter(|daemon| daemon.services.is_empty())?;
    if let Some(proxy) = label(&service.metadata, PROXY_NAME) {
        let what = format!("its label {PROXY_NAME} assigns it to another proxy, {proxy}");
        return Some(context.finding_in(Kind::NotForProxies, what, "another-proxy", &[]));
    }
    if let Some(why) = unselected(&daemon.selection, context, service) {
        let what = format!("nodelb does not read it: {why}");
        return Some(context.finding_in(Kind::NotForProxies, what, "unselected", &[]));
    }
    let what = "Kubernetes has it, but the daemon does not know it";
    let finding = context.finding_in(Kind::MemoryDiffers, what, "unknown", &[]).severity(Severity::Critical);
    Some(finding.evidence([context.written(&service.metadata)]))
}

/// The key of the configuration that leaves the service out.
fn unselected(selection: &Selection, context: &Context<'_>, service: &Service) -> Option<String> {
    let Selection { labels, services, .. } = selection;
    if !selection.covers(&context.facts.service) {
        let (key, what) = if services.is_empty() { ("namespaces", "its namespace") } else { ("services", "it") };
        return Some(format!("kubernetes.{key} does not name {what}"));
    }
    let is_matched = selector::matches(labels, service.metadata.labels.as_ref().unwrap_or(&BTreeMap::new()));
    (!is_matched).then(|| format!("its labels do not match kubernetes.label-selector, {labels}"))
}

/// The Service asks for health checks, and the configuration permits none. `/status` does not report this, because it is
/// the operator's decision.
pub(super) fn health_checks_off(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let is_of_kubernetes = daemon.services.iter().any(|row| row.source.eq_ignore_ascii_case("kubernetes"));
    let is_off = daemon.health_checks == "false";
    let annotations = context.service.filter(|_| is_off && is_of_kubernetes)?.metadata.annotations.as_ref()?;
    let asked = annotations.iter().filter(|(name, _)| name.starts_with(ANNOTATION));
    let mut asked = asked.map(|(name, value)| format!("{name}: {}", quoted(value))).peekable();
    asked.peek()?;
    let what = "it asks for health checks, and its backends are not checked: kubernetes.health-checks is false";
    Some(context.finding(Kind::HealthChecksOff, what).evidence([format!("its annotations: {}", some(asked))]))
}

/// Returns where the backends are, if this node has none.
fn elsewhere(context: &Context<'_>) -> Option<Vec<String>> {
    let usable = context.usable();
    let is_here = |endpoint: &&Endpoint| text(&endpoint.node_name) == context.facts.node;
    if usable.is_empty() || usable.iter().any(is_here) {
        return None;
    }
    let nodes = usable.iter().map(|endpoint| match text(&endpoint.node_name) {
        "" => "an endpoint without a node",
        node => node,
    });
    let nodes = some(nodes.collect::<BTreeSet<_>>());
    let mut evidence = vec![format!("this node is {}; the backends are on {nodes}", context.facts.node)];
    if context.cluster.is_some_and(|cluster| cluster.has_node == Ok(false)) {
        evidence.push("Kubernetes has no Node with the name of this node: node.name may be wrong".into());
    }
    Some(evidence)
}

/// A traffic policy of the service is `Local`, and this node has no backend.
pub(super) fn no_local_backend(context: &Context<'_>, service: &Service) -> Vec<Finding> {
    let spec = spec(service);
    let is_local = |policy| text(policy) == "Local";
    let Some(elsewhere) = elsewhere(context) else { return Vec::new() };
    let inside = is_local(&spec.internal_traffic_policy).then(|| {
        let finding = context.finding_in(Kind::NoLocalBackend, NO_LOCAL_BACKEND, "inside", &[]);
        finding.evidence(elsewhere.clone()).evidence([UNREACHABLE])
    });
    let outside = is_local(&spec.external_traffic_policy).then(|| {
        let what = "its externalTrafficPolicy is Local, and none of its backends is on this node: connections from \
                    outside to this node fail, and load balancers do not send to it";
        // The words of `/status` are about clients on this node.
        let finding = Finding { what: what.into(), ..context.finding_in(Kind::NoLocalBackend, what, "outside", &[]) };
        finding.severity(Severity::Warning).evidence(elsewhere)
    });
    inside.into_iter().chain(outside).collect()
}

/// The same, for a service that only the daemon knows.
pub(super) fn no_local_backend_of_file(context: &Context<'_>, daemon: &Daemon) -> Option<Finding> {
    let local = daemon.frontends.iter().find(|row| row.is_local())?;
    let mut usable = daemon.backends.iter().filter(|row| row.choice == Some(Choice::Selected)).peekable();
    usable.peek().filter(|_| context.service.is_none() && local.backends.is_empty())?;
    let place = |node: &str| if node.is_empty() { "without a node".to_owned() } else { format!("on {node}") };
    let backends = some(usable.map(|row| format!("{} {}", row.address, place(&row.node))));
    let finding = context.finding_in(Kind::NoLocalBackend, NO_LOCAL_BACKEND, "file", &[]);
    Some(finding.evidence([format!("the backends are {backends}")]).evidence([UNREACHABLE]))
}

pub(super) fn load_balancer_pending(context: &Context<'_>, service: &Service) -> Option<Finding> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    if text(&spec(service).type_) != "LoadBalancer" || status.is_some_and(|status| !list(&status.ingress).is_empty()) {
        return None;
    }
    let waited = seconds(&service.metadata.creation_timestamp).map(|at| context.facts.now.saturating_sub(at));
    let since = waited.map(|seconds| format!(" for {}", durations::human(seconds.saturating_mul(1000))));
    let since = since.unwrap_or_default();
    let usual = if waited.is_some_and(|it| it <= USUAL) { " (one to five minutes are normal)" } else { "" };
    let what = format!("its load balancer has been pending{since}{usual}: it has no external address");
    let class = match text(&spec(service).load_balancer_class) {
        "" => None,
        class => Some(format!("its loadBalancerClass is {class}: a controller must implement this class")),
    };
    let events = context.cluster.and_then(|cluster| cluster.events.as_deref().ok()).into_iter().flatten();
    let warnings = events.filter(|event| text(&event.type_) == "Warning");
    let balancing = warnings.filter(|event| {
        let reason = text(&event.reason);
        reason.contains("LoadBalancer") || reason == "IPNotAllocated"
    });
    let reported: Vec<String> = balancing.take(3).map(|event| catalogue::one_line(event, context.facts.now)).collect();
    let case = if reported.is_empty() { "silent" } else { "reported" };
    let finding = context.finding_in(Kind::LoadBalancerPending, what, case, &[]);
    Some(finding.evidence(reported).evidence(class))
}
