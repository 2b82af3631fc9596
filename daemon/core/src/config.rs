//! The configuration of the core, which is set once at the start.

use std::collections::BTreeSet;

use crate::compile::guard::Guard;
pub use crate::compile::outside::PacketsConfig;
use crate::model::service::Source;

#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    pub guard: Guard,
    /// The sources that will report. Nothing is pruned, and the engine is not ready, until all of them are synced.
    pub sources: BTreeSet<Source>,
    /// The sources that existed before this start, according to information outside the maps. Entries of a source that
    /// is not in `sources` are kept.
    pub previous_sources: BTreeSet<Source>,
    /// The sources that the operator has disabled. Their entries are removed from the maps.
    pub disabled_sources: BTreeSet<Source>,
    /// The sources that get no health checks from nodelb, even if their services request them.
    pub unchecked_sources: BTreeSet<Source>,
    /// The number of entries of the `services` map.
    pub max_services: u32,
    pub packets: PacketsConfig,
}
