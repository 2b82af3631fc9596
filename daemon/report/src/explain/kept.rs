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

/// Why the maps still contain what a source asked for before the start, such as `until nodelb has read everything from
/// kubernetes`.
pub fn why_kept(snapshot: &Snapshot, entry: &FrontendEntry) -> String {
    let tag = snapshot.realised.services.get(&entry.service).and_then(|service| service.tag);
    let Some(source) = tag.map(|tag| tag.source) else {
        return "until nodelb has read everything from its source".into();
    };
    if snapshot.absent.contains(&source) {
        return format!("because {source} is no longer configured");
    }
    let why = snapshot.facts.incomplete(source).map(|why| format!(": {why}")).unwrap_or_default();
    format!("until nodelb has read everything from {source}{why}")
}

/// The number of service ports in the maps that no source describes, and that the source described earlier, or may have.
pub(super) fn unowned(snapshot: &Snapshot, source: Source) -> usize {
    let entries = snapshot.realised.services.iter().filter(|(id, _)| **id != ServiceId::CANARY);
    let unowned = entries.filter(|(id, _)| !snapshot.owners.contains_key(*id));
    unowned.filter(|(_, entry)| entry.tag.is_none_or(|tag| tag.source == source)).count()
}
