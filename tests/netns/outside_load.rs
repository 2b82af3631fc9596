//! The load of clients outside the node: connections at a constant rate, and long-lived connections with data in both
//! directions all the time. `OUTSIDE_RATE` sets the number of new connections in a second, `OUTSIDE_FLOWS` that of
//! long-lived ones.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nodelb_prober::{Plan, Probe, Tally, Transport};

use crate::crash::TOO_MANY;
use crate::host::{eventually, say, socket};
use crate::lab::Lab;
use crate::lab_services::Service;
use crate::outside::TRANSPORTS;
use crate::seeded::number;
use crate::talk::{TIMEOUT, Talk};

/// Threads that keep the long-lived connections busy.
const WORKERS: usize = 8;
/// The pause of a worker between two exchanges.
const PACE: Duration = Duration::from_millis(8);
/// How often a UDP client repeats a datagram while devices are down.
const TRIES: usize = 5;

/// Every n-th crash point; n is the value of the variable, or the default.
pub(crate) fn every(variable: &str, default: u32) -> impl Iterator<Item = u32> {
    (1..TOO_MANY).step_by(number(variable, default) as usize)
}

/// A long-lived connection.
struct Flow {
    to: String,
    transport: Transport,
    talk: Talk,
}

/// What the workers share.
#[derive(Default)]
struct Shared {
    is_done: AtomicBool,
    /// Whether datagrams may be lost, because no device leads to the node.
    may_lose: AtomicBool,
    /// How often each worker has used all its connections.
    passes: [AtomicU64; WORKERS],
    exchanges: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Shared {
    /// Exchanges a kilobyte on each connection of a worker in turn, until the end of the load. A connection that has
    /// failed is reported and closed.
    fn work(&self, worker: usize, mut flows: VecDeque<Flow>) {
        while !self.is_done.load(Ordering::Relaxed) {
            flows.retain_mut(|flow| {
                thread::sleep(PACE);
                let result = self.exchange(flow);
                if let Err(error) = result {
                    let Flow { to, transport, talk } = flow;
                    let text = format!("{to} {transport:?} from port {}: {error}", talk.port());
                    self.failures.lock().unwrap().push(text);
                }
                result.is_ok()
            });
            self.passes[worker].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn exchange(&self, flow: &mut Flow) -> Result<(), ErrorKind> {
        let text = "x".repeat(1_000);
        let mut may_lose = self.may_lose.load(Ordering::Relaxed);
        for _ in 0..TRIES {
            let result = flow.talk.send(&text);
            // The exchange may have begun before the device went down.
            may_lose |= self.may_lose.load(Ordering::Relaxed);
            match result {
                Ok(_) => break,
                Err(_) if flow.transport == Transport::Udp && may_lose => thread::sleep(PACE),
                Err(error) => return Err(error),
            }
        }
        self.exchanges.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Clients of one service that connect all the time, and clients of another that stay connected.
pub(crate) struct Load<'a> {
    lab: &'a Lab,
    probed: Service,
    probes: Vec<Probe>,
    /// The results of probes that have ended.
    ended: Tally,
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    flows: usize,
    /// When the probes began, and what has ended since then.
    began: Instant,
    steps: Vec<(Duration, String)>,
}

impl<'a> Load<'a> {
    /// Connects: the first service gets the long-lived connections.
    pub(crate) fn start(lab: &'a Lab, [stays, probed]: &[Service; 2]) -> Self {
        let addresses = [stays.load_balancer(), stays.node_ports()].concat();
        let flows = number("OUTSIDE_FLOWS", 200_usize);
        let mut queues: Vec<VecDeque<Flow>> = Vec::new();
        queues.resize_with(WORKERS, VecDeque::new);
        for flow in 0..flows {
            let (to, transport) = (&addresses[flow % addresses.len()], TRANSPORTS[flow / addresses.len() % 2]);
            // A datagram that is lost while a device is down is repeated after the timeout.
            let timeout = if transport == Transport::Udp { TIMEOUT / 2 } else { 4 * TIMEOUT };
            let talk = lab.client.run(|| Talk::open(to, transport, timeout));
            let talk = talk.unwrap_or_else(|error| panic!("{to} {transport:?}: {error}"));
            queues[flow % WORKERS].push_back(Flow { to: to.clone(), transport, talk });
        }
        let shared = Arc::new(Shared::default());
        let start = |(worker, queue): (usize, VecDeque<Flow>)| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.work(worker, queue))
        };
        let workers = queues.into_iter().enumerate().map(start).collect();
        let (probed, probes, ended) = (probed.clone(), Vec::new(), Tally::default());
        let (began, steps) = (Instant::now(), Vec::new());
        let mut load = Self { lab, probed, probes, ended, shared, workers, flows, began, steps };
        load.connect();
        load.assert_unharmed("at the start");
        load
    }

    /// Begins to connect at the rate.
    fn connect(&mut self) {
        let addresses = [self.probed.load_balancer(), self.probed.node_ports()].concat();
        let rate = number("OUTSIDE_RATE", 1_000) / 8;
        self.began = Instant::now();
        self.steps.clear();
        for (address, transport) in addresses.iter().flat_map(|to| TRANSPORTS.map(|transport| (to, transport))) {
            let plan = Plan { rate, timeout: TIMEOUT, ..Plan::new(socket(address), transport) };
            self.probes.push(self.lab.client.run(|| Probe::start(plan)));
        }
    }

    /// Ends the clients that connect.
    fn end_probes(&mut self, when: &str) {
        for probe in self.probes.drain(..) {
            let tally = probe.finish();
            assert_eq!(tally.failures(), 0, "{when}: {tally}; ended before: {:.1?}", self.steps);
            self.ended.merge(&tally);
        }
    }

    /// Checks that nothing has failed and that every long-lived connection exchanges data.
    pub(crate) fn assert_unharmed(&mut self, when: &str) {
        let before = self.shared.passes.each_ref().map(|count| count.load(Ordering::Relaxed));
        eventually(&format!("exchanges on all connections, {when}"), || {
            self.shared.passes.iter().zip(before).all(|(count, before)| count.load(Ordering::Relaxed) >= before + 2)
        });
        let failures = self.shared.failures.lock().unwrap();
        assert!(failures.is_empty(), "{when}: {} of {} connections: {failures:#?}", failures.len(), self.flows);
        for probe in &self.probes {
            let tally = probe.tally();
            assert_eq!(tally.failures(), 0, "{when}: {tally}; ended before: {:.1?}", self.steps);
        }
        self.steps.push((self.began.elapsed(), when.to_owned()));
    }

    /// Runs `cut`. Packets may be lost meanwhile, and new connections may fail. Established ones go on.
    pub(crate) fn during(&mut self, when: &str, cut: impl FnOnce()) {
        self.end_probes(when);
        self.shared.may_lose.store(true, Ordering::Relaxed);
        cut();
        // Every exchange that has begun in the meantime ends.
        let before = self.shared.passes.each_ref().map(|count| count.load(Ordering::Relaxed));
        eventually("exchanges after the cut", || {
            self.shared.passes.iter().zip(before).all(|(count, before)| count.load(Ordering::Relaxed) >= before + 2)
        });
        self.shared.may_lose.store(false, Ordering::Relaxed);
        self.connect();
        self.assert_unharmed(when);
    }

    /// Ends the load, and prints its figures.
    pub(crate) fn finish(mut self) {
        self.assert_unharmed("at the end");
        self.end_probes("at the end");
        self.shared.is_done.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            worker.join().unwrap();
        }
        let (connections, exchanges) = (self.ended.ok(), self.shared.exchanges.load(Ordering::Relaxed));
        assert!(connections > 100 && exchanges > 100, "{connections} connections, {exchanges} exchanges");
        let (flows, slowest) = (self.flows, self.ended.slowest);
        say(&format!(
            "{connections} new connections (the slowest took {slowest:.1?}) and {exchanges} exchanges on {flows} \
             long-lived ones, none failed"
        ));
    }
}
