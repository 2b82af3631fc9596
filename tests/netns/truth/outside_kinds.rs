//! The services for clients outside the node, and what can happen to them and to the node.

use std::fmt;

use nodelb_prober::Transport;

use super::outside_net::{ENDS, NODE, POD, UNWRAPPING};

/// A service for clients outside the node, by the way of their packets. There is one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Backends on two other machines, over IPv4 and IPv6.
    There,
    /// A backend in a pod of the node, over IPv4 and IPv6.
    Pod,
    /// A process of the node.
    Here,
    /// Backends in the pod and on another machine.
    Mixed,
    /// Other machines with the address of the service, which answer directly.
    Direct,
    /// Those of [`Self::Direct`], which get IPv4 packets in IPv6 tunnels.
    Tunnel,
    /// Those of [`Self::There`], with health checks.
    Checked,
    /// A Service of Kubernetes with a NodePort and a load balancer address, and with the backends of [`Self::Mixed`].
    NodePort,
    /// A Service with the policy Local and a backend in the pod.
    Local,
    /// Those of [`Self::There`] over UDP and IPv4.
    Datagrams,
}

impl Kind {
    pub(super) const ALL: [Self; 10] = [
        Self::There,
        Self::Pod,
        Self::Here,
        Self::Mixed,
        Self::Direct,
        Self::Tunnel,
        Self::Checked,
        Self::NodePort,
        Self::Local,
        Self::Datagrams,
    ];

    pub(super) fn is_of_kubernetes(self) -> bool {
        matches!(self, Self::NodePort | Self::Local)
    }

    pub(super) fn transport(self) -> Transport {
        if self == Self::Datagrams { Transport::Udp } else { Transport::Tcp }
    }

    /// How rows show the protocol.
    pub(super) fn protocol(self) -> &'static str {
        if self == Self::Datagrams { "UDP" } else { "TCP" }
    }

    pub(super) fn short(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    pub(super) fn name(self) -> String {
        let namespace = if self.is_of_kubernetes() { "default" } else { "truth" };
        format!("{namespace}/{}", self.short())
    }

    pub(super) fn number(self) -> u16 {
        self as u16
    }

    /// The port of its backends.
    pub(super) fn port(self) -> u16 {
        8_100 + self.number()
    }

    pub(super) fn host(self) -> String {
        format!("198.51.100.{}", 20 + self.number())
    }

    /// The addresses that clients connect to.
    pub(super) fn addresses(self) -> Vec<String> {
        let (host, number, port) = (self.host(), self.number(), self.port());
        match self {
            Self::There | Self::Pod => vec![format!("{host}:80"), format!("[2001:db8:f::{}]:80", 20 + number)],
            Self::Direct | Self::Tunnel => vec![format!("{host}:{port}")],
            Self::NodePort => vec![format!("{host}:80"), format!("{}:{}", NODE[0], 30_100 + number)],
            _ => vec![format!("{host}:80")],
        }
    }

    /// The addresses of its backends, as the service lists them.
    pub(super) fn backends(self) -> Vec<String> {
        let at = |address: &str| match address.contains(':') {
            true => format!("[{address}]:{}", self.port()),
            false => format!("{address}:{}", self.port()),
        };
        let addresses: Vec<&str> = match self {
            Self::There => ENDS.into_iter().flatten().collect(),
            Self::Pod => POD.into(),
            Self::Here => vec![NODE[0]],
            Self::Mixed | Self::NodePort => vec![POD[0], ENDS[0][0]],
            Self::Direct | Self::Checked | Self::Datagrams => ENDS.map(|[v4, _]| v4).into(),
            Self::Tunnel => UNWRAPPING.into(),
            Self::Local => vec![POD[0]],
        };
        addresses.into_iter().map(at).collect()
    }

    pub(super) fn faults(self) -> &'static [Fault] {
        use Fault::*;
        match self {
            Self::There | Self::Datagrams => &[None, Empty, Loopback, OneDrops, AllDrop],
            Self::Pod | Self::Here => &[None, Empty, Loopback, AllDrop],
            Self::Mixed => &[None, Empty, Loopback, OneLoopback, OneDrops],
            Self::Direct | Self::Tunnel => &[None, Empty, Loopback, OneDrops, OneUnprepared, Unprepared],
            Self::Checked => &[None, Empty, OneDrops, AllDrop],
            Self::NodePort => &[None, EmptySlice, NotReady, Ignored, OneDrops],
            Self::Local => &[None, EmptySlice, NotReady, Elsewhere],
        }
    }
}

/// What is done to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// The file lists no backends.
    Empty,
    /// The file lists a loopback address only, or in the place of the last one.
    Loopback,
    OneLoopback,
    /// The firewall of the last backend's machine drops the packets, or those of all do.
    OneDrops,
    AllDrop,
    /// The last machine lacks the address of the service, or does not unwrap tunnels; or all do.
    OneUnprepared,
    Unprepared,
    /// The slice has no endpoints.
    EmptySlice,
    NotReady,
    /// The slice has the label of headless services.
    Ignored,
    /// The only endpoint is on another node.
    Elsewhere,
}

/// What is done to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeFault {
    None,
    /// The firewall forwards nothing.
    DropsForwarded,
    /// `net.ipv4.ip_forward` is 0.
    ForwardsNothing,
    UplinkDown,
    UplinkWithoutAddress,
    /// Rules of another service proxy appear.
    Proxy,
    /// The daemon is killed, or stopped, and starts again.
    Killed,
    Stopped,
    /// `kubernetes.namespaces` is misspelt, and the daemon starts again.
    Misspelt,
}

impl NodeFault {
    pub(super) const ALL: [Self; 9] = [
        Self::None,
        Self::DropsForwarded,
        Self::ForwardsNothing,
        Self::UplinkDown,
        Self::UplinkWithoutAddress,
        Self::Proxy,
        Self::Killed,
        Self::Stopped,
        Self::Misspelt,
    ];
}

/// Something that was done, from its beginning until it had been done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) from: u64,
    pub(super) until: u64,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Service(Kind, Fault),
    Node(NodeFault),
}

impl Done {
    pub(super) fn concerns(&self, kind: Kind) -> bool {
        !matches!(self.what, What::Service(other, _) if other != kind)
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Service(_, fault) => write!(f, "{fault:?} at {}..{}", self.from, self.until),
            What::Node(fault) => write!(f, "the node {fault:?} at {}..{}", self.from, self.until),
        }
    }
}

/// What is broken for a service at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    fault: Fault,
    node: NodeFault,
    /// When the last change was complete.
    pub(super) until: u64,
    /// When a fault of the service itself ended last.
    pub(super) repaired: u64,
    /// When the daemon was ready after its last start.
    pub(super) started: u64,
}

impl State {
    pub(super) fn at(done: &[Done], kind: Kind, at: u64) -> Self {
        let mut state = Self { fault: Fault::None, node: NodeFault::None, until: 0, repaired: 0, started: 0 };
        for done in done.iter().filter(|done| done.from <= at && done.concerns(kind)) {
            state.until = state.until.max(done.until);
            match done.what {
                What::Service(_, fault) => {
                    if fault == Fault::None {
                        state.repaired = done.until;
                    }
                    state.fault = fault;
                }
                What::Node(fault) => {
                    let is_start =
                        |fault| matches!(fault, NodeFault::Killed | NodeFault::Stopped | NodeFault::Misspelt);
                    if is_start(fault) || state.node == NodeFault::Misspelt {
                        state.started = done.until;
                    }
                    state.node = fault;
                }
            }
        }
        state
    }

    /// Whether clients of the service may fail. No restart, and no misspelt name, is a reason; another service proxy is one
    /// only for services that it knows.
    pub(super) fn explains(self, kind: Kind) -> bool {
        self.fault != Fault::None
            || match self.node {
                NodeFault::None | NodeFault::Killed | NodeFault::Stopped | NodeFault::Misspelt => false,
                NodeFault::DropsForwarded => {
                    matches!(kind, Kind::Pod | Kind::Mixed | Kind::NodePort | Kind::Local)
                }
                NodeFault::ForwardsNothing => kind != Kind::Here,
                NodeFault::UplinkDown | NodeFault::UplinkWithoutAddress => true,
                NodeFault::Proxy => kind.is_of_kubernetes(),
            }
    }
}

/// What no problem is about, on purpose: docs/packets.md, "Troubleshooting". Load balancers learn from the healthCheckNodePort
/// that a Service with the policy Local has no backend on the node, and send nothing. Many programs send datagrams that nothing
/// answers: they are a problem if the service has answered some since the start of the daemon.
pub(super) fn is_excepted(kind: Kind, state: State, has_answered: bool) -> bool {
    kind == Kind::Local && state.fault == Fault::Elsewhere || kind == Kind::Datagrams && !has_answered
}
