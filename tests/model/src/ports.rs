//! The search for a source port, so that no two connections have the same key for packets from their backend.

use nodelb_core::model::addr::Protocol;
use nodelb_core::state::entries::BackendId;

use crate::connections::{Port, QUIET_SECONDS, Tables};
use crate::key::PacketKey;
use crate::node::Settings;
use crate::rule::Rule;

/// The maximum number of ports that one search tries.
const MOST_TRIES: u32 = 64;

/// How many of them follow each other; the others are random, so that a block of ports in use stops no search.
const NEAR_TRIES: u32 = 8;

/// How many of them only want a free port, towards a backend on another node.
const FREE_TRIES: usize = 3;

/// The number of cursors; backends share them.
const CURSORS: u32 = 4_096;

/// A new connection that needs a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search<'a> {
    /// The key of the client's packets.
    pub(crate) key: &'a PacketKey,
    /// The key of the backend's packets, where the target's port is replaced.
    pub(crate) reverse_key: &'a PacketKey,
    pub(crate) backend: BackendId,
    /// Seconds of the monotonic clock.
    pub(crate) now: u32,
}

impl Search<'_> {
    /// The key of the backend's packets with the first of these ports that is free, or with that of the connection that
    /// gives way. After as many tries as `free_tries`, one does that has been idle for a moment, and in the end the handshake
    /// that has been idle for the longest time: its answer does not acknowledge the new SYN. The answer of an active UDP flow
    /// would reach the new client.
    fn among(&self, tables: &Tables, ports: impl Iterator<Item = u16>, free_tries: usize) -> Option<PacketKey> {
        let mut other: Option<(u32, PacketKey)> = None;
        for (step, port) in ports.enumerate() {
            let mut reverse_key = *self.reverse_key;
            reverse_key.tuple.target.port = port;
            match tables.port(&reverse_key, self.key, self.now) {
                Port::Free => return Some(reverse_key),
                Port::GivesWay(idle) if other.is_none_or(|(most, _)| idle > most) => other = Some((idle, reverse_key)),
                Port::GivesWay(_) | Port::Taken => {}
            }
            let is_quiet = other.filter(|(idle, _)| step + 1 >= free_tries && *idle >= QUIET_SECONDS);
            if let Some((_, reverse_key)) = is_quiet {
                return Some(reverse_key);
            }
        }
        let is_active_flow = self.key.protocol == Protocol::Udp && tables.keeps(Rule::ActiveFlowKeepsPort);
        other.filter(|_| !is_active_flow).map(|(_, reverse_key)| reverse_key)
    }
}

/// Finds a port of the node for a connection to this backend, and returns the key of the backend's packets with it.
/// Another connection that has it gives way. The search starts at the backend's cursor, and continues at random. It moves the cursor behind the
/// port by a random step, so that searches on several CPUs rarely try the same ports.
pub(crate) fn source_port(
    tables: &mut Tables,
    settings: &Settings,
    search: &Search<'_>,
    random: &mut dyn FnMut() -> u32,
) -> Option<PacketKey> {
    let first = *settings.source_ports.start();
    let count = u32::from(settings.source_ports.end().checked_sub(first)?) + 1;
    let index = search.backend.0 % CURSORS;
    let mut cursor = tables.cursors.get(&index).copied().unwrap_or(0);
    let ports = (0..MOST_TRIES.min(count)).map(|step| {
        if step >= NEAR_TRIES && count > MOST_TRIES {
            cursor = cursor.wrapping_add(random() % count);
        }
        let offset = cursor % count;
        cursor = cursor.wrapping_add(1);
        u16::try_from(u32::from(first) + offset).unwrap_or(first)
    });
    let found = search.among(tables, ports, FREE_TRIES);
    tables.cursors.insert(index, cursor.wrapping_add(random() % 3));
    found
}

/// Finds a port for a client that already has a connection from its own port to the backend, through another address of
/// a service. The search starts at the client's port. A UDP flow keeps its port, because the client may use both.
pub(crate) fn client_port(tables: &Tables, search: &Search<'_>) -> Option<PacketKey> {
    let own = search.reverse_key.tuple.target.port;
    let following = (1..=u16::MAX).map(|step| own.wrapping_add(step)).filter(|port| *port != 0);
    let ports = std::iter::once(own).chain(following).take(MOST_TRIES as usize);
    let free_tries = if search.key.protocol == Protocol::Udp { MOST_TRIES as usize } else { 1 };
    search.among(tables, ports, free_tries)
}

#[cfg(test)]
#[path = "tests/ports.rs"]
mod tests;
