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
#[path = "../tests/sandbox/mod.rs"]
mod sandbox;

use std::time::{Duration, Instant};

use cluster::{Content, storm};
use daemon::Daemon;
use pages::Pages;

/// Duration of each load.
const LOAD: Duration = Duration::from_secs(30);
/// Number of open web pages, and the duration of each measurement with and without them.
const PAGES: usize = 50;
const PAGES_TIME: Duration = Duration::from_secs(15);

fn main() {
    sandbox::run("kubernetes", |sandbox| {
        let content = Content::new();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, content.cluster.kubeconfig(&[&content.replica.url()]).unwrap()).unwrap();
        let daemon = Daemon::start(sandbox, directory.path(), &format!("[kubernetes]\nkubeconfig = {kubeconfig:?}\n"));
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
        println!("| CPU time from the process's start to READY | {:.2} s | 3 s |", start.cpu.as_secs_f64());
        println!("| time from the process's start to READY | {:.2} s | |", start.wall.as_secs_f64());
        println!("| resident at READY | {:.0} MB | |", at_ready.resident);
        let answers = answers();
        let load = events(&daemon, &content);
        println!("| CPU at 60 slice events a second | {:.2} % of a core | 5 % |", load * 100.0);
        let delays = latency::measure(&daemon, &content, LOAD);
        let (median, p99) = (delays[delays.len() / 2], delays[delays.len() * 99 / 100]);
        let milliseconds = |delay: Duration| delay.as_secs_f64() * 1000.0;
        println!("| event to kernel, with 100 other events per second: median | {:.2} ms | |", milliseconds(median));
        println!("| the same, 99th percentile of {} | {:.2} ms | 10 ms |", delays.len(), milliseconds(p99));
        let memory = daemon.memory();
        println!("| resident in the end, the state written to disk meanwhile | {:.0} MB | 100 MB |", memory.resident);
        println!("| most ever resident | {:.0} MB | 150 MB |", memory.peak);
        let are_pages_cheap = pages(&daemon, &content);
        let is_within = start.cpu <= Duration::from_secs(3)
            && load <= 0.05
            && p99 <= Duration::from_millis(10)
            && answers
            && are_pages_cheap
            && memory.resident <= 100.0
            && memory.peak <= 150.0;
        println!("\nWithin all limits: {}.", if is_within { "yes" } else { "**no**" });
        println!(
            "Summary: With 10,000 services and 110,000 endpoints of an API server, nodelb is ready {:.1} s after its start, with {:.1} s \
             of CPU time and {:.0} MB of memory, and 60 changed EndpointSlices a second take {:.1} % of one core.",
            start.wall.as_secs_f64(),
            start.cpu.as_secs_f64(),
            at_ready.resident,
            load * 100.0
        );
    });
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

/// The share of one core that sixty events per second take.
fn events(daemon: &Daemon, content: &Content) -> f64 {
    // Work left over from the start must not count.
    std::thread::sleep(Duration::from_secs(3));
    share(daemon, || for_seconds(content, 60, LOAD))
}

/// Makes this number of changes per second for this time.
fn for_seconds(content: &Content, per_second: u32, time: Duration) {
    let begun = Instant::now();
    storm(&content.cluster, per_second, || begun.elapsed() >= time);
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
        let idle = share(daemon, || std::thread::sleep(PAGES_TIME));
        [idle, share(daemon, || for_seconds(content, 100, PAGES_TIME))].map(|share| share * 100.0)
    };
    let without = measure();
    let _pages = Pages::open(PAGES);
    let with = measure();
    let loads = [("when nothing changes", 2.0), ("at 100 slice events a second", 10.0)];
    let mut are_cheap = true;
    for (((load, limit), without), with) in loads.into_iter().zip(without).zip(with) {
        println!(
            "| {PAGES} open pages {load}: {with:.2} % of a core, without {without:.2} % | {:.2} % | {limit} % |",
            with - without
        );
        are_cheap &= with - without <= limit;
    }
    println!("| resident with them | {} MB | |", daemon.memory().resident);
    are_cheap
}
