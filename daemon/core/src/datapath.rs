//! What nodelb asks of whatever holds the maps: the kernel, or memory ([`crate::memory`]).

use crate::model::moment::Moment;
use crate::state::entries::{MapOp, Realised};
use crate::state::kernel_check::{Content, EntryKey};

/// How many entries each map can hold, fixed when the maps are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of `frontends`; config key `datapath.max-frontends`.
    pub frontends: u32,
    /// Entries of `services`; config key `datapath.max-services`.
    pub services: u32,
    /// Entries of `slots`; config key `datapath.max-slots`.
    pub slots: u32,
    /// Entries of `affinity`; config key `datapath.max-affinity`. When full, the client seen longest ago loses its
    /// affinity.
    pub affinity: u32,
}

/// How many connections a service had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count {
    /// That were sent to a backend: each TCP connect, and each time a UDP socket was given a backend that it did not
    /// have, be it by connect or by a datagram.
    pub translated: u64,
    /// That were refused: each TCP connect, UDP connect and unconnected datagram.
    pub refused: u64,
}

impl Count {
    /// Takes in more.
    pub fn add(&mut self, more: Self) {
        self.translated += more.translated;
        self.refused += more.refused;
    }

    /// What came since; everything, if the counting began anew in between.
    pub fn since(self, before: Self) -> Self {
        if self.translated < before.translated || self.refused < before.refused {
            return self;
        }
        Self { translated: self.translated - before.translated, refused: self.refused - before.refused }
    }
}

/// Why an operation was not carried out. The map is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// No room. The operator's remedy is the named key.
    #[error("map {map} is full ({limit} entries): raise datapath.max-{map} and restart nodelb")]
    Full {
        /// Which map.
        map: &'static str,
        /// How many entries it can hold.
        limit: u32,
    },
    /// More node addresses than the map can hold, whose size is not configured.
    #[error(
        "map node_addrs is full ({limit} addresses): let node.nodeport-addresses mean fewer of the node's addresses"
    )]
    TooManyNodeAddrs {
        /// How many it can hold.
        limit: u32,
    },
    /// There is room for the list, but part of it was freed so recently that a program may still be reading it. It is
    /// to be had within about a second.
    #[error("map slots has no room for this list yet: nodelb uses slots again one second after they were freed")]
    Resting,
    /// Anything else; the text names the map and what the kernel said.
    #[error("map {map}: {reason}")]
    Failed {
        /// Which map.
        map: &'static str,
        /// What went wrong.
        reason: String,
    },
}

/// The holder of the maps. One owner calls it; operations are idempotent, and deleting what is absent succeeds.
pub trait Datapath {
    /// The sizes of the maps.
    fn limits(&self) -> Limits;

    /// Carries the operations out in order and tells how each went; the result has the length of `ops`. A failed
    /// operation does not keep later ones from being tried.
    fn apply(&mut self, ops: &[MapOp], now: Moment) -> Vec<Result<(), MapError>>;

    /// The operations since the last call are all done, and it is now this late: whatever they took out of use rests from
    /// now on.
    fn end_round(&mut self, ended: Moment);

    /// What the maps hold, read back from them.
    ///
    /// # Errors
    /// When a map cannot be read.
    fn dump(&self) -> Result<Realised, MapError>;

    /// What the maps hold under these keys, and possibly under others.
    ///
    /// # Errors
    /// When a map cannot be read.
    fn read(&self, keys: &[EntryKey]) -> Result<Content, MapError> {
        let _ = keys;
        Ok(Content { state: self.dump()?, ..Content::default() })
    }
}
