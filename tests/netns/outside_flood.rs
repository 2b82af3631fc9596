//! A flood of SYNs from random sources, while connections of outside clients exchange data and other
//! clients connect. The flood, the connections and the clients have the same service.

use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nodelb_prober::SetAtEnd;

use crate::host::say;
use crate::lab::{Lab, Place};
use crate::lab_services::{PACKETS_ON, Service};
use crate::outside::{TRANSPORTS, start};
use crate::outside_more::{metric, run};
use crate::talk::{TIMEOUT, Talk, ask};

/// Long-lived connections of each transport to the service.
const TALKS: usize = 100;
/// Threads that exchange data on the long-lived connections.
const TALKERS: usize = 4;
/// Threads that connect, and the pause of each between two connections.
const CLIENTS: usize = 4;
const PAUSE: Duration = Duration::from_millis(10);

/// The flows that each client begins, how many of them it uses all the time, and the pause between two: at no time have all
/// ports been in use in the last two seconds.
const FLOWS: u32 = 4_000;
const USED_FLOWS: usize = 250;
const FLOW_PACE: Duration = Duration::from_millis(3);

/// Number of SYNs. `FLOOD_SYNS=1000000` takes a minute.
fn syns() -> u32 {
    std::env::var("FLOOD_SYNS").map_or(25_000, |text| text.parse().expect("FLOOD_SYNS is a number"))
}

/// What the clients saw during a flood.
#[derive(Debug, Default)]
struct Seen {
    /// Exchanges on each long-lived connection.
    exchanges: Vec<u32>,
    served: u32,
    refused: u32,
    timed_out: u32,
    slowest: Duration,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.exchanges.extend(other.exchanges);
        self.served += other.served;
        self.refused += other.refused;
        self.timed_out += other.timed_out;
        self.slowest = self.slowest.max(other.slowest);
    }
}

/// Exchanges data on each connection in turn until the flood ends; panics if one fails.
fn talk(talks: &mut [Talk], is_done: &AtomicBool) -> Seen {
    let mut exchanges = vec![0; talks.len()];
    let mut round = 0;
    while !is_done.load(Ordering::Relaxed) || round < 2 {
        for (number, talk) in talks.iter_mut().enumerate() {
            let text = format!("{number} in round {round}");
            let answer = talk.send(&text);
            let answer = answer.unwrap_or_else(|error| panic!("port {}: {text}: {error}", talk.port()));
            assert!(answer.trim_end().ends_with(&text), "port {}: {answer:?} instead of {text:?}", talk.port());
            exchanges[number] += 1;
        }
        round += 1;
    }
    Seen { exchanges, ..Seen::default() }
}

/// Connects again and again until the flood ends.
fn connect(address: &str, is_done: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !is_done.load(Ordering::Relaxed) {
        let begun = Instant::now();
        match ask(address, nodelb_prober::Transport::Tcp, TIMEOUT) {
            Ok(_) => {
                seen.served += 1;
                seen.slowest = seen.slowest.max(begun.elapsed());
            }
            Err(ErrorKind::ConnectionRefused) => seen.refused += 1,
            Err(_) => seen.timed_out += 1,
        }
        thread::sleep(PAUSE);
    }
    seen
}

/// IP packets that the machine has received.
fn received(place: &Place) -> u64 {
    let text = place.run(|| fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let mut lines = text.lines().filter(|line| line.starts_with("Ip:")).map(|line| line.split(' '));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let mut columns = names.zip(values);
    columns.find(|(name, _)| *name == "InReceives").unwrap().1.parse().unwrap()
}

/// Floods the service, which has this backend.
fn flood_service(lab: &Lab, service: &Service, backend: &Place, what: &str) -> Seen {
    let address = service.load_balancer()[0].clone();
    let SocketAddr::V4(target) = address.parse().unwrap() else { panic!("{address}") };
    let open = |transport| lab.client.run(|| Talk::open(&address, transport, TIMEOUT)).unwrap();
    let mut talks: Vec<Talk> = (0..TALKS).flat_map(|_| TRANSPORTS.map(open)).collect();
    // The second question moves a connection out of the table of handshakes.
    for talk in &mut talks {
        assert!(talk.ask().is_ok() && talk.ask().is_ok());
    }
    let without_port = || metric("nodelb_packet_dropped_total{reason=\"no-port\"}");
    let (is_done, before, ports_before) = (AtomicBool::new(false), received(backend), without_port());
    let begun = Instant::now();
    let mut seen = Seen::default();
    thread::scope(|scope| {
        let end = SetAtEnd(&is_done);
        let mut threads: Vec<_> =
            talks.chunks_mut(2 * TALKS / TALKERS).map(|part| scope.spawn(|| talk(part, &is_done))).collect();
        threads.extend((0..CLIENTS).map(|_| scope.spawn(|| lab.client.run(|| connect(&address, &is_done)))));
        lab.client.run(|| flood(*target.ip(), target.port(), syns()));
        drop(end);
        threads.into_iter().for_each(|thread| seen.add(thread.join().unwrap_or_else(|_| panic!("{what}"))));
    });
    let (seconds, arrived) = (begun.elapsed().as_secs_f64(), received(backend) - before);
    let exchanges: u32 = seen.exchanges.iter().sum();
    let refused_for_ports = without_port() - ports_before;
    say(&format!(
        "{what}: {} SYNs in {seconds:.1} s, {arrived} packets arrived at the backend; {} connections made {exchanges} \
         exchanges, none failed; new connections: {} succeeded ({:.0} a second, the slowest after {:?}), {} were refused, \
         {} timed out; {refused_for_ports} SYNs of both found no source port",
        syns(),
        seen.exchanges.len(),
        seen.served,
        f64::from(seen.served) / seconds,
        seen.slowest,
        seen.refused,
        seen.timed_out
    ));
    assert!(
        refused_for_ports >= f64::from(seen.refused),
        "{what}: some clients were refused although a source port was free"
    );
    assert_eq!(seen.exchanges.len(), 2 * TALKS);
    assert!(seen.exchanges.iter().all(|count| *count >= 2), "{what}: {:?}", seen.exchanges);
    seen
}

#[test]
fn a_flood_of_syns_breaks_no_connection() {
    run("outside_flood::a_flood_of_syns_breaks_no_connection", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        let local = flood_service(lab, &services[0], &lab.pod_a1, "backend on this node");
        assert_eq!((local.refused, local.timed_out), (0, 0), "{local:?}");
        let remote = flood_service(lab, &services[1], &lab.pod_b, "backend on another node");
        assert!(remote.served > 0, "{remote:?}");
    });
}

/// Opens a UDP socket with an address that no other flow has.
fn open_flow(flow: u32, to: SocketAddr) -> UdpSocket {
    let network = u128::from(Ipv6Addr::new(0x2001, 0xdb8, 2, 1, 0, 0, 0, 0));
    let socket = UdpSocket::bind((Ipv6Addr::from(network | u128::from(flow)), 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.connect(to).unwrap();
    socket
}

/// Asks on the flow, and checks that the answer is its own.
fn ask_on(flow: &UdpSocket, question: u32) {
    let (question, mut answer) = (question.to_string(), [0; 100]);
    flow.send(question.as_bytes()).unwrap();
    let length = flow.recv(&mut answer).unwrap_or_else(|error| panic!("question {question}: {error}"));
    let answer = String::from_utf8_lossy(&answer[..length]);
    assert!(answer.ends_with(&format!(" {question}")), "question {question} got {answer:?}");
}

/// Begins flows at a constant rate, and uses some of them all the time, so that their ports are between those of idle ones.
fn begin_flows(client: u32, to: SocketAddr) {
    let mut used = VecDeque::new();
    for number in 0..FLOWS {
        // After a delay no faster than before: the ports would not be idle for long enough.
        thread::sleep(FLOW_PACE);
        let flow = client * FLOWS + number;
        let socket = open_flow(flow, to);
        ask_on(&socket, flow);
        if number % 2 == 0 && used.len() < USED_FLOWS {
            used.push_back(socket);
        }
        for _ in 0..3 {
            ask_on(&used[0], flow);
            used.rotate_left(1);
        }
    }
}

#[test]
fn flows_that_begin_at_the_same_time_have_different_ports() {
    run("outside_flood::flows_that_begin_at_the_same_time_have_different_ports", |host, lab, [_, service]| {
        host.configure(&format!("{PACKETS_ON}snat-ports = \"20000-27999\"\n"));
        let _daemon = start(host, &[&service]);
        lab.client.ip("-6 route add local 2001:db8:2:1::/64 dev lo");
        lab.client.set("net/ipv6/ip_nonlocal_bind", "1");
        lab.router.ip("-6 route add 2001:db8:2:1::/64 via 2001:db8:2::10");
        let to = service.load_balancer()[1].parse().unwrap();
        thread::scope(|scope| {
            for client in 0..CLIENTS as u32 {
                scope.spawn(move || lab.client.run(|| begin_flows(client, to)));
            }
        });
        let (tries, flows) = (metric("nodelb_packet_snat_tries_total"), f64::from(CLIENTS as u32 * FLOWS));
        assert!(tries > flows * 1.2, "{flows} flows found free ports: {tries} tries");
    });
}

/// Sends TCP SYNs from random addresses of 198.18.0.0/15, which have no route back.
fn flood(to: Ipv4Addr, port: u16, count: u32) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(255.into())).unwrap();
    socket.set_header_included_v4(true).unwrap();
    let target = SocketAddr::from((to, 0)).into();
    let mut seed = 1_u64;
    for _ in 0..count {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = (seed >> 32).to_be_bytes();
        let source = [198, 18 | (random[4] & 1), random[5], random[6]];
        let packet = syn(source, to.octets(), u16::from_be_bytes([random[7], random[4]]) | 1024, port);
        // A full queue of the device drops the packet: so would a network.
        drop(socket.send_to(&packet, &target));
    }
}

/// An IPv4 packet with a TCP SYN; the kernel fills in the header's checksum.
fn syn(source: [u8; 4], target: [u8; 4], source_port: u16, target_port: u16) -> [u8; 40] {
    let mut packet = [0; 40];
    packet[..4].copy_from_slice(&[0x45, 0, 0, 40]);
    packet[8..10].copy_from_slice(&[64, 6]);
    packet[12..16].copy_from_slice(&source);
    packet[16..20].copy_from_slice(&target);
    packet[20..22].copy_from_slice(&source_port.to_be_bytes());
    packet[22..24].copy_from_slice(&target_port.to_be_bytes());
    packet[32..34].copy_from_slice(&[0x50, 0x02]);
    packet[34..36].copy_from_slice(&1024_u16.to_be_bytes());
    let mut sum: u32 = 6 + 20;
    for word in packet[12..].chunks(2) {
        sum += u32::from(u16::from_be_bytes([word[0], word[1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [high, low] = u16::try_from(!sum & 0xffff).unwrap().to_be_bytes();
    packet[36..38].copy_from_slice(&[high, low]);
    packet
}
