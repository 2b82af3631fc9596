//! The fleet of docs/fleet.md: plain hosts on one network, and the API servers that they share. The objects and the
//! configuration are those that the page shows.
//!
//! ```text
//!  API servers 203.0.113.1, .2 (the sandbox)
//!        │ bridge lan
//!        ├── host-1 203.0.113.11   each with a daemon,
//!        ├── host-2 203.0.113.12   cgroup and pins of its own,
//!        ├── host-3 203.0.113.13   and a backend on port 8080
//!        └── client 203.0.113.50
//! ```

use std::net::SocketAddr;

use ipnet::IpNet;
use nodelb_apiserver::{Cluster, Credentials, Ranges, Replica, Role};
use nodelb_prober::{Backend, Transport};
use serde_json::Value;

use crate::cluster::{in_order, serve};
use crate::host::{Daemon, Host, eventually, get, is_served_by};
use crate::lab::Place;
use crate::network::ip;
use crate::sandbox::Sandbox;

/// The page.
const PAGE: &str = include_str!("../../docs/fleet.md");
/// The API servers.
pub(crate) const SERVERS: [&str; 2] = ["203.0.113.1:6443", "203.0.113.2:6443"];
/// The hosts with their addresses.
pub(crate) const HOSTS: [(&str, &str); 3] =
    [("host-1", "203.0.113.11"), ("host-2", "203.0.113.12"), ("host-3", "203.0.113.13")];
/// The port of the backends.
const PORT: u16 = 8_080;
/// The service of the page, as `ADDRESS:PORT`.
pub(crate) const WEB: &str = "10.43.0.80:80";

/// The indented block of the page that begins with this line.
pub(crate) fn block(first: &str) -> String {
    let start = PAGE.find(&format!("    {first}\n")).unwrap_or_else(|| panic!("docs/fleet.md shows no {first}"));
    let lines = PAGE[start..].lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    lines.map(|line| format!("{}\n", line.strip_prefix("    ").unwrap_or_default())).collect()
}

/// The machine with this name on the bridge of the sandbox.
pub(crate) fn join(name: &'static str, address: &str) -> Place {
    let place = Place::make(name);
    ip(&["link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name]);
    ip(&["link", "set", name, "master", "lan", "up"]);
    place.ip(&format!("address add {address}/24 dev eth0"));
    place.ip("link set eth0 up");
    place.ip("route add default via 203.0.113.1");
    place
}

/// A host with its daemon.
pub(crate) struct Member {
    pub(crate) place: Place,
    pub(crate) host: Host,
    pub(crate) daemon: Option<Daemon>,
    address: &'static str,
}

impl Member {
    /// Starts its daemon and waits until it serves.
    pub(crate) fn start(&mut self) {
        let Self { place, host, .. } = &*self;
        self.daemon = Some(place.run(|| host.start()));
    }

    /// Restarts its daemon, and does not wait until it is ready.
    pub(crate) fn restart(&mut self) {
        self.daemon.take().unwrap().stop();
        let Self { place, host, .. } = &*self;
        self.daemon = Some(place.run(|| host.spawn(None)));
    }

    /// Whether connections of this host to the address reach exactly these backends.
    pub(crate) fn has(&self, address: &str, backends: &[&str]) -> bool {
        self.place.run(|| is_served_by(&format!("{address}/TCP"), backends))
    }

    /// `nodelb status` as data.
    pub(crate) fn status(&self) -> Value {
        self.place.run(|| get("/status")).unwrap()
    }

    /// Starts a backend of this host; its name tells its version.
    pub(crate) fn backend(&self, version: &str) -> Backend {
        let at = SocketAddr::new(self.address.parse().unwrap(), PORT);
        self.place.run(|| Backend::start(version, &[(Transport::Tcp, at)])).unwrap()
    }
}

/// See the module.
pub(crate) struct Fleet {
    pub(crate) cluster: Cluster,
    pub(crate) servers: Vec<Replica>,
    pub(crate) members: Vec<Member>,
}

impl Fleet {
    /// Builds the network and the hosts, without starting their daemons. Their configuration is that of the page, with
    /// `further` lines of `[datapath]` and other sections.
    pub(crate) fn new(sandbox: &Sandbox, further: &str) -> Self {
        let first = Host::without_the_test(sandbox);
        ip(&["link", "add", "lan", "type", "bridge"]);
        for address in SERVERS.map(|server| server.replace(":6443", "/24")) {
            ip(&["address", "add", &address, "dev", "lan"]);
        }
        ip(&["link", "set", "lan", "up"]);
        let addresses = vec!["10.43.0.0/16".parse::<IpNet>().unwrap()];
        let cluster = Cluster::with(Ranges { addresses, ..Ranges::default() }).unwrap();
        let reads = Role::none().and(&["list", "watch"], &["services", "endpointslices"]);
        cluster.allow("nodelb", reads.and(&["list"], &["servicecidrs"]));
        let mut hosts = vec![first];
        hosts.extend(HOSTS[1..].iter().map(|(name, _)| Host::another(sandbox, name)));
        let members = hosts.into_iter().zip(HOSTS);
        let members = members.map(|(host, (name, address))| {
            configure(&host, name, &cluster, further);
            Member { place: join(name, address), host, daemon: None, address }
        });
        let members = members.collect();
        let servers = SERVERS.map(|at| serve(&cluster, at)).into();
        Self { cluster, servers, members }
    }

    /// Waits until every host with a daemon sends connections to exactly these backends.
    pub(crate) fn wait_for(&self, address: &str, hosts: &[&str]) {
        let backends: Vec<String> = hosts.iter().map(|host| format!("{host}:{PORT}/TCP")).collect();
        let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
        for member in self.members.iter().filter(|member| member.daemon.is_some()) {
            let what = format!("{} leads to {backends:?} on {}", address, member.address);
            eventually(&what, || member.has(address, &backends));
        }
    }
}

/// Writes the configuration of the page, with the files and servers of the sandbox.
fn configure(host: &Host, name: &str, cluster: &Cluster, further: &str) {
    let url = format!("https://{}", SERVERS[0]);
    let token = Credentials::Token(cluster.token("nodelb").unwrap());
    host.write("kubeconfig", &cluster.kubeconfig_for(&token, &[&url]));
    let shown = block("[node]");
    let kubeconfig = format!("{:?}", host.path("kubeconfig"));
    let shown = shown.replace("\"host-1\"", &format!("{name:?}")).replace("\"/etc/nodelb/kubeconfig\"", &kubeconfig);
    assert!(shown.contains(&kubeconfig) && shown.contains("health-checks = true"), "{shown}");
    let own: Vec<&str> = shown.lines().filter(|line| !line.contains("apiserver")).collect();
    host.configure(&format!("{further}\n{}\n{}", own.join("\n"), in_order(&SERVERS)));
}
