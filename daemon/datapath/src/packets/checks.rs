//! The map `check_ways`: sockets of health checks with packets that go the way of clients' packets to a backend with
//! direct return.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use libbpf_rs::MapHandle;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::forward::Forward;

use crate::layout::connections::check_way;
use crate::packets::handles::PacketMaps;
use crate::packets::settings::SettingsWriter;
use crate::sys;

/// The time to live of packets of clients that leave for a backend unchanged: `DIRECT_TTL` of `bpf/forward.h`.
pub const DIRECT_TTL: u32 = 4;

/// Gives packets of health checks their way. Cheap to clone; works from any thread and without capabilities.
#[derive(Clone, Debug)]
pub struct CheckWays {
    map: Arc<MapHandle>,
    settings: Arc<SettingsWriter>,
}

impl CheckWays {
    pub(crate) fn new(maps: &PacketMaps) -> io::Result<Self> {
        Ok(Self { map: Arc::new(maps.handle("check_ways")?), settings: Arc::new(SettingsWriter::new(maps)?) })
    }

    /// Sends the packets of this TCP socket to the service's address, by the link-layer address or in a tunnel to the
    /// backend that the socket connects to, if that is another machine. The answers appear to come from the backend's
    /// address. Must be called before the socket connects; lasts as long as the socket.
    ///
    /// # Errors
    /// If the descriptor is not a socket, or the kernel has no memory for the entry.
    pub fn set(&self, socket: BorrowedFd<'_>, service: L4Addr, forward: Forward) -> io::Result<()> {
        self.settings.show_direct_return();
        sys::update(&self.map, &socket.as_raw_fd().to_ne_bytes(), &check_way(service, forward))
    }
}
