//! Slim Kubernetes types with only the fields that nodelb reads; the decoder skips all others. As in Kubernetes, `null`
//! is equivalent to a missing field.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use compact_str::CompactString;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::health_check;
use crate::null::null_is_default;
use crate::time;

/// An event of a watch, as the server sends it.
#[derive(Deserialize)]
pub struct Envelope<'a, O> {
    #[serde(borrow, rename = "type")]
    pub kind: Cow<'a, str>,
    pub object: O,
}

/// Defines types of Kubernetes: `field: Type as "function that decodes it",`, or without a function.
macro_rules! objects {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$meta:meta])* $field:ident: $type:ty $(as $decoded:literal)?,)+
    })+) => { $(
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $name {
            $($(#[$meta])* $(#[serde(deserialize_with = $decoded)])? pub $field: $type,)+
        }
    )+ };
}

objects! {
    /// `core/v1` Service.
    Service {
        metadata: Metadata as "null_is_default",
        spec: ServiceSpec as "null_is_default",
        status: ServiceStatus as "null_is_default",
    }

    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice {
        metadata: Metadata as "null_is_default",
        address_type: String as "null_is_default",
        endpoints: Vec<Endpoint> as "list",
        ports: Vec<EndpointPort> as "list",
    }

    /// `core/v1` Node.
    Node {
        metadata: Metadata as "null_is_default",
        spec: NodeSpec as "null_is_default",
        status: NodeStatus as "null_is_default",
    }

    NodeSpec {
        taints: Vec<Taint> as "list",
    }

    Taint {
        key: String as "null_is_default",
    }

    NodeStatus {
        addresses: Vec<NodeAddress> as "list",
    }

    /// `status.addresses[]`
    NodeAddress {
        #[serde(rename = "type")]
        kind: String as "null_is_default",
        address: String as "null_is_default",
    }

    Metadata {
        name: CompactString as "null_is_default",
        /// `namespace`; empty if missing.
        namespace: CompactString as "null_is_default",
        resource_version: CompactString as "null_is_default",
        /// `generation`; 0 if missing.
        generation: u64 as "null_is_default",
        /// `creationTimestamp`, RFC 3339.
        creation_timestamp: Option<CompactString>,
        /// `deletionTimestamp`; present while the object waits for its finalizers.
        deletion_timestamp: Option<CompactString>,
        labels: Labels as "null_is_default",
        annotations: Annotations as "null_is_default",
        /// `uid`; empty if missing.
        uid: CompactString as "null_is_default",
        /// `managedFields`, reduced to the latest write.
        #[serde(rename = "managedFields")]
        last_write: LastWrite as "last_write",
    }

    ServiceSpec {
        #[serde(rename = "type")]
        kind: CompactString as "null_is_default",
        /// `clusterIP`; equal to the first of `clusterIPs` if both are set.
        #[serde(rename = "clusterIP")]
        cluster_ip: CompactString as "null_is_default",
        #[serde(rename = "clusterIPs")]
        cluster_ips: Vec<CompactString> as "list",
        #[serde(rename = "externalIPs")]
        external_ips: Vec<String> as "list",
        load_balancer_source_ranges: Vec<String> as "list",
        /// `loadBalancerClass`; empty if missing.
        load_balancer_class: CompactString as "null_is_default",
        ports: Vec<ServicePort> as "list",
        session_affinity: CompactString as "null_is_default",
        session_affinity_config: SessionAffinityConfig as "null_is_default",
        internal_traffic_policy: CompactString as "null_is_default",
        external_traffic_policy: CompactString as "null_is_default",
        health_check_node_port: u16 as "null_is_default",
    }

    /// `spec.ports[]` of a Service.
    ServicePort {
        name: CompactString as "null_is_default",
        protocol: CompactString as "null_is_default",
        port: u16 as "null_is_default",
        node_port: u16 as "null_is_default",
        /// `targetPort`; `None` for a name, which each slice translates.
        target_port: Option<u16> as "number",
    }

    SessionAffinityConfig {
        #[serde(rename = "clientIP")]
        client_ip: ClientIpConfig as "null_is_default",
    }

    ClientIpConfig {
        timeout_seconds: Option<u32>,
    }

    ServiceStatus {
        load_balancer: LoadBalancerStatus as "null_is_default",
    }

    LoadBalancerStatus {
        ingress: Vec<LoadBalancerIngress> as "list",
    }

    /// `status.loadBalancer.ingress[]`, without the hostname, which nodelb does not use.
    LoadBalancerIngress {
        ip: String as "null_is_default",
        ip_mode: Option<String>,
    }

    /// `endpoints[]`. Strings of up to 24 bytes need no allocation: a slice may have a thousand endpoints.
    Endpoint {
        /// The first of `addresses`; the others are ignored.
        #[serde(rename = "addresses")]
        address: CompactString as "first",
        conditions: Conditions as "null_is_default",
        node_name: Option<CompactString>,
        zone: Option<CompactString>,
        /// `hints`; boxed because most endpoints have none.
        hints: Option<Box<EndpointHints>>,
    }

    EndpointHints {
        for_zones: Vec<Named> as "list",
        for_nodes: Vec<Named> as "list",
    }

    Named {
        name: String as "null_is_default",
    }

    /// `ports[]` of an EndpointSlice.
    EndpointPort {
        /// `name`; the apiserver replaces a missing name with an empty one.
        name: CompactString as "null_is_default",
        /// `protocol`; empty is `TCP`.
        protocol: CompactString as "null_is_default",
        port: Option<u16>,
    }

    ListMetadata {
        resource_version: String as "null_is_default",
        /// `continue`; if it is not empty, the list has more pages.
        #[serde(rename = "continue")]
        next: String as "null_is_default",
    }
}

/// The annotations that nodelb reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// The time of the change that caused this version of an EndpointSlice, RFC 3339:
    /// `endpoints.kubernetes.io/last-change-trigger-time`.
    pub last_change: Option<String>,
    /// `true` in the bookmark at the end of a streaming list: `k8s.io/initial-events-end`.
    pub initial_events_end: Option<String>,
    /// Each annotation that begins with [`health_check::ANNOTATION`], without this beginning.
    pub health_check: BTreeMap<String, String>,
    /// How packets of clients outside reach backends: [`FORWARD`].
    pub forward: Option<String>,
}

/// The annotation with a value of [`nodelb_core::model::forward::Forward`].
pub const FORWARD: &str = "nodelb.io/forward";

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnnotationsVisitor;

        impl<'de> Visitor<'de> for AnnotationsVisitor {
            type Value = Annotations;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Annotations, A::Error> {
                let mut found = Annotations::default();
                while let Some(name) = map.next_key::<CompactString>()? {
                    if name == "endpoints.kubernetes.io/last-change-trigger-time" {
                        found.last_change = map.next_value()?;
                    } else if name == "k8s.io/initial-events-end" {
                        found.initial_events_end = map.next_value()?;
                    } else if name == FORWARD {
                        found.forward = map.next_value()?;
                    } else if let Some(suffix) = name.strip_prefix(health_check::ANNOTATION) {
                        let value: Option<String> = map.next_value()?;
                        found.health_check.insert(suffix.to_owned(), value.unwrap_or_default());
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(found)
            }
        }

        deserializer.deserialize_map(AnnotationsVisitor)
    }
}

/// The latest entry of an object's `managedFields`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastWrite {
    pub manager: CompactString,
    /// `time`, in seconds since 1970.
    pub at: Option<u64>,
}

/// One entry of `managedFields`, without the field set.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ManagedField {
    #[serde(deserialize_with = "null_is_default")]
    manager: CompactString,
    #[serde(deserialize_with = "null_is_default")]
    time: CompactString,
}

/// Decodes `managedFields`. If several writes have the same time (in seconds), the last one in the list is used.
pub fn last_write<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LastWrite, D::Error> {
    let fields: Vec<ManagedField> = list(deserializer)?;
    let writes = fields.into_iter().map(|field| LastWrite { at: time::seconds(&field.time), manager: field.manager });
    Ok(writes.max_by_key(|write| write.at).unwrap_or_default())
}

/// The labels that nodelb reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// The service that an EndpointSlice belongs to.
    #[serde(rename = "kubernetes.io/service-name")]
    pub service_name: Option<CompactString>,
    /// If present with any value, another proxy serves the service.
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub proxy_name: Option<CompactString>,
    /// If present with any value, the slice is not for proxies.
    #[serde(rename = "service.kubernetes.io/headless")]
    pub headless: Option<CompactString>,
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub zone: Option<CompactString>,
}

/// The number of an IntOrString; `None` for a string.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum IntOrString {
        Int(u16),
        Other(IgnoredAny),
    }

    Ok(match IntOrString::deserialize(deserializer)? {
        IntOrString::Int(number) => Some(number),
        IntOrString::Other(_) => None,
    })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Conditions {
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
}

/// The maximum number of items in a list: ten times the apiserver's limit for the lists in these types. Memory use must
/// not depend on the content of a file.
pub const MAX_ITEMS: usize = 10_000;

/// Decodes a list of at most [`MAX_ITEMS`] items; `null` is an empty list.
pub(crate) fn list<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    null_is_default::<List<T, MAX_ITEMS>, D>(deserializer).map(|list| list.0)
}

/// Decodes the first string of a list; an empty list or `null` yields an empty string.
fn first<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CompactString, D::Error> {
    #[derive(Default)]
    struct First(CompactString);

    impl<'de> Deserialize<'de> for First {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_seq(FirstVisitor)
        }
    }

    struct FirstVisitor;

    impl<'de> Visitor<'de> for FirstVisitor {
        type Value = First;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of texts")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<First, A::Error> {
            let first = items.next_element()?.unwrap_or_default();
            while items.next_element::<IgnoredAny>()?.is_some() {}
            Ok(First(first))
        }
    }

    null_is_default::<First, D>(deserializer).map(|first| first.0)
}

/// A list that fails to decode if it has more than `MAX` items.
pub struct List<T, const MAX: usize>(pub Vec<T>);

impl<T, const MAX: usize> Default for List<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for List<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = List<T, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::custom(format_args!("a list of more than {MAX} items; split it")));
            }
            list.push(item);
        }
        Ok(List(list))
    }
}
