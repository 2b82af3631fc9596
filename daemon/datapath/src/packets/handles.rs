//! The maps of the packet path.

use std::collections::BTreeMap;
use std::io;

use libbpf_rs::MapHandle;

use crate::error::into_io;

/// The maps of the packet path by their names in `bpf/maps.h` and `bpf/packet_maps.h`.
#[derive(Debug, Default)]
pub struct PacketMaps(pub(super) BTreeMap<String, MapHandle>);

impl PacketMaps {
    /// Maps that exist already, by their names.
    pub fn new(maps: impl IntoIterator<Item = (String, MapHandle)>) -> Self {
        Self(maps.into_iter().collect())
    }

    /// These maps, with descriptors of their own.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        let clone = |(name, map): (&String, &MapHandle)| Ok((name.clone(), MapHandle::try_from(map).map_err(into_io)?));
        self.0.iter().map(clone).collect::<io::Result<_>>().map(Self)
    }

    pub fn get(&self, name: &str) -> Option<&MapHandle> {
        self.0.get(name)
    }
}
