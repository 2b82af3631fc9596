//! The first half of a round: from dirty services to the desired state, including the assignment of ids and the claims
//! to addresses.

use std::sync::Arc;

use smallvec::SmallVec;

use super::access::AccessChange;
use super::compiled::{Compiled, CompiledPort, Subject};
use super::event_recorder::{AddressChange, Draft, Refusals, refusals};
use super::hold::spare_cluster_ips;
use super::shares::Bound;
use super::{CompiledService, Engine};
use crate::claims::{Claim, Incumbent, RowStatus};
use crate::compile::plan::PortPlan;
use crate::compile::select::Checks;
use crate::compile::{CompileContext, compile};
use crate::history::What;
use crate::holds::Emptied;
use crate::model::addr::L4Addr;
use crate::model::cause::{DirtyReason, Trigger};
use crate::model::moment::Moment;
use crate::model::service::{PortKey, ServiceName, Source};
use crate::model::source_range::SourceRange;
use crate::state::entries::{FrontendEntry, NextIds, ServiceEntry, ServiceId, differing_backends};
use crate::state::owner::{IdOwner, OwnerTag, hash_of};
use crate::state::remembered::Views;
use crate::state::status::Status;
use crate::table::Owner;

/// The status of a port that has usable backends, or not, and whether these are a last resort.
fn lack(has_backends: bool, is_last_resort: bool) -> Option<Status> {
    match (has_backends, is_last_resort) {
        (false, _) => Some(Status::NoBackends),
        (true, true) => Some(Status::LastResort),
        (true, false) => None,
    }
}

impl Engine {
    /// Compiles the dirty services. While the maps contain ids that no service has claimed, the oldest service is
    /// compiled first, so that the owner of an address that several services claim gets its previous id. While services of
    /// an earlier run are expected, they are first.
    pub(super) fn recompile_dirty(&mut self, now: Moment) {
        let effects = self.table.resolve_names();
        effects.into_iter().for_each(|effect| self.take_effect(effect));
        let newly_protected = self.table.take_newly_protected();
        self.mark_dirty(newly_protected, Trigger::Other);
        let mut dirty = self.dirty.take();
        if self.ids.has_orphans() || self.ids.expects_any() {
            // The order only matters for ids without a tag, and in maps that do not have room for all.
            let created = |name: &ServiceName| self.table.owner(name).and_then(|(service, _)| service.created);
            let is_new = |name: &ServiceName| self.ids.expects_any() && !self.ids.is_expected(hash_of(name));
            dirty.sort_by_cached_key(|name, _| (is_new(name), created(name).unwrap_or(0), name.clone()));
        }
        self.round.compiled.reserve(dirty.len());
        // At a start. To grow in steps computes the hash of each name again.
        self.compiled.reserve(dirty.len().saturating_sub(self.compiled.len()));
        let records = self.table.records();
        let search = records.search(dirty.len());
        for (name, reason) in dirty {
            let what = self.recompile((&name, search.owner(&name)), &reason, now);
            self.round.by_checks += usize::from(matches!(reason.trigger, Trigger::Checks(_)));
            self.round.compiled.push(CompiledService { name, what });
        }
        self.note_complete_sources();
    }

    /// Compiles one service again and records which entries that touches. Returns [`CompiledService::what`].
    fn recompile(
        &mut self,
        (name, description): (&ServiceName, Option<Owner<'_>>),
        reason: &DirtyReason,
        now: Moment,
    ) -> Option<What> {
        if let Some(owner) = description {
            self.presume_drains(name, owner);
        }
        let old = self.compiled.remove(name);
        let was_described = old.is_some();
        let old = old.unwrap_or_default();
        let mut new = Compiled::default();
        let mut claims: Vec<(L4Addr, Option<Claim>)> = Vec::new();
        let drains = self.table.drains.get(name).cloned();
        let owner = description.map(|(service, slices)| {
            let (node, guard, apiservers) = (self.table.node(), &self.config.guard, self.table.apiservers());
            let (checks, node_addrs) = (Checks::new(service, self.table.quarantine(name)), &self.desired.node_addrs);
            let (packets, drains) = (self.config.packets, drains.as_deref());
            let context = CompileContext { node, node_addrs, guard, apiservers, checks, drains, packets };
            let plans = compile(service, slices, &context);
            let is_confirmed = slices.iter().all(|slice| slice.problem.is_none());
            (service, plans, self.table.is_protected(service, slices), is_confirmed)
        });
        if reason.is_deleted() {
            let released = old.ports.iter().filter_map(|port| self.holds.forget_port(&port.key, port.id));
            self.round.released.extend(released);
        }
        let is_described = owner.is_some();
        let source = owner.as_ref().map(|(service, ..)| service.source);
        if let Some((service, mut plans, is_protected, is_confirmed)) = owner {
            let drains = drains.as_deref();
            let has_grown = plans.len() > old.ports.iter().filter(|port| port.id.is_some()).count();
            let subject = Subject { service, old: &old, has_grown, is_protected, is_confirmed, drains, reason, now };
            // In order of precedence, so that the owner of an address that two ports claim gets its previous id.
            plans.sort_by(|a, b| a.key.cmp(&b.key));
            for mut plan in plans {
                let port = self.adopt_port(&subject, &mut plan);
                for frontend in &plan.frontends {
                    let id = port.id.ok_or_else(|| self.why_no_id(&service.name));
                    claims.push((frontend.address, Some(Claim::new(&port.key, service, frontend, id))));
                }
                new.ports.push(port);
            }
        }
        self.retire_ports(&old, &new, reason);
        if let Some(source) = source.filter(|source| self.event_recorder.is_recorded(*source)) {
            self.note_addresses(source, (&old, &new), reason);
        }
        // A slice may have lost a terminating backend, which had not been in any list of the maps for some time.
        old.ports.iter().for_each(|port| self.stale_generation.note(port.key.protocol));
        for port in &old.ports {
            claims.extend(port.frontends.iter().map(|address| (*address, None)));
        }
        self.claim_all(name, claims, now);
        self.record_access(reason);
        if is_described {
            self.compiled.insert(name.clone(), new);
        }
        let is_news = source.is_none_or(|source| self.event_recorder.is_recorded(source));
        match (was_described, is_described) {
            (true, false) => Some(What::Removed),
            (false, true) => is_news.then_some(What::Added),
            (true, true) => is_news.then_some(What::Changed),
            (false, false) => None,
        }
    }

    /// Assigns the port its id, old or new, and stores its entry in the desired state.
    fn adopt_port(&mut self, subject: &Subject<'_>, plan: &mut PortPlan) -> CompiledPort {
        let Subject { service, old, now, .. } = *subject;
        if subject.is_protected {
            spare_cluster_ips(plan);
        }
        let frontends: SmallVec<[L4Addr; 1]> = plan.frontends.iter().map(|f| f.address).collect();
        let before = old.port(&plan.key);
        let tag = OwnerTag::new(&plan.key, service.source);
        let id = before.and_then(|port| port.id).or_else(|| {
            let admissible = plan.frontends.iter().filter(|f| f.refusal.is_none());
            let held = self.shares.held(&service.name.namespace, Bound::Services);
            let held = if subject.has_grown { held } else { 0 };
            self.ids.allocate(tag, &admissible.map(|f| f.address).collect::<SmallVec<[L4Addr; 2]>>(), held, now)
        });
        let key = before.map_or_else(|| Arc::new(plan.key.clone()), |port| Arc::clone(&port.key));
        match id {
            Some(id) => {
                self.shares.own(id, &service.name.namespace);
                let owner = self.owners.get(&id);
                let source_before = owner.map(|owner| owner.source);
                if owner.is_none_or(|owner| owner.source != service.source || owner.key != key) {
                    self.owners.insert(id, IdOwner { key: Arc::clone(&key), source: service.source });
                }
                if source_before != Some(service.source) {
                    self.note_other_source(id, source_before.is_some(), service.source);
                }
                self.keep_last_known(id, &key, subject, plan);
                let turned = self.note_degraded(id, &key, subject, plan);
                let here = self.note_degraded_here(id, &key, subject, plan);
                let here = here.or_else(|| self.note_undrained(id, subject, plan));
                self.desire_service((id, tag), &key, plan, (subject, turned, here));
            }
            None => {
                self.dirty.wait_for_room(service.name.clone());
            }
        }
        CompiledPort { key, id, frontends }
    }

    /// Records whether the port has a healthy backend. Returns the event if it begins or ends to use unhealthy ones.
    fn note_degraded(&mut self, id: ServiceId, key: &PortKey, subject: &Subject<'_>, plan: &PortPlan) -> Option<What> {
        let status = lack(plan.has_backends, plan.is_last_resort);
        let had = |entry: Option<&Arc<ServiceEntry>>| entry.is_some_and(|entry| entry.has_backends);
        let had_backends = || had(self.desired.services.get(&id)) || had(self.realised.services.get(&id));
        let new = |status| subject.degraded(key, status, had_backends());
        match (self.degraded.note(id, status, subject.now, new), status) {
            (Some(Status::LastResort), None) => Some(What::Recovered),
            (Some(Status::LastResort), _) => None,
            (_, Some(Status::LastResort)) => Some(What::LastResort),
            _ => None,
        }
    }

    /// The same for the clients that get the backends on this node alone. Returns what has changed for them, unless it is
    /// what has changed for all.
    fn note_degraded_here(
        &mut self,
        id: ServiceId,
        key: &PortKey,
        subject: &Subject<'_>,
        plan: &PortPlan,
    ) -> Option<&'static str> {
        if !plan.has_inside_local() {
            self.end_local(id, subject.now, plan);
            return None;
        }
        let status = lack(!plan.local.is_empty(), plan.is_local_last_resort);
        let new = |status| subject.degraded(key, status, false);
        let before = self.degraded_here.note(id, status, subject.now, new);
        if before == status || lack(plan.has_backends, plan.is_last_resort).is_some() {
            return None;
        }
        Some(match status {
            Some(Status::NoBackends) => "no usable backend is on this node",
            Some(_) => "every backend on this node failed its health checks, and these are used as a last resort",
            None => "a usable backend is on this node again",
        })
    }

    /// What the history says if drains give way.
    fn note_undrained(&self, id: ServiceId, subject: &Subject<'_>, plan: &PortPlan) -> Option<&'static str> {
        let is_so = subject.drains.is_some() && plan.uses_drained(subject.drains);
        let before = || self.desired.services.get(&id).map(|entry| Views::new(entry).cluster).unwrap_or_default();
        (is_so && before() != plan.cluster)
            .then_some("drained backends are in use, because the service would have no other one")
    }

    /// Clients on this node do not get the backends there alone any more, if they did.
    fn end_local(&mut self, id: ServiceId, now: Moment, plan: &PortPlan) {
        let here = self.degraded_here.get(id).map(|degraded| degraded.status);
        let is_same = here == lack(plan.has_backends, plan.is_last_resort);
        let since = if here.is_some() { (!is_same).then_some(now) } else { self.degraded_here.recovered(id) };
        self.degraded_here.forget(id);
        let Some(since) = since else { return };
        for frontend in &plan.frontends {
            let Some(row) = self.rows.get_mut(&frontend.address) else { continue };
            if row.claims().first().is_some_and(|claim| claim.target == Ok(id) && claim.inside_local) {
                let row = Arc::make_mut(row);
                row.status.since = row.status.since.max(since);
            }
        }
    }

    fn desire_service(
        &mut self,
        (id, tag): (ServiceId, OwnerTag),
        key: &Arc<PortKey>,
        plan: &PortPlan,
        (subject, turned, here): (&Subject<'_>, Option<What>, Option<&'static str>),
    ) {
        // A new port has no entry yet. Skipping the lookup saves noticeable time at a start.
        let is_new = subject.old.port(key).is_none_or(|port| port.id != Some(id));
        let before = if is_new { None } else { self.desired.services.get(&id).cloned() };
        let lists = before.as_ref().map(|before| (&*before.cluster, &*before.local)).unwrap_or_default();
        let (cluster, gone) = self.backends.replace(lists.0, &plan.cluster);
        let (local, gone_here) = self.backends.replace(lists.1, &plan.local);
        // Not before, because a backend may have moved from one list to the other.
        self.backends.release(&gone);
        self.backends.release(&gone_here);
        let mut entry = ServiceEntry {
            cluster,
            local,
            has_backends: plan.has_backends,
            affinity_seconds: plan.affinity_seconds,
            may_be_bound: plan.may_be_bound,
            has_rings: true,
            has_ranges: plan.source_ranges.is_some(),
            is_last_resort: plan.is_last_resort,
            is_local_last_resort: plan.is_local_last_resort,
            forward: plan.forward,
            tag: Some(tag),
            next_ids: NextIds::default(),
        };
        entry.has_rings = self.has_rings(id, plan, entry.slot_count());
        let has_other_ranges = self.desire_ranges(id, plan.source_ranges.as_deref().unwrap_or_default());
        // The first ones and the end of all are changes of addresses.
        let has_ranges_at = |address| {
            self.desired.outside.get(address).is_some_and(|outside| outside.service == id && outside.has_ranges)
        };
        let is_outside = || subject.old.ports.iter().flat_map(|port| &port.frontends).any(has_ranges_at);
        let had_ranges = || before.as_ref().is_some_and(|before| before.has_ranges);
        if has_other_ranges && entry.has_ranges && had_ranges() && is_outside() {
            self.round.access.insert((id, AccessChange::SourceRanges));
        }
        let is_same = before.as_ref().is_some_and(|before| **before == entry);
        if is_same {
            // The checks may concern a list of the start that this one waits to replace.
            self.deferred.note_change(id);
            if turned.is_none() && here.is_none() {
                return;
            }
        }
        let changed = || before.as_ref().map_or_else(Vec::new, |it| differing_backends(&it.cluster, &entry.cluster));
        let trigger = subject.reason.trigger_of_change(key, changed);
        if before.as_ref().is_some_and(|before| before.has_backends) && !entry.has_backends {
            let cause = trigger.cause();
            self.round.emptied.push(Emptied { id, key: Arc::clone(key), cause, is_kept: false });
        }
        let entry = Arc::new(entry);
        let source = subject.service.source;
        let is_unnoticed = turned.is_none() && here.is_none();
        if self.event_recorder.is_recorded(source)
            && !before.as_ref().is_some_and(|before| is_unnoticed && before.is_same_to_clients(&entry))
        {
            // An address that stayed in use until its source was read is not new.
            let before = before.or_else(|| self.realised.services.get(&id).cloned());
            let empties = before.is_some() && !entry.has_backends;
            let (change, trigger) = ((before, Some(Arc::clone(&entry))), trigger.clone());
            let may_have_refused = plan.has_refused;
            let new = || Draft { may_have_refused, turned, here, ..Draft::new((id, key, source), change, trigger) };
            self.event_recorder.note(new, empties);
        } else if !is_new {
            self.event_recorder.note_waiting(id, trigger);
        }
        if !is_same {
            self.desired.services.insert(id, entry);
            self.touched.services.push(id);
        }
    }

    /// Makes these the source ranges of the service. Returns whether they are others than before.
    fn desire_ranges(&mut self, id: ServiceId, wanted: &[SourceRange]) -> bool {
        if self.desired.ranges_of(id).eq(wanted.iter().copied()) {
            return false;
        }
        let before: Vec<SourceRange> = self.desired.ranges_of(id).collect();
        for range in before {
            self.desired.source_ranges.remove(&(id, range));
        }
        self.desired.source_ranges.extend(wanted.iter().map(|range| (id, *range)));
        self.touched.services.push(id);
        true
    }

    fn retire_ports(&mut self, old: &Compiled, new: &Compiled, reason: &DirtyReason) {
        for port in old.ports.iter().filter(|port| new.port(&port.key).is_none()) {
            self.round.released.extend(self.holds.forget_port(&port.key, port.id));
            if let Some(id) = port.id
                && let Some(entry) = self.desired.services.remove(&id)
            {
                self.backends.release(&entry.cluster);
                self.backends.release(&entry.local);
                self.degraded.forget(id);
                self.degraded_here.forget(id);
                self.desire_ranges(id, &[]);
                self.touched.services.push(id);
                self.deferred.note_change(id);
                let is_news = |owner: &&IdOwner| reason.is_deleted() || self.event_recorder.is_recorded(owner.source);
                if let Some(IdOwner { source, .. }) = self.owners.get(&id).filter(is_news).cloned() {
                    let trigger = reason.deleted_by.as_ref().unwrap_or_else(|| reason.trigger_of(&port.key)).clone();
                    let addresses = self.change_of_addresses(Some(port), None, new);
                    let key = (id, &port.key, source);
                    let draft = || Draft { addresses, ..Draft::new(key, (Some(entry), None), trigger) };
                    self.event_recorder.note(draft, false);
                }
            }
        }
    }

    /// Records which addresses the ports have and had, for ports that the service still has.
    fn note_addresses(&mut self, source: Source, (old, new): (&Compiled, &Compiled), reason: &DirtyReason) {
        for port in &new.ports {
            let before = old.port(&port.key);
            let (Some(id), Some(addresses)) = (port.id, self.change_of_addresses(before, Some(port), new)) else {
                continue;
            };
            // A port without an entry before is recorded only if it is news that it has one now.
            let entry = self.desired.services.get(&id).filter(|_| before.is_some()).cloned();
            let draft = entry.map(|entry| {
                let same = (Some(Arc::clone(&entry)), Some(entry));
                move || Draft::new((id, &port.key, source), same, reason.trigger.clone())
            });
            self.event_recorder.note_addresses(id, addresses, draft);
        }
    }

    /// The addresses that the port has only now, and those that it owned and no port of the service has now; `None` if
    /// there are neither.
    fn change_of_addresses(
        &self,
        before: Option<&CompiledPort>,
        now: Option<&CompiledPort>,
        new: &Compiled,
    ) -> Option<Box<AddressChange>> {
        let [had, has] = [before, now].map(|port| port.map_or(&[][..], |port| &port.frontends));
        if had == has {
            return None;
        }
        let is_owned = |address: &L4Addr| {
            let owner = self.rows.get(address).and_then(|row| row.owner());
            owner.zip(before).is_some_and(|((claim, _), port)| claim.key == port.key)
        };
        let is_kept = |address: &L4Addr| new.ports.iter().any(|port| port.frontends.contains(address));
        let withdrawn = had.iter().filter(|address| !is_kept(address) && is_owned(address));
        let id = now.and_then(|port| port.id);
        let is_led = |address: &L4Addr| self.realised.frontends.get(address).map(|entry| entry.service) == id;
        let added = has.iter().filter(|address| !(had.contains(address) || id.is_some() && is_led(address)));
        let change = AddressChange { added: added.copied().collect(), withdrawn: withdrawn.copied().collect() };
        (!change.added.is_empty() || !change.withdrawn.is_empty()).then(|| Box::new(change))
    }

    /// Replaces the service's claims. An address with `None` was claimed before.
    fn claim_all(&mut self, name: &ServiceName, mut claims: Vec<(L4Addr, Option<Claim>)>, now: Moment) {
        claims.sort_by_key(|(address, _)| *address);
        for claims in claims.chunk_by_mut(|a, b| a.0 == b.0) {
            let address = claims[0].0;
            // Most changes leave the claim as it is. Readers share the maps, so that each change of one copies nodes.
            let kept = match claims {
                [(_, Some(claim)), (_, None)] => self.rows.get(&address).filter(|row| row.has_only(claim)),
                _ => None,
            };
            let entry = match kept {
                Some(row) => row.entry(),
                None => self.claim(name, address, claims.iter_mut().filter_map(|(_, claim)| claim.take()), now),
            };
            if self.deferred.remove_address(address, &self.realised) {
                self.touched.frontends.push(address);
            }
            if entry.is_some_and(|entry| self.holds.is_held(entry.service)) {
                self.unsettled.insert(address);
            }
        }
    }

    /// Replaces the service's claims to the address and makes the resulting owner the desired one, which is returned.
    fn claim(
        &mut self,
        name: &ServiceName,
        address: L4Addr,
        claims: impl Iterator<Item = Claim>,
        now: Moment,
    ) -> Option<FrontendEntry> {
        let mut new_row = Arc::default();
        // At a start, almost all addresses are new. To search for changing takes longer.
        let is_new = !self.rows.contains_key(&address);
        let known = if is_new { None } else { self.rows.get_mut(&address) };
        let row = Arc::make_mut(known.unwrap_or(&mut new_row));
        let was_owned = row.owner().is_some();
        let was_claimed = row.claims().iter().any(|claim| claim.key.service == *name);
        let refused = refusals(row, name);
        self.conflicts.note_before(address, row);
        row.replace(name, claims, Incumbent::find(&address, &self.realised), now);
        self.conflicts.note_after(address, row);
        let is_refused = !refused.is_empty() || row.claims().iter().any(|claim| claim.target.is_err());
        let (entry, outside) = (row.entry(), row.outside());
        if entry.is_some() && !was_owned {
            row.status = RowStatus::ok(now);
        }
        let is_claimed = !row.claims().is_empty();
        if is_new && is_claimed {
            self.rows.insert(address, new_row);
        } else if !is_new && !is_claimed {
            self.rows.remove(&address);
        }
        if entry.is_none() {
            self.unsettled.remove(&address);
        }
        let before = match entry {
            Some(entry) => self.desired.frontends.insert(address, entry),
            None => self.desired.frontends.remove(&address),
        };
        let outside_before = match outside {
            Some(outside) => self.desired.outside.insert(address, outside),
            None => self.desired.outside.remove(&address),
        };
        if (before, outside_before) != (entry, outside) {
            self.touched.frontends.push(address);
            self.note_access((before, outside_before), (entry, outside));
            entry.into_iter().for_each(|entry| self.deferred.note_change(entry.service));
        }
        if is_refused {
            self.note_refusals(name, address, was_claimed, refused);
        }
        entry
    }

    /// Compares the service's refused claims to the address before and after the compilation. What a source reports first
    /// is no news; one that is not configured reports no end of it.
    fn note_refusals(&mut self, name: &ServiceName, address: L4Addr, was_claimed: bool, before: Refusals) {
        let is_news = |source| match self.config.sources.contains(&source) {
            true => self.event_recorder.is_recorded(source),
            false => was_claimed,
        };
        if self.table.owner(name).is_some_and(|(service, _)| is_news(service.source)) {
            let now = self.rows.get(&address).map(|row| refusals(row, name)).unwrap_or_default();
            self.event_recorder.note_refusals(address, before, &now);
        }
    }
}
