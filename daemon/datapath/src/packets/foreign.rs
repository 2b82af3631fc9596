//! The map `foreign_ports`: ports of this node that connections of other proxies and of network plugins use.

use std::collections::BTreeSet;
use std::io;
use std::ops::RangeInclusive;

use libbpf_rs::MapHandle;
use nodelb_core::model::addr::L4Addr;

use crate::layout::connections::{PacketKeyBytes, packet_key};
use crate::packets::handles::PacketMaps;
use crate::sys;

/// The two ends of connections: the backend, and the address and port of this node that it sees.
pub type ForeignConnections = BTreeSet<(L4Addr, L4Addr)>;

/// Tells the programs which ports they must not take. Works without capabilities.
#[derive(Debug)]
pub struct ForeignPorts {
    map: MapHandle,
    range: RangeInclusive<u16>,
}

impl ForeignPorts {
    pub fn new(maps: &PacketMaps, range: RangeInclusive<u16>) -> io::Result<Self> {
        Ok(Self { map: maps.handle("foreign_ports")?, range })
    }

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
            sys::delete(&self.map, key)?;
        }
        for (index, key) in wanted.difference(&present).enumerate() {
            sys::update(&self.map, key, &[0; size_of::<u32>()]).map_err(|error| match error.raw_os_error() {
                Some(libc::E2BIG) => {
                    let left = wanted.difference(&present).count() - index;
                    let all = wanted.len();
                    io::Error::other(format!("there are {all} such connections, and room for {left} fewer"))
                }
                _ => error,
            })?;
        }
        Ok(())
    }
}
