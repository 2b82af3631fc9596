//! The packet programs as compiled for this machine.

use nodelb_core::packets::sweep::SweepTimeouts;
use nodelb_programs::node::Packet;
use nodelb_programs::programs::{Load, Programs as Loaded, Rule};

use crate::lab::{Programs, Ruled};
use crate::world::World;

/// The defaults.
const TIMEOUTS: SweepTimeouts =
    SweepTimeouts { handshake: 30, closed: 60, reset: 10, tcp_idle: 86_400, udp_idle: 120, forwarded_idle: 86_400 };

#[derive(Debug)]
pub(crate) struct OnHost(Loaded);

impl OnHost {
    /// The programs of a node without one of their rules.
    pub(crate) fn without(world: &World, removed: Option<Rule>) -> Self {
        Self(Loaded::load(Load { removed, ..Load::new(world.limits) }, &world.node()))
    }
}

impl Programs for OnHost {
    fn rule(&mut self, world: &World, packet: &Packet) -> Ruled {
        let outcome = self.0.run(&world.node(), packet);
        Ruled { verdict: outcome.verdict, bytes: outcome.bytes, reason: outcome.reason, backend: outcome.backend }
    }

    fn sweep(&mut self, world: &World) {
        self.0.sweep(world.now_ns, &TIMEOUTS);
    }

    fn sees_tracking(&self) -> bool {
        true
    }

    fn change(&mut self, world: &World) {
        self.0.set(&world.node());
    }

    fn pass(&mut self, _: u64) {}
}
