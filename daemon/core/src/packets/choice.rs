//! The backend of a new connection: the entry of the ring that the client's hash selects. The programs of
//! `bpf/connections.h` compute the same.

use crate::model::addr::{Addr, L4Addr};
use crate::state::entries::{ServiceEntry, Slot};
use crate::state::ring;

/// The offset of the slot that a client without a connection and without affinity gets; `None` if it is chosen at
/// random, or if it depends on the client's port, which is not given.
pub fn selected(
    service: &ServiceEntry,
    view: &[Slot],
    (client, port): (Addr, Option<u16>),
    to: L4Addr,
) -> Option<usize> {
    let hash = match port {
        _ if view.len() == 1 => return Some(0),
        _ if !service.has_rings => return None,
        _ if service.affinity_seconds > 0 => ring::client_hash(client, None),
        port => ring::client_hash(client, Some((port?, to))),
    };
    Some(ring::select(view, hash))
}
