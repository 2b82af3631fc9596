//! EndpointSlices: whether they exist, what emptied them, whether they follow the pods, and whether they have the
//! ports.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::context::{Context, is_pod_of, protocol, shown, some};
use crate::diagnose::objects::is_ready;
use crate::diagnose::objects::{
    is_pod_ready, last_write, list, phase_and_ip, pod_name, ready_since, seconds, selector, spec, text,
};
use crate::diagnose::rows;
use nodelb_core::text::counted;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding, FindingSeverity as Severity};

/// Time in seconds that a controller may take to follow a pod.
const TIMEOUT: u64 = 10;

pub(super) fn findings(context: &Context<'_>) -> Vec<Finding> {
    let (Some(service), Some(slices)) = (context.service.filter(|_| context.is_for_proxies()), context.slices) else {
        return Vec::new();
    };
    let disagreement = Disagreement::new(context);
    let about_all = if slices.is_empty() {
        missing(context, service, &disagreement)
    } else if is_emptied(service, slices, context, &disagreement) {
        Some(emptied(context, slices))
    } else {
        not_updated(context, &disagreement)
    };
    about_all.into_iter().chain(ports(context, service, slices)).collect()
}

/// Differences between pods and slices.
struct Disagreement<'f> {
    /// Pods that have been ready for a while but have no ready endpoint.
    absent: Vec<&'f Pod>,
    /// Names of pods that no longer exist but still have endpoints.
    gone: Vec<&'f str>,
}

impl<'f> Disagreement<'f> {
    fn new(context: &Context<'f>) -> Self {
        let Some(pods) = context.pods else { return Self { absent: Vec::new(), gone: Vec::new() } };
        let is_listed = |pod: &Pod| context.endpoints().any(|endpoint| is_ready(endpoint) && is_pod_of(endpoint, pod));
        let is_settled =
            |pod: &Pod| ready_since(pod).is_none_or(|since| context.facts.now.saturating_sub(since) >= TIMEOUT);
        let absent = pods.iter().filter(|pod| is_pod_ready(pod) && is_settled(pod) && !is_listed(pod)).collect();
        let names = context.endpoints().filter(|endpoint| is_ready(endpoint)).filter_map(pod_name);
        let gone = names.filter(|name| !pods.iter().any(|pod| text(&pod.metadata.name) == *name)).collect();
        // Without any pod the selector is the problem, and another writer of the slices may have better information.
        Self { absent, gone: if pods.is_empty() { Vec::new() } else { gone } }
    }
}

/// Whether the endpoints were removed, and are not merely absent because there is no pod for them.
fn is_emptied(
    service: &Service,
    slices: &[EndpointSlice],
    context: &Context<'_>,
    disagreement: &Disagreement<'_>,
) -> bool {
    if slices.iter().any(|slice| !list(&slice.endpoints).is_empty()) {
        return false;
    }
    let written = slices.iter().filter_map(|slice| seconds(&last_write(&slice.metadata)?.time)).max();
    let ready = disagreement.absent.iter().filter_map(|pod| ready_since(pod)).max();
    match context.pods {
        // Slices that were written before the pods became ready have merely not been written since.
        Some(_) if selector(service).is_some() => !disagreement.absent.is_empty() && written >= ready,
        _ => true,
    }
}

fn emptied(context: &Context<'_>, slices: &[EndpointSlice]) -> Finding {
    let severity = if context.is_held() { Severity::Warning } else { Severity::Critical };
    let names = some(slices.iter().map(|slice| shown(text(&slice.metadata.name))));
    let cannot_tell = context.pods.is_none() && context.service.and_then(selector).is_some();
    let what = match slices.len() {
        _ if cannot_tell => format!(
            "its EndpointSlice {names} has no endpoints: a client emptied it, or no ready pod matches its selector; \
             use a kubeconfig that may list pods to find out"
        ),
        1 => format!("its EndpointSlice {names} has been emptied: it has no endpoints"),
        _ => format!("its EndpointSlices {names} have been emptied: none has endpoints"),
    };
    let writers = slices.iter().take(5).map(|slice| {
        let name = shown(text(&slice.metadata.name));
        format!("slice {name}: {}", context.written(&slice.metadata))
    });
    let history = context.daemon.and_then(|daemon| daemon.history.as_ref()).into_iter().flatten();
    let removals = history.rev().filter(|row| rows::takes_away(row)).take(3).map(rows::step);
    let ready = context.pods.into_iter().flatten().filter(|pod| is_pod_ready(pod)).count();
    let ready = (ready > 0).then(|| format!("{} would be ready", counted(ready, "pod")));
    let held = context.is_held().then(|| "nodelb holds the last known backends meanwhile".to_owned());
    let finding = context.finding(Kind::SliceEmptied, what).severity(severity);
    finding.evidence(writers).evidence(removals).evidence(ready).evidence(held)
}

fn missing(context: &Context<'_>, service: &Service, disagreement: &Disagreement<'_>) -> Option<Finding> {
    if selector(service).is_none() {
        return Some(context.finding(Kind::NoSelector, "it has no selector and no EndpointSlice: it has no backends"));
    }
    let evidence = match context.pods {
        Some([]) => return None,
        Some(_) if disagreement.absent.is_empty() => None,
        Some(_) => Some(format!("{} ready", counted(disagreement.absent.len(), "pod"))),
        None => Some("the pods could not be listed".into()),
    };
    let what = "it has a selector but no EndpointSlice: no controller creates one";
    Some(context.finding(Kind::SliceMissing, what).evidence(evidence))
}

fn not_updated(context: &Context<'_>, Disagreement { absent, gone }: &Disagreement<'_>) -> Option<Finding> {
    if absent.is_empty() && gone.is_empty() {
        return None;
    }
    let is_broken = context.usable().is_empty() || context.has_failed_connect();
    let severity = if is_broken { Severity::Critical } else { Severity::Warning };
    let absent_text = absent.iter().take(5).map(|pod| {
        let since = ready_since(pod).map(|at| format!(" since {}", context.ago(at))).unwrap_or_default();
        format!(
            "pod {} ({}) is ready{since} and no ready endpoint",
            shown(text(&pod.metadata.name)),
            shown(phase_and_ip(pod).1)
        )
    });
    let gone_text = gone
        .iter()
        .take(5)
        .map(|name| format!("endpoint of pod {}, which does not exist or is not the service's", shown(name)));
    let slices = context.slices.into_iter().flatten().take(5);
    let slices = slices
        .map(|slice| format!("slice {}: {}", shown(text(&slice.metadata.name)), context.written(&slice.metadata)));
    let what = match (absent.len(), gone.len()) {
        (0, gone) => format!("its EndpointSlices have not been updated: they name {} too many", counted(gone, "pod")),
        (absent, 0) => format!("its EndpointSlices have not been updated: {} missing", counted(absent, "ready pod")),
        (absent, gone) => format!(
            "its EndpointSlices have not been updated: {} missing, {} too many",
            counted(absent, "ready pod"),
            counted(gone, "pod")
        ),
    };
    let finding = context.finding(Kind::SliceNotUpdated, what).severity(severity);
    Some(finding.evidence(absent_text).evidence(gone_text).evidence(slices))
}

/// Ports of the service that no slice with endpoints has.
fn ports(context: &Context<'_>, service: &Service, slices: &[EndpointSlice]) -> Vec<Finding> {
    let serving: Vec<&EndpointSlice> =
        slices.iter().filter(|slice| list(&slice.endpoints).iter().any(is_ready)).collect();
    if serving.is_empty() {
        return Vec::new();
    }
    let has = |wanted: &ServicePort| {
        serving.iter().flat_map(|slice| list(&slice.ports)).any(|port| {
            text(&port.name) == text(&wanted.name)
                && protocol(&port.protocol) == protocol(&wanted.protocol)
                && port.port.is_some()
        })
    };
    let missing = list(&spec(service).ports).iter().filter(|port| !has(port));
    missing.map(|port| mismatch(context, port, &serving)).collect()
}

fn mismatch(context: &Context<'_>, port: &ServicePort, slices: &[&EndpointSlice]) -> Finding {
    let number = format!("{}/{}", port.port, protocol(&port.protocol));
    let name = if text(&port.name).is_empty() { number } else { format!("{} ({number})", shown(text(&port.name))) };
    let target = match &port.target_port {
        Some(IntOrString::String(target)) => Some(shown(target)),
        _ => None,
    };
    let what = match &target {
        Some(target) => {
            format!("its port {name} leads to the container port named {target}, and no slice has that port")
        }
        None => format!("none of its slices has its port {name}"),
    };
    let ports = slices.iter().flat_map(|slice| list(&slice.ports)).map(|port| {
        let number = port.port.map_or("no number".into(), |number| number.to_string());
        format!("{}={number}/{}", shown(text(&port.name)), protocol(&port.protocol))
    });
    let ports: BTreeSet<String> = ports.collect();
    let ports = if ports.is_empty() { "none at all".into() } else { some(ports) };
    let declared: BTreeSet<String> = context.pods.into_iter().flatten().flat_map(declared).collect();
    let declared = (context.pods.is_some_and(|pods| !pods.is_empty()))
        .then(|| if declared.is_empty() { "none with a name".into() } else { some(declared) });
    let case = if target.is_some() { "named" } else { "unnamed" };
    let values = [("target", target.as_deref().unwrap_or_default())];
    context
        .finding_in(Kind::PortMismatch, what, case, &values)
        .evidence([format!("ports of the slices: {ports}")])
        .evidence(declared.map(|declared| format!("ports of the pods' containers: {declared}")))
}

/// Returns the ports that a pod declares, such as `http=8080/TCP`.
fn declared(pod: &Pod) -> impl Iterator<Item = String> {
    let ports = pod.spec.iter().flat_map(|spec| &spec.containers).flat_map(|container| list(&container.ports));
    let named = ports.filter_map(|port| Some((port, port.name.as_deref().filter(|name| !name.is_empty())?)));
    named.map(|(port, name)| format!("{}={}/{}", shown(name), port.container_port, protocol(&port.protocol)))
}
