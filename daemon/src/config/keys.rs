//! Every configuration key, once: its name, type, default, check, and the comment that documents it here and in
//! `config.example.toml`.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use nodelb_cli::client::{DEFAULT_LISTEN, DEFAULT_SOCKET};
use nodelb_core::model::node::NodePortAddress;
use nodelb_kube::apiserver::address::Server;
use serde::Deserialize;

use super::kubernetes::{Together, each_once, proxy_or_empty, together};
use super::values::{
    Disconnect, Mode, PortRange, Setting, absolute, absolute_or_empty, between, file_or_credential, loopback,
    name_or_empty, node_name_or_empty, own_directory, reachable, socket_path,
};

/// A key of a configuration, ready to be printed.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) section: &'static str,
    pub(super) name: String,
    /// Lines, each with its leading space.
    pub(super) comment: &'static [&'static str],
    /// In TOML.
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
/// `together` the problems of combinations of keys.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $type:ident, $section:literal, needs_restart = $needs_restart:literal $(, together = $together:expr)?;
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
                vec![ $( Key {
                    section: $section,
                    name: stringify!($key).replace('_', "-"),
                    comment: &[ $( $comment ),+ ],
                    value: self.$key.to_toml().to_string(),
                    needs_restart: $needs_restart,
                }, )+ ]
            }
        }
    };
}

section! {
    /// Where nodelb runs: what traffic policies and topology hints are measured against.
    Node, "node", needs_restart = false;

    /// Name of this node; a backend is local when its node has the same name. Its case and the white space around it do not
    /// count. Empty: the host name at the start or reload, in lower case.
    name: String = String::new(), node_name_or_empty;

    /// Zone of this node, compared with the zones that backends are meant for. Empty: unknown.
    zone: String = String::new(), name_or_empty;

    /// On which of this node's addresses NodePorts are answered: "primary" are those of the Node object, else those the
    /// default routes go out from; "loopback" are 127.0.0.1 and ::1, for processes outside of containers; a CIDR is every
    /// address in it, loopback and link-local ones only if it holds no others. Addresses are followed as they come and go.
    nodeport_addresses: Vec<NodePortAddress> = vec![NodePortAddress::Primary];
}

section! {
    /// Services in local files.
    Files, "files", needs_restart = false;

    /// Directory of service files: *.toml in nodelb's own form, *.yaml and *.json with Kubernetes Services and
    /// EndpointSlices. It is watched; no reload is needed after a change in it.
    directory: PathBuf = PathBuf::from("/etc/nodelb/services.d"), absolute;
}

section! {
    /// The cluster whose services are read. Without kubeconfig and apiserver: none.
    Kubernetes, "kubernetes", needs_restart = true, together = Kubernetes::together;

    /// Whether services are read from Kubernetes. At a start with "false" nodelb removes the services that it has from
    /// Kubernetes. Leaving out the other keys does not remove them: it keeps them as last known, and warns.
    enabled: bool = true;

    /// Kubeconfig with the server and the credentials of its current context. They are read again when they change.
    /// Instead of a path, here and in the next two keys: "credential:nodelb.kubeconfig" is the credential of that name which
    /// systemd hands over from /etc/credstore/nodelb.kubeconfig (the next: nodelb.token, nodelb.ca). It is copied at the
    /// start: for what is rotated, such as a token, set a path.
    kubeconfig: PathBuf = PathBuf::new(), file_or_credential;

    /// File with a bearer token, where there is no kubeconfig.
    token_file: PathBuf = PathBuf::new(), file_or_credential;

    /// Certificate authority of the apiservers in PEM, where there is no kubeconfig.
    ca_file: PathBuf = PathBuf::new(), file_or_credential;

    /// HTTP proxy to the apiservers, such as "http://192.0.2.9:3128". Proxy variables of the environment are ignored.
    proxy: String = String::new(), proxy_or_empty;

    /// Addresses in these are services, never apiservers. What the cluster itself says about them is added.
    service_cidrs: Vec<IpNet> = Vec::new();

    /// Apiservers in the order of preference, before the kubeconfig's. Each has an address, HOST:PORT, best an IP address,
    /// and a tls-server-name if the certificate does not carry that host:
    ///   apiserver = [
    ///     { address = "192.0.2.1:6443", tls-server-name = "kubernetes" },
    ///   ]
    apiserver: Vec<Server> = Vec::new(), each_once;

    /// Where load balancers ask whether this node works and stays: /healthz and /livez, as kube-proxy answers there. For
    /// everybody to reach; [::] is every address, IPv4 too. Empty: nowhere.
    healthz_addresses: Vec<SocketAddr> = vec![([0_u16; 8], 10256).into()], reachable;

    /// Write a Kubernetes Event on a Service when it is held, refused, in conflict with another or has lost its last
    /// backend: one for each reason, repeated with a count. Each node writes its own.
    events: bool = false;
}

impl Kubernetes {
    fn together(&self) -> Vec<(&'static str, String)> {
        let Self { kubeconfig, token_file, ca_file, apiserver, service_cidrs, .. } = self;
        together(Together { kubeconfig, token_file, ca_file, apiserver, service_cidrs })
    }
}

section! {
    /// What outlives a reboot.
    State, "state", needs_restart = true;

    /// Directory for what was learned: the apiserver addresses that worked, the services and this Node as last known,
    /// which backends failed their health checks, and what became of services (`nodelb history`).
    directory: PathBuf = PathBuf::from("/var/lib/nodelb"), absolute;
}

section! {
    /// The admin API.
    Admin, "admin", needs_restart = true;

    /// Where the read-only admin API listens. Loopback addresses only. One that cannot be opened, on a host without IPv6 for
    /// example, is left out with a warning and tried again every few seconds: nodelb serves without it.
    listen: Vec<SocketAddr> = DEFAULT_LISTEN.to_vec(), loopback;

    /// Unix socket on which it is answered, too: the command line asks there first. For root and the daemon's group only.
    /// Where its directory does not exist it is left out. Empty: none.
    socket: PathBuf = PathBuf::from(DEFAULT_SOCKET), socket_path;
}

section! {
    /// What holds the maps.
    Datapath, "datapath", needs_restart = true;

    /// "kernel" translates connections; "memory" does everything but that, without any privilege.
    mode: Mode = Mode::Kernel;

    /// Cgroup whose processes get their connections translated. Empty: the root of cgroup v2, that is all of them.
    cgroup: PathBuf = PathBuf::new(), absolute_or_empty;

    /// Where the maps and links are pinned: a directory of nodelb's own in a BPF file system. Before it is changed, stop the
    /// daemon and run `nodelb cleanup`: what is pinned in the old one stays attached, in front of the new one, for ever; then
    /// `/readyz` says so, with the command that ends it.
    pin_directory: PathBuf = PathBuf::from("/sys/fs/bpf/nodelb"), own_directory;

    /// Most frontend addresses. All services together, and two of nodelb's own; a NodePort counts once per address family.
    max_frontends: u32 = 131_072, between::<3, 16_777_216>;

    /// Most service ports, counted once per address family.
    max_services: u32 = 65_536, between::<2, 16_777_216>;

    /// Most places in the backend lists of all service ports; a backend of weight 3 takes three in each list.
    max_slots: u32 = 524_288, between::<1, 16_777_216>;

    /// Most clients with session affinity remembered; beyond it the one seen longest ago is forgotten.
    max_affinity: u32 = 65_536, between::<1, 16_777_216>;

    /// Destinations never translated, whatever the services say: addresses or CIDRs.
    bypass: Vec<IpNet> = Vec::new();

    /// Addresses or CIDRs in which externalIPs of Kubernetes Services are served. With them whoever may write a Service
    /// can take over any address on this node (CVE-2020-8554), so none are.
    external_ips: Vec<IpNet> = Vec::new();

    /// Ports that may be NodePorts: connections to others on this node's addresses are never looked up as such.
    nodeport_range: PortRange = PortRange { first: 30_000, last: 32_767 };

    /// Keep processes of this node from binding a NodePort that is served: they get "address already in use". Backends of the
    /// service on this node may, and so may a process to which the kernel gives the port for port 0.
    protect_nodeports: bool = true;

    /// Count the connections of each service, for the metrics. Takes 16 bytes for each of
    /// max-services and each CPU, but 16 MiB at most where max-services is below a million.
    count_connections: bool = true;

    /// Which sockets are ended, for their owners to dial again, when their backend is gone: "udp" ones, "all" (TCP to
    /// backends that are gone, not to those that terminate) or "none".
    disconnect: Disconnect = Disconnect::Udp;
}

section! {
    /// What is logged.
    Log, "log", needs_restart = false;

    /// Least severe level that is logged: "error", "warn", "info", "debug" or "trace".
    level: tracing::Level = tracing::Level::INFO;
}
