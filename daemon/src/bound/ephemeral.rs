//! Ports that the kernel hands out by itself: whether NodePorts are among them. Changes no setting.

use std::fs;
use std::ops::RangeInclusive;

const LOCAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// What happens to processes that leave the choice of their port to the kernel, with the remedy, if NodePorts can be what
/// they get. `None` also where the kernel does not say. The settings count for IPv6 too.
pub(crate) fn overlap(nodeports: &RangeInclusive<u16>) -> Option<String> {
    let read = |path| fs::read_to_string(path).ok();
    overlap_of(nodeports, &read(LOCAL)?, &read(RESERVED)?)
}

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
        "the kernel hands out ports between {lowest} and {highest} (net.ipv4.ip_local_port_range is {first}-{last}), which \
         are NodePorts: a bind to port 0 that gets one which is served fails with EADDRINUSE; `sysctl \
         net.ipv4.ip_local_reserved_ports={before}{start}-{end}` keeps them apart"
    ))
}

/// `30000-32767`, or one port.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

#[cfg(test)]
mod tests;
