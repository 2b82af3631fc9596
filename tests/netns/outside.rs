//! Clients outside the node reach services through the packet path: NodePorts and load balancer
//! addresses, backends on this node and on another one.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

use nodelb_prober::Transport;
use serde_json::json;
use socket2::{Domain, Socket, Type};

use crate::host::{Daemon, Host, eventually, get, is_served_by};
use crate::lab::{CLIENT, Lab, NODE_A, NODE_B, POD_A1, POD_A2, POD_B};
use crate::lab_services::{HOST_A, HOST_B, ON_A1, ON_A2, ON_B, PACKETS_ON, Service};
use crate::sandbox;
use crate::talk::{SHORT, Server, TIMEOUT, Talk, ask};

pub(crate) const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];

/// Runs `body` with the lab, a node without a daemon, and servers for the backends of the services
/// 1 to 3.
fn in_lab(test: &str, body: impl FnOnce(&Host, &Lab)) {
    sandbox::run(&format!("outside::{test}"), |sandbox| {
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        host.configure(PACKETS_ON);
        let mut servers = Vec::new();
        for port in [8_001, 8_002, 8_003] {
            servers.push(lab.pod_a1.run(|| Server::start("a1", &POD_A1, port)));
            servers.push(lab.pod_a2.run(|| Server::start("a2", &POD_A2, port)));
            servers.push(lab.pod_b.run(|| Server::start("b", &POD_B, port)));
            servers.push(Server::start("host-a", &NODE_A, port));
            servers.push(lab.node_b.run(|| Server::start("host-b", &NODE_B, port)));
        }
        body(&host, &lab);
    });
}

/// Starts the daemon with these services.
pub(crate) fn start(host: &Host, services: &[&Service]) -> Daemon {
    services.iter().for_each(|service| service.apply(host));
    let daemon = host.start();
    wait_for_programs("uplink");
    daemon
}

/// Waits until the programs are attached to the device.
pub(crate) fn wait_for_programs(device: &str) {
    eventually(&format!("programs at {device}"), || {
        let devices = get("/devices").unwrap_or_default();
        let mut rows = devices["devices"].as_array().into_iter().flatten();
        rows.any(|row| row["device"] == device && row["programs"] == "attached")
    });
}

/// The addresses of the client as a server sees them.
fn client(family: usize) -> IpAddr {
    CLIENT[family].parse().unwrap()
}

#[test]
fn a_client_reaches_a_backend_on_the_node_with_its_own_address() {
    in_lab("a_client_reaches_a_backend_on_the_node_with_its_own_address", |host, lab| {
        let service = Service::new(1, &[ON_A1]);
        let _daemon = start(host, &[&service]);
        for addresses in [service.node_ports(), service.load_balancer()] {
            for (family, address) in addresses.iter().enumerate() {
                for transport in TRANSPORTS {
                    let answer = lab.client.run(|| ask(address, transport, TIMEOUT));
                    let answer = answer.unwrap_or_else(|error| panic!("{address} {transport:?}: {error}"));
                    assert_eq!((answer.name.as_str(), answer.seen), ("a1", client(family)), "{address} {transport:?}");
                }
            }
        }
    });
}

#[test]
fn a_client_reaches_a_backend_on_another_node() {
    in_lab("a_client_reaches_a_backend_on_another_node", |host, lab| {
        let service = Service::new(1, &[ON_B]);
        let _daemon = start(host, &[&service]);
        for addresses in [service.node_ports(), service.load_balancer()] {
            for (family, address) in addresses.iter().enumerate() {
                for transport in TRANSPORTS {
                    let answer = lab.client.run(|| ask(address, transport, TIMEOUT));
                    let answer = answer.unwrap_or_else(|error| panic!("{address} {transport:?}: {error}"));
                    let node: IpAddr = NODE_A[family].parse().unwrap();
                    assert_eq!((answer.name.as_str(), answer.seen), ("b", node), "{address} {transport:?}");
                }
            }
        }
    });
}

#[test]
fn backends_in_the_network_namespace_of_a_node_are_reached() {
    in_lab("backends_in_the_network_namespace_of_a_node_are_reached", |host, lab| {
        let (here, there) = (Service::new(1, &[HOST_A]), Service::new(2, &[HOST_B]));
        let _daemon = start(host, &[&here, &there]);
        for (service, name) in [(&here, "host-a"), (&there, "host-b")] {
            for address in service.node_ports().iter().chain(&service.load_balancer()) {
                for transport in TRANSPORTS {
                    let answer = lab.client.run(|| ask(address, transport, TIMEOUT));
                    assert_eq!(answer.map(|answer| answer.name), Ok(name.to_owned()), "{address} {transport:?}");
                }
            }
        }
    });
}

#[test]
fn a_service_without_backends_refuses_at_once() {
    in_lab("a_service_without_backends_refuses_at_once", |host, lab| {
        let service = Service::new(1, &[]);
        let _daemon = start(host, &[&service]);
        for address in service.node_ports().iter().chain(&service.load_balancer()) {
            for transport in TRANSPORTS {
                let answer = lab.client.run(|| ask(address, transport, TIMEOUT));
                assert_eq!(answer, Err(ErrorKind::ConnectionRefused), "{address} {transport:?}");
            }
        }
    });
}

#[test]
fn the_local_policy_selects_backends_on_this_node_or_drops() {
    in_lab("the_local_policy_selects_backends_on_this_node_or_drops", |host, lab| {
        let local = json!("Local");
        let both = Service::new(1, &[ON_A1, ON_B]).with("externalTrafficPolicy", local.clone());
        let elsewhere = Service::new(2, &[ON_B]).with("externalTrafficPolicy", local);
        let _daemon = start(host, &[&both, &elsewhere]);
        for (family, address) in both.load_balancer().iter().enumerate() {
            for transport in TRANSPORTS {
                for _ in 0..10 {
                    let answer = lab.client.run(|| ask(address, transport, TIMEOUT)).unwrap();
                    assert_eq!((answer.name.as_str(), answer.seen), ("a1", client(family)));
                }
            }
        }
        for address in elsewhere.load_balancer().iter().chain(&elsewhere.node_ports()) {
            for transport in TRANSPORTS {
                let answer = lab.client.run(|| ask(address, transport, SHORT));
                assert_eq!(answer, Err(ErrorKind::TimedOut), "{address} {transport:?}");
            }
        }
    });
}

#[test]
fn a_cluster_ip_is_not_served_outside() {
    in_lab("a_cluster_ip_is_not_served_outside", |host, lab| {
        let service = Service::new(1, &[ON_A1]);
        let daemon = start(host, &[&service]);
        for address in service.cluster_ips() {
            let answer = lab.client.run(|| ask(&address, Transport::Tcp, SHORT));
            assert!(answer.is_err(), "{address}: {answer:?}");
        }
        daemon.stop();
        host.configure(&format!("{PACKETS_ON}cluster-ips = true\n"));
        let _daemon = start(host, &[]);
        for address in service.cluster_ips() {
            let answer = lab.client.run(|| ask(&address, Transport::Tcp, TIMEOUT));
            assert_eq!(answer.map(|answer| answer.name), Ok("a1".to_owned()), "{address}");
        }
    });
}

#[test]
fn source_ranges_admit_only_their_clients() {
    in_lab("source_ranges_admit_only_their_clients", |host, lab| {
        let admitted = Service::new(1, &[ON_A1]).with("loadBalancerSourceRanges", json!(["203.0.113.8/29"]));
        let other =
            Service::new(2, &[ON_A1]).with("loadBalancerSourceRanges", json!(["192.0.2.0/24", "2001:db8:2::/64"]));
        let _daemon = start(host, &[&admitted, &other]);
        let ask =
            |address: &str, timeout| lab.client.run(|| ask(address, Transport::Tcp, timeout).map(|answer| answer.name));
        let [v4, v6] = admitted.load_balancer();
        assert_eq!(ask(&v4, TIMEOUT), Ok("a1".to_owned()));
        assert_eq!(ask(&v6, SHORT), Err(ErrorKind::TimedOut), "a family without a range admits no client");
        let [v4, v6] = other.load_balancer();
        assert_eq!(ask(&v4, SHORT), Err(ErrorKind::TimedOut));
        assert_eq!(ask(&v6, TIMEOUT), Ok("a1".to_owned()));
        for address in admitted.node_ports().iter().chain(&other.node_ports()) {
            assert_eq!(ask(address, TIMEOUT), Ok("a1".to_owned()), "ranges concern only load balancer addresses");
        }
    });
}

/// The packet path never sees these clients: their sockets connect to the backend.
#[test]
fn source_ranges_admit_only_their_pods_and_processes_of_the_node() {
    sandbox::run("outside::source_ranges_admit_only_their_pods_and_processes_of_the_node", |sandbox| {
        let host = Host::new(sandbox);
        let lab = Lab::new();
        host.configure(PACKETS_ON);
        let _server = lab.pod_a1.run(|| Server::start("a1", &POD_A1, 8_001));
        let open_to = |[v4, v6]: [&str; 2]| {
            let ranges = json!([format!("{v4}/32"), format!("{v6}/128")]);
            Service::new(1, &[ON_A1]).with("loadBalancerSourceRanges", ranges)
        };
        let (admitted, excluded) = (Ok("a1".to_owned()), Err(ErrorKind::HostUnreachable));
        let service = open_to(POD_A2);
        let is_result = |addresses: &[String], expected: [&Result<String, ErrorKind>; 2]| {
            let names = |to: &str| TRANSPORTS.map(|transport| ask(to, transport, TIMEOUT).map(|answer| answer.name));
            addresses.iter().all(|to| {
                [lab.pod_a2.run(|| names(to)), names(to)] == expected.map(|result| [result.clone(), result.clone()])
            })
        };
        let daemon = start(&host, &[&service]);
        assert!(is_result(&service.load_balancer(), [&admitted, &excluded]));
        let others = [service.cluster_ips(), service.node_ports()].concat();
        assert!(is_result(&others, [&admitted, &admitted]), "ranges concern only load balancer addresses");
        for from in [POD_A1[0], "host"] {
            let answer = get(&format!("/trace?to={}/TCP&from={from}", service.load_balancer()[0])).unwrap();
            assert_eq!(answer["verdict"]["verdict"], "Refused", "{from}: {answer}");
        }
        for (from, to) in POD_A2.iter().zip(service.load_balancer()) {
            let error = connect_udp_as(from, &to).map_err(|error| error.kind());
            assert_eq!(error, Err(ErrorKind::HostUnreachable), "the host has not got {from}");
            assert!(lab.pod_a2.run(|| connect_udp_as(from, &to)).is_ok(), "the pod has {from}");
        }
        open_to(NODE_A).apply(&host);
        eventually("the ranges of now", || is_result(&service.load_balancer(), [&excluded, &admitted]));
        daemon.kill();
        assert!(is_result(&service.load_balancer(), [&excluded, &admitted]), "without the daemon");
    });
}

/// Connects a socket that is bound to an address, whether its namespace has it or not. A process of a pod outside the
/// ranges sent as one of the ranges' addresses, from its own one (`IP_PKTINFO`), and another socket got the answer.
fn connect_udp_as(from: &str, to: &str) -> io::Result<()> {
    let (from, to): (IpAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
    if from.is_ipv4() {
        socket.set_freebind_v4(true)?;
    } else {
        socket.set_freebind_v6(true)?;
    }
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect(&to.into())
}

#[test]
fn a_client_keeps_its_backend_with_session_affinity() {
    in_lab("a_client_keeps_its_backend_with_session_affinity", |host, lab| {
        let service = Service::new(1, &[ON_A1, ON_A2, ON_B]).with("sessionAffinity", json!("ClientIP"));
        let _daemon = start(host, &[&service]);
        for family in [0, 1] {
            let mut names = Vec::new();
            for address in [&service.node_ports()[family], &service.load_balancer()[family]] {
                for _ in 0..15 {
                    names.push(lab.client.run(|| ask(address, Transport::Tcp, TIMEOUT)).unwrap().name);
                }
            }
            names.dedup();
            assert_eq!(names.len(), 1, "one backend for each client: {names:?}");
        }
    });
}

#[test]
fn connections_spread_over_all_backends() {
    in_lab("connections_spread_over_all_backends", |host, lab| {
        let service = Service::new(1, &[ON_A1, ON_A2, ON_B]);
        let _daemon = start(host, &[&service]);
        for address in service.load_balancer() {
            let mut names: Vec<String> =
                (0..60).map(|_| lab.client.run(|| ask(&address, Transport::Udp, TIMEOUT)).unwrap().name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names, ["a1", "a2", "b"]);
        }
    });
}

#[test]
fn a_udp_client_that_keeps_its_port_moves_to_a_live_backend() {
    in_lab("a_udp_client_that_keeps_its_port_moves_to_a_live_backend", |host, lab| {
        Service::new(1, &[ON_A1]).apply(host);
        let _daemon = start(host, &[]);
        let service = Service::new(1, &[ON_B]);
        for address in service.load_balancer() {
            Service::new(1, &[ON_A1]).apply(host);
            wait_for_backend(&address, POD_A1);
            let mut talk = lab.client.run(|| Talk::open(&address, Transport::Udp, TIMEOUT)).unwrap();
            assert_eq!(talk.ask().unwrap().name, "a1");
            service.apply(host);
            wait_for_backend(&address, POD_B);
            assert_eq!(talk.ask().unwrap().name, "b", "{address}: from the same port {}", talk.port());
        }
    });
}

#[test]
fn a_connection_to_a_terminating_backend_goes_on_and_new_ones_avoid_it() {
    in_lab("a_connection_to_a_terminating_backend_goes_on_and_new_ones_avoid_it", |host, lab| {
        Service::new(1, &[ON_A1]).apply(host);
        let _daemon = start(host, &[]);
        let service = Service::new(1, &[ON_B]).terminating(ON_A1);
        let address = &service.load_balancer()[0];
        let mut talk = lab.client.run(|| Talk::open(address, Transport::Tcp, TIMEOUT)).unwrap();
        assert_eq!(talk.ask().unwrap().name, "a1");
        service.apply(host);
        wait_for_backend(address, POD_B);
        for _ in 0..20 {
            assert_eq!(talk.ask().unwrap().name, "a1");
            assert_eq!(lab.client.run(|| ask(address, Transport::Tcp, TIMEOUT)).unwrap().name, "b");
        }
    });
}

/// Waits until the address, over both protocols, has only the backend of service 1 at this pod.
fn wait_for_backend(address: &str, pod: [&str; 2]) {
    let backend = if address.starts_with('[') { format!("[{}]:8001", pod[1]) } else { format!("{}:8001", pod[0]) };
    for protocol in ["TCP", "UDP"] {
        eventually(&format!("{address} leads to {backend}"), || {
            is_served_by(&format!("{address}/{protocol}"), &[&format!("{backend}/{protocol}")])
        });
    }
}
