//! Real protocols of clients outside the node, with backends on this node and on another one: HTTP with
//! keep-alive, TLS, DNS with large answers, exchanges like those of QUIC, and large transfers to a path
//! with a smaller MTU.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, Stream};
use socket2::{Domain, Protocol, Socket, Type};

use crate::host::{Host, get, say, socket};
use crate::lab::{CLIENT, Lab, NODE_A, POD_A1, POD_B, Place};
use crate::lab_services::{ON_A1, ON_B, Service};
use crate::network::ip;
use crate::outside::start;
use crate::outside_more::run;
use crate::sandbox;
use crate::servers;
use crate::talk::{SHORT, Server, TIMEOUT};

/// Megabytes of a transfer in each direction.
const TRANSFER_MEGABYTES: &str = "TRANSFER_MEGABYTES";

/// A service with a backend at a location.
struct At<'a> {
    service: Service,
    place: &'a Place,
    pod: [&'static str; 2],
}

impl At<'_> {
    /// The addresses of its backend, each with the port.
    fn backends(&self) -> [String; 2] {
        let port = self.service.backend_port();
        [format!("{}:{port}", self.pod[0]), format!("[{}]:{port}", self.pod[1])]
    }

    /// Each load balancer address with the backend behind it.
    fn each(&self) -> impl Iterator<Item = (String, String)> {
        self.service.load_balancer().into_iter().zip(self.backends())
    }
}

/// Runs `body` with a service with its backend on this node, and one with its backend on the other node.
fn in_lab(test: &str, body: impl FnOnce(&Host, &Lab, [At<'_>; 2])) {
    run(&format!("outside_protocols::{test}"), |host, lab, _| {
        let near = At { service: Service::new(3, &[ON_A1]), place: &lab.pod_a1, pod: POD_A1 };
        let far = At { service: Service::new(4, &[ON_B]), place: &lab.pod_b, pod: POD_B };
        body(host, lab, [near, far]);
    });
}

/// The output of a program that the client runs.
fn client(lab: &Lab, program: &str, arguments: &[&str]) -> String {
    let output = lab.client.run(|| sandbox::program(program).args(arguments).output());
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn http_requests_use_one_connection() {
    in_lab("http_requests_use_one_connection", |host, lab, services| {
        for at in &services {
            at.place.run(|| at.backends().iter().for_each(|backend| servers::http(backend)));
        }
        let _daemon = start(host, &[&services[0].service, &services[1].service]);
        for (to, backend) in services.iter().flat_map(At::each) {
            let url = format!("http://{to}/");
            let mut arguments = vec!["-sS", "--max-time", "10", "-w", "%{num_connects} %{remote_ip}\n"];
            arguments.resize(arguments.len() + 50, &url);
            let said = client(lab, "curl", &arguments);
            let lines: Vec<&str> = said.lines().collect();
            let peer = to.rsplit_once(':').unwrap().0.trim_matches(['[', ']']);
            for (request, answer) in lines.chunks(2).enumerate() {
                let connects = format!("{} {peer}", u8::from(request == 0));
                assert_eq!(answer, [&*backend, &*connects], "{to}, request {request}");
            }
            assert_eq!(lines.len(), 100, "{to}");
        }
    });
}

/// A server's and a client's configuration for these addresses.
fn tls(addresses: Vec<String>) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let issued = rcgen::generate_simple_self_signed(addresses).unwrap();
    let certificate = CertificateDer::from(issued.cert.der().to_vec());
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let server = server.unwrap().with_no_client_auth().with_single_cert(vec![certificate.clone()], key).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    (Arc::new(server), Arc::new(client.with_root_certificates(roots).with_no_client_auth()))
}

/// Sends back what each client sends over TLS, until the client closes.
fn mirror_over_tls(at: &str, config: &Arc<ServerConfig>) {
    let listener = TcpListener::bind(at).unwrap();
    let config = Arc::clone(config);
    thread::spawn(move || {
        for mut tcp in listener.incoming().flatten() {
            let mut connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut buffer = [0; 16_384];
            let mut stream = Stream::new(&mut connection, &mut tcp);
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..length]).is_err() {
                    break;
                }
            }
        }
    });
}

#[test]
fn tls_clients_verify_the_service_and_resume() {
    in_lab("tls_clients_verify_the_service_and_resume", |host, lab, services| {
        let name = |to: &str| to.rsplit_once(':').unwrap().0.trim_matches(['[', ']']).to_owned();
        let (server, config) = tls(services.iter().flat_map(At::each).map(|(to, _)| name(&to)).collect());
        for at in &services {
            at.place.run(|| at.backends().iter().for_each(|backend| mirror_over_tls(backend, &server)));
        }
        let _daemon = start(host, &[&services[0].service, &services[1].service]);
        let record: Vec<u8> = (0..16_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        for (to, _) in services.iter().flat_map(At::each) {
            for number in 0..4 {
                let mut tcp = lab.client.run(|| TcpStream::connect(&to)).unwrap();
                tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
                let server_name = ServerName::try_from(name(&to)).unwrap();
                let mut connection = ClientConnection::new(Arc::clone(&config), server_name).unwrap();
                let mut stream = Stream::new(&mut connection, &mut tcp);
                let mut back = vec![0; record.len()];
                for _ in 0..20 {
                    stream.write_all(&record).unwrap();
                    stream.read_exact(&mut back).unwrap_or_else(|error| panic!("{to}: {error}"));
                    assert!(back == record, "{to}");
                }
                let is_resumed = connection.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
                assert_eq!(is_resumed, number > 0, "{to}, connection {number}");
                connection.send_close_notify();
                connection.complete_io(&mut tcp).unwrap();
                tcp.shutdown(Shutdown::Write).unwrap();
                assert_eq!(tcp.read_to_end(&mut Vec::new()).map(|_| ()).map_err(|error| error.kind()), Ok(()), "{to}");
            }
        }
    });
}

#[test]
fn dns_answers_of_every_size_arrive() {
    in_lab("dns_answers_of_every_size_arrive", |host, lab, services| {
        for at in &services {
            at.place.run(|| at.backends().iter().for_each(|backend| servers::large_dns(backend)));
        }
        let _daemon = start(host, &[&services[0].service, &services[1].service]);
        for (to, _) in services.iter().flat_map(At::each) {
            let server = format!("@{}", to.rsplit_once(':').unwrap().0.trim_matches(['[', ']']));
            let dig = |options: &[&str], records: usize| {
                let name = format!("{records}.test");
                let fixed = ["-p", "80", "+tries=1", "+time=5", &server, &name, "TXT"];
                client(lab, "dig", &[&fixed, options].concat())
            };
            for (options, records, transport, is_truncated) in [
                (&["+noedns"][..], 1, "UDP", false),
                (&["+bufsize=1232"], 4, "UDP", false),
                // Two and three fragments.
                (&["+bufsize=4096"], 8, "UDP", false),
                (&["+bufsize=4096"], 15, "UDP", false),
                // Too large for the client: the answer is truncated, and dig repeats the query over TCP.
                (&["+bufsize=1232"], 15, "TCP", true),
                (&["+bufsize=4096"], 200, "TCP", true),
                (&["+tcp"], 230, "TCP", false),
            ] {
                let said = dig(options, records);
                let answers = said.lines().filter(|line| line.contains("\tTXT\t") && line.contains("xxxx")).count();
                let case = format!("{to} {options:?} {records}: {said}");
                assert_eq!(answers, records, "{case}");
                assert!(said.contains(&format!("({transport})")), "{case}");
                assert_eq!(said.contains("Truncated, retrying in TCP mode"), is_truncated, "{case}");
            }
        }
    });
}

/// A server like one of QUIC: a datagram begins with the connection's id and a number. It answers with
/// three datagrams of the same size, and knows connections by their ids, whatever the client's address.
fn connections_by_id(at: &str) {
    let server = UdpSocket::bind(at).unwrap();
    thread::spawn(move || {
        let mut ids: BTreeSet<[u8; 8]> = BTreeSet::new();
        let mut buffer = vec![0; 2_000];
        while let Ok((length, from)) = server.recv_from(&mut buffer) {
            let id = buffer[..8].try_into().unwrap();
            let is_first = buffer[8..12] == [0; 4];
            if !is_first && !ids.contains(&id) {
                continue;
            }
            ids.insert(id);
            for copy in 0..3 {
                buffer[12] = copy;
                drop(server.send_to(&buffer[..length], from));
            }
        }
    });
}

/// Sends a datagram of the connection, and receives the three answers to it.
fn exchange(client: &UdpSocket, id: [u8; 8], number: u32, size: usize) -> Result<(), ErrorKind> {
    let mut datagram = [&id[..], &number.to_be_bytes()].concat();
    datagram.resize(size, 0x5a);
    client.send(&datagram).map_err(|error| error.kind())?;
    let mut copies = BTreeSet::new();
    while copies.len() < 3 {
        let mut buffer = vec![0; 2_000];
        let length = client.recv(&mut buffer).map_err(|error| error.kind())?;
        assert!(length == size && buffer[..12] == datagram[..12] && buffer[13..size] == datagram[13..], "another");
        copies.insert(buffer[12]);
    }
    Ok(())
}

#[test]
fn large_datagrams_keep_their_connection_and_a_new_port_is_a_new_one() {
    in_lab("large_datagrams_keep_their_connection_and_a_new_port_is_a_new_one", |host, lab, services| {
        for at in &services {
            at.place.run(|| at.backends().iter().for_each(|backend| connections_by_id(backend)));
        }
        let _daemon = start(host, &[&services[0].service, &services[1].service]);
        for (number, (to, _)) in services.iter().flat_map(At::each).enumerate() {
            let id = (number as u64 + 7).to_be_bytes();
            let open = || {
                let any = if to.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
                let client = lab.client.run(|| UdpSocket::bind(any)).unwrap();
                client.connect(&to).unwrap();
                client.set_read_timeout(Some(TIMEOUT)).unwrap();
                client
            };
            // The largest datagram in one packet of 1,500 bytes; the kernel sets "don't fragment".
            let largest = if to.starts_with('[') { 1_452 } else { 1_472 };
            let (first, second) = (open(), open());
            for packet in 0..100 {
                let size = if packet % 2 == 0 { 1_200 } else { largest };
                assert_eq!(exchange(&first, id, packet, size), Ok(()), "{to}, packet {packet}");
            }
            // The client migrates to another port, and back.
            for (client, packet) in [(&second, 100), (&second, 101), (&first, 102), (&second, 103)] {
                assert_eq!(exchange(client, id, packet, largest), Ok(()), "{to}, packet {packet}");
            }
            let listed = get("/connections").unwrap();
            let rows = listed["connections"].as_array().unwrap();
            for client in [&first, &second] {
                let own = SocketAddr::new(CLIENT[usize::from(to.starts_with('['))].parse().unwrap(), 0);
                let own = SocketAddr::new(own.ip(), client.local_addr().unwrap().port());
                let count = rows.iter().filter(|row| row["client"] == format!("{own}/UDP")).count();
                assert_eq!(count, 1, "a flow of its own for {own}: {listed}");
            }
        }
    });
}

/// A byte of a stream that any position determines.
fn pattern(position: usize) -> u8 {
    position.wrapping_mul(2_654_435_761).to_le_bytes()[3]
}

/// Sends the pattern.
fn send_pattern(mut to: &TcpStream, total: usize) -> std::io::Result<()> {
    for begin in (0..total).step_by(65_536) {
        let chunk: Vec<u8> = (begin..total.min(begin + 65_536)).map(pattern).collect();
        to.write_all(&chunk)?;
    }
    Ok(())
}

/// Receives the pattern to its end.
fn receive_pattern(mut from: &TcpStream, total: usize) -> std::io::Result<()> {
    let (mut position, mut buffer) = (0, vec![0; 65_536]);
    while position < total {
        let length = from.read(&mut buffer)?;
        if length == 0 || !buffer[..length].iter().enumerate().all(|(i, byte)| *byte == pattern(position + i)) {
            return Err(std::io::Error::other(format!("the stream ends or differs after {position} bytes")));
        }
        position += length;
    }
    Ok(())
}

/// Receives the pattern of each client, and sends it back.
fn transfers(at: &str, total: usize) {
    let listener = TcpListener::bind(at).unwrap();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            client.set_read_timeout(Some(4 * TIMEOUT)).unwrap();
            drop(receive_pattern(&client, total).and_then(|()| send_pattern(&client, total)));
        }
    });
}

/// Transfers to and from each service.
fn transfer_both_ways(lab: &Lab, services: &[At<'_>], total: usize) {
    for (to, _) in services.iter().flat_map(At::each) {
        let stream = lab.client.run(|| TcpStream::connect(&to)).unwrap();
        stream.set_read_timeout(Some(4 * TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(4 * TIMEOUT)).unwrap();
        let began = Instant::now();
        send_pattern(&stream, total).unwrap_or_else(|error| panic!("to {to}: {error}"));
        let sent = began.elapsed();
        receive_pattern(&stream, total).unwrap_or_else(|error| panic!("from {to}: {error}"));
        say(&format!("{to}: {total} bytes there in {sent:.1?}, back in {:.1?}", began.elapsed() - sent));
    }
}

/// Whether the machine has learned an MTU of 1,400 bytes towards the address.
fn has_learned(place: &Place, address: &str) -> bool {
    let output = place.run(|| sandbox::program("ip").args(["route", "get", address]).output().unwrap());
    String::from_utf8_lossy(&output.stdout).contains("mtu 1400")
}

fn megabytes() -> usize {
    std::env::var(TRANSFER_MEGABYTES).map_or(3, |text| text.parse().unwrap()) * 1_000_000
}

#[test]
fn a_client_discovers_the_mtu_of_the_path_to_a_backend() {
    in_lab("a_client_discovers_the_mtu_of_the_path_to_a_backend", |host, lab, services| {
        // The link of node B, and the route to the pod on node A; the pods have devices with 1,500 bytes.
        lab.router.ip("link set node-b mtu 1400");
        lab.node_b.ip("link set uplink mtu 1400");
        for route in [format!("{}/32", POD_A1[0]), format!("{}/128", POD_A1[1])] {
            ip(&["route", "replace", &route, "dev", "pod-a1", "mtu", "lock", "1400"]);
        }
        let total = megabytes();
        for at in &services {
            at.place.run(|| at.backends().iter().for_each(|backend| transfers(backend, total)));
        }
        let _daemon = start(host, &[&services[0].service, &services[1].service]);
        transfer_both_ways(lab, &services, total);
        for (to, _) in services.iter().flat_map(At::each) {
            let address = to.rsplit_once(':').unwrap().0.trim_matches(['[', ']']);
            assert!(has_learned(&lab.client, address), "the client knows no smaller MTU to {address}");
        }
    });
}

#[test]
fn a_backend_discovers_the_mtu_of_the_path_to_a_client() {
    in_lab("a_backend_discovers_the_mtu_of_the_path_to_a_client", |host, lab, services| {
        lab.router.ip("link set client mtu 1400");
        let total = megabytes();
        for at in &services {
            at.place.run(|| at.backends().iter().for_each(|backend| transfers(backend, total)));
        }
        let _daemon = start(host, &[&services[0].service, &services[1].service]);
        transfer_both_ways(lab, &services, total);
        for family in [0, 1] {
            assert!(has_learned(&lab.pod_a1, CLIENT[family]), "towards the client {}", CLIENT[family]);
            assert!(has_learned(&lab.pod_b, NODE_A[family]), "towards the node {}", NODE_A[family]);
        }
    });
}

/// The answer to a datagram with this number of hops: the machine that returned an error about the
/// datagram, or `None` for an answer of the service.
fn hop(lab: &Lab, to: SocketAddr, hops: u32) -> Option<String> {
    let (domain, protocol) =
        if to.is_ipv4() { (Domain::IPV4, Protocol::ICMPV4) } else { (Domain::IPV6, Protocol::ICMPV6) };
    let (errors, talk) = lab.client.run(|| {
        let any: SocketAddr = if to.is_ipv4() { "0.0.0.0:43000" } else { "[::]:43000" }.parse().unwrap();
        let talk = Socket::new(domain, Type::DGRAM, None).unwrap();
        talk.bind(&any.into()).unwrap();
        if to.is_ipv4() { talk.set_ttl_v4(hops) } else { talk.set_unicast_hops_v6(hops) }.unwrap();
        (UdpSocket::from(Socket::new(domain, Type::RAW, Some(protocol)).unwrap()), UdpSocket::from(talk))
    });
    errors.set_read_timeout(Some(SHORT)).unwrap();
    talk.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    talk.send_to(b"?", to).unwrap();
    if talk.recv_from(&mut [0; 64]).is_ok_and(|(_, from)| from == to) {
        return None;
    }
    let mut buffer = [0; 256];
    // A raw socket of IPv4 also receives the header of the packet.
    let (header, kind, target, ports) = if to.is_ipv4() { (20, 11, 16..20, 20) } else { (0, 3, 24..40, 40) };
    loop {
        let read = errors.recv_from(&mut buffer);
        let (_, from) = read.unwrap_or_else(|error| panic!("{to}, {hops} hops: no answer and no error: {error}"));
        if buffer[header] != kind {
            // Neighbour discovery.
            continue;
        }
        let about = &buffer[header + 8..];
        let target = match <[u8; 4]>::try_from(&about[target.clone()]) {
            Ok(octets) => std::net::IpAddr::from(octets),
            Err(_) => <[u8; 16]>::try_from(&about[target]).unwrap().into(),
        };
        let ports = [ports, ports + 2].map(|at| u16::from_be_bytes([about[at], about[at + 1]]));
        assert_eq!((target, ports), (to.ip(), [43_000, to.port()]), "{to}, {hops} hops: the error names the service");
        return Some(from.ip().to_string());
    }
}

#[test]
fn traceroute_finds_every_hop() {
    in_lab("traceroute_finds_every_hop", |host, lab, services| {
        let _servers =
            services.each_ref().map(|at| at.place.run(|| Server::start("x", &at.pod, at.service.backend_port())));
        let _daemon = start(host, &[&services[0].service, &services[1].service]);
        for (at, is_near) in services.iter().zip([true, false]) {
            for (family, to) in at.service.load_balancer().iter().enumerate() {
                let to = socket(to);
                let found: Vec<Option<String>> = (1..=6).map(|hops| hop(lab, to, hops)).collect();
                say(&format!("{to}: {found:?}"));
                let router = ["203.0.113.9", "2001:db8:2::1"][family].to_owned();
                let hops = if is_near {
                    vec![router, NODE_A[family].to_owned()]
                } else {
                    // Errors about packets to a backend on another node come from the service: from the
                    // programs of this node, the router again, and node B.
                    [vec![router], vec![to.ip().to_string(); 3]].concat()
                };
                assert_eq!(found.iter().flatten().cloned().collect::<Vec<_>>(), hops, "{to}");
                assert!(found[hops.len()..].iter().all(Option::is_none), "{to}: {found:?}");
            }
        }
    });
}
