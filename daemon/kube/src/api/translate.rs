//! Translates Kubernetes objects into services and slices, field by field as kube-proxy interprets them. Pure. Notices
//! describe ignored parts. Nothing is an error, because an invalid object must not affect the other ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::health_check::HealthCheck;
use nodelb_core::model::node::NodeObject;
use nodelb_core::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName,
    SlicePort, Source, TrafficPolicy,
};

use super::health_check;
use super::names::Names;
use super::objects::{self, Conditions, Endpoint, EndpointSlice, FORWARD, Metadata, NodeAddress, ServiceSpec};
use crate::time;
use nodelb_core::text::{self, name};

/// Kubernetes' default for `sessionAffinityConfig.clientIP.timeoutSeconds`: three hours.
pub const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;

/// The taint that the cluster autoscaler adds to a node before it removes the node (KEP-3836).
const LEAVING_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The maximum number of characters of a value that a notice quotes.
const MAX_QUOTED: usize = 64;

/// The maximum number of frontends of one Service, and of backends of one EndpointSlice: each has the product of its
/// addresses and its ports, of which etcd takes thousands in one object.
const MAX_FRONTENDS: usize = 1 << 16;
const MAX_BACKENDS: usize = 1 << 18;

/// How packets reach backends of Services without the annotation [`FORWARD`], by load balancer class.
pub type ForwardByClass = BTreeMap<String, Forward>;

/// What the object itself does not contain of its origin, and the names that it may share with other objects.
#[derive(Debug)]
pub struct Reader {
    pub source: Source,
    /// The name of the file; without a file, the kind and name of the object.
    pub object: Arc<str>,
    pub forward: Arc<ForwardByClass>,
    names: Names,
}

impl Reader {
    pub fn new(source: Source, object: Arc<str>) -> Self {
        Self { source, object, forward: Arc::default(), names: Names::default() }
    }

    fn origin(&mut self, metadata: &Metadata) -> Origin {
        Origin {
            object: Arc::clone(&self.object),
            resource_version: (&*name(&metadata.resource_version)).into(),
            writer: self.names.shared(&metadata.last_write.manager),
            generation: metadata.generation,
            written: metadata.last_write.at,
            triggered: metadata.annotations.last_change.as_deref().and_then(time::millis),
        }
    }
}

/// The namespace of an object: `default` if the object does not have one.
pub fn namespace(metadata: &Metadata) -> &str {
    if metadata.namespace.is_empty() { "default" } else { &metadata.namespace }
}

/// Translates a Service; `None` for the Services that kube-proxy does not serve: ExternalName, headless, without a
/// ClusterIP, or labelled for another proxy. Also returns the ignored parts, or the reason to ignore the whole object.
pub fn service(object: &objects::Service, reader: &mut Reader) -> (Option<Service>, Vec<String>) {
    let objects::Service { metadata, spec, status } = object;
    if let Some(reason) = reason_to_leave_out(metadata, spec) {
        return (None, vec![reason]);
    }
    let mut notices = Vec::new();
    let mut addresses = addresses(spec, status, &mut notices);
    // ClusterIPs and node ports come first, and always remain.
    let most = (MAX_FRONTENDS / spec.ports.len().max(1)).max(4);
    truncate(&mut addresses, most, ("addresses", MAX_FRONTENDS, "address and port"), &mut notices);
    if !addresses.iter().any(|(kind, _)| *kind == FrontendKind::ClusterIP) {
        notices.push("no usable clusterIP; left out".into());
        return (None, notices);
    }
    let ports = ports(spec, &addresses, (&mut reader.names, &mut notices));
    let (health_check, health_check_error) = health_check(metadata, &ports, &mut notices);
    let awaits_load_balancer = spec.kind == "LoadBalancer" && status.load_balancer.ingress.is_empty();
    let has_address = awaits_load_balancer || addresses.iter().any(|(kind, _)| is_forwarded(*kind));
    let forward = forward(object, &reader.forward, has_address, &mut notices);
    let service = Service {
        name: ServiceName::of(reader.names.shared(namespace(metadata)), metadata.name.as_str().into()),
        source: reader.source,
        origin: reader.origin(metadata),
        created: metadata.creation_timestamp.as_deref().and_then(time::seconds),
        ports,
        internal_policy: policy(&spec.internal_traffic_policy),
        external_policy: policy(&spec.external_traffic_policy),
        affinity_seconds: affinity_seconds(spec),
        source_ranges: source_ranges(spec, &mut notices),
        health_check_port: health_check_port(spec),
        awaits_load_balancer,
        health_check,
        health_check_error,
        is_outside: false,
        forward,
    };
    (Some(service), notices)
}

/// The health check that the annotations request, or why they cannot be used; the service is served in any case.
fn health_check(
    metadata: &Metadata,
    ports: &[ServicePort],
    notices: &mut Vec<String>,
) -> (Option<Arc<HealthCheck>>, Option<Arc<String>>) {
    match health_check::from_annotations(&metadata.annotations.health_check, ports) {
        Ok(check) => (check.map(Arc::new), None),
        Err(problems) => {
            let error = format!("its backends are not checked: {problems}");
            let error = text::sentence(&error).into_owned();
            notices.push(error.clone());
            (None, Some(error.into()))
        }
    }
}

/// Whether clients at an address of this kind may be forwarded without a translation.
fn is_forwarded(kind: FrontendKind) -> bool {
    matches!(kind, FrontendKind::ExternalIP | FrontendKind::LoadBalancer)
}

/// How packets of clients outside reach backends on other machines, as the annotation requests, or the configuration for
/// the load balancer class. `has_address`: it has, or will get, an address where this has an effect.
fn forward(
    object: &objects::Service,
    of_classes: &ForwardByClass,
    has_address: bool,
    notices: &mut Vec<String>,
) -> Forward {
    let objects::Service { metadata, spec, .. } = object;
    let Some(value) = &metadata.annotations.forward else {
        let class = spec.load_balancer_class.as_str();
        let forward = of_classes.get(class).copied().unwrap_or_default();
        notices.extend(translated_ports(spec, forward).map(|port| format!("kubernetes.forward of {class}: {port}")));
        return forward;
    };
    let Ok(forward) = value.parse::<Forward>() else {
        let value = text::limited(value, MAX_QUOTED);
        notices.push(format!(
            "annotation {FORWARD}: `{value}` is neither translate, direct nor tunnel, and counts as translate; correct \
             it, or remove it"
        ));
        return Forward::Translate;
    };
    if forward != Forward::Translate && !has_address {
        notices.push(format!(
            "annotation {FORWARD}: {forward} has no effect without an externalIP or a load balancer address; add one, \
             or remove the annotation"
        ));
    }
    notices.extend(translated_ports(spec, forward).map(|port| format!("annotation {FORWARD}: {port}")));
    forward
}

/// The ports to which `forward` does not apply, and what to do.
fn translated_ports(spec: &ServiceSpec, forward: Forward) -> impl Iterator<Item = String> {
    let ports = spec.ports.iter().filter(move |_| forward == Forward::Direct);
    ports.filter_map(|port| {
        let (name, number) = (&port.name, port.port);
        let target = port.target_port.filter(|target| ![0, number].contains(target))?;
        Some(format!(
            "port `{name}` ({number}) is translated, because direct does not change ports; set its targetPort ({target}) \
             to {number}, or use tunnel"
        ))
    })
}

fn reason_to_leave_out(metadata: &Metadata, spec: &ServiceSpec) -> Option<String> {
    if let Some(proxy) = &metadata.labels.proxy_name {
        return Some(format!("label service.kubernetes.io/service-proxy-name gives it to `{proxy}`; left out"));
    }
    if spec.kind == "ExternalName" {
        return Some("type ExternalName, which only DNS serves; left out".into());
    }
    if spec.cluster_ip == "None" || spec.cluster_ips.first().is_some_and(|ip| ip == "None") {
        return Some("headless (clusterIP None); left out".into());
    }
    None
}

/// The frontend addresses of a service without ports, ClusterIPs first. Only addresses of the ClusterIPs' families are
/// used, because a service has no endpoints in another family.
fn addresses(
    spec: &ServiceSpec,
    status: &objects::ServiceStatus,
    notices: &mut Vec<String>,
) -> Vec<(FrontendKind, Addr)> {
    let mut found = Vec::new();
    let mut families = BTreeSet::new();
    let cluster_ips =
        if spec.cluster_ips.is_empty() { std::slice::from_ref(&spec.cluster_ip) } else { &spec.cluster_ips };
    for text in cluster_ips.iter().filter(|text| !text.is_empty()) {
        match connectable(text) {
            Ok(addr) if families.insert(addr.family()) => found.push((FrontendKind::ClusterIP, addr)),
            Ok(addr) => notices.push(format!("clusterIP {addr} is the second of its family; ignored")),
            Err(why) => notices.push(format!("clusterIP {why}; ignored")),
        }
    }
    for family in &families {
        let any = Addr::unspecified(*family);
        found.push((FrontendKind::NodePort, any));
    }
    // `ipMode: Proxy`: traffic must go through the load balancer, which does more than forward it.
    let through_balancer = |mode: &Option<String>| mode.as_deref() == Some("Proxy");
    let ingress = status.load_balancer.ingress.iter().filter(|at| !at.ip.is_empty() && !through_balancer(&at.ip_mode));
    let ingress: Vec<&String> = ingress.map(|at| &at.ip).collect();
    // An address that is both an external IP and a load balancer address counts as the latter: the load balancer has
    // assigned it to this service, and the service's source ranges apply to it.
    let balanced: BTreeSet<Addr> = ingress.iter().filter_map(|text| connectable(text).ok()).collect();
    let is_balanced = |text: &String| connectable(text).is_ok_and(|addr| balanced.contains(&addr));
    let external = spec.external_ips.iter().filter(|text| !is_balanced(text));
    let external = external.map(|text| (FrontendKind::ExternalIP, text));
    for (kind, text) in external.chain(ingress.into_iter().map(|text| (FrontendKind::LoadBalancer, text))) {
        match connectable(text) {
            Ok(addr) if families.contains(&addr.family()) => found.push((kind, addr)),
            Ok(addr) => notices.push(format!("{kind} {addr}: the service has no {} clusterIP; ignored", addr.family())),
            Err(why) => notices.push(format!("{kind} {why}; ignored")),
        }
    }
    found
}

/// Parses an address that a client can connect to, or that can belong to a backend.
fn connectable(text: &str) -> Result<Addr, String> {
    let addr: Addr = text.parse().map_err(|error| format!("{error}"))?;
    if addr.is_unspecified() || addr.is_multicast() {
        return Err(format!("`{text}` is not the address of one host"));
    }
    Ok(addr)
}

/// The networks that clients may connect from. Like Kubernetes, accepts a network with host bits set.
fn source_ranges(spec: &ServiceSpec, notices: &mut Vec<String>) -> Option<Vec<IpNet>> {
    let texts = &spec.load_balancer_source_ranges;
    if texts.is_empty() {
        return None;
    }
    let mut ranges = Vec::new();
    for text in texts {
        match text.trim().parse::<IpNet>() {
            Ok(net) => ranges.push(net.trunc()),
            Err(_not_a_net) => {
                notices.push(format!("loadBalancerSourceRanges: `{text}` is not a CIDR; it allows no client"));
            }
        }
    }
    Some(ranges)
}

fn ports(
    spec: &ServiceSpec,
    addresses: &[(FrontendKind, Addr)],
    (names, notices): (&mut Names, &mut Vec<String>),
) -> Vec<ServicePort> {
    let mut named = BTreeSet::new();
    let mut claimed = BTreeSet::new();
    let mut ports = Vec::with_capacity(spec.ports.len());
    for port in &spec.ports {
        let called = format!("port `{}` ({})", port.name, port.port);
        let protocol = match protocol(&port.protocol) {
            Some(protocol) if port.port != 0 => protocol,
            Some(_) => {
                notices.push(format!("{called} has no number; ignored"));
                continue;
            }
            None => {
                notices.push(format!("{called} has unknown protocol `{}`; ignored", port.protocol));
                continue;
            }
        };
        if !named.insert((name(&port.name), protocol)) {
            notices.push(format!("{called} has the name of another port; ignored"));
            continue;
        }
        let frontends = addresses.iter().filter_map(|&(kind, addr)| {
            let number = if kind == FrontendKind::NodePort { port.node_port } else { port.port };
            let is_new = number != 0 && claimed.insert(L4Addr::new(addr, number, protocol));
            is_new.then_some(FrontendSpec { addr, port: number, kind })
        });
        let mut frontends: Vec<FrontendSpec> = frontends.collect();
        frontends.shrink_to_fit();
        ports.push(ServicePort { name: names.shared(&port.name), protocol, frontends });
    }
    ports
}

fn protocol(text: &str) -> Option<Protocol> {
    match text {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

fn policy(text: &str) -> TrafficPolicy {
    if text == "Local" { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
}

fn affinity_seconds(spec: &ServiceSpec) -> Option<u32> {
    let timeout = spec.session_affinity_config.client_ip.timeout_seconds.filter(|seconds| *seconds != 0);
    (spec.session_affinity == "ClientIP").then(|| timeout.unwrap_or(DEFAULT_AFFINITY_SECONDS))
}

/// The port as the apiserver allocates it. A port that remains from another type or policy is ignored.
fn health_check_port(spec: &ServiceSpec) -> Option<u16> {
    let is_asked = spec.kind == "LoadBalancer" && policy(&spec.external_traffic_policy) == TrafficPolicy::Local;
    Some(spec.health_check_node_port).filter(|port| is_asked && *port != 0)
}

/// Translates this node's Node object; only fields that affect this node are used.
pub fn node(object: &objects::Node) -> NodeObject {
    let objects::Node { metadata, spec, status } = object;
    let zone = metadata.labels.zone.as_deref().unwrap_or_default();
    let leaving = if metadata.deletion_timestamp.is_some() {
        Some("it is being deleted".into())
    } else {
        let is_leaving = spec.taints.iter().any(|taint| taint.key == LEAVING_TAINT);
        is_leaving.then(|| format!("it has the taint {LEAVING_TAINT}").into())
    };
    NodeObject { zone: (&*name(zone)).into(), addresses: node_addresses(&status.addresses), leaving }
}

/// The first InternalIP of each family; for a family without an InternalIP, its first ExternalIP (like `GetNodeHostIPs`
/// in component-helpers).
fn node_addresses(reported: &[NodeAddress]) -> BTreeSet<Addr> {
    let mut found: BTreeMap<Family, Addr> = BTreeMap::new();
    for kind in ["InternalIP", "ExternalIP"] {
        for addr in reported.iter().filter(|at| at.kind == kind).filter_map(|at| connectable(&at.address).ok()) {
            found.entry(addr.family()).or_insert(addr);
        }
    }
    found.into_values().collect()
}

/// The label of slices that no proxy uses.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// The family of the addresses in a slice.
///
/// # Errors
/// No proxy uses the slice: why.
fn usable(has_headless_label: bool, address_type: &str) -> Result<Family, String> {
    match address_type {
        _ if has_headless_label => Err(format!("label {HEADLESS}")),
        "IPv4" => Ok(Family::Ipv4),
        "IPv6" => Ok(Family::Ipv6),
        other => Err(format!("addressType `{other}` has no addresses to connect to")),
    }
}

/// Whether a slice that was read by a command has the label of slices that no proxy uses.
pub fn is_labelled_headless(slice: &k8s_openapi::api::discovery::v1::EndpointSlice) -> bool {
    slice.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(HEADLESS))
}

/// Why [`slice`] leaves out this slice of a Service, which was read by a command; `None` if it uses the slice.
pub fn left_out(slice: &k8s_openapi::api::discovery::v1::EndpointSlice) -> Option<String> {
    usable(is_labelled_headless(slice), &slice.address_type).err()
}

/// Translates an EndpointSlice; `None` for slices without a service, with FQDNs, or with the label for headless services.
/// Also returns the ignored parts, or the reason to ignore the whole object.
pub fn slice(object: &EndpointSlice, reader: &mut Reader) -> (Option<Slice>, Vec<String>) {
    let metadata = &object.metadata;
    let left_out = |reason: &str| (None, vec![reason.to_owned()]);
    let Some(service) = metadata.labels.service_name.as_deref().filter(|name| !name.is_empty()) else {
        return left_out("no label kubernetes.io/service-name, so it belongs to no service; left out");
    };
    let family = match usable(metadata.labels.headless.is_some(), &object.address_type) {
        Ok(family) => family,
        Err(why) => return left_out(&format!("{why}; left out")),
    };
    let mut notices = Vec::new();
    let backends = backends(&object.endpoints, family, (&mut reader.names, &mut notices));
    let mut ports = Vec::with_capacity(object.ports.len());
    for port in &object.ports {
        let called = &port.name;
        let Some(number) = port.port.filter(|number| *number != 0) else {
            notices.push(format!("port `{called}` without a number is ignored"));
            continue;
        };
        let Some(protocol) = protocol(&port.protocol) else {
            notices.push(format!("port `{called}` has unknown protocol `{}`; ignored", port.protocol));
            continue;
        };
        ports.push((reader.names.shared(called), protocol, number));
    }
    let most = MAX_BACKENDS / backends.len().max(1);
    truncate(&mut ports, most, ("ports", MAX_BACKENDS, "endpoint and port"), &mut notices);
    let namespace = reader.names.shared(namespace(metadata));
    let slice = Slice {
        name: SliceName { namespace: Arc::clone(&namespace), name: metadata.name.as_str().into() },
        service: ServiceName::of(namespace, (&*name(service)).into()),
        source: reader.source,
        origin: reader.origin(metadata),
        ports: with_backends(ports, backends),
        problem: None,
    };
    (Some(slice), notices)
}

/// Leaves the first ones of an object's list, of which `limit` pairs would become too many.
fn truncate<T>(list: &mut Vec<T>, most: usize, (what, limit, pairs): (&str, usize, &str), notices: &mut Vec<String>) {
    if list.len() > most {
        let ignored = list.len() - most;
        notices.push(format!(
            "{ignored} of its {what} are ignored, because it has more than {limit} pairs of {pairs}; divide it"
        ));
        list.truncate(most);
    }
}

/// The ports, each with all backends at its number. The last one gets the backends themselves: most slices have one port.
fn with_backends(ports: Vec<(Arc<str>, Protocol, u16)>, mut backends: Vec<Backend>) -> Vec<SlicePort> {
    let count = ports.len();
    let with_backends = |(place, (name, protocol, number)): (usize, (Arc<str>, Protocol, u16))| {
        let mut backends = if place + 1 == count { std::mem::take(&mut backends) } else { backends.clone() };
        backends.iter_mut().for_each(|backend| backend.port = number);
        SlicePort { name, protocol, backends }
    };
    ports.into_iter().enumerate().map(with_backends).collect()
}

/// The usable endpoints of a slice as backends with port 0: each endpoint has all ports of the slice.
fn backends(endpoints: &[Endpoint], family: Family, (names, notices): (&mut Names, &mut Vec<String>)) -> Vec<Backend> {
    let mut unusable = 0_usize;
    let mut example = String::new();
    let mut backends = Vec::with_capacity(endpoints.len());
    for endpoint in endpoints {
        let text = endpoint.address.as_str();
        let addr = connectable(text)
            .and_then(|addr| if addr.family() == family { Ok(addr) } else { Err(format!("`{text}` is not {family}")) });
        match addr {
            Ok(addr) => backends.push(backend(endpoint, addr, names)),
            Err(why) => {
                unusable += 1;
                example = why;
            }
        }
    }
    if unusable > 0 {
        notices.push(format!("{unusable} endpoints without a usable address are ignored: {example}"));
    }
    backends
}

fn backend(endpoint: &Endpoint, addr: Addr, names: &mut Names) -> Backend {
    Backend {
        state: state(endpoint.conditions),
        node: names.non_empty(endpoint.node_name.as_deref()),
        zone: names.non_empty(endpoint.zone.as_deref()),
        hints: endpoint.hints.as_ref().and_then(|hints| names.hints(hints)),
        ..Backend::new(addr, 0)
    }
}

/// If `ready` is set, the controller has considered all conditions. `serving` and `terminating` matter only otherwise.
fn state(conditions: Conditions) -> BackendState {
    let Conditions { ready, serving, terminating } = conditions;
    if ready.unwrap_or(true) {
        BackendState::Active
    } else if serving.unwrap_or(true) && terminating.unwrap_or(false) {
        BackendState::Terminating
    } else {
        BackendState::NotReady
    }
}

#[cfg(test)]
#[path = "tests/translate.rs"]
mod tests;
