//! What the service requests and does not get here: backends on this node, a load balancer.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::Endpoint;
use nodelb_core::compile::select::Choice;

use super::context::{Context, shown, some};
use crate::diagnose::catalogue;
use crate::diagnose::objects::{list, seconds, spec, text};
use nodelb_core::durations;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

/// Time in seconds that clouds usually take to create a load balancer.
const USUAL: u64 = 300;

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    match context.service.filter(|_| context.is_for_proxies()) {
        Some(service) => {
            let local = [inside(context, service), outside(context, service)];
            local.into_iter().flatten().chain(pending(context, service)).collect()
        }
        None => of_file(context).into_iter().collect(),
    }
}

/// Returns where the backends are, if this node has none.
fn elsewhere(context: &Context<'_>) -> Option<Vec<String>> {
    let usable = context.usable();
    let is_here = |endpoint: &&Endpoint| text(&endpoint.node_name) == context.facts.node;
    if usable.is_empty() || usable.iter().any(is_here) {
        return None;
    }
    let nodes = usable.iter().map(|endpoint| match text(&endpoint.node_name) {
        "" => "an endpoint without a node".into(),
        node => shown(node),
    });
    let mut nodes: Vec<String> = nodes.collect();
    nodes.sort();
    nodes.dedup();
    let mut evidence =
        vec![format!("this node is {}; the backends are on {}", shown(&context.facts.node), some(nodes))];
    if context.cluster.is_some_and(|cluster| cluster.has_node == Ok(false)) {
        evidence.push("Kubernetes has no Node with the name of this node: node.name may be wrong".into());
    }
    Some(evidence)
}

fn inside(context: &Context<'_>, service: &Service) -> Option<Finding> {
    if text(&spec(service).internal_traffic_policy) != "Local" {
        return None;
    }
    let what = "no backend on this node (internalTrafficPolicy: Local)";
    let finding = context.finding_in(Kind::NoLocalBackend, what, "inside", &[]).evidence(elsewhere(context)?);
    Some(finding.evidence(["clients on this node get EHOSTUNREACH"]))
}

fn outside(context: &Context<'_>, service: &Service) -> Option<Finding> {
    if text(&spec(service).external_traffic_policy) != "Local" {
        return None;
    }
    let what = "its externalTrafficPolicy is Local, and none of its backends is on this node: connections from outside \
         to this node fail, and load balancers do not send to it";
    let finding = Finding { what: what.into(), ..context.finding_in(Kind::NoLocalBackend, what, "outside", &[]) };
    Some(finding.severity(Severity::Warning).evidence(elsewhere(context)?))
}

/// The same, for a service that only the daemon knows.
fn of_file(context: &Context<'_>) -> Option<Finding> {
    let daemon = context.daemon.filter(|_| context.service.is_none())?;
    let is_local = |row: &&crate::diagnose::facts::FrontendRow| row.flags.iter().any(|flag| flag == "Local");
    daemon.frontends.iter().find(is_local).filter(|row| row.backends.is_empty())?;
    let usable: Vec<_> = daemon.backends.iter().filter(|backend| backend.choice == Some(Choice::Selected)).collect();
    if usable.is_empty() {
        return None;
    }
    let what = "no backend on this node (internalTrafficPolicy: Local)";
    let backends =
        some(usable.iter().map(|backend| format!("{} on {}", shown(&backend.address), shown(&backend.node))));
    let finding = context.finding_in(Kind::NoLocalBackend, what, "file", &[]);
    Some(finding.evidence([format!("the backends are {backends}"), "clients on this node get EHOSTUNREACH".into()]))
}

fn pending(context: &Context<'_>, service: &Service) -> Option<Finding> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    if text(&spec(service).type_) != "LoadBalancer" || status.is_some_and(|status| !list(&status.ingress).is_empty()) {
        return None;
    }
    let waited = seconds(&service.metadata.creation_timestamp).map(|at| context.facts.now.saturating_sub(at));
    let since =
        waited.map_or_else(String::new, |seconds| format!(" for {}", durations::human(seconds.saturating_mul(1000))));
    let usual = match waited {
        Some(seconds) if seconds <= USUAL => " (one to five minutes are normal)",
        _ => "",
    };
    let what = format!("its load balancer has been pending{since}{usual}: it has no external address");
    let class = match text(&spec(service).load_balancer_class) {
        "" => None,
        class => Some(format!("its loadBalancerClass is {}: a controller must implement this class", shown(class))),
    };
    let events = context.cluster.and_then(|cluster| cluster.events.as_deref().ok()).into_iter().flatten();
    let balancing = events.filter(|event| {
        let reason = text(&event.reason);
        reason.contains("LoadBalancer") || reason == "IPNotAllocated"
    });
    let reported = balancing
        .filter(|event| text(&event.type_) == "Warning")
        .map(|event| catalogue::one_line(event, context.facts.now));
    let reported: Vec<String> = reported.take(3).collect();
    let case = if reported.is_empty() { "silent" } else { "reported" };
    let finding = context.finding_in(Kind::LoadBalancerPending, what, case, &[]);
    Some(finding.evidence(reported).evidence(class))
}
