//! The hand-over of docs/kubernetes.md under traffic: from a proxy that masquerades with random ports to nodelb, and back.
//! `OUTSIDE_FLOWS` sets the number of long-lived connections, `OUTSIDE_RATE` that of new ones in a second, and
//! `OUTSIDE_SECONDS` how long each part takes.

use std::thread;
use std::time::{Duration, Instant};

use nodelb_prober::Transport;

use crate::host::{Host, say};
use crate::lab::Lab;
use crate::lab_services::{PACKETS_ON, Service};
use crate::outside::start;
use crate::outside_changes::reload;
use crate::outside_more::run;
use crate::outside_network::nft;
use crate::seeded::number;
use crate::talk::{TIMEOUT, Talk, ask};

/// As many ports as the other proxy uses, so that each of them is soon wanted by both.
const PORTS: &str = "10000-11023";

/// What kube-proxy writes for the services, except for the range of the ports.
fn proxy() {
    nft(&format!(
        "table ip kube-proxy {{
            chain prerouting {{
                type nat hook prerouting priority -100; policy accept;
                ip daddr 198.51.100.101 tcp dport 80 meta mark set 0x4000 dnat to 203.0.113.34:8001
                ip daddr 198.51.100.102 tcp dport 80 meta mark set 0x4000 dnat to 203.0.113.66:8002
            }}
            chain postrouting {{
                type nat hook postrouting priority 100; policy accept;
                meta mark 0x4000 meta l4proto tcp masquerade to :{PORTS} fully-random
            }}
        }}"
    ));
}

/// Threads that connect.
const WORKERS: u32 = 4;

/// Makes new connections to both services at the rate, for a while. Returns their number.
fn connect(lab: &Lab, services: &[Service; 2], when: &str) -> usize {
    let pace = Duration::from_secs(WORKERS.into()) / number("OUTSIDE_RATE", 200);
    let end = Instant::now() + Duration::from_secs(number("OUTSIDE_SECONDS", 12));
    let addresses = services.each_ref().map(|service| service.load_balancer()[0].clone());
    let work = &|worker: u32| {
        let (mut made, mut next) = (0, Instant::now() + pace * worker / WORKERS);
        while next < end {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            next += pace;
            let to = &addresses[made % 2];
            let answer = lab.client.run(|| ask(to, Transport::Tcp, TIMEOUT));
            assert!(answer.is_ok(), "{when}, connection {made} to {to}: {answer:?}");
            made += 1;
        }
        made
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    })
}

/// Connections that stay: to both services, or only to the one with a backend on the node.
fn open(lab: &Lab, services: &[Service]) -> Vec<Talk> {
    let flows = number("OUTSIDE_FLOWS", 100_usize);
    let addresses = services.iter().map(|service| service.load_balancer()[0].clone()).cycle().take(flows);
    addresses.map(|to| lab.client.run(|| Talk::open(&to, Transport::Tcp, TIMEOUT)).unwrap()).collect()
}

fn assert_alive(talks: &mut [Talk], when: &str) {
    let lost: Vec<_> = talks.iter_mut().filter_map(|talk| talk.ask().err()).collect();
    assert!(lost.is_empty(), "{when}: {} of {} connections: {lost:?}", lost.len(), talks.len());
}

fn in_lab(test: &str, body: impl FnOnce(&Host, &Lab, [Service; 2])) {
    run(&format!("outside_hand_over::{test}"), body);
}

#[test]
fn no_connection_ends_when_nodelb_takes_over_and_gives_back() {
    in_lab("no_connection_ends_when_nodelb_takes_over_and_gives_back", |host, lab, services| {
        there_and_back(host, lab, &services);
    });
}

/// As with the kernels of most distributions.
#[test]
fn no_connection_ends_in_a_hand_over_where_conntrack_is_a_module() {
    in_lab("no_connection_ends_in_a_hand_over_where_conntrack_is_a_module", |host, lab, services| {
        host.list_connections();
        there_and_back(host, lab, &services);
    });
}

fn there_and_back(host: &Host, lab: &Lab, services: &[Service; 2]) {
    proxy();
    let before = connect(lab, services, "through the proxy");
    let mut old = open(lab, services);
    assert_alive(&mut old, "through the proxy");
    host.configure(&format!("{PACKETS_ON}snat-ports = \"{PORTS}\"\n"));
    let daemon = start(host, &[&services[0], &services[1]]);
    let there = connect(lab, services, "to nodelb");
    assert_alive(&mut old, "after nodelb has taken over");
    // The proxy does not know which ports nodelb uses: see docs/packets-behaviour.md.
    let mut new = open(lab, &services[..1]);
    reload(host, &daemon, &format!("mode = \"drain\"\nsnat-ports = \"{PORTS}\""), "draining");
    let back = connect(lab, services, "back");
    assert_alive(&mut old, "after the return");
    assert_alive(&mut new, "through nodelb, after the return");
    let mut newer = open(lab, services);
    reload(host, &daemon, &format!("mode = \"on\"\nsnat-ports = \"{PORTS}\""), "\"translation\":\"on\"");
    let again = connect(lab, services, "to nodelb again");
    for talks in [&mut old, &mut new, &mut newer] {
        assert_alive(talks, "after nodelb has taken over again");
    }
    let stayed = old.len() + new.len() + newer.len();
    say(&format!("{before}, {there}, {back} and {again} new connections, {stayed} that stayed, none failed"));
}
