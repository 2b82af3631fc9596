//! The maps of a generation that exist only if clients outside the node are served: `outside`, `source_ranges` and
//! `uplinks`. The daemon creates them itself, because the object with the programs for sockets lacks one of them.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use libbpf_rs::{MapCore, MapHandle};
use nodelb_core::datapath::{Limits, MapError};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::state::entries::MAX_UPLINKS;
use nodelb_core::state::kernel_check::{Content, EntryKey};

use crate::crash::CrashPoint;
use crate::error::{OpenError, into_io, map_failed};
use crate::layout::{self, OutsideBytes, RangeBytes, UplinkBytes};
use crate::spec::Spec;
use crate::sys;

/// The maps, by their names in `bpf/packet_maps.h`, which are also the names of their pins.
pub(crate) const NAMES: [&str; 3] = ["outside", "source_ranges", "uplinks"];

pub(crate) const OUTSIDE: usize = 0;
pub(crate) const RANGES: usize = 1;
pub(crate) const UPLINKS: usize = 2;

/// The specifications of the maps for these limits, in the order of [`NAMES`]; `None` for a map that does not exist.
pub(crate) fn specs(limits: Limits) -> [Option<Spec>; NAMES.len()] {
    let Limits { outside, source_ranges, .. } = limits;
    let sizes = [outside, if outside > 0 { source_ranges } else { 0 }, if outside > 0 { MAX_UPLINKS } else { 0 }];
    let [outside, ranges, uplinks] = kinds();
    let [a, b, c] = [(outside, sizes[0]), (ranges, sizes[1]), (uplinks, sizes[2])]
        .map(|(kind, max_entries)| (max_entries > 0).then_some(Spec { max_entries, ..kind }));
    [a, b, c]
}

/// The maps without sizes.
fn kinds() -> [Spec; NAMES.len()] {
    use libbpf_sys::{BPF_F_NO_PREALLOC, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LPM_TRIE};
    let (hash, trie) = ((BPF_MAP_TYPE_HASH, 0), (BPF_MAP_TYPE_LPM_TRIE, BPF_F_NO_PREALLOC));
    [
        Spec::kind(hash, size_of::<layout::FrontendKeyBytes>(), size_of::<OutsideBytes>()),
        Spec::kind(trie, size_of::<RangeBytes>(), size_of::<u32>()),
        Spec::kind(hash, size_of::<u32>(), size_of::<UplinkBytes>()),
    ]
}

/// The maps, in the order of [`NAMES`]; `None` for one that does not exist.
#[derive(Debug, Default)]
pub(crate) struct OutsideMaps([Option<MapHandle>; NAMES.len()]);

impl OutsideMaps {
    pub(crate) fn create(limits: Limits) -> Result<Self, OpenError> {
        let [a, b, c] = specs(limits);
        let create = |name, spec: Option<Spec>| spec.map(|spec| spec.create(name)).transpose();
        Ok(Self([create(NAMES[OUTSIDE], a)?, create(NAMES[RANGES], b)?, create(NAMES[UPLINKS], c)?]))
    }

    pub(crate) fn open(directory: &Path) -> Result<Self, (&'static str, io::Error)> {
        let open = |name| {
            let path = directory.join(name);
            let map = path.exists().then(|| MapHandle::from_pinned_path(path));
            map.transpose().map_err(|error| (name, into_io(error)))
        };
        let [a, b, c] = NAMES.map(open);
        Ok(Self([a?, b?, c?]))
    }

    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        let duplicate = |map: &Option<MapHandle>| map.as_ref().map(MapHandle::try_from).transpose().map_err(into_io);
        let [a, b, c] = self.0.each_ref().map(duplicate);
        Ok(Self([a?, b?, c?]))
    }

    pub(crate) fn into_named(self) -> impl Iterator<Item = (&'static str, MapHandle)> {
        NAMES.into_iter().zip(self.0).filter_map(|(name, map)| Some((name, map?)))
    }

    /// The maps of the clients that an address admits, if they exist: `outside` and `source_ranges`.
    pub(crate) fn of_clients(&self) -> Option<[&MapHandle; 2]> {
        let [outside, ranges, _] = &self.0;
        Some([outside.as_ref()?, ranges.as_ref()?])
    }

    pub(crate) fn pin(&self, directory: &Path, crash: &CrashPoint) -> io::Result<()> {
        for (name, map) in NAMES.iter().zip(&self.0) {
            if let Some(map) = map {
                sys::pin(map.as_fd(), &directory.join(name))?;
                crash.pass();
            }
        }
        Ok(())
    }

    /// The sizes of `outside` and `source_ranges` in entries; 0 for a map that does not exist.
    pub(crate) fn limits(&self) -> (u32, u32) {
        let [outside, ranges, _] = self.0.each_ref().map(|map| map.as_ref().map_or(0, MapCore::max_entries));
        (outside, ranges)
    }

    /// Whether the maps are those for these limits; `None` if one of them is of another kind and thus not nodelb's.
    pub(crate) fn fit(&self, limits: Limits) -> io::Result<Option<bool>> {
        let mut fit = true;
        for ((map, kind), wanted) in self.0.iter().zip(kinds()).zip(specs(limits)) {
            let found = map.as_ref().map(Spec::read).transpose()?;
            if found.is_some_and(|found| !found.same_kind(kind)) {
                return Ok(None);
            }
            fit &= found == wanted;
        }
        Ok(Some(fit))
    }

    /// Removes all addresses that clients outside the node can connect to: programs that use these maps translate no
    /// new connection from then on.
    pub(crate) fn serve_none(&self) -> io::Result<()> {
        for map in self.0[OUTSIDE].iter() {
            map.keys().try_for_each(|key| map.delete(&key)).map_err(into_io)?;
        }
        Ok(())
    }

    /// Adds or replaces an entry of the map with this number in [`NAMES`].
    pub(crate) fn put(&self, at: usize, key: &[u8], value: &[u8]) -> Result<(), MapError> {
        let map = self.0[at].as_ref();
        let limit = map.map_or(0, MapCore::max_entries);
        let full = || match at {
            UPLINKS => MapError::TooManyUplinks { limit },
            _ => MapError::Full { map: NAMES[at], limit },
        };
        put(map.ok_or_else(full)?, NAMES[at], (key, value), full)
    }

    pub(crate) fn delete(&self, at: usize, key: &[u8]) -> Result<(), MapError> {
        let Some(map) = &self.0[at] else { return Ok(()) };
        sys::delete(map, key).map_err(map_failed(NAMES[at]))
    }

    pub(crate) fn read(&self, content: &mut Content) -> Result<(), MapError> {
        let [outside, _, uplinks] = &self.0;
        if let Some(map) = outside {
            for (key, value) in sys::entries(map).map_err(map_failed(NAMES[OUTSIDE]))? {
                match layout::parse_frontend_key(&key) {
                    Some(addr) => add_outside(addr, &value, content),
                    None => add_invalid_key(NAMES[OUTSIDE], &key, content),
                }
            }
        }
        self.read_ranges(content);
        if let Some(map) = uplinks {
            for (key, value) in sys::entries::<4, _>(map).map_err(map_failed(NAMES[UPLINKS]))? {
                add_uplink(u32::from_ne_bytes(key), &value, content);
            }
        }
        Ok(())
    }

    /// Adds the entry with this key, if it is one of these maps. For a range, adds all ranges: a lookup in a trie finds
    /// the longest match, which may be another entry.
    pub(crate) fn read_entry(&self, key: &EntryKey, content: &mut Content) -> Result<(), MapError> {
        let [outside, _, uplinks] = &self.0;
        match key {
            EntryKey::Outside(addr) => {
                if let Some(value) = look_up(outside.as_ref(), NAMES[OUTSIDE], &layout::frontend_key(addr))? {
                    add_outside(*addr, &value, content);
                }
            }
            EntryKey::SourceRange(..) if content.state.source_ranges.is_empty() => self.read_ranges(content),
            EntryKey::Uplink(index) => {
                if let Some(value) = look_up(uplinks.as_ref(), NAMES[UPLINKS], &index.to_ne_bytes())? {
                    add_uplink(*index, &value, content);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn read_ranges(&self, content: &mut Content) {
        for key in self.0[RANGES].iter().flat_map(MapCore::keys) {
            let bytes = key.first_chunk().expect("invariant: a key has the map's size");
            match layout::parse_range(bytes) {
                Some(range) => drop(content.state.source_ranges.insert(range)),
                None => add_invalid_key(NAMES[RANGES], &key, content),
            }
        }
    }
}

/// Adds or replaces an entry; `full` is the error if there is no space for it.
pub(crate) fn put(
    map: &MapHandle,
    name: &'static str,
    (key, value): (&[u8], &[u8]),
    full: impl Fn() -> MapError,
) -> Result<(), MapError> {
    sys::update(map, key, value).map_err(|error| match error.raw_os_error() {
        // A hash table answers E2BIG, a trie ENOSPC.
        Some(libc::E2BIG | libc::ENOSPC) => full(),
        _ => map_failed(name)(error),
    })
}

pub(crate) fn look_up<const V: usize>(
    map: Option<&MapHandle>,
    name: &'static str,
    key: &[u8],
) -> Result<Option<[u8; V]>, MapError> {
    let Some(map) = map else { return Ok(None) };
    let value = sys::look_up(map, key).map_err(map_failed(name))?;
    Ok(value.map(|value| value.try_into().expect("invariant: a value has the map's size")))
}

fn add_outside(addr: L4Addr, value: &OutsideBytes, content: &mut Content) {
    match layout::parse_outside(&addr, value) {
        Some(entry) => drop(content.state.outside.insert(addr, entry)),
        None => {
            let text = format!("outside frontend {addr}: its value {value:02x?} was not written by nodelb");
            content.broken.entries.insert(EntryKey::Outside(addr), text);
        }
    }
}

fn add_uplink(index: u32, value: &UplinkBytes, content: &mut Content) {
    match layout::parse_uplink(value) {
        Some(entry) => drop(content.state.uplinks.insert(index, entry)),
        None => {
            let text = format!("uplink {index}: its value {value:02x?} was not written by nodelb");
            content.broken.entries.insert(EntryKey::Uplink(index), text);
        }
    }
}

fn add_invalid_key(map: &str, key: &[u8], content: &mut Content) {
    content.broken.with_invalid_key.push(format!("entry of {map} with the key {key:02x?}: nodelb did not write it"));
}
