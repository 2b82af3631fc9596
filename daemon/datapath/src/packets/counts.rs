//! Reads what the packet programs count: `struct packet_counts` and the entries of `packet_drops`, of all CPUs, and the
//! connections of each service.

use std::io;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::time::{ClockId, clock_gettime};
use nodelb_core::datapath::Count;
use nodelb_core::state::entries::ServiceId;

use crate::counters::Counters;
use crate::error::into_io;
use crate::packets::handles::PacketMaps;
use crate::skeleton::packet::types;
use crate::sys;

/// Why packets are not forwarded, or are answered by this node, in the order of `enum packet_reason`.
pub const REASONS: [&str; 23] = [
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
    "reverse-path",
    "mtu-no-df",
    "fragment-rate",
    "served-source",
    "not-served",
    "echo",
    "false-error",
    "ipsec",
    "encapsulation",
    "tunnel-source",
];

/// What the programs did with a packet, in the order of `enum packet_verdict`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PacketVerdict {
    /// Passed on to the network stack unchanged.
    Passed,
    Dropped,
    Rst,
    Icmp,
    /// Translated, and passed on to the network stack.
    Translated,
    /// Translated, and sent by a device, past the network stack.
    Redirected,
}

impl PacketVerdict {
    const ALL: [Self; 6] = [Self::Passed, Self::Dropped, Self::Rst, Self::Icmp, Self::Translated, Self::Redirected];

    pub const NAMES: [&'static str; 6] = ["passed", "dropped", "rst", "icmp", "translated", "redirected"];

    pub(crate) fn new(number: usize) -> Option<Self> {
        Self::ALL.get(number).copied()
    }

    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// The packets of a service that met the same fate for the same reason, since the start of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropCount {
    /// The service; `None` if the packets are not known to be a service's.
    pub service: Option<ServiceId>,
    /// One of [`REASONS`].
    pub reason: &'static str,
    pub verdict: PacketVerdict,
    pub packets: u64,
    /// Seconds since the first one.
    pub first: u32,
    /// Seconds since the last one.
    pub last: u32,
}

/// The structure in 8-byte words: the counts, and the last packet.
const WORDS: usize = size_of::<types::packet_counts>() / 8;

/// Number of words before the counts by reason.
const TOTALS: usize = 5;

/// Position of the counts of packets that were passed on.
const PASSED: usize = TOTALS + REASONS.len();

/// Position of the number of TCP RSTs.
const RESETS: usize = PASSED + REASONS.len();

const _: () = assert!(WORDS == RESETS + 3);

/// `NO_SERVICE`.
pub(super) const NO_SERVICE: u32 = 0;

/// Sizes of the entries of `packet_drops` in bytes.
const DROP_KEY: usize = size_of::<types::drop_key>();
const DROP_COUNT: usize = size_of::<types::drop_count>();

/// What the programs have counted since the start of the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Translated packets from clients.
    pub forward: u64,
    /// Translated packets from backends.
    pub reverse: u64,
    pub begun: u64,
    /// TCP RSTs that this node sent.
    pub resets: u64,
    /// ICMP errors that this node sent.
    pub icmp_errors: u64,
    /// Source ports that were tried for connections to backends on other nodes.
    pub port_tries: u64,
    /// Packets that were dropped or answered, in the order of [`REASONS`].
    pub dropped: [u64; REASONS.len()],
    /// Packets that were passed on for one of [`REASONS`], in that order.
    pub passed: [u64; REASONS.len()],
}

/// Reads the counts. Works from any thread and without capabilities.
#[derive(Debug)]
pub struct PacketCounter {
    counts: MapHandle,
    drops: MapHandle,
    connections: Option<Counters>,
    /// When the counts began, in seconds of the coarse monotonic clock.
    began: u32,
}

impl PacketCounter {
    /// Reads these maps. `services` is the number of services with counted connections, 0 for none.
    pub(crate) fn new(maps: &PacketMaps, services: u32) -> io::Result<Self> {
        let connections =
            (services > 0).then(|| Counters::new(maps.find("outside_counters")?, services)).transpose()?;
        let (counts, drops) = (maps.handle("packet_counts")?, maps.handle("packet_drops")?);
        Ok(Self { counts, drops, connections, began: seconds()? })
    }

    /// Sets everything to 0, which programs of an earlier start have counted.
    pub(crate) fn clear(&self, maps: &PacketMaps) -> io::Result<()> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(into_io)?;
        let nothing = vec![vec![0; size_of::<types::packet_counts>()]; cpus];
        self.counts.update_percpu(&0_u32.to_ne_bytes(), &nothing, MapFlags::ANY).map_err(into_io)?;
        // The programs of the earlier start run, and may add each entry again: a walk that follows deletions may not end.
        let keys: Vec<_> = self.drops.keys().collect();
        keys.iter().try_for_each(|key| sys::delete(&self.drops, key))?;
        if self.has_connections() { Counters::clear(maps.find("outside_counters")?) } else { Ok(()) }
    }

    /// The sums over all CPUs.
    pub fn read(&self) -> io::Result<PacketCounts> {
        let of_cpus = self.counts.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY).map_err(into_io)?;
        Ok(sum(&of_cpus.unwrap_or_default()))
    }

    /// The counts by service, reason and verdict, in no order.
    pub fn drops(&self) -> io::Result<Vec<DropCount>> {
        let now = seconds()?;
        let mut found = Vec::new();
        for key in self.drops.keys() {
            let of_cpus = self.drops.lookup_percpu(&key, MapFlags::ANY).map_err(into_io)?.unwrap_or_default();
            found.extend(drop_count(&key, &of_cpus, now));
        }
        Ok(found)
    }

    /// Seconds since the counts began.
    pub fn age(&self) -> u32 {
        seconds().unwrap_or(self.began).saturating_sub(self.began)
    }

    /// The connections of clients outside the node to a service, since the daemon started or since the id was assigned
    /// to the service; `None` if they are not counted.
    pub fn connections(&self, id: ServiceId) -> Option<Count> {
        self.connections.as_ref().map(|counters| counters.read(id))
    }

    pub fn has_connections(&self) -> bool {
        self.connections.is_some()
    }

    /// Sets the counts of an id to 0. The id must have no frontend.
    pub(crate) fn reset(&self, id: ServiceId) {
        if let Some(counters) = &self.connections {
            counters.reset(id);
        }
        let is_of_id = |key: &Vec<u8>| key.get(..4).is_some_and(|first| first == id.0.to_ne_bytes());
        for key in self.drops.keys().filter(is_of_id).collect::<Vec<_>>() {
            // An entry that another process has deleted is what is wanted.
            let _ = self.drops.delete(&key);
        }
    }
}

/// Seconds of the clock that the programs read.
pub fn seconds() -> io::Result<u32> {
    Ok(u32::try_from(clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE)?.tv_sec()).unwrap_or(u32::MAX))
}

/// Adds the counts of all CPUs; `None` if the entry is not one that the programs write.
fn drop_count(key: &[u8], of_cpus: &[Vec<u8>], now: u32) -> Option<DropCount> {
    let key: [u8; DROP_KEY] = key.try_into().ok()?;
    let [a, b, c, d, reason @ .., e, f] = key;
    let id = u32::from_ne_bytes([a, b, c, d]);
    let verdict = PacketVerdict::new(u16::from_ne_bytes([e, f]).into())?;
    let reason = REASONS.get(usize::from(u16::from_ne_bytes(reason)))?;
    let (mut packets, mut first, mut last) = (0, now, 0);
    for count in of_cpus {
        let [number, times, _]: [[u8; 8]; 3] =
            <[u8; DROP_COUNT]>::try_from(&**count).ok()?.as_chunks().0.try_into().ok()?;
        let number = u64::from_ne_bytes(number);
        if number > 0 {
            let [a, b, c, d, e, f, g, h] = times;
            packets += number;
            first = first.min(u32::from_ne_bytes([a, b, c, d]));
            last = last.max(u32::from_ne_bytes([e, f, g, h]));
        }
    }
    let service = (id != NO_SERVICE).then_some(ServiceId(id));
    (packets > 0).then(|| DropCount {
        service,
        reason,
        verdict,
        packets,
        first: now.saturating_sub(first),
        last: now.saturating_sub(last),
    })
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
    let passed = std::array::from_fn(|reason| words[PASSED + reason]);
    let resets = words[RESETS];
    let icmp_errors = answered.saturating_sub(resets);
    PacketCounts { forward, reverse, begun, resets, icmp_errors, port_tries, dropped, passed }
}

#[cfg(test)]
#[path = "tests/counts.rs"]
mod tests;
