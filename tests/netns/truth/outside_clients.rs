//! Clients outside the node, which begin one connection after another to every address. They know nothing of nodelb.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nodelb_prober::{Transport, exchange};

use crate::host::socket;

/// So many clients connect to each address.
const CLIENTS: u32 = 5;
/// Each begins a connection in this time.
const EVERY: Duration = Duration::from_secs(1);
/// After this time, a client gives up. By then it has repeated its SYN: with direct return, nothing else shows that it waits.
pub(super) const TIMEOUT: Duration = Duration::from_secs(2);
/// A client that sleeps or waits this much longer than it meant to is a sign that the machine stood still.
const LATE: u64 = 500;

/// The time since the beginning of a round, in milliseconds.
#[derive(Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn new() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now(self) -> u64 {
        self.0.elapsed().as_millis().try_into().unwrap()
    }
}

/// One connection.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) failure: Option<String>,
}

/// What the clients got.
#[derive(Default)]
pub(super) struct Got {
    /// The connections to each address.
    pub(super) samples: BTreeMap<String, Vec<Sample>>,
    /// The times in which the machine stood still.
    pub(super) stalls: Vec<(u64, u64)>,
}

impl Got {
    /// Sorts everything by time.
    pub(super) fn sort(&mut self) {
        self.samples.values_mut().for_each(|samples| samples.sort_by_key(|sample| sample.begin));
        self.stalls.sort_unstable();
    }
}

/// Connects until it is over, from the namespace of the calling thread.
pub(super) fn connect(addresses: &[(String, Transport)], clock: Clock, got: &Mutex<Got>, is_over: &AtomicBool) {
    thread::scope(|scope| {
        for (address, transport) in addresses {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    thread::sleep(EVERY * client / CLIENTS);
                    run((address, *transport), clock, got, is_over);
                });
            }
        }
    });
}

fn run((address, transport): (&str, Transport), clock: Clock, got: &Mutex<Got>, is_over: &AtomicBool) {
    let to: SocketAddr = socket(address);
    let note = |sample: Option<Sample>, stall: (u64, u64, Duration)| {
        let (begin, end, limit) = stall;
        let mut got = got.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sample) = sample {
            got.samples.entry(address.to_owned()).or_default().push(sample);
        }
        if end - begin > u64::try_from(limit.as_millis()).unwrap() + LATE {
            got.stalls.push((begin, end));
        }
    };
    while !is_over.load(Ordering::Relaxed) {
        let begin = clock.now();
        let failure = match transport {
            Transport::Udp => ask(to).err(),
            _ => exchange(to, transport, TIMEOUT).err().map(|failure| failure.to_string()),
        };
        let end = clock.now();
        note(Some(Sample { begin, end, failure }), (begin, end, TIMEOUT));
        let pause = EVERY.saturating_sub(Duration::from_millis(end - begin));
        thread::sleep(pause);
        note(None, (end, clock.now(), pause));
    }
}

/// Sends a datagram, and again if there is no answer: only such a client waits, as far as nodelb can see.
fn ask(to: SocketAddr) -> Result<(), String> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    socket.set_read_timeout(Some(TIMEOUT * 3 / 5)).unwrap();
    let mut answer = [0; 64];
    socket.connect(to).map_err(|error| error.to_string())?;
    for _ in 0..2 {
        let received = socket.send(b"?").and_then(|_| socket.recv(&mut answer));
        match received {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Err("timed-out".to_owned())
}
