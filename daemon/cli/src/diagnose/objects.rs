//! What the rules read of Kubernetes objects: a missing field is the same as an empty one, and a time is in seconds
//! since 1970.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{Event, Pod, PodCondition, Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use nodelb_core::model::addr::Addr;

/// Returns a text, empty if it is not set.
pub(super) fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

/// Returns an IP address as the daemon writes it. Kubernetes accepts several texts for one address.
pub(super) fn canonical(address: &str) -> Cow<'_, str> {
    address.parse::<Addr>().map_or(Cow::Borrowed(address), |addr| Cow::Owned(addr.to_string()))
}

/// Returns a list, empty if it is not set.
pub(super) fn list<T>(field: &Option<Vec<T>>) -> &[T] {
    field.as_deref().unwrap_or_default()
}

pub(super) fn seconds(time: &Option<Time>) -> Option<u64> {
    time.as_ref().and_then(|time| since_1970(time.0))
}

fn since_1970(time: Timestamp) -> Option<u64> {
    time.as_second().try_into().ok()
}

/// Returns the latest entry of `managedFields`. If several writes have the same time, the last one in the list is used.
pub(super) fn last_write(metadata: &ObjectMeta) -> Option<&ManagedFieldsEntry> {
    list(&metadata.managed_fields).iter().max_by_key(|entry| seconds(&entry.time))
}

pub(super) fn spec(service: &Service) -> &ServiceSpec {
    static NONE: LazyLock<ServiceSpec> = LazyLock::new(ServiceSpec::default);
    service.spec.as_ref().unwrap_or(&NONE)
}

/// Returns the selector of a Service; `None` if it selects no pods.
pub(super) fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    spec(service).selector.as_ref().filter(|selector| !selector.is_empty())
}

pub(super) fn is_for_proxies(service: &Service) -> bool {
    text(&spec(service).type_) != "ExternalName" && !matches!(text(&spec(service).cluster_ip), "" | "None")
}

pub(super) fn label<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    metadata.labels.as_ref()?.get(key).map(String::as_str)
}

pub(super) fn conditions(endpoint: &Endpoint) -> EndpointConditions {
    endpoint.conditions.clone().unwrap_or_default()
}

/// Whether an endpoint is ready; a missing condition means true.
pub(super) fn is_ready(endpoint: &Endpoint) -> bool {
    conditions(endpoint).ready.unwrap_or(true)
}

pub(super) fn pod_name(endpoint: &Endpoint) -> Option<&str> {
    endpoint.target_ref.as_ref().filter(|target| text(&target.kind) == "Pod")?.name.as_deref()
}

pub(super) fn phase_and_ip(pod: &Pod) -> (&str, &str) {
    pod.status.as_ref().map_or(("", ""), |status| (text(&status.phase), text(&status.pod_ip)))
}

pub(super) fn readiness(pod: &Pod) -> Option<&PodCondition> {
    list(&pod.status.as_ref()?.conditions).iter().find(|condition| condition.type_ == "Ready")
}

/// Returns the time at which the condition `Ready` of a pod changed.
pub(super) fn ready_since(pod: &Pod) -> Option<u64> {
    seconds(&readiness(pod)?.last_transition_time)
}

/// Whether a pod should receive new connections.
pub(super) fn is_pod_ready(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && readiness(pod).is_some_and(|ready| ready.status == "True")
}

pub(super) fn last_seen(event: &Event) -> Option<u64> {
    let first = seconds(&event.last_timestamp).or_else(|| since_1970(event.event_time.as_ref()?.0));
    first.or_else(|| seconds(&event.metadata.creation_timestamp))
}

pub(super) fn component(event: &Event) -> &str {
    let source = event.source.as_ref().map_or("", |source| text(&source.component));
    if source.is_empty() { text(&event.reporting_component) } else { source }
}
