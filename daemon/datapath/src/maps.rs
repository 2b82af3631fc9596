//! The maps of one generation: descriptors, and the two arrays that are shared memory. Owns how single words are read
//! and published; [`crate::read`] and [`crate::write`] say what they mean.
//!
//! # Why a reader never sees a mixture
//!
//! A list is written into slots that no view points at, then the view's word is stored with release ordering. A BPF
//! program loads the word once and computes the slot's index from it, so the slot's load depends on the word's and is
//! ordered after it on every machine: it sees the slots as they were written before the word. The words are aligned
//! and 8 bytes wide, so neither side sees half of one. What a program may still hold, an old word, points at slots
//! that are left alone for [`nodelb_core::state::runs::REST_MILLIS`].

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapInfo};
use nodelb_core::datapath::Limits;
use nodelb_core::model::moment::Moment;
use nodelb_core::state::runs::{REST_MILLIS, Runs};

use crate::crash::CrashPoint;
use crate::layout::{self, Policy, SERVICE_WORDS, SLOT_WORDS, View};
use crate::sys::{self, SharedWords};

/// The maps whose content is nodelb's, by their names in `bpf/maps.h`, which are their pins' names too.
pub(crate) const NAMES: [&str; 5] = ["frontends", "services", "slots", "node_addrs", "affinity"];

/// Which of a service's two lists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    Cluster,
    Local,
}

impl Which {
    const fn word(self) -> usize {
        match self {
            Self::Cluster => layout::CLUSTER_WORD,
            Self::Local => layout::LOCAL_WORD,
        }
    }
}

/// What makes two maps interchangeable, and how large a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) map_type: u32,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    pub(crate) flags: u32,
    pub(crate) max_entries: u32,
}

impl Spec {
    pub(crate) fn of(map: &MapHandle) -> io::Result<Self> {
        let info = MapInfo::new(map.as_fd()).map_err(into_io)?.info;
        Ok(Self {
            map_type: info.type_,
            key_size: info.key_size,
            value_size: info.value_size,
            flags: info.map_flags,
            max_entries: info.max_entries,
        })
    }

    /// Whether a map of this kind can hold what the other holds, size aside.
    pub(crate) fn same_kind(self, other: Self) -> bool {
        Self { max_entries: 0, ..self } == Self { max_entries: 0, ..other }
    }
}

/// What the maps of a generation are, in the order of [`NAMES`].
pub(crate) fn kinds() -> [Spec; NAMES.len()] {
    use libbpf_sys::{BPF_F_MMAPABLE, BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LRU_HASH};
    let size = |bytes: usize| u32::try_from(bytes).expect("invariant: entries are small");
    let kind = |map_type, key_size, value_size| Spec {
        map_type,
        key_size: size(key_size),
        value_size: size(value_size),
        flags: if map_type == BPF_MAP_TYPE_ARRAY { BPF_F_MMAPABLE } else { 0 },
        max_entries: 0,
    };
    [
        kind(BPF_MAP_TYPE_HASH, size_of::<layout::FrontendKeyBytes>(), size_of::<layout::FrontendBytes>()),
        kind(BPF_MAP_TYPE_ARRAY, size_of::<u32>(), SERVICE_WORDS * 8),
        kind(BPF_MAP_TYPE_ARRAY, size_of::<u32>(), SLOT_WORDS * 8),
        kind(BPF_MAP_TYPE_HASH, size_of::<layout::NodeAddrBytes>(), size_of::<u32>()),
        kind(BPF_MAP_TYPE_LRU_HASH, size_of::<layout::AffinityKeyBytes>(), size_of::<layout::AffinityBytes>()),
    ]
}

/// The descriptors of one generation, in the order of [`NAMES`].
#[derive(Debug)]
pub(crate) struct Handles(pub(crate) [MapHandle; NAMES.len()]);

impl Handles {
    /// Opens the pins in a generation's directory.
    pub(crate) fn open(directory: &Path) -> Result<Self, (&'static str, io::Error)> {
        let open = |name| MapHandle::from_pinned_path(directory.join(name)).map_err(|e| (name, into_io(e)));
        let [frontends, services, slots, node_addrs, affinity] = NAMES.map(open);
        Ok(Self([frontends?, services?, slots?, node_addrs?, affinity?]))
    }

    /// Pins all of them in a directory.
    pub(crate) fn pin(&self, directory: &Path, crash: &CrashPoint) -> io::Result<()> {
        for (name, map) in NAMES.iter().zip(&self.0) {
            sys::pin(map.as_fd(), &directory.join(name))?;
            crash.pass();
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> Limits {
        let [frontends, services, slots, _, affinity] = self.0.each_ref().map(MapCore::max_entries);
        Limits { frontends, services, slots, affinity }
    }
}

/// The maps of one generation, ready for use.
#[derive(Debug)]
pub(crate) struct Maps {
    pub(crate) frontends: MapHandle,
    pub(crate) node_addrs: MapHandle,
    pub(crate) affinity: MapHandle,
    pub(crate) limits: Limits,
    pub(crate) room: Room,
    services: SharedWords,
    slots: SharedWords,
}

/// How many slots are not to be had: the writer says so, whoever likes reads it.
#[derive(Debug, Default)]
pub(crate) struct Room {
    used: AtomicU32,
    resting: AtomicU32,
    /// When that was said.
    at: AtomicU64,
}

impl Room {
    pub(crate) fn set(&self, runs: &Runs, now: Moment) {
        self.used.store(runs.used(), Ordering::Relaxed);
        self.resting.store(runs.resting(), Ordering::Relaxed);
        self.at.store(now.0, Ordering::Relaxed);
    }

    /// Slots in use, and those that rest; these have woken when nothing was written for long enough.
    pub(crate) fn taken(&self, now: Moment) -> u32 {
        let rest_ends = Moment(self.at.load(Ordering::Relaxed)).plus(REST_MILLIS);
        let resting = if rest_ends > now { self.resting.load(Ordering::Relaxed) } else { 0 };
        self.used.load(Ordering::Relaxed).saturating_add(resting)
    }
}

impl Maps {
    /// Maps the arrays into memory.
    pub(crate) fn new(handles: Handles) -> io::Result<Self> {
        let limits = handles.limits();
        let Handles([frontends, services, slots, node_addrs, affinity]) = handles;
        Ok(Self {
            frontends,
            node_addrs,
            affinity,
            limits,
            room: Room::default(),
            services: SharedWords::map(&services)?,
            slots: SharedWords::map(&slots)?,
        })
    }

    /// The view a program would read now.
    pub(crate) fn view(&self, service: u32, which: Which) -> View {
        let [word] = self.services.read(service as usize * SERVICE_WORDS + which.word());
        layout::parse_view(word)
    }

    /// Readers of the service see this view from now on.
    pub(crate) fn publish(&self, service: u32, which: Which, view: View) {
        let word = &self.services.all()[service as usize * SERVICE_WORDS + which.word()];
        word.store(layout::view_word(view), Ordering::Release);
    }

    pub(crate) fn policy(&self, service: u32) -> Policy {
        let [word] = self.services.read(service as usize * SERVICE_WORDS + layout::POLICY_WORD);
        layout::parse_policy(word)
    }

    pub(crate) fn set_policy(&self, service: u32, policy: Policy) {
        let word = &self.services.all()[service as usize * SERVICE_WORDS + layout::POLICY_WORD];
        word.store(layout::policy_word(policy), Ordering::Release);
    }

    /// The owner's hashes, see [`layout::owner_word`].
    pub(crate) fn owner(&self, service: u32) -> u64 {
        let [word] = self.services.read(service as usize * SERVICE_WORDS + layout::OWNER_WORD);
        word
    }

    pub(crate) fn set_owner(&self, service: u32, owner: u64) {
        let word = &self.services.all()[service as usize * SERVICE_WORDS + layout::OWNER_WORD];
        word.store(owner, Ordering::Release);
    }

    pub(crate) fn slot(&self, index: u32) -> [u64; SLOT_WORDS] {
        self.slots.read(index as usize * SLOT_WORDS)
    }

    /// Only for a slot that no view points at.
    pub(crate) fn set_slot(&self, index: u32, words: [u64; SLOT_WORDS]) {
        let slot = &self.slots.all()[index as usize * SLOT_WORDS..][..SLOT_WORDS];
        for (to, word) in slot.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Writes, reads and deletes an entry of `affinity` that no client has, to see whether the kernel lets this process
    /// work.
    pub(crate) fn try_system_calls(&self) -> io::Result<()> {
        let key = layout::unused_affinity_key();
        let value: layout::AffinityBytes = [0; _];
        self.affinity.update(&key, &value, MapFlags::ANY).map_err(into_io)?;
        self.affinity.lookup(&key, MapFlags::ANY).map_err(into_io)?;
        self.affinity.delete(&key).map_err(into_io)
    }
}

/// Dates what programs keep about frontends: odd while these are being changed, and another even number afterwards. A
/// crash in between leaves it odd: then nothing is kept, which is slower and right, until the next start.
#[derive(Debug)]
pub(crate) struct Epoch(SharedWords);

impl Epoch {
    pub(crate) fn new(map: &MapHandle) -> io::Result<Self> {
        SharedWords::map(map).map(Self)
    }

    /// Changes frontends or node addresses.
    pub(crate) fn change<T>(&self, work: impl FnOnce() -> T) -> T {
        let number = &self.0.all()[0];
        let odd = number.load(Ordering::Relaxed) | 1;
        number.store(odd, Ordering::Relaxed);
        // Before the first change, in every other CPU's eyes as well; the release store comes after the last one.
        fence(Ordering::SeqCst);
        let result = work();
        number.store(odd.wrapping_add(1), Ordering::Release);
        result
    }
}

/// With the system's error number where callers branch on it: libbpf-rs keeps that to itself and tells only the kind.
pub(crate) fn into_io(error: libbpf_rs::Error) -> io::Error {
    let number = match error.kind() {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::PermissionDenied => libc::EPERM,
        ErrorKind::TooBig => libc::E2BIG,
        ErrorKind::Unsupported => libc::ENOSYS,
        _ => return io::Error::other(error),
    };
    io::Error::from_raw_os_error(number)
}

#[cfg(test)]
#[path = "tests/maps.rs"]
mod tests;
