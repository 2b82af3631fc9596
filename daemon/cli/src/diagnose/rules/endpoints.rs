//! Pods and the selector: which pods should be backends of the service, and whether they are ready.

use nodelb_kube::api::seen::{Endpoint, Pod, Service};

use super::{Context, count, is_pod_of, is_ready, quoted, shown, some};
use crate::diagnose::finding::{Finding, Kind, Severity};
use crate::diagnose::suggest::{Differs, similar_pods};

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let Some(service) = context.service.filter(|_| context.is_for_proxies()) else { return Vec::new() };
    let found = [selects_nothing(context, service), not_ready(context), by_condition(context)];
    found.into_iter().flatten().collect()
}

/// Returns the pods that can be endpoints. A pod that has ended cannot, whatever its labels.
fn living<'f>(context: &Context<'f>) -> Option<Vec<&'f Pod>> {
    let has_ended = |pod: &&Pod| matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
    Some(context.pods?.iter().filter(|pod| !has_ended(pod)).collect())
}

fn selects_nothing(context: &Context<'_>, service: &Service) -> Option<Finding> {
    let selector = &service.spec.selector;
    if selector.is_empty() || !living(context)?.is_empty() {
        return None;
    }
    let text = some(selector.iter().map(|(label, value)| format!("{}={}", shown(label), shown(value))));
    let severity = if context.usable().is_empty() { Severity::Critical } else { Severity::Warning };
    let what = format!("its selector {text} matches no pod in namespace {}", context.facts.service.namespace);
    let near = similar_pods(selector, context.cluster.map_or(&[], |cluster| &cluster.others));
    let evidence = near.iter().map(|(pod, differing)| {
        let each = differing.iter().map(|Differs { label, wanted, has }| match has {
            Some(has) => format!("{}={} where the selector wants {}", shown(label), shown(has), shown(wanted)),
            None => format!("no label {} (the selector wants {})", shown(label), shown(wanted)),
        });
        format!("pod {} has {}", shown(&pod.metadata.name), some(each))
    });
    let ended = context.pods.map_or(0, <[Pod]>::len);
    let ended = (ended > 0).then(|| format!("{} with these labels, all completed", count(ended, "pod")));
    let remedy = match near.first().and_then(|(_, differing)| differing.first()) {
        Some(Differs { label, has: Some(has), .. }) => format!(
            "make the selector and the labels of the pods match: kubectl patch service -n {} {} -p \
             '{{\"spec\":{{\"selector\":{{\"{}\":\"{}\"}}}}}}', or give the pods the label",
            context.facts.service.namespace,
            context.facts.service.name,
            shown(label),
            shown(has)
        ),
        _ => "make the selector and the labels of the pods match; check that the workload exists and is not scaled to \
             0"
        .into(),
    };
    Some(Finding::new(severity, Kind::SelectorMatchesNothing, what).seen(evidence).seen(ended).remedy(remedy))
}

/// There are endpoints, but none that new connections can reach.
fn not_ready(context: &Context<'_>) -> Option<Finding> {
    if !context.usable().is_empty() {
        return None;
    }
    let pods = living(context).unwrap_or_default();
    let waiting: Vec<&Endpoint> = context.endpoints().filter(|endpoint| !is_ready(endpoint)).collect();
    // Another rule covers pods that are ready while their endpoints are not.
    if pods.iter().any(|pod| pod.is_ready()) || waiting.is_empty() && pods.is_empty() {
        return None;
    }
    let number = waiting.len().max(pods.len());
    let what = format!("none of its {} is ready", count(number, if pods.is_empty() { "endpoint" } else { "pod" }));
    let of_pods = pods.iter().map(|pod| pod_text(context, pod));
    let others = waiting.iter().filter(|endpoint| !pods.iter().any(|pod| is_pod_of(endpoint, pod)));
    let of_others = others.map(|endpoint| endpoint_text(endpoint));
    let name = pods.first().map_or("POD", |pod| &pod.metadata.name);
    let remedy = format!(
        "find the reason: kubectl describe pod -n {} {} (its readiness probe, its containers); a probe may be too \
         strict",
        context.facts.service.namespace,
        shown(name)
    );
    Some(Finding::new(Severity::Critical, Kind::NotReady, what).seen(of_pods.chain(of_others).take(10)).remedy(remedy))
}

fn pod_text(context: &Context<'_>, pod: &Pod) -> String {
    let name = shown(&pod.metadata.name);
    let phase = shown(&pod.status.phase);
    match pod.readiness() {
        _ if pod.metadata.deleted.is_some() => format!("pod {name} is terminating"),
        Some(ready) if ready.status != "True" => {
            let since = ready.since.map(|at| format!(" since {}", context.ago(at))).unwrap_or_default();
            let why = if ready.message.is_empty() { String::new() } else { format!(": {}", quoted(&ready.message)) };
            format!("pod {name} ({phase}) is not ready{since}{why}")
        }
        Some(_) => format!("pod {name} is ready"),
        None => format!("pod {name} is {phase} and has no Ready condition"),
    }
}

fn endpoint_text(endpoint: &Endpoint) -> String {
    let address = some(endpoint.addresses.iter().take(1).map(|address| shown(address)));
    let whose = match endpoint.target_ref.name.as_str() {
        "" => String::new(),
        name => format!(" ({} {})", shown(&endpoint.target_ref.kind), shown(name)),
    };
    let state = match (endpoint.conditions.terminating, endpoint.conditions.serving) {
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
    let what =
        format!("{} in {}: {} ready", count(all.len(), "endpoint"), count(context.slices?.len(), "slice"), ready.len());
    let evidence = others.iter().take(10).map(|endpoint| endpoint_text(endpoint));
    let slices = context.slices?.iter().take(5);
    let slices =
        slices.map(|slice| format!("slice {}: {}", shown(&slice.metadata.name), context.written(&slice.metadata)));
    Some(Finding::new(Severity::Info, Kind::Endpoints, what).seen(evidence).seen(slices))
}
