//! Since when frontends have had their status, over a restart: connections continue while nodelb does not run, so a
//! restart that changes nothing for them is not the beginning of a status.

use imbl::OrdMap;

use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
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

/// The statuses that the previous run had, until this run has found out the present one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before {
    /// The start of this run.
    pub(crate) start: Moment,
    pub(crate) statuses: Statuses,
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

/// The entry of the address, if it belongs to the service with this hash.
pub(crate) fn serving(maps: &MapState, address: L4Addr, service: u32) -> Option<&FrontendEntry> {
    let entry = maps.frontends.get(&address)?;
    let tag = maps.services.get(&entry.service)?.tag;
    tag.is_none_or(|tag| tag.service == service).then_some(entry)
}

impl Before {
    /// Since when an address from before the start has had backends, or none, if the previous run has stored it.
    /// `service` is the hash of the service, if it is known.
    pub(crate) fn since(&self, address: L4Addr, service: Option<u32>, has_backends: bool) -> Option<Moment> {
        let range = (address, service.unwrap_or(0))..=(address, service.unwrap_or(u32::MAX));
        let is_same =
            |before: &&Lasting| before.status.is_in_maps() && (before.status != Status::NoBackends) == has_backends;
        let mut same = self.statuses.range(range).map(|(_, before)| before).filter(is_same);
        same.next().map(|before| before.since)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&(L4Addr, u32), &Lasting)> {
        self.statuses.iter()
    }
}
