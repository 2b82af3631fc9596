//! Services with backends that answer clients outside directly: packets reach them unchanged, by their link-layer address or in
//! a tunnel, through either of two nodes of entry.
//!
//! ```text
//!  bridge lan (the sandbox)
//!    ├── entry-1 203.0.113.11, entry-2 203.0.113.12: nodes with a daemon
//!    ├── end-1 203.0.113.13, end-2 203.0.113.14: with backends, and a daemon if packets come in tunnels
//!    └── client 203.0.113.50, which reaches the services through entry-1
//! ```

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use nodelb_prober::Transport;
use socket2::{Domain, Protocol, Socket, Type};

use crate::fleet_hosts::join;
use crate::host::{Daemon, Host, eventually, frontend, get, is_served_by, say, socket};
use crate::lab::Place;
use crate::network::ip;
use crate::outside::{TRANSPORTS, wait_for_programs};
use crate::outside_changes::reload_until;
use crate::sandbox::{self, Sandbox};
use crate::talk::{SHORT, Server, TIMEOUT, Talk, ask};

pub(crate) const CLIENT: [&str; 2] = ["203.0.113.50", "2001:db8:1::50"];
/// The service, at port 80.
pub(crate) const SERVICE: [&str; 2] = ["198.51.100.10", "2001:db8:f::10"];
const PORT: u16 = 8_080;

/// A machine of the network, with its files.
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) host: Host,
    pub(crate) addresses: [String; 2],
    pub(crate) daemon: Option<Daemon>,
    /// `packets.direct-return`.
    pub(crate) has_direct_return: bool,
}

impl Node {
    pub(crate) fn new(sandbox: &Sandbox, name: &'static str, number: u8) -> Self {
        let addresses = [format!("203.0.113.{number}"), format!("2001:db8:1::{number}")];
        let place = machine(name, &addresses);
        place.set("net/ipv4/conf/all/rp_filter", "0");
        place.set("net/ipv4/conf/eth0/rp_filter", "0");
        let host = Host::another(sandbox, name);
        Self { place, host, addresses, daemon: None, has_direct_return: true }
    }

    /// Starts the daemon, which serves the service also where the machine has its address.
    pub(crate) fn start(&mut self, xdp: &str) {
        self.configure("on", xdp);
        let Self { place, host, .. } = &*self;
        self.daemon = Some(place.run(|| {
            let daemon = host.start();
            wait_for_programs("eth0");
            daemon
        }));
    }

    fn configure(&self, mode: &str, xdp: &str) {
        let own = SERVICE.map(|address| format!("{address}/{}", if address.contains(':') { 128 } else { 32 }));
        let packets = format!("mode = {mode:?}\nxdp = {xdp:?}\ndirect-return = {}\n", self.has_direct_return);
        self.host.configure(&format!("own-addresses = {own:?}\n[packets]\n{packets}"));
    }

    /// Leaves new connections of clients outside to others.
    pub(crate) fn drain(&self) {
        self.configure("drain", "off");
        let daemon = self.daemon.as_ref().unwrap();
        self.place.run(|| reload_until(daemon, "draining"));
    }

    /// Starts a server at the address of this machine and at those of the service.
    pub(crate) fn serve(&self, name: &str, has_service: bool) -> Server {
        let mut addresses: Vec<&str> = self.addresses.iter().map(String::as_str).collect();
        if has_service {
            self.place.ip(&format!("address add {}/32 dev lo", SERVICE[0]));
            self.place.ip(&format!("address add {}/128 dev lo nodad", SERVICE[1]));
            addresses.extend(SERVICE);
        }
        self.place.run(|| Server::start(name, &addresses, PORT))
    }
}

/// A machine on the bridge, with addresses of both families.
pub(crate) fn machine(name: &'static str, addresses: &[String; 2]) -> Place {
    let place = join(name, &addresses[0]);
    place.ip(&format!("address add {}/64 dev eth0 nodad", addresses[1]));
    place
}

pub(crate) struct Net {
    pub(crate) entries: [Node; 2],
    pub(crate) ends: [Node; 2],
    pub(crate) client: Place,
}

/// Makes the bridge.
pub(crate) fn make_lan(sandbox: &Sandbox) {
    let _ = Host::without_the_test(sandbox);
    ip(&["link", "add", "lan", "type", "bridge"]);
    ip(&["address", "add", "203.0.113.1/24", "dev", "lan"]);
    ip(&["link", "set", "lan", "up"]);
}

/// Lets the client reach the services through this node.
pub(crate) fn enter_by(client: &Place, node: &Node) {
    let [v4, v6] = &node.addresses;
    client.ip(&format!("route replace 198.51.100.0/24 via {v4}"));
    client.ip(&format!("-6 route replace 2001:db8:f::/48 via {v6}"));
}

/// The file of the service with the backends at these machines.
pub(crate) fn file(forward: &str, ends: &[&Node]) -> String {
    let port = if forward == "direct" { PORT } else { 80 };
    let frontends = SERVICE.iter().flat_map(|address| {
        let address = if address.contains(':') { format!("[{address}]") } else { (*address).to_owned() };
        ["TCP", "UDP"].map(|protocol| format!("\"{address}:{port}/{protocol}\""))
    });
    let backends = ends.iter().flat_map(|end| {
        let [v4, v6] = &end.addresses;
        [format!("\"{v4}:{PORT}\""), format!("\"[{v6}]:{PORT}\"")]
    });
    format!(
        "[[service]]\nname = \"lab/web\"\noutside = true\nforward = {forward:?}\nfrontends = [{}]\nbackends = [{}]\n",
        frontends.collect::<Vec<_>>().join(", "),
        backends.collect::<Vec<_>>().join(", "),
    )
}

/// As [`file`], with health checks that detect a change within half a second.
pub(crate) fn checked_file(forward: &str, ends: &[&Node]) -> String {
    let check = "type = \"tcp\"\ninterval = \"100ms\"\ntimeout = \"50ms\"\nrise = 2\nfall = 2\n";
    format!("{}[service.health-check]\n{check}", file(forward, ends))
}

/// The service, as `ADDRESS:PORT`.
pub(crate) fn service(forward: &str) -> [String; 2] {
    let port = if forward == "direct" { PORT } else { 80 };
    [format!("{}:{port}", SERVICE[0]), format!("[{}]:{port}", SERVICE[1])]
}

/// Waits until the node has read this file.
pub(crate) fn wait_for_file(node: &Node, forward: &str, ends: &[&Node]) {
    let backends: Vec<String> = ends.iter().map(|end| format!("{}:{PORT}/TCP", end.addresses[0])).collect();
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    let address = format!("{}/TCP", service(forward)[0]);
    eventually("the service has these backends", || node.place.run(|| is_served_by(&address, &backends)));
}

impl Net {
    fn new(sandbox: &Sandbox) -> Self {
        make_lan(sandbox);
        let client = machine("client", &CLIENT.map(str::to_owned));
        let entries = [Node::new(sandbox, "entry-1", 11), Node::new(sandbox, "entry-2", 12)];
        let ends = [Node::new(sandbox, "end-1", 13), Node::new(sandbox, "end-2", 14)];
        let net = Self { entries, ends, client };
        net.enter_by(0);
        net
    }

    /// Lets the client reach the services through this node.
    pub(crate) fn enter_by(&self, entry: usize) {
        enter_by(&self.client, &self.entries[entry]);
    }

    /// The address of a backend on the machine, for IPv4 packets in IPv6 tunnels. The kernel of the machine takes them out of
    /// their tunnels if `by_kernel`: as End.DX4 of RFC 8986, which does the same as a device of the type ip6tnl, and which
    /// every kernel has.
    fn ipv6_backend(&self, end: usize, by_kernel: bool) -> String {
        let [_, machine] = &self.ends[end].addresses;
        if !by_kernel {
            return machine.clone();
        }
        let address = format!("2001:db8:1::a{end}");
        let action = "encap seg6local action End.DX4 nh4 0.0.0.0 dev eth0";
        self.ends[end].place.ip(&format!("-6 route replace {address}/128 {action}"));
        for entry in &self.entries {
            entry.place.ip(&format!("-6 route replace {address}/128 via {machine}"));
        }
        address
    }

    fn stop(&mut self) {
        for node in self.entries.iter_mut().chain(&mut self.ends) {
            if let Some(daemon) = node.daemon.take() {
                daemon.stop();
                node.place.run(|| node.host.cleanup());
            }
        }
        self.enter_by(0);
    }

    /// Describes the service to the nodes of entry, and to the others if `with_ends`.
    pub(crate) fn describe(&self, forward: &str, ends: &[usize], with_ends: bool) {
        let ends: Vec<&Node> = ends.iter().map(|end| &self.ends[*end]).collect();
        let text = file(forward, &ends);
        let others = if with_ends { &self.ends[..] } else { &[] };
        for node in self.entries.iter().chain(others) {
            node.host.serve("web.toml", &text);
        }
        for node in self.entries.iter().filter(|node| node.daemon.is_some()) {
            wait_for_file(node, forward, &ends);
        }
    }

    /// Translates the service from now on, with both backends.
    pub(crate) fn translate(&self, forward: &str) {
        let ends = self.ends.each_ref();
        let text = file(forward, &ends).replace(&format!("forward = {forward:?}"), "forward = \"translate\"");
        for node in self.daemons() {
            node.host.serve("web.toml", &text);
            wait_for_file(node, forward, &ends);
        }
    }

    /// Removes the service.
    pub(crate) fn withdraw(&self, forward: &str) {
        let address = format!("{}/TCP", service(forward)[0]);
        for node in self.daemons() {
            node.host.withdraw("web.toml");
            eventually("the service is gone", || node.place.run(|| frontend(&address).is_none()));
        }
    }

    /// The nodes with a daemon: those of the backends have one if packets come in tunnels.
    fn daemons(&self) -> impl Iterator<Item = &Node> {
        self.entries.iter().chain(&self.ends).filter(|node| node.daemon.is_some())
    }
}

/// Starts everything, and runs the test with both kinds of direct return.
pub(crate) fn with_both(test: &str, xdp: &str, body: impl Fn(&mut Net, &str)) {
    sandbox::run(test, |sandbox| {
        let mut net = Net::new(sandbox);
        for forward in ["tunnel", "direct"] {
            say(&format!("forward = {forward:?}, xdp = {xdp:?}"));
            let is_tunnel = forward == "tunnel";
            let _servers = [net.ends[0].serve("1", !is_tunnel), net.ends[1].serve("2", !is_tunnel)];
            net.describe(forward, &[0, 1], is_tunnel);
            let count = if is_tunnel { 2 } else { 0 };
            net.entries.iter_mut().for_each(|node| node.start(xdp));
            net.ends.iter_mut().take(count).for_each(|node| node.start("off"));
            body(&mut net, forward);
            net.stop();
        }
    });
}

/// The route of a machine to the address, with what it has learned about the path.
fn route(place: &Place, address: &str) -> String {
    let output = place.run(|| sandbox::program("ip").args(["route", "get", address]).output().unwrap());
    String::from_utf8(output.stdout).unwrap()
}

/// Each of many connections reaches a backend, which sees the client; all backends get some.
fn assert_direct(net: &mut Net, forward: &str) {
    for (address, client) in service(forward).iter().zip(CLIENT) {
        assert_reached(net, address, client);
    }
}

fn assert_reached(net: &Net, address: &str, client: &str) {
    for transport in TRANSPORTS {
        let answers = (0..40).map(|number| {
            let answer = net.client.run(|| ask(address, transport, TIMEOUT));
            answer.unwrap_or_else(|error| panic!("{address} {transport:?} {number}: {error}"))
        });
        let mut names = BTreeSet::new();
        for answer in answers {
            assert_eq!(answer.seen.to_string(), client, "{address} {transport:?}");
            names.insert(answer.name);
        }
        assert_eq!(names.len(), 2, "{address} {transport:?}: {names:?}");
    }
}

#[test]
fn backends_see_and_answer_the_client() {
    with_both("outside_direct::backends_see_and_answer_the_client", "off", assert_direct);
}

#[test]
fn backends_see_and_answer_the_client_with_xdp() {
    with_both("outside_direct::backends_see_and_answer_the_client_with_xdp", "generic", assert_direct);
}

/// A line and a datagram that need more than one packet, in both directions. In a tunnel, the largest packets of the client
/// are too big for the link, and it learns that.
fn assert_large(net: &mut Net, forward: &str) {
    for address in &service(forward) {
        assert_large_at(net, address);
    }
    let has_less = service(forward).iter().all(|address| {
        let address = address.rsplit_once(':').unwrap().0.trim_matches(['[', ']']);
        let mtu = if address.contains(':') { "mtu 1460" } else { "mtu 1480" };
        route(&net.client, address).contains(mtu)
    });
    assert_eq!(has_less, forward == "tunnel", "what the client knows of the path");
}

fn assert_large_at(net: &Net, address: &str) {
    let mut stream = net.client.run(|| Talk::open(address, Transport::Tcp, TIMEOUT)).unwrap();
    let line = "0123456789abcdef".repeat(100_000);
    let answer = stream.send(&line).unwrap_or_else(|error| panic!("{address}: {error}"));
    assert!(answer.trim_end().ends_with(&line), "{address}: {} bytes", answer.len());
    let mut datagrams = net.client.run(|| Talk::open(address, Transport::Udp, SHORT)).unwrap();
    for length in [1_400, 1_452, 4_000, 20_000] {
        let text = "x".repeat(length);
        // The first one that is too big is lost.
        let answers = (0..3).find_map(|_| datagrams.send(&text).ok());
        let answer = answers.unwrap_or_else(|| panic!("{address}: no answer to {length} bytes"));
        assert!(answer.ends_with(&text), "{address}: {} of {length} bytes", answer.len());
    }
}

#[test]
fn large_transfers_and_datagrams_arrive() {
    with_both("outside_direct::large_transfers_and_datagrams_arrive", "off", assert_large);
}

#[test]
fn large_transfers_and_datagrams_arrive_with_xdp() {
    with_both("outside_direct::large_transfers_and_datagrams_arrive_with_xdp", "generic", assert_large);
}

/// An ICMP error about a datagram of the service to the client: it is too big for a path with 1,300 bytes.
fn too_big(service: &str, client: (&str, u16)) -> Vec<u8> {
    let (service, port) = (socket(service), client.1);
    let octets = |address: &str| address.parse::<Ipv4Addr>().unwrap().octets();
    let mut inner = vec![0x45, 0, 0x05, 0xdc, 0, 1, 0x40, 0, 63, 17, 0, 0];
    inner.extend(octets(&service.ip().to_string()));
    inner.extend(octets(client.0));
    inner.extend([service.port(), port, 1_480, 0].iter().flat_map(|number: &u16| number.to_be_bytes()));
    let mut error = vec![3, 4, 0, 0, 0, 0, 0x05, 0x14];
    error.extend(inner);
    let sum: u32 = error.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    error[2..4].copy_from_slice(&sum.to_be_bytes());
    error
}

/// The answers of backends pass no node of entry, but errors about them arrive at any.
#[test]
fn an_error_about_an_answer_reaches_the_backend_through_any_node() {
    let test = "outside_direct::an_error_about_an_answer_reaches_the_backend_through_any_node";
    with_both(test, "off", |net, forward| {
        let address = &service(forward)[0];
        let mut talk = net.client.run(|| Talk::open(address, Transport::Udp, TIMEOUT)).unwrap();
        let name = talk.ask().unwrap().name;
        net.enter_by(1);
        net.client.run(|| {
            let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
            raw.send_to(&too_big(address, (CLIENT[0], talk.port())), &socket(address).into()).unwrap();
        });
        let of_backend = &net.ends[usize::from(name == "2")];
        eventually("the backend knows the MTU of the path to the client", || {
            route(&of_backend.place, CLIENT[0]).contains("mtu 1300")
        });
    });
}

/// IPv4 clients get answers of backends with IPv6 addresses. These have the service's address, and the port of the service.
fn assert_ipv4_in_ipv6(test: &str, xdp: &str) {
    sandbox::run(test, |sandbox| {
        let mut net = Net::new(sandbox);
        let _servers = [net.ends[0].serve("1", true), net.ends[1].serve("2", true)];
        let address = format!("{}:{PORT}", SERVICE[0]);
        for by_kernel in [true, false] {
            say(&format!("the kernel unwraps: {by_kernel}, xdp = {xdp:?}"));
            let backends = [0, 1].map(|end| format!("[{}]:{PORT}", net.ipv6_backend(end, by_kernel)));
            let text = format!(
                "[[service]]\nname = \"lab/web\"\noutside = true\nforward = \"tunnel\"\n\
                 frontends = [\"{address}/TCP\", \"{address}/UDP\"]\nbackends = {backends:?}\n"
            );
            net.entries.iter().chain(&net.ends).for_each(|node| node.host.serve("web.toml", &text));
            net.entries.iter_mut().for_each(|node| node.start(xdp));
            let ends = if by_kernel { &mut [][..] } else { &mut net.ends };
            ends.iter_mut().for_each(|node| node.start("off"));
            assert_reached(&net, &address, CLIENT[0]);
            assert_large_at(&net, &address);
            assert!(route(&net.client, SERVICE[0]).contains("mtu 1460"), "what the client knows of the path");
            net.entries[0].place.run(|| {
                let served = backends.each_ref().map(|backend| format!("{backend}/TCP"));
                assert!(is_served_by(&format!("{address}/TCP"), &served.each_ref().map(String::as_str)));
            });
            net.stop();
        }
    });
}

#[test]
fn ipv4_packets_reach_ipv6_backends() {
    assert_ipv4_in_ipv6("outside_direct::ipv4_packets_reach_ipv6_backends", "off");
}

#[test]
fn ipv4_packets_reach_ipv6_backends_with_xdp() {
    assert_ipv4_in_ipv6("outside_direct::ipv4_packets_reach_ipv6_backends_with_xdp", "generic");
}

/// Breaks the way of the packets to a machine, or restores it. Its own address serves all the time.
fn set_way(node: &mut Node, forward: &str, is_intact: bool) {
    match (forward, is_intact) {
        ("tunnel", true) => node.start("off"),
        ("tunnel", false) => {
            node.daemon.take().unwrap().stop();
            node.place.run(|| node.host.cleanup());
        }
        (_, is_intact) => {
            let (command, option) = if is_intact { ("add", " nodad") } else { ("delete", "") };
            node.place.ip(&format!("address {command} {}/32 dev lo", SERVICE[0]));
            node.place.ip(&format!("address {command} {}/128 dev lo{option}", SERVICE[1]));
        }
    }
}

/// A backend that takes connections at its own address, but none of a client's packets.
#[test]
fn health_checks_go_the_way_of_the_traffic() {
    with_both("outside_direct::health_checks_go_the_way_of_the_traffic", "generic", |net, forward| {
        let text = checked_file(forward, &[&net.ends[0], &net.ends[1]]);
        net.entries[0].host.serve("web.toml", &text);
        let assert_served = |net: &Net, ends: &[usize], what: &str| {
            for (family, address) in service(forward).iter().enumerate() {
                let backends = ends.iter().map(|end| match family {
                    0 => format!("{}:{PORT}/TCP", net.ends[*end].addresses[0]),
                    _ => format!("[{}]:{PORT}/TCP", net.ends[*end].addresses[1]),
                });
                let backends: Vec<String> = backends.collect();
                let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
                let entry = &net.entries[0];
                eventually(what, || entry.place.run(|| is_served_by(&format!("{address}/TCP"), &backends)));
            }
        };
        set_way(&mut net.ends[0], forward, false);
        assert_served(net, &[1], "the backend that clients cannot reach is unhealthy");
        // Another port might be that of a translated connection to the same backend.
        let listed = net.entries[0].place.run(|| get("/connections").unwrap());
        let checks = listed["connections"].as_array().unwrap().iter().filter(|row| row["service"] == "(this node)");
        let kept: Vec<bool> = checks.map(|row| row["sourceAddress"].is_null()).collect();
        assert!(kept.contains(&true) && !kept.contains(&false), "checks keep the port of their socket: {listed:#}");
        set_way(&mut net.ends[0], forward, true);
        assert_served(net, &[0, 1], "both are healthy");
        thread::sleep(Duration::from_secs(1));
        assert_served(net, &[0, 1], "both still are");
    });
}
