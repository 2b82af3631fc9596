//! Rings map the hash of a client outside the node to a backend: Maglev hashing (Eisenbud et al., NSDI 2016, section
//! 3.4). A ring is stored directly behind its list, in the same run of `slots`. Its entries are offsets into the list.
//!
//! Every node computes the same ring for the same backends, because it depends on nothing but their addresses and their
//! numbers of slots. If a backend goes, nearly all clients of the others keep their backend.

use crate::model::addr::{Addr, L4Addr};
use crate::state::slot::{MAX_VIEW_SLOTS, Slot};

/// The number of offsets that take the space of one slot.
pub const OFFSETS_PER_SLOT: usize = 12;

/// The numbers of entries, each with the largest number of slots that it is used for. They are prime numbers, so that
/// every step through a ring visits every entry.
const SIZES: [(usize, u32); 4] = [(10, 1_021), (40, 4_093), (160, 16_381), (MAX_VIEW_SLOTS, 65_521)];

/// The content of an entry that no backend has taken. No offset is as large.
const FREE: u16 = u16::MAX;

/// The number of entries in the ring of a list with this number of slots; 0 if the list needs none.
pub fn size(slots: usize) -> u32 {
    match slots {
        0 | 1 => 0,
        _ => SIZES.iter().find(|(most, _)| slots <= *most).map_or(0, |(_, size)| *size),
    }
}

pub fn slots_with_ring(slots: usize) -> usize {
    slots + (size(slots) as usize).div_ceil(OFFSETS_PER_SLOT)
}

/// A backend that takes entries.
struct Turn {
    addr: L4Addr,
    /// The offset of its first slot.
    first: u16,
    /// The number of entries that it takes in each round: its number of slots.
    weight: u32,
    /// The entry that it tries next.
    next: u32,
    /// The distance to the entry after that.
    skip: u32,
}

/// The ring of the list: the offset of a backend's first slot in each entry. Empty if the list has at most one slot.
pub fn ring(list: &[Slot]) -> Vec<u16> {
    let size = size(list.len());
    if size == 0 {
        return Vec::new();
    }
    let mut turns = turns(list, size);
    let mut ring = vec![FREE; size as usize];
    let mut left = size;
    loop {
        for turn in &mut turns {
            for _ in 0..turn.weight {
                while ring[turn.next as usize] != FREE {
                    turn.next = (turn.next + turn.skip) % size;
                }
                ring[turn.next as usize] = turn.first;
                left -= 1;
                if left == 0 {
                    return ring;
                }
            }
        }
    }
}

/// The hash that selects a client's backend. `connection` is the client's port and the destination that it connects to;
/// `None` for a service with session affinity: its hash depends on the client's address alone.
pub fn client_hash(client: Addr, connection: Option<(u16, L4Addr)>) -> u64 {
    let [first, second] = halves(client);
    let hash = scramble(scramble(first.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ second);
    let ([first, second], ports) = connection.map_or(([0, 0], 0), |(port, to)| {
        (halves(to.addr), port_be(port) << 32 | port_be(to.port) << 16 | u64::from(to.protocol.number()))
    });
    scramble(scramble(scramble(hash ^ first) ^ second) ^ ports)
}

/// The offset of the slot that the hash selects in a list with a ring; 0 if the list has only one slot.
pub fn select(list: &[Slot], hash: u64) -> usize {
    let place = ((hash >> 32) * u64::from(size(list.len()))) >> 32;
    let place = usize::try_from(place).unwrap_or(0);
    ring(list).get(place).map_or(0, |offset| usize::from(*offset))
}

/// The backends in the order of their addresses, whatever their order in the list.
fn turns(list: &[Slot], size: u32) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for (slot, first) in list.iter().zip(0..=u16::MAX) {
        match turns.last_mut().filter(|turn| turn.addr == slot.addr) {
            Some(turn) => turn.weight += 1,
            None => {
                let (next, skip) = permutation(slot.addr, size);
                turns.push(Turn { addr: slot.addr, first, weight: 1, next, skip });
            }
        }
    }
    turns.sort_by_key(|turn| turn.addr);
    turns.dedup_by(|later, turn| {
        let is_same = later.addr == turn.addr;
        turn.weight += if is_same { later.weight } else { 0 };
        is_same
    });
    turns
}

/// The first entry that the backend tries, and the distance to the next one.
fn permutation(backend: L4Addr, size: u32) -> (u32, u32) {
    let [first, second] = halves(backend.addr);
    let port = port_be(backend.port);
    let seed = scramble(first ^ scramble(second ^ scramble(port ^ u64::from(backend.protocol.number()) << 16)));
    let [upper, lower] = [seed >> 32, seed & u64::from(u32::MAX)].map(|half| u32::try_from(half).unwrap_or(0));
    (upper % size, lower % (size - 1) + 1)
}

/// The port as a BPF program reads it: its bytes in memory are in network order.
fn port_be(port: u16) -> u64 {
    u64::from(u16::from_ne_bytes(port.to_be_bytes()))
}

/// The halves of the address as the BPF programs compute them: each of two words in native byte order.
pub fn halves(addr: Addr) -> [u64; 2] {
    let octets = addr.octets();
    let (words, _) = octets.as_chunks::<4>();
    let [a, b, c, d] = std::array::from_fn(|index| u64::from(u32::from_ne_bytes(words[index])));
    [a << 32 | b, c << 32 | d]
}

/// Mixes the number so that every bit of the result depends on every bit of the input. As in `bpf/service.h`.
pub const fn scramble(mut number: u64) -> u64 {
    const ODD: u64 = 0xd6e8_feb8_6659_fd93;
    number ^= number >> 32;
    number = number.wrapping_mul(ODD);
    number ^= number >> 32;
    number = number.wrapping_mul(ODD);
    number ^ number >> 32
}

#[cfg(test)]
#[path = "tests/ring.rs"]
mod tests;
