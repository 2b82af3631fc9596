//! The number of connections of each service, as the programs count them. Owns the shards. This module knows ids but no
//! names of services.

use std::io;
use std::sync::atomic::Ordering;

use libbpf_rs::{MapCore as _, MapHandle};
use nodelb_core::datapath::Count;
use nodelb_core::state::entries::ServiceId;

use crate::layout::{COUNTER_WORDS, REFUSED_WORD, TRANSLATED_WORD};
use crate::sys::SharedWords;

/// The maximum number of shards. With more CPUs than that, CPUs share shards, which costs time only when they count for
/// one service at the same time.
const MAX_SHARDS: usize = 8;

/// The maximum number of entries in all shards together, unless a single shard has more: 16 MiB.
const MAX_ENTRIES: usize = 1 << 20;

/// Reads the counts at any time and from any thread.
#[derive(Debug)]
pub struct Counters {
    words: SharedWords,
    services: usize,
    shards: usize,
}

impl Counters {
    /// The number of shards on this machine for this number of services: a power of two.
    pub(crate) fn shards(services: u32) -> usize {
        let mut shards = libbpf_rs::num_possible_cpus().unwrap_or(1).next_power_of_two().min(MAX_SHARDS);
        while shards > 1 && shards * services as usize > MAX_ENTRIES {
            shards /= 2;
        }
        shards
    }

    /// Uses a map that has this number of entries in each shard.
    pub(crate) fn new(map: &MapHandle, services: u32) -> io::Result<Self> {
        let (services, entries) = (services as usize, map.max_entries() as usize);
        Ok(Self { words: SharedWords::map(map)?, services, shards: entries / services.max(1) })
    }

    /// Sets all counts in the map to 0. They are mapped only for this call: most have never been used.
    pub(crate) fn clear(map: &MapHandle) -> io::Result<()> {
        let words = SharedWords::map(map)?;
        words.iter().filter(|word| word.load(Ordering::Relaxed) > 0).for_each(|word| word.store(0, Ordering::Relaxed));
        Ok(())
    }

    /// The count since the daemon started, or since the id was assigned to its service.
    pub fn read(&self, id: ServiceId) -> Count {
        let mut count = Count::default();
        self.each_shard(id, |words| {
            count.translated += words[TRANSLATED_WORD].load(Ordering::Relaxed);
            count.refused += words[REFUSED_WORD].load(Ordering::Relaxed);
        });
        count
    }

    /// Sets the count to 0. The id must have no frontend.
    pub(crate) fn reset(&self, id: ServiceId) {
        self.each_shard(id, |words| words.iter().for_each(|word| word.store(0, Ordering::Relaxed)));
    }

    fn each_shard(&self, id: ServiceId, mut each: impl FnMut(&[std::sync::atomic::AtomicU64])) {
        let id = id.0 as usize;
        if id >= self.services {
            return;
        }
        for shard in 0..self.shards {
            each(self.words.at((shard * self.services + id) * COUNTER_WORDS, COUNTER_WORDS));
        }
    }
}
