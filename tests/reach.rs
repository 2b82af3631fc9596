//! Waits for an address of a network that was just made.

use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream};
use std::thread;
use std::time::Duration;

/// How often, and how long, to wait for a neighbour.
const MAX_POLLS: u32 = 4_000;
const NAP: Duration = Duration::from_millis(5);

/// Waits until the address answers; a refused connection is an answer. The kernel drops packets on a new device for a moment,
/// which is long on a busy machine.
pub(crate) fn reach(address: &str) {
    let to = (address.parse::<IpAddr>().expect("an address"), 9).into();
    let is_refused = |_| {
        let connected = TcpStream::connect_timeout(&to, Duration::from_secs(2));
        let is_refused = connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        if !is_refused {
            thread::sleep(NAP);
        }
        is_refused
    };
    assert!((0..MAX_POLLS).any(is_refused), "waited in vain for a route to {address}");
}
