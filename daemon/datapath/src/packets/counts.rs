//! Reads what the packet programs count: `struct packet_counts`, one for each CPU.

use std::io;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::maps::into_io;
use crate::skeleton::packet::types;

/// Why packets are not forwarded, or are answered by this node, in the order of `enum packet_reason`.
pub const REASONS: [&str; 13] = [
    "short",
    "ttl",
    "mtu",
    "fragment",
    "no-backend",
    "no-local-backend",
    "source-range",
    "no-port",
    "no-route",
    "no-forwarding",
    "no-room",
    "unknown",
    "answer-rate",
];

/// The structure in 8-byte words: the counts, and the last reason.
const WORDS: usize = size_of::<types::packet_counts>() / 8;

/// Number of words before the counts by reason.
const TOTALS: usize = 5;

const _: () = assert!(WORDS == TOTALS + REASONS.len() + 1);

/// What the programs have counted since the start of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Translated packets from clients.
    pub forward: u64,
    /// Translated packets from backends.
    pub reverse: u64,
    /// New connections.
    pub begun: u64,
    /// TCP RSTs and ICMP errors that this node sent.
    pub answered: u64,
    /// Source ports that were tried for connections to backends on other nodes.
    pub port_tries: u64,
    /// Packets that were not forwarded, in the order of [`REASONS`].
    pub dropped: [u64; REASONS.len()],
}

/// Reads the counts. Works from any thread and without capabilities.
#[derive(Debug)]
pub struct PacketCounter {
    map: MapHandle,
}

impl PacketCounter {
    pub(crate) fn new(map: &MapHandle) -> io::Result<Self> {
        Ok(Self { map: MapHandle::try_from(map).map_err(into_io)? })
    }

    /// The sums over all CPUs.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn read(&self) -> io::Result<PacketCounts> {
        let of_cpus = self.map.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY).map_err(into_io)?;
        Ok(sum(&of_cpus.unwrap_or_default()))
    }
}

fn sum(of_cpus: &[Vec<u8>]) -> PacketCounts {
    let mut words = [0_u64; WORDS];
    for counts in of_cpus {
        let (read, _) = counts.as_chunks::<8>();
        for (sum, word) in words.iter_mut().zip(read) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
        }
    }
    let [forward, reverse, begun, answered, port_tries, ..] = words;
    let dropped = std::array::from_fn(|reason| words[TOTALS + reason]);
    PacketCounts { forward, reverse, begun, answered, port_tries, dropped }
}

#[cfg(test)]
#[path = "tests/counts.rs"]
mod tests;
