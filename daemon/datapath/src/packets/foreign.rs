//! The map `foreign_ports`: ports of this node that connections of other proxies and of network plugins use.

use std::collections::BTreeSet;
use std::io;
use std::ops::RangeInclusive;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};
use nodelb_core::model::addr::L4Addr;

use crate::error::into_io;
use crate::layout::connections::{PacketKeyBytes, packet_key};
use crate::packets::handles::PacketMaps;
use crate::sys;

/// The map's name.
const NAME: &str = "foreign_ports";

/// The two ends of connections: the backend, and the address and port of this node that it sees.
pub type ForeignConnections = BTreeSet<(L4Addr, L4Addr)>;

/// Tells the programs which ports they must not take. Works without capabilities.
#[derive(Debug)]
pub struct ForeignPorts {
    map: MapHandle,
    range: RangeInclusive<u16>,
}

impl ForeignPorts {
    /// Uses the map of programs that take ports in this range.
    pub fn new(maps: &PacketMaps, range: RangeInclusive<u16>) -> io::Result<Self> {
        let map = maps.get(NAME).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { map: MapHandle::try_from(map).map_err(into_io)?, range })
    }

    /// The ports that the programs may take.
    pub fn range(&self) -> &RangeInclusive<u16> {
        &self.range
    }

    /// Makes the programs leave the ports of exactly these connections alone.
    ///
    /// # Errors
    /// If the kernel refuses the request, or there are more connections than fit into the map.
    pub fn set(&self, connections: &ForeignConnections) -> io::Result<()> {
        let wanted: BTreeSet<PacketKeyBytes> = connections.iter().map(|ends| packet_key(*ends, false)).collect();
        let present: BTreeSet<PacketKeyBytes> =
            sys::entries::<_, { size_of::<u32>() }>(&self.map)?.into_iter().map(|(key, _)| key).collect();
        for key in present.difference(&wanted) {
            match self.map.delete(key) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(into_io(error)),
                _ => {}
            }
        }
        for (index, key) in wanted.difference(&present).enumerate() {
            self.map.update(key, &[0; size_of::<u32>()], MapFlags::ANY).map_err(|error| {
                let (error, left) = (into_io(error), wanted.difference(&present).count() - index);
                match error.raw_os_error() {
                    Some(libc::E2BIG) => io::Error::other(format!(
                        "there are {} such connections, and room for {} fewer",
                        wanted.len(),
                        left
                    )),
                    _ => error,
                }
            })?;
        }
        Ok(())
    }
}
