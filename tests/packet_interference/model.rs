//! The packet programs as the pure function.

use nodelb_core::packets::sweep::SweepTimeouts;
use nodelb_model::connections::Tables;
use nodelb_model::node::Packet;
use nodelb_model::rule::Rule;
use nodelb_model::sweep::sweep;
use nodelb_model::translate::translate;

use crate::lab::{Programs, Ruled};
use crate::world::World;

/// The defaults.
pub(crate) const TIMEOUTS: SweepTimeouts =
    SweepTimeouts { handshake: 30, closed: 60, reset: 10, tcp_idle: 86_400, udp_idle: 120, forwarded_idle: 86_400 };

#[derive(Debug)]
pub(crate) struct Model {
    tables: Tables,
    seed: u32,
}

impl Model {
    /// The programs of a node without one of their rules.
    pub(crate) fn without(world: &World, removed: Option<Rule>) -> Self {
        Self { tables: Tables { removed, ..Tables::new(world.limits) }, seed: 1 }
    }
}

impl Programs for Model {
    fn rule(&mut self, world: &World, packet: &Packet) -> Ruled {
        let seed = &mut self.seed;
        let mut random = || {
            *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *seed >> 3
        };
        let outcome = translate(world.node(), &self.tables, &mut random, packet);
        self.tables = outcome.tables;
        Ruled { verdict: outcome.verdict, bytes: outcome.bytes, reason: outcome.reason, backend: outcome.backend }
    }

    fn sweep(&mut self, world: &World) {
        sweep(&mut self.tables, world.node().now(), &TIMEOUTS);
    }

    fn sees_tracking(&self) -> bool {
        true
    }

    fn change(&mut self, _: &World) {}

    fn pass(&mut self, _: u64) {}
}
