//! Every configuration key, once: its name, type, default, check, and the comment that documents it here and in
//! `config.example.toml`.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use nodelb_cli::DatapathChoice;
use nodelb_cli::client::{DEFAULT_LISTEN, DEFAULT_SOCKET};
use nodelb_core::model::node::NodePortAddress;
use nodelb_sources::dns::{Bounds, DnsServer};
use serde::Deserialize;

use super::values::{
    Disconnect, Hold, Seconds, Setting, absolute, absolute_or_empty, between, dns_servers, lasts, loopback,
    name_or_empty, node_name_or_empty, own_directory, socket_path,
};

/// A key of a configuration, ready to be printed.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) section: &'static str,
    pub(super) name: String,
    /// Lines, each with its leading space.
    pub(super) comment: &'static [&'static str],
    pub(super) value: String,
    pub(super) needs_restart: bool,
}

/// A table of the configuration file.
pub(super) trait Section {
    /// As written between brackets.
    fn name(&self) -> &'static str;

    /// What it is about, for the reference.
    #[cfg(test)]
    fn about(&self) -> &'static str;

    /// The problems of values and of their combinations: the key, and what to do.
    fn check(&self) -> Vec<(String, String)>;

    /// The keys in the order they are defined in.
    fn keys(&self) -> Vec<Key>;
}

/// Defines a section: `key: Type = default, check;`, where `check` returns the problem of a value of the type, and
/// `together` the problems of combinations of keys. In a section that needs a restart, a reload applies the keys of
/// `at_once`.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $type:ident, $section:literal, needs_restart = $needs_restart:literal
            $(, at_once = [$($at_once:ident),+])? $(, together = $together:expr)?;
        $( $(#[doc = $comment:literal])+ $key:ident: $value:ty = $default:expr $(, $check:expr)?; )+
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $type {
            $( $(#[doc = $comment])+ #[serde(deserialize_with = "Setting::read")] pub $key: $value, )+
        }

        impl Default for $type {
            fn default() -> Self {
                Self { $( $key: $default, )+ }
            }
        }

        $(
            impl $type {
                /// The section with the keys of `at_once` from `new`.
                pub(super) fn with_at_once(&self, new: &Self) -> Self {
                    Self { $( $at_once: Clone::clone(&new.$at_once), )+ ..self.clone() }
                }
            }
        )?

        impl Section for $type {
            fn name(&self) -> &'static str {
                $section
            }

            #[cfg(test)]
            fn about(&self) -> &'static str {
                concat!($($about),+)
            }

            fn check(&self) -> Vec<(String, String)> {
                let checks: &[Option<(&str, String)>] =
                    &[ $( $( $check(&self.$key).err().map(|message| (stringify!($key), message)), )? )+ ];
                let together: &[Vec<(&str, String)>] = &[ $( $together(self) )? ];
                checks.iter().flatten().chain(together.iter().flatten()).map(|(key, message)| (key.replace('_', "-"), message.clone())).collect()
            }

            fn keys(&self) -> Vec<Key> {
                let at_once: &[&str] = &[ $( $( stringify!($at_once) ),+ )? ];
                let key = |name: &str, comment, value| {
                    let needs_restart = $needs_restart && !at_once.contains(&name);
                    Key { section: $section, name: name.replace('_', "-"), comment, value, needs_restart }
                };
                vec![ $( key(stringify!($key), &[ $( $comment ),+ ], self.$key.to_toml().to_string()), )+ ]
            }
        }
    };
}

pub(super) use section;

section! {
    /// The node on which nodelb runs. Traffic policies and topology hints refer to it.
    Node, "node", needs_restart = false;

    /// Name of this node; a backend is local if its node has the same name. Case and surrounding white space are
    /// ignored. Empty: the host name at the start or reload, in lower case.
    name: String = String::new(), node_name_or_empty;

    /// Zone of this node, which nodelb compares with the zones in the topology hints of backends. Empty: unknown.
    zone: String = String::new(), name_or_empty;

    /// Addresses of this node on which NodePorts are answered: "primary" means the addresses of the Node object,
    /// otherwise the source addresses of the default routes; "loopback" means 127.0.0.1 and ::1, for processes outside
    /// of containers; a CIDR means every address in it, loopback and link-local ones only if it contains no others.
    /// nodelb follows changes of the addresses.
    nodeport_addresses: Vec<NodePortAddress> = vec![NodePortAddress::Primary];
}

section! {
    /// Services in local files.
    Files, "files", needs_restart = false;

    /// Directory of service files: *.toml in nodelb's own format, *.yaml, *.yml and *.json with Kubernetes Services
    /// and EndpointSlices. nodelb watches it; changes need no reload.
    directory: PathBuf = PathBuf::from("/etc/nodelb/services.d"), absolute;
}

section! {
    /// The resolver for backends in service files that have a DNS name.
    Dns, "dns", needs_restart = true, together = Dns::together;

    /// DNS servers in order of preference, such as "127.0.0.1:8600" for Consul; without a port, 53. A link-local address
    /// has its network interface: "fe80::1%eth0". Empty: those of /etc/resolv.conf, which nodelb reads again when it
    /// changes. Search domains are never applied.
    servers: Vec<DnsServer> = Vec::new(), dns_servers;

    /// Minimum time between two queries for a name, also if its TTL is shorter.
    min_ttl: Seconds = Seconds(1), lasts::<1, 604_800>;

    /// Maximum time between two queries for a name, also if its TTL is longer.
    max_ttl: Seconds = Seconds(3_600), lasts::<1, 604_800>;

    /// Time for which nodelb keeps the last addresses of a name that does not exist any more (NXDOMAIN), or "forever".
    /// It keeps them for any time while the servers fail or answer without addresses.
    hold: Hold = Hold(Some(Duration::from_secs(300)));
}

impl Dns {
    /// The servers, and the bounds of times.
    pub(crate) fn settings(&self) -> (Vec<DnsServer>, Bounds) {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let [min_ttl, max_ttl] = [self.min_ttl, self.max_ttl].map(|seconds| u64::from(seconds.0) * 1_000);
        (self.servers.clone(), Bounds { min_ttl, max_ttl, hold: self.hold.0.map(millis) })
    }

    fn together(&self) -> Vec<(&'static str, String)> {
        if self.min_ttl <= self.max_ttl {
            return Vec::new();
        }
        vec![("max_ttl", "is shorter than dns.min-ttl; raise it, or lower the other".into())]
    }
}

section! {
    /// State that persists across reboots.
    State, "state", needs_restart = true;

    /// Directory for state files: the API server addresses that worked, the last known services and Node, the backends
    /// that failed their health checks, and the history of changes (`nodelb history`).
    directory: PathBuf = PathBuf::from("/var/lib/nodelb"), absolute;
}

section! {
    /// The admin API.
    Admin, "admin", needs_restart = true;

    /// Listen addresses of the admin API. Loopback addresses only. If one cannot be opened, for example on a
    /// host without IPv6, nodelb logs a warning, runs without it and retries every few seconds.
    listen: Vec<SocketAddr> = DEFAULT_LISTEN.to_vec(), loopback;

    /// Unix socket of the admin API; commands try it first. Accessible to root and the group of the daemon. Skipped if
    /// its directory does not exist; empty disables it.
    socket: PathBuf = PathBuf::from(DEFAULT_SOCKET), socket_path;
}

section! {
    /// The datapath.
    Datapath, "datapath", needs_restart = true, together = Datapath::together;

    /// "kernel" translates connections; "memory" does everything else and needs no privileges.
    mode: DatapathChoice = DatapathChoice::Kernel;

    /// Cgroup of the processes that get their connections translated. Default: the root of cgroup v2, which includes all
    /// processes. It must contain nodelb itself (`Slice=` of its unit), which tests the programs by its own connections.
    cgroup: PathBuf = PathBuf::new(), absolute_or_empty;

    /// Directory for the pins of maps and links: nodelb's own directory in a BPF file system. Before you change it,
    /// stop the daemon and run `nodelb cleanup`: otherwise the old programs stay attached and take precedence over the
    /// new ones, and `/readyz` shows the command that removes them.
    pin_directory: PathBuf = PathBuf::from("/sys/fs/bpf/nodelb"), own_directory;

    /// Maximum number of frontend addresses (nodelb uses two itself; a NodePort counts once per address family).
    max_frontends: u32 = 131_072, between::<3, 16_777_216>;

    /// Maximum number of service ports, counted once per address family.
    max_services: u32 = 65_536, between::<2, 16_777_216>;

    /// Maximum number of backend slots over all service ports; a backend of weight 3 takes three slots in each list.
    max_slots: u32 = 524_288, between::<1, 16_777_216>;

    /// Maximum number of session-affinity entries; the least recently used is evicted.
    max_affinity: u32 = 65_536, between::<1, 16_777_216>;

    /// Destinations that are never translated: addresses or CIDRs.
    bypass: Vec<IpNet> = Vec::new();

    /// Addresses or CIDRs in which externalIPs of Kubernetes Services are served. With externalIPs, a user who may
    /// write a Service can take over any address on this node (CVE-2020-8554). Default: none.
    external_ips: Vec<IpNet> = Vec::new();

    /// Addresses or CIDRs in which an address of a service may be on an interface of this node: those that keepalived or
    /// kube-vip assign to the node. Other addresses of this node are never served. List no address on which this node
    /// itself is reached, because each port of a service with this address would lead to the service. Default: none.
    own_addresses: Vec<IpNet> = Vec::new();

    /// Port range of NodePorts: connections to other ports on addresses of this node are never looked up as NodePorts.
    nodeport_range: RangeInclusive<u16> = 30_000..=32_767;

    /// Prevent processes on this node from binding a served NodePort: bind() fails with "address already in use".
    /// Backends of the service on this node may bind it, and so may a process that receives the port for port 0.
    protect_nodeports: bool = true;

    /// Count the connections of each service for the metrics. Requires 16 bytes per service of max-services and per
    /// CPU, at most 16 MiB if max-services is below a million.
    count_connections: bool = true;

    /// Sockets that nodelb closes when their backend is removed, so that their owners reconnect: "udp", "all" (also TCP
    /// connections to removed, but not to terminating backends) or "none".
    disconnect: Disconnect = Disconnect::Udp;

    /// How long TCP connections stay with a backend that is not ready or fails its health checks, while the service has
    /// others for the client: from "5s" on, or "forever". Otherwise, those to a node that has lost power hang until their
    /// programs give up. Requires disconnect = "all".
    disconnect_after: Hold = Hold(None), five_seconds;
}

/// A backend is often not ready for a moment.
fn five_seconds(after: &Hold) -> Result<(), String> {
    match after.0.is_some_and(|after| after < Duration::from_secs(5)) {
        true => Err("is shorter than 5s".into()),
        false => Ok(()),
    }
}

impl Datapath {
    /// Which sockets are closed, and how long those of TCP stay with a backend that is not ready; `None`: forever.
    pub(crate) fn disconnects(&self) -> (Disconnect, Option<Duration>) {
        (self.disconnect, self.disconnect_after.0)
    }

    fn together(&self) -> Vec<(&'static str, String)> {
        if self.disconnect_after.0.is_none() || self.disconnect == Disconnect::All {
            return Vec::new();
        }
        vec![("disconnect_after", "ends TCP connections only with disconnect = \"all\"; set both or neither".into())]
    }
}

section! {
    /// Logging.
    Log, "log", needs_restart = false;

    /// Minimum level of logged messages: "error", "warn", "info", "debug" or "trace".
    level: tracing::Level = tracing::Level::INFO;
}
