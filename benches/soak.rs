//! An hour of traffic with every fault that occurs on a node: `make soak`. Services change 50 times
//! a second, nodelb is killed every minute and an apiserver every five minutes. No connection may
//! fail and nothing may leak: at the end, the daemon and the kernel hold what they held after the
//! first part.
//!
//! `SOAK_MINUTES` shortens the hour (5 at least) for work on the soak itself.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a soak test stops where it cannot go on, and prints"
)]

#[path = "soak/churn.rs"]
mod churn;
#[path = "soak/cluster.rs"]
mod cluster;
#[path = "../tests/forward.rs"]
mod forward;
#[path = "soak/node.rs"]
mod node;
#[path = "soak/relay.rs"]
mod relay;
#[path = "soak/sample.rs"]
mod sample;
#[path = "../tests/sandbox/mod.rs"]
mod sandbox;
#[path = "soak/unreachable.rs"]
mod unreachable;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nodelb_prober::{Plan, Probe, Tally, Transport};

use churn::Churn;
use cluster::Content;
use node::Node;
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
    if Relay::serve_if_asked() {
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
    let content = Content::new();
    let backends = cluster::start_backends();
    let mut relays = content.replicas().map(Relay::start);
    let mut node = Node::new(sandbox, &content, &relays);
    node.start();
    let churn = Churn::start(&content.cluster);
    let probes = probes();
    let (begun, mut samples) = (Instant::now(), Vec::new());
    for minute in 1..=minutes {
        sleep((begun + KILL_NODE * minute).saturating_duration_since(Instant::now()));
        if minute == FIRST_SAMPLE || minute == minutes {
            churn.pause(|| samples.push(Sample::take(&node, &content)));
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
        report(minute, &probes, &node);
    }
    let changes = churn.finish();
    let tallies = probes.map(|(name, probe)| (name, probe.finish()));
    drop(backends);
    println!("{}", summary(&tallies, &samples, changes, &node));
    is_clean(&tallies, &samples)
}

/// Traffic without a service. Its failures come from the machine and are only reported.
const CONTROL: &str = "UDP, not connected, straight to a backend";

fn probes() -> [(&'static str, Probe); 4] {
    let start = |to, rate, transport| Probe::start(Plan { rate, ..Plan::new(to, transport) });
    [
        ("TCP", start(cluster::STABLE, 1000, Transport::Tcp)),
        ("UDP, connected", start(cluster::STABLE, 500, Transport::Udp)),
        ("UDP, not connected", start(cluster::STABLE, 500, Transport::UdpUnconnected)),
        (CONTROL, start(cluster::backend(1), 500, Transport::UdpUnconnected)),
    ]
}

fn report(minute: u32, probes: &[(&'static str, Probe)], node: &Node) {
    let failed: Vec<String> = probes
        .iter()
        .map(|(name, probe)| (name, probe.tally()))
        .map(|(name, tally)| format!("{name}: {} ok, {} failed {:?}", tally.ok(), tally.failures(), tally.failed))
        .collect();
    eprintln!("minute {minute}: {}; nodelb started {} times", failed.join("; "), node.starts());
}

fn is_clean(tallies: &[(&str, Tally)], samples: &[Sample]) -> bool {
    let mut through_services = tallies.iter().filter(|(name, _)| *name != CONTROL);
    let all_answered = through_services.all(|(_, tally)| tally.failures() == 0 && tally.ok() > 0);
    all_answered && samples[0].is_like(&samples[1])
}

fn summary(tallies: &[(&str, Tally)], samples: &[Sample], changes: u64, node: &Node) -> String {
    let mut text = String::from("| traffic | exchanges | failed | slowest |\n|---|---|---|---|\n");
    for (name, tally) in tallies {
        let slowest = tally.slowest.as_secs_f64() * 1000.0;
        text += &format!("| {name} | {} | {} | {slowest:.0} ms |\n", tally.ok() + tally.failures(), tally.failures());
    }
    text += &format!(
        "\n{} services, {changes} changes of services and EndpointSlices, nodelb started {} times.\n\n",
        cluster::SERVICES,
        node.starts()
    );
    text += &Sample::table(&samples[0], &samples[1]);
    text + if is_clean(tallies, samples) { "\nPassed: yes.\n" } else { "\nPassed: **no**.\n" }
}
