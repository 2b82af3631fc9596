//! The entries of `outside`, `source_ranges` and `uplinks`.

use std::mem::offset_of;

use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::source_range::SourceRange;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::state::entries::{OutsideEntry, ServiceId};
use nodelb_core::state::ring::OFFSETS_PER_SLOT;

use super::services::{SLOT_WORDS, flag, frontend_key, seal};
use crate::skeleton::packet::types;

const LOCAL: u32 = types::outside_flags::OUTSIDE_LOCAL.0;
const RANGES: u32 = types::outside_flags::OUTSIDE_RANGES.0;

// `seal` keeps the bits of the flags free.
const _: () = assert!(types::outside_flags::OUTSIDE_FLAGS.0 == LOCAL | RANGES);
const _: () = assert!(size_of::<types::outside>() == 8);
const _: () = assert!(size_of::<types::range_key>() == 24);
const _: () = assert!(size_of::<types::uplink>() == 48);
const _: () = assert!(OFFSETS_PER_SLOT * size_of::<u16>() == SLOT_WORDS * 8);

pub(crate) type OutsideBytes = [u8; size_of::<types::outside>()];
pub(crate) type RangeBytes = [u8; size_of::<types::range_key>()];
pub(crate) type UplinkBytes = [u8; size_of::<types::uplink>()];

/// The bits of the service id, which precede the address in a key of `source_ranges`.
const ID_BITS: u32 = u32::BITS;

pub(crate) fn outside(addr: &L4Addr, entry: &OutsideEntry) -> OutsideBytes {
    let flags = flag(entry.local, LOCAL) | flag(entry.has_ranges, RANGES);
    let sealed = flags | seal(&frontend_key(addr), entry.service, flags);
    bytes_of!(types::outside { service_id: entry.service.0.to_ne_bytes(), flags: sealed.to_ne_bytes() })
}

/// Decodes an entry; `None` if nodelb has not written the bytes for this address.
pub(crate) fn parse_outside(addr: &L4Addr, bytes: &OutsideBytes) -> Option<OutsideEntry> {
    let flags = u32::from_ne_bytes(field_of!(bytes, types::outside, flags));
    let entry = OutsideEntry {
        service: ServiceId(u32::from_ne_bytes(field_of!(bytes, types::outside, service_id))),
        local: flags & LOCAL != 0,
        has_ranges: flags & RANGES != 0,
    };
    (outside(addr, &entry) == *bytes).then_some(entry)
}

pub(crate) fn range(service: ServiceId, range: SourceRange) -> RangeBytes {
    bytes_of!(types::range_key {
        prefix_len: (ID_BITS + u32::from(range.prefix)).to_ne_bytes(),
        service_id_be: service.0.to_be_bytes(),
        addr: range.addr.octets(),
    })
}

/// Decodes a range; `None` if nodelb has not written the bytes.
pub(crate) fn parse_range(bytes: &RangeBytes) -> Option<(ServiceId, SourceRange)> {
    let service = ServiceId(u32::from_be_bytes(field_of!(bytes, types::range_key, service_id_be)));
    let prefix = u32::from_ne_bytes(field_of!(bytes, types::range_key, prefix_len)).checked_sub(ID_BITS)?;
    let addr = Addr::from_octets(field_of!(bytes, types::range_key, addr));
    // The kernel compares nothing behind the prefix.
    let prefix = u8::try_from(prefix).ok().filter(|prefix| *prefix <= 128)?;
    Some((service, SourceRange::new(addr, prefix)))
}

pub(crate) fn uplink(entry: &UplinkEntry) -> UplinkBytes {
    let addr = |addr: Option<Addr>| addr.map_or([0; 16], Addr::octets);
    let flags = [entry.is_v4_source, entry.is_v6_source, entry.is_strict];
    let flags = flags.into_iter().zip(0..).fold(0, |flags, (is_set, bit)| flags | u32::from(is_set) << bit);
    bytes_of!(types::uplink {
        v4: addr(entry.v4),
        v6: addr(entry.v6),
        mtu: entry.mtu.to_ne_bytes(),
        l2_length: [entry.l2_length],
        flags: flags.to_ne_bytes(),
    })
}

/// Decodes an uplink; `None` if nodelb has not written the bytes.
pub(crate) fn parse_uplink(bytes: &UplinkBytes) -> Option<UplinkEntry> {
    let addr = |octets: [u8; 16]| (octets != [0; 16]).then(|| Addr::from_octets(octets));
    let [l2_length] = field_of!(bytes, types::uplink, l2_length);
    let flags = u32::from_ne_bytes(field_of!(bytes, types::uplink, flags));
    let entry = UplinkEntry {
        v4: addr(field_of!(bytes, types::uplink, v4)),
        v6: addr(field_of!(bytes, types::uplink, v6)),
        mtu: u32::from_ne_bytes(field_of!(bytes, types::uplink, mtu)),
        l2_length,
        is_v4_source: flags & 1 != 0,
        is_v6_source: flags & 2 != 0,
        is_strict: flags & 4 != 0,
    };
    (uplink(&entry) == *bytes).then_some(entry)
}

/// A part of a ring, in the space of one slot.
pub(crate) fn ring_words(offsets: &[u16]) -> [u64; SLOT_WORDS] {
    let mut bytes = [0; SLOT_WORDS * 8];
    for (to, offset) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(offsets) {
        *to = offset.to_ne_bytes();
    }
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_ne_bytes(words[i]))
}

#[cfg(test)]
#[path = "tests/outside.rs"]
mod tests;
