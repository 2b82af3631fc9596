//! What no service may do on this node, whatever the sources say: which frontends are refused, and which backends.

use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::model::node::NodeFacts;
use crate::model::service::{FrontendKind, FrontendSpec, Source};
use crate::state::entries::CANARIES;
use crate::table::apiservers::Apiservers;

/// What no service may do on this node, whatever the sources say.
#[derive(Clone, Debug)]
pub struct Guard {
    /// nodelb's own admin addresses: never a backend, so that no translated connection ends at nodelb itself.
    pub admin: Vec<(Addr, u16)>,
    /// The TCP ports on which nodelb itself listens, each with the config key that says so: never a NodePort.
    pub own_ports: Vec<(u16, &'static str)>,
    /// Destinations that are never translated; config key `datapath.bypass`.
    pub bypass: Vec<IpNet>,
    /// Ports a NodePort may have; config key `datapath.nodeport-range`.
    pub nodeport_range: RangeInclusive<u16>,
    /// Where Kubernetes' `externalIPs` are served; config key `datapath.external-ips`.
    pub external_ips: Vec<IpNet>,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            admin: Vec::new(),
            own_ports: Vec::new(),
            bypass: Vec::new(),
            nodeport_range: 30_000..=32_767,
            external_ips: Vec::new(),
        }
    }
}

/// Why a frontend address is not translated. The text is what `/frontends` shows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not an address a client dials as a service.
    #[error("{0} address: a service address must be a unicast address other than loopback and link-local")]
    NotUnicast(&'static str),
    /// In the bypass list.
    #[error("inside {0} of datapath.bypass: never translated")]
    Bypassed(IpNet),
    /// A NodePort nodelb would never look up.
    #[error("NodePort outside {start}-{end}: change the port, or widen datapath.nodeport-range and restart nodelb", start = .0.start(), end = .0.end())]
    NodePortOutsideRange(RangeInclusive<u16>),
    /// A NodePort that would take nodelb's own listener away.
    #[error(
        "reserved: nodelb itself listens on port {port}, which {key} says; change the NodePort, or change {key} and \
         restart nodelb"
    )]
    OwnPort {
        /// The port.
        port: u16,
        /// The config key.
        key: &'static str,
    },
    /// Whoever may write Services could take over any address with it.
    #[error(
        "externalIPs let whoever writes a Service take over any address (CVE-2020-8554): if {0} is meant, list it or its \
         network in datapath.external-ips and restart nodelb"
    )]
    ExternalIpNotAllowed(Addr),
    /// What is sent there is for a process on this node, or for whoever put the address here.
    #[error(
        "{0} is an address of this node: connections go to whatever listens on it here; to have the service answer, \
         take the address off this node's interfaces"
    )]
    OwnAddress(Addr),
    /// SCTP has no connect() hook that could rewrite every address of an association.
    #[error("SCTP is not translated for sockets on this node")]
    UnsupportedProtocol,
    /// The canary's.
    #[error("reserved for nodelb's proof of life")]
    Reserved,
    /// Whoever dials it is looking for an apiserver: the address itself may still lead there.
    #[error("no backend is known, and this is an apiserver's address: passes through untranslated until one is")]
    NoBackendKnown,
    /// No free service id.
    #[error("map services is full ({0} entries): raise datapath.max-services and restart nodelb")]
    NoServiceId(u32),
}

/// Why no connection is sent to a backend. The text is what `/backends` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendRefusal {
    /// Cannot be dialled.
    #[error("port 0, which cannot be dialled")]
    PortZero,
    /// Names no host.
    #[error("an unspecified address, which names no host")]
    Unspecified,
    /// Names many.
    #[error("a multicast or broadcast address, which names no single host")]
    Multicast,
    /// No translated connection may end at nodelb itself.
    #[error("nodelb's own admin address")]
    Admin,
    /// It would be another process on every node.
    #[error("a loopback address: a Kubernetes endpoint must be reachable from other hosts too")]
    Loopback,
    /// It may be the platform's metadata service.
    #[error(
        "a link-local address, and no known apiserver's: a Kubernetes endpoint must be reachable from other links too"
    )]
    LinkLocal,
}

impl Guard {
    /// Whether the address may be translated, and why not.
    ///
    /// # Errors
    /// The first reason that applies.
    pub fn check_frontend(&self, spec: &FrontendSpec, protocol: Protocol, node: &NodeFacts) -> Result<(), Refusal> {
        let (addr, is_nodeport) = (spec.addr, spec.kind == FrontendKind::NodePort);
        if protocol == Protocol::Sctp {
            Err(Refusal::UnsupportedProtocol)
        } else if is_nodeport && !self.nodeport_range.contains(&spec.port) {
            Err(Refusal::NodePortOutsideRange(self.nodeport_range.clone()))
        } else if is_nodeport {
            match self.own_port(spec.l4(protocol)) {
                Some(&(port, key)) => Err(Refusal::OwnPort { port, key }),
                None => Ok(()),
            }
        } else if CANARIES.iter().any(|canary| canary.addr == addr) {
            Err(Refusal::Reserved)
        } else if let Some(word) = not_unicast(addr) {
            Err(Refusal::NotUnicast(word))
        } else if let Some(net) = self.bypass.iter().find(|net| net.contains(&addr.ip())) {
            Err(Refusal::Bypassed(*net))
        } else if spec.kind == FrontendKind::ExternalIP && !self.external_ips.iter().any(|net| net.contains(&addr.ip()))
        {
            Err(Refusal::ExternalIpNotAllowed(addr))
        } else if node.addresses.contains(&addr) {
            Err(Refusal::OwnAddress(addr))
        } else {
            Ok(())
        }
    }

    /// The listener of nodelb's own that a NodePort under this address would take connections from, if any.
    pub(crate) fn own_port(&self, nodeport: L4Addr) -> Option<&(u16, &'static str)> {
        let is_nodeport = nodeport.addr.is_unspecified() && nodeport.protocol == Protocol::Tcp;
        self.own_ports.iter().find(|(port, _)| is_nodeport && *port == nodeport.port)
    }

    /// Whether a connection may be sent to the backend. A cluster has no business with what is only on this host or on
    /// this link, unless it is an apiserver: some platforms reach theirs at 169.254.x.y. The operator, in a file, has.
    ///
    /// # Errors
    /// The first reason that applies.
    pub fn check_backend(
        &self,
        backend: L4Addr,
        source: Source,
        apiservers: &Apiservers,
    ) -> Result<(), BackendRefusal> {
        self.check_dialable(backend)?;
        match source {
            Source::Files => Ok(()),
            Source::Kubernetes if backend.addr.is_loopback() => Err(BackendRefusal::Loopback),
            Source::Kubernetes if backend.addr.is_link_local() && !apiservers.has(backend) => {
                Err(BackendRefusal::LinkLocal)
            }
            Source::Kubernetes => Ok(()),
        }
    }

    /// See [`Guard::check_backend`].
    pub fn admits_backend(&self, backend: L4Addr, source: Source, apiservers: &Apiservers) -> bool {
        self.check_backend(backend, source, apiservers).is_ok()
    }

    /// Whether the backend could be anybody's.
    pub(crate) fn is_dialable(&self, backend: L4Addr) -> bool {
        self.check_dialable(backend).is_ok()
    }

    fn check_dialable(&self, L4Addr { addr, port, .. }: L4Addr) -> Result<(), BackendRefusal> {
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
