//! Opens TCP connections to an apiserver, directly or through a configured proxy. Owns what a socket must be before it
//! connects: registered as nodelb's own, so that BPF never translates it, and quick to notice a peer that has gone silent.
//! Knows nothing of TLS.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};

use super::error::LinkError;
use super::proxy::{Proxy, ProxyError};

/// Makes a socket nodelb's own before it connects: `nodelb_datapath::OwnSockets::register`, or nothing where no BPF is.
pub type Register = Arc<dyn Fn(BorrowedFd<'_>) -> io::Result<()> + Send + Sync>;

/// How long a peer may be silent. The defaults notice a dead one within four seconds, busy or idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// For the TCP connection, through the proxy and all.
    pub connect: Duration,
    /// For the TLS handshake.
    pub handshake: Duration,
    /// Silence on a socket before the first keepalive probe; whole seconds.
    pub keepalive_idle: Duration,
    /// Between keepalive probes; whole seconds.
    pub keepalive_interval: Duration,
    /// Unanswered probes that end a connection.
    pub keepalive_probes: u32,
    /// How long bytes or probes may stay unacknowledged (`TCP_USER_TIMEOUT`).
    pub user_timeout: Duration,
    /// Silence on an HTTP/2 connection before a ping: it needs an answer from the process, not from its kernel alone.
    pub ping_after: Duration,
    /// For the answer to a ping.
    pub ping_answer: Duration,
    /// For the body of an answer that is a refusal.
    pub refusal: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            handshake: Duration::from_secs(2),
            keepalive_idle: Duration::from_secs(1),
            keepalive_interval: Duration::from_secs(1),
            keepalive_probes: 3,
            // Between two keepalive probes: timers are late, and one that finds just less would wait for the next.
            user_timeout: Duration::from_millis(2500),
            ping_after: Duration::from_millis(1500),
            ping_answer: Duration::from_millis(1500),
            refusal: Duration::from_secs(1),
        }
    }
}

/// Opens connections. Cheap to clone.
#[derive(Clone)]
pub struct Dialer {
    register: Register,
    pub(super) timing: Timing,
    proxy: Option<Proxy>,
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("timing", &self.timing).field("proxy", &self.proxy).finish_non_exhaustive()
    }
}

impl Dialer {
    /// `proxy` is `http://HOST:PORT`. Environment variables are never consulted.
    ///
    /// # Errors
    /// When `proxy` is not the URL of an HTTP proxy.
    pub fn new(register: Register, timing: Timing, proxy: Option<&str>) -> Result<Self, ProxyError> {
        let proxy = proxy.map(str::parse).transpose()?;
        Ok(Self { register, timing, proxy })
    }

    /// Connects to an apiserver's address.
    ///
    /// # Errors
    /// [`LinkError::Unreachable`], naming the address. Also when the socket could not be registered: a connection that
    /// BPF may redirect would only look like one to this address.
    pub async fn dial(&self, at: SocketAddr) -> Result<TcpStream, LinkError> {
        let deadline = Instant::now() + self.timing.connect;
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
            unreachable(format!(
                "the socket cannot be registered as nodelb's own ({error}), so that BPF might translate it; not connected"
            ))
        })?;
        let connecting = TcpSocket::from_std_stream(StdTcpStream::from(socket)).connect(at);
        match timeout_at(deadline, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(unreachable(error.to_string())),
            Err(_) => Err(unreachable(format!("no connection within {:?}", self.timing.connect))),
        }
    }

    fn socket(&self, at: SocketAddr) -> io::Result<Socket> {
        let timing = &self.timing;
        let socket = Socket::new(Domain::for_address(at), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        let keepalive = TcpKeepalive::new()
            .with_time(timing.keepalive_idle)
            .with_interval(timing.keepalive_interval)
            .with_retries(timing.keepalive_probes);
        socket.set_tcp_keepalive(&keepalive)?;
        socket.set_tcp_user_timeout(Some(timing.user_timeout))?;
        socket.set_tcp_nodelay(true)?;
        Ok(socket)
    }
}

/// A second descriptor of the same socket, to shut it down by.
pub(super) fn second_descriptor(stream: &TcpStream) -> io::Result<Socket> {
    SockRef::from(stream).try_clone()
}

#[cfg(test)]
mod tests;
