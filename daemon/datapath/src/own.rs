//! nodelb's own sockets: the programs leave a registered one untouched, wherever it connects, so that nodelb never
//! depends on what it balances.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nix::sys::socket::{SockType, getsockopt, sockopt};

use crate::layout;
use crate::maps::into_io;

/// Registers sockets. Cheap to clone; works from any thread and without capabilities.
#[derive(Clone, Debug)]
pub struct OwnSockets {
    pub(crate) tcp: Arc<MapHandle>,
    pub(crate) udp: Arc<MapHandle>,
}

impl OwnSockets {
    pub(crate) fn new([tcp, udp, _]: [MapHandle; 3]) -> Self {
        Self { tcp: Arc::new(tcp), udp: Arc::new(udp) }
    }

    /// Lets this TCP or UDP socket reach the addresses it dials. To be called before it connects; lasts as long as the
    /// socket.
    ///
    /// # Errors
    /// When the descriptor is no socket, or the kernel has no memory for it.
    pub fn register(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let key = socket.as_raw_fd().to_ne_bytes();
        let put = match getsockopt(&socket, sockopt::SockType)? {
            SockType::Datagram => self.udp.update(&key, &layout::own_udp_socket(), MapFlags::ANY),
            _ => self.tcp.update(&key, &layout::own_tcp_socket(), MapFlags::ANY),
        };
        put.map_err(into_io)
    }
}

/// Makes a socket and registers it, to see whether the kernel lets this process do so.
pub(crate) fn try_registering(own: &OwnSockets) -> io::Result<()> {
    own.register(std::net::UdpSocket::bind("127.0.0.1:0")?.as_fd())
}
