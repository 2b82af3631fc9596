//! Snapshots, which are immutable views of the engine for readers. Taking or keeping a snapshot blocks no other task.
//! nodelb-report builds rows from them.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;

use crate::awaited::{Awaited, Sources};
use crate::before::{Before, Lasting, Statuses, as_before};
use crate::claims::{Claim, Row, RowStatus};
use crate::compile::guard::BackendRefusal;
use crate::compile::plan::PortPlan;
use crate::compile::select::Checks;
use crate::compile::{CompileContext, compile};
use crate::config::EngineConfig;
use crate::datapath::MapError;
use crate::degraded::{Degraded, DegradedPorts};
use crate::holds::{HeldPort, Holds};
use crate::model::addr::{Addr, Family, L4Addr};
use crate::model::drain::{self, Drains};
use crate::model::health_check::all_failed;
use crate::model::moment::Moment;
use crate::model::service::{BackendState, PortKey, Service, ServiceName, Source};
use crate::state::entries::{CANARIES, Desired, EntryKey, FrontendEntry, MapState, Realised, ServiceId};
use crate::state::owner::{IdOwner, hash_of};
use crate::state::remembered::Remembered;
use crate::state::slot::Slot;
use crate::state::stale_generation::StaleGeneration;
use crate::state::status::Status;
use crate::table::Facts;

/// An immutable view of the whole state of the owner task. It is cheap to take and to keep.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub at: Moment,
    pub desired: Desired,
    /// What the maps contain according to the successful operations.
    pub realised: Realised,
    /// Whether every source had synced and the first full reconcile after that was complete.
    pub is_ready: bool,
    /// Whether every source had once reported everything. Since then, nothing in the maps is from before the start.
    pub was_pruned: bool,
    pub stale_generation: StaleGeneration,
    /// The desired state, except that NodePorts are answered only on those node addresses that the maps contain. This
    /// is the state that clients see.
    pub answering: Desired,
    /// The entries that the maps did not accept, each with the error.
    pub failures: OrdMap<EntryKey, MapError>,
    pub config: Arc<EngineConfig>,
    pub facts: Facts,
    /// The claims to each address, and their state.
    pub rows: OrdMap<L4Addr, Arc<Row>>,
    pub owners: OrdMap<ServiceId, IdOwner>,
    pub(crate) holds: Holds,
    pub(crate) before: Before,
    /// The ports without a healthy backend.
    pub degraded: DegradedPorts,
    /// Those of which some clients get the backends on this node alone, and none of these is healthy.
    pub degraded_here: DegradedPorts,
    /// Sources that were used before the start and are not configured.
    pub absent: BTreeSet<Source>,
    /// Service ports without rings, because the slots are full; each with the number of slots that it would take with them.
    pub ringless: OrdMap<ServiceId, usize>,
}

impl Snapshot {
    /// Whether the maps contain any frontend except the canaries.
    pub fn serves_anything(&self) -> bool {
        self.realised.frontends.len() > CANARIES.len()
    }

    /// Whether nodelb serves this address, for clients on this node: as a frontend, or as a NodePort at an address of
    /// the node.
    pub fn is_frontend(&self, address: L4Addr) -> bool {
        let is_served = |address: &L4Addr| self.rows.get(address).is_some_and(|row| row.entry().is_some());
        is_served(&address) || is_served(&address.wildcard()) && self.facts.nodeport_addresses().contains(&address.addr)
    }

    /// The service port with this id, as `shop/web:http/TCP/IPv4`; `None` for an id without an owner.
    pub fn service_of(&self, id: ServiceId) -> Option<String> {
        if id == ServiceId::CANARY {
            return Some("canary".into());
        }
        self.owners.get(&id).map(|owner| owner.key.to_string())
    }

    /// Every service port with an id, in the order of the ids.
    pub fn ports(&self) -> impl Iterator<Item = (ServiceId, &Arc<PortKey>)> {
        self.owners.iter().map(|(id, owner)| (*id, &owner.key))
    }

    /// The service ports without a healthy backend, in the order of their ids, except those of [`Self::is_kept`].
    pub fn degraded(&self) -> impl Iterator<Item = (&Arc<PortKey>, &Arc<Degraded>)> {
        let degraded = self.degraded.iter().filter(|(id, _)| !self.is_kept(*id));
        degraded.filter_map(|(id, degraded)| Some((&self.owners.get(&id)?.key, degraded)))
    }

    /// The status of the claim at this position of the row.
    pub fn status_of(&self, row: &Row, place: usize, address: L4Addr) -> RowStatus {
        let mut status = row.status_of(place, address);
        let claim = &row.claims()[place];
        if self.still_serves(row, place, address) {
            let text = as_before(&status.error.unwrap_or_default());
            (status.status, status.error) = (Status::Kept, Some(text.into()));
        }
        if status.status == Status::Kept {
            let before = self.before.find(address, Some(hash_of(&claim.key.service)), true);
            status.since = before.map_or(status.since, |before| before.since);
            if self.has_only_failed(claim, address) {
                let degraded = claim.target.as_ref().ok().and_then(|id| self.degraded_for(claim).get(*id));
                status.status = Status::LastResort;
                status.since = degraded.map_or(status.since, |degraded| degraded.since);
            }
        }
        let Ok(id) = claim.target else { return status };
        if !matches!(status.status, Status::Ok | Status::Held) {
            return status;
        }
        if let Some(Degraded { status: worse, since, .. }) = self.degraded_for(claim).get(id).map(|it| &**it) {
            let is_held = status.status == Status::Held;
            (status.status, status.since) = (*worse, if is_held { *since } else { status.since.max(*since) });
            if *worse == Status::NoBackends && !is_held {
                status.error = self.source_problem(&claim.key.service).map(Arc::from);
            }
        } else {
            // What was wrong with all backends was also wrong with those on this node.
            let recovered = [&self.degraded, self.degraded_for(claim)].map(|ports| ports.recovered(id));
            status.since = recovered.into_iter().flatten().fold(status.since, Moment::max);
        }
        status
    }

    /// Whether all backends that the maps contain from before the start have failed their health checks.
    fn has_only_failed(&self, claim: &Claim, address: L4Addr) -> bool {
        let Some(failed) = self.facts.quarantine(&claim.key.service) else { return false };
        let view =
            self.realised.service_at(address).map(|service| service.view(claim.inside_local)).unwrap_or_default();
        all_failed(view.iter().map(|slot| slot.addr), failed)
    }

    /// Why the source of the service cannot tell its current backends, such as `DNS A record of web.example.com:
    /// 192.0.2.53:53 answers SERVFAIL`; `None` if it can.
    pub fn source_problem(&self, service: &ServiceName) -> Option<String> {
        self.unknown_backends(service).map(|(object, why)| format!("{object}: {why}"))
    }

    /// The object that names backends of the service that its source cannot tell, such as a DNS record, and why.
    pub fn unknown_backends(&self, service: &ServiceName) -> Option<(&str, &str)> {
        let (_, slices) = self.facts.owner(service)?;
        slices.iter().find_map(|slice| Some((&*slice.origin.object, slice.problem.as_deref()?)))
    }

    /// The ports without a healthy backend for clients on this node at the address of the claim.
    fn degraded_for(&self, claim: &Claim) -> &DegradedPorts {
        if claim.inside_local { &self.degraded_here } else { &self.degraded }
    }

    /// Whether new connections of clients on this node to the address reach a backend of the claim's service, although the
    /// claim is refused or the address belongs to another: what the maps contain from before the start stays until every
    /// source has reported everything.
    pub fn still_serves(&self, row: &Row, place: usize, address: L4Addr) -> bool {
        let (before, claim) = (&row.claims()[..place], &row.claims()[place]);
        let is_denied = claim.target.is_err() || place > 0;
        let is_first = before.iter().all(|before| before.key.service != claim.key.service);
        let is_kept = is_denied && is_first && !self.is_complete();
        is_kept && self.realised.serves(address, hash_of(&claim.key.service))
    }

    /// Whether the maps have the address for a service that does not claim it now, so that its claims wait.
    pub fn stays_with_another(&self, row: &Row, address: L4Addr) -> bool {
        let actual = self.realised.service_at(address).and_then(|service| service.tag);
        actual.is_some_and(|tag| row.claims().iter().all(|claim| hash_of(&claim.key.service) != tag.service))
    }

    /// The addresses that the maps contain from before the start for services that do not claim them now, because a source
    /// is no longer configured or has not reported everything yet: [`Status::Kept`], or what they were without healthy
    /// backends; and since when this is so.
    pub fn kept(&self) -> impl Iterator<Item = (L4Addr, &FrontendEntry, Lasting)> {
        let is_claimed = |address: &L4Addr| {
            let row = self.rows.get(address).filter(|row| !row.claims().is_empty());
            row.is_some_and(|row| {
                let mut places = 0..row.claims().len();
                (row.claims()[0].target.is_ok() && !self.stays_with_another(row, *address))
                    || places.any(|place| self.still_serves(row, place, *address))
            })
        };
        // Without any, nothing is searched.
        let is_any = !self.absent.is_empty() || !self.is_complete();
        let of_others = is_any.then(|| self.realised.frontends.iter()).into_iter().flatten();
        let kept = of_others.filter(move |(address, entry)| entry.service != ServiceId::CANARY && !is_claimed(address));
        kept.map(|(address, entry)| {
            let is_usable = self.realised.reaches_backends(*address, entry.service);
            let tag = self.realised.services.get(&entry.service).and_then(|entry| entry.tag);
            let before = self.before.find(*address, tag.map(|tag| tag.service), is_usable);
            let status = match before {
                _ if !is_usable => Status::NoBackends,
                Some(before) if before.status == Status::LastResort => Status::LastResort,
                _ => Status::Kept,
            };
            (*address, entry, Lasting { status, since: before.map_or(self.before.start, |before| before.since) })
        })
    }

    /// The statuses for the next run, which passes them to [`Engine::recall`](crate::engine::Engine::recall). Those that
    /// this run does not know yet are as the previous run had them.
    pub fn statuses(&self) -> Statuses {
        let mut statuses = Statuses::new();
        self.rows.keys().for_each(|address| self.add_statuses(*address, &mut statuses));
        statuses.extend(self.before.iter().map(|(key, before)| (*key, *before)));
        statuses
    }

    pub(crate) fn add_statuses(&self, address: L4Addr, statuses: &mut Statuses) {
        let Some(row) = self.rows.get(&address) else { return };
        // The first claim of a service decides.
        for (place, claim) in row.claims().iter().enumerate().rev() {
            let RowStatus { status, since, .. } = self.status_of(row, place, address);
            if !matches!(status, Status::Kept | Status::Pending) {
                statuses.insert((address, hash_of(&claim.key.service)), Lasting { status, since });
            }
        }
    }

    /// The names of the service ports for the next run, which passes them to
    /// [`Engine::recall_ports`](crate::engine::Engine::recall_ports).
    pub fn port_names(&self) -> impl Iterator<Item = &Arc<PortKey>> {
        self.before.ports.values().chain(self.owners.values().map(|owner| &owner.key))
    }

    /// The service port that had the entry before the start, if the previous run has stored its name.
    pub fn former_port(&self, id: ServiceId) -> Option<&PortKey> {
        let tag = self.realised.services.get(&id)?.tag?;
        self.before.ports.get(&(tag.service, tag.port)).map(|port| &**port)
    }

    /// Whether the port has backends in the maps that its source no longer has, because the source has not reported
    /// everything yet.
    pub fn is_kept(&self, id: ServiceId) -> bool {
        let has_backends = |state: &MapState| state.services.get(&id).is_some_and(|entry| entry.has_backends);
        !self.is_complete() && has_backends(&self.realised) && !has_backends(&self.desired)
    }

    /// Why the maps still contain this at the address, which is not what the sources describe now; `None` if nothing but the
    /// write itself is missing.
    pub fn awaited(&self, address: L4Addr, actual: &FrontendEntry) -> Option<Awaited> {
        let Self { config, facts, absent, owners, realised, .. } = self;
        let sources = Sources { config, facts, absent, owners, realised };
        let wanted = || self.desired.frontends.get(&address).and_then(|wanted| sources.awaited(wanted.service));
        sources.awaited(actual.service).or_else(wanted)
    }

    /// The service ports with backends that are held although their source emptied them, by id.
    pub fn held(&self) -> impl Iterator<Item = &Arc<HeldPort>> {
        self.holds.all_announced()
    }

    /// Whether the port is protected and uses drained backends, because it has no other one.
    pub fn uses_drained(&self, key: &PortKey) -> bool {
        let drains = self.facts.drains(&key.service);
        drains.is_some_and(|drains| self.protected_list_has(key, |at| drain::find(drains, at).is_some()))
    }

    /// Whether the port is protected and uses backends that failed their checks, although its service allows no last resort.
    pub fn uses_failed(&self, key: &PortKey) -> bool {
        let Some(failed) = self.facts.quarantine(&key.service) else { return false };
        let check = self.facts.checked.get(&key.service).and_then(|service| service.health_check.as_ref());
        let is_strict = check.is_some_and(|check| !check.last_resort);
        is_strict && self.protected_list_has(key, |at| failed.contains_key(&at))
    }

    fn protected_list_has(&self, key: &PortKey, is_meant: impl Fn((Addr, u16)) -> bool) -> bool {
        let mut owned = self.owners.iter().filter(|(_, owner)| *owner.key == *key).map(|(id, _)| id);
        let id = owned.find(|id| self.holds.is_protected(**id));
        let entry = id.and_then(|id| self.desired.services.get(id));
        entry.is_some_and(|entry| entry.cluster.iter().any(|slot| is_meant((slot.addr.addr, slot.addr.port))))
    }

    /// What the ports of the service would use, if these were its drains.
    pub fn plans_with(&self, name: &ServiceName, drains: Option<&Drains>) -> Vec<PortPlan> {
        let Some((service, slices)) = self.facts.owner(name) else { return Vec::new() };
        let context = CompileContext {
            node: self.facts.node(),
            node_addrs: &self.desired.node_addrs,
            guard: &self.config.guard,
            apiservers: self.facts.apiservers(),
            checks: Checks::new(service, self.facts.quarantine(name)),
            drains,
            packets: self.config.packets,
        };
        let mut plans = compile(service, slices, &context);
        let ids: Vec<(ServiceId, &PortKey)> =
            self.ports().filter(|(_, key)| key.service == *name).map(|(id, key)| (id, &**key)).collect();
        let lists = ids.iter().filter_map(|(id, _)| self.desired.services.get(id));
        let is_protected =
            self.facts.is_protected(service, slices) || self.holds.has_apiserver(name, self.facts.apiservers(), lists);
        for plan in plans.iter_mut().filter(|plan| !plan.has_backends) {
            let id = ids.iter().find(|(_, key)| **key == plan.key).map(|(id, _)| *id);
            let held = id.and_then(|id| self.holds.known(id));
            plan.fill(is_protected || id.is_some_and(|id| self.holds.is_protected(id)), held, drains);
        }
        plans
    }

    /// The records to preserve over a reboot: the backends of every port of a protected service, held or not, and the
    /// records of an earlier run for ports that no source has reported yet. The order is unspecified, but it is the
    /// same for the same content and ids. The next engine receives them as [`crate::change::Change::Remember`].
    pub fn remembered(&self) -> Vec<Remembered> {
        self.holds.remembered(&self.owners, &self.desired)
    }

    /// The service ports without a backend that new connections can reach, on this node or elsewhere, in the order of
    /// their ids.
    pub fn empty_ports(&self) -> impl Iterator<Item = &Arc<PortKey>> {
        let empty = self.desired.services.iter().filter(|(_, entry)| !entry.has_backends);
        empty.filter_map(|(id, _)| Some(&self.owners.get(id)?.key))
    }

    /// The addresses that the service claims, according to the description that takes precedence.
    pub fn addresses_of(&self, name: &ServiceName) -> BTreeSet<L4Addr> {
        let ports = self.facts.owner(name).into_iter().flat_map(|(service, _)| &service.ports);
        ports.flat_map(|port| port.frontends.iter().map(|frontend| frontend.l4(port.protocol))).collect()
    }

    /// Whether nodelb may use the backend of a service of this source.
    pub fn check(&self, backend: L4Addr, source: Source) -> Result<(), BackendRefusal> {
        self.config.guard.check_backend(backend, source, self.facts.apiservers())
    }

    /// The node addresses that do not answer NodePorts because the maps did not accept them, each with the error.
    pub fn unanswered_node_addrs(&self) -> impl Iterator<Item = (Addr, &MapError)> {
        self.failures.iter().filter_map(|(key, error)| match key {
            EntryKey::NodeAddress(addr) if self.desired.node_addrs.contains(addr) => Some((*addr, error)),
            _ => None,
        })
    }

    /// The uplinks that the maps did not accept, each with the error.
    pub fn refused_uplinks(&self) -> impl Iterator<Item = (u32, &MapError)> {
        self.failures.iter().filter_map(|(key, error)| match key {
            EntryKey::Uplink(index) => Some((*index, error)),
            _ => None,
        })
    }

    /// Whether every source has reported everything. Until then, a missing object does not count as removed.
    pub fn is_complete(&self) -> bool {
        let is_source_synced =
            |source: &Source| self.facts.is_synced(*source) && self.facts.incomplete(*source).is_none();
        self.config.sources.iter().all(is_source_synced)
    }

    /// The number of addresses on this node that can serve the service: those of its ready backends of the family, each
    /// counted once regardless of its ports (kube-proxy's `LocalReadyEndpoints`). Terminating backends do not count
    /// even while they are used, so that load balancers redirect traffic in time. Backends that are drained or that
    /// nodelb refuses to use do not count either. Until the source has reported everything, those that the maps have and
    /// no slice describes count, too: clients reach them.
    pub fn local_ready(&self, name: &ServiceName, family: Family) -> usize {
        let Some((service, slices)) = self.facts.owner(name) else { return 0 };
        let (node, drains) = (&*self.facts.node().name, self.facts.drains(name));
        let is_drained = |at| drains.is_some_and(|drains| drain::find(drains, at).is_some());
        let mut found: BTreeSet<Addr> = BTreeSet::new();
        for port in &service.ports {
            let offered = slices.iter().flat_map(|slice| &slice.ports);
            let of_port = offered.filter(|offered| offered.protocol == port.protocol && offered.name == port.name);
            let ready = of_port.flat_map(|offered| &offered.backends).filter(|backend| {
                backend.addr.family() == family
                    && backend.node.as_deref() == Some(node)
                    && backend.effective_state() == BackendState::Active
                    && !is_drained((backend.addr, backend.port))
                    && self.check(L4Addr::new(backend.addr, backend.port, port.protocol), service.source).is_ok()
            });
            found.extend(ready.map(|backend| backend.addr));
        }
        if !self.facts.is_read(service.source, &name.namespace) {
            let listed = slices.iter().flat_map(|slice| &slice.ports).flat_map(|port| &port.backends);
            let listed: BTreeSet<Addr> = listed.map(|backend| backend.addr).collect();
            let is_unlisted = |at: &L4Addr| !listed.contains(&at.addr) && !is_drained((at.addr, at.port));
            let kept = self.realised_here(service).map(|slot| slot.addr).filter(is_unlisted);
            found.extend(kept.map(|at| at.addr).filter(|addr| addr.family() == family));
        }
        found.len()
    }

    /// The backends on this node that the maps have at the addresses of the service.
    fn realised_here(&self, service: &Service) -> impl Iterator<Item = &Slot> {
        let ports = service.ports.iter();
        let addresses = ports.flat_map(|port| port.frontends.iter().map(|frontend| frontend.l4(port.protocol)));
        let entries = addresses.filter_map(|address| self.realised.service_at(address));
        let hash = hash_of(&service.name);
        let own = entries.filter(move |entry| entry.tag.is_some_and(|tag| tag.service == hash));
        own.flat_map(|entry| entry.view(true))
    }
}
