//! An hour of traffic with every fault that occurs on a node: `make soak`. Services change 50 times
//! a second, nodelb is killed every minute, an apiserver every five minutes, and one of two DNS servers
//! fails most of the time. Clients are on the node and outside of it. No connection may fail and nothing
//! may leak: at the end, the daemon and the kernel hold what they held after the first part.
//!
//! `SOAK_MINUTES` shortens the hour (5 at least) for work on the soak itself.

#![expect(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a soak test stops where it cannot go on, and prints; it shares a network with tests"
)]

#[path = "soak/churn.rs"]
mod churn;
#[path = "soak/cluster.rs"]
mod cluster;
#[path = "soak/dns.rs"]
mod dns;
#[path = "soak/figures.rs"]
mod figures;
#[path = "../tests/forward.rs"]
mod forward;
#[path = "../tests/netns/lab.rs"]
mod lab;
#[path = "soak/node.rs"]
mod node;
#[path = "soak/outside.rs"]
mod outside;
#[path = "../tests/reach.rs"]
mod reach;
#[path = "soak/relay.rs"]
mod relay;
#[path = "soak/sample.rs"]
mod sample;
#[path = "../tests/sandbox/mod.rs"]
mod sandbox;
#[path = "soak/unreachable.rs"]
mod unreachable;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nodelb_prober::{Plan, Probe, Transport};

use churn::Churn;
use cluster::Content;
use dns::Dns;
use figures::Figures;
use node::Node;
use outside::Outside;
use relay::Relay;
use sample::Sample;

/// Interval between kills of nodelb.
const KILL_NODE: Duration = Duration::from_secs(60);

/// An apiserver is killed after this many kills of nodelb, a different one each time.
const KILL_APISERVER: u32 = 5;

/// How long a killed apiserver stays down.
const APISERVER_AWAY: Duration = Duration::from_secs(10);

/// How long a killed nodelb stays down, as under systemd (`RestartSec=1`).
const NODE_AWAY: Duration = Duration::from_secs(1);

/// Number of kills of nodelb before the first sample.
const FIRST_SAMPLE: u32 = 5;

fn main() -> ExitCode {
    if Relay::serve_if_asked() || Outside::serve_if_asked() {
        return ExitCode::SUCCESS;
    }
    let minutes = std::env::var("SOAK_MINUTES").map_or(60, |text| text.parse().unwrap());
    assert!(minutes > FIRST_SAMPLE, "SOAK_MINUTES: more than {FIRST_SAMPLE}");
    let passed = AtomicBool::new(true);
    // The outer process returns at once; it relies on the exit code of the inner one.
    sandbox::run("soak", |sandbox| {
        passed.store(soak(sandbox, minutes), Ordering::Relaxed);
        assert!(passed.load(Ordering::Relaxed), "the soak failed; the reasons are above");
    });
    if passed.load(Ordering::Relaxed) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the soak; returns whether it succeeded.
fn soak(sandbox: &sandbox::Sandbox, minutes: u32) -> bool {
    unreachable::print();
    let [inside, other] = cgroups(sandbox);
    let mut outside = Outside::start(&other);
    let content = Content::new();
    let backends = cluster::start_backends();
    let dns = Dns::start();
    let mut relays = content.replicas().map(Relay::start);
    let mut node = Node::new(sandbox, &inside, &content, &relays);
    // A name that no server has answered for yet has no backends.
    dns.calm(true);
    node.start();
    node.wait_for_programs();
    sample::wait_for_names();
    dns.calm(false);
    let churn = Churn::start(&content.cluster);
    let probes = probes();
    outside.keep();
    outside.connect();
    let (mut begun, mut samples) = (Instant::now(), Vec::new());
    for minute in 1..=minutes {
        sleep((begun + KILL_NODE * minute).saturating_duration_since(Instant::now()));
        if minute == FIRST_SAMPLE || minute == minutes {
            let paused = Instant::now();
            churn.pause(|| samples.push(sample(&node, &content, &dns, &mut outside)));
            begun += paused.elapsed();
        }
        if minute.is_multiple_of(KILL_APISERVER) && minute < minutes {
            let relay = &mut relays[(minute / KILL_APISERVER) as usize % 2];
            relay.kill();
            sleep(APISERVER_AWAY);
            relay.restart();
        }
        if minute < minutes {
            node.kill();
            sleep(NODE_AWAY);
            node.start();
        }
        report(minute, &figures(&probes, &mut outside), &node);
    }
    let changes = churn.finish();
    let figures = figures(&probes, &mut outside);
    drop((probes, backends));
    println!("{}", summary(&figures, &samples, changes, &node, dns.questions()));
    is_clean(&figures, &samples)
}

/// The cgroup of the node and of its clients, which this process joins, and that of everything outside.
fn cgroups(sandbox: &sandbox::Sandbox) -> [PathBuf; 2] {
    sandbox::command("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
    let cgroups = ["node", "outside"].map(|name| sandbox.cgroup.join(name));
    cgroups.iter().for_each(|cgroup| fs::create_dir(cgroup).unwrap());
    fs::write(cgroups[0].join("cgroup.procs"), "0").unwrap();
    cgroups
}

/// Takes a sample while names do not change, and no client outside opens a connection.
fn sample(node: &Node, content: &Content, dns: &Dns, outside: &mut Outside) -> Sample {
    dns.calm(true);
    outside.pause();
    let sample = Sample::take(node, content);
    dns.calm(false);
    outside.connect();
    sample
}

/// Traffic without a service. Its failures come from the machine and are only reported.
const CONTROL: &str = "UDP, not connected, straight to a backend";

fn probes() -> [(&'static str, Probe); 7] {
    let start = |to, rate, transport| Probe::start(Plan { rate, ..Plan::new(to, transport) });
    [
        ("TCP", start(cluster::STABLE, 1000, Transport::Tcp)),
        ("UDP, connected", start(cluster::STABLE, 500, Transport::Udp)),
        ("UDP, not connected", start(cluster::STABLE, 500, Transport::UdpUnconnected)),
        ("TCP, names with addresses", start(dns::WEB, 100, Transport::Tcp)),
        ("UDP, names with addresses", start(dns::WEB, 100, Transport::Udp)),
        ("TCP, names with SRV records", start(dns::API, 100, Transport::Tcp)),
        (CONTROL, start(cluster::backend(1), 500, Transport::UdpUnconnected)),
    ]
}

fn figures(probes: &[(&'static str, Probe)], outside: &mut Outside) -> Vec<Figures> {
    let inside = probes.iter().map(|(name, probe)| Figures::of(name, &probe.tally()));
    inside.chain(outside.figures()).collect()
}

fn report(minute: u32, figures: &[Figures], node: &Node) {
    let count = |each: &Figures| match each.failed {
        0 => format!("{}: {} ok", each.name, each.ok),
        failed => format!("{}: {} ok, {failed} failed {}", each.name, each.ok, each.reasons),
    };
    let counts: Vec<String> = figures.iter().map(count).collect();
    eprintln!("minute {minute}: {}; nodelb started {} times", counts.join("; "), node.starts());
}

fn is_clean(figures: &[Figures], samples: &[Sample]) -> bool {
    let mut through_services = figures.iter().filter(|each| each.name != CONTROL);
    let all_answered = through_services.all(|each| each.failed == 0 && each.ok > 0);
    all_answered && samples[0].is_like(&samples[1])
}

fn summary(figures: &[Figures], samples: &[Sample], changes: u64, node: &Node, questions: [u64; 2]) -> String {
    let mut text = String::from("| traffic | exchanges | failed | slowest |\n|---|---|---|---|\n");
    for Figures { name, ok, failed, slowest, .. } in figures {
        text += &format!("| {name} | {} | {failed} | {:.0} ms |\n", ok + failed, slowest.as_secs_f64() * 1000.0);
    }
    text += &format!(
        "\n{} services, {changes} changes of services and EndpointSlices, nodelb started {} times. {} questions to the DNS \
         server that fails most of the time, {} to the other one.\n\n",
        cluster::SERVICES,
        node.starts(),
        questions[0],
        questions[1],
    );
    text += &Sample::table(&samples[0], &samples[1]);
    text + if is_clean(figures, samples) { "\nPassed: yes.\n" } else { "\nPassed: **no**.\n" }
}
