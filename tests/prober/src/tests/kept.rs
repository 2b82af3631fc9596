use std::net::{Ipv4Addr, TcpListener};

use super::*;
use crate::Backend;

#[test]
fn connections_are_kept_and_counted() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let backend = Backend::start("one", &[(Transport::TcpLines, free)]).unwrap();
    let mut kept = Kept::open(free, Transport::TcpLines, 3).unwrap();
    kept.ask();
    // Longer than the listener waits for a client.
    std::thread::sleep(Duration::from_millis(250));
    kept.ask();
    assert_eq!((kept.tally().ok(), kept.tally().failures()), (6, 0), "{}", kept.tally());
    assert_eq!(kept.tally().answered.keys().collect::<Vec<_>>(), ["one"]);
    drop(backend);
    kept.ask();
    kept.ask();
    assert_eq!(kept.tally().failures(), 3, "each connection fails once: {}", kept.tally());
}

#[test]
fn a_udp_socket_is_kept_and_fails_once() {
    let free = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let backend = Backend::start("one", &[(Transport::Udp, free)]).unwrap();
    let mut kept = Kept::open(free, Transport::Udp, 2).unwrap();
    kept.ask();
    kept.ask();
    assert_eq!((kept.tally().ok(), kept.tally().failures()), (4, 0), "{}", kept.tally());
    assert_eq!(kept.tally().answered.keys().collect::<Vec<_>>(), ["one"]);
    drop(backend);
    kept.ask();
    kept.ask();
    assert_eq!(kept.tally().failures(), 2, "each socket fails once: {}", kept.tally());
}
