//! Flows that begin and continue while maps of connections are replaced by maps of other sizes.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nodelb_core::datapath::Datapath as _;
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::state::entries::{MapOp, OutsideEntry, ServiceEntry, ServiceId};
use nodelb_core::state::slot::{BackendId, Slot};
use nodelb_prober::SetAtEnd;

use super::*;
use crate::pod::Pod;

/// The services, each with two addresses, and with a backend on this node and on another machine: pods 2 and 1.
const SERVICES: [(&str, &str); 4] = [
    ("198.51.100.200:80", "203.0.113.138:8080"),
    ("198.51.100.202:80", "203.0.113.138:8080"),
    ("198.51.100.201:80", "203.0.113.134:8080"),
    ("198.51.100.203:80", "203.0.113.134:8080"),
];
/// The UDP clients use these ports again and again, and for every address: a flow finds its key and its port in use.
const FIRST_PORT: u16 = 20_000;
/// Flows at a time.
const FLOWS: usize = 32;
/// Entries that make each copy of a map last.
const OTHERS: u32 = 30_000;
/// The sizes of each start: both maps are replaced, or only one.
const SIZES: [(u32, u32); 5] =
    [(100_000, 4_096), (120_000, 8_192), (100_000, 8_192), (100_000, 4_096), (120_000, 8_192)];
const TIMEOUT: Duration = Duration::from_secs(5);

fn address(text: &str, protocol: Protocol) -> L4Addr {
    let address: SocketAddr = text.parse().expect("an address");
    L4Addr::new(Addr::from(address.ip()), address.port(), protocol)
}

fn sizes(env: &Sandbox, start: usize) -> Options {
    let (connections, handshakes) = SIZES[start];
    let options = with_packets(env, |packets| {
        packets.max_connections = connections;
        packets.max_handshakes = handshakes;
        // Each flow keeps its port.
        packets.source_ports = 10_000..=65_535;
    });
    Options { limits: Limits { outside: 64, source_ranges: 64, ..LIMITS }, ..options }
}

/// The content of the maps: each service by UDP and TCP, and the devices to the client and to the other machine.
fn content() -> Vec<MapOp> {
    let both = SERVICES.iter().flat_map(|service| [Protocol::Udp, Protocol::Tcp].map(|protocol| (service, protocol)));
    let mut ops = Vec::new();
    for (((service, backend), protocol), id) in both.zip(1..) {
        let slot = Slot { backend: BackendId(id), addr: address(backend, protocol) };
        let entry = ServiceEntry { cluster: Arc::new([slot]), has_backends: true, ..ServiceEntry::default() };
        ops.push(MapOp::PutService(ServiceId(id), Arc::new(entry)));
        let entry = OutsideEntry { service: ServiceId(id), local: false, has_ranges: false };
        ops.push(MapOp::PutOutside(address(service, protocol), entry));
    }
    for (device, node) in [("pod0", "203.0.113.129"), ("pod1", "203.0.113.133")] {
        let v4 = Some(Addr::from(node.parse::<IpAddr>().expect("an address")));
        let (is_v4_source, is_v6_source) = (false, false);
        let uplink =
            UplinkEntry { v4, v6: None, mtu: 1_500, l2_length: 14, is_v4_source, is_v6_source, is_strict: false };
        ops.push(MapOp::PutUplink(index(device), uplink));
    }
    ops
}

/// Answers each datagram with the port that it came from.
fn serve_udp(socket: &UdpSocket, is_over: &AtomicBool) {
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    while !is_over.load(Ordering::Relaxed) {
        if let Ok((_, from)) = socket.recv_from(&mut [0; 16]) {
            socket.send_to(&from.port().to_be_bytes(), from).expect("an answer");
        }
    }
}

/// Answers each byte until the client closes the connection.
fn serve_tcp(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        thread::spawn(move || {
            let mut stream = stream;
            stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
            while stream.read_exact(&mut [0]).and_then(|()| stream.write_all(&[1])).is_ok() {}
        });
    }
}

/// A few flows at a time, which exchange three datagrams each: every answer arrives, and the backend sees one port.
fn exchange_udp(service: &str, failures: &mut Vec<String>) -> usize {
    let bind = |port| UdpSocket::bind(("0.0.0.0", port)).expect("a socket");
    let flows: Vec<UdpSocket> = (FIRST_PORT..).take(FLOWS).map(bind).collect();
    for flow in &flows {
        flow.connect(service).expect("a route");
        flow.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    }
    let mut ports = [None; FLOWS];
    for turn in 0..3 {
        for flow in &flows {
            flow.send(&[0]).expect("a datagram");
        }
        for (flow, known) in flows.iter().zip(&mut ports) {
            let mut port = [0; 2];
            match flow.recv(&mut port) {
                Err(error) => {
                    failures.push(format!("{service}, UDP, datagram {turn}: {error}"));
                    return FLOWS;
                }
                Ok(_) if *known.get_or_insert(port) != port => failures.push(format!("{service}, UDP: another port")),
                Ok(_) => {}
            }
        }
    }
    FLOWS
}

fn exchange_tcp(service: &str, failures: &mut Vec<String>) -> usize {
    let connect = |_| {
        let stream = TcpStream::connect_timeout(&service.parse().expect("an address"), TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(stream)
    };
    let mut flows: Vec<std::io::Result<TcpStream>> = (0..FLOWS / 4).map(connect).collect();
    for _ in 0..3 {
        for flow in &mut flows {
            let exchanged = match flow {
                Ok(stream) => stream.write_all(&[0]).and_then(|()| stream.read_exact(&mut [0])),
                Err(_) => continue,
            };
            *flow =
                std::mem::replace(flow, Err(std::io::ErrorKind::Other.into())).and_then(|it| exchanged.map(|()| it));
        }
    }
    let count = flows.len();
    failures.extend(flows.into_iter().filter_map(Result::err).map(|error| format!("{service}, TCP: {error}")));
    count
}

/// Exchanges in turn, until the end; returns the number of flows and the failures.
fn exchange(
    client: &Pod,
    is_over: &AtomicBool,
    one: impl Fn(&str, &mut Vec<String>) -> usize + Sync,
) -> (usize, Vec<String>) {
    client.run(|| {
        let (mut count, mut failures) = (0, Vec::new());
        while !is_over.load(Ordering::Relaxed) && failures.is_empty() {
            SERVICES.iter().for_each(|(service, _)| count += one(service, &mut failures));
            thread::sleep(Duration::from_millis(40));
        }
        (count, failures)
    })
}

#[test]
fn no_flow_is_lost_while_maps_are_replaced() {
    in_sandbox("devices::resized::no_flow_is_lost_while_maps_are_replaced", |env| {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("forwarding");
        let [client, machine, local] = [0, 1, 2].map(Pod::new);
        for (pod, gateway) in [(&client, "203.0.113.129"), (&local, "203.0.113.137")] {
            pod.run(|| command("ip", &["route", "add", "default", "via", gateway]));
        }
        let mut node = Node::open(&sizes(env, 0));
        for result in node.datapath.apply(&content(), Moment(0)) {
            result.expect("room in the maps");
        }
        ["pod0", "pod1"].into_iter().for_each(|device| node.attach(device));
        for number in 0..OTHERS {
            let mut key = [253; 40];
            key[..4].copy_from_slice(&number.to_ne_bytes());
            node.map("connections").update(&key, &[0; 80], MapFlags::ANY).expect("an entry");
        }
        let servers = [&local, &machine].map(|pod| {
            pod.run(|| (UdpSocket::bind("0.0.0.0:8080").unwrap(), TcpListener::bind("0.0.0.0:8080").unwrap()))
        });
        // The servers end after the clients.
        let (is_over, are_clients_over) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            let _ends = [SetAtEnd(&is_over), SetAtEnd(&are_clients_over)];
            for (udp, tcp) in &servers {
                scope.spawn(|| serve_udp(udp, &is_over));
                let tcp = tcp.try_clone().expect("the listener");
                // It ends with the process.
                thread::spawn(move || serve_tcp(&tcp));
            }
            // The first packets wait for neighbours.
            client.run(|| {
                for (service, _) in SERVICES {
                    exchange_tcp(service, &mut Vec::new());
                }
            });
            let udp = scope.spawn(|| exchange(&client, &are_clients_over, exchange_udp));
            let tcp = scope.spawn(|| exchange(&client, &are_clients_over, exchange_tcp));
            let mut counters = vec![Arc::clone(&node.packets.counter)];
            for start in 1..SIZES.len() {
                thread::sleep(Duration::from_millis(100));
                drop(node);
                node = Node::open(&sizes(env, start));
                assert_eq!(node.packets.faults, Vec::<String>::new());
                counters.push(Arc::clone(&node.packets.counter));
                let word = node.map("packet_bloom").lookup(&[0; 4], MapFlags::ANY).unwrap().expect("a word");
                assert_ne!(u64::from_ne_bytes(word.try_into().unwrap()) >> 63, 0, "the programs rely on the filter");
            }
            are_clients_over.store(true, Ordering::Relaxed);
            for (clients, (count, failures)) in
                [("UDP", udp), ("TCP", tcp)].map(|(what, it)| (what, it.join().unwrap()))
            {
                let drops: Vec<_> = counters.iter().map(|counter| counter.drops().unwrap()).collect();
                assert_eq!(failures, Vec::<String>::new(), "{clients}, {count} flows, drops of each start: {drops:?}");
                assert!(count > 2 * FLOWS, "{clients}: {count} flows");
            }
        });
    });
}
