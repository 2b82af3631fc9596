//! The service model of nodelb: frontends, backends and the policies between them, without Kubernetes or kernel types.
//! Sources create these objects; nothing below the table changes them.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumIter, VariantNames};

use crate::model::addr::{Addr, Family, L4Addr, Protocol};
use crate::model::forward::Forward;
use crate::model::health_check::HealthCheck;

/// The full name of a service. Always compared as a pair of strings, never joined into one string or used as a prefix.
/// Copies share one allocation, because each service has its name in several places.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName(Arc<FullName>);

/// The name of an object in its namespace. Objects with the same name in different namespaces are different objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FullName {
    /// The Kubernetes namespace, or any grouping that the operator chooses in files.
    pub namespace: Arc<str>,
    /// The name, unique in the namespace; that of a slice in the namespace and source.
    pub name: Arc<str>,
}

/// The full name of a slice. Its namespace is also the namespace of its service.
pub type SliceName = FullName;

impl FullName {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl Ord for FullName {
    /// Compares the parts one after the other. Most names in a search are of few namespaces, which share their strings.
    fn cmp(&self, other: &Self) -> Ordering {
        let is_same = Arc::ptr_eq(&self.namespace, &other.namespace);
        let by_namespace = if is_same { Ordering::Equal } else { self.namespace.cmp(&other.namespace) };
        by_namespace.then_with(|| self.name.cmp(&other.name))
    }
}

impl PartialOrd for FullName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Deref for ServiceName {
    type Target = FullName;

    fn deref(&self) -> &FullName {
        &self.0
    }
}

impl ServiceName {
    /// Creates a name from these two parts without validation, for callers that received them as two fields.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self::of(namespace.into(), name.into())
    }

    /// [`Self::new`] for parts that other names share.
    pub fn of(namespace: Arc<str>, name: Arc<str>) -> Self {
        Self(Arc::new(FullName { namespace, name }))
    }

    /// Where the name is in memory. Clones of a name have the same address; different names never do while both exist.
    pub(crate) fn place(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether this is `default/kubernetes`; its endpoints are the apiservers.
    pub fn is_default_kubernetes(&self) -> bool {
        is_default_kubernetes(&self.namespace, &self.name)
    }
}

/// Whether the object is `default/kubernetes`. The uid of this service identifies the cluster, and its endpoints are the
/// apiservers.
pub fn is_default_kubernetes(namespace: &str, name: &str) -> bool {
    namespace == "default" && name == "kubernetes"
}

impl fmt::Display for FullName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match f.width() {
            None => write!(f, "{}/{}", self.namespace, self.name),
            Some(_) => f.pad(&format!("{}/{}", self.namespace, self.name)),
        }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not of the form `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a service name (expected namespace/name, each of letters, digits, `-`, `_` and `.`)")]
pub struct ServiceNameError(String);

impl FromStr for ServiceName {
    type Err = ServiceNameError;

    fn from_str(text: &str) -> Result<Self, ServiceNameError> {
        match text.split_once('/') {
            Some((namespace, name)) if is_name_part(namespace) && is_name_part(name) => Ok(Self::new(namespace, name)),
            _ => Err(ServiceNameError(text.into())),
        }
    }
}

/// Whether the text is a valid namespace or name.
pub fn is_name_part(text: &str) -> bool {
    let is_part_of_names = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= 253 && text.bytes().all(is_part_of_names)
}

impl TryFrom<String> for ServiceName {
    type Error = ServiceNameError;

    fn try_from(text: String) -> Result<Self, ServiceNameError> {
        text.parse()
    }
}

impl From<ServiceName> for String {
    fn from(value: ServiceName) -> Self {
        Self::from(&value)
    }
}

impl From<&ServiceName> for String {
    /// Takes a third of the time of [`ToString`].
    fn from(value: &ServiceName) -> Self {
        [&value.namespace, "/", &value.name].concat()
    }
}

/// The source of a service or slice. The order is the order of precedence between two sources that claim the same
/// service with equal creation times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Source {
    Files,
    Kubernetes,
}

impl Source {
    pub const ALL: [Self; 2] = [Self::Files, Self::Kubernetes];
}

/// The object from which a service or slice was read, for display. Only a file name affects decisions: if services in
/// files claim one address that none of them has yet, the first file by name gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// A file path, or the kind and name of an object.
    pub object: Arc<str>,
    /// Kubernetes `metadata.resourceVersion`; empty elsewhere.
    pub resource_version: Arc<str>,
    /// Kubernetes `metadata.generation`; 0 if the object has none.
    #[serde(default)]
    pub generation: u64,
    /// The author of the last change: a field manager of `metadata.managedFields`; empty if unknown.
    pub writer: Arc<str>,
    /// The time of the last change in seconds since 1970.
    pub written: Option<u64>,
    /// The time of the event that led to the object's content, in milliseconds since 1970: the annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time` of an EndpointSlice.
    #[serde(default)]
    pub triggered: Option<u64>,
}

/// A service as one source describes it. Its backends are reported separately, in [`Slice`]s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub name: ServiceName,
    pub source: Source,
    pub origin: Origin,
    /// The creation time in seconds since 1970, the first criterion in a conflict over an address. A service without
    /// one (from a local file) counts as older than any with one, so that the operator's configuration on this host
    /// wins.
    pub created: Option<u64>,
    /// The ports of the service, each identified by name and protocol.
    pub ports: Vec<ServicePort>,
    pub internal_policy: TrafficPolicy,
    pub external_policy: TrafficPolicy,
    /// The time in seconds for which a client keeps its backend after its last new connection; `None` without affinity.
    pub affinity_seconds: Option<u32>,
    /// Kubernetes `loadBalancerSourceRanges`: the outside clients that may connect to its LoadBalancer addresses. The
    /// ranges apply to both families, so an IPv6 client is in no IPv4 range. `None` permits all clients; an empty list,
    /// which results if none of the given ranges is valid, permits none. Only the packet path reads it, because a
    /// client on this node is not outside.
    pub source_ranges: Option<Vec<IpNet>>,
    /// Kubernetes `healthCheckNodePort`, the port where load balancers ask whether this node has local backends.
    pub health_check_port: Option<u16>,
    /// Whether the service is of type LoadBalancer and has no address yet.
    #[serde(default)]
    pub awaits_load_balancer: bool,
    /// nodelb's own health checks of the backends; `None` if it relies on the source.
    pub health_check: Option<Arc<HealthCheck>>,
    /// Why the health checks that the service asks for are not made, with the remedy: annotations that cannot be used. A
    /// thin pointer, because most services have none.
    #[serde(default)]
    pub health_check_error: Option<Arc<String>>,
    /// Whether clients outside the node may connect to the Static addresses. Only the packet path reads it.
    #[serde(default)]
    pub is_outside: bool,
    #[serde(default)]
    pub forward: Forward,
}

impl Service {
    /// A service without ports and with default settings.
    pub fn new(name: ServiceName, source: Source) -> Self {
        Self {
            name,
            source,
            origin: Origin::default(),
            created: None,
            ports: Vec::new(),
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            affinity_seconds: None,
            source_ranges: None,
            health_check_port: None,
            awaits_load_balancer: false,
            health_check: None,
            health_check_error: None,
            is_outside: false,
            forward: Forward::Translate,
        }
    }
}

/// One port of a service with its frontend addresses. Its backends are those in slices under the same port name and
/// protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// Kubernetes `ports[].name`; empty if the service has one unnamed port.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub frontends: Vec<FrontendSpec>,
}

/// An address that clients can connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontendSpec {
    /// The address. A NodePort has the unspecified address, which stands for every address of the node.
    pub addr: Addr,
    /// The port in host byte order.
    pub port: u16,
    pub kind: FrontendKind,
}

/// The kind of a frontend, which determines the traffic policy that applies.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display, EnumIter, VariantNames,
)]
pub enum FrontendKind {
    /// Kubernetes `spec.clusterIPs`.
    ClusterIP,
    /// Kubernetes `spec.ports[].nodePort`.
    NodePort,
    /// Kubernetes `spec.externalIPs`.
    ExternalIP,
    /// Kubernetes `status.loadBalancer.ingress[].ip`.
    LoadBalancer,
    /// An address from a local TOML file.
    Static,
}

impl FrontendKind {
    /// Whether clients outside the cluster may connect to this kind, so that `external_policy` applies to them.
    pub const fn is_external(self) -> bool {
        matches!(self, Self::NodePort | Self::ExternalIP | Self::LoadBalancer)
    }
}

/// Kubernetes `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Display, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrafficPolicy {
    #[default]
    Cluster,
    /// Only backends on this node.
    Local,
}

/// Some backends of a service: one Kubernetes EndpointSlice, or one service entry of a file. The backends of a service
/// are the union of its slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    pub name: SliceName,
    /// The full name of the service to which the backends belong. Nothing else determines the service.
    pub service: ServiceName,
    /// The source of the slice. Slices belong only to services of the same source.
    pub source: Source,
    pub origin: Origin,
    pub ports: Vec<SlicePort>,
    /// Why the source cannot tell the current backends, such as `192.0.2.53:53 answers SERVFAIL`. The backends are then
    /// the last known ones. A port without backends means that none are known: those that the maps had at the start stay
    /// in use. A slice without the port means that there are none.
    #[serde(default)]
    pub problem: Option<Arc<str>>,
}

impl Slice {
    /// The order of its ports in the table.
    pub(crate) fn sort_ports(&mut self) {
        self.ports.sort_by(|a, b| a.order().cmp(&b.order()));
    }

    /// Its ports with this name and protocol. Only for a slice of the table.
    pub fn ports_of(&self, name: &str, protocol: Protocol) -> &[SlicePort] {
        let first = self.ports.partition_point(|port| port.order() < (name, protocol));
        let found = &self.ports[first..];
        &found[..found.partition_point(|port| port.order() == (name, protocol))]
    }
}

/// The backends that a slice has for one port name and protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    /// The backends in the order of the source.
    pub backends: Vec<Backend>,
}

impl SlicePort {
    fn order(&self) -> (&str, Protocol) {
        (&self.name, self.protocol)
    }
}

/// A backend as a source describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backend {
    pub addr: Addr,
    /// The port in host byte order.
    pub port: u16,
    pub state: BackendState,
    /// The share of new connections relative to the other backends; 1 if not specified, 0 for none.
    pub weight: u16,
    /// The node of the backend; `None` if unknown, which counts as another node.
    pub node: Option<Arc<str>>,
    pub zone: Option<Arc<str>>,
    /// The topology hints (KEP-2433, KEP-3015); `None` without hints.
    pub hints: Option<Arc<Hints>>,
}

impl Backend {
    /// An active backend of weight 1 without further attributes.
    pub fn new(addr: Addr, port: u16) -> Self {
        Self { addr, port, state: BackendState::Active, weight: 1, node: None, zone: None, hints: None }
    }

    /// Whether the check of its service concerns the backend, in a port with this protocol. The port of another protocol than
    /// TCP does not answer a check, and a backend that its source does not consider usable is not asked.
    pub fn is_checked(&self, check: &HealthCheck, protocol: Protocol) -> bool {
        (protocol == Protocol::Tcp || check.port.is_some())
            && matches!(self.effective_state(), BackendState::Active | BackendState::Terminating)
    }

    /// The state with regard to the weight: weight 0 drains the backend.
    pub fn effective_state(&self) -> BackendState {
        match self.state {
            BackendState::Active | BackendState::Terminating if self.weight == 0 => BackendState::Maintenance,
            state => state,
        }
    }
}

/// Kubernetes `endpoints[].hints`: the zones and nodes with clients that should use the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    /// `forZones[].name`.
    pub zones: Vec<Arc<str>>,
    /// `forNodes[].name`.
    pub nodes: Vec<Arc<str>>,
}

/// Whether a backend may be selected. If two slices disagree about one address, the first state in this order takes
/// precedence.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    Display,
    EnumIter,
    VariantNames,
)]
pub enum BackendState {
    /// Receives new connections.
    Active,
    /// Still serves but is about to stop. Selected only if no active backend is left (KEP-1669).
    Terminating,
    /// Failed nodelb's own health checks. Selected only if no other backend is left and the service allows it.
    Quarantined,
    /// Drained by the operator: keeps its connections and gets no new ones.
    Maintenance,
    /// Neither ready nor serving. Never selected.
    NotReady,
}

/// The service port and family that one service entry in the maps represents. All frontends of that port and family
/// share the entry, regardless of their kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortKey {
    pub service: ServiceName,
    pub port: Arc<str>,
    pub protocol: Protocol,
    /// The family of the backends, and of all frontends except IPv4 ones that IPv6 tunnels serve.
    pub family: Family,
}

impl PortKey {
    /// Whether only packets of clients outside the node reach the backends from this frontend. Clients on the node get
    /// the local view there, which is then empty.
    pub fn is_other_family(&self, frontend: L4Addr) -> bool {
        frontend.addr.family() != self.family
    }
}

impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.port.is_empty() { "" } else { ":" };
        write!(f, "{}{separator}{}/{}/{}", self.service, self.port, self.protocol, self.family)
    }
}

impl FrontendSpec {
    /// The full transport address, given the port's protocol.
    pub const fn l4(&self, protocol: Protocol) -> L4Addr {
        L4Addr::new(self.addr, self.port, protocol)
    }
}
