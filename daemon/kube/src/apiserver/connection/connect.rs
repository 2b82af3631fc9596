//! Opens TCP connections to an apiserver, directly or through a configured proxy. Prepares each socket before it
//! connects: registers it as nodelb's own, so that BPF never translates its destination, and sets keepalive options
//! that detect a silent peer quickly. Independent of TLS.

use std::io;
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use nodelb_host::clock::by;
use nodelb_host::register::Register;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use super::error::LinkError;
use super::proxy::{Proxy, ProxyError};
use crate::defaults::with_defaults;

with_defaults! {
    /// Timeouts of a connection. With the defaults, nodelb detects a dead peer within four seconds, on a busy or idle
    /// connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    ConnectTimeouts {
        /// The timeout for the TCP connection, including the proxy.
        connect: Duration = Duration::from_secs(2),
        handshake: Duration = Duration::from_secs(2),
        /// The idle time before the first keepalive probe, in whole seconds.
        keepalive_idle: Duration = Duration::from_secs(1),
        /// The interval between keepalive probes, in whole seconds.
        keepalive_interval: Duration = Duration::from_secs(1),
        /// The number of unanswered probes that end a connection.
        keepalive_probes: u32 = 3,
        /// The time that data or probes may remain unacknowledged (`TCP_USER_TIMEOUT`).
        // Between two multiples of the probe interval: timers fire late, and a timer that finds slightly less
        // elapsed time than the timeout would wait for the next probe.
        user_timeout: Duration = Duration::from_millis(2500),
        /// The idle time on an HTTP/2 connection before a ping. Unlike a keepalive probe, a ping needs a response of the
        /// process and not only of its kernel.
        ping_after: Duration = Duration::from_millis(1500),
        ping_answer: Duration = Duration::from_millis(1500),
        /// The timeout for the body of an error response.
        refusal: Duration = Duration::from_secs(1),
    }
}

/// Opens connections. Cheap to clone.
#[derive(Clone)]
pub struct Connector {
    register: Register,
    pub(super) timeouts: ConnectTimeouts,
    proxy: Option<Proxy>,
}

impl Connector {
    /// `proxy` has the form `http://HOST:PORT`. Environment variables are ignored.
    pub fn new(register: Register, timeouts: ConnectTimeouts, proxy: Option<&str>) -> Result<Self, ProxyError> {
        let proxy = proxy.map(str::parse).transpose()?;
        Ok(Self { register, timeouts, proxy })
    }

    /// Connects to the address of an apiserver.
    ///
    /// # Errors
    /// [`LinkError::Unreachable`], with the address. This includes a socket that could not be registered, because BPF
    /// might redirect its connection to a different address.
    pub async fn open(&self, at: SocketAddr) -> Result<TcpStream, LinkError> {
        let deadline = Instant::now() + self.timeouts.connect;
        match &self.proxy {
            None => self.connect(at, deadline).await,
            Some(proxy) => {
                let unreachable = |error| LinkError::Unreachable(format!("{at} through the proxy {proxy}: {error}"));
                let proxy_at = proxy.resolve(deadline).await.map_err(unreachable)?;
                let mut stream = self.connect(proxy_at, deadline).await?;
                proxy.ask_for(&mut stream, at, deadline).await.map_err(unreachable)?;
                Ok(stream)
            }
        }
    }

    async fn connect(&self, at: SocketAddr, deadline: Instant) -> Result<TcpStream, LinkError> {
        let unreachable = |what: String| LinkError::Unreachable(format!("{at}: {what}"));
        let socket = self.socket(at).map_err(|error| unreachable(format!("no socket: {error}")))?;
        (self.register)(socket.as_fd()).map_err(|error| {
            unreachable(format!("cannot register the socket ({error}), and BPF might translate it; not connected"))
        })?;
        let connecting = TcpSocket::from_std_stream(StdTcpStream::from(socket)).connect(at);
        match by(deadline, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(unreachable(error.to_string())),
            Err(_) => Err(unreachable(format!("no connection within {:?}", self.timeouts.connect))),
        }
    }

    fn socket(&self, at: SocketAddr) -> io::Result<Socket> {
        let timeouts = &self.timeouts;
        let socket = Socket::new(Domain::for_address(at), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        let keepalive = TcpKeepalive::new()
            .with_time(timeouts.keepalive_idle)
            .with_interval(timeouts.keepalive_interval)
            .with_retries(timeouts.keepalive_probes);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(timeouts.user_timeout))?;
        socket.set_tcp_nodelay(true)?;
        Ok(socket)
    }
}

/// A second descriptor of the same socket, which is used to shut it down.
pub(super) fn second_descriptor(stream: &TcpStream) -> io::Result<Socket> {
    SockRef::from(stream).try_clone()
}

#[cfg(test)]
#[path = "tests/connect.rs"]
mod tests;
