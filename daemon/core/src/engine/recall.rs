//! The engine's part of [`crate::before`]: statuses of the previous run are accepted and continued.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Engine;
use crate::before::{Before, Lasting, Statuses};
use crate::model::addr::L4Addr;
use crate::model::moment::Moment;
use crate::model::service::PortKey;
use crate::state::entries::ServiceId;
use crate::state::owner::hash_of;
use crate::state::status::Status;

/// The conflicts and holds of a round that the previous run had, too, so that they are no news, and the addresses that are
/// served and that it refused.
#[derive(Debug, Default)]
pub(super) struct Stood {
    pub(super) conflicts: BTreeSet<(L4Addr, Arc<PortKey>)>,
    pub(super) held: BTreeSet<Arc<PortKey>>,
    pub(super) refused: BTreeSet<L4Addr>,
}

impl Engine {
    /// What of this round the previous run had.
    pub(super) fn stood_before(&self) -> Stood {
        if self.before.statuses.is_empty() {
            return Stood::default();
        }
        let had = |address: L4Addr, key: &PortKey, status: Status| {
            let before = self.before.statuses.get(&(address, hash_of(&key.service)));
            before.is_some_and(|before| before.status == status)
        };
        let conflicts = self.round.conflicts.iter().map(|it| (it.address, &it.claimant));
        let conflicts = conflicts.filter(|(address, key)| had(*address, key, Status::Conflict));
        let was_held = |key: &&Arc<PortKey>| {
            let ports = self.compiled.get(&key.service).into_iter().flat_map(|compiled| &compiled.ports);
            ports
                .filter(|port| port.key == **key)
                .flat_map(|port| &port.frontends)
                .any(|at| had(*at, key, Status::Held))
        };
        let held = self.round.held.iter().map(|port| &port.key).filter(was_held);
        let owner = |at: &L4Addr| self.rows.get(at).and_then(|row| row.owner());
        let is_refused = |at: &&L4Addr| owner(at).is_some_and(|(claim, _)| had(**at, &claim.key, Status::Refused));
        Stood {
            conflicts: conflicts.map(|(at, key)| (at, Arc::clone(key))).collect(),
            held: held.cloned().collect(),
            refused: self.event_recorder.gained.iter().filter(is_refused).copied().collect(),
        }
    }

    /// Accepts the statuses of the previous run that the maps do not refute. The file is not trusted: of addresses that
    /// the maps do not have, there are at most as many as services.
    pub fn recall(&mut self, statuses: Statuses, start: Moment) {
        let is_plausible = |((address, service), before): &((L4Addr, u32), Lasting)| {
            let is_transient = matches!(before.status, Status::Kept | Status::Pending);
            !is_transient && before.since <= start && !before.is_refuted(&self.realised, *address, *service)
        };
        let (served, others): (Vec<_>, Vec<_>) =
            statuses.into_iter().filter(is_plausible).partition(|(_, before)| before.status.is_in_maps());
        let others = others.into_iter().take(self.config.max_services as usize);
        let ports = std::mem::take(&mut self.before.ports);
        self.before = Before { start, statuses: served.into_iter().chain(others).collect(), ports };
        self.compared_with = None;
    }

    /// Accepts which services the previous run served, also in an earlier boot. In empty maps they come before others, which
    /// may be more than fit. The file is not trusted: there are fewer of them than ids.
    pub fn recall_served(&mut self, statuses: &Statuses) {
        if !self.realised.services.keys().all(|id| *id == ServiceId::CANARY) {
            return;
        }
        let mut served: BTreeMap<u32, usize> = BTreeMap::new();
        for ((_, service), _) in statuses.iter().filter(|(_, before)| before.status.is_in_maps()) {
            *served.entry(*service).or_default() += 1;
        }
        if served.len() < self.config.max_services as usize {
            self.ids.expect(served);
        }
    }

    /// Gives each frontend that now has the status of the previous run the time since which it had it. Only `changed`
    /// addresses can have another status than after the last round, unless a source has reported everything meanwhile.
    pub(super) fn continue_statuses(&mut self, changed: &[L4Addr], now: Moment) {
        if self.before.statuses.is_empty() {
            return;
        }
        let compared_with = Some((self.unsynced(), self.sync.is_pruned));
        let keys: Vec<(L4Addr, u32)> = if self.compared_with == compared_with {
            let of_address = |at: &L4Addr| self.before.statuses.range((*at, 0)..=(*at, u32::MAX));
            changed.iter().flat_map(of_address).map(|(key, _)| *key).collect()
        } else {
            self.before.statuses.keys().copied().collect()
        };
        self.compared_with = compared_with;
        let snapshot = self.snapshot(now);
        for key @ (address, service) in keys {
            let Some(before) = self.before.statuses.get(&key).copied() else { continue };
            let row = snapshot.rows.get(&address);
            let place = row.and_then(|row| row.claims().iter().position(|it| hash_of(&it.key.service) == service));
            let waits = if before.is_refuted(&snapshot.realised, address, service) {
                false
            } else if let Some((row, place)) = row.zip(place) {
                let status = snapshot.status_of(row, place, address).status;
                if status == before.status {
                    self.date(address, place, before);
                }
                // What was stored of a source may be older than the maps. Checks are facts of this run.
                let is_certain = self.table.is_synced(row.claims()[place].source) || status == Status::LastResort;
                !is_certain || matches!(status, Status::Kept | Status::Pending)
            } else {
                // A source that has not reported everything may describe it.
                before.status.is_in_maps() || !self.sync.is_pruned
            };
            if !waits {
                self.before.statuses.remove(&key);
            }
        }
    }

    fn date(&mut self, address: L4Addr, place: usize, before: Lasting) {
        let Some(row) = self.rows.get_mut(&address) else { return };
        let row = Arc::make_mut(row);
        row.date(place, before.since);
        let Some(id) = row.claims().get(place).and_then(|claim| claim.target.as_ref().ok()) else { return };
        let (id, is_local) = (*id, row.claims()[place].inside_local);
        if before.status == Status::Held {
            self.holds.date(id, before.since);
        }
        if is_local {
            self.degraded_here.date(id, before.since);
        }
        if !is_local || self.is_only_local(id) {
            self.degraded.date(id, before.since);
        }
    }

    /// Whether clients on this node get the backends there alone at all addresses of the port.
    fn is_only_local(&self, id: ServiceId) -> bool {
        let Some(owner) = self.owners.get(&id) else { return false };
        let ports = self.compiled.get(&owner.key.service).into_iter().flat_map(|compiled| &compiled.ports);
        let rows = ports.filter(|port| port.id == Some(id)).flat_map(|port| &port.frontends);
        let claims = rows.filter_map(|at| self.rows.get(at)).flat_map(|row| row.claims());
        claims.filter(|claim| claim.target == Ok(id)).all(|claim| claim.inside_local)
    }
}
