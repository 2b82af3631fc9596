//! nodelb's own sockets: the programs never translate a registered socket, whatever it connects to, so nodelb does not
//! depend on the services that it balances.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use libbpf_rs::MapHandle;
use nix::sys::socket::{SockType, getsockopt, sockopt};

use crate::layout;
use crate::load::PERSISTENT;
use crate::sys;

/// Registers sockets. Cheap to clone; works from any thread and without capabilities.
#[derive(Clone, Debug)]
pub struct OwnSockets {
    pub(crate) tcp: Arc<MapHandle>,
    pub(crate) udp: Arc<MapHandle>,
}

impl OwnSockets {
    pub(crate) fn new([tcp, udp, ..]: [MapHandle; PERSISTENT.len()]) -> Self {
        Self { tcp: Arc::new(tcp), udp: Arc::new(udp) }
    }

    /// Registers this TCP or UDP socket, so that its connections are not translated. Must be called before the socket
    /// connects; lasts as long as the socket.
    ///
    /// # Errors
    /// If the descriptor is not a socket, or the kernel has no memory for the entry.
    pub fn register(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let key = socket.as_raw_fd().to_ne_bytes();
        match getsockopt(&socket, sockopt::SockType)? {
            SockType::Datagram => sys::update(&self.udp, &key, &layout::own_udp_socket()),
            _ => sys::update(&self.tcp, &key, &layout::own_tcp_socket()),
        }
    }

    /// Makes [`Self::was_observed`] work for this UDP socket, which is treated like any other. Must be called before the
    /// socket connects.
    pub fn observe(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let key = socket.as_raw_fd().to_ne_bytes();
        sys::update(&self.udp, &key, &layout::new_udp_socket())
    }

    /// Whether a program that uses the same maps, of this daemon or of another, has refused the UDP socket or left it
    /// alone because it belongs to nodelb. Programs with other maps do not know the socket.
    ///
    /// # Errors
    /// If the socket was neither registered nor observed, or the map cannot be read.
    pub fn was_observed(&self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        let key = socket.as_raw_fd().to_ne_bytes();
        let found = sys::look_up(&self.udp, &key)?.ok_or(io::ErrorKind::NotFound)?;
        let socket = found.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
        Ok(layout::was_observed(socket))
    }
}
