//! The owner's state machine, without the owner: takes changes, knows what the kernel has, says what to do next, takes
//! note of how it went. Everything a node does follows from the calls made here, so tests replay them without a task,
//! a clock or a kernel.
//!
//! One round: any number of [`Engine::change`], then [`Engine::reconcile`], which plans operations
//! ([`crate::state::map_ops`]), hands them to the datapath and commits what succeeded. What failed is tried again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use imbl::{OrdMap, OrdSet};
use indexmap::IndexMap;
use indexmap::map::Entry;

use crate::change::Change;
use crate::claims::Row;
use crate::config::EngineConfig;
use crate::datapath::Datapath;
use crate::history::Event;
use crate::holds::{Emptied, HeldPort, Holds, Release};
use crate::model::addr::{Addr, Family, L4Addr, Protocol};
use crate::model::cause::{Dirt, Trigger};
use crate::model::moment::Moment;
use crate::model::node::NodePortAddress;
use crate::model::service::{ServiceName, Source};
use crate::snapshot::Snapshot;
use crate::state::entries::{CANARIES, Desired, FrontendEntry, MapOp, Realised, ServiceEntry, ServiceId};
use crate::state::ids::{BackendIds, ServiceIds};
use crate::state::kernel_check::{Drift, EntryKey};
use crate::state::map_ops::{self, Touched};
use crate::state::moves::Moves;
use crate::state::owner::IdOwner;
use crate::table::{Effect, Table};
use at_start::AtStart;
use compiled::Compiled;
use contest::Contests;
use deferred::Deferred;
use failures::Failures;
use gather::Gathering;
use tell::Teller;

mod absent;
mod at_start;
mod compiled;
mod contest;
mod deferred;
mod desire;
mod drift;
mod failures;
mod gather;
mod hold;
mod round;
mod tell;

pub use absent::{Kept, KeptBecause};
pub use contest::{Outranked, Takeover};

/// What one round did, for the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Operations the datapath carried out.
    pub done: usize,
    /// Operations it did not.
    pub failed: usize,
    /// Services compiled again, by name.
    pub compiled: Vec<ServiceName>,
    /// How many of them only because nodelb's own checks found other backends unhealthy than before.
    pub by_checks: usize,
    /// Service ports that lost their last usable backend.
    pub emptied: Vec<Emptied>,
    /// Service ports whose last known backends are held from now on.
    pub held: Vec<Arc<HeldPort>>,
    /// Service ports that were held and are not any more.
    pub released: Vec<Release>,
    /// Frontends that went into the status Error, each with its error.
    pub errors: Vec<(L4Addr, Arc<str>)>,
    /// Frontends that came out of it.
    pub healed: Vec<L4Addr>,
    /// Addresses of the node that the kernel did not take, each with the error: NodePorts are not answered on them.
    pub unanswered: Vec<(Addr, Arc<str>)>,
    /// Those of the rounds before that it has taken since.
    pub answered: Vec<Addr>,
    /// Claims that wait for another service's since this round.
    pub outranked: Vec<Outranked>,
    /// Claims that do not wait any more: the address is theirs.
    pub takeovers: Vec<Takeover>,
    /// Entries the kernel held and nobody wanted: removed now that every source has told all it has.
    pub pruned: usize,
    /// The same for the flight recorder.
    pub events: Vec<Event>,
    /// When what the round has brought to the kernel happened, in milliseconds since 1970, as far as slices say so and
    /// since their source has told all it had at the start.
    pub triggers: Vec<u64>,
    /// Entries that somebody else had deleted, overwritten or added, and that are as they should be again.
    pub repaired: Vec<Drift>,
}

/// See the module.
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
    /// How many realised frontends point at each service entry.
    references: HashMap<ServiceId, u32, RandomState>,
    /// In the order they became dirty, which is the order they lie in memory at a start.
    dirty: IndexMap<ServiceName, Dirt, RandomState>,
    holds: Holds,
    contests: Contests,
    /// Services that found no free id.
    waiting: BTreeSet<ServiceName>,
    touched: Touched,
    /// Touched, but not to be changed before their source has synced.
    deferred: Deferred,
    /// Owned frontends whose status is not Done.
    unsettled: BTreeSet<L4Addr>,
    failures: Failures,
    gathering: Gathering,
    /// What somebody else did to the maps and is not put right yet.
    drift: BTreeMap<EntryKey, Drift>,
    retry: Option<Retry>,
    /// Sources that were there before, are not among the configured ones and were not switched off.
    absent: BTreeSet<Source>,
    /// Whether a source has said that it is synced, or how, since the kernel was last looked through.
    is_prune_due: bool,
    is_pruned: bool,
    is_ready: bool,
    moves: Moves,
    teller: Teller,
    round: Round,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Moment,
    wait: u64,
}

impl Engine {
    /// An engine beside a kernel with this content.
    pub fn new(config: EngineConfig, realised: Realised) -> Self {
        let mut references = HashMap::default();
        for entry in realised.frontends.values() {
            *references.entry(entry.service).or_insert(0) += 1;
        }
        let absent = absent::absent(&config, &realised);
        let is_kubernetes_asked = config.sources.contains(&Source::Kubernetes) || absent.contains(&Source::Kubernetes);
        let mut engine = Self {
            absent,
            at_start: AtStart::new(&realised, is_kubernetes_asked),
            teller: Teller::new(&realised),
            ids: ServiceIds::new(config.max_services, &realised),
            backends: BackendIds::new(&realised),
            config: Arc::new(config),
            table: Table::default(),
            compiled: HashMap::default(),
            rows: OrdMap::new(),
            owners: OrdMap::new(),
            desired: Desired::default(),
            realised,
            references,
            dirty: IndexMap::default(),
            holds: Holds::default(),
            contests: Contests::default(),
            waiting: BTreeSet::new(),
            touched: Touched::default(),
            deferred: Deferred::default(),
            unsettled: BTreeSet::new(),
            failures: Failures::default(),
            gathering: Gathering::default(),
            drift: BTreeMap::new(),
            retry: None,
            is_prune_due: true,
            is_pruned: false,
            is_ready: false,
            moves: Moves::default(),
            round: Round::default(),
        };
        engine.want_canary();
        // No source can want these: a listener of nodelb's own waits for them to go.
        let (realised, guard) = (&engine.realised, &engine.config.guard);
        let taken = realised.frontends.keys().filter(|address| guard.own_port(**address).is_some()).copied();
        engine.touched.frontends.extend(taken);
        engine
    }

    fn want_canary(&mut self) {
        self.desired.services.insert(ServiceId::CANARY, Arc::new(ServiceEntry::default()));
        self.touched.services.push(ServiceId::CANARY);
        for address in CANARIES {
            let entry = FrontendEntry { service: ServiceId::CANARY, inside_local: false, outside_local: false };
            self.desired.frontends.insert(address, entry);
            self.touched.frontends.push(address);
        }
    }

    /// Takes in one change. Nothing reaches the kernel before the next round.
    pub fn change(&mut self, change: Change) {
        match self.table.apply(change) {
            Effect::None => {}
            Effect::Services(names, trigger) => self.soil(names, &trigger),
            Effect::Deleted(name, trigger) => {
                self.soil([name.clone()], &trigger);
                if let Some(dirt) = self.dirty.get_mut(&name) {
                    dirt.is_deleted = true;
                }
            }
            Effect::AllServices => {
                let names: Vec<ServiceName> = self.table.names().cloned().collect();
                self.soil(names, &Trigger::Other);
                self.want_node_addresses();
            }
            Effect::Remember(records) => {
                let names = self.holds.remember(records);
                self.soil(names, &Trigger::Other);
            }
            Effect::NodeAddresses(changed) => {
                let names = self.claimants(&changed);
                self.soil(names, &Trigger::Other);
                let names = self.nodeport_services(|name| self.has_endpoint_at(name, &changed));
                self.soil(names, &Trigger::Other);
                self.want_node_addresses();
            }
            Effect::Synced => {
                self.moves.note(Protocol::Udp);
                self.moves.note(Protocol::Tcp);
                self.look_at_deferred_again();
                self.touched.services.extend(self.gathering.take());
                self.is_pruned = false;
                self.is_prune_due = true;
            }
        }
    }

    /// Notes that the services must be compiled again, and why.
    fn soil(&mut self, names: impl IntoIterator<Item = ServiceName>, trigger: &Trigger) {
        self.teller.note_trigger(trigger);
        for name in names {
            match self.dirty.entry(name) {
                Entry::Occupied(mut known) => known.get_mut().add(trigger.clone()),
                Entry::Vacant(new) => {
                    new.insert(Dirt::new(trigger.clone()));
                }
            }
        }
    }

    /// The services that claim one of the addresses: whether they may have it hangs on whether the node has it.
    fn claimants(&self, addresses: &BTreeSet<Addr>) -> Vec<ServiceName> {
        let rows = addresses.iter().flat_map(|addr| self.rows.range(L4Addr::all_at(*addr)));
        rows.flat_map(|(_, row)| row.claims()).map(|claim| claim.key.service.clone()).collect()
    }

    /// The services that claim a NodePort, as far as they are meant.
    fn nodeport_services(&self, is_meant: impl Fn(&ServiceName) -> bool) -> Vec<ServiceName> {
        let mut names = self.claimants(&[Addr::UNSPECIFIED_V4, Addr::UNSPECIFIED_V6].into());
        names.retain(is_meant);
        names
    }

    /// Whether a slice of the service names one of the addresses: whether its NodePorts may be bound hangs on whether the
    /// node has it.
    fn has_endpoint_at(&self, name: &ServiceName, addresses: &BTreeSet<Addr>) -> bool {
        let slices = self.table.owner(name).map_or(&[][..], |(_, slices)| slices);
        let mut backends = slices.iter().flat_map(|slice| &slice.ports).flat_map(|port| &port.backends);
        backends.any(|backend| addresses.contains(&backend.addr))
    }

    fn want_node_addresses(&mut self) {
        let is_primary_meant = self.table.node().nodeport_addresses.contains(&NodePortAddress::Primary);
        if self.table.is_node_object_told() || !is_primary_meant {
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
            self.soil(names, &Trigger::Other);
        }
    }

    fn touch(&mut self, more: Touched) {
        self.touched.services.extend(more.services);
        self.touched.frontends.extend(more.frontends);
        self.touched.node_addrs.extend(more.node_addrs);
    }

    /// One round: brings the datapath as near to what the sources ask for as it lets itself be brought.
    pub fn reconcile(&mut self, datapath: &mut impl Datapath, now: Moment) -> Round {
        self.begin(now);
        for ops in map_ops::puts(&self.desired, &self.realised, &self.touched) {
            self.carry_out(ops, datapath, now);
        }
        if self.has_surplus() {
            let ops = map_ops::delete_frontends(&self.desired, &self.realised, &self.touched);
            self.carry_out(ops, datapath, now);
            self.touched.settle();
            let is_referenced = |id| self.is_referenced(id);
            let ops = map_ops::delete_services(&self.desired, &self.realised, &self.touched, is_referenced);
            self.carry_out(ops, datapath, now);
        }
        self.give_up_lost(datapath, now);
        self.finish(now)
    }

    /// The round before is over, and it is now this late: see [`Datapath::end_round`].
    pub fn end_round(&mut self, datapath: &mut impl Datapath, ended: Moment) {
        self.ids.end_round(ended);
        datapath.end_round(ended);
    }

    /// Hands on what still makes sense after what the operations before really achieved.
    fn carry_out(&mut self, mut ops: Vec<MapOp>, datapath: &mut impl Datapath, now: Moment) {
        if !self.is_calm() {
            ops.retain(|op| match op {
                MapOp::PutFrontend(_, entry) => self.realised.services.contains_key(&entry.service),
                _ => true,
            });
        }
        self.defer(&mut ops);
        if !self.unsynced().is_empty() {
            let is_told = |id| self.owners.get(&id).is_none_or(|owner| self.table.is_synced(owner.source));
            let has_failed = |id| self.failures.services.contains_key(&id);
            self.gathering.take_out(&mut ops, &self.realised, (is_told, has_failed), now);
        }
        if !ops.is_empty() {
            let results = datapath.apply(&ops, now);
            self.commit(&ops, results);
        }
    }

    /// When a round is due although no change came in: something failed, waits for an id to come free or for the rest of
    /// its list, or has waited for what this round did.
    pub fn next_round(&self) -> Option<Moment> {
        let retry = self.retry.map(|retry| retry.at);
        [retry, self.gathering.due(), self.deferred.due()].into_iter().flatten().min()
    }

    /// Whether every source has synced and the first full reconcile after that is done.
    pub fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// The sources that have not told all they had at the start.
    pub fn unsynced(&self) -> Vec<Source> {
        self.config.sources.iter().copied().filter(|source| !self.table.is_synced(*source)).collect()
    }

    /// A picture for readers; costs a few reference counts, not a copy.
    pub fn snapshot(&self, now: Moment) -> Snapshot {
        Snapshot {
            at: now,
            desired: self.desired.clone(),
            realised: self.realised.clone(),
            answering: Desired { node_addrs: self.realised.node_addrs.clone(), ..self.desired.clone() },
            failed_node_addrs: self.failures.node_addrs.clone(),
            config: Arc::clone(&self.config),
            facts: self.table.facts(),
            rows: self.rows.clone(),
            owners: self.owners.clone(),
            holds: self.holds.clone(),
            is_ready: self.is_ready,
            moves: self.moves,
            absent: self.absent.clone(),
        }
    }

    /// What the engine holds, in numbers: all 0 but for the canary's once every service is gone, or something leaks.
    pub fn holdings(&self) -> Holdings {
        Holdings {
            services: self.compiled.len(),
            slices: self.table.slice_count(),
            quarantined: self.table.quarantine_count(),
            rows: self.rows.len(),
            service_ids: self.ids.used(),
            id_owners: self.owners.len(),
            backend_ids: self.backends.used(),
            references: self.references.values().filter(|count| **count > 0).count(),
            waiting: self.waiting.len() + self.dirty.len() + self.unsettled.len(),
            failed: self.failures.len(),
        }
    }
}

/// See [`Engine::holdings`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Services compiled.
    pub services: usize,
    /// Slices in the table.
    pub slices: usize,
    /// Services with backends in quarantine.
    pub quarantined: usize,
    /// Frontend addresses somebody claims.
    pub rows: usize,
    /// Service ids in use.
    pub service_ids: usize,
    /// Service ids with a name.
    pub id_owners: usize,
    /// Backend addresses with a number.
    pub backend_ids: usize,
    /// Service ids a realised frontend points at; the canary's is one.
    pub references: usize,
    /// Services that wait to be compiled.
    pub waiting: usize,
    /// Entries whose last operation failed.
    pub failed: usize,
}

#[cfg(test)]
mod tests;
