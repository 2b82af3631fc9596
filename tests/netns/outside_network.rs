//! The packet path in networks that are not simple: firewalls, small MTUs, fragments, several
//! uplinks, strict checks of the reverse path, and kube-proxy's own rules.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use nodelb_prober::Transport;

use crate::host::{Host, eventually};
use crate::lab::{Lab, NODE_A, POD_A1};
use crate::lab_services::{PACKETS_ON, Service};
use crate::network::ip;
use crate::outside::{TRANSPORTS, start, wait_for_programs};
use crate::outside_more::{addresses, run};
use crate::sandbox::{self, command};
use crate::talk::{SHORT, Server, TIMEOUT, Talk, ask};

/// Service 1 has a backend on node A, service 2 one on node B.
fn in_lab(test: &str, body: impl FnOnce(&Host, &Lab, [Service; 2])) {
    run(&format!("outside_network::{test}"), body);
}

/// Loads nftables rules on node A.
pub(crate) fn nft(rules: &str) {
    let mut child = sandbox::program("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "nft: {rules}");
}

/// A connection to each load balancer address and NodePort of the services.
pub(crate) fn talks(lab: &Lab, services: &[Service; 2]) -> Vec<(String, Talk)> {
    addresses(services)
        .into_iter()
        .flat_map(|address| TRANSPORTS.map(|transport| (address.clone(), transport)))
        .map(|(address, transport)| {
            let talk = lab.client.run(|| Talk::open(&address, transport, TIMEOUT));
            let talk = talk.unwrap_or_else(|error| panic!("{address} {transport:?}: {error}"));
            (format!("{address} {transport:?}"), talk)
        })
        .collect()
}

pub(crate) fn assert_all_answer(talks: &mut [(String, Talk)], when: &str) {
    for (address, talk) in talks {
        if let Err(error) = talk.ask() {
            panic!("{address} {when}: {error}");
        }
    }
}

#[test]
fn datagrams_larger_than_the_mtu_pass_in_both_directions() {
    in_lab("datagrams_larger_than_the_mtu_pass_in_both_directions", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        for address in services.iter().flat_map(Service::load_balancer) {
            for length in [1_473, 3_000, 20_000, 60_000] {
                let text = "x".repeat(length);
                let mut talk = lab.client.run(|| Talk::open(&address, Transport::Udp, TIMEOUT)).unwrap();
                let answer = talk.send(&text);
                let answer = answer.unwrap_or_else(|error| panic!("{address}, {length} bytes: {error}"));
                assert!(answer.ends_with(&text), "{address}, {length} bytes");
            }
        }
    });
}

#[test]
fn a_firewall_that_drops_invalid_packets_and_a_masquerading_plugin_do_no_harm() {
    in_lab("a_firewall_that_drops_invalid_packets_and_a_masquerading_plugin_do_no_harm", |host, lab, services| {
        nft("
            table inet firewall {
                chain forward {
                    type filter hook forward priority 0; policy accept;
                    ct state invalid drop
                }
                chain input { type filter hook input priority 0; policy accept; ct state invalid drop; }
            }
            table ip plugin {
                chain postrouting {
                    type nat hook postrouting priority 100; policy accept;
                    ip saddr 203.0.113.32/27 ip daddr != 203.0.113.32/27 masquerade
                }
            }");
        let _daemon = start(host, &[&services[0], &services[1]]);
        let mut talks = talks(lab, &services);
        assert_all_answer(&mut talks, "with a firewall");
        command("conntrack", &["-F"]);
        assert_all_answer(&mut talks, "after conntrack -F");
        command("nft", &["flush", "ruleset"]);
        assert_all_answer(&mut talks, "after nft flush ruleset");
    });
}

#[test]
fn strict_checks_of_the_reverse_path_do_no_harm() {
    in_lab("strict_checks_of_the_reverse_path_do_no_harm", |host, lab, services| {
        for device in ["all", "uplink", "pod-a1"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), "1").unwrap();
        }
        let _daemon = start(host, &[&services[0], &services[1]]);
        assert_all_answer(&mut talks(lab, &services), "with rp_filter = 1");
    });
}

#[test]
fn an_answer_may_leave_by_another_uplink() {
    in_lab("an_answer_may_leave_by_another_uplink", |host, lab, services| {
        lab.add_second_uplink();
        ip(&["route", "replace", "203.0.113.8/29", "via", "203.0.113.41"]);
        ip(&["-6", "route", "replace", "2001:db8:2::/64", "via", "2001:db8:4::1"]);
        host.configure(&format!("{PACKETS_ON}devices = [\"auto\", \"second\"]\n"));
        let _daemon = start(host, &[&services[0], &services[1]]);
        wait_for_programs("second");
        assert_all_answer(&mut talks(lab, &services), "with answers by the second uplink");
    });
}

#[test]
fn a_new_uplink_is_served_within_a_second() {
    in_lab("a_new_uplink_is_served_within_a_second", |host, lab, services| {
        host.configure(&format!("{PACKETS_ON}devices = [\"auto\", \"second\"]\n"));
        let _daemon = start(host, &[&services[0]]);
        let [address, _] = services[0].load_balancer();
        assert!(lab.client.run(|| ask(&address, Transport::Tcp, TIMEOUT)).is_ok());
        ip(&["link", "add", "second", "type", "veth", "peer", "name", "node-a2", "netns", "router"]);
        ip(&["address", "add", "203.0.113.42/30", "dev", "second"]);
        ip(&["link", "set", "second", "up"]);
        lab.router.ip("address add 203.0.113.41/30 dev node-a2");
        lab.router.ip("link set node-a2 up");
        lab.router.ip("route replace 198.51.100.0/24 via 203.0.113.42");
        eventually("a client by the new uplink", || {
            lab.client.run(|| ask(&address, Transport::Tcp, Duration::from_millis(200))).is_ok()
        });
        ip(&["link", "del", "second"]);
        lab.router.ip("route replace 198.51.100.0/24 via 203.0.113.2");
        assert!(lab.client.run(|| ask(&address, Transport::Tcp, TIMEOUT)).is_ok(), "after the device has gone");
    });
}

#[test]
fn packets_of_no_service_are_untouched() {
    in_lab("packets_of_no_service_are_untouched", |host, lab, services| {
        let _own = Server::start("own", &NODE_A, 8_080);
        let _daemon = start(host, &[&services[0]]);
        for (address, name) in [(POD_A1, "a1"), (NODE_A, "own")] {
            let port = if name == "own" { 8_080 } else { 8_001 };
            for to in [format!("{}:{port}", address[0]), format!("[{}]:{port}", address[1])] {
                for transport in TRANSPORTS {
                    let answer = lab.client.run(|| ask(&to, transport, TIMEOUT));
                    assert_eq!(answer.map(|answer| answer.name), Ok(name.to_owned()), "{to} {transport:?}");
                }
            }
        }
        // A port in the NodePort range without a service: the node's own stack answers.
        let to = format!("{}:30999", NODE_A[0]);
        let answer = lab.client.run(|| ask(&to, Transport::Tcp, TIMEOUT));
        assert_eq!(answer, Err(std::io::ErrorKind::ConnectionRefused));
    });
}

#[test]
fn connections_made_through_kube_proxy_live_on() {
    in_lab("connections_made_through_kube_proxy_live_on", |host, lab, services| {
        let [address, _] = services[0].load_balancer();
        // With the last chain of type nat, the kernel would end all translation by conntrack.
        nft("
            table ip plugin {
                chain postrouting {
                    type nat hook postrouting priority 110; policy accept;
                    ip saddr 203.0.113.32/27 ip daddr 192.0.2.0/24 masquerade
                }
            }
            table ip kube-proxy {
                chain prerouting {
                    type nat hook prerouting priority -100; policy accept;
                    ip daddr 198.51.100.101 tcp dport 80 meta mark set 0x4000 dnat to 203.0.113.34:8001
                }
                chain postrouting {
                    type nat hook postrouting priority 100; policy accept;
                    meta mark 0x4000 masquerade
                }
            }");
        let mut old = lab.client.run(|| Talk::open(&address, Transport::Tcp, TIMEOUT)).unwrap();
        assert_eq!(old.ask().unwrap().seen.to_string(), "203.0.113.33", "kube-proxy's rules translate");
        let daemon = start(host, &[&services[0]]);
        assert_eq!(old.ask().unwrap().name, "a1", "after nodelb has started");
        let mut new = lab.client.run(|| Talk::open(&address, Transport::Tcp, TIMEOUT)).unwrap();
        assert_eq!(new.ask().unwrap().seen.to_string(), "203.0.113.10", "nodelb translates");
        command("nft", &["delete", "table", "ip", "kube-proxy"]);
        for _ in 0..5 {
            assert_eq!(old.ask().unwrap().name, "a1", "after kube-proxy's rules have gone");
            assert_eq!(new.ask().unwrap().name, "a1");
        }
        daemon.stop();
        host.cleanup();
        let gone = lab.client.run(|| ask(&address, Transport::Tcp, SHORT));
        assert!(gone.is_err(), "after cleanup no program translates: {gone:?}");
    });
}
