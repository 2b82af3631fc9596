//! The backends as Kubernetes has them: the pods that the selector matches, whether they are ready, and the
//! EndpointSlices: whether they exist, what emptied them, whether they follow the pods and have the ports.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::context::{Context, critical_if, is_pod_of, named, protocol, quoted, some};
use crate::diagnose::objects::{
    conditions, is_pod_ready, is_ready, last_write, list, phase_and_ip, pod_name, readiness, ready_since, seconds,
    selector, spec, text,
};
use crate::diagnose::rows;
use crate::diagnose::suggest::{Differs, similar_pods};
use nodelb_core::text::counted;
use nodelb_kube::api::translate;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding};

/// Time in seconds that a controller may take to follow a pod.
const TIMEOUT: u64 = 10;

/// Returns the pods that can be endpoints. A pod that has ended cannot, whatever its labels.
fn living<'f>(context: &Context<'f>) -> Option<Vec<&'f Pod>> {
    let has_ended = |pod: &&Pod| matches!(phase_and_ip(pod).0, "Succeeded" | "Failed");
    Some(context.pods?.iter().filter(|pod| !has_ended(pod)).collect())
}

pub(super) fn selects_nothing(context: &Context<'_>, service: &Service) -> Option<Finding> {
    let selector = selector(service).filter(|_| living(context).is_some_and(|pods| pods.is_empty()))?;
    let wanted = some(selector.iter().map(|(label, value)| format!("{label}={value}")));
    let what = format!("its selector {wanted} matches no pod in namespace {}", context.facts.service.namespace);
    let near = similar_pods(selector, context.cluster.map_or(&[], |cluster| &cluster.others));
    let evidence = near.iter().map(|(pod, differing)| {
        let each = differing.iter().map(|Differs { label, wanted, has }| match has {
            Some(has) => format!("{label}={has} where the selector wants {wanted}"),
            None => format!("no label {label} (the selector wants {wanted})"),
        });
        format!("pod {} has {}", named(&pod.metadata), some(each))
    });
    let ended = context.pods.map_or(0, <[Pod]>::len);
    let ended = (ended > 0).then(|| format!("{} with these labels, all completed", counted(ended, "pod")));
    let label = near.first().and_then(|(_, differing)| Some((differing.first()?.label, differing.first()?.has?)));
    let (case, values) = match label {
        Some((label, value)) => ("label", &[("label", label), ("value", value)][..]),
        None => ("", &[][..]),
    };
    let finding = context.finding_in(Kind::SelectorMatchesNothing, what, case, values);
    Some(finding.severity(critical_if(context.usable().is_empty())).evidence(evidence).evidence(ended))
}

/// There are endpoints, but none that new connections can reach.
pub(super) fn not_ready(context: &Context<'_>) -> Option<Finding> {
    let pods = living(context).unwrap_or_default();
    let waiting: Vec<&Endpoint> = context.endpoints().filter(|endpoint| !is_ready(endpoint)).collect();
    let is_empty = waiting.is_empty() && pods.is_empty();
    // Another rule covers pods that are ready while their endpoints are not.
    if !context.usable().is_empty() || is_empty || pods.iter().any(|pod| is_pod_ready(pod)) {
        return None;
    }
    let number = waiting.len().max(pods.len());
    let what = format!("none of its {} is ready", counted(number, if pods.is_empty() { "endpoint" } else { "pod" }));
    let of_pods = pods.iter().map(|pod| pod_text(context, pod));
    let others = waiting.iter().filter(|endpoint| !pods.iter().any(|pod| is_pod_of(endpoint, pod)));
    let evidence = of_pods.chain(others.map(|endpoint| endpoint_text(endpoint))).take(10);
    let first = waiting.iter().find_map(|endpoint| pod_name(endpoint));
    let name = pods.first().map(|pod| named(&pod.metadata)).or(first);
    let case = if name.is_some() { "" } else { "no-pod" };
    let finding = context.finding_in(Kind::NotReady, what, case, &[("pod", name.unwrap_or_default())]);
    Some(finding.evidence(evidence))
}

fn pod_text(context: &Context<'_>, pod: &Pod) -> String {
    let (name, phase) = (named(&pod.metadata), phase_and_ip(pod).0);
    match readiness(pod) {
        _ if pod.metadata.deletion_timestamp.is_some() => format!("pod {name} is terminating"),
        Some(ready) if ready.status != "True" => {
            let why = match text(&ready.message) {
                "" => String::new(),
                why => format!(": {}", quoted(why)),
            };
            format!("pod {name} ({phase}) is not ready{}{why}", since(context, pod))
        }
        Some(_) => format!("pod {name} is ready"),
        None => format!("pod {name} is {phase} and has no Ready condition"),
    }
}

/// Returns since when a pod is ready or not, if that is known.
fn since(context: &Context<'_>, pod: &Pod) -> String {
    ready_since(pod).map(|at| format!(" since {}", context.ago(at))).unwrap_or_default()
}

fn endpoint_text(endpoint: &Endpoint) -> String {
    let address = endpoint.addresses.first().map_or("", String::as_str);
    let target = endpoint.target_ref.as_ref().filter(|target| !text(&target.name).is_empty());
    let target = target.map(|target| format!(" ({} {})", text(&target.kind), text(&target.name))).unwrap_or_default();
    let state = match (conditions(endpoint).terminating, conditions(endpoint).serving) {
        (Some(true), Some(true)) => "is terminating and still serving",
        (Some(true), _) => "is terminating",
        _ => "is not ready",
    };
    format!("endpoint {address}{target} {state}")
}

/// Returns the number of endpoints in each condition.
pub(super) fn by_condition(context: &Context<'_>) -> Option<Finding> {
    let (ready, others): (Vec<&Endpoint>, Vec<&Endpoint>) = context.endpoints().partition(|it| is_ready(it));
    let number = ready.len() + others.len();
    if number == 0 {
        return None;
    }
    let slices = counted(context.slices?.len(), "slice");
    let what = format!("{} in {slices}: {} ready", counted(number, "endpoint"), ready.len());
    let evidence = others.into_iter().take(10).map(endpoint_text);
    Some(context.finding(Kind::Endpoints, what).evidence(evidence).evidence(context.slices_written()))
}

/// The slices as a whole: they are unused, missing, emptied, or do not follow the pods.
pub(super) fn slices(context: &Context<'_>, service: &Service) -> Option<Finding> {
    let slices = context.slices?;
    let disagreement = Disagreement::new(context);
    let unused = unused(context, slices, &disagreement);
    if !unused.is_empty() {
        Some(left_out(context, &unused))
    } else if slices.is_empty() && context.cluster?.left_out.is_empty() {
        missing(context, service, &disagreement)
    } else if is_emptied(service, slices, context, &disagreement) {
        Some(emptied(context, service, slices))
    } else {
        not_updated(context, &disagreement)
    }
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
        // Without any pod the selector is the problem, and another writer of the slices may have better information.
        let pods = context.pods.unwrap_or_default();
        let ready = || context.endpoints().filter(|endpoint| is_ready(endpoint));
        let is_listed = |pod: &Pod| ready().any(|endpoint| is_pod_of(endpoint, pod));
        let is_settled =
            |pod: &Pod| ready_since(pod).is_none_or(|since| context.facts.now.saturating_sub(since) >= TIMEOUT);
        let absent = pods.iter().filter(|pod| is_pod_ready(pod) && is_settled(pod) && !is_listed(pod)).collect();
        let is_gone = |name: &&str| !pods.is_empty() && !pods.iter().any(|pod| named(&pod.metadata) == *name);
        Self { absent, gone: ready().filter_map(pod_name).filter(is_gone).collect() }
    }
}

/// Returns the slices that no proxy uses, and that have ready endpoints which the others lack.
fn unused<'f>(
    context: &Context<'f>,
    slices: &[EndpointSlice],
    disagreement: &Disagreement<'_>,
) -> Vec<&'f EndpointSlice> {
    let is_missed = |endpoint: &Endpoint| {
        is_ready(endpoint) && (slices.is_empty() || disagreement.absent.iter().any(|pod| is_pod_of(endpoint, pod)))
    };
    let all = context.cluster.into_iter().flat_map(|cluster| &cluster.left_out);
    all.filter(|slice| list(&slice.endpoints).iter().any(is_missed)).collect()
}

/// The controller of Kubernetes removes the label of headless Services only when it writes a slice for another reason.
fn left_out(context: &Context<'_>, slices: &[&EndpointSlice]) -> Finding {
    let names = some(slices.iter().map(|slice| named(&slice.metadata)));
    let why = slices.iter().find_map(|slice| translate::left_out(slice)).unwrap_or_default();
    let objects = if slices.len() == 1 { "EndpointSlice" } else { "EndpointSlices" };
    let what = format!("no proxy uses its {objects} {names}: {why}");
    let case = if slices.iter().any(|slice| translate::is_labelled_headless(slice)) { "label" } else { "type" };
    let is_broken = context.usable().is_empty() && !context.is_held() || context.has_failed_connect();
    let evidence = slices.iter().take(5).map(|slice| {
        let ready = list(&slice.endpoints).iter().filter(|endpoint| is_ready(endpoint)).count();
        let (name, ready) = (named(&slice.metadata), counted(ready, "ready endpoint"));
        format!("slice {name}: {ready}, {}", context.written(&slice.metadata))
    });
    let finding = context.finding_in(Kind::SliceLeftOut, what, case, &[]);
    finding.severity(critical_if(is_broken)).evidence(evidence)
}

/// Whether the endpoints were removed, and are not merely absent because there is no pod for them.
fn is_emptied(
    service: &Service,
    slices: &[EndpointSlice],
    context: &Context<'_>,
    disagreement: &Disagreement<'_>,
) -> bool {
    if slices.is_empty() || slices.iter().any(|slice| !list(&slice.endpoints).is_empty()) {
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

fn emptied(context: &Context<'_>, service: &Service, slices: &[EndpointSlice]) -> Finding {
    let names = some(slices.iter().map(|slice| named(&slice.metadata)));
    let what = match slices.len() {
        _ if context.pods.is_none() && selector(service).is_some() => format!(
            "its EndpointSlice {names} has no endpoints: a client emptied it, or no ready pod matches its selector; \
             use a kubeconfig that may list pods to find out"
        ),
        1 => format!("its EndpointSlice {names} has been emptied: it has no endpoints"),
        _ => format!("its EndpointSlices {names} have been emptied: none has endpoints"),
    };
    let history = context.daemon.into_iter().flat_map(|daemon| &daemon.history);
    let removals = history.rev().filter(|row| rows::takes_away(row)).take(3).map(rows::step);
    let ready = context.pods.into_iter().flatten().filter(|pod| is_pod_ready(pod)).count();
    let ready = (ready > 0).then(|| format!("{} would be ready", counted(ready, "pod")));
    let held = context.is_held().then_some("nodelb holds the last known backends meanwhile");
    let finding = context.finding(Kind::SliceEmptied, what).severity(critical_if(!context.is_held()));
    finding.evidence(context.slices_written()).evidence(removals).evidence(ready).evidence(held)
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
    let difference = match (absent.len(), gone.len()) {
        (0, 0) => return None,
        (0, gone) => format!("they name {} too many", counted(gone, "pod")),
        (absent, 0) => format!("{} missing", counted(absent, "ready pod")),
        (absent, gone) => format!("{} missing, {} too many", counted(absent, "ready pod"), counted(gone, "pod")),
    };
    let what = format!("its EndpointSlices have not been updated: {difference}");
    let absent = absent.iter().take(5).map(|pod| {
        let (name, ip) = (named(&pod.metadata), phase_and_ip(pod).1);
        format!("pod {name} ({ip}) is ready{} and no ready endpoint", since(context, pod))
    });
    let gone = gone.iter().take(5);
    let gone = gone.map(|name| format!("endpoint of pod {name}, which does not exist or is not the service's"));
    let is_broken = context.usable().is_empty() || context.has_failed_connect();
    let finding = context.finding(Kind::SliceNotUpdated, what).severity(critical_if(is_broken));
    Some(finding.evidence(absent).evidence(gone).evidence(context.slices_written()))
}

/// Ports of the service that no slice with endpoints has.
pub(super) fn ports(context: &Context<'_>, service: &Service) -> Vec<Finding> {
    let slices = context.slices.unwrap_or_default().iter();
    let serving: Vec<_> = slices.filter(|slice| list(&slice.endpoints).iter().any(is_ready)).collect();
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
    let name = if text(&port.name).is_empty() { number } else { format!("{} ({number})", text(&port.name)) };
    let (what, case, target) = match &port.target_port {
        Some(IntOrString::String(target)) => {
            let what = format!("leads to the container port named {target}, and no slice has that port");
            (format!("its port {name} {what}"), "named", target.as_str())
        }
        _ => (format!("none of its slices has its port {name}"), "unnamed", ""),
    };
    let ports = slices.iter().flat_map(|slice| list(&slice.ports)).map(|port| {
        let number = port.port.map_or("no number".into(), |number| number.to_string());
        format!("{}={number}/{}", text(&port.name), protocol(&port.protocol))
    });
    let or = |ports: BTreeSet<String>, none: &str| if ports.is_empty() { none.to_owned() } else { some(ports) };
    let ports = format!("ports of the slices: {}", or(ports.collect(), "none at all"));
    let pods = context.pods.filter(|pods| !pods.is_empty());
    let declared = pods.map(|pods| {
        let declared = or(pods.iter().flat_map(declared).collect(), "none with a name");
        format!("ports of the pods' containers: {declared}")
    });
    let finding = context.finding_in(Kind::PortMismatch, what, case, &[("target", target)]);
    finding.evidence([ports]).evidence(declared)
}

/// Returns the ports that a pod declares, such as `http=8080/TCP`.
fn declared(pod: &Pod) -> impl Iterator<Item = String> {
    let ports = pod.spec.iter().flat_map(|spec| &spec.containers).flat_map(|container| list(&container.ports));
    let named = ports.filter_map(|port| Some((port, port.name.as_deref().filter(|name| !name.is_empty())?)));
    named.map(|(port, name)| format!("{name}={}/{}", port.container_port, protocol(&port.protocol)))
}
