//! The engine's part of [`crate::before`]: statuses of the previous run are accepted and continued.

use std::sync::Arc;

use super::Engine;
use crate::before::{Before, Lasting, Statuses};
use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::state::owner::hash_of;
use crate::state::status::Status;

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
