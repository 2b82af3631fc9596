//! What happens to new connections to a service now, from which the severity of its problems follows.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::problem::Observed;
use super::reason::Severity;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{PortKey, ServiceName};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::ServiceId;
use nodelb_core::state::owner::hash_of;
use nodelb_core::state::status::Status;

/// The services with addresses at which new connections fail.
pub(super) struct Effects<'a> {
    snapshot: &'a Snapshot,
    /// The number of those addresses.
    lost: HashMap<&'a ServiceName, usize, RandomState>,
    accepted: HashMap<&'a PortKey, Moment, RandomState>,
}

impl<'a> Effects<'a> {
    pub(super) fn new(observed: &'a Observed) -> Self {
        let snapshot = &*observed.snapshot;
        let mut lost = HashMap::default();
        for (address, place) in &observed.summary.claims {
            let Some(row) = snapshot.rows.get(address) else { continue };
            let Some(claim) = row.claims().get(*place) else { continue };
            let status = snapshot.status_of(row, *place, *address).status;
            // The maps have it from before the start, possibly for another service.
            let is_as_before = || status == Status::Pending && snapshot.realised.reaches_any(*address);
            // Only a change failed.
            let is_served = || {
                let is_refused = status == Status::Refused && claim.target.is_ok();
                is_refused && snapshot.realised.serves(*address, hash_of(&claim.key.service))
            };
            if !status.is_usable() && !is_as_before() && !is_served() {
                *lost.entry(&claim.key.service).or_default() += 1;
            }
        }
        let owner = |(id, begun): (&ServiceId, &Moment)| Some((&*snapshot.owners.get(id)?.key, *begun));
        let accepted = observed.accepted.iter().filter_map(owner).collect();
        Self { snapshot, lost, accepted }
    }

    /// Whether a backend of the port has accepted connections of clients outside the node that began after this time.
    pub(super) fn is_accepted(&self, port: &PortKey, since: Moment) -> bool {
        self.accepted.get(port).is_some_and(|begun| *begun >= since)
    }

    /// Critical if connections to all addresses of the service fail, else a warning.
    pub(super) fn severity(&self, service: &ServiceName) -> Severity {
        let lost = self.lost.get(service).copied().unwrap_or_default();
        if lost > 0 && lost >= self.snapshot.addresses_of(service).len() {
            Severity::Critical
        } else {
            Severity::Warning
        }
    }
}
