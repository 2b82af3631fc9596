//! UDP flows from outside that begin at the same time, when the free source ports run out.

use std::collections::VecDeque;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::lab_services::PACKETS_ON;
use crate::outside::start;
use crate::outside_more::{metric, run};
use crate::talk::TIMEOUT;

/// Threads that begin flows.
const CLIENTS: u32 = 4;

/// The flows that each client begins, how many of them it uses all the time, and the pause between two: at no time have all
/// ports been in use in the last two seconds.
const FLOWS: u32 = 4_000;
const USED_FLOWS: usize = 250;
const FLOW_PACE: Duration = Duration::from_millis(3);

/// Opens a UDP socket with an address that no other flow has.
fn open_flow(flow: u32, to: SocketAddr) -> UdpSocket {
    let network = u128::from(Ipv6Addr::new(0x2001, 0xdb8, 2, 1, 0, 0, 0, 0));
    let socket = UdpSocket::bind((Ipv6Addr::from(network | u128::from(flow)), 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.connect(to).unwrap();
    socket
}

/// Sends a request on the flow, and checks that the answer is its own.
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
    run("outside_flows::flows_that_begin_at_the_same_time_have_different_ports", |host, lab, [_, service]| {
        host.configure(&format!("{PACKETS_ON}snat-ports = \"20000-27999\"\n"));
        let _daemon = start(host, &[&service]);
        lab.client.ip("-6 route add local 2001:db8:2:1::/64 dev lo");
        lab.client.set("net/ipv6/ip_nonlocal_bind", "1");
        lab.router.ip("-6 route add 2001:db8:2:1::/64 via 2001:db8:2::10");
        let to = service.load_balancer()[1].parse().unwrap();
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || lab.client.run(|| begin_flows(client, to)));
            }
        });
        let (tries, flows) = (metric("nodelb_packet_snat_tries_total"), f64::from(CLIENTS * FLOWS));
        assert!(tries > flows * 1.2, "{flows} flows found free ports: {tries} tries");
    });
}
