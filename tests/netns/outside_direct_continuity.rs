//! Connections to services with direct return, while nodes of entry die, services change, and strangers send.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nodelb_prober::{Plan, Probe, SetAtEnd, Transport};

use crate::flood::{self, Kind, NETWORKS};
use crate::flood_counts::Counted;
use crate::host::{frontend, say, socket};
use crate::outside::TRANSPORTS;
use crate::outside_direct::{CLIENT, Net, service, with_both};
use crate::talk::{TIMEOUT, Talk, ask};

/// Each connection goes on with its backend.
fn check_all(talks: &mut [(Talk, String, Transport)], what: &str) {
    for (talk, name, transport) in talks {
        let answer = talk.ask().unwrap_or_else(|error| panic!("{what}: {transport:?}: {error}"));
        assert_eq!(&answer.name, name, "{what}: {transport:?}");
    }
}

#[test]
fn connections_outlive_their_node_of_entry_and_changes_of_the_service() {
    with_both(
        "outside_direct_continuity::connections_outlive_their_node_of_entry_and_changes_of_the_service",
        "off",
        |net, forward| {
            let mut talks = Vec::new();
            for address in &service(forward) {
                for transport in TRANSPORTS {
                    for _ in 0..20 {
                        let mut talk = net.client.run(|| Talk::open(address, transport, TIMEOUT)).unwrap();
                        let name = talk.ask().unwrap().name;
                        talks.push((talk, name, transport));
                    }
                }
            }
            check_all(&mut talks, "at first");
            net.enter_by(1);
            check_all(&mut talks, "through the other node");
            net.entries[0].daemon.take().unwrap().kill();
            net.enter_by(0);
            check_all(&mut talks, "through a node without its daemon");
            net.entries[0].start("off");
            check_all(&mut talks, "after its restart");
            talks.retain(|(_, _, transport)| *transport == Transport::Tcp);
            net.describe(forward, &[0], forward == "tunnel");
            check_all(&mut talks, "after a change of the service");
            net.translate(forward);
            check_all(&mut talks, "when the service is translated");
            net.withdraw(forward);
            check_all(&mut talks, "without the service");
            net.entries[0].daemon.take().unwrap().kill();
            net.entries[0].start("off");
            check_all(&mut talks, "after a restart without the service");
        },
    );
}

/// The nodes start without the key that they had before.
#[test]
fn a_restart_without_direct_return_ends_no_connection_that_has_it() {
    with_both(
        "outside_direct_continuity::a_restart_without_direct_return_ends_no_connection_that_has_it",
        "off",
        |net, forward| {
            let [v4, v6] = service(forward);
            let opened = [&v4, &v6].map(|address| {
                let mut talk = net.client.run(|| Talk::open(address, Transport::Tcp, TIMEOUT)).unwrap();
                let name = talk.ask().unwrap().name;
                (talk, name, Transport::Tcp)
            });
            let mut talks = Vec::from(opened);
            let restart = |net: &mut Net, with_cleanup: bool| {
                for node in net.entries.iter_mut().chain(&mut net.ends).filter(|node| node.daemon.is_some()) {
                    node.has_direct_return = false;
                    node.daemon.take().unwrap().stop();
                    if with_cleanup {
                        node.place.run(|| node.host.cleanup());
                    }
                    node.start("off");
                }
            };
            let sees_client = |net: &Net| {
                let answer = net.client.run(|| ask(&v4, Transport::Tcp, TIMEOUT)).unwrap();
                answer.seen.to_string() == CLIENT[0]
            };
            for round in ["the first restart", "the second restart"] {
                restart(net, false);
                check_all(&mut talks, round);
                assert!(sees_client(net), "{round}: until the next boot, nothing changes");
            }
            // As a boot.
            restart(net, true);
            assert!(!sees_client(net), "the service is translated");
            let row = net.entries[0].place.run(|| frontend(&format!("{v4}/TCP"))).unwrap();
            let why = row["error"].as_str().unwrap_or_default();
            assert!(why.contains("set packets.direct-return to true"), "{row}");
            for node in net.entries.iter_mut().chain(&mut net.ends) {
                node.has_direct_return = true;
            }
        },
    );
}

/// A node of entry that dies, while clients connect 1,000 times a second.
#[test]
fn a_node_of_entry_that_dies_breaks_no_connection() {
    with_both("outside_direct_continuity::a_node_of_entry_that_dies_breaks_no_connection", "off", |net, forward| {
        let [v4, v6] = service(forward);
        let mut talks: Vec<Talk> = [&v4, &v6]
            .into_iter()
            .flat_map(|address| (0..20).map(move |_| address))
            .map(|address| net.client.run(|| Talk::open(address, Transport::Tcp, 2 * TIMEOUT)).unwrap())
            .collect();
        let plan = Plan { timeout: 2 * TIMEOUT, ..Plan::new(socket(&v4), Transport::TcpLines) };
        let probe = net.client.run(|| Probe::start(plan));
        thread::sleep(Duration::from_secs(2));
        net.entries[0].place.ip("link set eth0 down");
        thread::sleep(Duration::from_millis(200));
        net.enter_by(1);
        thread::sleep(Duration::from_secs(2));
        for talk in &mut talks {
            talk.ask().unwrap_or_else(|error| panic!("a connection from before: {error}"));
        }
        let tally = probe.finish();
        say(&format!("{forward}: {tally:?}"));
        assert_eq!(tally.failures(), 0, "{tally:?}");
        net.entries[0].place.ip("link set eth0 up");
        let [_, v6] = &net.entries[0].addresses;
        net.entries[0].place.ip(&format!("address replace {v6}/64 dev eth0 nodad"));
        net.entries[0].place.ip("route replace default via 203.0.113.1");
    });
}

/// More SYNs than the node has room for: each connection loses its only entry.
const FLOOD: u32 = 70_000;

/// The ring still has the backend of each connection, and nothing is counted as lost.
fn assert_no_flood_matters(test: &str, xdp: &str) {
    with_both(test, xdp, |net, forward| {
        for machine in &net.ends {
            // Answers to strangers are lost, as in a network that does not know them.
            NETWORKS.iter().for_each(|network| machine.place.ip(&format!("route add blackhole {network}")));
        }
        let to_strangers = format!("{} via {} dev eth0", NETWORKS[1], CLIENT[1]);
        net.entries[0].place.ip(&format!("route add {to_strangers}"));
        for (family, address) in service(forward).iter().enumerate() {
            let mut talks = Vec::new();
            for _ in 0..20 {
                let mut talk = net.client.run(|| Talk::open(address, Transport::Tcp, TIMEOUT)).unwrap();
                let name = talk.ask().unwrap().name;
                talks.push((talk, name, Transport::Tcp));
            }
            let count = || net.entries[0].place.run(Counted::now);
            let (packets, before) = (Kind::Syns.packets(FLOOD, [socket(address); 2], &[]), count());
            let (is_done, mut took) = (AtomicBool::new(false), Duration::ZERO);
            thread::scope(|scope| {
                let end = SetAtEnd(&is_done);
                let (is_done, talks) = (&is_done, &mut talks);
                scope.spawn(move || {
                    while !is_done.load(Ordering::Relaxed) {
                        check_all(talks, "during the flood");
                    }
                });
                let (node, begun) = (net.entries[0].addresses[family].parse().unwrap(), Instant::now());
                net.client.run(|| flood::send(&packets, node, |_| {}));
                took = begun.elapsed();
                drop(end);
            });
            check_all(&mut talks, "after the flood");
            let counted = count().since(&before);
            say(&format!("{forward}, xdp = {xdp:?}: {FLOOD} SYNs in {took:?}: {counted:?}"));
            assert!(counted.begun() >= u64::from(FLOOD), "{counted:?}");
        }
        net.entries[0].place.ip(&format!("route delete {to_strangers}"));
        for machine in &net.ends {
            NETWORKS.iter().for_each(|network| machine.place.ip(&format!("route delete blackhole {network}")));
        }
    });
}

#[test]
fn a_flood_breaks_no_connection() {
    assert_no_flood_matters("outside_direct_continuity::a_flood_breaks_no_connection", "off");
}

#[test]
fn a_flood_breaks_no_connection_with_xdp() {
    assert_no_flood_matters("outside_direct_continuity::a_flood_breaks_no_connection_with_xdp", "generic");
}
