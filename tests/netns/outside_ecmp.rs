//! Two nodes with nodelb behind one route with two next hops (ECMP): a node fails, and the router sends the packets of
//! its connections to the other one, which does not know them.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nodelb_prober::Transport;

use crate::host::{Daemon, Host};
use crate::lab::{CLIENT, Lab, NODE_B, POD_A1, POD_A2};
use crate::lab_services::{ON_A1, ON_A2, PACKETS_ON, Service};
use crate::outside::start;
use crate::sandbox;
use crate::talk::{Server, TIMEOUT, Talk};

/// Connections of the client at a time, so that each node has some.
const CONNECTIONS: usize = 40;

/// One round trip on a busy machine. A client that hangs waits for [`TIMEOUT`].
const ROUND_TRIP: Duration = Duration::from_secs(1);

/// The service addresses with both nodes, and with node A alone.
const BOTH: [&str; 2] = [
    "route replace 198.51.100.0/24 nexthop via 203.0.113.2 nexthop via 203.0.113.18",
    "-6 route replace 2001:db8:f::/48 nexthop via 2001:db8:1::2 nexthop via 2001:db8:3::2",
];
const ONLY_A: [&str; 2] =
    ["route replace 198.51.100.0/24 via 203.0.113.2", "-6 route replace 2001:db8:f::/48 via 2001:db8:1::2"];

/// Both nodes, each with its daemon; the backends are on node A.
struct Fleet<'a> {
    host: &'a Host,
    lab: &'a Lab,
    daemon: Option<Daemon>,
    service: Service,
    _other: (Host, Daemon),
}

fn in_fleet(test: &str, body: impl FnOnce(Fleet<'_>)) {
    sandbox::run(&format!("outside_ecmp::{test}"), |sandbox| {
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        let _first = lab.pod_a1.run(|| Server::start("a1", &POD_A1, 8_001));
        let _second = lab.pod_a2.run(|| Server::start("a2", &POD_A2, 8_001));
        let service = Service::new(1, &[ON_A1, ON_A2]);
        host.configure(PACKETS_ON);
        let daemon = Some(start(&host, &[&service]));
        let other = Host::another(sandbox, "nodelb-b");
        let [v4, v6] = NODE_B;
        let on_b = PACKETS_ON.replace("node-a", "node-b").replace("203.0.113.2/32", &format!("{v4}/32"));
        other.configure(&on_b.replace("2001:db8:1::2/128", &format!("{v6}/128")));
        let other_daemon = lab.node_b.run(|| start(&other, &[&service]));
        for policy in ["net/ipv4/fib_multipath_hash_policy", "net/ipv6/fib_multipath_hash_policy"] {
            lab.router.set(policy, "1");
        }
        BOTH.iter().for_each(|route| lab.router.ip(route));
        body(Fleet { host: &host, lab: &lab, daemon, service, _other: (other, other_daemon) });
    });
}

impl Fleet<'_> {
    /// Connections through both nodes: those that a backend sees with the client's address pass node A, which has the
    /// backends, and the others node B.
    fn connections(&self) -> [Vec<Talk>; 2] {
        let mut by_node = [Vec::new(), Vec::new()];
        for (family, address) in self.service.load_balancer().iter().enumerate() {
            for _ in 0..CONNECTIONS / 2 {
                let mut talk = self.lab.client.run(|| Talk::open(address, Transport::Tcp, TIMEOUT)).unwrap();
                let seen = talk.ask().unwrap().seen;
                let is_by = |node: &str| seen == node.parse::<IpAddr>().unwrap();
                assert!(is_by(CLIENT[family]) || is_by(NODE_B[family]), "a backend saw {seen}");
                by_node[usize::from(is_by(NODE_B[family]))].push(talk);
            }
        }
        assert!(by_node.iter().all(|talks| talks.len() > 3), "the router uses both next hops");
        by_node
    }
}

/// Sends a request on each connection; returns how many were answered and how many were reset. None may hang.
fn ask_all(talks: &mut [Talk]) -> (usize, usize) {
    let (mut answered, mut reset) = (0, 0);
    for talk in talks {
        let started = Instant::now();
        match talk.ask() {
            Ok(_) => answered += 1,
            Err(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => reset += 1,
            Err(error) => panic!("{error} after {:?}", started.elapsed()),
        }
        assert!(started.elapsed() < ROUND_TRIP, "after {:?}", started.elapsed());
    }
    (answered, reset)
}

#[test]
fn connections_of_a_node_that_fails_are_reset_and_those_of_the_other_are_untouched() {
    in_fleet("connections_of_a_node_that_fails_are_reset_and_those_of_the_other_are_untouched", |fleet| {
        let [mut by_a, mut by_b] = fleet.connections();
        fleet.lab.node_b.ip("link set uplink down");
        ONLY_A.iter().for_each(|route| fleet.lab.router.ip(route));
        assert_eq!(ask_all(&mut by_a), (by_a.len(), 0), "connections through node A");
        assert_eq!(ask_all(&mut by_b), (0, by_b.len()), "connections through node B");
        assert_eq!(ask_all(&mut by_a), (by_a.len(), 0), "connections through node A, again");
    });
}

#[test]
fn connections_continue_at_a_node_that_has_lost_what_it_knew() {
    in_fleet("connections_continue_at_a_node_that_has_lost_what_it_knew", |mut fleet| {
        let [mut by_a, mut by_b] = fleet.connections();
        fleet.daemon.take().unwrap().stop();
        fleet.host.cleanup();
        let _daemon = start(fleet.host, &[]);
        for _ in 0..2 {
            assert_eq!(ask_all(&mut by_a), (by_a.len(), 0), "connections through node A");
            assert_eq!(ask_all(&mut by_b), (by_b.len(), 0), "connections through node B");
        }
    });
}
