//! The cost of a cluster of ten thousand services for the daemon: `make bench`. The daemon runs as
//! a process against the API test server over TLS; CPU time and memory are those that the kernel
//! accounts to it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark stops where it cannot go on, and prints"
)]

#[path = "kubernetes/admin.rs"]
mod admin;
#[path = "kubernetes/cluster.rs"]
mod cluster;
#[path = "kubernetes/daemon.rs"]
mod daemon;
#[path = "kubernetes/latency.rs"]
mod latency;
#[path = "kubernetes/objects.rs"]
mod objects;
#[path = "../tests/sandbox/mod.rs"]
mod sandbox;

use std::time::{Duration, Instant};

use cluster::{Content, burst, storm};
use daemon::Daemon;

/// Duration of each load.
const LOAD: Duration = Duration::from_secs(30);

/// The number of events in a burst.
const BURST: u32 = 100_000;

/// The time after a burst at which the memory is compared with that before it.
const REST: Duration = Duration::from_secs(60);

/// The limit of the memory, in megabytes.
const MEMORY: u64 = 70;

fn main() {
    sandbox::run("kubernetes", |sandbox| {
        let content = Content::new();
        let daemon = Daemon::start(sandbox, &content);
        let start = daemon.until_ready();
        let at_ready = daemon.memory();
        println!("\n## A cluster of 10,000 services\n");
        println!(
            "10,000 Services; 1,000 EndpointSlices of 100 endpoints and 10,000 of one, with what a cluster writes"
        );
        println!(
            "in addition (managedFields, labels, targetRef): {:.1} MB of JSON. TLS on loopback.\n",
            content.megabytes()
        );
        println!("| | | limit |\n|---|---|---|");
        let mut within = Within(true);
        let seconds = |time: Duration| time.as_secs_f64();
        within.row("CPU time from the process's start to READY", seconds(start.cpu), (0.6, "s"));
        println!("| time from the process's start to READY | {:.2} s | |", seconds(start.wall));
        within.row("resident at READY", at_ready.resident as f64, (MEMORY as f64, "MB"));
        within.0 &= answers();
        for (per_second, limit) in [(60, 2.5), (500, 15.0)] {
            let (share, made) = events(&daemon, &content, per_second);
            let what = format!("CPU at {per_second} slice events a second (made: {made:.0})");
            within.row(&what, share * 100.0, (limit, "% of a core"));
        }
        let delays = latency::measure(&daemon, &content, LOAD);
        let [median, p99] = [50, 99].map(|percent| seconds(delays[delays.len() * percent / 100]) * 1000.0);
        println!("| event to kernel, with 100 other events per second: median | {median:.2} ms | |");
        within.row(&format!("the same, 99th percentile of {}", delays.len()), p99, (3.0, "ms"));
        let before = daemon.memory().resident;
        within.row("resident, the state written to disk meanwhile", before as f64, (MEMORY as f64, "MB"));
        after_burst(&daemon, &content, before, &mut within);
        within.row("most ever resident", daemon.memory().peak as f64, (MEMORY as f64, "MB"));
        println!("\nWithin all limits: {}.", if within.0 { "yes" } else { "**no**" });
    });
}

/// Whether every figure so far is within its limit.
struct Within(bool);

impl Within {
    /// Prints the figure with its limit, both in this unit.
    fn row(&mut self, what: &str, figure: f64, (limit, unit): (f64, &str)) {
        println!("| {what} | {figure:.2} {unit} | {limit} {unit} |");
        self.0 &= figure <= limit;
    }
}

/// Compares the memory before a burst of events with that a minute after it.
fn after_burst(daemon: &Daemon, content: &Content, before: u64, within: &mut Within) {
    let (begun, cpu) = (Instant::now(), daemon.cpu());
    burst(&content.cluster, BURST);
    latency::until_in_kernel(daemon, content);
    println!(
        "| a burst of 100,000 events of slices of one endpoint | {:.1} s, {:.1} s of CPU time | |",
        begun.elapsed().as_secs_f64(),
        (daemon.cpu() - cpu).as_secs_f64()
    );
    std::thread::sleep(REST);
    let after = daemon.memory().resident;
    println!("| resident a minute after the burst | {after} MB | |");
    within.row("compared with before the burst", (after as f64 / before as f64 - 1.0) * 100.0, (5.0, "%"));
}

/// Whether the admin API responds in time.
fn answers() -> bool {
    let asked = [
        ("`curl localhost:9890/frontends`, all of them", "/frontends", 50),
        ("the same in JSON", "/frontends?output=json", 50),
        ("the same of one service", "/frontends?service=production/service-05000", 5),
    ];
    let within = asked.map(|(what, target, limit)| {
        let (median, bytes) = admin::ask(target);
        println!("| {what}: median, {bytes} bytes | {:.2} ms | {limit} ms |", median.as_secs_f64() * 1000.0);
        median <= Duration::from_millis(limit)
    });
    within == [true; 3]
}

/// The share of one core that this many events per second take, and how many the apiserver could make.
fn events(daemon: &Daemon, content: &Content, per_second: u32) -> (f64, f64) {
    // Work left over from the start must not count.
    std::thread::sleep(Duration::from_secs(3));
    let (begun, before) = (Instant::now(), daemon.cpu());
    let made = storm(&content.cluster, per_second, || begun.elapsed() >= LOAD);
    let elapsed = begun.elapsed().as_secs_f64();
    ((daemon.cpu() - before).as_secs_f64() / elapsed, f64::from(made) / elapsed)
}
