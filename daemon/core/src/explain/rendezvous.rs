//! Which backend a UDP socket gets from a service that it has no backend of: rendezvous hashing. Each slot of the list has
//! a score that follows from the socket, the service and the slot; the highest wins. `rendezvous()` of `bpf/service.h` is
//! the same function.
//!
//! Nothing is remembered for it. A list that loses a backend moves only the sockets of that backend, a list that gets one
//! moves only sockets to that one, and the order of the list means nothing.

use crate::state::entries::{ServiceId, Slot};

/// How many slots have a score. Of a longer list that many in a row have one, from a place that follows from the socket, so
/// that no choice costs more. A change of such a list may move a few other sockets, about two in this many.
pub const MOST_SCORED: usize = 1_024;

/// Every bit of the result depends on every bit of the number.
const fn scramble(mut number: u64) -> u64 {
    const ODD: u64 = 0xd6e8_feb8_6659_fd93;
    number ^= number >> 32;
    number = number.wrapping_mul(ODD);
    number ^= number >> 32;
    number = number.wrapping_mul(ODD);
    number ^ number >> 32
}

/// What a socket and a service make of the scores; the socket is its cookie.
const fn seed(socket: u64, service: ServiceId) -> u64 {
    scramble(socket.wrapping_add(scramble(service.0 as u64 + 1)))
}

/// The place in the list of the slot that the socket gets; `None` if the list is empty. The slots of a backend that has
/// several must lie one after another, as [`crate::compile`] places them.
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

/// A place below `len`, which follows from the upper half of the number.
fn scaled(number: u64, len: usize) -> usize {
    let scaled = (number >> 32).saturating_mul(len as u64) >> 32;
    usize::try_from(scaled).unwrap_or(0)
}

#[cfg(test)]
mod tests;
