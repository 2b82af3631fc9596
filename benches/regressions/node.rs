//! An engine with its datapath.

use std::collections::BTreeSet;

use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::{Datapath, Limits, MapError};
use nodelb_core::engine::Engine;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::Source;
use nodelb_core::state::entries::{MapOp, Realised};

pub(crate) const LIMITS: Limits =
    Limits { frontends: 1 << 20, services: 1 << 20, slots: 1 << 24, affinity: 1, outside: 0, source_ranges: 0 };

/// A datapath that accepts every operation and stores nothing, so that only the core is measured.
pub(crate) struct Accepting;

impl Datapath for Accepting {
    fn limits(&self) -> Limits {
        LIMITS
    }

    fn apply(&mut self, ops: &[MapOp], _: Moment) -> Vec<Result<(), MapError>> {
        vec![Ok(()); ops.len()]
    }

    fn end_round(&mut self, _: Moment) {}

    fn dump(&self) -> Result<Realised, MapError> {
        Ok(Realised::default())
    }
}

/// An engine, its datapath, and the time.
pub(crate) struct Node<D> {
    pub(crate) engine: Engine,
    datapath: D,
    now: Moment,
}

impl<D: Datapath> Node<D> {
    pub(crate) fn new(datapath: D) -> Self {
        let sources = BTreeSet::from([Source::Files]);
        let config = EngineConfig { sources, max_services: LIMITS.services, ..EngineConfig::default() };
        let engine = Engine::new(config, datapath.dump().unwrap());
        Self { engine, datapath, now: Moment(0) }
    }

    /// Starts again with the same maps.
    pub(crate) fn restart(self) -> Self {
        Self { now: self.now, ..Self::new(self.datapath) }
    }

    /// Applies the changes in one round.
    pub(crate) fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.now = self.now.plus(2_000);
        let round = self.engine.reconcile(&mut self.datapath, self.now);
        assert_eq!(round.failed, 0);
        self.engine.end_round(&mut self.datapath, self.now);
    }
}
