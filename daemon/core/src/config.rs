//! What the core is told once, at the start.

use std::collections::BTreeSet;

use crate::compile::guard::Guard;
use crate::model::service::Source;

/// What the engine is told once.
#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// What no service may do.
    pub guard: Guard,
    /// The sources that will report. Nothing is pruned, and the engine is not ready, before all of them are synced.
    pub sources: BTreeSet<Source>,
    /// The sources that were there before, by what is known without the kernel. What the kernel holds of one that is not
    /// among `sources` is kept.
    pub formerly: BTreeSet<Source>,
    /// The sources that the operator has switched off: what the kernel holds of them goes.
    pub switched_off: BTreeSet<Source>,
    /// Entries of the `services` map.
    pub max_services: u32,
}
