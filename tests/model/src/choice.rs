//! The backend of a new connection: the entry of the ring that the client's hash selects, or the backend that the
//! client has session affinity to. The programs of `bpf/connections.h` compute the same.

use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::packets::choice::selected;
use nodelb_core::state::entries::{ServiceEntry, ServiceId, Slot};
use nodelb_core::state::ring::{halves, scramble};

use crate::connections::{Affinity, Tables};
use crate::key::Endpoint;
use crate::node::Node;
use crate::rendezvous;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// The number of a client outside the node in the table of affinity. The upper bit distinguishes it from the cookie of
/// a network namespace.
pub fn client_number(client: Addr) -> u64 {
    let [first, second] = halves(client);
    1 << 63 | scramble(scramble(first) ^ second) >> 1
}

/// Chooses the offset of a slot in the view, which is not empty, and stores the client's affinity.
pub(crate) fn choose(
    node: &Node<'_>,
    tables: &mut Tables,
    random: &mut dyn FnMut() -> u32,
    (id, service, view): (ServiceId, &ServiceEntry, &[Slot]),
    (client, to): (Endpoint, L4Addr),
) -> usize {
    let has_affinity = service.affinity_seconds != 0;
    let mut fresh =
        || selected(service, view, (client.addr, Some(client.port)), to).unwrap_or_else(|| at_random(view, random()));
    if !has_affinity {
        return fresh();
    }
    let keep = u64::from(service.affinity_seconds) * NANOS_PER_SECOND;
    let key = (client_number(client.addr), id);
    let last = tables.affinity.get(&key).copied();
    let is_valid = |last: &Affinity| node.now_ns.saturating_sub(last.last_used_ns) < keep;
    let kept = last.filter(is_valid).and_then(|last| again(view, &last));
    let offset = kept.unwrap_or_else(|| match last {
        Some(last) => rendezvous::choose(key.0 ^ scramble(last.last_used_ns), id, view).unwrap_or(0),
        None => fresh(),
    });
    let backend = view[offset].backend;
    let last_used_ns = last.map_or(node.now_ns, |last| last.last_used_ns.max(node.now_ns));
    tables.affinity.insert(key, Affinity { last_used_ns, backend, offset: offset_number(offset) });
    offset
}

/// The offset of the client's last backend, if the view still has it.
fn again(view: &[Slot], last: &Affinity) -> Option<usize> {
    let hint = last.offset as usize;
    let is_there = view.get(hint).is_some_and(|slot| slot.backend == last.backend);
    if is_there { Some(hint) } else { view.iter().rposition(|slot| slot.backend == last.backend) }
}

fn at_random(view: &[Slot], random: u32) -> usize {
    usize::try_from((u64::from(random) * view.len() as u64) >> 32).unwrap_or(0)
}

/// The offset as the maps store it. A view has at most 65,535 slots.
pub(crate) fn offset_number(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[path = "tests/choice.rs"]
mod tests;
