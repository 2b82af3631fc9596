//! What readers see of the claims to addresses, for tests.

use crate::model::addr::L4Addr;
use crate::snapshot::Snapshot;
use crate::state::status::Status;

/// A claim to an address.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) address: L4Addr,
    pub(crate) status: Status,
    pub(crate) error: Option<String>,
}

/// Every claim, by address and precedence.
pub(crate) fn claimed(snapshot: &Snapshot) -> Vec<Claimed> {
    let rows = snapshot
        .rows
        .iter()
        .flat_map(|(address, row)| (0..row.claims().len()).map(move |place| (*address, row, place)));
    rows.map(|(address, row, place)| {
        let shown = snapshot.status_of(row, place, address);
        Claimed { address, status: shown.status, error: shown.error.map(|error| error.to_string()) }
    })
    .collect()
}
