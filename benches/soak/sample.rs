//! The state of the daemon and the kernel while nothing changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Content;
use crate::node::Node;
use crate::outside::CONNECTIONS;

/// Time after the last change until everything is idle: slots and ids are reusable, requests have
/// ended.
const SETTLED: Duration = Duration::from_secs(10);

/// Maximum growth of resident memory from the first sample to the last, as a factor.
const GROWTH: f64 = 1.05;

#[derive(Debug)]
pub(crate) struct Sample {
    /// Resident memory of the process, in kB.
    resident: u64,
    /// Values that must be equal: descriptors, threads, files, pins, names, entries of each map.
    counts: BTreeMap<String, u64>,
}

/// The name of tokio's threads: two that run tasks, and a pool for calls that block, which shrinks after ten seconds
/// without a call.
const POOL: &str = "tokio-rt-worker";
/// With as many, nothing has leaked.
const MOST_IN_POOL: u64 = 8;

/// The number of threads by name, without one that writes a file of the state directory at the moment: each write has its
/// own. Of tokio's threads, only those above [`MOST_IN_POOL`] are counted.
fn permanent_threads(process: &str) -> BTreeMap<String, u64> {
    let tasks = fs::read_dir(format!("{process}/task")).unwrap().flatten();
    // A thread that has ended meanwhile has no name.
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    let mut counts = BTreeMap::<String, u64>::new();
    for name in names.filter(|name| name.trim_end() != "state") {
        *counts.entry(format!("threads named {}", name.trim_end())).or_default() += 1;
    }
    let pool = counts.remove(&format!("threads named {POOL}")).unwrap_or(0);
    counts.insert(format!("threads named {POOL}, above {MOST_IN_POOL}"), pool.saturating_sub(MOST_IN_POOL));
    counts
}

/// The number of descriptors, without those of questions to DNS servers and of requests, which are open for a moment.
fn permanent_descriptors(process: &str) -> u64 {
    let count = |_| {
        sleep(Duration::from_millis(20));
        fs::read_dir(format!("{process}/fd")).unwrap().count() as u64
    };
    (0..100).map(count).min().unwrap()
}

fn files_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries.map(|entry| if entry.file_type().unwrap().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}

/// Whether the kernel contains what the sources say, the packet programs know only the connections that exist, and each
/// name has current records.
fn is_settled() -> bool {
    let connections: u64 = metrics("nodelb_packet_connections").values().sum();
    connections == CONNECTIONS && are_names_current() && Node::get("/diff").contains("and kernel agree")
}

fn are_names_current() -> bool {
    let names = metrics("nodelb_dns_names");
    names.iter().all(|(labels, count)| labels.contains("Ok") == (*count > 0))
}

/// Waits until each name has current records.
pub(crate) fn wait_for_names() {
    let begun = Instant::now();
    while !are_names_current() {
        assert!(begun.elapsed() < SETTLED * 6, "names without records: {}", Node::get("/dns"));
        sleep(Duration::from_millis(100));
    }
}

/// The values of a metric by its labels.
fn metrics(name: &str) -> BTreeMap<String, u64> {
    let value = |line: &str| -> Option<(String, u64)> {
        let (labels, value) = line.strip_prefix(name)?.split_once(' ')?;
        (labels.is_empty() || labels.starts_with('{')).then(|| (labels.into(), value.parse().unwrap()))
    };
    Node::get("/metrics").lines().filter_map(value).collect()
}

impl Sample {
    /// Takes a sample. The cluster and the names must not change meanwhile, and no client outside may open a connection.
    pub(crate) fn take(node: &Node, content: &Content) -> Self {
        content.reset();
        let begun = Instant::now();
        while begun.elapsed() < SETTLED || !is_settled() {
            let (diff, metrics) = (Node::get("/diff"), Node::get("/metrics"));
            assert!(begun.elapsed() < SETTLED * 15, "something is left over: {diff}\n{metrics}");
            sleep(Duration::from_millis(500));
        }
        let process = format!("/proc/{}", node.pid());
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        let number = |key: &str| -> u64 {
            let line = status.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let mut counts = map_entries();
        counts.extend(ids());
        counts.extend(
            metrics("nodelb_dns_names").into_iter().map(|(labels, count)| (format!("DNS names, {labels}"), count)),
        );
        counts.extend(permanent_threads(&process));
        counts.insert("descriptors".into(), permanent_descriptors(&process));
        counts.insert("pinned objects".into(), files_below(&node.pins));
        counts.insert("files of the state directory".into(), files_below(&node.state_directory()));
        Self { resident: number("VmRSS:"), counts }
    }

    pub(crate) fn is_like(&self, later: &Self) -> bool {
        self.counts == later.counts && (later.resident as f64) <= self.resident as f64 * GROWTH
    }

    pub(crate) fn table(first: &Self, last: &Self) -> String {
        let mut text =
            String::from("| held while nothing changes | after five minutes | in the end |\n|---|---|---|\n");
        text += &format!("| resident memory, kB (may grow by 5 %) | {} | {} |\n", first.resident, last.resident);
        for (what, count) in &first.counts {
            let later = last.counts.get(what).map_or_else(|| "-".to_owned(), ToString::to_string);
            text += &format!("| {what} | {count} | {later} |\n");
        }
        text
    }
}

/// Number of different ids in the kernel.
fn ids() -> [(String, u64); 2] {
    let maps: Value = serde_json::from_str(&Node::get("/maps?output=json")).unwrap();
    let different = |table: &str, column: &str| -> u64 {
        let rows = maps[table].as_array().unwrap();
        rows.iter().map(|row| row[column].as_u64().unwrap()).collect::<BTreeSet<u64>>().len() as u64
    };
    [("service ids".into(), different("services", "id")), ("backend ids".into(), different("slots", "backend_id"))]
}

/// The entries of the maps.
fn map_entries() -> BTreeMap<String, u64> {
    let metrics = metrics("nodelb_map_entries").into_iter();
    metrics.map(|(labels, count)| (format!("entries of {}", labels.split('"').nth(1).unwrap()), count)).collect()
}
