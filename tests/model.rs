//! A host in a box: the engine, maps in memory, and a clock that goes only when told. What properties and scenarios
//! run against.

use std::collections::BTreeSet;

use nodelb_core::change::Change;
use nodelb_core::compile::Guard;
use nodelb_core::datapath::{Datapath, Limits, MapError, Moment};
use nodelb_core::dump::dump;
use nodelb_core::engine::{Engine, EngineConfig, Round};
use nodelb_core::memory::{Fault, MemoryDatapath};
use nodelb_core::service::Source;
use nodelb_core::state::{MapOp, MapState, Realised};

/// Room for everything a test makes up.
pub(crate) const ROOMY: Limits = Limits { frontends: 1_000, services: 1_000, slots: 100_000, affinity: 1_000 };

/// Maps in memory that write down what was asked of them.
pub(crate) struct Recorder {
    pub(crate) maps: MemoryDatapath,
    /// Every operation since the log was last taken, and whether it succeeded.
    pub(crate) log: Vec<(MapOp, bool)>,
}

impl Datapath for Recorder {
    fn limits(&self) -> Limits {
        self.maps.limits()
    }

    fn apply(&mut self, ops: &[MapOp], now: Moment) -> Vec<Result<(), MapError>> {
        let results = self.maps.apply(ops, now);
        self.log.extend(ops.iter().cloned().zip(results.iter().map(Result::is_ok)));
        results
    }

    fn dump(&self) -> Result<Realised, MapError> {
        self.maps.dump()
    }
}

/// See the module.
pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) maps: Recorder,
    pub(crate) now: Moment,
    /// Every round since the last one that was asked for.
    pub(crate) rounds: Vec<Round>,
    sources: BTreeSet<Source>,
    guard: Guard,
}

impl Host {
    /// A host with empty maps that waits for these sources.
    pub(crate) fn new(limits: Limits, sources: impl IntoIterator<Item = Source>, guard: Guard) -> Self {
        let maps = Recorder { maps: MemoryDatapath::new(limits), log: Vec::new() };
        let sources: BTreeSet<Source> = sources.into_iter().collect();
        let config = EngineConfig { guard: guard.clone(), sources: sources.clone(), max_services: limits.services };
        let engine = Engine::new(config, Realised::default());
        Self { engine, maps, now: Moment(0), rounds: Vec::new(), sources, guard }
    }

    /// From now on `fault` decides which operations fail.
    pub(crate) fn with_fault(mut self, fault: Fault) -> Self {
        self.maps.maps = self.maps.maps.with_fault(fault);
        self
    }

    /// The daemon is gone and another one starts beside what the kernel holds.
    pub(crate) fn restart(&mut self) {
        let max_services = self.maps.limits().services;
        let config = EngineConfig { guard: self.guard.clone(), sources: self.sources.clone(), max_services };
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

/// Dice for maps that fail one operation in ten, the same for the same seed.
pub(crate) fn one_in_ten(seed: u64) -> Fault {
    let mut state = seed | 1;
    Box::new(move |_op| {
        // xorshift64: good enough to be no pattern, small enough to be read.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.is_multiple_of(10)
    })
}
