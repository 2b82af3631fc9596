//! The second half of a round: operations are planned, passed to the datapath, and committed if they succeeded.

use std::sync::Arc;

use smallvec::SmallVec;

use super::event_recorder::Context;
use super::{Engine, Round};
use crate::awaited::Sources;
use crate::claims::RowStatus;
use crate::datapath::MapError;
use crate::model::addr::{L4Addr, Protocol};
use crate::model::moment::Moment;
use crate::model::service::Source;
use crate::state::entries::{CANARIES, FrontendEntry, Lead, MapOp, NextIds, Realised, ServiceEntry, ServiceId};
use crate::state::map_ops::{self, Touched};
use crate::state::status::Status;

impl Engine {
    pub(super) fn begin(&mut self, now: Moment) {
        self.round = Round::default();
        self.touched.services.extend(self.batching.take_due(now));
        if self.failures.is_retry_due(now) {
            self.touched.extend(self.failures.to_retry(self.realised.node_addrs.len()));
            self.dirty.retry();
        }
        self.recompile_dirty(now);
        let is_source_synced = |id| self.owners.get(&id).is_some_and(|owner| self.table.is_synced(owner.source));
        self.round.held.extend(self.holds.announce(is_source_synced, now));
        self.touched.services.extend(self.holds.take_changed());
        self.note_recalled();
        let changed = self.deferred.take_changed();
        self.touched.extend(changed);
        if std::mem::take(&mut self.sync.is_prune_due) {
            self.prune();
        }
        self.desire_next_ids();
        self.touch_waiting_frontends();
        self.touched.settle();
    }

    /// Records where the next start continues to number services and backends. The canary's id is the first, so that its
    /// entry is written before those with new numbers.
    fn desire_next_ids(&mut self) {
        let next_ids = NextIds { service: self.ids.next(), backend: self.backends.next() };
        let canary = self.desired.services.get(&ServiceId::CANARY).filter(|canary| canary.next_ids != next_ids);
        if let Some(canary) = canary.map(|canary| ServiceEntry::clone(canary)) {
            self.desired.services.insert(ServiceId::CANARY, ServiceEntry { next_ids, ..canary }.into());
            self.touched.services.push(ServiceId::CANARY);
        }
    }

    /// Touches the frontends that wait for their service entry, because it could not be written or has no backend yet.
    /// They must be written together with the entry.
    fn touch_waiting_frontends(&mut self) {
        if self.sync.is_pruned && self.failures.of_services().next().is_none() {
            return;
        }
        let (desired, realised) = (&self.desired, &self.realised);
        let is_waiting = |a: &L4Addr| {
            desired.frontends.get(a) != realised.frontends.get(a) || desired.outside.get(a) != realised.outside.get(a)
        };
        let frontends = self.touched.services.iter().filter_map(|id| self.desired_frontends_of(*id)).flatten();
        let waiting: Vec<L4Addr> = frontends.filter(is_waiting).collect();
        self.touched.frontends.extend(waiting);
    }

    /// Removes the entries that no source needs, after a source has reported what it can. What another source may describe
    /// stays.
    fn prune(&mut self) {
        let (config, facts, absent) = (&*self.config, &*self.table, &self.sync.absent);
        let sources = Sources { config, facts, absent, owners: &self.owners, realised: &self.realised };
        let waits = |source| sources.awaited_from(source, None).is_some();
        if Source::ALL.into_iter().all(waits) && !self.unsynced().is_empty() {
            self.report_former();
            return;
        }
        self.touched.services.extend(self.ids.take_orphans(|tag| sources.awaited_by(tag).is_none()));
        self.sync.is_pruned = sources.awaited_by(None).is_none();
        self.sync.was_pruned |= self.sync.is_pruned;
        if self.sync.is_pruned {
            self.at_start.clear();
            self.ids.end_expecting();
            self.backends.forget_unused();
            self.holds.forget_unheard(|name| self.compiled.contains_key(name));
        } else {
            self.forget_confirmed();
        }
        let mut surplus = Touched::surplus(&self.desired, &self.realised);
        if !self.unsynced().is_empty() {
            // These may be of an unsynced source.
            surplus.frontends.retain(|address| self.realised.frontends.contains_key(address));
            (surplus.node_addrs, surplus.uplinks) = Default::default();
        }
        let goes = |address: &&L4Addr| self.sync.is_pruned || !self.is_premature(&MapOp::DeleteFrontend(**address));
        // A claim that is refused has an event of its own.
        let is_described = |address: &L4Addr| self.rows.contains_key(address);
        let pruned: Vec<L4Addr> =
            surplus.frontends.iter().filter(goes).filter(|address| !is_described(address)).copied().collect();
        self.touched.extend(surplus);
        let named = self.report_former();
        self.round.unnamed = pruned.iter().filter(|address| !named.contains(address)).copied().collect();
        self.round.pruned = pruned.into_iter().collect();
    }

    /// Removes the operations that must wait for further reports.
    pub(super) fn defer(&mut self, ops: &mut Vec<MapOp>) {
        if self.sync.is_pruned {
            return;
        }
        let (premature, now): (Vec<MapOp>, Vec<MapOp>) = ops.drain(..).partition(|op| self.is_premature(op));
        *ops = now;
        for op in &premature {
            self.deferred.insert(op, &self.realised);
            if let MapOp::PutService(id, wanted) = op
                && self.is_unreported(*id)
                && let Some(entry) = self.changed_by_checks(*id, wanted)
            {
                ops.push(MapOp::PutService(*id, entry));
            }
        }
    }

    /// Whether the operation is too early: it would remove something that was in the maps at the start, based on a
    /// source that has not reported everything, and not because a health check has failed; or it would refuse
    /// connections to an address only because its backends have not been reported yet.
    pub(super) fn is_premature(&self, op: &MapOp) -> bool {
        match op {
            MapOp::PutService(id, entry) => {
                let is_changed_otherwise =
                    || self.changed_by_checks(*id, entry).is_none_or(|changed| changed != *entry);
                let is_emptied = || self.realised.services.get(id).is_some_and(|actual| empties(actual, entry));
                let is_kept = || self.is_kept_for_another(*id) && !self.may_go(*id);
                let is_inherited = || self.at_start.inherited.contains(id);
                let is_doubtful = || !self.is_source_synced(*id) || is_inherited() || is_kept();
                (self.is_unreported(*id) && is_changed_otherwise()) || (is_emptied() && is_doubtful())
            }
            MapOp::DeleteService(id) => self.at_start.realised.services.contains_key(id) && !self.may_go(*id),
            MapOp::PutFrontend(address, entry) => {
                let actual = self.realised.frontends.get(address).map(FrontendEntry::lead);
                self.is_reserved(address, entry) || self.is_move_premature(address, actual, entry.lead())
            }
            MapOp::PutOutside(address, entry) => {
                self.is_move_premature(address, self.realised.outside.get(address).copied(), *entry)
            }
            MapOp::DeleteOutside(address) => self.is_closing_premature(address),
            MapOp::DeleteSourceRange(id, _) if self.desired.services.contains_key(id) => !self.is_source_synced(*id),
            MapOp::DeleteSourceRange(id, _) => self.at_start.realised.services.contains_key(id) && !self.may_go(*id),
            MapOp::DeleteFrontend(address) => {
                let actual = self.realised.frontends.get(address);
                self.at_start.realised.frontends.contains_key(address)
                    && self.config.guard.own_port(*address).is_none()
                    && actual.is_some_and(|actual| !self.may_go(actual.service))
            }
            MapOp::PutNodeAddr(_)
            | MapOp::DeleteNodeAddr(_)
            | MapOp::PutSourceRange(..)
            | MapOp::PutUplink(..)
            | MapOp::DeleteUplink(_) => false,
        }
    }

    /// Whether it is too early to lead the clients of an address elsewhere.
    fn is_move_premature(&self, address: &L4Addr, actual: Option<Lead>, wanted: Lead) -> bool {
        let is_inherited = actual.is_some_and(|actual| self.at_start.inherited.contains(&actual.service));
        let is_doubtful = || self.is_emptiness_doubtful(address, wanted.service);
        let is_emptied = || actual.is_some_and(|actual| actual.is_answered(&self.realised)) && is_doubtful();
        // The last known state of an address that leads nowhere may be that it refuses.
        let is_recalled = actual.is_none() && self.sync.recalled.contains(&wanted.service);
        let is_source_synced = is_recalled || self.is_source_synced(wanted.service);
        let will_answer = wanted.is_answered(&self.realised) && wanted.is_answered(&self.desired);
        (!is_source_synced && is_inherited) || (!will_answer && (!is_source_synced || is_emptied()))
    }

    /// Whether it is too early to close the address to clients outside the node: its frontend must not go or move yet
    /// either.
    fn is_closing_premature(&self, address: &L4Addr) -> bool {
        let leads_to = |state: &Realised| state.frontends.get(address).map(|entry| entry.service);
        let Some(actual) = leads_to(&self.realised) else { return false };
        match leads_to(&self.desired) {
            Some(wanted) => wanted != actual,
            None => self.is_premature(&MapOp::DeleteFrontend(*address)),
        }
    }

    /// Whether a frontend from the start still points at the entry only because it is not known yet whether the
    /// frontend may be removed.
    fn is_kept_for_another(&self, id: ServiceId) -> bool {
        let is_wanted = |address| self.desired.frontends.get(address).is_some_and(|entry| entry.service == id);
        self.at_start.leading_to(id).any(|address| !is_wanted(address))
    }

    /// Whether the realised state is equal to the desired one when all operations of this round succeed: none of them
    /// waits, and nothing is to be removed.
    pub(super) fn leads_to_desired(&self) -> bool {
        let (desired, realised, touched) = (&self.desired, &self.realised, &self.touched);
        self.sync.is_pruned
            && self.is_settled()
            && map_ops::delete_frontends(desired, realised, touched).is_empty()
            && map_ops::delete_services(desired, realised, touched, |_| false).is_empty()
    }

    /// The services with source ranges that did not fit, of which the operations remove others: the room is for those, and
    /// not for another service that waits for some.
    pub(super) fn exchanged_ranges(&self, ops: &[MapOp]) -> Touched {
        let mut exchanged = Touched::default();
        for op in ops {
            if let MapOp::DeleteSourceRange(id, _) = op
                && self.failures.of_ranges(*id).is_some()
            {
                exchanged.services.push(*id);
            }
        }
        exchanged.settle();
        exchanged
    }

    pub(super) fn commit(&mut self, ops: Vec<MapOp>, results: Vec<Result<(), MapError>>) {
        if results.iter().any(Result::is_err) {
            self.unapplied.take().into_iter().flatten().for_each(|op| self.realised.apply(&op));
        }
        for (op, result) in ops.iter().zip(results) {
            match result {
                Ok(()) => {
                    self.note_move(op);
                    self.note_access_of_found(op);
                    if let MapOp::PutService(id, entry) = op {
                        self.note_replaced(*id, entry);
                        self.note_slots(*id, entry);
                    }
                    self.count_references(op);
                    if self.unapplied.is_none() {
                        self.realised.apply(op);
                    }
                    if let MapOp::PutService(id, _) | MapOp::DeleteService(id) = op {
                        self.deferred.note_change(*id);
                    }
                    self.round.done += 1;
                }
                Err(ref error) => {
                    self.round.failed += 1;
                    self.give_up_rings(op, error);
                }
            }
            let error = result.err();
            let is_reported = matches!(op, MapOp::PutNodeAddr(_) | MapOp::PutUplink(..));
            let text = error.as_ref().filter(|_| is_reported).map(|error| Arc::from(error.to_string()));
            let had_failed = self.failures.note(op, error);
            match (op, text) {
                (MapOp::PutNodeAddr(addr), Some(text)) if !had_failed => self.round.unanswered.push((*addr, text)),
                (MapOp::PutNodeAddr(addr), None) if had_failed => self.round.answered.push(*addr),
                (MapOp::PutUplink(index, _), Some(text)) if !had_failed => {
                    self.round.refused_uplinks.push((self.uplink_name(*index), text));
                }
                (MapOp::PutUplink(index, _), None) if had_failed => {
                    self.round.accepted_uplinks.push(self.uplink_name(*index));
                }
                _ => {}
            }
        }
        self.record_access_of_found();
        if let Some(unapplied) = &mut self.unapplied {
            unapplied.extend(ops);
        }
    }

    fn uplink_name(&self, index: u32) -> Arc<str> {
        let uplink = self.table.uplinks.iter().find(|uplink| uplink.ifindex == index);
        uplink.map_or_else(|| format!("device {index}").into(), |uplink| Arc::clone(&uplink.name))
    }

    /// Records that sockets may have become stale because of this change to the maps.
    fn note_move(&mut self, op: &MapOp) {
        match op {
            MapOp::PutFrontend(address, _) | MapOp::DeleteFrontend(address) => {
                self.stale_generation.note(address.protocol);
            }
            // Only retries count here. Every other change was recorded when its service was compiled.
            MapOp::PutService(id, _) if self.failures.get(op.key()).is_some() => {
                if let Some(owner) = self.owners.get(id) {
                    self.stale_generation.note(owner.key.protocol);
                }
            }
            MapOp::PutNodeAddr(_) => self.stale_generation.note(Protocol::Udp),
            // Clients outside the node have no sockets here.
            _ => {}
        }
    }

    pub(super) fn finish(&mut self, now: Moment) -> Round {
        let mut touched = std::mem::take(&mut self.touched);
        touched.settle();
        self.date_refusals(now);
        self.forget_confirmed_addresses(&touched.frontends);
        let is_settled = self.is_settled();
        let mut changed = Vec::new();
        if !is_settled || !self.before.statuses.is_empty() {
            changed = self.addresses_of(&touched);
        }
        if is_settled {
            for address in std::mem::take(&mut self.unsettled) {
                self.refresh_status(address, now);
                changed.push(address);
            }
        } else {
            self.settle(&touched);
            changed.iter().for_each(|address| self.refresh_status(*address, now));
        }
        let (conflicts, takeovers) = self.conflicts.finish(&self.rows);
        self.round.conflicts = conflicts;
        self.round.takeovers.extend(takeovers);
        self.report_moved();
        let stood = self.stood_before();
        self.continue_statuses(&changed, now);
        for id in touched.services {
            if !self.desired.services.contains_key(&id) {
                self.forget_service(id, now);
            }
        }
        for lost in &mut self.round.emptied {
            lost.is_kept = self.realised.services.get(&lost.id).is_some_and(|entry| entry.has_backends);
            if lost.is_kept {
                self.event_recorder.kept_losses.insert(lost.id, lost.cause.clone());
            }
        }
        self.round.repaired = self.drift.take_repaired(&self.desired, &self.realised, &self.references);
        let context = Context {
            config: &self.config,
            table: &self.table,
            rows: &self.rows,
            compiled: &self.compiled,
            desired: &self.desired,
            realised: &self.realised,
            failures: &self.failures,
            round: &self.round,
            stood: &stood,
            is_pruned: self.sync.is_pruned,
        };
        self.round.events = self.event_recorder.finish_round(&context);
        self.round.triggers = self.event_recorder.take_triggers();
        if self.dirty.is_waiting_for_room() && self.ids.is_any_resting(now) {
            self.failures.retry_soon();
        }
        self.failures.schedule_retry(self.dirty.is_waiting_for_room() || self.drift.is_to_undo(), now);
        self.deferred.end_round(now);
        self.sync.is_ready |= self.unsynced().is_empty();
        if !self.has_surplus() {
            // Both have the same content, so they need not both have memory for it.
            self.realised = self.desired.clone();
        }
        std::mem::take(&mut self.round)
    }

    /// Whether there may be entries to delete. Once every desired entry is present, the maps contain nothing else
    /// exactly if the numbers of entries are equal.
    pub(super) fn has_surplus(&self) -> bool {
        let (desired, realised) = (&self.desired, &self.realised);
        let is_equal = desired.frontends.len() == realised.frontends.len()
            && desired.services.len() == realised.services.len()
            && desired.node_addrs.len() == realised.node_addrs.len()
            && desired.outside.len() == realised.outside.len()
            && desired.source_ranges.len() == realised.source_ranges.len()
            && desired.uplinks.len() == realised.uplinks.len();
        !(self.is_settled() && is_equal)
    }

    /// Whether every planned operation is done. Then all touched frontends are OK, which is the initial status of a
    /// claim, and only untouched frontends need a check.
    pub(super) fn is_settled(&self) -> bool {
        let waits = !(self.deferred.is_empty() && self.batching.is_empty());
        self.round.failed == 0 && self.failures.is_empty() && self.at_start.inherited.is_empty() && !waits
    }

    /// The touched addresses, and those of touched services, each once.
    fn addresses_of(&self, touched: &Touched) -> Vec<L4Addr> {
        let of_services = touched.services.iter().flat_map(|id| self.desired_frontends_of(*id).unwrap_or_default());
        let others = of_services.filter(|address| touched.frontends.binary_search(address).is_err());
        others.chain(touched.frontends.iter().copied()).collect()
    }

    /// Clears the errors of touched entries that are equal in the desired and the realised state. Inherited entries
    /// among them now belong to a synced source.
    fn settle(&mut self, touched: &Touched) {
        let (desired, realised) = (&self.desired, &self.realised);
        self.failures.settle(touched, desired, realised);
        for id in touched.services.iter().filter(|id| desired.services.get(*id) == realised.services.get(*id)) {
            let is_source_synced = self.owners.get(id).is_some_and(|owner| self.table.is_synced(owner.source));
            if is_source_synced && self.at_start.inherited.remove(id) {
                self.deferred.note_change(*id);
            }
        }
    }

    /// Releases the id once the maps have no entry and no source range under it and no frontend points at it.
    fn forget_service(&mut self, id: ServiceId, now: Moment) {
        let has_ranges = self.realised.ranges_of(id).next().is_some();
        if self.realised.services.contains_key(&id) || has_ranges || self.references.contains(id) {
            return;
        }
        self.references.forget(id);
        self.shares.forget(id);
        self.event_recorder.forget_found(id);
        self.ringless.ids.remove(&id);
        self.owners.remove(&id);
        self.sync.recalled.remove(&id);
        self.ids.release(id, now);
        self.retry_rings();
    }

    pub(super) fn desired_frontends_of(&self, id: ServiceId) -> Option<SmallVec<[L4Addr; 1]>> {
        if id == ServiceId::CANARY {
            return Some(CANARIES.as_slice().into());
        }
        let owner = self.owners.get(&id)?;
        let compiled = self.compiled.get(&owner.key.service)?;
        compiled.ports.iter().find(|port| port.id == Some(id)).map(|port| port.frontends.clone())
    }

    fn refresh_status(&mut self, address: L4Addr, now: Moment) {
        let Some(row) = self.rows.get(&address) else { return };
        let Some(entry) = row.entry() else { return };
        let service = entry.service;
        let outside = self.desired.outside.get(&address);
        let range_error = || outside.filter(|entry| entry.has_ranges).and_then(|_| self.failures.of_ranges(service));
        let error = self.failures.of_frontend(address, service).or_else(range_error);
        let is_at_address =
            self.realised.frontends.get(&address) == Some(&entry) && self.realised.outside.get(&address) == outside;
        let (had, wanted) = (self.realised.services.get(&service), self.desired.services.get(&service));
        let is_resting = error == Some(&MapError::Resting);
        // Only the ring waits for room: connections get the same as before.
        let is_complete =
            is_resting && is_at_address && had.zip(wanted).is_some_and(|(had, wanted)| had.lacks_rings_of(wanted));
        let (error, is_resting) = if is_complete { (None, false) } else { (error, is_resting) };
        let is_done = is_complete || is_at_address && had == wanted;
        let (status, error) = match (error, self.holds.announced(service)) {
            (Some(_), _) if is_resting => (Status::Pending, Some(Arc::from(MapError::Resting.to_string()))),
            (Some(error), _) => (Status::Refused, Some(Arc::from(error.to_string()))),
            (None, Some(port)) if is_done => (Status::Held, Some(Arc::clone(&port.text))),
            (None, None) if is_done && !self.holds.is_held(service) => (Status::Ok, None),
            _ => self.status_of_waiting(address, &entry),
        };
        if status == Status::Ok {
            self.unsettled.remove(&address);
        } else {
            self.unsettled.insert(address);
        }
        if row.status.status == status && row.status.error == error
            || is_resting && row.status.status == Status::Refused
        {
            return;
        }
        match (&error, row.status.status) {
            (Some(error), _) if status == Status::Refused => self.round.errors.push((address, Arc::clone(error))),
            (_, Status::Refused) if status.is_usable() => self.round.healed.push(address),
            _ => {}
        }
        if let Some(row) = self.rows.get_mut(&address) {
            let since = if is_same_to_connections(row.status.status, status) { row.status.since } else { now };
            Arc::make_mut(row).status = RowStatus { status, since, error };
        }
    }
}

/// Whether connections get the same with both statuses: only the text differs, or whether the source has confirmed it.
fn is_same_to_connections(before: Status, now: Status) -> bool {
    before == now || matches!((before, now), (Status::Ok, Status::Kept) | (Status::Kept, Status::Ok))
}

/// Whether a view that had backends has none any more.
fn empties(actual: &ServiceEntry, wanted: &ServiceEntry) -> bool {
    (wanted.cluster.is_empty() && !actual.cluster.is_empty()) || (wanted.local.is_empty() && !actual.local.is_empty())
}
