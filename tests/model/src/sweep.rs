//! The end of connections without packets: what the programs of `bpf/sweep.bpf.c` delete.

use nodelb_core::model::addr::Protocol;
use nodelb_core::packets::sweep::{SweepReason, SweepTimeouts};

use crate::connections::{Connection, Tables};
use crate::key::PacketKey;

/// Deletes the connections that are due at this second of the monotonic clock. Returns how many there were, by reason.
pub fn sweep(tables: &mut Tables, now: u32, timeouts: &SweepTimeouts) -> Vec<(SweepReason, usize)> {
    let mut reasons = Vec::new();
    for (key, entry) in tables.connections.clone() {
        let Some(reason) = due(tables, (&key, &entry), now, timeouts) else { continue };
        // The entry of the opposite direction was deleted if it came first.
        if tables.connections.contains_key(&key) {
            reasons.push(reason);
            let reverse_key = tables.reverse_of(&key, &entry).map(|(reverse_key, _)| reverse_key);
            tables.connections.remove(&key);
            reverse_key.and_then(|key| tables.connections.remove(&key));
        }
    }
    for (key, entry) in tables.half_open.clone() {
        let is_assured = entry.flags.is_assured
            || tables.reverse_of(&key, &entry).is_some_and(|(_, reverse)| reverse.flags.is_assured);
        let is_idle = is_due(idle(tables, (&key, &entry), now), timeouts.handshake);
        let reason = match is_assured {
            true => due(tables, (&key, &entry), now, timeouts),
            false => is_idle.then_some(SweepReason::Handshake),
        };
        let Some(reason) = reason else { continue };
        if tables.half_open.contains_key(&key) {
            reasons.push(reason);
            let reverse_key = tables.reverse_of(&key, &entry).map(|(reverse_key, _)| reverse_key);
            tables.half_open.remove(&key);
            reverse_key.and_then(|key| tables.half_open.remove(&key));
        }
    }
    reasons.sort_unstable();
    reasons.chunk_by(|a, b| a == b).map(|same| (same[0], same.len())).collect()
}

/// Why the established connection is due, if it is.
fn due(
    tables: &Tables,
    (key, entry): (&PacketKey, &Connection),
    now: u32,
    timeouts: &SweepTimeouts,
) -> Option<SweepReason> {
    let reverse = tables.reverse_of(key, entry).map(|(_, reverse)| reverse.flags).unwrap_or_default();
    let (timeout, reason) = match key.protocol {
        Protocol::Udp => (timeouts.udp_idle, SweepReason::Idle),
        _ if entry.flags.has_reset || reverse.has_reset => (timeouts.reset, SweepReason::Reset),
        // Answers of a forwarded connection do not pass.
        _ if entry.flags.has_fin && (reverse.has_fin || entry.flags.is_forwarded) => {
            (timeouts.closed, SweepReason::Closed)
        }
        _ if entry.flags.is_forwarded => (timeouts.forwarded_idle, SweepReason::Idle),
        _ => (timeouts.tcp_idle, SweepReason::Idle),
    };
    is_due(idle(tables, (key, entry), now), timeout).then_some(reason)
}

/// With a timeout of 0, every connection is due. Both clocks are cut to seconds, so up to one of them may not have passed.
fn is_due(idle: u32, timeout: u32) -> bool {
    timeout == 0 || idle > timeout
}

/// Seconds since the last packet in either direction.
fn idle(tables: &Tables, (key, entry): (&PacketKey, &Connection), now: u32) -> u32 {
    let reverse_used = tables.reverse_of(key, entry).map_or(entry.last_used, |(_, reverse)| reverse.last_used);
    now.saturating_sub(entry.last_used.max(reverse_used))
}

#[cfg(test)]
#[path = "tests/sweep.rs"]
mod tests;
