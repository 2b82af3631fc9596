//! A host in a box: the engine, maps in memory or in the kernel, and a clock that goes only when told. What properties
//! and scenarios run against.

use std::collections::BTreeSet;

use nodelb_core::change::Change;
use nodelb_core::compile::Guard;
use nodelb_core::datapath::{Datapath, Limits, MapError, Moment};
use nodelb_core::dump::dump;
use nodelb_core::engine::{Engine, EngineConfig, Round};
use nodelb_core::history::{History, Stamp};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::service::Source;
use nodelb_core::state::{MapOp, MapState, Realised};

/// Room for everything a test makes up.
pub(crate) const ROOMY: Limits = Limits { frontends: 1_000, services: 1_000, slots: 100_000, affinity: 1_000 };

/// Maps a host can have.
pub(crate) trait Maps: Datapath {
    /// Makes them empty, as they are after a reboot.
    fn wipe(&mut self);

    /// How many slots some service points at.
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

/// Maps that write down what was asked of them.
pub(crate) struct Recorder<M> {
    pub(crate) maps: M,
    /// Every operation since the log was last taken, and whether it succeeded.
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

/// See the module.
pub(crate) struct Host<M = MemoryDatapath> {
    pub(crate) engine: Engine,
    pub(crate) maps: Recorder<M>,
    pub(crate) now: Moment,
    /// How long each round takes.
    pub(crate) round_millis: u64,
    /// Every round since the last one that was asked for.
    pub(crate) rounds: Vec<Round>,
    /// What the flight recorder has of all rounds.
    pub(crate) history: History,
    /// What the configuration of the next start has.
    pub(crate) sources: BTreeSet<Source>,
    guard: Guard,
}

impl<M: Maps> Host<M> {
    /// A host with these maps, which are empty, that waits for these sources.
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
            sources,
            guard,
        }
    }

    /// The daemon is gone and another one starts beside what the kernel holds.
    pub(crate) fn restart(&mut self) {
        let max_services = self.maps.limits().services;
        let config = EngineConfig {
            guard: self.guard.clone(),
            sources: self.sources.clone(),
            max_services,
            ..EngineConfig::default()
        };
        self.engine = Engine::new(config, self.held());
    }

    /// The machine is gone and another one starts, with empty maps. It is told what the one before remembered, as it
    /// was kept on disk.
    pub(crate) fn reboot(&mut self) {
        let records = serde_json::to_vec(&self.engine.snapshot(self.now).remembered()).expect("can be written");
        self.maps.maps.wipe();
        self.restart();
        self.tell([Change::Remember(serde_json::from_slice(&records).expect("can be read"))]);
    }

    /// Tells the engine without a round.
    pub(crate) fn tell(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.engine.change(change));
    }

    /// Every source has told all it has.
    pub(crate) fn tell_synced(&mut self) {
        let synced = |source: &Source| Change::Synced { source: *source, incomplete: None };
        self.tell(self.sources.iter().map(synced).collect::<Vec<_>>());
    }

    /// One round; what it asked of the maps is in the log.
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
        round
    }

    /// One round, then every retry that comes due; false if after many there is still one to come (a full map).
    pub(crate) fn settle(&mut self) -> bool {
        self.round();
        for _ in 0..60 {
            let Some(due) = self.engine.next_round() else { return true };
            self.now = self.now.max(due);
            self.reconcile();
        }
        self.engine.next_round().is_none()
    }

    /// What the maps hold, read back.
    pub(crate) fn held(&self) -> MapState {
        self.maps.dump().expect("maps in memory can be read")
    }

    /// The same as text, with names; the proof of life left out.
    pub(crate) fn text(&self) -> String {
        let snapshot = self.engine.snapshot(self.now);
        let text = dump(&self.held(), |id| snapshot.service_of(id));
        text.lines().filter(|line| !line.contains("  canary")).flat_map(|line| [line, "\n"]).collect()
    }
}
