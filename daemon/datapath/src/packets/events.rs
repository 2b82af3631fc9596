//! Reads the events about packets that the programs write while someone watches: `struct packet_event`. Owns the lease:
//! without it, the programs write none.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use libbpf_rs::{MapHandle, RingBufferBuilder};
use nix::time::{ClockId, clock_gettime};
use nodelb_core::state::entries::ServiceId;

use super::counts::{NO_SERVICE, PacketVerdict, REASONS};
use crate::error::into_io;
use crate::packets::handles::PacketMaps;
use crate::skeleton::packet::types;
use crate::sys::SharedWords;

/// How long the programs write events after the last call of [`EventReader::read`] that wants some.
const LEASE: Duration = Duration::from_secs(5);

/// The longest time that one look for events waits.
const WAIT: Duration = Duration::from_millis(100);

/// `MAX_WATCHED`: services that the programs can select.
const MAX_WATCHED: usize = 8;

/// `EVENT_BYTES`: bytes of a packet in an event.
const EVENT_BYTES: usize = 96;

/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;

/// The words of `struct packet_watch`: the end of the lease, the services, the flag, the second, the events, the lost.
const UNTIL: usize = 0;
const SERVICES: usize = 1;
const ONLY_DROPPED: usize = SERVICES + MAX_WATCHED / 2;
const LOST: usize = ONLY_DROPPED + 3;

const _: () = assert!(size_of::<types::packet_watch>() == 8 * (LOST + 1));

/// Size of an event in bytes.
const EVENT: usize = size_of::<types::packet_event>();

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only packets of these services; `None` for all. With more than eight, the programs report all.
    pub services: Option<BTreeSet<ServiceId>>,
    /// Only packets that were dropped, answered, or counted as if they were.
    pub only_dropped: bool,
}

impl EventFilter {
    pub fn has(&self, event: &PacketEvent) -> bool {
        let is_dropped = event.reason.is_some() || event.verdict == PacketVerdict::Dropped;
        let is_of = |services: &BTreeSet<_>| event.service.is_some_and(|service| services.contains(&service));
        (is_dropped || !self.only_dropped) && self.services.as_ref().is_none_or(is_of)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The first bytes, at most 96.
    pub bytes: Vec<u8>,
    /// Length of the packet in bytes.
    pub length: u32,
    /// Whether the bytes begin with an Ethernet header, and not with an IP header.
    pub has_ethernet: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketEvent {
    /// Nanoseconds of the monotonic clock.
    pub time: u64,
    /// Index of the device that the program ran at.
    pub ifindex: u32,
    /// Index of the device that a redirected packet or an answer leaves by.
    pub next_ifindex: Option<u32>,
    /// Whether the packet leaves by the device; otherwise, it arrives there.
    pub is_leaving: bool,
    /// The service; `None` if the packet is not known to be a service's.
    pub service: Option<ServiceId>,
    pub verdict: PacketVerdict,
    /// Why, one of [`REASONS`]; `None` if it was translated and nothing was wrong.
    pub reason: Option<&'static str>,
    pub before: Captured,
    /// The packet as the program left it, or its answer; `None` if the packet was dropped or is unchanged.
    pub after: Option<Captured>,
}

/// What reads events: the buffer of the kernel ([`PacketEvents`]), or a test.
pub trait EventReader: Send + Sync {
    /// Passes events to `see` until `wanted` returns `None`. It is called about ten times a second, and returns what
    /// the programs are to report from then on.
    fn read(&self, wanted: &mut dyn FnMut() -> Option<EventFilter>, see: &mut dyn FnMut(PacketEvent))
    -> io::Result<()>;

    /// Number of events that were not written since the daemon started.
    fn lost(&self) -> u64;
}

/// Reads events. Works from any thread and without capabilities; only one thread may read at a time.
#[derive(Debug)]
pub struct PacketEvents {
    events: MapHandle,
    watch: SharedWords,
}

impl PacketEvents {
    pub fn new(maps: &PacketMaps) -> io::Result<Self> {
        Ok(Self { events: maps.handle("packet_events")?, watch: SharedWords::map(maps.find("packet_watch")?)? })
    }

    /// Ends the lease of an earlier process, and forgets what it has lost.
    pub(crate) fn clear(&self) -> io::Result<()> {
        self.watch.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Ok(())
    }

    fn extend_lease(&self, filter: &EventFilter) -> io::Result<()> {
        let words = words(filter);
        for (word, value) in self.watch.at(SERVICES, words.len()).iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        let lease = u64::try_from(LEASE.as_nanos()).unwrap_or(u64::MAX);
        let until = nanoseconds(ClockId::CLOCK_MONOTONIC_COARSE)?.saturating_add(lease);
        self.word(UNTIL).store(until, Ordering::Relaxed);
        Ok(())
    }

    fn word(&self, index: usize) -> &std::sync::atomic::AtomicU64 {
        &self.watch.at(index, 1)[0]
    }
}

impl EventReader for PacketEvents {
    fn read(
        &self,
        wanted: &mut dyn FnMut() -> Option<EventFilter>,
        see: &mut dyn FnMut(PacketEvent),
    ) -> io::Result<()> {
        let begun = nanoseconds(ClockId::CLOCK_MONOTONIC)?;
        let take = |record: &[u8]| {
            // Older ones are left from an earlier reader.
            if let Some(event) = parse(record).filter(|event| event.time >= begun) {
                see(event);
            }
            0
        };
        let mut ring = RingBufferBuilder::new();
        ring.add(&self.events, take).map_err(into_io)?;
        let ring = ring.build().map_err(into_io)?;
        while let Some(filter) = wanted() {
            self.extend_lease(&filter)?;
            ring.poll(WAIT).map_err(into_io)?;
        }
        self.word(UNTIL).store(0, Ordering::Relaxed);
        Ok(())
    }

    fn lost(&self) -> u64 {
        self.word(LOST).load(Ordering::Relaxed)
    }
}

/// The filter as words from [`SERVICES`] on: pairs of services, and the flag.
fn words(filter: &EventFilter) -> [u64; MAX_WATCHED / 2 + 1] {
    let mut ids = [NO_SERVICE; MAX_WATCHED + 2];
    for services in filter.services.iter().filter(|services| services.len() <= MAX_WATCHED) {
        ids.iter_mut().zip(services).for_each(|(id, service)| *id = service.0);
    }
    ids[MAX_WATCHED] = filter.only_dropped.into();
    let (pairs, _) = ids.as_chunks::<2>();
    std::array::from_fn(|i| {
        let [first, second] = pairs[i].map(u32::to_ne_bytes);
        u64::from_ne_bytes(std::array::from_fn(|at| if at < 4 { first[at] } else { second[at - 4] }))
    })
}

/// The wall-clock time of a time of the monotonic clock, in microseconds since 1970.
pub fn unix_micros(time: u64) -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = nanoseconds(ClockId::CLOCK_MONOTONIC).unwrap_or(time).saturating_sub(time);
    u64::try_from(wall.saturating_sub(Duration::from_nanos(age)).as_micros()).unwrap_or(u64::MAX)
}

fn nanoseconds(clock: ClockId) -> io::Result<u64> {
    let now = clock_gettime(clock)?;
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    Ok(part(now.tv_sec()).saturating_mul(1_000_000_000).saturating_add(part(now.tv_nsec())))
}

/// Reads a `struct packet_event`; `None` if it is none.
fn parse(record: &[u8]) -> Option<PacketEvent> {
    let record: &[u8; EVENT] = record.get(..EVENT)?.try_into().ok()?;
    let (head, bytes) = record.split_at(EVENT - 2 * EVENT_BYTES);
    let (time, rest) = head.split_first_chunk::<8>()?;
    let (numbers, _) = rest.as_chunks::<4>();
    let &[ifindex, next_ifindex, service, length, next_length, [side, verdict, reason, l2_length]] = numbers else {
        return None;
    };
    let number = u32::from_ne_bytes;
    let verdict = PacketVerdict::new(verdict.into())?;
    let has_ethernet = l2_length > 0;
    let before = captured(&bytes[..EVENT_BYTES], number(length), has_ethernet);
    let is_redirected = verdict == PacketVerdict::Redirected;
    let is_changed = !matches!(verdict, PacketVerdict::Dropped | PacketVerdict::Passed);
    // A redirected packet has an Ethernet header also if the device adds none: the kernel requires it.
    let added = if is_redirected && !has_ethernet { ETHERNET } else { 0 };
    let after = &bytes[EVENT_BYTES + added..];
    let next_length = number(next_length).saturating_sub(u32::try_from(added).unwrap_or(0));
    Some(PacketEvent {
        time: u64::from_ne_bytes(*time),
        ifindex: number(ifindex),
        next_ifindex: Some(number(next_ifindex)).filter(|index| *index != 0),
        is_leaving: side != 0,
        service: Some(number(service)).filter(|id| *id != NO_SERVICE).map(ServiceId),
        verdict,
        reason: REASONS.get(usize::from(reason)).copied(),
        before,
        after: is_changed.then(|| captured(after, next_length, has_ethernet)),
    })
}

fn captured(bytes: &[u8], length: u32, has_ethernet: bool) -> Captured {
    let present = usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len());
    Captured { bytes: bytes[..present].to_vec(), length, has_ethernet }
}

#[cfg(test)]
#[path = "tests/events.rs"]
mod tests;
