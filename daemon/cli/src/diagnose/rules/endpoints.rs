//! Pods and the selector: which pods should be backends of the service, and whether they are ready.

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::Endpoint;

use super::context::{Context, is_pod_of, quoted, shown, some};
use crate::diagnose::objects::is_ready;
use crate::diagnose::objects::{
    conditions, is_pod_ready, phase_and_ip, pod_name, readiness, ready_since, selector, text,
};
use crate::diagnose::suggest::{Differs, similar_pods};
use nodelb_core::text::counted;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let Some(service) = context.service.filter(|_| context.is_for_proxies()) else { return Vec::new() };
    let found = [selects_nothing(context, service), not_ready(context), by_condition(context)];
    found.into_iter().flatten().collect()
}

/// Returns the pods that can be endpoints. A pod that has ended cannot, whatever its labels.
fn living<'f>(context: &Context<'f>) -> Option<Vec<&'f Pod>> {
    let has_ended = |pod: &&Pod| matches!(phase_and_ip(pod).0, "Succeeded" | "Failed");
    Some(context.pods?.iter().filter(|pod| !has_ended(pod)).collect())
}

fn selects_nothing(context: &Context<'_>, service: &Service) -> Option<Finding> {
    let selector = selector(service).filter(|_| living(context).is_some_and(|pods| pods.is_empty()))?;
    let wanted = some(selector.iter().map(|(label, value)| format!("{}={}", shown(label), shown(value))));
    let severity = if context.usable().is_empty() { Severity::Critical } else { Severity::Warning };
    let what = format!("its selector {wanted} matches no pod in namespace {}", context.facts.service.namespace);
    let near = similar_pods(selector, context.cluster.map_or(&[], |cluster| &cluster.others));
    let evidence = near.iter().map(|(pod, differing)| {
        let each = differing.iter().map(|Differs { label, wanted, has }| match has {
            Some(has) => format!("{}={} where the selector wants {}", shown(label), shown(has), shown(wanted)),
            None => format!("no label {} (the selector wants {})", shown(label), shown(wanted)),
        });
        format!("pod {} has {}", shown(text(&pod.metadata.name)), some(each))
    });
    let ended = context.pods.map_or(0, <[Pod]>::len);
    let ended = (ended > 0).then(|| format!("{} with these labels, all completed", counted(ended, "pod")));
    let label = near.first().and_then(|(_, differing)| differing.first());
    let label = label.and_then(|it| Some((shown(it.label), shown(it.has?))));
    let (case, values) = match &label {
        Some((label, value)) => ("label", vec![("label", label.as_str()), ("value", value)]),
        None => ("", Vec::new()),
    };
    let finding = context.finding_in(Kind::SelectorMatchesNothing, what, case, &values);
    Some(finding.severity(severity).evidence(evidence).evidence(ended))
}

/// There are endpoints, but none that new connections can reach.
fn not_ready(context: &Context<'_>) -> Option<Finding> {
    if !context.usable().is_empty() {
        return None;
    }
    let pods = living(context).unwrap_or_default();
    let waiting: Vec<&Endpoint> = context.endpoints().filter(|endpoint| !is_ready(endpoint)).collect();
    // Another rule covers pods that are ready while their endpoints are not.
    if pods.iter().any(|pod| is_pod_ready(pod)) || waiting.is_empty() && pods.is_empty() {
        return None;
    }
    let number = waiting.len().max(pods.len());
    let what = format!("none of its {} is ready", counted(number, if pods.is_empty() { "endpoint" } else { "pod" }));
    let of_pods = pods.iter().map(|pod| pod_text(context, pod));
    let others = waiting.iter().filter(|endpoint| !pods.iter().any(|pod| is_pod_of(endpoint, pod)));
    let of_others = others.map(|endpoint| endpoint_text(endpoint));
    let evidence: Vec<String> = of_pods.chain(of_others).take(10).collect();
    let named = waiting.iter().find_map(|endpoint| pod_name(endpoint));
    let name = pods.first().map(|pod| text(&pod.metadata.name)).or(named).map(shown);
    let case = if name.is_some() { "" } else { "no-pod" };
    let finding = context.finding_in(Kind::NotReady, what, case, &[("pod", name.as_deref().unwrap_or_default())]);
    Some(finding.evidence(evidence))
}

fn pod_text(context: &Context<'_>, pod: &Pod) -> String {
    let name = shown(text(&pod.metadata.name));
    let phase = shown(phase_and_ip(pod).0);
    match readiness(pod) {
        _ if pod.metadata.deletion_timestamp.is_some() => format!("pod {name} is terminating"),
        Some(ready) if ready.status != "True" => {
            let since = ready_since(pod).map(|at| format!(" since {}", context.ago(at))).unwrap_or_default();
            let why = text(&ready.message);
            let why = if why.is_empty() { String::new() } else { format!(": {}", quoted(why)) };
            format!("pod {name} ({phase}) is not ready{since}{why}")
        }
        Some(_) => format!("pod {name} is ready"),
        None => format!("pod {name} is {phase} and has no Ready condition"),
    }
}

fn endpoint_text(endpoint: &Endpoint) -> String {
    let address = some(endpoint.addresses.iter().take(1).map(|address| shown(address)));
    let whose = match &endpoint.target_ref {
        Some(target) if !text(&target.name).is_empty() => {
            format!(" ({} {})", shown(text(&target.kind)), shown(text(&target.name)))
        }
        _ => String::new(),
    };
    let state = match (conditions(endpoint).terminating, conditions(endpoint).serving) {
        (Some(true), Some(true)) => "is terminating and still serving",
        (Some(true), _) => "is terminating",
        _ => "is not ready",
    };
    format!("endpoint {address}{whose} {state}")
}

/// Returns the number of endpoints in each condition.
fn by_condition(context: &Context<'_>) -> Option<Finding> {
    let all: Vec<&Endpoint> = context.endpoints().collect();
    if all.is_empty() {
        return None;
    }
    let (ready, others): (Vec<&Endpoint>, Vec<&Endpoint>) = all.iter().partition(|endpoint| is_ready(endpoint));
    let what = format!(
        "{} in {}: {} ready",
        counted(all.len(), "endpoint"),
        counted(context.slices?.len(), "slice"),
        ready.len()
    );
    let evidence = others.iter().take(10).map(|endpoint| endpoint_text(endpoint));
    let slices = context.slices?.iter().take(5);
    let slices = slices
        .map(|slice| format!("slice {}: {}", shown(text(&slice.metadata.name)), context.written(&slice.metadata)));
    Some(context.finding(Kind::Endpoints, what).evidence(evidence).evidence(slices))
}
