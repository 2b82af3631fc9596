use std::time::Duration;

use nodelb_core::model::addr::{Family, Protocol};
use nodelb_core::stale::{Flow, Socket};

use super::*;

const ONE: &str = "192.0.2.1:53/UDP";
const TWO: &str = "192.0.2.2:53/UDP";

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

fn suspect(backend: &str, is_unready: bool) -> Suspect {
    let key = Arc::new(PortKey {
        service: "shop/dns".parse().unwrap(),
        port: "".into(),
        protocol: Protocol::Udp,
        family: Family::Ipv4,
    });
    let source = l4("192.0.2.9:4000/UDP");
    let socket = Socket { netns: 1, cookie: 1, family: Family::Ipv4, ifindex: 0, source };
    let flows = vec![Flow { socket, frontend: l4("198.51.100.1:53/UDP"), backend: l4(backend) }];
    Suspect { flows, why: if is_unready { Stale::Unready(key, l4(backend)) } else { Stale::Backend(key) } }
}

#[test]
fn sockets_of_a_backend_that_is_not_ready_wait_and_those_of_a_removed_one_do_not() {
    let (mut unready, start) = (Unready::default(), Instant::now());
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let (gone, one, two) = (suspect(TWO, false), suspect(ONE, true), suspect(TWO, true));
    assert_eq!(unready.without_waiting(Protocol::Udp, vec![gone.clone(), one.clone()], at(0)), [gone]);
    assert!(unready.pause().is_some());
    assert_eq!(unready.without_waiting(Protocol::Udp, vec![one.clone()], at(2)), []);
    assert_eq!(unready.without_waiting(Protocol::Udp, vec![one.clone(), two.clone()], at(4)), []);
    assert_eq!(
        unready.without_waiting(Protocol::Udp, vec![one.clone(), two.clone()], at(5)),
        std::slice::from_ref(&one)
    );
    assert_eq!(unready.without_waiting(Protocol::Udp, vec![two.clone()], at(7)), []);
    assert_eq!(unready.without_waiting(Protocol::Udp, vec![two.clone()], at(9)), [two]);
    // It was ready meanwhile: a flap begins again.
    assert_eq!(unready.without_waiting(Protocol::Udp, vec![one], at(10)), []);
    assert_eq!(unready.without_waiting(Protocol::Udp, vec![], at(11)), []);
    assert_eq!(unready.pause(), None);
}

/// A nodelb that was stopped ended connections to a backend that had been ready again for as long.
#[test]
fn a_pause_of_nodelb_is_not_held_against_a_backend() {
    let (mut unready, start, one) = (Unready::default(), Instant::now(), suspect(ONE, true));
    let mut look = |seconds: u64| {
        let now = start + Duration::from_secs(seconds);
        !unready.without_waiting(Protocol::Udp, vec![one.clone()], now).is_empty()
    };
    assert!(!look(0) && !look(1));
    // Two seconds of these count.
    assert!(!look(1_000) && !look(1_001));
    assert!(look(1_002));
}
