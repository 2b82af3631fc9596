//! Clients that connect at a constant rate until they are stopped. Owns their threads.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::exchange::{Transport, exchange};
use crate::tally::Tally;

/// Enough clients that one waiting for its timeout does not stop the others.
const CLIENTS: u32 = 4;

/// The target and rate of a probe.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The address.
    pub to: SocketAddr,
    /// The transport.
    pub transport: Transport,
    /// Exchanges per second, all clients together; 0 is as fast as possible.
    pub rate: u32,
    /// How long a client waits for an answer.
    pub timeout: Duration,
}

impl Plan {
    /// 1,000 exchanges per second with a timeout of two seconds.
    pub const fn new(to: SocketAddr, transport: Transport) -> Self {
        Self { to, transport, rate: 1000, timeout: Duration::from_secs(2) }
    }

    /// The interval between two exchanges of one client.
    fn pace(&self) -> Duration {
        if self.rate == 0 { Duration::ZERO } else { Duration::from_secs(CLIENTS.into()) / self.rate }
    }
}

/// Running clients. Dropping it stops them.
#[derive(Debug)]
pub struct Probe {
    stop: Arc<AtomicBool>,
    tallies: Vec<Arc<Mutex<Tally>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Probe {
    /// Starts the clients.
    pub fn start(plan: Plan) -> Self {
        let mut probe = Self { stop: Arc::default(), tallies: Vec::new(), threads: Vec::new() };
        let start = Instant::now();
        for client in 0..CLIENTS {
            let (tally, stop) = (Arc::default(), Arc::clone(&probe.stop));
            probe.tallies.push(Arc::clone(&tally));
            let first = start + plan.pace() * client / CLIENTS;
            probe.threads.push(thread::spawn(move || run_client(plan, start, first, &tally, &stop)));
        }
        probe
    }

    /// The results so far.
    pub fn tally(&self) -> Tally {
        let mut sum = Tally::default();
        for tally in &self.tallies {
            sum.merge(&tally.lock().unwrap_or_else(PoisonError::into_inner));
        }
        sum
    }

    /// Stops the clients after their current exchange and returns the results.
    pub fn finish(mut self) -> Tally {
        self.join();
        self.tally()
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.join();
    }
}

/// One client. A client that falls behind continues from the current time and never catches up with
/// a burst.
fn run_client(plan: Plan, start: Instant, first: Instant, tally: &Mutex<Tally>, stop: &AtomicBool) {
    let mut due = first;
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let began = Instant::now();
        let result = exchange(plan.to, plan.transport, plan.timeout);
        let ended = Instant::now();
        tally.lock().unwrap_or_else(PoisonError::into_inner).record(result, ended - start, ended - began);
        due = (due + plan.pace()).max(began);
    }
}

/// Connects `count` times, one after the other.
pub fn connect_times(plan: Plan, count: u32) -> Tally {
    let start = Instant::now();
    let mut tally = Tally::default();
    for _ in 0..count {
        let began = Instant::now();
        let result = exchange(plan.to, plan.transport, plan.timeout);
        tally.record(result, start.elapsed(), began.elapsed());
    }
    tally
}

#[cfg(test)]
#[path = "tests/probe.rs"]
mod tests;
