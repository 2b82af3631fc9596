//! An hour in which everything goes wrong that goes wrong on a node, while traffic flows: `make soak`. Services change
//! 50 times a second, nodelb is killed every minute and an apiserver every five. Nothing may fail, and nothing may be
//! left over: what the daemon and the kernel hold in the end is what they held after the first part.
//!
//! `SOAK_MINUTES` shortens the hour (5 at least) for trying the soak itself.

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
#[path = "soak/node.rs"]
mod node;
#[path = "soak/relay.rs"]
mod relay;
#[path = "soak/sample.rs"]
mod sample;
#[path = "../tests/sandbox/mod.rs"]
mod sandbox;

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

/// How often nodelb is killed.
const KILL_NODE: Duration = Duration::from_secs(60);

/// How many kills of nodelb later an apiserver is killed, each time another one.
const KILL_APISERVER: u32 = 5;

/// How long a killed apiserver is away.
const APISERVER_AWAY: Duration = Duration::from_secs(10);

/// How long a killed nodelb is away, as under systemd (`RestartSec=1`).
const NODE_AWAY: Duration = Duration::from_secs(1);

/// When the first sample is taken, in kills of nodelb.
const FIRST_SAMPLE: u32 = 5;

fn main() -> ExitCode {
    if Relay::serve_if_asked() {
        return ExitCode::SUCCESS;
    }
    let minutes = std::env::var("SOAK_MINUTES").map_or(60, |text| text.parse().unwrap());
    assert!(minutes > FIRST_SAMPLE, "SOAK_MINUTES: more than {FIRST_SAMPLE}");
    let passed = AtomicBool::new(true);
    // The outer run in front of the sandbox returns at once; its exit code is what the inner run asserts.
    sandbox::run("soak", |sandbox| {
        passed.store(soak(sandbox, minutes), Ordering::Relaxed);
        assert!(passed.load(Ordering::Relaxed), "the soak failed; the reasons are above");
    });
    if passed.load(Ordering::Relaxed) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether all went well.
fn soak(sandbox: &sandbox::Sandbox, minutes: u32) -> bool {
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

/// What no service carries: its failures are the machine's, and are shown only.
const CONTROL: &str = "UDP, not connected, straight to a backend";

fn probes() -> [(&'static str, Probe); 4] {
    let start = |to, rate, transport| Probe::start(Plan { rate, ..Plan::new(to, transport) });
    [
        ("TCP", start(cluster::STAYS, 1000, Transport::Tcp)),
        ("UDP, connected", start(cluster::STAYS, 500, Transport::Udp)),
        ("UDP, not connected", start(cluster::STAYS, 500, Transport::UdpUnconnected)),
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
