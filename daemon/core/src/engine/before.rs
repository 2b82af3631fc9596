//! Since when frontends have had their status, over a restart: connections continue while nodelb does not run, so a
//! restart that changes nothing for them is not the beginning of a status.

use std::sync::Arc;

use imbl::OrdMap;

use super::Engine;
use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::state::owner::hash_of;
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
    pub(super) statuses: Statuses,
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

impl Engine {
    /// Accepts the statuses of the previous run. What the maps do not contain any more has lost its status.
    pub fn recall(&mut self, statuses: Statuses, start: Moment) {
        let is_in_maps = |address: &L4Addr| self.realised.frontends.contains_key(address);
        let is_plausible = |((address, _), before): &((L4Addr, u32), Lasting)| {
            let is_transient = matches!(before.status, Status::Kept | Status::Pending);
            !is_transient && before.since <= start && (!before.status.is_in_maps() || is_in_maps(address))
        };
        self.before = Before { start, statuses: statuses.into_iter().filter(is_plausible).collect() };
    }

    /// Gives each frontend that now has the status of the previous run the time since which it had it.
    pub(super) fn continue_statuses(&mut self, now: Moment) {
        if self.before.statuses.is_empty() {
            return;
        }
        let snapshot = self.snapshot(now);
        let mut waiting = Statuses::new();
        for (key, before) in std::mem::take(&mut self.before.statuses) {
            let (address, service) = key;
            let row = snapshot.rows.get(&address);
            let place = row.and_then(|row| row.claims().iter().position(|it| hash_of(&it.key.service) == service));
            let Some((row, place)) = row.zip(place) else {
                // A source that has not reported everything may describe it.
                let is_in_maps = snapshot.realised.frontends.contains_key(&address);
                if is_in_maps || !self.sync.is_pruned {
                    waiting.insert(key, before);
                }
                continue;
            };
            let status = snapshot.status_of(row, place, address).status;
            if status == before.status {
                self.date(address, place, before);
            }
            // What was stored of a source may be older than the maps. Checks are facts of this run.
            let is_certain = self.table.is_synced(row.claims()[place].source) || status == Status::LastResort;
            if !is_certain || matches!(status, Status::Kept | Status::Pending) {
                waiting.insert(key, before);
            }
        }
        self.before.statuses = waiting;
    }

    fn date(&mut self, address: L4Addr, place: usize, before: Lasting) {
        let Some(row) = self.rows.get_mut(&address) else { return };
        let row = Arc::make_mut(row);
        row.date(place, before.since);
        let Some(id) = row.claims().get(place).and_then(|claim| claim.target.as_ref().ok()) else { return };
        match before.status {
            Status::Held => self.holds.date(*id, before.since),
            _ => self.degraded.date(*id, before.since),
        }
    }
}
