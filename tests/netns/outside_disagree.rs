//! Direct return between two nodes that both are nodes of entry and both have a backend, while they disagree about the
//! backends of the service: no packet goes to and fro between them, and connections go on.
//!
//! ```text
//!  bridge lan (the sandbox)
//!    ├── node-1 203.0.113.11, node-2 203.0.113.12: each with a daemon, a backend and the service's address (not in tunnels)
//!    └── client-1 203.0.113.51, client-2 203.0.113.52: reach the service through node-1, and through node-2
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

use nodelb_prober::Transport;
use serde_json::Value;

use crate::host::{eventually, say};
use crate::lab::Place;
use crate::outside::TRANSPORTS;
use crate::outside_direct::{Node, checked_file, enter_by, file, machine, make_lan, service, wait_for_file};
use crate::sandbox;
use crate::talk::{SHORT, Server, TIMEOUT, Talk, ask};

/// For a busy machine: what is refused once is refused as often as it is repeated.
const LONG: Duration = Duration::from_secs(4 * TIMEOUT.as_secs());

/// Packets of both nodes for a connection with one request, and what neighbours ask. One that went to and fro would be sent 60
/// times.
const FEW: u64 = 48;

/// Connections of each client, by family and transport.
const TALKS: usize = 6;

struct Pair {
    nodes: [Node; 2],
    clients: [Place; 2],
    servers: Vec<Server>,
}

/// A connection of a client, and the backend that it has.
struct Known {
    talk: Talk,
    name: String,
    transport: Transport,
}

impl Pair {
    /// Both nodes serve both backends.
    fn new(sandbox: &sandbox::Sandbox, forward: &str) -> Self {
        make_lan(sandbox);
        let mut nodes = [Node::new(sandbox, "node-1", 11), Node::new(sandbox, "node-2", 12)];
        let clients = [("client-1", 51), ("client-2", 52)]
            .map(|(name, number)| machine(name, &[format!("203.0.113.{number}"), format!("2001:db8:1::{number}")]));
        clients.iter().zip(&nodes).for_each(|(client, node)| enter_by(client, node));
        for node in &nodes {
            // The machines do not answer ARP for the address of the service.
            node.place.set("net/ipv4/conf/all/arp_ignore", "1");
            node.place.set("net/ipv4/conf/all/arp_announce", "2");
        }
        let has_address = forward == "direct";
        let servers = vec![nodes[0].serve("1", has_address), nodes[1].serve("2", has_address)];
        nodes.iter_mut().for_each(|node| node.start("off"));
        Self { nodes, clients, servers }
    }

    /// Lets each node have the backends of these nodes.
    fn list(&self, forward: &str, lists: [&[usize]; 2]) {
        for (node, list) in self.nodes.iter().zip(lists) {
            let ends: Vec<&Node> = list.iter().map(|end| &self.nodes[*end]).collect();
            node.host.serve("web.toml", &file(forward, &ends));
            wait_for_file(node, forward, &ends);
        }
    }

    /// Packets that both nodes have sent when they send no more.
    fn sent(&self) -> u64 {
        let mut last = self.sent_now();
        eventually("the nodes are silent", || {
            thread::sleep(SHORT / 4);
            let before = std::mem::replace(&mut last, self.sent_now());
            last == before
        });
        last
    }

    fn sent_now(&self) -> u64 {
        let of = |device: &str| {
            let output = sandbox::program("ip").args(["-json", "-s", "link", "show", "dev", device]).output().unwrap();
            let links: Value = serde_json::from_slice(&output.stdout).unwrap();
            links[0]["stats64"]["rx"]["packets"].as_u64().unwrap()
        };
        ["node-1", "node-2"].map(of).iter().sum()
    }

    fn open(&self, forward: &str) -> Vec<Known> {
        let mut all = Vec::new();
        for client in &self.clients {
            for address in &service(forward) {
                for transport in TRANSPORTS {
                    for _ in 0..TALKS {
                        let mut talk = client.run(|| Talk::open(address, transport, LONG)).unwrap();
                        let name = talk.ask().unwrap().name;
                        all.push(Known { talk, name, transport });
                    }
                }
            }
        }
        all
    }

    /// The backends that answer new connections of the client.
    fn answering(&self, forward: &str, client: usize) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for address in &service(forward) {
            for transport in TRANSPORTS {
                for _ in 0..10 {
                    let answer = self.clients[client].run(|| ask(address, transport, LONG));
                    let answer = answer.unwrap_or_else(|error| panic!("{client} {address} {transport:?}: {error}"));
                    names.insert(answer.name);
                }
            }
        }
        names
    }

    /// The most packets that the nodes send for a single one of a client, which need not be answered.
    fn assert_few(&self, forward: &str, what: &str) {
        for client in &self.clients {
            for address in &service(forward) {
                for transport in TRANSPORTS {
                    let before = self.sent();
                    // A SYN is repeated after a second.
                    let _ = client.run(|| ask(address, transport, SHORT));
                    let sent = self.sent() - before;
                    say(&format!("{forward}, {what}: {address} {transport:?}: {sent} packets"));
                    assert!(sent <= FEW, "{forward}, {what}: {address} {transport:?}: {sent} packets");
                }
            }
        }
    }
}

/// The TCP connections have their backends, and the UDP flows one of these, if any has to answer.
fn assert_go_on(known: &mut [Known], what: &str, flows: &[&str]) {
    for Known { talk, name, transport } in known {
        if *transport == Transport::Tcp {
            let answer = talk.ask().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(answer.name, *name, "{what}");
        } else if !flows.is_empty() {
            let answer = talk.ask().unwrap_or_else(|error| panic!("{what}, UDP: {error}"));
            assert!(flows.contains(&&*answer.name), "{what}, UDP: {answer:?}");
        }
    }
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

fn disagree(test: &str, forward: &str) {
    sandbox::run(test, |sandbox| {
        let pair = Pair::new(sandbox, forward);
        pair.list(forward, [&[0, 1], &[0, 1]]);
        let mut known = pair.open(forward);
        let had: BTreeSet<String> = known.iter().map(|it| it.name.clone()).collect();
        assert_eq!(had, names(["1", "2"]));

        pair.list(forward, [&[0], &[1]]);
        assert_go_on(&mut known, "each lists its own backend", &["1", "2"]);
        assert_eq!([0, 1].map(|client| pair.answering(forward, client)), [names(["1"]), names(["2"])]);
        pair.assert_few(forward, "each lists its own backend");

        pair.list(forward, [&[1], &[0]]);
        assert_go_on(&mut known, "each lists the other's backend", &[]);
        pair.assert_few(forward, "each lists the other's backend");
        assert_go_on(&mut known, "each still lists the other's backend", &[]);

        // The second node selects among both, but serves what the first one has sent.
        pair.list(forward, [&[1], &[0, 1]]);
        assert_go_on(&mut known, "one lists the other's backend, and that one both", &[]);
        assert_eq!(pair.answering(forward, 0), names(["2"]));
        pair.assert_few(forward, "one lists the other's backend, and that one both");

        pair.list(forward, [&[0, 1], &[0, 1]]);
        assert_go_on(&mut known, "both list both", &["1", "2"]);
        assert_eq!([0, 1].map(|client| pair.answering(forward, client)), [names(["1", "2"]), names(["1", "2"])]);
    });
}

#[test]
fn nodes_that_disagree_send_no_packet_to_and_fro() {
    disagree("outside_disagree::nodes_that_disagree_send_no_packet_to_and_fro", "direct");
}

#[test]
fn nodes_that_disagree_send_no_packet_to_and_fro_in_tunnels() {
    disagree("outside_disagree::nodes_that_disagree_send_no_packet_to_and_fro_in_tunnels", "tunnel");
}

/// A node that gets a check of another node does not let a backend elsewhere answer it.
fn check(test: &str, forward: &str) {
    sandbox::run(test, |sandbox| {
        let mut pair = Pair::new(sandbox, forward);
        let both = [&pair.nodes[0], &pair.nodes[1]];
        let text = checked_file(forward, &both);
        both.iter().for_each(|node| node.host.serve("web.toml", &text));
        let assert_listed = |ends: &[&Node]| both.iter().for_each(|node| wait_for_file(node, forward, ends));
        assert_listed(&both);
        drop(pair.servers.pop());
        assert_listed(&both[..1]);
        thread::sleep(SHORT);
        assert_listed(&both[..1]);
        let _server = pair.nodes[1].serve("2", false);
        assert_listed(&both);
    });
}

#[test]
fn a_check_examines_the_backend_of_the_node_that_gets_it() {
    check("outside_disagree::a_check_examines_the_backend_of_the_node_that_gets_it", "direct");
}

#[test]
fn a_check_in_a_tunnel_examines_the_backend_of_the_node_that_gets_it() {
    check("outside_disagree::a_check_in_a_tunnel_examines_the_backend_of_the_node_that_gets_it", "tunnel");
}

/// Packets that the network stack of the place has forwarded.
fn forwarded(place: &Place) -> u64 {
    place.run(|| {
        let [v4, v6] =
            ["snmp", "snmp6"].map(|file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap());
        let mut lines = v4.lines().filter_map(|line| line.strip_prefix("Ip: ")).map(|line| line.split(' '));
        let [names, values] = [(); 2].map(|()| lines.next().unwrap());
        let v4 = names.zip(values).find_map(|(name, value)| (name == "ForwDatagrams").then_some(value));
        let v6 = v6.lines().find_map(|line| line.strip_prefix("Ip6OutForwDatagrams"));
        [v4, v6].map(|number| number.unwrap().trim().parse::<u64>().unwrap()).iter().sum()
    })
}

/// Its network stack, which has no service's address, would send to the node of entry what it gets from a tunnel.
#[test]
fn a_node_that_is_being_drained_serves_what_other_nodes_send_in_tunnels() {
    sandbox::run("outside_disagree::a_node_that_is_being_drained_serves_what_other_nodes_send_in_tunnels", |sandbox| {
        let forward = "tunnel";
        let pair = Pair::new(sandbox, forward);
        pair.list(forward, [&[0, 1], &[0, 1]]);
        let [entry, end] = &pair.nodes;
        enter_by(&end.place, entry);
        pair.clients.iter().for_each(|client| enter_by(client, entry));
        let mut known = pair.open(forward);
        end.drain();
        assert_go_on(&mut known, "the second node is being drained", &["1", "2"]);
        assert_eq!(pair.answering(forward, 0), names(["1", "2"]));
        assert_go_on(&mut known, "the second node is still being drained", &["1", "2"]);
        assert_eq!(forwarded(&end.place), 0);
    });
}
