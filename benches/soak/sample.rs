//! The state of the daemon and the kernel while nothing changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Content;
use crate::node::Node;

/// Time after the last change until everything is idle: slots and ids are reusable, requests have
/// ended.
const SETTLED: Duration = Duration::from_secs(10);

/// Maximum growth of resident memory from the first sample to the last, as a factor.
const GROWTH: f64 = 1.05;

#[derive(Debug)]
pub(crate) struct Sample {
    /// Resident memory of the process, in kB.
    resident: u64,
    /// Values that must be equal: descriptors, threads, entries of each map.
    counts: BTreeMap<String, u64>,
}

/// The number of threads, without one that writes a file of the state directory at the moment: each write has its own.
fn permanent_threads(process: &str) -> u64 {
    let tasks = fs::read_dir(format!("{process}/task")).unwrap().flatten();
    // A thread that has ended meanwhile has no name.
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim_end() != "state").count() as u64
}

impl Sample {
    /// Takes a sample. The cluster must not change meanwhile.
    pub(crate) fn take(node: &Node, content: &Content) -> Self {
        content.reset();
        let (begun, wanted) = (Instant::now(), "and kernel agree");
        while begun.elapsed() < SETTLED || !Node::get("/diff").contains(wanted) {
            assert!(begun.elapsed() < SETTLED * 12, "source, memory and kernel differ: {}", Node::get("/diff"));
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
        counts.insert("threads".into(), permanent_threads(&process));
        counts.insert("descriptors".into(), fs::read_dir(format!("{process}/fd")).unwrap().count() as u64);
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

/// `nodelb_map_entries` of the maps that only the daemon writes; the others depend on sockets.
fn map_entries() -> BTreeMap<String, u64> {
    let metrics = Node::get("/metrics");
    let entry = |line: &str| -> Option<(String, u64)> {
        let (map, count) = line.strip_prefix("nodelb_map_entries{map=\"")?.split_once("\"} ")?;
        Some((format!("entries of {map}"), count.parse().ok()?))
    };
    metrics.lines().filter_map(entry).collect()
}
