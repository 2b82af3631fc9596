//! The restrictions that apply to every service on this node, regardless of its source: which frontends and which
//! backends are refused.

use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::model::node::NodeFacts;
use crate::model::service::{FrontendKind, FrontendSpec, Source};
use crate::state::entries::CANARIES;
use crate::table::apiservers::Apiservers;

#[derive(Clone, Debug)]
pub struct Guard {
    /// nodelb's own admin addresses. They are never backends, so that no translated connection reaches nodelb itself.
    pub admin: Vec<(Addr, u16)>,
    /// The TCP ports that nodelb itself listens on, each with the configuration key that sets it. No service gets one
    /// on an address of the node.
    pub own_ports: Vec<(u16, &'static str)>,
    /// Destinations that are never translated; configuration key `datapath.bypass`.
    pub bypass: Vec<IpNet>,
    /// The range of valid NodePorts; configuration key `datapath.nodeport-range`.
    pub nodeport_range: RangeInclusive<u16>,
    /// The ports from which this node connects to backends on other nodes, if NodePorts might have them; configuration
    /// key `packets.snat-ports`.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The networks of the Kubernetes `externalIPs` that are served; configuration key `datapath.external-ips`.
    pub external_ips: Vec<IpNet>,
    /// The networks of service addresses that may be on an interface of this node; configuration key
    /// `datapath.own-addresses`.
    pub own_addresses: Vec<IpNet>,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            admin: Vec::new(),
            own_ports: Vec::new(),
            bypass: Vec::new(),
            nodeport_range: 30_000..=32_767,
            source_ports: None,
            external_ips: Vec::new(),
            own_addresses: Vec::new(),
        }
    }
}

/// Why a frontend address is not translated. `/frontends` shows the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0} address: a service address must be a unicast address other than loopback and link-local")]
    NotUnicast(&'static str),
    #[error("inside {0} of datapath.bypass: never translated")]
    Bypassed(IpNet),
    /// The programs never look up a NodePort outside the range.
    #[error("NodePort outside {start}-{end}: change the port, or widen datapath.nodeport-range and restart nodelb", start = .0.start(), end = .0.end())]
    NodePortOutsideRange(RangeInclusive<u16>),
    /// What arrives at a source port is a backend's answer.
    #[error(
        "NodePort inside {start}-{end}, from which nodelb connects to backends on other nodes: change the port, or change \
         packets.snat-ports and restart nodelb", start = .0.start(), end = .0.end()
    )]
    NodePortIsSourcePort(RangeInclusive<u16>),
    /// The service would take connections away from nodelb's own listener.
    #[error(
        "reserved: nodelb itself listens on port {port}, as {key} specifies; change the port of the service, or change \
         {key} and restart nodelb"
    )]
    OwnPort { port: u16, key: &'static str },
    /// A user who may write Services could take over any address with `externalIPs`.
    #[error(
        "externalIPs let any user who may write Services take over any address (CVE-2020-8554): if {0} is meant, list it or its \
         network in datapath.external-ips and restart nodelb"
    )]
    ExternalIpNotAllowed(Addr),
    /// Traffic to this address is for a process on this node, or for the program that assigned the address to it.
    #[error(
        "{0} is an address of this node: connections go to whatever listens on it here; give the service another address, \
         or, if a program such as keepalived assigns this one for it, list it in datapath.own-addresses and restart nodelb"
    )]
    OwnAddress(Addr),
    /// A ClusterIP that a program has assigned to a device of this node, for its own processes to answer.
    #[error(
        "{0} is an address of this node, such as that of a node-local DNS cache: connections go to whatever listens on it here, \
         and to the service when the node no longer has it"
    )]
    HeldClusterIp(Addr),
    /// The load balancer gives Services the address of the node, and a process or pod there gets its packets.
    #[error(
        "{0} is the primary address of this node: connections go to whatever listens on it here, such as a pod of ServiceLB \
         (k3s)"
    )]
    PrimaryAddress(Addr),
    /// SCTP has no connect() hook that could rewrite every address of an association.
    #[error("SCTP is not translated for sockets on this node")]
    UnsupportedProtocol,
    /// The address is a canary.
    #[error("reserved for nodelb's self-test")]
    Reserved,
    /// A client of this address is looking for an apiserver, and without translation the address may still reach one.
    #[error("no backend is known, and this is an apiserver's address: passes through untranslated until one is")]
    NoBackendKnown,
    #[error("map services is full ({0} entries): raise datapath.max-services and restart nodelb")]
    NoServiceId(u32),
    /// See [`crate::state::share`].
    #[error(
        "map services is full ({0} entries) but for namespaces with few: raise datapath.max-services and restart nodelb, or remove \
         services of this namespace"
    )]
    NoShareOfIds(u32),
}

/// Why no connection is sent to a backend. `/backends` shows the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendRefusal {
    #[error("port 0, to which no client can connect")]
    PortZero,
    #[error("an unspecified address, which names no host")]
    Unspecified,
    #[error("a multicast or broadcast address, which names no single host")]
    Multicast,
    /// An admin address: no translated connection may reach nodelb itself.
    #[error("nodelb's own admin address")]
    Admin,
    /// A loopback address, which would reach a different process on every node.
    #[error("a loopback address: a Kubernetes endpoint must be reachable from other hosts too")]
    Loopback,
    /// A link-local address, which may belong to the platform's metadata service.
    #[error(
        "a link-local address, and no known apiserver's: a Kubernetes endpoint must be reachable from other links too"
    )]
    LinkLocal,
}

impl Refusal {
    /// Whether a process of this node is meant to get the connections, so that nothing is wrong.
    pub fn is_intended(&self) -> bool {
        matches!(self, Self::HeldClusterIp(_) | Self::PrimaryAddress(_))
    }
}

impl Guard {
    /// Checks whether the address may be translated.
    pub fn check_frontend(&self, spec: &FrontendSpec, protocol: Protocol, node: &NodeFacts) -> Result<(), Refusal> {
        let (addr, is_nodeport) = (spec.addr, spec.kind == FrontendKind::NodePort);
        if protocol == Protocol::Sctp {
            Err(Refusal::UnsupportedProtocol)
        } else if is_nodeport && !self.nodeport_range.contains(&spec.port) {
            Err(Refusal::NodePortOutsideRange(self.nodeport_range.clone()))
        } else if is_nodeport && let Some(ports) = self.source_ports.as_ref().filter(|ports| ports.contains(&spec.port))
        {
            Err(Refusal::NodePortIsSourcePort(ports.clone()))
        } else if is_nodeport && let Some(&(port, key)) = self.own_port(spec.l4(protocol)) {
            Err(Refusal::OwnPort { port, key })
        } else if is_nodeport {
            Ok(())
        } else if CANARIES.iter().any(|canary| canary.addr == addr) {
            Err(Refusal::Reserved)
        } else if let Some(word) = not_unicast(addr) {
            Err(Refusal::NotUnicast(word))
        } else if let Some(net) = self.bypass.iter().find(|net| net.contains(&addr.ip())) {
            Err(Refusal::Bypassed(*net))
        } else if spec.kind == FrontendKind::ExternalIP && !self.external_ips.iter().any(|net| net.contains(&addr.ip()))
        {
            Err(Refusal::ExternalIpNotAllowed(addr))
        } else if !node.addresses.contains(&addr) {
            Ok(())
        } else if !self.own_addresses.iter().any(|net| net.contains(&addr.ip())) {
            Err(match spec.kind {
                FrontendKind::ClusterIP => Refusal::HeldClusterIp(addr),
                FrontendKind::LoadBalancer if node.primary.contains(&addr) => Refusal::PrimaryAddress(addr),
                _ => Refusal::OwnAddress(addr),
            })
        } else if let Some(&(port, key)) = self.listener(spec.port, protocol) {
            Err(Refusal::OwnPort { port, key })
        } else {
            Ok(())
        }
    }

    /// nodelb's own listener that would lose connections to a NodePort under this address, if there is one.
    pub fn own_port(&self, nodeport: L4Addr) -> Option<&(u16, &'static str)> {
        self.listener(nodeport.port, nodeport.protocol).filter(|_| nodeport.addr.is_unspecified())
    }

    /// nodelb's own listener on this port, if there is one.
    fn listener(&self, port: u16, protocol: Protocol) -> Option<&(u16, &'static str)> {
        self.own_ports.iter().find(|(own, _)| protocol == Protocol::Tcp && *own == port)
    }

    /// Checks whether a connection may be sent to the backend. A cluster must not use addresses that are valid only on
    /// this host or this link, except for apiservers: some platforms serve theirs at 169.254.x.y. An operator may use
    /// them in a file.
    pub fn check_backend(
        &self,
        backend: L4Addr,
        source: Source,
        apiservers: &Apiservers,
    ) -> Result<(), BackendRefusal> {
        if backend.port > 0 && backend.addr.is_ordinary() && !self.admin.contains(&(backend.addr, backend.port)) {
            // Almost all backends.
            return Ok(());
        }
        self.check_connectable(backend)?;
        match source {
            Source::Files => Ok(()),
            Source::Kubernetes if backend.addr.is_loopback() => Err(BackendRefusal::Loopback),
            Source::Kubernetes if backend.addr.is_link_local() && !apiservers.has(backend) => {
                Err(BackendRefusal::LinkLocal)
            }
            Source::Kubernetes => Ok(()),
        }
    }

    pub fn admits_backend(&self, backend: L4Addr, source: Source, apiservers: &Apiservers) -> bool {
        self.check_backend(backend, source, apiservers).is_ok()
    }

    /// Checks whether the address is one that a client can connect to at all.
    pub(crate) fn check_connectable(&self, L4Addr { addr, port, .. }: L4Addr) -> Result<(), BackendRefusal> {
        if port == 0 {
            Err(BackendRefusal::PortZero)
        } else if addr.is_unspecified() {
            Err(BackendRefusal::Unspecified)
        } else if addr.is_multicast() {
            Err(BackendRefusal::Multicast)
        } else if self.admin.contains(&(addr, port)) {
            Err(BackendRefusal::Admin)
        } else {
            Ok(())
        }
    }
}

fn not_unicast(addr: Addr) -> Option<&'static str> {
    if addr.is_unspecified() {
        Some("unspecified")
    } else if addr.is_loopback() {
        Some("loopback")
    } else if addr.is_link_local() {
        Some("link-local")
    } else if addr.is_multicast() {
        Some("multicast")
    } else {
        None
    }
}
