//! The readers' side: an immutable picture of the engine. Taking one stalls nobody, keeping one keeps nobody else from
//! going on. The rows that are built from it are in [`crate::explain`].

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use crate::claims::Row;
use crate::compile::guard::BackendRefusal;
use crate::compile::select;
use crate::config::EngineConfig;
use crate::datapath::MapError;
use crate::filter::Filter;
use crate::holds::{HeldPort, Holds};
use crate::model::addr::{Addr, Family, L4Addr};
use crate::model::moment::Moment;
use crate::model::service::{BackendState, PortKey, ServiceName, Source};
use crate::state::entries::{CANARIES, Desired, Realised, ServiceId};
use crate::state::moves::Moves;
use crate::state::owner::IdOwner;
use crate::state::remembered::Remembered;
use crate::table::{Facts, key_of};

/// An immutable picture of everything the owner knows, cheap to take and to keep.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When it was taken.
    pub at: Moment,
    /// What the kernel should hold.
    pub desired: Desired,
    /// What the kernel holds, as far as successful operations tell.
    pub realised: Realised,
    /// Whether every source had synced, and the first full reconcile after that was done.
    pub is_ready: bool,
    /// What tells whether sockets may have to move on.
    pub moves: Moves,
    /// What is desired, answered on those of the node's addresses that the kernel has: what a client meets.
    pub(crate) answering: Desired,
    pub(crate) failed_node_addrs: OrdMap<Addr, MapError>,
    pub(crate) config: Arc<EngineConfig>,
    pub(crate) facts: Facts,
    pub(crate) rows: OrdMap<L4Addr, Arc<Row>>,
    pub(crate) owners: OrdMap<ServiceId, IdOwner>,
    pub(crate) holds: Holds,
    /// Sources that were there before the start and are not configured.
    pub(crate) absent: BTreeSet<Source>,
}

/// Whose rows of `/frontends` may differ between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Differs {
    /// Something changed that every row may depend on.
    All,
    /// These services' rows and nobody else's.
    Services(BTreeSet<ServiceName>),
}

impl Snapshot {
    /// What the sources say.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether the kernel holds any frontend but the canaries.
    pub fn serves_anything(&self) -> bool {
        self.realised.frontends.len() > CANARIES.len()
    }

    /// Whether nodelb itself listens on the port of this NodePort.
    pub fn is_own_port(&self, nodeport: L4Addr) -> bool {
        self.config.guard.own_port(nodeport).is_some()
    }

    /// What a service id stands for, as `shop/web:http/TCP/IPv4`; `None` for an id nobody owns.
    pub fn service_of(&self, id: ServiceId) -> Option<String> {
        if id == ServiceId::CANARY {
            return Some("canary".into());
        }
        self.owners.get(&id).map(|owner| owner.key.to_string())
    }

    /// Every service port that has an id, in the order of the ids.
    pub fn ports(&self) -> impl Iterator<Item = (ServiceId, &Arc<PortKey>)> {
        self.owners.iter().map(|(id, owner)| (*id, &owner.key))
    }

    /// The service ports whose last known backends are held although their source emptied them, by id.
    pub fn held(&self) -> impl Iterator<Item = &Arc<HeldPort>> {
        self.holds.all_announced()
    }

    /// What to keep for the time after a reboot: the backends of every port of a protected service, held or not, and of
    /// those that were remembered before and that no source has told of yet. In no particular order, but in the same
    /// order for the same content as long as ids stay. To be told to the next engine by
    /// [`crate::change::Change::Remember`].
    pub fn remembered(&self) -> Vec<Remembered> {
        self.holds.remembered(&self.owners, &self.desired)
    }

    /// The service ports without a backend that a new connection can reach, on this node or elsewhere. In the order of
    /// their ids.
    pub fn empty_ports(&self) -> impl Iterator<Item = &Arc<PortKey>> {
        let empty = self.desired.services.iter().filter(|(_, entry)| !entry.has_backends);
        empty.filter_map(|(id, _)| Some(&self.owners.get(id)?.key))
    }

    /// The addresses the service claims, by whichever source's description counts.
    pub(crate) fn addresses_of(&self, name: &ServiceName) -> BTreeSet<L4Addr> {
        let ports = self.facts.owner(name).into_iter().flat_map(|(service, _)| &service.ports);
        ports.flat_map(|port| port.frontends.iter().map(|frontend| frontend.l4(port.protocol))).collect()
    }

    /// The names a report is about, in order.
    pub(crate) fn names(&self, filter: &Filter) -> Vec<&ServiceName> {
        match &filter.service {
            Some(name) => self.facts.claims(name).first().map(|service| &service.name).into_iter().collect(),
            None => self.facts.names().collect(),
        }
    }

    /// Whether NodePorts of the family are answered on any address.
    pub(crate) fn answers_nodeports(&self, family: Family) -> bool {
        self.desired.node_addrs.iter().any(|addr| addr.family() == family)
    }

    pub(crate) fn check(&self, backend: L4Addr, source: Source) -> Result<(), BackendRefusal> {
        self.config.guard.check_backend(backend, source, self.facts.apiservers())
    }

    /// The addresses of the node that NodePorts are not answered on because the kernel did not take them, each with why.
    pub fn unanswered_node_addrs(&self) -> impl Iterator<Item = (Addr, &MapError)> {
        let failed = self.failed_node_addrs.iter().map(|(addr, error)| (*addr, error));
        failed.filter(|(addr, _)| self.desired.node_addrs.contains(addr))
    }

    /// Whether every source has told all it has. Before that nothing that is missing is known to be gone.
    pub fn is_complete(&self) -> bool {
        let is_told = |source: &Source| self.facts.is_synced(*source) && self.facts.incomplete(*source).is_none();
        self.config.sources.iter().all(is_told)
    }

    /// How many addresses on this node the service can answer from: those of its ready backends of the family, each once
    /// whatever its ports (kube-proxy's `LocalReadyEndpoints`). Terminating backends do not count even while they are
    /// used, so that load balancers turn away in time; nor do those that nodelb refuses to use.
    pub fn local_ready(&self, name: &ServiceName, family: Family) -> usize {
        let Some((service, slices)) = self.facts.owner(name) else { return 0 };
        let node = &*self.facts.node().name;
        let mut found: BTreeSet<Addr> = BTreeSet::new();
        for port in &service.ports {
            let offered = slices.iter().flat_map(|slice| &slice.ports);
            let of_port = offered.filter(|offered| offered.protocol == port.protocol && offered.name == port.name);
            let ready = of_port.flat_map(|offered| &offered.backends).filter(|backend| {
                backend.addr.family() == family
                    && backend.node.as_deref() == Some(node)
                    && select::effective_state(backend) == BackendState::Active
                    && self.check(L4Addr::new(backend.addr, backend.port, port.protocol), service.source).is_ok()
            });
            found.extend(ready.map(|backend| backend.addr));
        }
        found.len()
    }

    /// Whose rows may read differently now than they did in `before`. May name services whose rows are the same, never
    /// leaves one out whose rows are not.
    pub fn differs_since(&self, before: &Self) -> Differs {
        let is_everybodys = !Arc::ptr_eq(&self.config, &before.config)
            || self.desired.node_addrs != before.desired.node_addrs
            || self.facts.differs_for_all(&before.facts);
        if is_everybodys {
            return Differs::All;
        }
        let mut named = BTreeSet::new();
        for item in before.rows.diff(&self.rows) {
            let rows = sides(&item).into_iter().flatten();
            named.extend(rows.flat_map(|row| row.claims()).map(|claim| claim.key.service.clone()));
        }
        for item in before.desired.services.diff(&self.desired.services) {
            let id = key_of(&item);
            let owners = [before.owners.get(id), self.owners.get(id)].into_iter().flatten();
            named.extend(owners.map(|owner| owner.key.service.clone()));
        }
        named.extend(self.facts.names_that_differ(&before.facts));
        Differs::Services(named)
    }
}

fn sides<'a, K, V>(item: &DiffItem<'a, 'a, K, V>) -> [Option<&'a V>; 2] {
    match item {
        DiffItem::Add(_, new) => [None, Some(*new)],
        DiffItem::Remove(_, old) => [Some(*old), None],
        DiffItem::Update { old: (_, old), new: (_, new) } => [Some(*old), Some(*new)],
    }
}

#[cfg(test)]
mod tests;
