//! Changes the cluster at a constant rate, in a separate thread.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nodelb_apiserver::Cluster;

use crate::cluster::{SERVICES, apply, name, outside_slice, service, slice, stable_slice};

/// Fifty changes per second.
const PACE: Duration = Duration::from_millis(20);

pub(crate) struct Churn {
    stop: Arc<AtomicBool>,
    /// Locked during a change.
    gate: Arc<Mutex<()>>,
    count: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Churn {
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let (stop, gate, count) =
            (Arc::<AtomicBool>::default(), Arc::<Mutex<()>>::default(), Arc::<AtomicU64>::default());
        let (cluster, ended, held, counted) =
            (cluster.clone(), Arc::clone(&stop), Arc::clone(&gate), Arc::clone(&count));
        let thread = thread::spawn(move || {
            let mut due = Instant::now();
            for turn in 0.. {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                {
                    let _held = held.lock().unwrap();
                    change(&cluster, turn);
                }
                counted.fetch_add(1, Ordering::Relaxed);
                due = (due + PACE).max(Instant::now());
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        Self { stop, gate, count, thread }
    }

    /// Pauses the changes until `during` returns.
    pub(crate) fn pause(&self, during: impl FnOnce()) {
        let _held = self.gate.lock().unwrap();
        during();
    }

    /// Stops, and returns the number of changes.
    pub(crate) fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.count.load(Ordering::Relaxed)
    }
}

/// Makes one change; every tenth goes to one of the services with traffic.
fn change(cluster: &Cluster, turn: u32) {
    // Coprime to the number of changing services, so that each changes once before any changes
    // again.
    let number = 1 + turn.wrapping_mul(7) % (SERVICES - 1);
    match turn % 10 {
        0 if turn.is_multiple_of(20) => apply(cluster, stable_slice(turn / 20)),
        0 => apply(cluster, outside_slice(turn / 20)),
        1..=5 => apply(cluster, slice(number, 1 + turn / 10 % 5)),
        6 => apply(cluster, slice(number, 0)),
        7 => apply(cluster, service(number, turn)),
        8 => {
            // If it does not exist, create it.
            if cluster.delete("services", "soak", &name(number)).is_err() {
                apply(cluster, service(number, turn));
            }
        }
        _ => {
            if cluster.delete("endpointslices", "soak", &name(number)).is_err() {
                apply(cluster, slice(number, 2));
            }
        }
    }
}
