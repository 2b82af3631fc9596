//! The second half of a round: operations planned, handed to the datapath, and committed as far as they succeeded.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;
use smallvec::SmallVec;

use super::{Engine, IdOwner, Retry, Round};
use crate::addr::L4Addr;
use crate::claims::RowStatus;
use crate::datapath::{MapError, Moment};
use crate::diff::Touched;
use crate::report::Status;
use crate::service::Source;
use crate::state::{MapOp, ServiceId};
use crate::table::Table;

/// First and longest wait before failed operations are tried again, in milliseconds.
const RETRY_MILLIS: (u64, u64) = (100, 5_000);

impl Engine {
    pub(super) fn begin(&mut self, now: Moment) {
        self.round = Round::default();
        if self.retry.is_some_and(|retry| retry.at <= now) {
            self.touched.services.extend(self.failed_services.keys());
            self.touched.frontends.extend(self.failed_frontends.keys());
            self.touched.node_addrs.extend(self.failed_node_addrs.keys());
            self.dirty.append(&mut self.waiting);
        }
        self.recompile_dirty(now);
        if !self.is_pruned && self.may_prune() {
            self.prune();
        }
        self.touch_waiting_frontends();
    }

    /// A frontend whose service entry could not be written waits for it: it must come along when the entry does.
    fn touch_waiting_frontends(&mut self) {
        let is_waiting = |a: &L4Addr| self.desired.frontends.get(a) != self.realised.frontends.get(a);
        let frontends = self.touched.services.iter().filter_map(|id| self.desired_frontends_of(*id)).flatten();
        let waiting: Vec<L4Addr> = frontends.filter(is_waiting).collect();
        self.touched.frontends.extend(waiting);
    }

    fn may_prune(&self) -> bool {
        let is_complete = |source: &Source| self.table.is_synced(*source) && self.table.incomplete(*source).is_none();
        self.config.sources.iter().all(is_complete)
    }

    /// Everything is known now: what the kernel holds beyond it is nobody's.
    fn prune(&mut self) {
        self.is_pruned = true;
        self.touched.services.extend(self.ids.take_orphans());
        self.backends.forget_unused();
        let all = Touched::all(&self.desired, &self.realised);
        self.round.pruned = all.frontends.iter().filter(|a| !self.desired.frontends.contains_key(*a)).count();
        self.touch(all);
    }

    pub(super) fn is_referenced(&self, id: ServiceId) -> bool {
        self.references.get(&id).is_some_and(|count| *count > 0)
    }

    /// Takes out what must wait until its source has synced.
    pub(super) fn defer(&mut self, ops: &mut Vec<MapOp>) {
        if self.config.sources.iter().all(|source| self.table.is_synced(*source)) {
            return;
        }
        let (table, owners, realised) = (&self.table, &self.owners, &self.realised);
        let deferred = &mut self.deferred;
        ops.retain(|op| match op {
            MapOp::PutService(id, _) if realised.services.contains_key(id) => {
                is_free(table, owners, *id) || !deferred.services.insert(*id)
            }
            MapOp::DeleteService(id) => is_free(table, owners, *id) || !deferred.services.insert(*id),
            MapOp::PutFrontend(address, entry) if realised.frontends.contains_key(address) => {
                is_free(table, owners, entry.service) || !deferred.frontends.insert(*address)
            }
            MapOp::DeleteFrontend(address) => {
                let id = realised.frontends.get(address).map(|entry| entry.service);
                id.is_none_or(|id| is_free(table, owners, id)) || !deferred.frontends.insert(*address)
            }
            _ => true,
        });
    }

    pub(super) fn commit(&mut self, ops: &[MapOp], results: Vec<Result<(), MapError>>) {
        for (op, result) in ops.iter().zip(results) {
            match result {
                Ok(()) => {
                    self.count_references(op);
                    self.realised.apply(op);
                    self.round.done += 1;
                }
                Err(_) => self.round.failed += 1,
            }
            match (op, result.err()) {
                (MapOp::PutService(id, _) | MapOp::DeleteService(id), error) => {
                    note(&mut self.failed_services, *id, error);
                }
                (MapOp::PutFrontend(address, _) | MapOp::DeleteFrontend(address), error) => {
                    note(&mut self.failed_frontends, *address, error);
                }
                (MapOp::PutNodeAddr(addr) | MapOp::DeleteNodeAddr(addr), error) => {
                    note(&mut self.failed_node_addrs, *addr, error);
                }
            }
        }
    }

    /// Keeps the count; an entry nobody wants may go once the last frontend has left it.
    fn count_references(&mut self, op: &MapOp) {
        let (address, now_at) = match op {
            MapOp::PutFrontend(address, entry) => (address, Some(entry.service)),
            MapOp::DeleteFrontend(address) => (address, None),
            _ => return,
        };
        let before = self.realised.frontends.get(address).map(|entry| entry.service);
        if before == now_at {
            return;
        }
        if let Some(count) = before.and_then(|id| self.references.get_mut(&id)) {
            *count -= 1;
        }
        if let Some(id) = before.filter(|id| !self.is_referenced(*id) && !self.desired.services.contains_key(id)) {
            self.touched.services.insert(id);
        }
        if let Some(id) = now_at {
            *self.references.entry(id).or_insert(0) += 1;
        }
    }

    pub(super) fn finish(&mut self, now: Moment) -> Round {
        let touched = std::mem::take(&mut self.touched);
        self.forget_failures(&touched);
        let mut frontends = touched.frontends;
        for id in &touched.services {
            frontends.extend(self.desired_frontends_of(*id).unwrap_or_default());
            if !self.desired.services.contains_key(id) {
                self.forget_service(*id, now);
            }
        }
        for address in frontends {
            self.refresh_status(address, now);
        }
        self.schedule_retry(now);
        if self.config.sources.iter().all(|source| self.table.is_synced(*source)) {
            self.is_ready = true;
        }
        std::mem::take(&mut self.round)
    }

    /// An operation that failed and is no longer wanted has not failed: the kernel is as it should be.
    fn forget_failures(&mut self, touched: &Touched) {
        let (desired, realised) = (&self.desired, &self.realised);
        for id in touched.services.iter().filter(|id| desired.services.get(*id) == realised.services.get(*id)) {
            self.failed_services.remove(id);
        }
        for address in touched.frontends.iter().filter(|a| desired.frontends.get(*a) == realised.frontends.get(*a)) {
            self.failed_frontends.remove(address);
        }
        for addr in
            touched.node_addrs.iter().filter(|a| desired.node_addrs.contains(*a) == realised.node_addrs.contains(*a))
        {
            self.failed_node_addrs.remove(addr);
        }
    }

    /// Gives the id back once the kernel has nothing under it and nothing points at it.
    fn forget_service(&mut self, id: ServiceId, now: Moment) {
        if self.realised.services.contains_key(&id) || self.is_referenced(id) {
            return;
        }
        self.references.remove(&id);
        self.owners.remove(&id);
        self.ids.release(id, now);
    }

    fn schedule_retry(&mut self, now: Moment) {
        let has_failed = !self.failed_services.is_empty()
            || !self.failed_frontends.is_empty()
            || !self.failed_node_addrs.is_empty()
            || !self.waiting.is_empty();
        let (first, longest) = RETRY_MILLIS;
        self.retry = match self.retry {
            _ if !has_failed => None,
            Some(retry) if retry.at > now => Some(retry),
            Some(retry) => {
                let wait = (retry.wait * 2).min(longest);
                Some(Retry { at: now.plus(wait), wait })
            }
            None => Some(Retry { at: now.plus(first), wait: first }),
        };
    }

    fn desired_frontends_of(&self, id: ServiceId) -> Option<SmallVec<[L4Addr; 2]>> {
        let owner = self.owners.get(&id)?;
        let compiled = self.compiled.get(&owner.key.service)?;
        compiled.ports.iter().find(|port| port.id == Some(id)).map(|port| port.frontends.clone())
    }

    fn refresh_status(&mut self, address: L4Addr, now: Moment) {
        let Some(row) = self.rows.get(&address) else { return };
        let Some(entry) = row.entry() else { return };
        let service = entry.service;
        let error = self.failed_services.get(&service).or_else(|| self.failed_frontends.get(&address));
        let is_done = self.realised.frontends.get(&address) == Some(&entry)
            && self.realised.services.get(&service) == self.desired.services.get(&service);
        let (status, error) = match error {
            Some(error) => (Status::Error, Some(Arc::from(error.to_string()))),
            None if is_done => (Status::Done, None),
            None => (Status::Pending, None),
        };
        if row.status.status == status && row.status.error == error {
            return;
        }
        match (&error, row.status.status) {
            (Some(error), _) => self.round.errors.push((address, Arc::clone(error))),
            (None, Status::Error) => self.round.healed.push(address),
            _ => {}
        }
        if let Some(row) = self.rows.get_mut(&address) {
            Arc::make_mut(row).status = RowStatus { status, since: now, error };
        }
    }
}

/// Whether the source that owns the service id has synced, so that what it says may take something away.
fn is_free(table: &Table, owners: &OrdMap<ServiceId, IdOwner>, id: ServiceId) -> bool {
    owners.get(&id).is_none_or(|owner| table.is_synced(owner.source))
}

fn note<K: Ord>(failed: &mut BTreeMap<K, MapError>, key: K, error: Option<MapError>) {
    match error {
        Some(error) => {
            failed.insert(key, error);
        }
        None => {
            failed.remove(&key);
        }
    }
}
