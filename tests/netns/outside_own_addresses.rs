//! Addresses of services on an interface of a node (`datapath.own-addresses`), as keepalived and kube-vip
//! assign them: they move between two nodes while clients connect.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use nodelb_prober::{SetAtEnd, Transport};

use crate::host::{Daemon, Host, eventually, frontend};
use crate::lab::{CLIENT, Lab, NODE_A, POD_A1, POD_B};
use crate::lab_services::{ON_A1, ON_B, PACKETS_ON, Service};
use crate::network::ip;
use crate::outside::{TRANSPORTS, start, wait_for_programs};
use crate::outside_changes::ask_from_the_node;
use crate::sandbox;
use crate::talk::{Server, TIMEOUT, Talk, ask};

/// The load balancer addresses of service 1, as they are assigned to an interface.
const ASSIGNED: [&str; 2] = ["198.51.100.101/32", "2001:db8:f:1::1/128"];
/// The configuration that allows them.
const ALLOWED: &str = "own-addresses = [\"198.51.100.101\", \"2001:db8:f:1::/64\"]";

/// Runs `body` with both nodes and a server for each backend of service 1. The second node has no
/// daemon.
fn in_lab(test: &str, body: impl FnOnce(&Host, Host, &Lab)) {
    sandbox::run(&format!("outside_own_addresses::{test}"), |sandbox| {
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        join_segment(&lab);
        let _near = lab.pod_a1.run(|| Server::start("a1", &POD_A1, 8_001));
        let _far = lab.pod_b.run(|| Server::start("b", &POD_B, 8_001));
        body(&host, Host::another(sandbox, "nodelb-b"), &lab);
    });
}

/// Connects the router and both nodes by a bridge. The router finds the node with the address of the
/// service there, by ARP and neighbour discovery.
fn join_segment(lab: &Lab) {
    lab.router.ip("link add lan type bridge");
    ip(&["link", "add", "lan", "type", "veth", "peer", "name", "lan-a", "netns", "router"]);
    ip(&["address", "add", "203.0.113.50/29", "dev", "lan"]);
    ip(&["address", "add", "2001:db8:5::2/64", "dev", "lan", "nodad"]);
    ip(&["link", "set", "lan", "up"]);
    lab.node_b.ip("link add lan type veth peer name lan-b netns router");
    lab.node_b.ip("address add 203.0.113.51/29 dev lan");
    lab.node_b.ip("address add 2001:db8:5::3/64 dev lan nodad");
    lab.node_b.ip("link set lan up");
    for words in ["lan-a master lan", "lan-b master lan", "lan-a up", "lan-b up", "lan up"] {
        lab.router.ip(&format!("link set {words}"));
    }
    lab.router.ip("address add 203.0.113.49/29 dev lan");
    lab.router.ip("address add 2001:db8:5::1/64 dev lan nodad");
    lab.router.ip("route add 198.51.100.101/32 dev lan");
    lab.router.ip("-6 route add 2001:db8:f:1::1/128 dev lan");
}

fn add_to_a(address: &str) {
    ip(&["address", "add", address, "dev", "lan", "nodad"]);
}

/// Assigns the addresses to node B or node A, and takes them from the other one. The router learns it at
/// once, as from a gratuitous ARP packet.
fn assign(lab: &Lab, is_to_b: bool) {
    for address in ASSIGNED {
        if is_to_b {
            ip(&["address", "del", address, "dev", "lan"]);
            lab.node_b.ip(&format!("address add {address} dev lan nodad"));
        } else {
            lab.node_b.ip(&format!("address del {address} dev lan"));
            add_to_a(address);
        }
    }
    lab.router.ip("neigh flush dev lan");
}

/// Starts the daemon of node B there.
fn start_b(host: Host, lab: &Lab) -> (Host, Daemon) {
    let packets = PACKETS_ON.replace("node-a", "node-b").replace("203.0.113.2/32", "203.0.113.18/32");
    let packets = packets.replace("2001:db8:1::2", "2001:db8:3::2");
    host.configure(&format!("{ALLOWED}\n{packets}devices = [\"auto\", \"lan\"]\n"));
    service().apply(&host);
    lab.node_b.run(move || {
        let daemon = host.start();
        wait_for_programs("lan");
        (host, daemon)
    })
}

fn service() -> Service {
    Service::new(1, &[ON_A1, ON_B])
}

/// Sends requests until node B, or node A, has forwarded a connection to its own pod: only that pod sees the client's
/// address.
fn wait_for_node(lab: &Lab, is_b: bool) {
    let pod = if is_b { "b" } else { "a1" };
    let clients = CLIENT.map(|text| text.parse::<IpAddr>().unwrap());
    for (family, to) in service().load_balancer().iter().enumerate() {
        eventually(&format!("{to} leads through the node of {pod}"), || {
            let answer = lab.client.run(|| ask(to, Transport::Tcp, TIMEOUT));
            answer.is_ok_and(|answer| answer.name == pod && answer.seen == clients[family])
        });
    }
}

#[test]
fn an_address_on_an_interface_is_served_by_the_node_that_has_it() {
    in_lab("an_address_on_an_interface_is_served_by_the_node_that_has_it", |host, second, lab| {
        host.configure(&format!("{ALLOWED}\n{PACKETS_ON}devices = [\"auto\", \"lan\"]\n"));
        ASSIGNED.into_iter().for_each(add_to_a);
        let daemon = start(host, &[&service()]);
        wait_for_programs("lan");
        let _second = start_b(second, lab);
        let _own = Server::start("own", &["198.51.100.101", "2001:db8:f:1::1"], 8_080);
        for (family, to) in service().load_balancer().iter().enumerate() {
            let row = frontend(&format!("{to}/TCP")).unwrap();
            assert_eq!(row["status"], "OK", "{row}");
            assert!(["a1", "b"].contains(&&*ask_from_the_node(&daemon, to)), "{to} from the node");
            let own: IpAddr = ASSIGNED[family].split('/').next().unwrap().parse().unwrap();
            for transport in TRANSPORTS.into_iter().cycle().take(20) {
                let answer = lab.client.run(|| ask(to, transport, TIMEOUT)).unwrap();
                assert_ne!(answer.seen, own, "an address that may move is no source address: {answer:?}");
            }
            let other = to.replace(":80", ":8080");
            for transport in TRANSPORTS {
                let answer = lab.client.run(|| ask(&other, transport, TIMEOUT)).map(|answer| answer.name);
                assert_eq!(answer, Ok("own".into()), "{other}: another port stays the node's");
            }
        }
        clients_survive_moves(lab);
    });
}

/// Moves the address between the nodes while clients connect.
fn clients_survive_moves(lab: &Lab) {
    const MOVES: usize = 4;
    let open = |to: &str, transport| lab.client.run(|| Talk::open(to, transport, TIMEOUT)).unwrap();
    let mut datagrams = service().load_balancer().map(|to| open(&to, Transport::Udp));
    let names = datagrams.each_mut().map(|talk| talk.ask().unwrap().name);
    let is_done = AtomicBool::new(false);
    let tallies = [(); 2].map(|()| (AtomicUsize::new(0), AtomicUsize::new(0)));
    thread::scope(|scope| {
        for (to, (answered, failed)) in service().load_balancer().into_iter().zip(&tallies) {
            let is_done = &is_done;
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    let is_answered = lab.client.run(|| ask(&to, Transport::Tcp, TIMEOUT)).is_ok();
                    (if is_answered { answered } else { failed }).fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _end = SetAtEnd(&is_done);
        for number in 0..MOVES {
            let is_to_b = number % 2 == 0;
            let mut old = service().load_balancer().map(|to| open(&to, Transport::Tcp));
            old.iter_mut().for_each(|talk| assert!(talk.ask().is_ok()));
            assign(lab, is_to_b);
            wait_for_node(lab, is_to_b);
            for (talk, name) in datagrams.iter_mut().zip(&names) {
                let answer = talk.ask().or_else(|_| talk.ask()).map(|answer| answer.name);
                assert_eq!(answer.as_ref(), Ok(name), "both nodes choose the same backend for a client");
            }
            let before = tallies.each_ref().map(|(answered, _)| answered.load(Ordering::Relaxed));
            eventually("answers after the move", || {
                tallies.iter().zip(before).all(|((answered, _), before)| answered.load(Ordering::Relaxed) > before + 5)
            });
            for talk in &mut old {
                // The other node does not know the connection, and its network stack resets it.
                eventually(&format!("a reset after move {number}"), || {
                    let error = talk.ask().expect_err("the new node has another backend");
                    error == std::io::ErrorKind::ConnectionReset
                });
            }
        }
    });
    for (answered, failed) in tallies.map(|(answered, failed)| (answered.into_inner(), failed.into_inner())) {
        assert!(failed <= MOVES, "{answered} answered, {failed} failed in {MOVES} moves");
    }
}

#[test]
fn without_the_setting_the_node_keeps_its_address() {
    in_lab("without_the_setting_the_node_keeps_its_address", |host, _, lab| {
        host.configure(&format!("{PACKETS_ON}devices = [\"auto\", \"lan\"]\n"));
        ASSIGNED.into_iter().for_each(add_to_a);
        let daemon = start(host, &[&service()]);
        let _own = Server::start("own", &["198.51.100.101", "2001:db8:f:1::1"], 80);
        for to in service().load_balancer() {
            let row = frontend(&format!("{to}/TCP")).unwrap();
            let error = row["error"].as_str().unwrap_or_default();
            assert!(row["status"] == "Refused" && error.contains("list it in datapath.own-addresses"), "{row}");
            assert_eq!(ask_from_the_node(&daemon, &to), "own");
            for transport in TRANSPORTS {
                let answer = lab.client.run(|| ask(&to, transport, TIMEOUT)).map(|answer| answer.name);
                assert_eq!(answer, Ok("own".into()), "{to} {transport:?}");
            }
        }
        for to in service().node_ports() {
            assert!(lab.client.run(|| ask(&to, Transport::Tcp, TIMEOUT)).is_ok(), "{to}: NodePorts are served");
        }
    });
}

/// Backends on another node answer to the source address, also after the address of the service has moved. An address
/// of IPv6 needs a preferred lifetime of 0, as keepalived assigns it: the kernel prefers other source addresses then.
#[test]
fn an_address_that_may_move_is_no_source_address() {
    in_lab("an_address_that_may_move_is_no_source_address", |host, _, lab| {
        host.configure(&format!("{ALLOWED}\n{PACKETS_ON}"));
        for address in ASSIGNED {
            ip(&["address", "add", address, "dev", "uplink", "nodad", "preferred_lft", "0", "valid_lft", "forever"]);
        }
        let far = Service::new(1, &[ON_B]);
        let _daemon = start(host, &[&far]);
        for (family, to) in far.node_ports().iter().enumerate() {
            for transport in TRANSPORTS {
                let answer = lab.client.run(|| ask(to, transport, TIMEOUT));
                let answer = answer.unwrap_or_else(|error| panic!("{to} {transport:?}: {error}"));
                assert_eq!(answer.seen.to_string(), NODE_A[family], "{to} {transport:?}");
            }
        }
    });
}
