//! The maps of the packet path.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

use libbpf_rs::{MapCore, MapHandle, OpenObject};

use crate::error::into_io;
use crate::layout::ServiceWords;

/// The maps of the packet path by their names in `bpf/maps.h` and `bpf/packet_maps.h`.
#[derive(Debug, Default)]
pub struct PacketMaps(pub(super) BTreeMap<String, MapHandle>);

impl PacketMaps {
    pub fn new(maps: impl IntoIterator<Item = (String, MapHandle)>) -> Self {
        Self(maps.into_iter().collect())
    }

    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        let clone = |(name, map): (&String, &MapHandle)| Ok((name.clone(), MapHandle::try_from(map).map_err(into_io)?));
        self.0.iter().map(clone).collect::<io::Result<_>>().map(Self)
    }

    /// Makes an object use these maps. It creates its own ones, and does without all others.
    pub(super) fn give_to(&self, object: &mut OpenObject, own: &[&str]) -> libbpf_rs::Result<()> {
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name.contains('.') || own.contains(&name.as_str()) {
                continue;
            }
            match self.get(&name) {
                Some(handle) => map.reuse_fd(handle.as_fd())?,
                None => map.set_autocreate(false)?,
            }
        }
        Ok(())
    }

    /// The layout of their services.
    pub(super) fn service_words(&self) -> ServiceWords {
        self.get("services").map_or(ServiceWords::CURRENT, |map| ServiceWords::of_size(map.value_size()))
    }

    pub(super) fn find(&self, name: &str) -> io::Result<&MapHandle> {
        self.get(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Another descriptor of a map.
    pub(super) fn handle(&self, name: &str) -> io::Result<MapHandle> {
        MapHandle::try_from(self.find(name)?).map_err(into_io)
    }

    pub fn get(&self, name: &str) -> Option<&MapHandle> {
        self.0.get(name)
    }
}
