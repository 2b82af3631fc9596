//! From an event to the kernel: how long until the maps hold what the apiserver was told.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::cluster::{Content, TIMED, storm};
use crate::daemon::Daemon;

/// How many other events there are a second.
const OTHERS: u32 = 100;

/// How often the timed service changes.
const EVERY: Duration = Duration::from_millis(50);

/// The delays, sorted. Each is counted from before the apiserver is told, so it includes what that does.
pub(crate) fn measure(daemon: &Daemon, content: &Content, during: Duration) -> Vec<Duration> {
    let (frontends, services) = (open(&daemon.pins, "frontends"), open(&daemon.pins, "services"));
    let id = service_id(&frontends);
    let view = || services.lookup(&id, MapFlags::ANY).unwrap().unwrap()[..8].to_vec();
    let is_over = AtomicBool::new(false);
    let mut delays = Vec::new();
    // Its counter of turns is this thread's own.
    let cluster = &content.cluster;
    std::thread::scope(|scope| {
        scope.spawn(|| storm(cluster, OTHERS, || is_over.load(Ordering::Relaxed)));
        let begun = Instant::now();
        while begun.elapsed() < during {
            let (before, told) = (view(), Instant::now());
            content.touch_timed();
            while view() == before {
                assert!(told.elapsed() < Duration::from_secs(10), "the event never reached the kernel");
                std::thread::sleep(Duration::from_micros(50));
            }
            delays.push(told.elapsed());
            std::thread::sleep(EVERY.saturating_sub(told.elapsed()));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    delays.sort();
    delays
}

/// The map of this name, in the only generation there is.
fn open(pins: &Path, name: &str) -> MapHandle {
    let find = Command::new("find").arg(pins).args(["-name", name]).output().unwrap();
    let found = String::from_utf8(find.stdout).unwrap();
    MapHandle::from_pinned_path(found.trim()).unwrap()
}

/// `struct frontend_key` of the timed service, and what it leads to.
fn service_id(frontends: &MapHandle) -> Vec<u8> {
    let address: Ipv4Addr = TIMED.parse().unwrap();
    let mut key = address.to_ipv6_mapped().octets().to_vec();
    key.extend(80_u16.to_be_bytes());
    key.extend([6, 0]);
    frontends.lookup(&key, MapFlags::ANY).unwrap().unwrap()[..4].to_vec()
}
