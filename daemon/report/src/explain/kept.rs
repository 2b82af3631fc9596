//! What the maps contain from before the start.

use nodelb_core::claims::Row;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{FrontendEntry, ServiceId};
use nodelb_core::state::status::Status;

/// Whether new connections to the address get what the maps contain from before the start.
pub(super) fn is_as_before(snapshot: &Snapshot, (row, place): (&Row, usize), address: L4Addr) -> bool {
    snapshot.still_serves(row, place, address) || row.status_of(place, address).status == Status::Kept
}

/// Why the maps still contain at the address what no source describes now, such as `until nodelb has read everything from
/// kubernetes`.
pub fn why_kept(snapshot: &Snapshot, address: L4Addr, entry: &FrontendEntry) -> String {
    let awaited = snapshot.awaited(address, entry);
    awaited.map_or_else(|| "until the maps accept the change".into(), |awaited| awaited.to_string())
}

/// The number of service ports in the maps that no source describes, and that the source described earlier, or may have.
pub(super) fn unowned(snapshot: &Snapshot, source: Source) -> usize {
    let entries = snapshot.realised.services.iter().filter(|(id, _)| **id != ServiceId::CANARY);
    let unowned = entries.filter(|(id, _)| !snapshot.owners.contains_key(*id));
    unowned.filter(|(_, entry)| entry.tag.is_none_or(|tag| tag.source == source)).count()
}
