//! What nodelb and the kernel count during a flood.

use std::collections::BTreeMap;
use std::fs;

use crate::host::answer;
use crate::lab::{Lab, Place};

/// What the node has counted: the metrics by name and reason.
#[derive(Clone, Debug)]
pub(crate) struct Counted(pub(crate) BTreeMap<String, u64>);

impl Counted {
    pub(crate) fn now() -> Self {
        let text = answer("/metrics", "text/plain").unwrap();
        let mut counted = BTreeMap::new();
        for line in text.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let outside = name.starts_with("nodelb_service_connections_total") && name.contains("from=\"outside\"");
            let key = match name.strip_prefix("nodelb_packet_") {
                Some(rest) if rest.contains("_total") => rest.to_owned(),
                None if outside && name.contains("result=\"refused\"") => "refused".to_owned(),
                _ => continue,
            };
            *counted.entry(key).or_insert(0) += value.parse::<u64>().unwrap();
        }
        Self(counted)
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        let past = |key: &String| before.0.get(key).copied().unwrap_or(0);
        let changed = self.0.iter().map(|(key, value)| (key.clone(), value - past(key)));
        Self(changed.filter(|(_, value)| *value > 0).collect())
    }

    pub(crate) fn of(&self, key: &str) -> u64 {
        self.0.get(key).copied().unwrap_or(0)
    }

    pub(crate) fn dropped(&self, reason: &str) -> u64 {
        self.of(&format!("dropped_total{{reason=\"{reason}\"}}"))
    }

    pub(crate) fn passed(&self, reason: &str) -> u64 {
        self.of(&format!("passed_total{{reason=\"{reason}\"}}"))
    }

    pub(crate) fn begun(&self) -> u64 {
        self.of("connections_created_total")
    }

    /// Packets that were dropped or answered instead of beginning a connection.
    pub(crate) fn not_begun(&self) -> u64 {
        let dropped = self.0.iter().filter(|(key, _)| key.starts_with("dropped_total"));
        let others = ["unknown", "fragment-rate", "fragment"].map(|reason| self.dropped(reason));
        dropped.map(|(_, value)| value).sum::<u64>() - others.iter().sum::<u64>()
    }
}

/// The value with this name in a table of the place, such as `netstat` in `/proc/net`.
pub(crate) fn kernel_count(place: &Place, table: &str, name: &str) -> u64 {
    let text = place.run(|| fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap());
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    // Names stand in the line before that of the values, or in front of each value.
    for (number, line) in lines.iter().enumerate() {
        if let Some(at) = line.iter().position(|each| *each == name) {
            return if at == 0 { line[1] } else { lines[number + 1][at] }.parse().unwrap();
        }
    }
    panic!("no {name} in {table}");
}

/// Packets that the router could not give to node A: the queue of its processor was full.
pub(crate) fn lost(lab: &Lab) -> u64 {
    let text = lab.router.run(|| fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let line = text.lines().find_map(|line| line.trim().strip_prefix("node-a:")).unwrap();
    line.split_whitespace().nth(11).unwrap().parse().unwrap()
}
