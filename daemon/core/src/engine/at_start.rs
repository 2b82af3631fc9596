//! The still relevant content of the maps at the start. Nothing of it is deleted or emptied until that is known to be
//! safe; `absent.rs` contains the rule.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use imbl::OrdSet;

use super::Engine;
use super::event_recorder::Draft;
use crate::holds::Emptied;
use crate::model::addr::{Addr, L4Addr};
use crate::model::cause::{Checked, Trigger};
use crate::model::drain::{self, Drain, DrainCause, Drained};
use crate::model::service::ServiceName;
use crate::state::entries::{EntryKey, Realised, ServiceEntry, ServiceId, backends_of};
use crate::table::Facts;

/// The relevant content of the maps at the start. It shrinks as sources describe it, and is empty after the first prune
/// that leaves nothing in doubt.
#[derive(Debug, Default)]
pub(super) struct AtStart {
    pub(super) realised: Realised,
    /// The frontends of that content, by the entry that they point at now.
    leading: BTreeSet<(ServiceId, L4Addr)>,
    /// The node addresses at the start. NodePorts are still answered on those of them that the node has until
    /// Kubernetes has reported the addresses of the node; from then on the set is empty.
    pub(super) node_addrs: OrdSet<Addr>,
    /// Entries of that content that belonged to another source and that no synced source has taken over yet. They are
    /// not emptied either.
    pub(super) inherited: BTreeSet<ServiceId>,
    /// The backends that checks and drains of this run have kept out of a list.
    kept_out: BTreeMap<ServiceName, BTreeSet<Drained>>,
}

impl AtStart {
    /// Creates the record for maps with this content. The node addresses are kept only if Kubernetes is a source of the
    /// node's addresses.
    pub(super) fn new(realised: &Realised, is_kubernetes_asked: bool) -> Self {
        Self {
            realised: realised.clone(),
            leading: realised.frontends.iter().map(|(a, entry)| (entry.service, *a)).collect(),
            node_addrs: if is_kubernetes_asked { realised.node_addrs.clone() } else { OrdSet::new() },
            inherited: realised.services.keys().copied().filter(|id| *id != ServiceId::CANARY).collect(),
            kept_out: BTreeMap::new(),
        }
    }

    /// Records the backends of the service that checks or drains keep out of a list of the start.
    pub(super) fn note_kept_out(&mut self, name: &ServiceName, facts: &Facts) {
        if self.inherited.is_empty() {
            return;
        }
        let of_check = |(addr, port): &(Addr, u16)| Drained { addr: *addr, port: Some(*port) };
        let failed = facts.quarantine(name).into_iter().flat_map(|failed| failed.keys().map(of_check));
        let mut out = failed.chain(facts.drains(name).into_iter().flat_map(|drains| drains.keys().copied())).peekable();
        if out.peek().is_some() {
            self.kept_out.entry(name.clone()).or_default().extend(out);
        }
    }

    pub(super) fn was_kept_out(&self, name: &ServiceName, backend: (Addr, u16)) -> bool {
        self.kept_out.get(name).is_some_and(|all| all.iter().any(|out| out.includes(backend)))
    }

    /// Records that the address points at a different entry than before, or to none.
    pub(super) fn note_lead(&mut self, address: L4Addr, before: Option<ServiceId>, now_at: Option<ServiceId>) {
        if self.realised.frontends.contains_key(&address) {
            before.map(|id| self.leading.remove(&(id, address)));
            now_at.map(|id| self.leading.insert((id, address)));
        }
    }

    /// The frontends from the start that point at this entry now.
    pub(super) fn leading_to(&self, id: ServiceId) -> impl Iterator<Item = &L4Addr> {
        self.leading.range((id, L4Addr::FIRST)..=(id, L4Addr::LAST)).map(|(_, address)| address)
    }

    /// Drops an address that has reached what its source describes.
    fn forget_address(&mut self, address: L4Addr, leads_to: ServiceId) {
        self.realised.frontends.remove(&address);
        self.leading.remove(&(leads_to, address));
    }

    /// Drops everything: nothing is in doubt any more.
    pub(super) fn clear(&mut self) {
        self.inherited.clear();
        self.kept_out.clear();
        self.realised = Realised::default();
        self.leading.clear();
    }
}

impl Engine {
    /// Drops what is as a source describes it that has reported what it can: if it is not desired later, the source says so.
    pub(super) fn forget_confirmed(&mut self) {
        let addresses: Vec<L4Addr> = self.at_start.realised.frontends.keys().copied().collect();
        self.forget_confirmed_addresses(&addresses);
        let (desired, realised) = (&self.desired.services, &self.realised.services);
        let is_described = |id: &ServiceId| desired.contains_key(id) && self.is_confirmed(*id);
        let lists: Vec<ServiceId> = self.at_start.realised.services.keys().copied().filter(is_described).collect();
        let is_given = |id: &ServiceId| desired.contains_key(id) && desired.get(id) == realised.get(id);
        let is_certain = |id: &ServiceId| self.may_go(*id) || self.is_confirmed(*id) && is_given(id);
        let waits = |id: &ServiceId| self.ids.orphan(*id).is_some() || !is_certain(id);
        self.at_start.inherited = self.at_start.inherited.iter().copied().filter(waits).collect();
        lists.iter().for_each(|id| drop(self.at_start.realised.services.remove(id)));
    }

    /// The same of those among these addresses.
    pub(super) fn forget_confirmed_addresses(&mut self, addresses: &[L4Addr]) {
        if self.at_start.realised.frontends.is_empty() {
            return;
        }
        for address in addresses {
            let wanted = self.desired.frontends.get(address).map(|wanted| wanted.service);
            let is_there = |key| self.desired.agrees(&self.realised, key);
            if let Some(wanted) = wanted
                && self.at_start.realised.frontends.contains_key(address)
                && is_there(EntryKey::Frontend(*address))
                && is_there(EntryKey::Outside(*address))
                && self.is_confirmed(wanted)
            {
                self.at_start.forget_address(*address, wanted);
            }
        }
    }

    /// Takes note of a list that replaces one in the maps. If that was found at the start, its source has taken it over
    /// unless only the results of checks differ.
    pub(super) fn note_replaced(&mut self, id: ServiceId, entry: &Arc<ServiceEntry>) {
        let is_checked = self.is_unreported(id);
        let had_backends = self.realised.services.get(&id).is_some_and(|before| before.has_backends);
        let is_emptied = had_backends && !entry.has_backends;
        let is_loss = is_emptied && self.round.emptied.iter().all(|lost| lost.id != id);
        let is_news = self.event_recorder.is_news_of_found(id);
        let waiting = self.event_recorder.waiting_causes.remove(&id);
        if let Some(draft) = (is_loss || is_news).then(|| self.waited_change(id, entry, waiting)).flatten() {
            if is_loss {
                let known = self.event_recorder.kept_losses.remove(&id);
                let cause = known.unwrap_or_else(|| draft.trigger.cause());
                let key = Arc::clone(&draft.key);
                self.round.emptied.push(Emptied { id, key, cause, is_kept: false });
            }
            if is_news {
                self.event_recorder.note(|| draft, is_emptied);
            }
        }
        if !is_checked {
            self.at_start.inherited.remove(&id);
            if self.is_source_synced(id) {
                self.event_recorder.forget_found(id);
            }
        }
    }

    /// A change to a list that nodelb did not see, or that had to wait. Unless this run knows its cause, that is the latest
    /// object that describes the list.
    fn waited_change(&self, id: ServiceId, entry: &Arc<ServiceEntry>, cause: Option<Trigger>) -> Option<Draft> {
        let before = self.realised.services.get(&id).filter(|before| !before.is_same_to_clients(entry))?;
        let owner = self.owners.get(&id)?;
        let (service, slices) = self.table.owner(&owner.key.service)?;
        let cause = cause.or_else(|| self.cause_of_loss(&owner.key.service, (before, entry)));
        let is_of_slices = before.cluster != entry.cluster || before.local != entry.local;
        let latest = || slices.iter().max_by_key(|slice| slice.origin.written).cloned().map(Trigger::Slice);
        let trigger = cause
            .or_else(|| latest().filter(|_| is_of_slices))
            .unwrap_or_else(|| Trigger::Service(Arc::clone(service)));
        let change = (Some(Arc::clone(before)), Some(Arc::clone(entry)));
        Some(Draft::new((id, &owner.key, owner.source), change, trigger))
    }

    /// The check or drain of the backends that a list has lost, if these explain the difference.
    fn cause_of_loss(&self, name: &ServiceName, (before, after): (&ServiceEntry, &ServiceEntry)) -> Option<Trigger> {
        let (quarantine, drains) = (self.table.quarantine(name), self.table.drains(name));
        let cause = |at: L4Addr| {
            let backend = (at.addr, at.port);
            let failed = quarantine.and_then(|failed| failed.get(&backend));
            let failed = failed.map(|error| Trigger::Checks(Checked::Failed(backend, Arc::clone(error))));
            let drain = || drains.and_then(|drains| drain::find(drains, backend));
            let socket = SocketAddr::new(at.addr.ip(), at.port);
            let begun = |drain: &Drain| DrainCause::Begun(format!("drain of {socket} by {}", drain.by).into());
            let drained = || [Drained { addr: at.addr, port: Some(at.port) }].into();
            failed.or_else(|| drain().map(|drain| Trigger::Drain(begun(drain), drained())))
        };
        let lists = |entry: &ServiceEntry| backends_of(&entry.cluster).map(|(at, _)| at).collect::<BTreeSet<L4Addr>>();
        let (before, after) = (lists(before), lists(after));
        let causes: Option<Vec<Trigger>> = before.difference(&after).map(|at| cause(*at)).collect();
        causes.filter(|_| after.is_subset(&before)).and_then(|causes| causes.into_iter().next())
    }
}
