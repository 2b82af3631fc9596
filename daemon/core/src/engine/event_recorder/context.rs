//! The information that events are assembled from: the engine at the end of a round.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use imbl::OrdMap;

use super::draft::{Draft, Pending};
use crate::claims::Row;
use crate::compile::guard::Refusal;
use crate::config::EngineConfig;
use crate::datapath::MapError;
use crate::engine::Round;
use crate::engine::compiled::Compiled;
use crate::engine::failures::Failures;
use crate::engine::recall::Stood;
use crate::history::{Addresses, Event, Kernel, What};
use crate::model::addr::L4Addr;
use crate::model::cause::Trigger;
use crate::model::service::{PortKey, Service, ServiceName, Source};
use crate::state::entries::{Desired, EntryKey, Realised, ServiceId};
use crate::state::owner::hash_of;
use crate::table::Table;

pub(in crate::engine) struct Context<'a> {
    pub(in crate::engine) config: &'a EngineConfig,
    pub(in crate::engine) table: &'a Table,
    pub(in crate::engine) rows: &'a OrdMap<L4Addr, Arc<Row>>,
    pub(in crate::engine) compiled: &'a HashMap<ServiceName, Compiled, RandomState>,
    pub(in crate::engine) desired: &'a Desired,
    pub(in crate::engine) realised: &'a Realised,
    pub(in crate::engine) failures: &'a Failures,
    pub(in crate::engine) round: &'a Round,
    /// The conflicts and holds that the previous run has reported.
    pub(in crate::engine) stood: &'a Stood,
    /// Whether nothing of the maps at the start is in doubt.
    pub(in crate::engine) is_pruned: bool,
}

impl Context<'_> {
    /// Whether the maps contain the changed list.
    pub(super) fn kernel_of(&self, draft: &Draft) -> Kernel {
        let is_written = || draft.after.is_some() && self.realised.services.get(&draft.id) == draft.after.as_ref();
        let withdrawn = draft.withdrawn().iter().map(|address| EntryKey::Frontend(*address));
        let mut keys = std::iter::once(EntryKey::Service(draft.id)).chain(withdrawn);
        match keys.find_map(|key| self.failures.get(key)) {
            Some(MapError::Resting) => Kernel::Deferred,
            Some(error) => Kernel::Failed(error.to_string().into()),
            None if (self.is_realised(draft.id) || is_written())
                && self.are_addresses_done(draft.id, &draft.key, draft.access.is_some(), draft.withdrawn()) =>
            {
                Kernel::Done
            }
            None => Kernel::Deferred,
        }
    }

    /// Whether the maps contain what an event says about the addresses of the list.
    fn are_addresses_done(&self, id: ServiceId, key: &PortKey, is_access: bool, withdrawn: &[L4Addr]) -> bool {
        (!is_access || self.is_access_realised(id, key)) && self.are_gone(id, withdrawn)
    }

    /// Whether none of the addresses that the port no longer has leads to its list, unless it has the address again.
    fn are_gone(&self, id: ServiceId, withdrawn: &[L4Addr]) -> bool {
        let stays = |address: &L4Addr| self.realised.frontends.get(address).is_some_and(|entry| entry.service == id);
        withdrawn.iter().all(|at| !stays(at) || self.desired.agrees(self.realised, EntryKey::Frontend(*at)))
    }

    /// Whether the maps contain who may connect to the addresses of the list, and which backends these clients get.
    fn is_access_realised(&self, id: ServiceId, key: &PortKey) -> bool {
        let agrees = |entry| self.desired.agrees(self.realised, entry);
        self.addresses_of(id, key).all(|at| agrees(EntryKey::Frontend(at)) && agrees(EntryKey::Outside(at)))
            && self.desired.ranges_of(id).eq(self.realised.ranges_of(id))
    }

    /// The addresses that should lead to the list.
    fn addresses_of(&self, id: ServiceId, key: &PortKey) -> impl Iterator<Item = L4Addr> {
        let ports = self.compiled.get(&key.service).into_iter().flat_map(|compiled| &compiled.ports);
        let claimed = ports.filter(move |port| port.id == Some(id)).flat_map(|port| &port.frontends).copied();
        claimed.filter(move |address| self.desired.frontends.get(address).is_some_and(|entry| entry.service == id))
    }

    /// Whether the maps contain by now what an event said that they lack.
    pub(super) fn is_done(&self, id: ServiceId, pending: &Pending) -> bool {
        let Pending { key, is_access, withdrawn } = pending;
        self.is_realised(id) && self.are_addresses_done(id, key, *is_access, withdrawn)
    }

    pub(super) fn is_realised(&self, id: ServiceId) -> bool {
        self.realised.services.get(&id) == self.desired.services.get(&id)
    }

    /// The backends in the port's slices that may get no connection.
    pub(super) fn refused_backends(&self, key: &PortKey) -> Addresses {
        let Some((service, slices)) = self.table.owner(&key.service) else { return Addresses::default() };
        let ports = slices.iter().flat_map(|slice| slice.ports_of(&key.port, key.protocol));
        let backends = ports.flat_map(|port| &port.backends).filter(|backend| backend.addr.family() == key.family);
        let addresses = backends.map(|backend| L4Addr::new(backend.addr, backend.port, key.protocol));
        let admits = |at: &L4Addr| self.config.guard.admits_backend(*at, service.source, self.table.apiservers());
        let refused: BTreeSet<L4Addr> = addresses.filter(|at| at.port > 0 && !admits(at)).collect();
        refused.into_iter().collect()
    }

    pub(super) fn healed(&self, key: &Arc<PortKey>) -> Event {
        Event { kernel: Kernel::Done, ..self.about_port(key, What::Healed) }
    }

    pub(super) fn about_address(&self, key: &Arc<PortKey>, what: What, address: L4Addr, detail: String) -> Event {
        let (frontends, detail) = ([address].into_iter().collect(), Some(detail.into()));
        Event { frontends, detail, ..self.about_port(key, what) }
    }

    /// An event that the description of the service has caused.
    pub(super) fn about_port(&self, key: &Arc<PortKey>, what: What) -> Event {
        let described = self.described(key);
        let cause = described.map(|service| Trigger::Service(Arc::clone(service)).cause()).unwrap_or_default();
        Event::for_port(key, described.map(|service| service.source), what, cause)
    }

    /// Whether connections to the address still reach backends of the port's service, as before the start.
    pub(super) fn is_served(&self, address: L4Addr, key: &PortKey) -> bool {
        !self.is_pruned && self.realised.serves(address, hash_of(&key.service))
    }

    /// Why the port's claim to the address is refused, if it is.
    pub(super) fn refusal(&self, address: L4Addr, key: &PortKey) -> Option<&Arc<Refusal>> {
        let claims = self.rows.get(&address).map(|row| row.claims()).unwrap_or_default();
        claims.iter().find(|claim| *claim.key == *key)?.target.as_ref().err()
    }

    pub(super) fn owner_of(&self, address: L4Addr) -> Option<&Arc<PortKey>> {
        self.rows.get(&address)?.owner().map(|(claim, _)| &claim.key)
    }

    /// The first port of the service that has an address.
    pub(super) fn first_port(&self, name: &ServiceName) -> Option<Arc<PortKey>> {
        let (service, _) = self.table.owner(name)?;
        let mut ports = service.ports.iter().filter_map(|port| Some((port, port.frontends.first()?)));
        let (port, frontend) = ports.next()?;
        let (service, family) = (name.clone(), frontend.addr.family());
        Some(Arc::new(PortKey { service, port: Arc::clone(&port.name), protocol: port.protocol, family }))
    }

    pub(super) fn described(&self, key: &PortKey) -> Option<&Arc<Service>> {
        self.table.owner(&key.service).map(|(service, _)| service)
    }

    pub(super) fn source_of(&self, key: &PortKey) -> Option<Source> {
        self.described(key).map(|service| service.source)
    }
}
