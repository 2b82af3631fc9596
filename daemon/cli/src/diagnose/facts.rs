//! The answers of the witnesses as plain values: all input of the rules. Each witness may be missing, and so may each
//! of its answers; that is a fact, too. Contains no code that reaches a witness; [`gather`](super::gather) fills in the
//! values.
//!
//! The rows of the daemon's answers are not those of the core: they have only the columns that rules use, and each may
//! be missing, because a daemon of another version, which may be the fault, has other columns. Their times are ages in
//! seconds. [`nodelb_report::rows`] describes the columns.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Event, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use nodelb_core::compile::select::Choice;
use nodelb_core::model::service::ServiceName;
use nodelb_core::state::status::Status;
use nodelb_kube::api::scope::Selection;
use nodelb_report::check::Check;
use nodelb_report::problems::Problem;
use serde::Deserialize;
use serde_json::Value;

use crate::without_daemon::Pins;

#[derive(Clone, Debug)]
pub struct Facts {
    pub service: ServiceName,
    /// The current time in seconds since 1970.
    pub now: u64,
    /// The name of this node. Policies and hints are compared with it.
    pub node: String,
    pub daemon: Probe<Daemon>,
    /// What the kernel has if the daemon does not answer.
    pub stored: Option<Stored>,
    pub cluster: Probe<Cluster>,
    /// Connections made from here; empty if the command was to make none.
    pub connect_tests: Vec<ConnectTest>,
    /// The answer of this host's resolver about the service's DNS name.
    pub dns: Option<Dns>,
    pub kernel: KernelSettings,
    /// The cgroup of the daemon that this command is not in; `None` if it is, or if that is not known.
    pub outside_cgroup: Option<String>,
}

/// Settings of this host's kernel for packets of other machines. What cannot be read is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSettings {
    /// `net.ipv4.ip_forward`.
    pub forwards_v4: Option<bool>,
    /// `net.ipv6.conf.all.forwarding`.
    pub forwards_v6: Option<bool>,
    /// Devices on which the reverse path of packets is checked strictly (`rp_filter` is 1).
    pub strict_devices: Vec<String>,
    /// `net.ipv4.ip_local_port_range`: the first and the last port.
    pub local_ports: Option<(u16, u16)>,
    /// Devices that answer ARP for addresses of other devices, or announce them (`arp_ignore`, `arp_announce`).
    pub arp_devices: Vec<String>,
    /// The chains of the firewall with the policy to drop forwarded packets; none if they cannot be read.
    pub forward_drops: Vec<String>,
    /// The addresses of the host, each with the name of its device.
    pub addresses: Vec<(String, IpAddr)>,
    /// The routes of the main tables.
    pub routes: Vec<Route>,
}

impl KernelSettings {
    /// Whether a device of the host has the address.
    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|(_, own)| *own == ip)
    }

    /// The route that the kernel takes to the address, unless rules select another table.
    pub(super) fn route_to(&self, ip: IpAddr) -> Option<&Route> {
        let routes = self.routes.iter().filter(|route| route.contains(ip));
        routes.max_by_key(|route| (route.length, Reverse(route.metric)))
    }
}

/// A route to the addresses that begin with the first `length` bits of `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub to: IpAddr,
    pub length: u8,
    pub device: String,
    pub has_gateway: bool,
    pub metric: u32,
    /// The MTU of the route, or of its device; 0 if it is unknown.
    pub mtu: u32,
}

impl Route {
    fn contains(&self, ip: IpAddr) -> bool {
        let bits = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
            IpAddr::V6(ip) => ip.to_bits(),
        };
        let ignored = 128_u32.saturating_sub(self.length.into());
        self.to.is_ipv4() == ip.is_ipv4() && (bits(self.to) ^ bits(ip)).checked_shr(ignored).unwrap_or(0) == 0
    }
}

/// The addresses of the service in the pinned maps.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub pins: Pins,
    pub frontends: Vec<FrontendRow>,
    /// The node addresses at which NodePorts are served.
    pub node_addresses: Vec<String>,
}

/// The answer of a witness, or why there is none.
#[derive(Clone, Debug)]
pub enum Probe<T> {
    Ok(T),
    /// The witness should have answered and did not, for this reason.
    Failed(String),
    /// The witness is not concerned.
    Skipped,
}

impl<T> Probe<T> {
    pub fn ok(&self) -> Option<&T> {
        match self {
            Self::Ok(reported) => Some(reported),
            Self::Failed(_) | Self::Skipped => None,
        }
    }
}

pub type ClusterAnswer<T> = Result<T, Denial>;

impl Facts {
    pub(super) fn kubernetes_service(&self) -> Option<&Service> {
        self.cluster.ok()?.service.as_ref().ok()?.as_ref()
    }
}

/// An answer that the apiserver did not give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The request in the terms of RBAC, such as `list pods`.
    pub question: &'static str,
    pub why: String,
    /// Whether a permission is missing.
    pub is_forbidden: bool,
}

/// The answers of an apiserver.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The apiserver, and how it was found.
    pub via: String,
    /// The identity that made the requests.
    pub identity: String,
    /// Whether the connection went through this node's load balancing.
    pub is_balanced: bool,
    /// Addresses that did not answer, each with the reason.
    pub failed: Vec<String>,
    pub service: ClusterAnswer<Option<Service>>,
    /// Other Services of the namespace, if this Service does not exist.
    pub names: Vec<String>,
    pub slices: ClusterAnswer<Vec<EndpointSlice>>,
    /// The slices of the Service that no proxy uses.
    pub left_out: Vec<EndpointSlice>,
    /// The Pods that the Service's selector matches; `None` if it has no selector.
    pub pods: Option<ClusterAnswer<Vec<Pod>>>,
    /// Pods of the namespace, if the selector matches none.
    pub others: Vec<Pod>,
    pub events: ClusterAnswer<Vec<Event>>,
    /// Whether a Node with this node's name exists.
    pub has_node: ClusterAnswer<bool>,
}

/// The answers of the daemon, as its admin API gives them: unless a field says otherwise, the rows about the service. A
/// route that the daemon does not have is an empty answer.
#[derive(Clone, Debug, Default)]
pub struct Daemon {
    /// The conditions of readiness, from `/status`.
    pub checks: Vec<Check>,
    pub services: Vec<ServiceRow>,
    /// Names of all services, if this service does not exist.
    pub names: Vec<String>,
    /// All problems of `/status`.
    pub problems: Vec<Problem>,
    pub definition: Option<Definition>,
    /// The value of `datapath.cgroup`.
    pub cgroup: String,
    /// The services that the daemon reads from Kubernetes.
    pub selection: Selection,
    /// The value of `kubernetes.health-checks`; empty if it is not known.
    pub health_checks: String,
    pub frontends: Vec<FrontendRow>,
    /// Rows of `/frontends?address=` for the addresses in error, and for those that wait: the other services that claim
    /// or have them.
    pub rivals: Vec<FrontendRow>,
    pub backends: Vec<BackendRow>,
    /// The part of `/maps` about the addresses of the service; `None` if the maps could not be read.
    pub maps: Option<Maps>,
    /// All rows of `/sources`.
    pub sources: Vec<SourceRow>,
    /// The addresses of `/apiservers`.
    pub apiservers: Vec<ApiserverRow>,
    pub session: Option<SessionRow>,
    /// Rows of `/diff` about the service, and about what all services need.
    pub differences: Vec<Difference>,
    /// The verdicts of `/trace?to=` for the first frontends, one row each.
    pub traces: Vec<Value>,
    /// The packet path; `None` if the service has no address for clients outside the node.
    pub packets: Option<Packets>,
    /// Rows of `/history?service=`, the latest last.
    pub history: Vec<Value>,
}

impl Daemon {
    /// Whether a file describes the service, which then needs no API server.
    pub(super) fn is_of_file(&self) -> bool {
        self.services.iter().any(|row| row.source.eq_ignore_ascii_case("files"))
    }

    /// Returns the service that connections to the address reach while it waits for this one; `None` if there is none.
    pub(super) fn stays_with(&self, row: &FrontendRow) -> Option<&FrontendRow> {
        let is_it = |it: &&FrontendRow| it.address == row.address && it.service != row.service && it.is_in_maps();
        self.rivals.iter().filter(|_| row.status == Some(Status::Pending)).find(is_it)
    }

    /// Returns the backends of the service for the port and the family of the address.
    pub(super) fn backends_of<'d>(&'d self, row: &'d FrontendRow) -> impl Iterator<Item = &'d BackendRow> {
        self.backends.iter().filter(|backend| row.is_of_port(backend))
    }

    /// Returns the backends that connections to the address reach.
    pub(super) fn reached<'d>(&'d self, row: &'d FrontendRow) -> &'d [String] {
        &self.stays_with(row).unwrap_or(row).backends
    }
}

/// Defines rows of the routes with the same names, with the columns that rules use.
macro_rules! rows {
    ($($(#[$about:meta])* $name:ident { $($(#[$meta:meta])* $column:ident: $type:ty,)+ })+) => {
        $($(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$meta])* pub $column: $type,)+
        })+
    };
}

rows! {
    ServiceRow {
        source: String,
        origin: String,
        service: String,
        forward: String,
        status: Option<Status>,
        error: Option<String>,
    }

    FrontendRow {
        address: String,
        #[serde(rename = "type")]
        kind: String,
        service: String,
        port: String,
        backends: Vec<String>,
        flags: Vec<String>,
        outside: String,
        status: Option<Status>,
        since: f64,
        error: Option<String>,
    }

    BackendRow {
        address: String,
        port: String,
        node: String,
        choice: Option<Choice>,
        reason: Option<String>,
    }

    DeviceRow {
        device: String,
        role: String,
        programs: String,
        reason: Option<String>,
        xdp: Option<String>,
        error: Option<String>,
    }

    DropRow {
        reason: String,
        verdict: String,
        service: Option<String>,
        packets: u64,
        last: f64,
    }

    ConnectionRow {
        client: String,
        backend: String,
        path: String,
        state: String,
        #[serde(rename = "first_packet")]
        age: f64,
    }

    /// A row of `limits` in `/maps`.
    LimitRow {
        map: String,
        used: Option<u64>,
        limit: u64,
        config_key: String,
    }

    SourceRow {
        source: String,
        path: String,
        state: String,
        since: f64,
        problems: Vec<String>,
    }

    ApiserverRow {
        address: String,
        state: String,
        in_use: bool,
        error: Option<String>,
    }

    SessionRow {
        apiserver: Option<String>,
        last_response: Option<f64>,
        problem: Option<String>,
    }

    /// A row of `/diff`.
    Difference {
        between: String,
        what: String,
        service: Option<String>,
        source: Option<String>,
        memory: Option<String>,
        kernel: Option<String>,
        likely_cause: Option<String>,
    }
}

/// The place in a file that defines a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    pub file: String,
    /// The line; `None` if the file cannot be read here.
    pub line: Option<u64>,
}

/// Whether an address with a port is one of IPv6.
pub(super) fn is_ipv6(address: &str) -> bool {
    address.starts_with('[')
}

impl FrontendRow {
    pub(super) fn is_denied(&self) -> bool {
        self.status.is_some_and(Status::is_denied)
    }

    pub(super) fn is_in_maps(&self) -> bool {
        self.status.is_some_and(Status::is_in_maps)
    }

    /// Whether packets to it are forwarded in this way: `direct` or `tunnel`.
    pub(super) fn is_forwarded(&self, how: &str) -> bool {
        self.flags.iter().any(|flag| flag.strip_prefix("Forward=") == Some(how))
    }

    /// Whether only clients outside the node reach its backends: those are of the other family, in tunnels.
    pub(super) fn is_only_for_outside(&self) -> bool {
        self.backends.iter().any(|backend| is_ipv6(backend) != is_ipv6(&self.address))
    }

    /// Whether connections to the address may reach the backend: it is of the same port and family.
    pub(super) fn is_of_port(&self, backend: &BackendRow) -> bool {
        self.port == backend.port && is_ipv6(&self.address) == is_ipv6(&backend.address)
    }

    /// Whether only backends on this node are used.
    pub(super) fn is_local(&self) -> bool {
        self.flags.iter().any(|flag| flag == "Local")
    }
}

impl BackendRow {
    pub(super) fn is_used(&self) -> bool {
        matches!(self.choice, Some(Choice::Selected | Choice::Held))
    }
}

/// The contents of the maps for the addresses of the service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maps {
    /// The frontends in the maps: each address with the service port that it leads to (`shop/web:http/TCP/IPv4`).
    pub frontends: BTreeMap<String, String>,
    /// The backends in the maps, by service port and view.
    pub slots: BTreeMap<(String, String), Vec<String>>,
    /// The node addresses at which NodePorts are served.
    pub node_addresses: Vec<String>,
}

/// What the daemon knows about packets of clients outside the node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Packets {
    /// Whether packets are translated: `on`, `draining` or `off`.
    pub translation: String,
    pub reason: String,
    /// All rows of `/devices`.
    pub devices: Vec<DeviceRow>,
    pub drops: Vec<DropRow>,
    pub connections: Vec<ConnectionRow>,
    /// All rows of `limits` in `/maps`.
    pub limits: Vec<LimitRow>,
    /// The value of `packets.snat-ports`.
    pub snat_ports: String,
}

/// A connection made from here, or one that could not prove anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectTest {
    /// The address, such as `198.51.100.10:80/TCP`.
    pub to: String,
    /// Whether the address is that of a backend, not of a frontend.
    pub is_backend: bool,
    pub outcome: Outcome,
    /// The address that accepted the connection, from the kernel's list of sockets; `None` if that is not known.
    pub peer: Option<String>,
}

impl ConnectTest {
    /// Returns the error, and the time after which the connection failed.
    pub(super) fn failure(&self) -> Option<(&str, Duration)> {
        match &self.outcome {
            Outcome::Failed(why, after) => Some((why, *after)),
            _ => None,
        }
    }

    /// Returns the time after which the connection was accepted.
    pub(super) fn accepted(&self) -> Option<Duration> {
        match self.outcome {
            Outcome::Accepted(after) => Some(after),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// After this time.
    Accepted(Duration),
    /// With this error after this time.
    Failed(String, Duration),
    /// The protocol has no connections, so a connect cannot show whether a process listens.
    Unprovable,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// The name, such as `web.shop.svc.cluster.local`.
    pub name: String,
    pub addresses: Result<Vec<String>, String>,
    /// The service that nodelb serves at one of these addresses, if it is another one.
    pub another: Option<String>,
}
