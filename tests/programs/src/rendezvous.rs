//! The choice of a backend for a UDP socket that has no backend of the service yet: rendezvous hashing. Each slot of
//! the list has a score that is computed from the socket, the service and the slot; the slot with the highest score
//! wins. `rendezvous()` of `bpf/service.h` is the same function.
//!
//! The choice needs no stored state. If a list loses a backend, only the sockets of that backend move; if it gets a new
//! one, sockets move only to that one. The order of the list does not matter.

use nodelb_core::state::entries::{ServiceId, Slot};
use nodelb_core::state::ring::scramble;

/// The maximum number of slots that get a score, which bounds the cost of a choice. In a longer list only this number
/// of consecutive slots are scored, starting at a position that is computed from the socket. A change of such a list
/// may move a few other sockets, about two in this number.
pub const MOST_SCORED: usize = 1_024;

/// The part of the score that depends on the socket and the service. The socket is identified by its cookie.
const fn seed(socket: u64, service: ServiceId) -> u64 {
    scramble(socket.wrapping_add(scramble(service.0 as u64 + 1)))
}

/// The index of the slot in the list that the socket gets; `None` if the list is empty. Several slots of one backend
/// must be consecutive, as [`crate::compile`] places them.
pub fn choose(socket: u64, service: ServiceId, list: &[Slot]) -> Option<usize> {
    let seed = seed(socket, service);
    let start = if list.len() > MOST_SCORED { scaled(seed, list.len()) } else { 0 };
    let mut best: Option<(u64, usize)> = None;
    let (mut previous, mut copy) = (None, 0u64);
    for step in 0..list.len().min(MOST_SCORED) {
        let place = (start + step) % list.len();
        let backend = list[place].backend;
        copy = if previous == Some(backend) { copy + 1 } else { 0 };
        previous = Some(backend);
        let score = scramble(seed ^ (copy << 32 | u64::from(backend.0)));
        if best.is_none_or(|(highest, _)| score > highest) {
            best = Some((score, place));
        }
    }
    best.map(|(_, place)| place)
}

/// An index below `len`, computed from the upper half of the number.
fn scaled(number: u64, len: usize) -> usize {
    let scaled = (number >> 32).saturating_mul(len as u64) >> 32;
    usize::try_from(scaled).unwrap_or(0)
}

#[cfg(test)]
#[path = "tests/rendezvous.rs"]
mod tests;
