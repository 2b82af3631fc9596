//! Clients of services: new connections all the time, and long ones, over TCP and UDP.

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use nodelb_prober::{Kept, Plan, Probe, Tally, Transport};
use serde::{Deserialize, Serialize};

/// New connections a second.
const RATE: u32 = 10;

/// Long enough for a machine that other processes keep busy: what takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The long connections of a flow. Each sends a request every 100 ms.
const LONG: u32 = 4;
const INTERVAL: Duration = Duration::from_millis(100);

/// What a client does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flow {
    name: String,
    long: bool,
    transport: Transport,
    to: SocketAddr,
}

impl FromStr for Flow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<_> = text.split(',').collect();
        let [name, kind, to] = fields[..] else { return Err(format!("{text}: expected NAME,KIND,ADDRESS:PORT")) };
        let (long, transport) = match kind {
            "new-tcp" => (false, Transport::Tcp),
            "new-udp" => (false, Transport::Udp),
            "long-tcp" => (true, Transport::TcpLines),
            "long-udp" => (true, Transport::Udp),
            _ => return Err(format!("{text}: unknown kind {kind}")),
        };
        let to = to.parse().map_err(|error| format!("{text}: {error}"))?;
        Ok(Self { name: format!("{name} {kind}"), long, transport, to })
    }
}

/// What a flow counted. Written as one line of JSON.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) flow: String,
    pub(crate) ok: u64,
    pub(crate) failed: u64,
    /// Reasons with their numbers, and when the first failure was.
    pub(crate) failures: String,
}

/// Runs all flows until the file exists. One line of JSON for each.
pub(crate) fn run(stop: &Path, flows: &[Flow]) -> String {
    let counts = thread::scope(|scope| {
        let clients: Vec<_> = flows.iter().map(|flow| (flow, scope.spawn(|| client(flow, stop)))).collect();
        let count = |(flow, client): (&Flow, thread::ScopedJoinHandle<'_, Result<Tally, String>>)| match client.join() {
            Ok(Ok(tally)) => count(flow, &tally),
            Ok(Err(problem)) => Count { flow: flow.name.clone(), ok: 0, failed: 1, failures: problem },
            Err(_panic) => Count { flow: flow.name.clone(), ok: 0, failed: 1, failures: "panicked".to_owned() },
        };
        clients.into_iter().map(count).collect::<Vec<_>>()
    });
    counts.iter().filter_map(|count| serde_json::to_string(count).ok()).collect::<Vec<_>>().join("\n")
}

fn client(flow: &Flow, stop: &Path) -> Result<Tally, String> {
    if !flow.long {
        let probe = Probe::start(Plan { rate: RATE, timeout: TIMEOUT, ..Plan::new(flow.to, flow.transport) });
        while !stop.exists() {
            thread::sleep(INTERVAL);
        }
        return Ok(probe.finish());
    }
    let mut kept = Kept::open(flow.to, flow.transport, LONG).map_err(|error| format!("cannot open: {error}"))?;
    while !stop.exists() {
        let next = Instant::now() + INTERVAL;
        kept.ask();
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(kept.tally().clone())
}

fn count(flow: &Flow, tally: &Tally) -> Count {
    let mut failures: Vec<_> = tally.failed.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    if let Some((at, _)) = &tally.first_failure {
        failures.push(format!("the first after {} s", at.as_secs()));
    }
    Count { flow: flow.name.clone(), ok: tally.ok(), failed: tally.failures(), failures: failures.join(", ") }
}

#[cfg(test)]
#[path = "tests/traffic.rs"]
mod tests;
