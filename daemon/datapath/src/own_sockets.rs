//! nodelb's own sockets: the programs never translate a registered socket, whatever it connects to, so nodelb does not
//! depend on the services that it balances.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::socket::{SockType, getsockopt, sockopt};

use crate::error::into_io;
use crate::layout;
use crate::load::PERSISTENT;

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
        let put = match getsockopt(&socket, sockopt::SockType)? {
            SockType::Datagram => self.udp.update(&key, &layout::own_udp_socket(), MapFlags::ANY),
            _ => self.tcp.update(&key, &layout::own_tcp_socket(), MapFlags::ANY),
        };
        put.map_err(into_io)
    }

    /// Makes [`Self::was_observed`] work for this UDP socket, which is treated like any other. Must be called before the
    /// socket connects.
    pub fn observe(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let key = socket.as_raw_fd().to_ne_bytes();
        self.udp.update(&key, &layout::new_udp_socket(), MapFlags::ANY).map_err(into_io)
    }

    /// Whether a program that uses the same maps, of this daemon or of another, has refused the UDP socket or left it
    /// alone because it belongs to nodelb. Programs with other maps do not know the socket.
    ///
    /// # Errors
    /// If the socket was neither registered nor observed, or the map cannot be read.
    pub fn was_observed(&self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        let key = socket.as_raw_fd().to_ne_bytes();
        let found = self.udp.lookup(&key, MapFlags::ANY).map_err(into_io)?.ok_or(io::ErrorKind::NotFound)?;
        let socket = found.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
        Ok(layout::was_observed(socket))
    }
}

/// Creates and registers a socket, as a test that the kernel permits this process to do so.
pub(crate) fn try_registering(own: &OwnSockets) -> io::Result<()> {
    own.register(std::net::UdpSocket::bind("127.0.0.1:0")?.as_fd())
}
