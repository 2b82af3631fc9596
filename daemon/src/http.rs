//! HTTP servers with limited resources, for the admin API and for the health checks of load balancers: how many
//! connections there are, how large a header may be, and how long a client may take to send it, to read the response,
//! and in total. Does not know the content of the responses.
//!
//! A new connection is never refused. If there are too many, it waits until the connection that has held its slot
//! longest has had it for its minimum time, and that connection is closed.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use nodelb_host::messages;
use nodelb_host::register::Register;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::UCred;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tokio_util::either::Either;

/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 256;

/// The pause after a failed accept (no file descriptor left): the next one would fail, too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// The delay before an address that could not be bound is retried: of the admin API and of the health checks for load
/// balancers.
pub(crate) const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// The maximum size of a request header in bytes, and the maximum number of lines in it.
const HEADER_BYTES: usize = 8 * 1024;
const HEADER_LINES: usize = 64;

/// What a listening socket may have that others do not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Binding {
    /// All addresses of IPv4 and those of IPv6.
    pub(crate) both_families: bool,
    /// An address that no device has: a route may make it local.
    pub(crate) is_foreign: bool,
}

/// Listens with a non-blocking socket that is registered before it is bound, so that a NodePort in the maps does not
/// prevent that.
pub(crate) fn bind(at: SocketAddr, binding: Binding, register: &Register) -> io::Result<std::net::TcpListener> {
    let Binding { both_families, is_foreign } = binding;
    let socket = Socket::new(Domain::for_address(at), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    register(socket.as_fd())?;
    socket.set_reuse_address(true)?;
    if at.is_ipv6() {
        socket.set_only_v6(!both_families)?;
        socket.set_freebind_v6(is_foreign)?;
    } else {
        socket.set_freebind_v4(is_foreign)?;
    }
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Either<TcpStream, UnixStream>> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _peer)| Either::Left(stream)),
            Self::Unix(listener) => listener.accept().await.map(|(stream, _peer)| Either::Right(stream)),
        }
    }
}

/// The limits for the clients of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLimits {
    /// The maximum number of concurrent connections to one listener.
    pub(crate) per_listener: usize,
    /// The maximum number of concurrent connections to all listeners that share their slots.
    pub(crate) overall: usize,
    /// The minimum time that a connection keeps its slot before its request has been received.
    pub(crate) waiting: Duration,
    /// The minimum time that it keeps its slot after that.
    pub(crate) answering: Duration,
    /// The time limit for a request header, and for an idle connection between two requests.
    pub(crate) header: Duration,
    /// The maximum time that a client may read nothing of the response.
    pub(crate) stuck: Duration,
    /// The maximum time from accept to the last byte of the response, if this is not a stream.
    pub(crate) total: Option<Duration>,
    /// The time for connections to finish when the server stops.
    pub(crate) stop: Duration,
}

/// A server: what answers its requests, its limits and the slots of its connections. Clones share the slots.
#[derive(Clone)]
pub(crate) struct Server<H> {
    /// Its name in log messages.
    pub(crate) name: &'static str,
    pub(crate) respond: H,
    pub(crate) slots: Arc<Slots>,
    /// Whether a connection stays open after a response, and header names are capitalised, as by the Go server of
    /// kube-proxy.
    pub(crate) is_like_go: bool,
}

impl<H, F> Server<H>
where
    H: Fn(Request<Incoming>, Arc<HttpConnection>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    /// Accepts and serves connections until `stop` is ready. Then gives running responses a moment to finish.
    pub(crate) async fn serve(self, listener: Listener, stop: impl Future<Output = ()>) {
        let number = lock(&self.slots.taken).number();
        let mut connections = JoinSet::new();
        let mut has_failed = false;
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(_finished) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok(stream) => {
                        has_failed = false;
                        let (slot, evicted) = self.slots.take(number).await;
                        connections.spawn(self.clone().converse(stream, slot, evicted));
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut has_failed, true) {
                            tracing::warn!(
                                message_id = %messages::ACCEPT_FAILED,
                                "{}: accepting a connection failed: {error}; retrying", self.name
                            );
                        }
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        let finish = async { while connections.join_next().await.is_some() {} };
        if timeout(self.slots.limits.stop, finish).await.is_err() {
            tracing::debug!("{}: closed the connections that were open at stop", self.name);
        }
    }

    async fn converse(self, stream: Either<TcpStream, UnixStream>, slot: Slot, evicted: Arc<Notify>) {
        let limits = self.slots.limits;
        let deadline = limits.total.map(|total| Instant::now() + total);
        let peer = match &stream {
            Either::Left(_) => None,
            Either::Right(stream) => stream.peer_cred().ok(),
        };
        let connection = Arc::new(HttpConnection { slot: Mutex::new(Some(slot)), peer });
        let service = service_fn(|request| {
            connection.prolong();
            let response = (self.respond)(request, Arc::clone(&connection));
            async { Ok::<_, Infallible>(response.await) }
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(limits.header)
            .max_header_size(HEADER_BYTES)
            .max_headers(HEADER_LINES)
            .keep_alive(self.is_like_go)
            .title_case_headers(self.is_like_go);
        let stream = TokioIo::new(TimedWrites { stream, stuck: None, limit: limits.stuck });
        let why = tokio::select! {
            served = http.serve_connection(stream, service) => match served {
                Ok(()) => return,
                Err(error) => error.to_string(),
            },
            () = evicted.notified() => "others wait for its slot".into(),
            () = connection.expires(deadline) => "it takes too long".into(),
        };
        tracing::debug!("{}: closed a connection: {why}", self.name);
    }
}

/// A connection, as what answers its requests knows it.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    slot: Mutex<Option<Slot>>,
    /// The process at the other end of a Unix socket, as it was when it connected.
    pub(crate) peer: Option<UCred>,
}

impl HttpConnection {
    /// The response is a stream: the connection gives its slot back and has no deadline.
    pub(crate) fn detach(&self) {
        *lock(&self.slot) = None;
    }

    fn prolong(&self) {
        if let Some(slot) = &*lock(&self.slot) {
            slot.prolong();
        }
    }

    async fn expires(&self, deadline: Option<Instant>) {
        nodelb_host::clock::at(deadline).await;
        if lock(&self.slot).is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// The slots of the connections to one or several listeners.
#[derive(Debug)]
pub(crate) struct Slots {
    limits: ServerLimits,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// The connections in the order of their arrival.
    holders: BTreeMap<u64, Holder>,
}

#[derive(Debug)]
struct Holder {
    listener: u64,
    /// From this time on, the connection is closed if another one needs its slot.
    until: Instant,
    evicted: Arc<Notify>,
}

/// The slot of a connection, until it is dropped.
#[derive(Debug)]
struct Slot {
    slots: Arc<Slots>,
    number: u64,
}

impl Slots {
    pub(crate) fn new(limits: ServerLimits) -> Arc<Self> {
        Arc::new(Self { limits, taken: Mutex::default(), freed: Notify::new() })
    }

    /// Takes a slot as soon as possible. The returned notification means that the slot is given to another connection.
    async fn take(self: &Arc<Self>, listener: u64) -> (Slot, Arc<Notify>) {
        loop {
            match self.try_take(listener) {
                Ok((number, evicted)) => return (Slot { slots: Arc::clone(self), number }, evicted),
                Err(until) => tokio::select! {
                    () = self.freed.notified() => {}
                    () = sleep_until(until) => {}
                },
            }
        }
    }

    /// The number of the slot; or the time of the next attempt.
    fn try_take(&self, listener: u64) -> Result<(u64, Arc<Notify>), Instant> {
        let (mut taken, now) = (lock(&self.taken), Instant::now());
        let here = taken.holders.values().filter(|holder| holder.listener == listener).count();
        let is_full_here = here >= self.limits.per_listener;
        if is_full_here || taken.holders.len() >= self.limits.overall {
            let others = taken.holders.iter().filter(|(_, holder)| !is_full_here || holder.listener == listener);
            if let Some((&number, holder)) = others.min_by_key(|(_, holder)| holder.until) {
                if holder.until > now {
                    return Err(holder.until);
                }
                holder.evicted.notify_one();
                taken.holders.remove(&number);
            }
        }
        let (number, evicted) = (taken.number(), Arc::new(Notify::new()));
        let holder = Holder { listener, until: now + self.limits.waiting, evicted: Arc::clone(&evicted) };
        taken.holders.insert(number, holder);
        Ok((number, evicted))
    }

    /// The number of connections.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        lock(&self.taken).holders.len()
    }
}

impl Taken {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Slot {
    /// The request has been received.
    fn prolong(&self) {
        if let Some(holder) = lock(&self.slots.taken).holders.get_mut(&self.number) {
            holder.until += self.slots.limits.answering;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.slots.taken).holders.remove(&self.number);
        self.slots.freed.notify_one();
    }
}

/// The data behind these locks is consistent at any moment, so a poisoned lock can still be used.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream that fails if the peer has read nothing for a while although there is something to write.
struct TimedWrites<S> {
    stream: S,
    /// Set while a write waits for the peer.
    stuck: Option<Pin<Box<Sleep>>>,
    limit: Duration,
}

impl<S> TimedWrites<S> {
    /// The result of a write; an error if it waits for the peer for too long.
    fn or_stuck(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let limit = self.limit;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(limit)));
        stuck.as_mut().poll(cx).map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.or_stuck(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.or_stuck(cx, written)
    }

    /// If not, hyper copies every response into one buffer with its header.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
#[path = "tests/http.rs"]
mod tests;
