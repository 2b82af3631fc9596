//! The interface to the holder of the maps: the kernel, or memory ([`crate::memory`]).

use crate::model::moment::Moment;
use crate::state::entries::{MapOp, Realised};
use crate::state::kernel_check::{Content, EntryKey};

/// The sizes of the maps, which are fixed when the maps are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The size of `frontends` in entries; configuration key `datapath.max-frontends`.
    pub frontends: u32,
    /// The size of `services` in entries; configuration key `datapath.max-services`.
    pub services: u32,
    /// The size of `slots` in entries; configuration key `datapath.max-slots`.
    pub slots: u32,
    /// The size of `affinity` in entries; configuration key `datapath.max-affinity`. When the map is full, the least
    /// recently seen client loses its affinity.
    pub affinity: u32,
    /// The size of `outside` in entries; configuration key `packets.max-outside`. 0: the maps of the packet path do not
    /// exist.
    pub outside: u32,
    /// The size of `source_ranges` in entries; configuration key `packets.max-source-ranges`. 0: the map does not exist.
    pub source_ranges: u32,
}

/// The number of connections of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count {
    /// Connections that were sent to a backend. Each TCP connect counts, and each time that a UDP socket is assigned a
    /// new backend, by a connect or by a datagram.
    pub translated: u64,
    /// Connections that were refused: each TCP connect, UDP connect and unconnected datagram.
    pub refused: u64,
}

impl Count {
    pub fn add(&mut self, more: Self) {
        self.translated += more.translated;
        self.refused += more.refused;
    }

    /// The difference to an earlier count; the whole count if counting restarted in between.
    pub fn since(self, before: Self) -> Self {
        if self.translated < before.translated || self.refused < before.refused {
            return self;
        }
        Self { translated: self.translated - before.translated, refused: self.refused - before.refused }
    }
}

/// Why an operation was not carried out. The map is unchanged. `limit` is its size in entries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    #[error("map {map} is full ({limit} entries): raise {key} and restart nodelb", key = size_key(map))]
    Full { map: &'static str, limit: u32 },
    /// See [`crate::state::share`].
    #[error(
        "map {map} is full ({limit} entries) but for namespaces with few: raise {key} and restart nodelb, or remove services of this \
         namespace", key = size_key(map)
    )]
    NoShare { map: &'static str, limit: u32 },
    /// The node has more addresses than the map `node_addrs` can hold. The size of this map is not configurable.
    #[error("map node_addrs is full ({limit} addresses): reduce the addresses that node.nodeport-addresses selects")]
    TooManyNodeAddrs { limit: u32 },
    /// The node has more uplinks than the map `uplinks` can hold. The size of this map is not configurable.
    #[error("map uplinks is full ({limit} devices): name fewer devices in packets.devices, or more in packets.except")]
    TooManyUplinks { limit: u32 },
    /// The list would fit, but part of it was freed so recently that a program may still be reading it. It becomes
    /// available within about a second.
    #[error("map slots has no space for this list yet: nodelb reuses slots one second after they were freed")]
    Resting,
    /// Any other failure. The text contains the name of the map and the error of the kernel.
    #[error("map {map}: {reason}")]
    Failed { map: &'static str, reason: String },
}

/// The configuration key that sets the size of the map.
pub fn size_key(map: &str) -> String {
    let section = if matches!(map, "outside" | "source_ranges") { "packets" } else { "datapath" };
    format!("{section}.max-{}", map.replace('_', "-"))
}

/// The holder of the maps. It has a single caller, the owner task. Operations are idempotent: deleting an absent entry
/// succeeds.
pub trait Datapath {
    fn limits(&self) -> Limits;

    /// Carries out the operations in order and returns the result of each, so the result has the length of `ops`. After
    /// a failed operation the following ones are still tried.
    fn apply(&mut self, ops: &[MapOp], now: Moment) -> Vec<Result<(), MapError>>;

    /// Ends the round: all operations since the last call are complete at this time. Everything that they freed rests
    /// from now on.
    fn end_round(&mut self, ended: Moment);

    /// The content of the maps, read back from them.
    fn dump(&self) -> Result<Realised, MapError>;

    /// The content of the maps under these keys, and possibly under others.
    fn read(&self, _keys: &[EntryKey]) -> Result<Content, MapError> {
        Ok(Content { state: self.dump()?, ..Content::default() })
    }
}
