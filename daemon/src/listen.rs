//! A listening TCP socket of nodelb's own: no NodePort that the maps serve is in its way. Knows nothing of what is answered.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;

use socket2::{Domain, Protocol, Socket, Type};

use nodelb_kube::apiserver::dial::Register;

/// The longest queue of connections that are not accepted yet.
const BACKLOG: i32 = 256;

/// Listens, with a socket that does not block and is registered before it is bound. An IPv6 socket is for IPv6 only, if it is
/// not for every address of both.
///
/// # Errors
/// The kernel's.
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
