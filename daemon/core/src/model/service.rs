//! What a service is, in nodelb's words: frontends, backends and the policies between them. No Kubernetes types, no
//! kernel types. Sources build these; nothing below the table changes them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::model::addr::{Addr, Family, L4Addr, Protocol};
use crate::model::health_check::HealthCheck;
use crate::model::names::NoSuchName;

/// A service's full name. A tuple of two strings, compared as such: never joined into one, never used as a prefix.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName {
    /// Kubernetes namespace, or any grouping the operator likes in files.
    pub namespace: Arc<str>,
    /// Name, unique in the namespace.
    pub name: Arc<str>,
}

impl ServiceName {
    /// The name of these two parts, unchecked: for callers that got them as two fields.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match f.width() {
            None => write!(f, "{}/{}", self.namespace, self.name),
            Some(_) => f.pad(&format!("{}/{}", self.namespace, self.name)),
        }
    }
}

impl fmt::Debug for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not `namespace/name`.
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

/// Whether the text can be a namespace or a name.
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
        value.to_string()
    }
}

/// Where a service or slice was read from. The order is the order of precedence between two sources that claim the
/// same service with equal creation times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The services directory.
    Files,
    /// An apiserver.
    Kubernetes,
}

impl Source {
    /// Every source.
    pub const ALL: [Self; 2] = [Self::Files, Self::Kubernetes];
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Files => "files",
            Self::Kubernetes => "kubernetes",
        })
    }
}

/// Which object a service or slice came from, for people. Only its file decides anything: of services in files that claim
/// one address which none of them has yet, the first file by name gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// A file path, or an object's kind and name.
    pub object: Arc<str>,
    /// Kubernetes `metadata.resourceVersion`; empty elsewhere.
    pub resource_version: Arc<str>,
    /// Kubernetes `metadata.generation`; 0 where it has none.
    #[serde(default)]
    pub generation: u64,
    /// Who wrote it last: a field manager of `metadata.managedFields`; empty where unknown.
    pub writer: Arc<str>,
    /// When that was, in seconds since 1970.
    pub written: Option<u64>,
    /// When what the object tells happened, in milliseconds since 1970: the annotation
    /// `endpoints.kubernetes.io/last-change-trigger-time` of an EndpointSlice.
    #[serde(default)]
    pub triggered: Option<u64>,
}

/// A service as one source describes it. Its backends arrive separately, in [`Slice`]s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Full name.
    pub name: ServiceName,
    /// Who says so.
    pub source: Source,
    /// Where exactly.
    pub origin: Origin,
    /// Creation time in seconds since 1970, the first rank in a conflict over an address. A service without one (a
    /// local file) counts as older than any with one: what the operator wrote on this host wins.
    pub created: Option<u64>,
    /// What it offers, each port by name and protocol.
    pub ports: Vec<ServicePort>,
    /// For clients inside the cluster.
    pub internal_policy: TrafficPolicy,
    /// For clients outside the cluster.
    pub external_policy: TrafficPolicy,
    /// Seconds for which a client keeps its backend after its last new connection; `None` without affinity.
    pub affinity_seconds: Option<u32>,
    /// Kubernetes `loadBalancerSourceRanges`: which clients from outside may dial its LoadBalancer addresses, whatever the
    /// family: an IPv6 client is in no IPv4 range. `None` for all; an empty list, where none of those given makes sense,
    /// is for nobody. Read by the packet path only: a client on this node is not from outside.
    pub source_ranges: Option<Vec<IpNet>>,
    /// Kubernetes `healthCheckNodePort`, where load balancers ask whether this node has a backend of its own.
    pub health_check_port: Option<u16>,
    /// Whether it is of type LoadBalancer and has been given no address yet.
    #[serde(default)]
    pub awaits_load_balancer: bool,
    /// How nodelb itself checks the backends; `None` where it believes the source.
    pub health_check: Option<Arc<HealthCheck>>,
}

impl Service {
    /// A service that offers nothing yet and asks for nothing special.
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
        }
    }
}

/// One port of a service: the addresses it is dialled at. Its backends are those slices offer under the same port name
/// and protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// Kubernetes `ports[].name`; empty where a service has one unnamed port.
    pub name: Arc<str>,
    /// Protocol of every frontend of the port.
    pub protocol: Protocol,
    /// The addresses of the port, without the protocol.
    pub frontends: Vec<FrontendSpec>,
}

/// An address a client may dial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontendSpec {
    /// The address; unspecified for a NodePort, which stands for every address of the node.
    pub addr: Addr,
    /// The port, in host byte order.
    pub port: u16,
    /// What kind of address it is.
    pub kind: FrontendKind,
}

/// The kinds of frontend. Which traffic policy applies follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// Whether clients outside the cluster may dial this kind, so that `external_policy` applies to them.
    pub const fn is_external(self) -> bool {
        matches!(self, Self::NodePort | Self::ExternalIP | Self::LoadBalancer)
    }

    /// All of them, in the order of [`Self::NAMES`].
    pub const ALL: [Self; 5] = [Self::ClusterIP, Self::NodePort, Self::ExternalIP, Self::LoadBalancer, Self::Static];
    /// How they print.
    pub const NAMES: [&'static str; 5] = ["ClusterIP", "NodePort", "ExternalIP", "LoadBalancer", "Static"];
}

impl fmt::Display for FrontendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

impl FromStr for FrontendKind {
    type Err = NoSuchName;

    fn from_str(text: &str) -> Result<Self, NoSuchName> {
        NoSuchName::or(text, "type", Self::ALL, &Self::NAMES)
    }
}

/// Kubernetes `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrafficPolicy {
    /// Any backend.
    #[default]
    Cluster,
    /// Only backends on this node.
    Local,
}

/// A slice's full name. Two slices of one name in two namespaces are two slices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SliceName {
    /// Namespace, also the namespace of the service it belongs to.
    pub namespace: Arc<str>,
    /// Name, unique in the namespace and source.
    pub name: Arc<str>,
}

impl SliceName {
    /// The name of these two parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for SliceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.namespace, self.name))
    }
}

/// Some of a service's backends: one Kubernetes EndpointSlice, or one service entry of a file. The backends of a
/// service are the union of its slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// Own name.
    pub name: SliceName,
    /// The service the backends belong to, by its full name and nothing else.
    pub service: ServiceName,
    /// Who says so. Slices join only services of the same source.
    pub source: Source,
    /// Where exactly.
    pub origin: Origin,
    /// Backends by port.
    pub ports: Vec<SlicePort>,
}

/// The backends a slice offers under one port name and protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlicePort {
    /// Matches [`ServicePort::name`].
    pub name: Arc<str>,
    /// Matches [`ServicePort::protocol`].
    pub protocol: Protocol,
    /// In the source's order.
    pub backends: Vec<Backend>,
}

/// A backend as a source describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backend {
    /// Where it listens.
    pub addr: Addr,
    /// On which port, in host byte order.
    pub port: u16,
    /// Whether it may be chosen.
    pub state: BackendState,
    /// Share of new connections relative to the other backends; 1 where nothing is said. 0 means none.
    pub weight: u16,
    /// Node it runs on; `None` where unknown, which counts as another node.
    pub node: Option<Arc<str>>,
    /// Zone it runs in.
    pub zone: Option<Arc<str>>,
    /// Which clients it is meant for (KEP-2433, KEP-3015); `None` without hints.
    pub hints: Option<Arc<Hints>>,
}

impl Backend {
    /// An active backend of weight 1 with nothing else said about it.
    pub fn new(addr: Addr, port: u16) -> Self {
        Self { addr, port, state: BackendState::Active, weight: 1, node: None, zone: None, hints: None }
    }
}

/// Kubernetes `endpoints[].hints`: the zones and nodes whose clients should use the backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hints {
    /// `forZones[].name`.
    pub zones: Vec<Arc<str>>,
    /// `forNodes[].name`.
    pub nodes: Vec<Arc<str>>,
}

/// Whether a backend may be chosen. The order is the order of preference when two slices disagree about one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BackendState {
    /// Takes new connections.
    Active,
    /// Serving, about to go: chosen only where no active backend is left (KEP-1669).
    Terminating,
    /// Failed nodelb's own checks: chosen only where no other backend is left, and the service allows that.
    Quarantined,
    /// Drained by the operator: keeps its connections, gets no new ones.
    Maintenance,
    /// Not ready, and not serving either: never chosen.
    NotReady,
}

impl BackendState {
    /// How they print, in the order of their definition.
    pub const NAMES: [&'static str; 5] = ["Active", "Terminating", "Quarantined", "Maintenance", "NotReady"];

    /// Every one of them.
    pub const ALL: [Self; 5] = [Self::Active, Self::Terminating, Self::Quarantined, Self::Maintenance, Self::NotReady];
}

impl fmt::Display for BackendState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

/// What one kernel service entry stands for: a service port in one family. Shared by all frontends of that port and
/// family, whatever their kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortKey {
    /// Owner.
    pub service: ServiceName,
    /// [`ServicePort::name`].
    pub port: Arc<str>,
    /// [`ServicePort::protocol`].
    pub protocol: Protocol,
    /// A frontend reaches only backends of its own family.
    pub family: Family,
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
