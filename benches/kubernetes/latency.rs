//! The latency from a change at the apiserver to the maps in the kernel.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::cluster::{Content, TIMED, TIMED_SLICE, storm};
use crate::daemon::Daemon;
use crate::reader::Reader;

/// Number of other events per second.
const OTHERS: u32 = 100;

/// Interval of the changes to the timed service.
const EVERY: Duration = Duration::from_millis(50);

/// Delays from a request to the apiserver, each sorted.
pub(crate) struct Delays {
    /// Until the kernel has the change.
    pub(crate) kernel: Vec<Duration>,
    /// Until the apiserver has stored it: it stores one object after another.
    pub(crate) stored: Vec<Duration>,
    /// The rest of each delay: from then on until the kernel has the change.
    pub(crate) after: Vec<Duration>,
    /// Until a program that only reads the watch has received it.
    pub(crate) read: Vec<Duration>,
}

/// Measures the delays. Each one includes what the apiserver does.
pub(crate) fn measure(daemon: &Daemon, content: &Content, during: Duration) -> Delays {
    let timed = Timed::open(daemon);
    let mut reader = Reader::start(content, Stdio::piped());
    let received = reader.times_of(TIMED_SLICE);
    let is_over = AtomicBool::new(false);
    let mut delays = Delays { kernel: Vec::new(), stored: Vec::new(), after: Vec::new(), read: Vec::new() };
    // This thread has its own counter.
    let cluster = &content.cluster;
    std::thread::scope(|scope| {
        scope.spawn(|| storm(cluster, OTHERS, || is_over.load(Ordering::Relaxed)));
        let begun = Instant::now();
        while begun.elapsed() < during {
            let sent = Instant::now();
            let (stored, kernel) = timed.change(content);
            delays.read.push(received.recv_timeout(Duration::from_secs(30)).unwrap().duration_since(sent));
            delays.stored.push(stored);
            delays.kernel.push(kernel);
            delays.after.push(kernel.saturating_sub(stored));
            std::thread::sleep(EVERY.saturating_sub(kernel));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for times in [&mut delays.stored, &mut delays.kernel, &mut delays.after, &mut delays.read] {
        times.sort();
    }
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

    /// Changes the service; returns the time until the apiserver has stored the change, and until the kernel has it.
    fn change(&self, content: &Content) -> (Duration, Duration) {
        let (before, sent) = (self.view(), Instant::now());
        content.touch_timed();
        let stored = sent.elapsed();
        while self.view() == before {
            assert!(sent.elapsed() < Duration::from_secs(30), "the event never reached the kernel");
            std::thread::sleep(Duration::from_micros(50));
        }
        (stored, sent.elapsed())
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
