//! The state machine of the owner task, without the task: it accepts changes, knows the content of the maps, decides on
//! the next operations and records their results. All behaviour of a node follows from the calls made here, so tests
//! replay them without a task, a clock or a kernel.
//!
//! A round consists of any number of calls of [`Engine::change`] followed by [`Engine::reconcile`], which plans
//! operations ([`crate::state::map_ops`]), passes them to the datapath and commits those that succeeded. Failed
//! operations are retried.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use imbl::{OrdMap, OrdSet};

use crate::before::Before;
use crate::change::Change;
use crate::claims::Row;
use crate::config::EngineConfig;
use crate::datapath::Datapath;
use crate::degraded::DegradedPorts;
use crate::history::{Addresses, Event, What};
use crate::holds::{Emptied, HeldPort, Holds, Release};
use crate::model::addr::{Addr, Family, L4Addr, Protocol};
use crate::model::cause::Trigger;
use crate::model::moment::Moment;
use crate::model::node::NodePortAddress;
use crate::model::service::{ServiceName, Source};
use crate::snapshot::Snapshot;
use crate::state::entries::{CANARIES, Desired, EntryKey, FrontendEntry, MapOp, Realised, ServiceEntry, ServiceId};
use crate::state::ids::{BackendIds, ServiceIds};
use crate::state::kernel_check::Drift;
use crate::state::map_ops::{self, Touched};
use crate::state::owner::IdOwner;
use crate::state::stale_generation::StaleGeneration;
use crate::table::{Effect, Facts, Table};
use absent::SyncState;
use access::AccessChange;
use at_start::AtStart;
use batching::Batching;
use compiled::Compiled;
use conflicts::Conflicts;
use deferred::Deferred;
use dirty::Dirty;
use drift::UnrepairedDrift;
use event_recorder::EventRecorder;
use failures::Failures;
use references::References;
use rings::Ringless;
use shares::Shares;
use unread_drains::UnreadDrains;

mod absent;
mod access;
mod apply_step;
mod at_start;
mod batching;
mod compile_step;
mod compiled;
mod conflicts;
mod deferred;
mod dirty;
mod drift;
mod event_recorder;
mod failures;
mod former;
mod hold;
mod recall;
mod references;
mod rings;
mod shares;
mod unread_drains;

pub use absent::Kept;
pub use conflicts::{AddressConflict, Takeover};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledService {
    pub name: ServiceName,
    /// Added, Changed or Removed; `None` while its source reports what it has at the start, because the maps may have
    /// contained the service before.
    pub what: Option<What>,
}

/// The results of one round, for the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// The number of operations that the datapath carried out.
    pub done: usize,
    /// The number of operations that failed.
    pub failed: usize,
    pub compiled: Vec<CompiledService>,
    /// The number of these services that were compiled only because nodelb's own health checks reported a different set
    /// of unhealthy backends.
    pub by_checks: usize,
    pub emptied: Vec<Emptied>,
    /// Service ports that started to be held in this round.
    pub held: Vec<Arc<HeldPort>>,
    pub released: Vec<Release>,
    /// Frontends that changed to the status Refused, each with its error.
    pub errors: Vec<(L4Addr, Arc<str>)>,
    /// Frontends that left the status Refused.
    pub healed: Vec<L4Addr>,
    /// Addresses of the node that the maps did not accept, each with the error. NodePorts are not answered on them.
    pub unanswered: Vec<(Addr, Arc<str>)>,
    /// Addresses from `unanswered` of earlier rounds that have been accepted since.
    pub answered: Vec<Addr>,
    /// The names of uplinks that the maps did not accept, each with the error.
    pub refused_uplinks: Vec<(Arc<str>, Arc<str>)>,
    /// Uplinks from `refused_uplinks` of earlier rounds that have been accepted since.
    pub accepted_uplinks: Vec<Arc<str>>,
    /// Claims that started to wait for another service's claim in this round.
    pub conflicts: Vec<AddressConflict>,
    /// Claims that no longer wait because they own the address now, and those to addresses that another service had before
    /// the start.
    pub takeovers: Vec<Takeover>,
    /// What the service that is being compiled changes for its clients; then what the operations change that follow from
    /// the first report of a source.
    access: BTreeSet<(ServiceId, AccessChange)>,
    /// Events about service ports that had addresses before the start and no longer claim them.
    pub(crate) former: Vec<Event>,
    /// The addresses that were in the maps although no source needs them, and that were removed because every source has
    /// now reported everything.
    pub pruned: Addresses,
    /// Those of them whose service is not known.
    pub(crate) unnamed: Addresses,
    /// The events of the round for the flight recorder.
    pub events: Vec<Event>,
    /// The times of the changes that this round wrote to the maps, in milliseconds since 1970, where slices contain
    /// them. Only changes that were reported after their source had synced are included.
    pub triggers: Vec<u64>,
    /// Entries that another program had deleted, overwritten or added, and that are correct again.
    pub repaired: Vec<Drift>,
}

/// The state machine of the owner task; see the module.
pub struct Engine {
    config: Arc<EngineConfig>,
    table: Table,
    ids: ServiceIds,
    backends: BackendIds,
    compiled: HashMap<ServiceName, Compiled, RandomState>,
    rows: OrdMap<L4Addr, Arc<Row>>,
    owners: OrdMap<ServiceId, IdOwner>,
    desired: Desired,
    realised: Realised,
    at_start: AtStart,
    unread_drains: UnreadDrains,
    /// The owners of the addresses at the start, as long as it is not known whether they still are.
    former: Realised,
    /// The addresses that this round has led elsewhere.
    moved: Vec<L4Addr>,
    before: Before,
    /// The unsynced sources, and whether the maps were pruned, when all statuses of `before` were compared.
    compared_with: Option<(Vec<Source>, bool)>,
    references: References,
    shares: Shares,
    /// Operations that have succeeded and that `realised` does not contain yet, in a round that makes it equal to
    /// `desired`: the copy of that needs no change of each entry.
    unapplied: Option<Vec<MapOp>>,
    dirty: Dirty,
    holds: Holds,
    degraded: DegradedPorts,
    degraded_here: DegradedPorts,
    conflicts: Conflicts,
    touched: Touched,
    /// The addresses that have left the maps in this round.
    removed: Vec<L4Addr>,
    /// Touched entries that must not change before their source has synced.
    deferred: Deferred,
    /// Owned frontends that the maps do not contain exactly as desired.
    unsettled: BTreeSet<L4Addr>,
    failures: Failures,
    ringless: Ringless,
    batching: Batching,
    drift: UnrepairedDrift,
    sync: SyncState,
    stale_generation: StaleGeneration,
    event_recorder: EventRecorder,
    round: Round,
}

impl Engine {
    pub fn new(config: EngineConfig, realised: Realised) -> Self {
        let sync = SyncState::new(&config, &realised);
        let is_kubernetes_asked =
            config.sources.contains(&Source::Kubernetes) || sync.absent.contains(&Source::Kubernetes);
        let mut engine = Self {
            sync,
            at_start: AtStart::new(&realised, is_kubernetes_asked),
            unread_drains: UnreadDrains::default(),
            former: realised.clone(),
            moved: Vec::new(),
            before: Before::default(),
            compared_with: None,
            event_recorder: EventRecorder::new(&realised),
            ids: ServiceIds::new(config.max_services, &realised),
            backends: BackendIds::new(&realised),
            table: Table::new(&realised, &config.unchecked_sources),
            config: Arc::new(config),
            compiled: HashMap::default(),
            rows: OrdMap::new(),
            owners: OrdMap::new(),
            desired: Desired::default(),
            references: References::new(&realised),
            shares: Shares::new(&realised),
            realised,
            unapplied: None,
            dirty: Dirty::default(),
            holds: Holds::default(),
            degraded: DegradedPorts::default(),
            degraded_here: DegradedPorts::default(),
            conflicts: Conflicts::default(),
            touched: Touched::default(),
            removed: Vec::new(),
            deferred: Deferred::default(),
            unsettled: BTreeSet::new(),
            failures: Failures::default(),
            ringless: Ringless::default(),
            batching: Batching::default(),
            drift: UnrepairedDrift::default(),
            stale_generation: StaleGeneration::default(),
            round: Round::default(),
        };
        engine.desire_canary();
        if engine.config.packets.is_on {
            // Until the uplinks are reported.
            engine.desired.uplinks = engine.realised.uplinks.clone();
        }
        // No source can claim these, and one of nodelb's own listeners waits for their removal.
        let (realised, guard) = (&engine.realised, &engine.config.guard);
        let taken = realised.frontends.keys().filter(|address| guard.own_port(**address).is_some()).copied();
        engine.touched.frontends.extend(taken);
        engine
    }

    fn desire_canary(&mut self) {
        self.desired.services.insert(ServiceId::CANARY, Arc::new(ServiceEntry::default()));
        self.touched.services.push(ServiceId::CANARY);
        for address in CANARIES {
            let entry = FrontendEntry { service: ServiceId::CANARY, inside_local: false, outside_local: false };
            self.desired.frontends.insert(address, entry);
            self.touched.frontends.push(address);
        }
    }

    /// Accepts one change. The maps do not change before the next round.
    pub fn change(&mut self, change: Change) {
        match &change {
            Change::Happened(event) => self.event_recorder.note_happened(event),
            Change::DrainsUnread(are_unread) => self.set_drains_unread(*are_unread),
            Change::Recalled(source) => self.sync.recall_due = Some(*source),
            _ => {}
        }
        let effect = self.table.apply(change);
        self.take_effect(effect);
    }

    fn take_effect(&mut self, effect: Effect) {
        match effect {
            Effect::None => {}
            Effect::Services(names, trigger) => {
                names.iter().for_each(|name| self.at_start.note_kept_out(name, &self.table));
                if let (Trigger::Drain(cause, _), Some(name)) = (&trigger, names.first()) {
                    self.event_recorder.note_drain(name, cause);
                }
                self.mark_dirty(names, trigger);
            }
            Effect::Deleted(name, trigger) => {
                self.mark_dirty([name.clone()], trigger.clone());
                self.dirty.mark_deleted(&name, trigger);
            }
            Effect::AllServices => {
                let names: Vec<ServiceName> = self.table.names().cloned().collect();
                self.mark_dirty(names, Trigger::Other);
                self.desire_node_addresses();
            }
            Effect::Remember(records) => {
                let names = self.holds.remember(records);
                self.mark_dirty(names, Trigger::Other);
            }
            Effect::NodeAddresses(changed) => {
                let names = self.claimants(&changed);
                self.mark_dirty(names, Trigger::Other);
                let names = self.nodeport_services(|name| self.has_endpoint_at(name, &changed));
                self.mark_dirty(names, Trigger::Other);
                self.desire_node_addresses();
            }
            Effect::Uplinks => self.desire_uplinks(),
            Effect::Synced => {
                self.stale_generation.note(Protocol::Udp);
                self.stale_generation.note(Protocol::Tcp);
                let deferred = self.deferred.take_all();
                self.touched.extend(deferred);
                self.touched.services.extend(self.batching.take());
                self.sync.is_pruned = false;
                self.sync.is_prune_due = true;
            }
        }
    }

    fn mark_dirty<I>(&mut self, names: I, trigger: Trigger)
    where
        I: IntoIterator<Item = ServiceName, IntoIter: ExactSizeIterator>,
    {
        self.event_recorder.note_trigger(&trigger);
        self.dirty.mark(names, trigger);
    }

    /// The services that claim one of the addresses. Whether they may own it depends on whether the node has it.
    fn claimants(&self, addresses: &BTreeSet<Addr>) -> Vec<ServiceName> {
        let rows = addresses.iter().flat_map(|addr| self.rows.range(L4Addr::all_at(*addr)));
        rows.flat_map(|(_, row)| row.claims()).map(|claim| claim.key.service.clone()).collect()
    }

    /// The services that claim a NodePort and satisfy the condition.
    fn nodeport_services(&self, accepts: impl Fn(&ServiceName) -> bool) -> Vec<ServiceName> {
        let mut names = self.claimants(&[Addr::UNSPECIFIED_V4, Addr::UNSPECIFIED_V6].into());
        names.retain(accepts);
        names
    }

    /// Whether a slice of the service contains one of the addresses. Whether its NodePorts may be bound depends on
    /// whether the node has that address.
    fn has_endpoint_at(&self, name: &ServiceName, addresses: &BTreeSet<Addr>) -> bool {
        let slices = self.table.owner(name).map_or(&[][..], |(_, slices)| slices);
        let mut backends = slices.iter().flat_map(|slice| &slice.ports).flat_map(|port| &port.backends);
        backends.any(|backend| addresses.contains(&backend.addr))
    }

    fn desire_node_addresses(&mut self) {
        let is_primary_meant = self.table.node().nodeport_addresses.contains(&NodePortAddress::Primary);
        if self.table.is_node_object_known() || !is_primary_meant {
            self.at_start.node_addrs.clear();
        }
        let own = &self.table.node().addresses;
        let from_before = self.at_start.node_addrs.iter().copied().filter(|addr| own.contains(addr));
        let wanted = from_before.chain(self.table.nodeport_addresses()).collect();
        let before = std::mem::replace(&mut self.desired.node_addrs, wanted);
        self.touched.node_addrs.extend(before.iter().copied());
        self.touched.node_addrs.extend(self.desired.node_addrs.iter().copied());
        let answers =
            |addrs: &OrdSet<Addr>| [Family::Ipv4, Family::Ipv6].map(|f| addrs.iter().any(|a| a.family() == f));
        if answers(&self.desired.node_addrs) != answers(&before) {
            let names = self.nodeport_services(|_| true);
            self.mark_dirty(names, Trigger::Other);
        }
    }

    /// Makes these the uplinks, instead of those at the start or in the last report.
    fn desire_uplinks(&mut self) {
        let wanted = if self.config.packets.is_on { &*self.table.uplinks } else { &[] };
        let wanted = wanted.iter().map(|uplink| (uplink.ifindex, uplink.entry)).collect();
        let before = std::mem::replace(&mut self.desired.uplinks, wanted);
        self.touched.uplinks.extend(before.keys().copied());
        self.touched.uplinks.extend(self.desired.uplinks.keys().copied());
    }

    /// Runs one round, which brings the maps as close to the desired state as the datapath allows.
    pub fn reconcile(&mut self, datapath: &mut impl Datapath, now: Moment) -> Round {
        self.table.note_time(now);
        self.begin(now);
        self.undo_drift(datapath, now);
        self.unapplied = self.leads_to_desired().then(Vec::new);
        for ops in map_ops::puts(&self.desired, &self.realised, &self.touched) {
            self.apply_ops(ops, datapath, now);
        }
        if self.unapplied.take().is_some() {
            self.realised = self.desired.clone();
        }
        if self.has_surplus() {
            let ops = map_ops::delete_frontends(&self.desired, &self.realised, &self.touched);
            self.apply_ops(ops, datapath, now);
            self.touched.settle();
            let is_referenced = |id| self.references.contains(id);
            let ops = map_ops::delete_services(&self.desired, &self.realised, &self.touched, is_referenced);
            let exchanged = self.exchanged_ranges(&ops);
            self.apply_ops(ops, datapath, now);
            // In the place of those that were just deleted, whatever the shares.
            self.pass_on(map_ops::put_ranges(&self.desired, &self.realised, &exchanged), datapath, now);
        }
        self.free_deleted(datapath, now);
        self.finish(now)
    }

    /// Ends the previous round at this time; see [`Datapath::end_round`].
    pub fn end_round(&mut self, datapath: &mut impl Datapath, ended: Moment) {
        self.ids.end_round(ended);
        datapath.end_round(ended);
    }

    /// Passes on the operations that are still valid, given the results of the previous operations.
    fn apply_ops(&mut self, mut ops: Vec<MapOp>, datapath: &mut impl Datapath, now: Moment) {
        if !self.is_settled() {
            ops.retain(|op| match op {
                MapOp::PutFrontend(_, entry) => self.realised.services.contains_key(&entry.service),
                MapOp::PutOutside(address, entry) => {
                    self.realised.frontends.get(address).is_some_and(|actual| actual.service == entry.service)
                }
                _ => true,
            });
        }
        self.defer(&mut ops);
        if !self.unsynced().is_empty() {
            let is_source_synced = |id| self.owners.get(&id).is_none_or(|owner| self.table.is_synced(owner.source));
            let has_failed = |id| self.failures.get(EntryKey::Service(id)).is_some();
            self.batching.take_out(&mut ops, &self.realised, (is_source_synced, has_failed), now);
        }
        self.refuse_beyond_shares(&mut ops, datapath.limits());
        self.pass_on(ops, datapath, now);
    }

    fn pass_on(&mut self, ops: Vec<MapOp>, datapath: &mut impl Datapath, now: Moment) {
        if !ops.is_empty() {
            let results = datapath.apply(&ops, now);
            self.commit(ops, results);
        }
    }

    /// When a round is due without a change: an operation failed, a service waits for a free id or for the rest of its
    /// list, or an entry waited for the result of this round.
    pub fn next_round(&self) -> Option<Moment> {
        [self.failures.retry_at(), self.batching.due(), self.deferred.due()].into_iter().flatten().min()
    }

    /// Whether every source is synced and the first full reconcile after that is complete.
    pub fn is_ready(&self) -> bool {
        self.sync.is_ready
    }

    /// The sources that have not reported everything they had at the start.
    pub fn unsynced(&self) -> Vec<Source> {
        self.config.sources.iter().copied().filter(|source| !self.table.is_synced(*source)).collect()
    }

    /// A snapshot for readers. It costs a few reference counts and copies nothing.
    pub fn snapshot(&self, now: Moment) -> Snapshot {
        Snapshot {
            at: now,
            desired: self.desired.clone(),
            realised: self.realised.clone(),
            answering: Desired { node_addrs: self.realised.node_addrs.clone(), ..self.desired.clone() },
            failures: self.failures.by_entry.clone(),
            config: Arc::clone(&self.config),
            facts: Facts::clone(&self.table),
            rows: self.rows.clone(),
            before: self.before.clone(),
            owners: self.owners.clone(),
            holds: self.holds.clone(),
            degraded: self.degraded.clone(),
            degraded_here: self.degraded_here.clone(),
            is_ready: self.sync.is_ready,
            was_pruned: self.sync.was_pruned,
            stale_generation: self.stale_generation,
            absent: self.sync.absent.clone(),
            ringless: self.ringless.ids.clone(),
        }
    }

    /// The sizes of the engine's collections. Once every service is removed, all are 0 except for the canary's;
    /// otherwise something leaks.
    pub fn sizes(&self) -> EngineSizes {
        EngineSizes {
            services: self.compiled.len(),
            slices: self.table.slice_count(),
            quarantined: self.table.quarantine.len(),
            rows: self.rows.len(),
            service_ids: self.ids.used(),
            id_owners: self.owners.len(),
            backend_ids: self.backends.used(),
            references: self.references.len(),
            waiting: self.dirty.len() + self.unsettled.len(),
            failed: self.failures.by_entry.len(),
        }
    }
}

/// The sizes of the engine's collections; see [`Engine::sizes`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineSizes {
    pub services: usize,
    pub slices: usize,
    /// The number of services with quarantined backends.
    pub quarantined: usize,
    /// The number of frontend addresses with a claim.
    pub rows: usize,
    pub service_ids: usize,
    pub id_owners: usize,
    pub backend_ids: usize,
    /// The number of service ids that a realised frontend or entry of `outside` points at, including the canary's.
    pub references: usize,
    /// The number of services that wait to be compiled.
    pub waiting: usize,
    /// The number of entries with a failed last operation.
    pub failed: usize,
}

#[cfg(test)]
#[path = "tests/engine.rs"]
mod tests;
