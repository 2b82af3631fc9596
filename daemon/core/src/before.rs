//! Since when frontends have had their status, over a restart: connections continue while nodelb does not run, so a
//! restart that changes nothing for them is not the beginning of a status. And the names of the service ports, of which the
//! maps have only hashes.

use std::sync::Arc;

use imbl::OrdMap;

use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::model::service::PortKey;
use crate::state::entries::{FrontendEntry, MapState};
use crate::state::status::Status;

/// A status and since when it has lasted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lasting {
    pub status: Status,
    pub since: Moment,
}

/// Statuses by the address and the hash of the service, as in [`OwnerTag`](crate::state::owner::OwnerTag).
pub type Statuses = OrdMap<(L4Addr, u32), Lasting>;

/// Service ports by the hashes in their tags, see [`OwnerTag::hashes_of`](crate::state::owner::OwnerTag::hashes_of).
pub(crate) type Ports = OrdMap<(u32, u32), Arc<PortKey>>;

/// What the previous run has stored, until this run has found out the present state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before {
    /// The start of this run.
    pub(crate) start: Moment,
    pub(crate) statuses: Statuses,
    /// The service ports that the maps had at the start, as far as their names are known.
    pub(crate) ports: Ports,
}

impl Lasting {
    /// Whether the maps show that this service has lost the status, if it ever had it: they decide what connections get,
    /// also while sources have not reported everything.
    pub(crate) fn is_refuted(&self, maps: &MapState, address: L4Addr, service: u32) -> bool {
        let Some(entry) = serving(maps, address, service) else { return self.status.is_in_maps() };
        match self.status {
            Status::Ok | Status::Held | Status::LastResort => !maps.reaches_backends(address, entry.service),
            Status::NoBackends | Status::Kept | Status::Pending => false,
            Status::Conflict | Status::Refused => true,
        }
    }
}

/// The sentence about an address that the maps contain only until every source has reported everything, and why.
pub(crate) fn as_before(why: &str) -> String {
    format!("in use as before the start, until every source has reported everything; then not: {why}")
}

/// In each text about an address that waits because it stays as it was before the start.
pub(crate) const BEFORE_START: &str = "before nodelb started";

/// Whether an address waits because it stays as it was before the start: clients get what they got then.
pub fn says_as_before(why: &str) -> bool {
    why.contains(BEFORE_START)
}

/// The entry of the address, if it belongs to the service with this hash.
pub(crate) fn serving(maps: &MapState, address: L4Addr, service: u32) -> Option<&FrontendEntry> {
    let entry = maps.frontends.get(&address)?;
    let tag = maps.services.get(&entry.service)?.tag;
    tag.is_none_or(|tag| tag.service == service).then_some(entry)
}

impl Before {
    /// What the previous run has stored of an address that had backends, or none. `service` is the hash of the service, if
    /// it is known.
    pub(crate) fn find(&self, address: L4Addr, service: Option<u32>, has_backends: bool) -> Option<&Lasting> {
        let range = (address, service.unwrap_or(0))..=(address, service.unwrap_or(u32::MAX));
        let is_same =
            |before: &&Lasting| before.status.is_in_maps() && (before.status != Status::NoBackends) == has_backends;
        self.statuses.range(range).map(|(_, before)| before).find(is_same)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&(L4Addr, u32), &Lasting)> {
        self.statuses.iter()
    }
}
