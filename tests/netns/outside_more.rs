//! Clients outside the node that use ports again, close one direction, and send much, while services and
//! backends change.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use nodelb_prober::Transport;
use serde_json::json;
use socket2::{Domain, Socket, Type};

use crate::host::{Host, answer, eventually, get, is_served_by, socket};
use crate::lab::{CLIENT, Lab, NODE_A, POD_A1, POD_B};
use crate::lab_services::{HOST_A, ON_A1, ON_B, PACKETS_ON, Service};
use crate::outside::{TRANSPORTS, start};
use crate::sandbox;
use crate::talk::{SHORT, Server, TIMEOUT, Talk, ask};

/// Runs `body` with the lab and a node without a daemon. Service 1 has a backend on node A, service 2
/// one on node B.
pub(crate) fn run(test: &str, body: impl FnOnce(&Host, &Lab, [Service; 2])) {
    sandbox::run(test, |sandbox| {
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        host.configure(PACKETS_ON);
        let _near = lab.pod_a1.run(|| Server::start("a1", &POD_A1, 8_001));
        let _far = lab.pod_b.run(|| Server::start("b", &POD_B, 8_002));
        body(&host, &lab, [Service::new(1, &[ON_A1]), Service::new(2, &[ON_B])]);
    });
}

fn in_lab(test: &str, body: impl FnOnce(&Host, &Lab, [Service; 2])) {
    run(&format!("outside_more::{test}"), body);
}

/// The addresses of the services for clients outside.
pub(crate) fn addresses(services: &[Service]) -> Vec<String> {
    services.iter().flat_map(|service| [service.load_balancer(), service.node_ports()]).flatten().collect()
}

/// Connects from this port of the client, which may have been used before.
fn connect_from(port: u16, to: &str) -> Result<TcpStream, ErrorKind> {
    connect_between((CLIENT, port), to)
}

fn connect_between((from, port): ([&str; 2], u16), to: &str) -> Result<TcpStream, ErrorKind> {
    let to = socket(to);
    let client = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
    client.set_reuse_address(true).unwrap();
    client.bind(&SocketAddr::new(from[usize::from(to.is_ipv6())].parse().unwrap(), port).into()).unwrap();
    client.connect_timeout(&to.into(), TIMEOUT).map_err(|error| error.kind())?;
    client.set_read_timeout(Some(TIMEOUT)).unwrap();
    Ok(client.into())
}

/// Queries a line server and returns its answer.
pub(crate) fn ask_line(stream: &mut TcpStream) -> Result<String, ErrorKind> {
    stream.write_all(b"?\n").map_err(|error| error.kind())?;
    let mut buffer = [0; 128];
    match stream.read(&mut buffer).map_err(|error| error.kind())? {
        0 => Err(ErrorKind::UnexpectedEof),
        length => Ok(String::from_utf8_lossy(&buffer[..length]).into_owned()),
    }
}

/// Waits until both protocols of the address have only this backend.
fn wait_for_backend(address: &str, backend: &str) {
    for protocol in ["TCP", "UDP"] {
        eventually(&format!("{address} leads to {backend}"), || {
            is_served_by(&format!("{address}/{protocol}"), &[&format!("{backend}/{protocol}")])
        });
    }
}

/// The value of a metric with these labels.
pub(crate) fn metric(line: &str) -> f64 {
    let text = answer("/metrics", "text/plain").unwrap();
    let found = text.lines().find_map(|each| each.strip_prefix(line)).map(|rest| rest.trim().parse().unwrap());
    found.unwrap_or_else(|| panic!("no {line} in {text}"))
}

#[test]
fn one_client_port_reaches_one_backend_by_two_addresses() {
    in_lab("one_client_port_reaches_one_backend_by_two_addresses", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        for service in &services {
            for family in [0, 1] {
                let addresses = [&service.load_balancer()[family], &service.node_ports()[family]];
                let mut streams = addresses.map(|to| lab.client.run(|| connect_from(40_000, to)).expect(to.as_str()));
                for (stream, to) in streams.iter_mut().zip(addresses) {
                    for _ in 0..3 {
                        assert!(ask_line(stream).is_ok(), "TCP {to}");
                    }
                }
                let any = if family == 0 { "0.0.0.0:40000" } else { "[::]:40000" };
                let datagrams = lab.client.run(|| UdpSocket::bind(any)).unwrap();
                datagrams.set_read_timeout(Some(TIMEOUT)).unwrap();
                for to in [addresses, addresses, addresses].into_iter().flatten() {
                    datagrams.send_to(b"?", to.as_str()).unwrap();
                    let (_, from) = datagrams.recv_from(&mut [0; 128]).expect(to.as_str());
                    assert_eq!(from, socket(to), "the answer comes from the address that was asked");
                }
            }
        }
    });
}

#[test]
fn a_port_of_the_client_is_used_again_at_once() {
    in_lab("a_port_of_the_client_is_used_again_at_once", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        for address in addresses(&services) {
            for (number, is_reset) in (0..250).map(|number| (number, number % 2 == 0)) {
                let stream = lab.client.run(|| connect_from(41_000, &address));
                let mut stream = stream.unwrap_or_else(|error| panic!("{address}, connection {number}: {error}"));
                ask_line(&mut stream).unwrap_or_else(|error| panic!("{address}, connection {number}: {error}"));
                let socket = Socket::from(stream);
                if is_reset {
                    socket.set_linger(Some(Duration::ZERO)).unwrap();
                } else {
                    // With both FINs seen, a reset keeps the client's port from TIME_WAIT.
                    socket.shutdown(Shutdown::Write).unwrap();
                    let read = (&socket).read(&mut [0; 1]);
                    assert_eq!(read.ok(), Some(0), "{address}, connection {number}: the server's FIN");
                    socket.set_linger(Some(Duration::ZERO)).unwrap();
                }
            }
        }
    });
}

/// Reads to the end, then sends everything back.
fn mirror(at: &str, connections: usize) {
    let listener = TcpListener::bind(at).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().take(connections).flatten() {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        }
    });
}

#[test]
fn a_half_closed_connection_returns_ten_megabytes() {
    in_lab("a_half_closed_connection_returns_ten_megabytes", |host, lab, _| {
        let services = [Service::new(3, &[ON_A1]), Service::new(4, &[ON_B])];
        let _daemon = start(host, &[&services[0], &services[1]]);
        for (place, pod, service) in [(&lab.pod_a1, POD_A1, &services[0]), (&lab.pod_b, POD_B, &services[1])] {
            let port = service.backend_port();
            place.run(|| mirror(&format!("{}:{port}", pod[0]), 1));
            place.run(|| mirror(&format!("[{}]:{port}", pod[1]), 1));
        }
        let text: Vec<u8> = (0..10_000_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        for address in services.iter().flat_map(Service::load_balancer) {
            let mut stream = lab.client.run(|| TcpStream::connect(&address)).unwrap();
            stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            stream.write_all(&text).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            thread::sleep(Duration::from_millis(300));
            let mut back = Vec::new();
            stream.read_to_end(&mut back).unwrap_or_else(|error| panic!("{address}: {error}"));
            assert!(back == text, "{address}: {} bytes, or other ones", back.len());
        }
    });
}

#[test]
fn five_hundred_datagram_clients_are_answered_each() {
    in_lab("five_hundred_datagram_clients_are_answered_each", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        for address in addresses(&services) {
            let mut talks: Vec<Talk> =
                (0..500).map(|_| lab.client.run(|| Talk::open(&address, Transport::Udp, TIMEOUT)).unwrap()).collect();
            for round in 0..2 {
                for talk in &mut talks {
                    let text = format!("{round} {}", talk.port());
                    let answer = talk.send(&text).unwrap_or_else(|error| panic!("{address} {text}: {error}"));
                    assert!(answer.ends_with(&text), "{address}: {answer}");
                }
            }
        }
    });
}

#[test]
fn a_service_that_is_deleted_and_created_again_keeps_its_connections() {
    in_lab("a_service_that_is_deleted_and_created_again_keeps_its_connections", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        let mut talks: Vec<(String, Transport, Talk)> = addresses(&services)
            .into_iter()
            .flat_map(|address| TRANSPORTS.map(|transport| (address.clone(), transport)))
            .map(|(to, transport)| {
                let talk = lab.client.run(|| Talk::open(&to, transport, SHORT)).unwrap();
                (to, transport, talk)
            })
            .collect();
        talks.iter_mut().for_each(|(_, _, talk)| assert!(talk.ask().is_ok() && talk.ask().is_ok()));
        for _ in 0..3 {
            for (service, file) in services.iter().zip(["s1.yaml", "s2.yaml"]) {
                host.withdraw(file);
                let address = format!("{}/TCP", service.load_balancer()[0]);
                eventually("the service is gone", || crate::host::frontend(&address).is_none());
            }
            for (to, transport, talk) in &mut talks {
                if *transport == Transport::Tcp {
                    assert!(talk.ask().is_ok(), "{to}: TCP while the service is gone");
                } else {
                    assert!(talk.ask().is_err(), "{to}: UDP while the service is gone");
                }
            }
            services.iter().for_each(|service| service.apply(host));
            wait_for_backend(&services[0].load_balancer()[1], &format!("[{}]:8001", POD_A1[1]));
            wait_for_backend(&services[1].load_balancer()[1], &format!("[{}]:8002", POD_B[1]));
            for (to, transport, talk) in &mut talks {
                // An error of ICMP that was under way may be reported first.
                let answers = [talk.ask(), talk.ask()];
                assert!(answers[1].is_ok(), "{to} {transport:?} after the service is back: {answers:?}");
            }
        }
    });
}

#[test]
fn a_backend_changes_its_port() {
    in_lab("a_backend_changes_its_port", |host, lab, _| {
        let _new = lab.pod_a1.run(|| Server::start("new", &POD_A1, 8_077));
        let manifest = |port: u16| {
            let ports = |protocol: &str| json!({"name": protocol.to_lowercase(), "port": port, "protocol": protocol});
            let service_port = |protocol: &str| {
                let name = protocol.to_lowercase();
                json!({"name": name, "port": 80, "nodePort": 30_050, "protocol": protocol})
            };
            [
                json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "p", "namespace": "lab"},
                    "spec": {"type": "NodePort", "clusterIP": "198.51.100.50", "clusterIPs": ["198.51.100.50"],
                        "ipFamilies": ["IPv4"], "ports": [service_port("TCP"), service_port("UDP")]}}),
                json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                    "metadata": {"name": "p-4", "namespace": "lab", "labels": {"kubernetes.io/service-name": "p"}},
                    "addressType": "IPv4", "ports": [ports("TCP"), ports("UDP")],
                    "endpoints": [{"addresses": [POD_A1[0]], "nodeName": "node-a", "conditions": {"ready": true}}]}),
            ]
            .map(|document| document.to_string())
            .join("\n---\n")
        };
        host.serve("p.yaml", &manifest(8_001));
        let _daemon = start(host, &[]);
        let to = format!("{}:30050", NODE_A[0]);
        let [mut tcp, mut udp] =
            TRANSPORTS.map(|transport| lab.client.run(|| Talk::open(&to, transport, TIMEOUT)).unwrap());
        assert_eq!((tcp.ask().unwrap().name, udp.ask().unwrap().name), ("a1".into(), "a1".into()));
        host.serve("p.yaml", &manifest(8_077));
        wait_for_backend("198.51.100.50:80", "203.0.113.34:8077");
        assert_eq!((tcp.ask().unwrap().name, udp.ask().unwrap().name), ("a1".into(), "new".into()));
        assert_eq!(lab.client.run(|| ask(&to, Transport::Tcp, TIMEOUT)).unwrap().name, "new");
    });
}

#[test]
fn a_backend_without_a_socket_refuses_datagrams() {
    in_lab("a_backend_without_a_socket_refuses_datagrams", |host, lab, _| {
        let services = [Service::new(3, &[ON_A1]), Service::new(4, &[ON_B])];
        let near = lab.pod_a1.run(|| Server::start("a1", &POD_A1, 8_003));
        let far = lab.pod_b.run(|| Server::start("b", &POD_B, 8_004));
        let _daemon = start(host, &[&services[0], &services[1]]);
        let mut talks: Vec<(String, Talk)> = addresses(&services)
            .into_iter()
            .map(|to| {
                let talk = lab.client.run(|| Talk::open(&to, Transport::Udp, TIMEOUT)).unwrap();
                (to, talk)
            })
            .collect();
        for (to, talk) in &mut talks {
            assert!(talk.ask().is_ok(), "{to}");
        }
        drop((near, far));
        for (to, talk) in &mut talks {
            assert_eq!(talk.ask(), Err(ErrorKind::ConnectionRefused), "{to}");
            thread::sleep(Duration::from_millis(120));
        }
    });
}

/// `nodelb diagnose` said that such a backend has not answered, and sought the fault in the network.
#[test]
fn a_backend_that_refuses_a_connection_has_answered() {
    in_lab("a_backend_that_refuses_a_connection_has_answered", |host, lab, _| {
        let services = [Service::new(3, &[ON_A1]), Service::new(4, &[ON_B])];
        let _daemon = start(host, &[&services[0], &services[1]]);
        for to in addresses(&services) {
            let refused = lab.client.run(|| ask(&to, Transport::Tcp, TIMEOUT)).err();
            assert_eq!(refused, Some(ErrorKind::ConnectionRefused), "{to}");
        }
        let listed = get("/connections").unwrap();
        let states: Vec<_> = listed["connections"].as_array().unwrap().iter().map(|row| &row["state"]).collect();
        assert!(!states.is_empty() && states.iter().all(|state| *state == "closing"), "{listed}");
    });
}

#[test]
fn source_ports_run_out_and_are_used_again() {
    in_lab("source_ports_run_out_and_are_used_again", |host, lab, services| {
        host.configure(&format!("{PACKETS_ON}snat-ports = \"20000-20009\"\n"));
        let _daemon = start(host, &[&services[1]]);
        let to = &services[1].load_balancer()[0];
        let mut talks: Vec<Talk> = (0..10)
            .map(|number| {
                let talk = lab.client.run(|| Talk::open(to, Transport::Tcp, TIMEOUT));
                talk.unwrap_or_else(|error| panic!("connection {number}: {error}"))
            })
            .collect();
        for talk in &mut talks {
            assert!(talk.ask().is_ok() && talk.ask().is_ok());
        }
        let refused = lab.client.run(|| ask(to, Transport::Tcp, TIMEOUT));
        assert_eq!(refused, Err(ErrorKind::ConnectionRefused));
        assert!(metric("nodelb_packet_dropped_total{reason=\"no-port\"}") >= 1.0);
        let Talk::Tcp(stream) = talks.pop().unwrap() else { panic!("a TCP connection") };
        Socket::from(stream.into_inner()).set_linger(Some(Duration::ZERO)).unwrap();
        let mut served = false;
        for _ in 0..60 {
            served = lab.client.run(|| ask(to, Transport::Tcp, TIMEOUT)).is_ok();
            if served {
                break;
            }
            thread::sleep(Duration::from_millis(500));
        }
        assert!(served, "the port of the connection that was reset is free again");
        for talk in &mut talks {
            assert!(talk.ask().is_ok(), "other connections go on");
        }
    });
}

/// Sends a datagram from this port of the node, and returns the answer.
fn query_from(port: u16, to: &str) -> Result<String, ErrorKind> {
    let to = socket(to);
    let own = SocketAddr::new(NODE_A[usize::from(to.is_ipv6())].parse().unwrap(), port);
    let query = || {
        let client = UdpSocket::bind(own)?;
        client.set_read_timeout(Some(TIMEOUT))?;
        client.connect(to)?;
        client.send(b"?")?;
        let mut buffer = [0; 128];
        let length = client.recv(&mut buffer)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    query().map_err(|error| error.kind())
}

/// The kernel gives ports away without knowing which ones connections of nodelb have: here to processes with fixed ports,
/// on nodes with network plugins to pods.
#[test]
fn a_process_of_the_node_is_answered_at_a_port_that_connections_have() {
    in_lab("a_process_of_the_node_is_answered_at_a_port_that_connections_have", |host, lab, services| {
        host.configure(&format!("{PACKETS_ON}snat-ports = \"20000-20099\"\n"));
        let daemon = start(host, &[&services[1]]);
        let open = |to: &String| {
            let open = |transport| lab.client.run(|| Talk::open(to, transport, TIMEOUT)).unwrap();
            TRANSPORTS.map(open)
        };
        let mut talks: Vec<Talk> =
            services[1].load_balancer().iter().flat_map(|to| [open(to), open(to)]).flatten().collect();
        let go_on =
            |talks: &mut Vec<Talk>| talks.iter_mut().for_each(|talk| assert!(talk.ask().is_ok() && talk.ask().is_ok()));
        go_on(&mut talks);
        let direct = [format!("{}:8002", POD_B[0]), format!("[{}]:8002", POD_B[1])];
        let ask_all = || {
            for (port, to) in (20_000..20_010).flat_map(|port| direct.iter().map(move |to| (port, to))) {
                let answer = query_from(port, to);
                assert!(answer.as_ref().is_ok_and(|text| text.starts_with("b")), "UDP from {port} to {to}: {answer:?}");
                let mut stream = connect_between((NODE_A, port), to)
                    .unwrap_or_else(|error| panic!("TCP from {port} to {to}: {error}"));
                let answer = ask_line(&mut stream);
                assert!(answer.as_ref().is_ok_and(|text| text.starts_with("b")), "TCP from {port} to {to}: {answer:?}");
                // No state TIME_WAIT, so that the port is free for the next round.
                Socket::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
            }
        };
        ask_all();
        go_on(&mut talks);
        let shown = answer("/connections", "text/plain").unwrap();
        assert!(shown.contains("(this node)"), "{shown}");
        daemon.kill();
        ask_all();
        go_on(&mut talks);
    });
}

#[test]
fn a_direct_connection_to_a_backend_may_use_the_port_of_an_ended_one() {
    in_lab("a_direct_connection_to_a_backend_may_use_the_port_of_an_ended_one", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        for (service, pod, port) in [(&services[0], POD_A1, 8_001), (&services[1], POD_B, 8_002)] {
            for (family, direct) in [format!("{}:{port}", pod[0]), format!("[{}]:{port}", pod[1])].iter().enumerate() {
                for to in [&service.load_balancer()[family], direct] {
                    let mut stream = lab.client.run(|| connect_from(42_000, to)).expect(to.as_str());
                    assert!(ask_line(&mut stream).is_ok() && ask_line(&mut stream).is_ok(), "{to}");
                    let socket = Socket::from(stream);
                    socket.shutdown(Shutdown::Write).unwrap();
                    assert_eq!((&socket).read(&mut [0; 1]).ok(), Some(0));
                    socket.set_linger(Some(Duration::ZERO)).unwrap();
                }
            }
        }
    });
}

/// The backend's end of a connection then stays in TIME_WAIT, and accepts the SYN of the next one.
#[test]
fn a_backend_of_the_host_that_closes_first_sees_the_same_port_again() {
    in_lab("a_backend_of_the_host_that_closes_first_sees_the_same_port_again", |host, lab, _| {
        let service = Service::new(3, &[HOST_A]);
        let listener = TcpListener::bind(("0.0.0.0", service.backend_port())).unwrap();
        let _daemon = start(host, &[&service]);
        for number in 0..3 {
            let client = lab.client.run(|| connect_from(40_000, &service.load_balancer()[0])).unwrap();
            let (server, seen) = listener.accept().unwrap();
            assert_eq!(seen.to_string(), format!("{}:40000", CLIENT[0]), "connection {number}");
            drop(server);
            assert_eq!((&client).read(&mut [0]).unwrap(), 0, "the backend has closed");
        }
    });
}
