//! The properties of a map.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use libbpf_rs::{ErrorKind, MapHandle, MapInfo, MapType};

use crate::error::{OpenError, failed, into_io};

/// The properties that make two maps interchangeable, and the size of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) map_type: u32,
    pub(crate) key_size: u32,
    pub(crate) value_size: u32,
    pub(crate) flags: u32,
    pub(crate) max_entries: u32,
}

impl Spec {
    pub(crate) fn read(map: &MapHandle) -> io::Result<Self> {
        let info = MapInfo::new(map.as_fd()).map_err(into_io)?.info;
        Ok(Self {
            map_type: info.type_,
            key_size: info.key_size,
            value_size: info.value_size,
            flags: info.map_flags,
            max_entries: info.max_entries,
        })
    }

    /// The map that is pinned at the path, if any.
    pub(crate) fn open(path: &Path) -> Result<Option<(MapHandle, Self)>, OpenError> {
        if !path.exists() {
            return Ok(None);
        }
        let map = MapHandle::from_pinned_path(path).map_err(failed("opening", path))?;
        let spec = Self::read(&map).map_err(failed("reading", path))?;
        Ok(Some((map, spec)))
    }

    /// The specification of a map without its size. Keys and values have these sizes in bytes.
    pub(crate) fn kind((map_type, flags): (u32, u32), key_size: usize, value_size: usize) -> Self {
        let size = |bytes: usize| u32::try_from(bytes).expect("invariant: entries are small");
        Self { map_type, key_size: size(key_size), value_size: size(value_size), flags, max_entries: 0 }
    }

    pub(crate) fn create(self, name: &str) -> Result<MapHandle, OpenError> {
        let Self { map_type, key_size, value_size, flags, max_entries } = self;
        let options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
            map_flags: flags,
            ..Default::default()
        };
        MapHandle::create(MapType::from(map_type), Some(name), key_size, value_size, max_entries, &options).map_err(
            |error| match error.kind() {
                ErrorKind::OutOfMemory | ErrorKind::TooBig => {
                    OpenError::NoMap { map: name.into(), reason: into_io(error).to_string() }
                }
                _ => failed("creating the map", Path::new(name))(into_io(error)),
            },
        )
    }

    /// Whether two maps have the same properties, except for the size.
    pub(crate) fn same_kind(self, other: Self) -> bool {
        Self { max_entries: 0, ..self } == Self { max_entries: 0, ..other }
    }
}
