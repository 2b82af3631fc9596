//! The Bloom filter of `bpf/bloom.h`: the programs recognise most packets of no service by it, without a lookup.
//!
//! Each start first makes the programs of earlier ones look into the maps again: if it fails, they meet addresses that it
//! has added to `outside`. It empties the filter, or creates one of another size, and fills it when every device runs its
//! programs, which add what they begin, and when no earlier run of a program is left. Only then do the programs rely on it.
//! A run that saw its bit before the filter was emptied has put its entry into the maps when it ends.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;
use nodelb_core::model::addr::{L4Addr, Protocol};

use super::handles::PacketMaps;
use crate::error::{OpenError, failed};
use crate::layout;
use crate::layout::connections::{ConnectionBytes, PacketKeyBytes, is_leaving, parse_connection};
use crate::pins::{self, Pins, UNFINISHED};
use crate::spec::Spec;
use crate::sys::{self, SharedWords};
use crate::versions;

pub(crate) const NAME: &str = "packet_bloom";

/// `BLOOM_READY`.
const READY: u64 = 1 << 63;
/// `BLOOM_PORTS`: bits of a word.
const PORTS: u32 = 63;
/// Words per address of `outside`: a word has bits of a few addresses if all of them are in use.
const ADDRESSES_PER_WORD: u32 = 4;
const MIN_WORDS: u32 = 512;
const MAX_WORDS: u32 = 1 << 17;

/// The packets that an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Arriving = 0,
    Leaving = 1,
}

/// Number of words for this many addresses in `outside`: a power of two.
pub(crate) fn words(outside: u32) -> u32 {
    (outside / ADDRESSES_PER_WORD).clamp(MIN_WORDS, MAX_WORDS).next_power_of_two()
}

/// The filter that the programs use, in shared memory. Works without capabilities.
#[derive(Debug)]
pub struct PacketBloom {
    words: SharedWords,
    /// Ports of the node: all packets that arrive there are looked up.
    nodeports: RangeInclusive<u16>,
    source_ports: RangeInclusive<u16>,
}

impl PacketBloom {
    /// Maps the memory of the filter that the programs were loaded with.
    pub fn new(
        maps: &PacketMaps,
        nodeports: RangeInclusive<u16>,
        source_ports: RangeInclusive<u16>,
    ) -> io::Result<Self> {
        Ok(Self { words: SharedWords::map(maps.find(NAME)?)?, nodeports, source_ports })
    }

    /// Adds all addresses of these maps, and makes the programs rely on the filter: all programs that begin connections in
    /// them must have been loaded with it.
    pub fn fill(&self, maps: &PacketMaps) -> io::Result<()> {
        sys::each_batch::<{ size_of::<layout::FrontendKeyBytes>() }, { size_of::<layout::OutsideBytes>() }>(
            maps.find("outside")?,
            |keys, _| keys.iter().filter_map(layout::parse_frontend_key).for_each(|address| self.add_outside(&address)),
        )?;
        // A connection moves from the first map to the second one.
        for name in ["half_open", "connections"] {
            sys::each_batch::<{ size_of::<PacketKeyBytes>() }, { size_of::<ConnectionBytes>() }>(
                maps.find(name)?,
                |keys, values| keys.iter().zip(values).for_each(|(key, value)| self.add_connection(key, value)),
            )?;
        }
        for word in self.words.iter() {
            word.fetch_or(READY, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Adds an address, before it is added to `outside`, and with the port 0 for [`super::outside_addrs`].
    pub(crate) fn add_outside(&self, address: &L4Addr) {
        self.add(Side::Arriving, address);
        if !address.addr.is_unspecified() {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                self.add(Side::Arriving, &L4Addr::new(address.addr, 0, protocol));
            }
        }
    }

    fn add_connection(&self, key: &PacketKeyBytes, value: &ConnectionBytes) {
        let Some(entry) = parse_connection(key, value) else { return };
        let (source, target) = entry.from;
        if is_leaving(key) {
            self.add(Side::Leaving, &source);
            // As `claim_port()`.
            if source.protocol == Protocol::Udp {
                self.add(Side::Arriving, &source);
            }
        } else {
            self.add(Side::Arriving, &target);
        }
    }

    /// As `add_key_to_bloom()`.
    fn add(&self, side: Side, address: &L4Addr) {
        let is_looked_up = [&self.nodeports, &self.source_ports].iter().any(|ports| ports.contains(&address.port));
        if side == Side::Leaving || !is_looked_up {
            let word = &self.words.at(index(side, address, self.words.len()), 1)[0];
            word.fetch_or(bit(address.port), Ordering::SeqCst);
        }
    }
}

/// As `bloom_word()`: the position of the word of the address among this many.
fn index(side: Side, address: &L4Addr, words: usize) -> usize {
    let octets = address.addr.octets();
    let [low, high] =
        [0, 8].map(|at| u64::from_ne_bytes(*octets[at..].first_chunk().expect("invariant: an address has 16 bytes")));
    let sum = low ^ high ^ (u64::from(address.protocol.number()) << 1 | side as u64);
    let sum = (sum ^ sum >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (sum >> 40) as usize & (words - 1)
}

/// As `bloom_bit()`: the bit of the port.
fn bit(port: u16) -> u64 {
    let hash = u32::from(u16::from_ne_bytes(port.to_be_bytes())).wrapping_mul(0x9e37_79b1) >> 16;
    1 << ((hash * PORTS) >> 16)
}

/// The filters of earlier starts: the one that programs use, and one that a start has not completed.
fn paths(pins: &Pins) -> [PathBuf; 2] {
    pin_names().map(|name| pins.persistent(&name))
}

pub(crate) fn pin_names() -> [String; 2] {
    [NAME.to_owned(), format!("{NAME}{UNFINISHED}")]
}

pub(crate) fn kind() -> Spec {
    Spec::kind((libbpf_sys::BPF_MAP_TYPE_ARRAY, libbpf_sys::BPF_F_MMAPABLE), size_of::<u32>(), size_of::<u64>())
}

/// Makes the programs of earlier starts look into the maps for every packet. Returns an empty filter: the one that they
/// use, unless it has another size.
pub(crate) fn open(pins: &Pins, outside: u32) -> Result<MapHandle, OpenError> {
    let kind = kind();
    let wanted = Spec { max_entries: words(outside), ..kind };
    let mut present = Vec::new();
    for path in paths(pins) {
        let Some((map, found)) = Spec::open(&path)? else { continue };
        if !found.same_kind(kind) {
            return Err(failed("using", &path)(versions::FOREIGN));
        }
        let words = SharedWords::map(&map).map_err(failed("mapping", &path))?;
        for word in words.iter() {
            word.fetch_and(!READY, Ordering::SeqCst);
        }
        present.push((path, map, found));
    }
    let [current, unfinished] = paths(pins);
    // Of two, either may be the one that programs use.
    if let [(path, map, found)] = present.as_slice()
        && (*found, path) == (wanted, &current)
    {
        let words = SharedWords::map(map).map_err(failed("mapping", path))?;
        words.iter().for_each(|word| word.store(0, Ordering::SeqCst));
        return MapHandle::try_from(map).map_err(failed("duplicating", path));
    }
    let map = wanted.create(NAME)?;
    pins::remove_file(&unfinished, pins.crash()).map_err(failed("removing", &unfinished))?;
    pins.pin(map.as_fd(), &unfinished)?;
    Ok(map)
}

/// Replaces the earlier filter with that of this start, if it is another one.
pub(crate) fn commit(pins: &Pins) -> Result<(), OpenError> {
    let [current, unfinished] = paths(pins);
    if unfinished.exists() { pins.rename(&unfinished, &current) } else { Ok(()) }
}

#[cfg(test)]
#[path = "tests/bloom.rs"]
mod tests;
