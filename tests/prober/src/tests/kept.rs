use std::net::{Ipv4Addr, TcpListener};

use super::*;
use crate::{Backend, Transport};

#[test]
fn connections_are_kept_and_counted() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let backend = Backend::start("one", &[(Transport::TcpLines, free)]).unwrap();
    let mut kept = Kept::open(free, 3).unwrap();
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
