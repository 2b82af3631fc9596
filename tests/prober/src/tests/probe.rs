use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use super::{Plan, Probe, connect_times};
use crate::backend::Backend;
use crate::exchange::Transport;

/// An address without a listener.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn every_transport_reaches_the_backend() {
    let addr = free();
    let _backend = Backend::start("here", &[(Transport::Tcp, addr), (Transport::Udp, addr)]).unwrap();
    for transport in [Transport::Tcp, Transport::Udp, Transport::UdpUnconnected] {
        let tally = connect_times(Plan::new(addr, transport), 10);
        assert_eq!((tally.answered.get("here"), tally.failures()), (Some(&10), 0), "{transport:?}: {tally}");
    }
}

#[test]
fn an_address_without_a_listener_is_refused() {
    let tally = connect_times(Plan::new(free(), Transport::Tcp), 1);
    assert_eq!(tally.failed.get("ECONNREFUSED"), Some(&1), "{tally}");
}

#[test]
fn a_late_answer_is_not_a_lost_one() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let plan = Plan { timeout: Duration::from_millis(200), ..Plan::new(server.local_addr().unwrap(), Transport::Udp) };
    let client = thread::spawn(move || connect_times(plan, 2));
    let mut question = [0; 512];
    let (length, from) = server.recv_from(&mut question).unwrap();
    thread::sleep(plan.timeout * 3 / 2);
    server.send_to(&question[..length], from).unwrap();
    let (_, unanswered) = server.recv_from(&mut question).unwrap();
    let tally = client.join().unwrap();
    let lost = format!("no-answer-to-port-{}", unanswered.port());
    assert_eq!((tally.failed.get("late"), tally.failed.get(&lost)), (Some(&1), Some(&1)), "{tally}");
}

#[test]
fn keeps_its_rate_until_it_is_stopped() {
    let addr = free();
    let _backend = Backend::start("here", &[(Transport::Tcp, addr)]).unwrap();
    let probe = Probe::start(Plan { rate: 200, ..Plan::new(addr, Transport::Tcp) });
    thread::sleep(Duration::from_millis(500));
    let tally = probe.finish();
    assert_eq!(tally.failures(), 0, "{tally}");
    assert!((1..=120).contains(&tally.ok()), "{tally}");
}
