//! Objects as commands show them: the fields that explain why a service works or does not, and kinds that the source
//! never reads. This module only decodes; `diagnose` draws the conclusions.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::objects::{Conditions, EndpointPort, LastWrite, ListMetadata, last_write, list};
use super::translate;
use crate::null::null_is_default;
use crate::time;

/// The response to a list request.
#[derive(Clone, Debug, Deserialize)]
pub struct Items<T> {
    /// `metadata`
    #[serde(default, deserialize_with = "null_is_default")]
    pub metadata: ListMetadata,
    /// `items`
    #[serde(default = "Vec::new", deserialize_with = "list", bound(deserialize = "T: Deserialize<'de>"))]
    pub items: Vec<T>,
}

/// `metadata` of an object, with all labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// `name`
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `namespace`
    #[serde(deserialize_with = "null_is_default")]
    pub namespace: String,
    /// `uid`
    #[serde(deserialize_with = "null_is_default")]
    pub uid: String,
    /// `resourceVersion`
    #[serde(deserialize_with = "null_is_default")]
    pub resource_version: String,
    /// `creationTimestamp`, in seconds since 1970.
    #[serde(rename = "creationTimestamp", deserialize_with = "moment")]
    pub created: Option<u64>,
    /// `deletionTimestamp`, in seconds since 1970; present while the object is being deleted.
    #[serde(rename = "deletionTimestamp", deserialize_with = "moment")]
    pub deleted: Option<u64>,
    /// `labels`
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    /// `managedFields`, reduced to the latest write.
    #[serde(rename = "managedFields", deserialize_with = "last_write")]
    pub last_write: LastWrite,
}

/// `core/v1` Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    /// `metadata`
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// `spec`
    #[serde(deserialize_with = "null_is_default")]
    pub spec: ServiceSpec,
    /// `status`
    #[serde(deserialize_with = "null_is_default")]
    pub status: ServiceStatus,
}

/// `spec` of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `type`; empty is `ClusterIP`.
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub kind: String,
    /// `clusterIP`
    #[serde(rename = "clusterIP", deserialize_with = "null_is_default")]
    pub cluster_ip: String,
    /// `externalName`
    #[serde(deserialize_with = "null_is_default")]
    pub external_name: String,
    /// `selector`
    #[serde(deserialize_with = "null_is_default")]
    pub selector: BTreeMap<String, String>,
    /// `ports`
    #[serde(deserialize_with = "list")]
    pub ports: Vec<ServicePort>,
    /// `internalTrafficPolicy`
    #[serde(deserialize_with = "null_is_default")]
    pub internal_traffic_policy: String,
    /// `externalTrafficPolicy`
    #[serde(deserialize_with = "null_is_default")]
    pub external_traffic_policy: String,
    /// `loadBalancerClass`
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer_class: String,
}

/// `spec.ports[]` of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// `name`
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `protocol`; empty is `TCP`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: String,
    /// `port`
    #[serde(deserialize_with = "null_is_default")]
    pub port: u16,
    /// `targetPort`
    pub target_port: Option<TargetPort>,
}

/// `targetPort`: a number, or the name of a container's port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum TargetPort {
    /// `8080`
    Number(u16),
    /// `http`
    Name(String),
}

/// `status` of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    /// `loadBalancer`
    #[serde(deserialize_with = "null_is_default")]
    pub load_balancer: LoadBalancer,
}

/// `status.loadBalancer`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancer {
    /// `ingress`
    #[serde(deserialize_with = "list")]
    pub ingress: Vec<Ingress>,
}

/// `status.loadBalancer.ingress[]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Ingress {
    /// `ip`
    #[serde(deserialize_with = "null_is_default")]
    pub ip: String,
    /// `hostname`
    #[serde(deserialize_with = "null_is_default")]
    pub hostname: String,
}

/// `discovery.k8s.io/v1` EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Slice {
    /// `metadata`
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// `addressType`
    #[serde(rename = "addressType", deserialize_with = "null_is_default")]
    pub address_type: String,
    /// `endpoints`
    #[serde(deserialize_with = "list")]
    pub endpoints: Vec<Endpoint>,
    /// `ports`
    #[serde(deserialize_with = "list")]
    pub ports: Vec<EndpointPort>,
}

impl Slice {
    /// Whether the daemon uses this slice, by the same rules as [`translate::slice`]. The others are not meant for
    /// proxies.
    pub fn is_for_proxies(&self) -> bool {
        let has = |label: &str| self.metadata.labels.contains_key(label);
        has("kubernetes.io/service-name")
            && !has("service.kubernetes.io/headless")
            && translate::family(&self.address_type).is_some()
    }
}

/// `endpoints[]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Endpoint {
    /// `addresses`
    #[serde(deserialize_with = "list")]
    pub addresses: Vec<String>,
    /// `conditions`
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Conditions,
    /// `nodeName`
    #[serde(deserialize_with = "null_is_default")]
    pub node_name: String,
    /// `targetRef`
    #[serde(deserialize_with = "null_is_default")]
    pub target_ref: Reference,
}

/// `targetRef`, `involvedObject`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Reference {
    /// `kind`
    #[serde(deserialize_with = "null_is_default")]
    pub kind: String,
    /// `name`
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
}

/// `core/v1` Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// `metadata`
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
    /// `spec`
    #[serde(deserialize_with = "null_is_default")]
    pub spec: PodSpec,
    /// `status`
    #[serde(deserialize_with = "null_is_default")]
    pub status: PodStatus,
}

/// `spec` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// `nodeName`
    #[serde(deserialize_with = "null_is_default")]
    pub node_name: String,
    /// `containers`
    #[serde(deserialize_with = "list")]
    pub containers: Vec<Container>,
}

/// `spec.containers[]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Container {
    /// `ports`
    #[serde(deserialize_with = "list")]
    pub ports: Vec<ContainerPort>,
}

/// `spec.containers[].ports[]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerPort {
    /// `name`
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `containerPort`
    #[serde(deserialize_with = "null_is_default")]
    pub container_port: u16,
    /// `protocol`; empty is `TCP`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: String,
}

/// `status` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodStatus {
    /// `phase`
    #[serde(deserialize_with = "null_is_default")]
    pub phase: String,
    /// `podIP`
    #[serde(rename = "podIP", deserialize_with = "null_is_default")]
    pub pod_ip: String,
    /// `conditions`
    #[serde(deserialize_with = "list")]
    pub conditions: Vec<Condition>,
}

/// `status.conditions[]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    /// `type`
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub kind: String,
    /// `status`: `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "null_is_default")]
    pub status: String,
    /// `message`
    #[serde(deserialize_with = "null_is_default")]
    pub message: String,
    /// `lastTransitionTime`, in seconds since 1970.
    #[serde(rename = "lastTransitionTime", deserialize_with = "moment")]
    pub since: Option<u64>,
}

impl Pod {
    /// The condition `Ready`.
    pub fn readiness(&self) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == "Ready")
    }

    /// Whether the pod should receive new connections.
    pub fn is_ready(&self) -> bool {
        self.metadata.deleted.is_none() && self.readiness().is_some_and(|ready| ready.status == "True")
    }
}

/// `core/v1` Event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Event {
    /// `reason`
    #[serde(deserialize_with = "null_is_default")]
    pub reason: String,
    /// `message`
    #[serde(deserialize_with = "null_is_default")]
    pub message: String,
    /// `type`: `Normal` or `Warning`.
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub kind: String,
    /// `count`
    #[serde(deserialize_with = "null_is_default")]
    pub count: u64,
    /// `lastTimestamp`, in seconds since 1970.
    #[serde(rename = "lastTimestamp", deserialize_with = "moment")]
    pub last: Option<u64>,
    /// `eventTime`, in seconds since 1970; used by events without a `lastTimestamp`.
    #[serde(deserialize_with = "moment")]
    pub event_time: Option<u64>,
    /// `source`
    #[serde(deserialize_with = "null_is_default")]
    pub source: EventSource,
    /// `reportingComponent`
    #[serde(deserialize_with = "null_is_default")]
    pub reporting_component: String,
    /// `metadata`
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
}

/// `source` of an Event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EventSource {
    /// `component`
    #[serde(deserialize_with = "null_is_default")]
    pub component: String,
}

impl Event {
    /// The time of the last occurrence, in seconds since 1970.
    pub fn at(&self) -> Option<u64> {
        self.last.or(self.event_time).or(self.metadata.created)
    }

    /// The component that reported the event.
    pub fn component(&self) -> &str {
        if self.source.component.is_empty() { &self.reporting_component } else { &self.source.component }
    }
}

/// `core/v1` Node; only its existence matters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// `metadata`
    #[serde(deserialize_with = "null_is_default")]
    pub metadata: Metadata,
}

fn moment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.as_deref().and_then(time::seconds))
}
