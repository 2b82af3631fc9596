//! A network around the node of a sandbox: a router, a client behind it, a second node, and pods on
//! both nodes. All of them have IPv4 and IPv6 addresses. Independent of nodelb.
//!
//! ```text
//!  client 203.0.113.10 ── router ── node A (the sandbox) 203.0.113.2 ── pods 203.0.113.34, .38
//!                            │        uplink
//!                            └────── node B 203.0.113.18 ── pod 203.0.113.66
//! ```
//!
//! The router sends the service addresses 198.51.100.0/24 and 2001:db8:f::/48 to node A.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::reach::reach;
use crate::sandbox::command;

/// The device of node A that leads to the router.
pub(crate) const UPLINK: &str = "uplink";
/// The addresses of the client.
pub(crate) const CLIENT: [&str; 2] = ["203.0.113.10", "2001:db8:2::10"];
/// The addresses of node A.
pub(crate) const NODE_A: [&str; 2] = ["203.0.113.2", "2001:db8:1::2"];
/// The addresses of node B.
pub(crate) const NODE_B: [&str; 2] = ["203.0.113.18", "2001:db8:3::2"];
/// The addresses of the first pod on node A.
pub(crate) const POD_A1: [&str; 2] = ["203.0.113.34", "2001:db8:a1::2"];
/// The addresses of the second pod on node A.
pub(crate) const POD_A2: [&str; 2] = ["203.0.113.38", "2001:db8:a2::2"];
/// The addresses of the pod on node B.
pub(crate) const POD_B: [&str; 2] = ["203.0.113.66", "2001:db8:b1::2"];

/// A network namespace with a name, as `ip netns` makes it.
#[derive(Debug)]
pub(crate) struct Place(&'static str);

impl Place {
    pub(crate) fn make(name: &'static str) -> Self {
        ip(&["netns", "add", name]);
        let place = Self(name);
        place.ip("link set lo up");
        place.set("net/ipv4/ip_forward", "1");
        place.set("net/ipv6/conf/all/forwarding", "1");
        place
    }

    /// Runs `ip` in the namespace.
    pub(crate) fn ip(&self, words: &str) {
        let mut arguments = vec!["-n", self.0];
        arguments.extend(words.split(' '));
        ip(&arguments);
    }

    /// Writes a sysctl of the namespace.
    pub(crate) fn set(&self, sysctl: &str, value: &str) {
        self.run(|| fs::write(format!("/proc/sys/{sysctl}"), value).unwrap());
    }

    /// Runs `work` in a thread inside the namespace and returns its result. Sockets and processes
    /// that it creates stay there.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.0);
        let inside = || {
            let namespace = File::open(path).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        let result = thread::scope(|scope| scope.spawn(inside).join());
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The network; see the module. It is removed with the sandbox.
#[derive(Debug)]
pub(crate) struct Lab {
    /// The machine outside both nodes.
    pub(crate) client: Place,
    /// The router between the client and the nodes.
    pub(crate) router: Place,
    /// The second node.
    pub(crate) node_b: Place,
    /// The first pod on node A.
    pub(crate) pod_a1: Place,
    /// The second pod on node A.
    pub(crate) pod_a2: Place,
    /// The pod on node B.
    pub(crate) pod_b: Place,
}

impl Lab {
    /// Builds the network around the sandbox, which becomes node A. Needs a writable `/run`: in `netns.rs`, call it
    /// after `Host::new`.
    pub(crate) fn new() -> Self {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
        let [client, router, node_b, pod_a1, pod_a2, pod_b] =
            ["client", "router", "node-b", "pod-a1", "pod-a2", "pod-b"].map(Place::make);
        let lab = Self { client, router, node_b, pod_a1, pod_a2, pod_b };
        lab.join_router();
        lab.join_pods();
        lab.warm_up();
        lab
    }

    /// Adds a second link between node A and the router, by the devices `second` and `node-a2`.
    pub(crate) fn add_second_uplink(&self) {
        ip(&["link", "add", "second", "type", "veth", "peer", "name", "node-a2", "netns", "router"]);
        ip(&["address", "add", "203.0.113.42/30", "dev", "second"]);
        ip(&["address", "add", "2001:db8:4::2/64", "dev", "second", "nodad"]);
        ip(&["link", "set", "second", "up"]);
        self.router.ip("address add 203.0.113.41/30 dev node-a2");
        self.router.ip("address add 2001:db8:4::1/64 dev node-a2 nodad");
        self.router.ip("link set node-a2 up");
    }

    fn join_router(&self) {
        ip(&["link", "add", UPLINK, "type", "veth", "peer", "name", "node-a", "netns", self.router.0]);
        ip(&["address", "add", "203.0.113.2/29", "dev", UPLINK]);
        ip(&["address", "add", "2001:db8:1::2/64", "dev", UPLINK, "nodad"]);
        ip(&["link", "set", UPLINK, "up"]);
        ip(&["route", "add", "default", "via", "203.0.113.1"]);
        self.router.ip("address add 203.0.113.1/29 dev node-a");
        self.router.ip("address add 2001:db8:1::1/64 dev node-a nodad");
        self.router.ip("link set node-a up");
        ip(&["-6", "route", "add", "default", "via", "2001:db8:1::1"]);
        let far = [
            (&self.client, "203.0.113.10/29", "2001:db8:2::10/64"),
            (&self.node_b, "203.0.113.18/29", "2001:db8:3::2/64"),
        ];
        let near = [("203.0.113.9", "2001:db8:2::1"), ("203.0.113.17", "2001:db8:3::1")];
        for ((place, v4, v6), (router4, router6)) in far.into_iter().zip(near) {
            let device = place.0;
            self.router.ip(&format!("link add {device} type veth peer name {UPLINK} netns {device}"));
            self.router.ip(&format!("address add {router4}/29 dev {device}"));
            self.router.ip(&format!("address add {router6}/64 dev {device} nodad"));
            self.router.ip(&format!("link set {device} up"));
            place.ip(&format!("address add {v4} dev {UPLINK}"));
            place.ip(&format!("address add {v6} dev {UPLINK} nodad"));
            place.ip(&format!("link set {UPLINK} up"));
            place.ip(&format!("route add default via {router4}"));
            place.ip(&format!("-6 route add default via {router6}"));
        }
        for (network, gateway) in [
            ("198.51.100.0/24", "203.0.113.2"),
            ("203.0.113.32/27", "203.0.113.2"),
            ("203.0.113.64/27", "203.0.113.18"),
            ("2001:db8:f::/48", "2001:db8:1::2"),
            ("2001:db8:a1::/64", "2001:db8:1::2"),
            ("2001:db8:a2::/64", "2001:db8:1::2"),
            ("2001:db8:b1::/64", "2001:db8:3::2"),
        ] {
            self.router.ip(&format!("route add {network} via {gateway}"));
        }
    }

    fn join_pods(&self) {
        let sides = [(&self.pod_a1, 33, "a1"), (&self.pod_a2, 37, "a2")];
        for (pod, host, network) in sides {
            let device = pod.0;
            ip(&["link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", device]);
            ip(&["address", "add", &format!("203.0.113.{host}/30"), "dev", device]);
            ip(&["address", "add", &format!("2001:db8:{network}::1/64"), "dev", device, "nodad"]);
            ip(&["link", "set", device, "up"]);
            enter(pod, host, network);
        }
        self.node_b.ip("link add pod-b type veth peer name eth0 netns pod-b");
        self.node_b.ip("address add 203.0.113.65/30 dev pod-b");
        self.node_b.ip("address add 2001:db8:b1::1/64 dev pod-b nodad");
        self.node_b.ip("link set pod-b up");
        enter(&self.pod_b, 65, "b1");
    }

    /// Makes every neighbour known, so that the first packet of a test does not wait for one.
    fn warm_up(&self) {
        for address in [NODE_A, POD_A1, POD_A2, POD_B, NODE_B].into_iter().flatten() {
            self.client.run(|| reach(address));
        }
        for address in POD_B.into_iter().chain(CLIENT) {
            reach(address);
        }
    }
}

/// Gives a pod its addresses and routes.
fn enter(pod: &Place, host: u8, network: &str) {
    pod.ip(&format!("address add 203.0.113.{}/30 dev eth0", host + 1));
    pod.ip(&format!("address add 2001:db8:{network}::2/64 dev eth0 nodad"));
    pod.ip("link set eth0 up");
    pod.ip(&format!("route add default via 203.0.113.{host}"));
    pod.ip(&format!("-6 route add default via 2001:db8:{network}::1"));
}

fn ip(arguments: &[&str]) {
    command("ip", arguments);
}
