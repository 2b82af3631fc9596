//! The maps of connections, which outlive generations and the daemon, and are carried over when their sizes change.
//!
//! A map of another size is created empty next to the old one, pinned as `NAME-new`. Then the programs are replaced by those
//! that use it: they look into the old map, too, and bring what they find there (`bpf/former.h`). The old map is the truth
//! about a connection until the new programs have seen one of its packets, so that nothing is copied before: the old
//! programs may have ended what was copied, and begun another connection with the same addresses and ports. When no device
//! runs the old programs any more, the rest is copied, and a rename makes the new map the only one. After a crash in
//! between, the next start finds both and does the same again. A map that is too small for the entries is not used: the
//! present size remains.

use std::cell::Cell;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::error::{OpenError, failed, into_io};
use crate::layout::connections::{ConnectionBytes, PacketKeyBytes, assured, is_assured, is_forwarded};
use crate::packets::bloom;
use crate::packets::handles::PacketMaps;
use crate::packets::load::PacketOptions;
use crate::pins::{self, Pins, UNFINISHED};
use crate::skeleton::packet::types;
use crate::spec::Spec;
use crate::sys;
use crate::versions;

/// The maps, by their names in `bpf/packet_maps.h`, which are also the names of their pins.
pub(crate) const PERSISTENT: [&str; 4] = [CONNECTIONS, HALF_OPEN, FRAGMENTS, "snat_cursors"];
const CONNECTIONS: &str = "connections";
const HALF_OPEN: &str = "half_open";
const FRAGMENTS: &str = "fragments";

/// The maps that contain the predecessors of the first two.
const FORMER: [&str; 2] = ["former_connections", "former_half_open"];

pub(crate) fn pin_names() -> impl Iterator<Item = String> {
    PERSISTENT.iter().flat_map(|name| [(*name).to_owned(), format!("{name}{UNFINISHED}")]).chain(bloom::pin_names())
}

/// Sizes of keys and values in bytes.
const PACKET_KEY: usize = size_of::<PacketKeyBytes>();
const CONNECTION: usize = size_of::<ConnectionBytes>();
const FRAGMENT_KEY: usize = size_of::<types::fragment_key>();
const FRAGMENT: usize = size_of::<types::fragment>();

/// `SNAT_CURSORS`.
const CURSORS: u32 = 4096;

const ENTRIES_PER_CONNECTION: u32 = 2;

/// How often [`add`] stores an entry again if the kernel has no memory for it, and the pause in between: together
/// longer than the kernel needs to fill its reserve on a busy machine.
const ALLOCATION_TRIES: u32 = 200;
const ALLOCATION_PAUSE: Duration = Duration::from_millis(5);

/// The specifications of the maps, in the order of [`PERSISTENT`].
fn specs(max_connections: u32, max_handshakes: u32, max_fragments: u32) -> [Spec; PERSISTENT.len()] {
    use libbpf_sys::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LRU_HASH};
    let spec =
        |kind, (key_size, value_size), max_entries| Spec { max_entries, ..Spec::kind(kind, key_size, value_size) };
    let entries = |connections: u32| connections.saturating_mul(ENTRIES_PER_CONNECTION);
    let connection = (PACKET_KEY, CONNECTION);
    [
        spec((BPF_MAP_TYPE_HASH, BPF_F_NO_PREALLOC), connection, entries(max_connections)),
        spec((BPF_MAP_TYPE_LRU_HASH, 0), connection, entries(max_handshakes)),
        spec((BPF_MAP_TYPE_LRU_HASH, 0), (FRAGMENT_KEY, FRAGMENT), max_fragments),
        spec((BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE), (size_of::<u32>(), size_of::<u32>()), CURSORS),
    ]
}

/// The maps, in the order of [`PERSISTENT`], ready for programs.
#[derive(Debug)]
pub(crate) struct ConnectionMaps {
    maps: [PersistentMap; PERSISTENT.len()],
}

/// One map, and the maps that it takes over from.
#[derive(Debug)]
struct PersistentMap {
    name: &'static str,
    map: MapHandle,
    /// Whether the map is pinned as `NAME-new` and becomes `NAME` when programs use it.
    is_unfinished: bool,
    /// The other maps that are pinned under one of the two names.
    sources: Vec<MapHandle>,
}

impl ConnectionMaps {
    /// Opens or creates the maps. Maps of other sizes keep their entries until [`Self::commit`].
    pub(crate) fn open(pins: &Pins, options: &PacketOptions) -> Result<Self, OpenError> {
        let specs = specs(options.max_connections, options.max_handshakes, options.max_fragments);
        let open = |i: usize| PersistentMap::open(pins, PERSISTENT[i], specs[i]);
        Ok(Self { maps: [open(0)?, open(1)?, open(2)?, open(3)?] })
    }

    /// The maps, in the order of [`PERSISTENT`].
    pub(crate) fn handles(&self) -> [&MapHandle; PERSISTENT.len()] {
        self.maps.each_ref().map(|it| &it.map)
    }

    /// Maximum number of connections: the configured one, or the present one if more connections exist.
    pub(crate) fn max_connections(&self) -> u32 {
        self.maps[0].map.max_entries() / ENTRIES_PER_CONNECTION
    }

    /// Whether a connection has direct return.
    pub(crate) fn has_forwarded(&self) -> io::Result<bool> {
        let [_, half_open, ..] = &self.maps;
        let mut found = ControlFlow::Continue(());
        for map in half_open.sources.iter().chain([&half_open.map]) {
            sys::each_batch_until::<PACKET_KEY, CONNECTION>(map, |_, values| {
                if values.iter().any(is_forwarded) {
                    found = ControlFlow::Break(());
                }
                found
            })?;
        }
        Ok(found.is_break())
    }

    /// Lets the new programs look for connections in the maps that are replaced, until [`Self::commit`].
    pub(crate) fn show_former(&self, programs: &PacketMaps) -> Result<(), OpenError> {
        let replaced = self.maps.iter().zip(FORMER);
        if replaced.clone().all(|(map, _)| map.sources.is_empty()) {
            return Ok(());
        }
        for (map, name) in replaced {
            let path = Path::new(name);
            let former = programs.get(name).ok_or_else(|| failed("finding the map", path)("the object has none"))?;
            // The programs check by the first of these maps whether there is any.
            let is_first = map.name == CONNECTIONS && map.sources.is_empty();
            let shown = if is_first { std::slice::from_ref(&map.map) } else { &map.sources };
            for (index, source) in (0_u32..).zip(shown) {
                let descriptor = source.as_fd().as_raw_fd().to_ne_bytes();
                let shown = former.update(&index.to_ne_bytes(), &descriptor, MapFlags::ANY);
                shown.map_err(into_io).map_err(failed("writing the map", path))?;
            }
        }
        Ok(())
    }

    /// Ends what [`Self::show_former`] has begun: the memory of the old maps is released.
    pub(crate) fn hide_former(programs: &PacketMaps) -> Result<(), OpenError> {
        for (name, former) in FORMER.iter().filter_map(|name| Some((name, programs.get(name)?))) {
            let is_set = |key: &Vec<u8>| matches!(former.lookup(key, MapFlags::ANY), Ok(Some(_)));
            let hidden = former.keys().filter(is_set).try_for_each(|key| former.delete(&key));
            hidden.map_err(into_io).map_err(failed("writing the map", Path::new(name)))?;
        }
        Ok(())
    }

    /// Completes the take-over, after every hook runs programs that use these maps.
    pub(crate) fn commit(&mut self, pins: &Pins) -> Result<(), OpenError> {
        let [connections, half_open, others @ ..] = &mut self.maps;
        connections.commit(pins, None, Some(&half_open.map))?;
        half_open.commit(pins, Some(&connections.map), None)?;
        others.iter_mut().try_for_each(|map| map.commit(pins, None, None))
    }
}

impl PersistentMap {
    /// Opens or creates the map. If the entries do not fit into the wanted size, it keeps the largest present size.
    fn open(pins: &Pins, name: &'static str, wanted: Spec) -> Result<Self, OpenError> {
        let opened = Self::find(pins, name, wanted)?;
        let sizes = opened.sources.iter().map(MapCore::max_entries);
        let largest = sizes.chain([wanted.max_entries]).max().unwrap_or(wanted.max_entries);
        let fits = largest == wanted.max_entries || opened.fits().map_err(failed("reading", &pins.persistent(name)))?;
        let kept = if fits { opened } else { Self::find(pins, name, Spec { max_entries: largest, ..wanted })? };
        // Of two, the second was pinned by a start that did not end, and programs may use it: it loses its pin.
        if let Some(second) = kept.sources.get(1) {
            kept.copy(second, None, None).map_err(failed("copying connections from", &pins.persistent(name)))?;
        }
        kept.pin(pins)?;
        Ok(kept)
    }

    /// Whether the map has room for the entries of all. One that evicts old entries has.
    fn fits(&self) -> io::Result<bool> {
        if self.name != CONNECTIONS {
            return Ok(true);
        }
        let mut count = 0;
        for map in self.sources.iter().chain([&self.map]) {
            sys::each_batch::<PACKET_KEY, CONNECTION>(map, |keys, _| count += keys.len())?;
        }
        Ok(count <= self.map.max_entries() as usize)
    }

    /// The map of this size.
    fn find(pins: &Pins, name: &'static str, wanted: Spec) -> Result<Self, OpenError> {
        let [current, unfinished] = paths(pins, name);
        let found = [open_pinned(&current, wanted)?, open_pinned(&unfinished, wanted)?];
        let opened = match found {
            // Of the right size: the newer one, which programs may have been switched to already.
            [current, Some((map, true))] => {
                Self { name, map, is_unfinished: true, sources: current.into_iter().map(|(map, _)| map).collect() }
            }
            [Some((map, true)), other] => {
                Self { name, map, is_unfinished: false, sources: other.into_iter().map(|(map, _)| map).collect() }
            }
            [current, other] => {
                let sources: Vec<_> = [current, other].into_iter().flatten().map(|(map, _)| map).collect();
                let map = wanted.create(name)?;
                Self { name, map, is_unfinished: true, sources }
            }
        };
        Ok(opened)
    }

    /// Pins a new map, and replaces one that an interrupted start has left.
    fn pin(&self, pins: &Pins) -> Result<(), OpenError> {
        let [_, unfinished] = paths(pins, self.name);
        if !self.is_unfinished || sys::is_same_map(&self.map, &unfinished) {
            return Ok(());
        }
        pins::remove_file(&unfinished, pins.crash()).map_err(failed("removing", &unfinished))?;
        pins.pin(self.map.as_fd(), &unfinished)
    }

    /// Copies the entries of a former map; see [`Copy`].
    fn copy(&self, from: &MapHandle, later: Option<&MapHandle>, without_room: Option<&MapHandle>) -> io::Result<()> {
        let copy = Copy { from, to: &self.map, later, without_room, tries: Cell::new(ALLOCATION_TRIES) };
        match self.name {
            CONNECTIONS | HALF_OPEN => copy.run::<PACKET_KEY, CONNECTION>(),
            FRAGMENTS => copy.run::<FRAGMENT_KEY, FRAGMENT>(),
            // Where a search for a port begins does not matter.
            _ => Ok(()),
        }
    }

    fn commit(
        &mut self,
        pins: &Pins,
        later: Option<&MapHandle>,
        without_room: Option<&MapHandle>,
    ) -> Result<(), OpenError> {
        let [current, unfinished] = paths(pins, self.name);
        for from in &self.sources {
            self.copy(from, later, without_room).map_err(failed("copying connections from", &current))?;
        }
        self.sources.clear();
        if self.is_unfinished {
            pins.rename(&unfinished, &current)?;
            self.is_unfinished = false;
        } else {
            pins::remove_file(&unfinished, pins.crash()).map_err(failed("removing", &unfinished))?;
        }
        Ok(())
    }
}

/// Adds a second pin for each map of an older layout that has the same keys and values, so that connections continue,
/// and so that this start finds the Bloom filter that the older programs rely on. Maps that are already there stay.
pub(crate) fn share(predecessor: &Pins, pins: &Pins) -> Result<(), OpenError> {
    let kinds = specs(0, 0, 0);
    for (name, kind) in PERSISTENT.into_iter().zip(kinds).chain([(bloom::NAME, bloom::kind())]) {
        for (theirs, ours) in paths(predecessor, name).into_iter().zip(paths(pins, name)) {
            if ours.exists() {
                continue;
            }
            if let Some((map, _)) = Spec::open(&theirs)?.filter(|(_, found)| found.same_kind(kind)) {
                pins.pin(map.as_fd(), &ours)?;
            }
        }
    }
    Ok(())
}

pub(crate) fn is_any_pinned(pins: &Pins) -> bool {
    pin_names().any(|name| pins.persistent(&name).exists())
}

/// Removes the pins of the maps, and with them all connections, if no program uses them.
pub(crate) fn remove(pins: &Pins) -> Result<(), OpenError> {
    for path in pin_names().map(|name| pins.persistent(&name)) {
        pins::remove_file(&path, pins.crash()).map_err(failed("removing", &path))?;
    }
    Ok(())
}

/// The pins of a map and of its successor.
fn paths(pins: &Pins, name: &str) -> [PathBuf; 2] {
    [pins.persistent(name), pins.persistent(&format!("{name}{UNFINISHED}"))]
}

/// The map that is pinned at the path, and whether it has the wanted size.
fn open_pinned(path: &Path, wanted: Spec) -> Result<Option<(MapHandle, bool)>, OpenError> {
    match Spec::open(path)? {
        Some((map, found)) if found.same_kind(wanted) => Ok(Some((map, found == wanted))),
        Some(_) => Err(failed("using", path)(versions::FOREIGN)),
        None => Ok(None),
    }
}

/// Copies what a map does not have from a former one. Programs use both meanwhile, and `forget()` of `bpf/connections.h`
/// deletes in the former map first.
struct Copy<'m> {
    from: &'m MapHandle,
    to: &'m MapHandle,
    /// The map that entries move to after this one.
    later: Option<&'m MapHandle>,
    /// The map for connections that do not fit, which evicts others.
    without_room: Option<&'m MapHandle>,
    /// How often memory for an entry is asked for: once, after it could not be had.
    tries: Cell<u32>,
}

impl Copy<'_> {
    /// The order of least recent use is not kept.
    fn run<const K: usize, const V: usize>(&self) -> io::Result<()> {
        let mut copied = Ok(());
        sys::each_batch_until::<K, V>(self.from, |keys, _| {
            copied = keys.iter().try_for_each(|key| self.copy(key));
            if copied.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        copied
    }

    /// Copies an entry, unless a program has brought or deleted it.
    fn copy(&self, key: &[u8]) -> io::Result<()> {
        // As it is now, and not as it was when the batch was read.
        let Some(value) = sys::look_up(self.from, key)? else { return Ok(()) };
        if self.has_moved_on(key)? {
            return Ok(());
        }
        match (self.add(self.to, key, &value), self.without_room) {
            (Ok(true), _) => {}
            (Ok(false), _) => return Ok(()),
            (Err(error), None) => return Err(error),
            // As bring_connection().
            (Err(_no_room), Some(other)) => return self.add(other, key, &assured(value)).map(drop),
        }
        let is_over = sys::look_up(self.from, key)?.is_none() || self.has_moved_on(key)?;
        if is_over && sys::look_up(self.to, key)?.is_some_and(|present| present == value) {
            sys::delete(self.to, key)?;
        }
        Ok(())
    }

    /// Whether a program has brought it to another map: connections without room are marked there.
    fn has_moved_on(&self, key: &[u8]) -> io::Result<bool> {
        if let Some(without_room) = self.without_room
            && sys::look_up(without_room, key)?.is_some_and(|value| is_assured(&value))
        {
            return Ok(true);
        }
        self.later.map_or(Ok(false), |later| Ok(sys::look_up(later, key)?.is_some()))
    }

    /// Stores an entry, unless the map has one with this key. Returns whether it did. The kernel allocates entries from a
    /// reserve of each CPU, which it fills again in the background: ENOMEM may mean only that it is empty now.
    fn add(&self, to: &MapHandle, key: &[u8], value: &[u8]) -> io::Result<bool> {
        let mut tries = self.tries.get();
        loop {
            let Err(error) = to.update(key, value, MapFlags::NO_EXIST) else { return Ok(true) };
            tries -= 1;
            match error.kind() {
                ErrorKind::AlreadyExists => return Ok(false),
                ErrorKind::OutOfMemory if tries > 0 => sleep(ALLOCATION_PAUSE),
                ErrorKind::OutOfMemory => {
                    self.tries.set(1);
                    return Err(into_io(error));
                }
                _ => return Err(into_io(error)),
            }
        }
    }
}
