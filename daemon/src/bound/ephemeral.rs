//! Ports that the kernel assigns by itself: whether NodePorts are among them. Changes no setting.

use std::fs;
use std::ops::RangeInclusive;

use nodelb_core::messages;
use tracing::warn;

const LOCAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// Reads the kernel's settings and logs when NodePorts become part of the ports: both may change while nodelb runs.
#[derive(Debug)]
pub(crate) struct Overlap {
    nodeports: RangeInclusive<u16>,
    logged: Option<String>,
}

impl Overlap {
    /// Creates the check, with nothing logged yet.
    pub(crate) fn new(nodeports: RangeInclusive<u16>) -> Self {
        Self { nodeports, logged: None }
    }

    /// Logs an overlap that differs from the last one.
    pub(super) fn look(&mut self) {
        let read = |path| fs::read_to_string(path).ok();
        if let (Some(local), Some(reserved)) = (read(LOCAL), read(RESERVED)) {
            self.take(&local, &reserved);
        }
    }

    fn take(&mut self, local: &str, reserved: &str) {
        let found = overlap_of(&self.nodeports, local, reserved);
        if let Some(text) = found.as_ref().filter(|_| found != self.logged) {
            warn!(message_id = %messages::NODEPORTS_UNPROTECTED, "{text}");
        }
        self.logged = found;
    }
}

/// Returns the consequence for NodePorts that the kernel may choose as a port, with the remedy, if there are any. The
/// settings apply to IPv6, too.
fn overlap_of(nodeports: &RangeInclusive<u16>, local: &str, reserved: &str) -> Option<String> {
    let mut ends = local.split_whitespace().map(|end| end.parse::<u16>().ok());
    let (first, last) = (ends.next()??, ends.next()??);
    let spared: Vec<RangeInclusive<u16>> = reserved.trim().split(',').filter_map(range).collect();
    let mut shared = (first.max(*nodeports.start())..=last.min(*nodeports.end()))
        .filter(|port| !spared.iter().any(|range| range.contains(port)));
    let lowest = shared.next()?;
    let highest = shared.next_back().unwrap_or(lowest);
    let (start, end) = (nodeports.start(), nodeports.end());
    let before = if spared.is_empty() { String::new() } else { format!("{},", reserved.trim()) };
    Some(format!(
        "the ephemeral port range of the kernel (net.ipv4.ip_local_port_range {first}-{last}) includes NodePorts \
         {lowest} to {highest}: a process that gets the port of a service as its ephemeral port receives the \
         connections from outside the node instead of the service. Reserve them: `sysctl \
         net.ipv4.ip_local_reserved_ports={before}{start}-{end}`"
    ))
}

/// Parses `30000-32767`, or one port.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
#[path = "tests/ephemeral.rs"]
mod tests;
