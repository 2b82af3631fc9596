//! A simulated host: the engine, maps in memory or in the kernel, and a manual clock. Properties
//! and scenarios run against it.

use std::collections::BTreeSet;

use nodelb_core::change::Change;
use nodelb_core::compile::guard::Guard;
use nodelb_core::config::{EngineConfig, PacketsConfig};
use nodelb_core::datapath::{Datapath, Limits, MapError};
use nodelb_core::engine::{Engine, Round};
use nodelb_core::history::{History, Stamp};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{PortKey, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::{MapOp, MapState, Realised};
use nodelb_core::state::status::Status;
use nodelb_core::statuses::KnownStatuses;

#[path = "dump.rs"]
mod dump;

pub(crate) use dump::dump;

/// Large enough for every test.
pub(crate) const ROOMY: Limits =
    Limits { frontends: 1_000, services: 1_000, slots: 100_000, affinity: 1_000, outside: 1_000, source_ranges: 1_000 };

/// Maps of a host.
pub(crate) trait Maps: Datapath {
    /// Empties the maps, as a reboot does.
    fn wipe(&mut self);

    /// Number of slots that services refer to.
    fn slots_used(&self) -> usize;
}

impl Maps for MemoryDatapath {
    fn wipe(&mut self) {
        self.wipe();
    }

    fn slots_used(&self) -> usize {
        self.slots_used().0 as usize
    }
}

/// Maps that record their operations.
pub(crate) struct Recorder<M> {
    pub(crate) maps: M,
    /// The operations since the log was last taken, and whether each succeeded.
    pub(crate) log: Vec<(MapOp, bool)>,
}

impl<M: Datapath> Datapath for Recorder<M> {
    fn limits(&self) -> Limits {
        self.maps.limits()
    }

    fn apply(&mut self, ops: &[MapOp], now: Moment) -> Vec<Result<(), MapError>> {
        let results = self.maps.apply(ops, now);
        self.log.extend(ops.iter().cloned().zip(results.iter().map(Result::is_ok)));
        results
    }

    fn end_round(&mut self, ended: Moment) {
        self.maps.end_round(ended);
    }

    fn dump(&self) -> Result<Realised, MapError> {
        self.maps.dump()
    }
}

/// A simulated host; see the module.
pub(crate) struct Host<M = MemoryDatapath> {
    pub(crate) engine: Engine,
    pub(crate) maps: Recorder<M>,
    pub(crate) now: Moment,
    /// Duration of each round, in milliseconds.
    pub(crate) round_millis: u64,
    /// The rounds since the last requested one.
    pub(crate) rounds: Vec<Round>,
    /// The flight recorder, with all rounds.
    pub(crate) history: History,
    known_statuses: KnownStatuses,
    /// The sources in the configuration of the next start.
    pub(crate) sources: BTreeSet<Source>,
    guard: Guard,
    /// The packet path in the configuration of the next start.
    pub(crate) packets: PacketsConfig,
}

impl<M: Maps> Host<M> {
    /// A host with these empty maps and an engine that waits for these sources.
    pub(crate) fn new(maps: M, sources: impl IntoIterator<Item = Source>, guard: Guard) -> Self {
        let sources: BTreeSet<Source> = sources.into_iter().collect();
        let max_services = maps.limits().services;
        let config =
            EngineConfig { guard: guard.clone(), sources: sources.clone(), max_services, ..EngineConfig::default() };
        let engine = Engine::new(config, Realised::default());
        let maps = Recorder { maps, log: Vec::new() };
        Self {
            engine,
            maps,
            now: Moment(0),
            round_millis: 0,
            rounds: Vec::new(),
            history: History::default(),
            known_statuses: KnownStatuses::default(),
            sources,
            guard,
            packets: PacketsConfig::default(),
        }
    }

    /// Replaces the daemon; the kernel keeps its maps, and the state directory what it has of this boot.
    pub(crate) fn restart(&mut self) {
        let before = self.engine.snapshot(self.now);
        self.start();
        self.engine.recall(before.statuses(), self.now);
        self.engine.recall_ports(before.port_names().map(|port| PortKey::clone(port)));
    }

    fn start(&mut self) {
        let max_services = self.maps.limits().services;
        let config = EngineConfig {
            guard: self.guard.clone(),
            sources: self.sources.clone(),
            max_services,
            packets: self.packets,
            ..EngineConfig::default()
        };
        self.engine = Engine::new(config, self.held());
    }

    /// Reboots: the maps are empty, and the new daemon gets the state that the previous one stored
    /// on disk.
    pub(crate) fn reboot(&mut self) {
        let records = serde_json::to_vec(&self.engine.snapshot(self.now).remembered()).expect("can be written");
        let statuses = self.engine.snapshot(self.now).statuses();
        self.maps.maps.wipe();
        self.start();
        self.engine.recall_served(&statuses);
        self.send([Change::Remember(serde_json::from_slice(&records).expect("can be read"))]);
    }

    /// Sends changes to the engine without a round.
    pub(crate) fn send(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.engine.change(change));
    }

    /// Marks every source as synced.
    pub(crate) fn send_synced(&mut self) {
        let synced = |source: &Source| Change::Synced { source: *source, incomplete: None };
        self.send(self.sources.iter().map(synced).collect::<Vec<_>>());
    }

    /// Runs one round and logs its map operations.
    pub(crate) fn round(&mut self) -> Round {
        self.now = self.now.plus(1);
        self.maps.log.clear();
        self.rounds.clear();
        self.reconcile()
    }

    fn reconcile(&mut self) -> Round {
        let round = self.engine.reconcile(&mut self.maps, self.now);
        self.now = self.now.plus(self.round_millis);
        self.engine.end_round(&mut self.maps, self.now);
        let stamp = Stamp { at: self.now.0, to_kernel: 0 };
        round.events.iter().for_each(|event| drop(self.history.add(event.clone(), stamp)));
        self.rounds.push(round.clone());
        let snapshot = self.engine.snapshot(self.now);
        self.known_statuses = self.known_statuses.of(&snapshot);
        assert_eq!(self.known_statuses.statuses, snapshot.statuses(), "the statuses follow from what has changed");
        assert_eq!(shown_as_held(&snapshot), [], "held and not shown as such, or the other way round");
        round
    }

    /// Runs one round and all retries; false if retries remain after many rounds (a full map).
    pub(crate) fn settle(&mut self) -> bool {
        self.round();
        for _ in 0..60 {
            let Some(due) = self.engine.next_round() else { return true };
            self.now = self.now.max(due);
            self.reconcile();
        }
        self.engine.next_round().is_none()
    }

    /// The content of the maps, read back.
    pub(crate) fn held(&self) -> MapState {
        self.maps.dump().expect("maps in memory can be read")
    }

    /// [`Self::held`] as text, with names and without the canaries.
    pub(crate) fn text(&self) -> String {
        let snapshot = self.engine.snapshot(self.now);
        let text = dump(&self.held(), |id| snapshot.service_of(id));
        text.lines().filter(|line| !line.contains("  canary")).flat_map(|line| [line, "\n"]).collect()
    }
}

/// The addresses with a status that contradicts the holds: shown as held without a hold, or as OK with one.
fn shown_as_held(snapshot: &Snapshot) -> Vec<(L4Addr, Status)> {
    let held: BTreeSet<&PortKey> = snapshot.held().map(|port| &*port.key).collect();
    let rows = snapshot.rows.iter().filter_map(|(address, row)| Some((address, row, row.owner()?.0)));
    let is_wrong = |status, key: &PortKey| match status {
        Status::Held => !held.contains(key),
        Status::Ok => held.contains(key),
        _ => false,
    };
    let wrong = rows.filter(|(_, row, claim)| is_wrong(row.status.status, &claim.key));
    wrong.map(|(address, row, _)| (*address, row.status.status)).collect()
}
