//! What the kernel held when the engine came, as far as it still matters: none of it is deleted, or emptied, before it is
//! known that it may be. Which of it that is, is decided in `absent.rs`.

use std::collections::BTreeSet;

use imbl::OrdSet;

use crate::model::addr::{Addr, L4Addr};
use crate::state::entries::{Desired, Realised, ServiceId};
use crate::state::ids::ServiceIds;

/// Shrinks as sources describe what is in it, and is empty from the first prune on that leaves nothing in doubt.
#[derive(Debug, Default)]
pub(super) struct AtStart {
    pub(super) realised: Realised,
    /// The frontends of it by the entry to which the kernel leads them now.
    leading: BTreeSet<(ServiceId, L4Addr)>,
    /// Node addresses: NodePorts go on being answered on those of them that the node still has until Kubernetes has said
    /// which are the node's. Empty from then on.
    pub(super) node_addrs: OrdSet<Addr>,
    /// Entries of it, and of another source, that no source which has synced has made its own: they are not emptied either.
    pub(super) inherited: BTreeSet<ServiceId>,
}

impl AtStart {
    /// Beside a kernel with this content. The node addresses count only if Kubernetes is asked for the node's.
    pub(super) fn new(realised: &Realised, is_kubernetes_asked: bool) -> Self {
        Self {
            realised: realised.clone(),
            leading: realised.frontends.iter().map(|(a, entry)| (entry.service, *a)).collect(),
            node_addrs: if is_kubernetes_asked { realised.node_addrs.clone() } else { OrdSet::new() },
            inherited: realised.services.keys().copied().filter(|id| *id != ServiceId::CANARY).collect(),
        }
    }

    /// The kernel leads the address to another entry than before, or to none.
    pub(super) fn note_lead(&mut self, address: L4Addr, before: Option<ServiceId>, now_at: Option<ServiceId>) {
        if self.realised.frontends.contains_key(&address) {
            before.map(|id| self.leading.remove(&(id, address)));
            now_at.map(|id| self.leading.insert((id, address)));
        }
    }

    /// The frontends of the start that the kernel leads to the entry now.
    pub(super) fn leading_to(&self, id: ServiceId) -> impl Iterator<Item = &L4Addr> {
        self.leading.range((id, L4Addr::FIRST)..=(id, L4Addr::LAST)).map(|(_, address)| address)
    }

    /// Every source has told what it can. Of what is wanted now, and leads to no undescribed service, the source reports
    /// the end.
    pub(super) fn forget_described(&mut self, desired: &Desired, realised: &Realised, ids: &ServiceIds) {
        let is_described = |address: &&L4Addr| {
            let held = realised.frontends.get(*address);
            desired.frontends.contains_key(*address) && held.is_none_or(|held| ids.orphan(held.service).is_none())
        };
        for address in self.realised.frontends.keys().filter(is_described).copied().collect::<Vec<_>>() {
            self.realised.frontends.remove(&address);
            if let Some(held) = realised.frontends.get(&address) {
                self.leading.remove(&(held.service, address));
            }
        }
        let is_described = |id: &&ServiceId| desired.services.contains_key(*id);
        for id in self.realised.services.keys().filter(is_described).copied().collect::<Vec<_>>() {
            self.realised.services.remove(&id);
        }
    }

    /// Nothing of it is in doubt any more.
    pub(super) fn clear(&mut self) {
        self.inherited.clear();
        self.realised = Realised::default();
        self.leading.clear();
    }
}
