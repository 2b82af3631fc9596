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
#[path = "kubernetes/pages.rs"]
mod pages;
#[path = "kubernetes/reader.rs"]
mod reader;
#[path = "../tests/sandbox/mod.rs"]
mod sandbox;

use std::process::Stdio;
use std::time::{Duration, Instant};

use cluster::{Content, burst, storm};
use daemon::Daemon;
use pages::Pages;
use reader::Reader;

/// Duration of each load.
const LOAD: Duration = Duration::from_secs(30);
/// Number of open web pages, and the duration of each measurement with and without them.
const PAGES: usize = 50;
const PAGES_TIME: Duration = Duration::from_secs(15);

/// The number of events in a burst.
const BURST: u32 = 100_000;

/// The time after a burst at which the memory is compared with that before it.
const REST: Duration = Duration::from_secs(60);

/// The time after READY at which the memory of a start is settled.
const SETTLED: Duration = Duration::from_secs(5);

/// The limit of the memory, in megabytes.
const MEMORY: f64 = 70.0;

fn main() {
    sandbox::run("kubernetes", |sandbox| {
        let content = Content::new();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, content.cluster.kubeconfig(&[&content.replica.url()]).unwrap()).unwrap();
        let start =
            || Daemon::start(sandbox, directory.path(), &format!("[kubernetes]\nkubeconfig = {kubeconfig:?}\n"));
        let daemon = start();
        let first = daemon.until_ready();
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
        within.row("CPU time from the process's start to READY", seconds(first.cpu), (0.6, "s"));
        println!("| time from the process's start to READY | {:.2} s | |", seconds(first.wall));
        within.row("resident at READY", at_ready.resident, (MEMORY, "MB"));
        within.0 &= answers();
        let mut loads = Vec::new();
        for (per_second, limit) in [(60, 2.5), (500, 15.0)] {
            let (share, of_reader, made) = events(&daemon, &content, per_second);
            loads.push(share * 100.0);
            let what = format!("CPU at {per_second} slice events a second (made: {made:.0})");
            within.row(&what, share * 100.0, (limit, "% of a core"));
            println!(
                "| floor: curl, which reads the same watch and drops it | {:.2} % of a core | |",
                of_reader * 100.0
            );
        }
        let delays = latency::measure(&daemon, &content, LOAD);
        let at = |times: &[Duration], percent| seconds(times[times.len() * percent / 100]) * 1000.0;
        let [median, p99] = [50, 99].map(|percent| at(&delays.kernel, percent));
        println!("| event to kernel, with 100 other events per second: median | {median:.2} ms | |");
        within.row(&format!("the same, 99th percentile of {}", delays.kernel.len()), p99, (3.0, "ms"));
        for (part, times) in [
            ("floor: until curl has read it", &delays.read),
            ("until the API server of the benchmark has stored it", &delays.stored),
            ("from then on until it is in the kernel", &delays.after),
        ] {
            let [median, p99] = [50, 99].map(|percent| at(times, percent));
            println!("| {part}: median, 99th percentile | {median:.2} ms, {p99:.2} ms | |");
        }
        let before = daemon.memory().resident;
        within.row("resident, the state written to disk meanwhile", before, (MEMORY, "MB"));
        after_burst(&daemon, &content, before, &mut within);
        within.row("most ever resident", daemon.memory().peak, (MEMORY, "MB"));
        within.0 &= pages(&daemon, &content);
        // As a crash leaves it: the state of this run is remembered.
        drop(daemon);
        let again = start();
        again.until_ready();
        // Memory that only the start has needed is returned when it is complete.
        std::thread::sleep(SETTLED);
        let what = "resident 5 s after READY of the next start, which remembers the state (floor: at the first READY)";
        within.row(what, again.memory().resident, (MEMORY, "MB"));
        println!("\nWithin all limits: {}.", if within.0 { "yes" } else { "**no**" });
        println!(
            "Summary: With 10,000 services and 110,000 endpoints of an API server, nodelb is ready {:.1} s after its start, with {:.1} s \
             of CPU time and {:.0} MB of memory, and 60 changed EndpointSlices a second take {:.1} % of one core.",
            seconds(first.wall),
            seconds(first.cpu),
            at_ready.resident,
            loads[0]
        );
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
fn after_burst(daemon: &Daemon, content: &Content, before: f64, within: &mut Within) {
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
    println!("| resident a minute after the burst | {after:.0} MB | |");
    within.row("compared with before the burst", (after / before - 1.0) * 100.0, (5.0, "%"));
}

/// Whether the admin API responds in time.
fn answers() -> bool {
    let asked = [
        ("`curl localhost:9890/frontends`, all of them", "/frontends", 50),
        ("the same in JSON", "/frontends?output=json", 50),
        ("the same of one service", "/frontends?service=production/service-05000", 5),
        ("`curl localhost:9890/status`", "/status", 20),
    ];
    let within = asked.map(|(what, target, limit)| {
        let (median, bytes) = admin::ask(target);
        println!("| {what}: median, {bytes} bytes | {:.2} ms | {limit} ms |", median.as_secs_f64() * 1000.0);
        median <= Duration::from_millis(limit)
    });
    within == [true; 4]
}

/// The shares of one core that this many events per second take of the daemon and of curl, and how many the apiserver
/// could make.
fn events(daemon: &Daemon, content: &Content, per_second: u32) -> (f64, f64, f64) {
    let reader = Reader::start(content, Stdio::null());
    // Work left over from the start must not count.
    std::thread::sleep(Duration::from_secs(3));
    let (mut made, begun, before) = (0.0, Instant::now(), reader.cpu());
    let share = share(daemon, || made = for_seconds(content, per_second, LOAD));
    (share, (reader.cpu() - before).as_secs_f64() / begun.elapsed().as_secs_f64(), made)
}

/// Makes this number of changes per second for this time. Returns the number of changes per second that it made.
fn for_seconds(content: &Content, per_second: u32, time: Duration) -> f64 {
    let begun = Instant::now();
    f64::from(storm(&content.cluster, per_second, || begun.elapsed() >= time)) / begun.elapsed().as_secs_f64()
}

/// The share of one core that the daemon takes meanwhile.
fn share(daemon: &Daemon, meanwhile: impl FnOnce()) -> f64 {
    let (begun, before) = (Instant::now(), daemon.cpu());
    meanwhile();
    (daemon.cpu() - before).as_secs_f64() / begun.elapsed().as_secs_f64()
}

/// Whether open web pages cost the daemon little: what it takes with them, less what it takes without.
fn pages(daemon: &Daemon, content: &Content) -> bool {
    let measure = || {
        // Work left over from before must not count.
        std::thread::sleep(Duration::from_secs(3));
        let idle = share(daemon, || std::thread::sleep(PAGES_TIME)) * 100.0;
        let mut rate = 0.0;
        let busy = share(daemon, || rate = for_seconds(content, 100, PAGES_TIME)) * 100.0;
        (idle, busy, rate)
    };
    let (idle_without, busy_without, rate_without) = measure();
    let _pages = Pages::open(PAGES);
    let (idle, busy, rate) = measure();
    println!("| nothing changes, no page open: CPU | {idle_without:.2} % of a core | |");
    println!("| the same with {PAGES} open pages, in addition | {:.2} % of a core | 2 % |", idle - idle_without);
    println!("| {rate_without:.0} slice events a second, no page open: CPU | {busy_without:.2} % of a core | |");
    let more = busy - busy_without;
    println!(
        "| {rate:.0} slice events a second, with {PAGES} open pages, in addition | {more:.2} % of a core | 10 % |"
    );
    println!("| resident with {PAGES} open pages | {:.0} MB | |", daemon.memory().resident);
    idle - idle_without <= 2.0 && more <= 10.0
}
