//! The pure function as a translator.

use nodelb_core::packets::connections::Tables;
use nodelb_core::packets::node::Packet;
use nodelb_core::packets::translate::translate;

use crate::case::{Result, Translator};
use crate::world::World;

/// The pure function, with its tables.
pub(crate) struct Oracle {
    tables: Tables,
    /// State of the random number generator.
    seed: u32,
}

impl Oracle {
    pub(crate) fn new() -> Self {
        Self { tables: Tables::new(World::new().limits), seed: 0 }
    }
}

impl Translator for Oracle {
    fn start(&mut self, world: &World) {
        *self = Self { tables: Tables::new(world.limits), seed: 1 };
    }

    fn change(&mut self, world: &World) {
        self.tables.limits = world.limits;
    }

    fn translate(&mut self, world: &World, packet: &Packet) -> Result {
        let seed = &mut self.seed;
        let mut random = || {
            *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *seed
        };
        let outcome = translate(world.node(), &self.tables, &mut random, packet);
        self.tables = outcome.tables;
        Result { verdict: outcome.verdict, bytes: outcome.bytes, reason: outcome.reason }
    }

    fn tables(&self) -> Tables {
        self.tables.clone()
    }

    fn wait(&mut self, _world: &World, _seconds: u64) {}
}
