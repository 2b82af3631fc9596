//! Pods with their own kernel, such as virtual machines (`packets.pod-devices`): no socket hook sees their
//! connections, because their sockets are in no cgroup of the node. Their packets arrive at a device of
//! the node.

use std::io::ErrorKind;
use std::net::IpAddr;

use nodelb_prober::Transport;

use crate::host::{Host, eventually, get};
use crate::lab::{CLIENT, Lab, NODE_A, POD_A1, POD_A2, POD_B};
use crate::lab_services::{HOST_A, ON_A1, ON_A2, ON_B, PACKETS_ON, Service};
use crate::outside::{TRANSPORTS, wait_for_programs};
use crate::sandbox;
use crate::talk::{SHORT, Server, TIMEOUT, Talk, ask};

/// Runs `body` with a node where both pods are virtual machines, and servers for the backends of the services 1 to 4.
fn in_lab(test: &str, body: impl FnOnce(&Host, &Lab, [Service; 5])) {
    sandbox::run(&format!("outside_pods::{test}"), |sandbox| {
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        host.configure(&format!("{PACKETS_ON}pod-devices = [\"pod-*\"]\n"));
        let _servers = [
            lab.pod_a1.run(|| Server::start("a1", &POD_A1, 8_001)),
            lab.pod_b.run(|| Server::start("b", &POD_B, 8_002)),
            lab.pod_a2.run(|| Server::start("a2", &POD_A2, 8_003)),
            Server::start("host-a", &NODE_A, 8_004),
        ];
        let services = [(1, &[ON_A1][..]), (2, &[ON_B]), (3, &[ON_A2]), (4, &[HOST_A]), (5, &[])];
        body(&host, &lab, services.map(|(n, endpoints)| Service::new(n, endpoints)));
    });
}

/// Waits until the programs are attached to the devices of both pods.
fn wait_for_pods() {
    eventually("programs at both pods", || {
        let devices = get("/devices").unwrap_or_default();
        let rows = devices["devices"].as_array().into_iter().flatten();
        rows.filter(|row| row["role"] == "pod" && row["programs"] == "attached").count() == 2
    });
}

/// The addresses of the service for pods.
fn addresses(service: &Service) -> Vec<String> {
    [service.cluster_ips(), service.load_balancer(), service.node_ports()].concat()
}

#[test]
fn a_virtual_machine_reaches_every_service_and_itself() {
    in_lab("a_virtual_machine_reaches_every_service_and_itself", |host, lab, services| {
        services.iter().for_each(|service| service.apply(host));
        let daemon = host.start();
        wait_for_pods();
        let own = POD_A2.map(|text| text.parse::<IpAddr>().unwrap());
        for (service, name) in services.iter().zip(["a1", "b", "a2", "host-a"]) {
            for to in addresses(service) {
                let family = usize::from(to.starts_with('['));
                for transport in TRANSPORTS {
                    let answer = lab.pod_a2.run(|| ask(&to, transport, TIMEOUT));
                    let answer = answer.unwrap_or_else(|error| panic!("{name} at {to} {transport:?}: {error}"));
                    assert_eq!(answer.name, name, "{to} {transport:?}");
                    if name == "a2" {
                        assert_ne!(answer.seen, own[family], "{to}: through the node, to itself");
                    } else {
                        assert_eq!(answer.seen, own[family], "{to}: pods see each other's addresses");
                    }
                }
            }
        }
        for to in addresses(&services[4]) {
            for transport in TRANSPORTS {
                let answer = lab.pod_a2.run(|| ask(&to, transport, TIMEOUT));
                assert_eq!(answer, Err(ErrorKind::ConnectionRefused), "no backend: {to} {transport:?}");
            }
        }
        daemon.stop();
    });
}

#[test]
fn connections_of_a_virtual_machine_outlive_the_daemon() {
    in_lab("connections_of_a_virtual_machine_outlive_the_daemon", |host, lab, services| {
        services.iter().for_each(|service| service.apply(host));
        let daemon = host.start();
        wait_for_pods();
        let mut talks: Vec<(String, Talk)> = services[..4]
            .iter()
            .flat_map(Service::cluster_ips)
            .flat_map(|to| TRANSPORTS.map(|transport| (to.clone(), transport)))
            .map(|(to, transport)| {
                let talk = lab.pod_a2.run(|| Talk::open(&to, transport, TIMEOUT)).unwrap();
                (format!("{to} {transport:?}"), talk)
            })
            .collect();
        let mut assert_all_answer = |when: &str| {
            for (to, talk) in &mut talks {
                let answers = [talk.ask(), talk.ask()];
                assert!(answers.iter().all(Result::is_ok), "{to} {when}: {answers:?}");
            }
        };
        assert_all_answer("at first");
        daemon.kill();
        assert_all_answer("after kill -9");
        let daemon = host.start();
        assert_all_answer("after the start");
        daemon.stop();
        assert_all_answer("after the stop");
    });
}

#[test]
fn large_datagrams_and_transfers_of_a_virtual_machine_arrive() {
    in_lab("large_datagrams_and_transfers_of_a_virtual_machine_arrive", |host, lab, services| {
        services.iter().for_each(|service| service.apply(host));
        let _daemon = host.start();
        wait_for_pods();
        for to in services[..4].iter().flat_map(Service::cluster_ips) {
            for (transport, length) in [(Transport::Udp, 1_473), (Transport::Udp, 20_000), (Transport::Tcp, 2_000_000)]
            {
                let text = "x".repeat(length);
                let mut talk = lab.pod_a2.run(|| Talk::open(&to, transport, 2 * TIMEOUT)).unwrap();
                let answer = talk.send(&text).unwrap_or_else(|error| panic!("{to} {transport:?} {length}: {error}"));
                assert!(answer.trim_end().ends_with(&text), "{to} {transport:?} {length}");
            }
        }
    });
}

#[test]
fn clients_outside_reach_virtual_machines() {
    in_lab("clients_outside_reach_virtual_machines", |host, lab, services| {
        services.iter().for_each(|service| service.apply(host));
        let _daemon = host.start();
        wait_for_pods();
        wait_for_programs("uplink");
        for service in [&services[0], &services[2]] {
            for (family, to) in service.load_balancer().iter().enumerate() {
                for transport in TRANSPORTS {
                    let answer = lab.client.run(|| ask(to, transport, TIMEOUT)).unwrap();
                    assert_eq!(answer.seen.to_string(), CLIENT[family], "{to} {transport:?}");
                }
            }
        }
        for to in services[0].cluster_ips() {
            let answer = lab.client.run(|| ask(&to, Transport::Tcp, SHORT));
            assert!(answer.is_err(), "{to}: ClusterIPs are for pods: {answer:?}");
        }
    });
}

#[test]
fn every_backend_sees_the_node_if_all_connections_are_masqueraded() {
    in_lab("every_backend_sees_the_node_if_all_connections_are_masqueraded", |host, lab, services| {
        host.configure(&format!("{PACKETS_ON}pod-devices = [\"pod-*\"]\nsnat = \"always\"\n"));
        services.iter().for_each(|service| service.apply(host));
        let _daemon = host.start();
        wait_for_pods();
        wait_for_programs("uplink");
        // The node's address towards the backend.
        let near = |last: u8, network: &str| [format!("203.0.113.{last}"), format!("2001:db8:{network}::1")];
        let sources = [near(33, "a1"), NODE_A.map(str::to_owned), near(37, "a2")];
        for (service, source) in services.iter().zip(sources) {
            for (family, to) in service.load_balancer().iter().enumerate() {
                for transport in TRANSPORTS {
                    let mut talk = lab.client.run(|| Talk::open(to, transport, TIMEOUT)).unwrap();
                    for question in 0..3 {
                        let answer = talk.ask();
                        let answer = answer.unwrap_or_else(|error| panic!("{to} {transport:?} {question}: {error}"));
                        assert_eq!(answer.seen.to_string(), source[family], "{to} {transport:?}");
                    }
                }
            }
        }
    });
}
