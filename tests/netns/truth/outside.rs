//! A round with clients outside the node: what the status kept silent about, and what it said without a reason.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nodelb_prober::SetAtEnd;

use super::outside_clients::{Clock, Got, connect};
use super::outside_kinds::Kind;
use super::outside_net::Net;
use super::outside_node::Node;
use super::silence::{Compared, Found, Seen, Swept, sweeps};
use crate::host::{Host, answer, eventually, get, say};
use crate::seeded::Random;

/// The number of services, each of which is one sequence of faults in a round.
pub(super) const SERVICES: usize = Kind::ALL.len();
/// The changes of each service in a round, before everything is as at first again.
const CHANGES: usize = 2;
/// After which time the status is asked for again.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// What changes with each sweep.
const SWEEP: &str = "nodelb_packet_sweep_duration_seconds ";
/// In milliseconds: what is compared after a change needs a sweep, and another one this much later.
const BEFORE: u64 = 4_000;
const BETWEEN: u64 = 5_000;

pub(super) fn play(host: &Host, net: &Net, seed: u64) -> Vec<String> {
    let mut random = Random::new(seed);
    let clock = Clock::new();
    let mut node = Node::new(host, net, clock);
    let of = |kind: Kind| kind.addresses().into_iter().map(move |address| (address, kind.transport()));
    let addresses: Vec<_> = Kind::ALL.into_iter().flat_map(of).collect();
    let (got, seen, is_over) = (Mutex::new(Got::default()), Mutex::new(Vec::new()), AtomicBool::new(false));
    thread::scope(|scope| {
        let _end = SetAtEnd(&is_over);
        scope.spawn(|| net.client.run(|| connect(&addresses, clock, &got, &is_over)));
        scope.spawn(|| net.node.run(|| watch(clock, &seen, &is_over)));
        eventually("every client is answered", || {
            let got = got.lock().unwrap_or_else(PoisonError::into_inner);
            let is_answered = |(address, _): &(String, _)| {
                got.samples.get(address).is_some_and(|it| it.iter().any(|sample| sample.failure.is_none()))
            };
            addresses.iter().all(is_answered)
        });
        for _ in 0..CHANGES {
            node.change(&mut random);
            wait_for_sweeps(clock, &seen);
        }
        node.repair();
        wait_for_sweeps(clock, &seen);
    });
    let (mut got, seen) = (got.into_inner().unwrap(), seen.into_inner().unwrap());
    got.sort();
    let Found { lies, failing, answered } = Compared { got: &got, seen: &seen, done: &node.done }.find();
    let numbers = (failing, answered, got.stalls.len(), seen.len());
    say(&format!("compared while clients failed, and while all were answered; stalls, questions: {numbers:?}"));
    assert!(answered + failing + got.stalls.len() > 0, "nothing is compared");
    node.finish();
    lies
}

/// Waits until the daemon has had to find out what the last change did.
fn wait_for_sweeps(clock: Clock, seen: &Mutex<Vec<Seen>>) {
    let from = clock.now();
    let mut first = None;
    eventually("two sweeps", || {
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let sweeps = sweeps(&seen);
        first = sweeps.iter().find(|sweep| sweep.after >= from + BEFORE).copied();
        let is_later = |first: Swept| sweeps.iter().any(|it| it.after >= first.until + BETWEEN);
        first.is_some_and(is_later)
    });
    thread::sleep(ASK_EVERY * 4);
}

/// Asks for the status until it is over.
fn watch(clock: Clock, seen: &Mutex<Vec<Seen>>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        let begin = clock.now();
        let metrics = answer("/metrics", "text/plain");
        let sweep = metrics.and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix(SWEEP))?;
            Some(line.to_owned())
        });
        let status = get("/status");
        let problems = status.and_then(|status| status["problems"].as_array().cloned());
        let one = Seen { begin, end: clock.now(), sweep, problems };
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(one);
        thread::sleep(ASK_EVERY);
    }
}
