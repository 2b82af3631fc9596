//! Binds the listening TCP sockets of nodelb itself: a NodePort in the maps does not prevent that. Does not know what
//! the sockets answer.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;

use socket2::{Domain, Protocol, Socket, Type};

use nodelb_kube::apiserver::connect::Register;

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 256;

/// Listens with a non-blocking socket that is registered before it is bound. An IPv6 socket accepts only IPv6, unless
/// it is for all addresses of both families.
///
/// The kernel's error.
pub(crate) fn bind(at: SocketAddr, only_v6: bool, register: &Register) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    register(socket.as_fd())?;
    socket.set_reuse_address(true)?;
    if at.is_ipv6() {
        socket.set_only_v6(only_v6)?;
    }
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
