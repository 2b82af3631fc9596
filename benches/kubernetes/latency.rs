//! The latency from a change at the apiserver to the maps in the kernel.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::cluster::{Content, TIMED, storm};
use crate::daemon::Daemon;

/// Number of other events per second.
const OTHERS: u32 = 100;

/// Interval of the changes to the timed service.
const EVERY: Duration = Duration::from_millis(50);

/// Measures the delays; returns them sorted. Each one starts before the request to the apiserver
/// and includes its processing.
pub(crate) fn measure(daemon: &Daemon, content: &Content, during: Duration) -> Vec<Duration> {
    let timed = Timed::open(daemon);
    let is_over = AtomicBool::new(false);
    let mut delays = Vec::new();
    // This thread has its own counter.
    let cluster = &content.cluster;
    std::thread::scope(|scope| {
        scope.spawn(|| storm(cluster, OTHERS, || is_over.load(Ordering::Relaxed)));
        let begun = Instant::now();
        while begun.elapsed() < during {
            let delay = timed.change(content);
            delays.push(delay);
            std::thread::sleep(EVERY.saturating_sub(delay));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    delays.sort();
    delays
}

/// Waits until the kernel has all events so far.
pub(crate) fn until_in_kernel(daemon: &Daemon, content: &Content) {
    Timed::open(daemon).change(content);
}

/// The entry of the timed service.
struct Timed {
    services: MapHandle,
    id: Vec<u8>,
}

impl Timed {
    fn open(daemon: &Daemon) -> Self {
        Self { services: open(&daemon.pins, "services"), id: service_id(&open(&daemon.pins, "frontends")) }
    }

    fn view(&self) -> Vec<u8> {
        self.services.lookup(&self.id, MapFlags::ANY).unwrap().unwrap()[..8].to_vec()
    }

    /// Changes the service; returns the time until the kernel has the change.
    fn change(&self, content: &Content) -> Duration {
        let (before, sent) = (self.view(), Instant::now());
        content.touch_timed();
        while self.view() == before {
            assert!(sent.elapsed() < Duration::from_secs(30), "the event never reached the kernel");
            std::thread::sleep(Duration::from_micros(50));
        }
        sent.elapsed()
    }
}

/// Opens the map of this name, in the only generation there is.
fn open(pins: &Path, name: &str) -> MapHandle {
    let find = Command::new("find").arg(pins).args(["-name", name]).output().unwrap();
    let found = String::from_utf8(find.stdout).unwrap();
    MapHandle::from_pinned_path(found.trim()).unwrap()
}

/// The key of the timed service (`struct frontend_key`), and its service id.
fn service_id(frontends: &MapHandle) -> Vec<u8> {
    let address: Ipv4Addr = TIMED.parse().unwrap();
    let mut key = address.to_ipv6_mapped().octets().to_vec();
    key.extend(80_u16.to_be_bytes());
    key.extend([6, 0]);
    frontends.lookup(&key, MapFlags::ANY).unwrap().unwrap()[..4].to_vec()
}
