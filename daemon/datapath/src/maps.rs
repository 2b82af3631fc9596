//! The maps of one generation: their descriptors, and the two arrays in shared memory. Owns the reading and publishing
//! of single words; [`crate::read`] and [`crate::write`] define the meaning of the words.
//!
//! # Why a reader never sees a mixture
//!
//! The writer fills slots that no view points to, and then stores the view's word with release ordering. A BPF program
//! loads the word once and computes the slot's index from it, so the load of the slot depends on the load of the word
//! and is ordered after it on every machine: the program sees the slots as they were written before the word. The words
//! are aligned and 8 bytes wide, so neither side sees half of one. A program may still use an old word; the slots that
//! it points to stay unchanged for [`nodelb_core::state::runs::REST_MILLIS`].

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use libbpf_rs::{MapCore, MapHandle};
use nodelb_core::datapath::Limits;
use nodelb_core::model::moment::Moment;
use nodelb_core::state::entries::{ServiceEntry, Slot};
use nodelb_core::state::runs::{REST_MILLIS, Runs};

use crate::crash::CrashPoint;
use crate::error::{OpenError, failed, into_io};
use crate::layout::{self, Policy, SLOT_WORDS, ServiceWords, View};
use crate::outside::OutsideMaps;
use crate::spec::Spec;
use crate::sys::{self, SharedWords};

/// The maps with nodelb's content, by their names in `bpf/maps.h`, which are also the names of their pins.
pub(crate) const NAMES: [&str; 5] = ["frontends", "services", "slots", "node_addrs", "affinity"];

#[derive(Clone, Copy, Debug)]
pub(crate) enum ViewKind {
    Cluster,
    Local,
}

impl ViewKind {
    pub(crate) fn list(self, entry: &ServiceEntry) -> &[Slot] {
        match self {
            Self::Cluster => &entry.cluster,
            Self::Local => &entry.local,
        }
    }

    const fn word(self, words: &ServiceWords) -> usize {
        match self {
            Self::Cluster => words.cluster,
            Self::Local => words.local,
        }
    }
}

/// The specifications of a generation's maps, in the order of [`NAMES`].
pub(crate) fn kinds(service: &ServiceWords) -> [Spec; NAMES.len()] {
    use libbpf_sys::{BPF_F_MMAPABLE, BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LRU_HASH};
    let kind = |map_type, key_size, value_size| {
        let flags = if map_type == BPF_MAP_TYPE_ARRAY { BPF_F_MMAPABLE } else { 0 };
        Spec::kind((map_type, flags), key_size, value_size)
    };
    [
        kind(BPF_MAP_TYPE_HASH, size_of::<layout::FrontendKeyBytes>(), size_of::<layout::FrontendBytes>()),
        kind(BPF_MAP_TYPE_ARRAY, size_of::<u32>(), service.count * 8),
        kind(BPF_MAP_TYPE_ARRAY, size_of::<u32>(), SLOT_WORDS * 8),
        kind(BPF_MAP_TYPE_HASH, size_of::<layout::NodeAddrBytes>(), size_of::<u32>()),
        kind(BPF_MAP_TYPE_LRU_HASH, size_of::<layout::AffinityKeyBytes>(), size_of::<layout::AffinityBytes>()),
    ]
}

/// The descriptors of one generation: the maps of [`NAMES`] in their order, and those that need not exist.
#[derive(Debug)]
pub(crate) struct Handles(pub(crate) [MapHandle; NAMES.len()], pub(crate) OutsideMaps);

impl Handles {
    pub(crate) fn open(directory: &Path) -> Result<Self, OpenError> {
        let refused = |name, error| failed("opening (nodelb cleanup removes all maps)", &directory.join(name))(error);
        let open = |name| MapHandle::from_pinned_path(directory.join(name)).map_err(|e| refused(name, into_io(e)));
        let [frontends, services, slots, node_addrs, affinity] = NAMES.map(open);
        let outside = OutsideMaps::open(directory).map_err(|(name, error)| refused(name, error));
        Ok(Self([frontends?, services?, slots?, node_addrs?, affinity?], outside?))
    }

    pub(crate) fn pin(&self, directory: &Path, crash: &CrashPoint) -> io::Result<()> {
        for (name, map) in NAMES.iter().zip(&self.0) {
            sys::pin(map.as_fd(), &directory.join(name))?;
            crash.pass();
        }
        self.1.pin(directory, crash)
    }

    pub(crate) fn limits(&self) -> Limits {
        let [frontends, services, slots, _, affinity] = self.0.each_ref().map(MapCore::max_entries);
        let (outside, source_ranges) = self.1.limits();
        Limits { frontends, services, slots, affinity, outside, source_ranges }
    }
}

/// The maps of one generation, ready for use.
#[derive(Debug)]
pub(crate) struct Maps {
    pub(crate) frontends: MapHandle,
    pub(crate) node_addrs: MapHandle,
    pub(crate) affinity: MapHandle,
    pub(crate) outside: OutsideMaps,
    pub(crate) limits: Limits,
    pub(crate) slot_usage: SlotUsage,
    service_words: ServiceWords,
    services: SharedWords,
    slots: SharedWords,
}

/// The number of slots that are not free. The writer updates it; any task may read it.
#[derive(Debug, Default)]
pub(crate) struct SlotUsage {
    used: AtomicU32,
    resting: AtomicU32,
    at: AtomicU64,
}

impl SlotUsage {
    pub(crate) fn set(&self, runs: &Runs, now: Moment) {
        self.used.store(runs.used(), Ordering::Relaxed);
        self.resting.store(runs.resting(), Ordering::Relaxed);
        self.at.store(now.0, Ordering::Relaxed);
    }

    /// Slots in use and slots that rest. The latter count as free if nothing was written for longer than the rest
    /// lasts.
    pub(crate) fn taken(&self, now: Moment) -> u32 {
        let rest_ends = Moment(self.at.load(Ordering::Relaxed)).plus(REST_MILLIS);
        let resting = if rest_ends > now { self.resting.load(Ordering::Relaxed) } else { 0 };
        self.used.load(Ordering::Relaxed).saturating_add(resting)
    }
}

impl Maps {
    pub(crate) fn new(handles: Handles) -> io::Result<Self> {
        let limits = handles.limits();
        let Handles([frontends, services, slots, node_addrs, affinity], outside) = handles;
        Ok(Self {
            frontends,
            node_addrs,
            affinity,
            outside,
            limits,
            slot_usage: SlotUsage::default(),
            service_words: ServiceWords::of_size(services.value_size()),
            services: SharedWords::map(&services)?,
            slots: SharedWords::map(&slots)?,
        })
    }

    /// The first word of the service's entry.
    const fn place(&self, service: u32) -> usize {
        service as usize * self.service_words.count
    }

    /// The view that a program would read now.
    pub(crate) fn view(&self, service: u32, which: ViewKind) -> View {
        let [word] = self.services.read(self.place(service) + which.word(&self.service_words));
        layout::parse_view(word)
    }

    /// Publishes the view: programs that look up the service see it from now on.
    pub(crate) fn publish(&self, service: u32, which: ViewKind, view: View) {
        let word = &self.services.at(self.place(service) + which.word(&self.service_words), 1)[0];
        word.store(layout::view_word(view), Ordering::Release);
    }

    pub(crate) fn policy(&self, service: u32) -> Policy {
        let [word] = self.services.read(self.place(service) + self.service_words.policy);
        layout::parse_policy(word)
    }

    pub(crate) fn set_policy(&self, service: u32, policy: Policy) {
        let word = &self.services.at(self.place(service) + self.service_words.policy, 1)[0];
        word.store(layout::policy_word(policy), Ordering::Release);
    }

    /// The hashes of the owner, see [`layout::owner_word`]; for the canary, see [`layout::next_ids_word`].
    pub(crate) fn owner(&self, service: u32) -> u64 {
        let [word] = self.services.read(self.place(service) + self.service_words.owner);
        word
    }

    pub(crate) fn set_owner(&self, service: u32, owner: u64) {
        let word = &self.services.at(self.place(service) + self.service_words.owner, 1)[0];
        word.store(owner, Ordering::Release);
    }

    pub(crate) fn slot(&self, index: u32) -> [u64; SLOT_WORDS] {
        self.slots.read(index as usize * SLOT_WORDS)
    }

    /// Writes a slot, which no view may point to.
    pub(crate) fn set_slot(&self, index: u32, words: [u64; SLOT_WORDS]) {
        let slot = self.slots.at(index as usize * SLOT_WORDS, SLOT_WORDS);
        for (to, word) in slot.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Writes, reads and deletes an entry of `affinity` that belongs to no client, as a test that the kernel permits
    /// this process to do so.
    pub(crate) fn try_system_calls(&self) -> io::Result<()> {
        let key = layout::unused_affinity_key();
        let value: layout::AffinityBytes = [0; _];
        sys::update(&self.affinity, &key, &value)?;
        sys::look_up(&self.affinity, &key)?;
        sys::delete(&self.affinity, &key)
    }
}

/// The epoch of what programs remember about frontends: odd while the frontends change, a different even number
/// afterwards. A crash during a change leaves it odd: programs then remember nothing until the next start, which is
/// slower but correct.
#[derive(Debug)]
pub(crate) struct Epoch(SharedWords);

impl Epoch {
    pub(crate) fn new(map: &MapHandle) -> io::Result<Self> {
        SharedWords::map(map).map(Self)
    }

    /// Runs `work`, which changes frontends, node addresses, or what clients outside the node may connect to.
    pub(crate) fn change<T>(&self, work: impl FnOnce() -> T) -> T {
        let number = &self.0.at(0, 1)[0];
        let odd = number.load(Ordering::Relaxed) | 1;
        number.store(odd, Ordering::Relaxed);
        // The odd number must be visible to all other CPUs before the first change. The release store comes after the
        // last change.
        fence(Ordering::SeqCst);
        let result = work();
        number.store(odd.wrapping_add(1), Ordering::Release);
        result
    }
}

#[cfg(test)]
#[path = "tests/maps.rs"]
mod tests;
