//! The HTTP/2 connection of a link. When the server drains it (GOAWAY without an error, as with `--goaway-chance`, or
//! before the server stops), a new connection to the same address replaces it. Pending requests finish on the old
//! connection, and requests that it did not accept are repeated on the new one. A drain is not a failure, but a failure
//! of the new connection is.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio_util::io::InspectReader;

use super::frames::Frames;
use super::sockets::{Kept, Sockets};
use super::target::{Sent, Target, chain};
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::connection::tls;
use crate::apiserver::credentials::login::Login;

/// The flow-control window of a request in bytes; large enough for a list of 20 MB not to wait for window updates.
const STREAM_WINDOW: u32 = 2 << 20;

/// The flow-control window of a connection in bytes; large enough that three slow readers do not block a fourth one.
const CONNECTION_WINDOW: u32 = 4 * STREAM_WINDOW;

/// The maximum size of a frame in bytes. Most events of a watch then arrive in one frame instead of several of 16 KiB.
const FRAME: u32 = 64 << 10;

/// The maximum size of a response's headers in bytes.
const MAX_HEADERS: u32 = 64 << 10;

/// The maximum number of times that a request is repeated.
const MOST_REPEATS: u32 = 3;

/// If a connection is drained before it has reached this age, its replacement is delayed until a request needs it or
/// this time has passed.
const YOUNG: Duration = Duration::from_secs(1);

pub(super) struct Http2 {
    target: Target,
    login: Arc<Login>,
    sockets: Arc<Sockets>,
    /// `None` as soon as the connection accepts no more requests, see [`Driver::drive`].
    current: tokio::sync::Mutex<Option<Connection>>,
    /// The number of replacements.
    generation: AtomicU64,
    itself: Weak<Self>,
}

/// The sending half of a connection.
#[derive(Clone)]
struct Connection {
    sender: http2::SendRequest<Sent>,
    /// Whether the server has sent a GOAWAY without an error.
    is_drained: Arc<AtomicBool>,
}

impl Connection {
    /// Whether the connection accepts no more requests. hyper may report that a request failed because of a GOAWAY
    /// before it marks the sender as closed.
    fn is_over(&self) -> bool {
        self.sender.is_closed() || self.is_drained.load(Ordering::Relaxed)
    }
}

impl Http2 {
    pub(super) async fn start(
        target: Target,
        login: Arc<Login>,
        sockets: Arc<Sockets>,
        (stream, kept): (tls::Stream, Kept),
    ) -> Result<Arc<Self>, LinkError> {
        let (connection, driver) = handshake(&target, stream, kept).await?;
        let current = tokio::sync::Mutex::new(Some(connection));
        let generation = AtomicU64::new(0);
        let new = |itself: &Weak<Self>| Self { target, login, sockets, current, generation, itself: itself.clone() };
        let this = Arc::new_cyclic(new);
        driver.drive(this.itself.clone());
        Ok(this)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Sends a request. Repeats it on the next connection if the current one is drained and has not accepted it.
    pub(super) async fn send(&self, request: Request<Sent>) -> Result<Response<Incoming>, LinkError> {
        let mut repeats = 0;
        loop {
            let (answer, is_drained) = {
                let Connection { mut sender, is_drained } = self.connection().await?;
                (sender.send_request(request.clone()), is_drained)
            };
            let error = match answer.await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // A request that was never sent may be repeated, and so may an interrupted GET.
            let may_repeat = error.is_canceled() || request.method() == Method::GET;
            let is_drained = is_drained.load(Ordering::Relaxed);
            if error.is_canceled() && !is_drained {
                return Err(self.sockets.ended().await);
            }
            if !may_repeat || !is_drained || repeats == MOST_REPEATS || self.sockets.end().is_some() {
                return Err(LinkError::Broken(format!("{}: {}", self.target.at, chain(&error))));
            }
            repeats += 1;
        }
    }

    /// The current connection, or a new one if the current one accepts no more requests.
    async fn connection(&self) -> Result<Connection, LinkError> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| !connection.is_over()) {
            return Ok(connection.clone());
        }
        if let Some(end) = self.sockets.end() {
            return Err(end.error());
        }
        // Boxed because it is rare and large: otherwise, the future of every request would contain it.
        let next = Box::pin(async {
            let (stream, kept) = self.target.connect(&self.login, &self.sockets).await?;
            if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                return Err(LinkError::Broken(format!("{} has stopped using HTTP/2", self.target.at)));
            }
            handshake(&self.target, stream, kept).await
        });
        let (connection, driver) = next.await.inspect_err(|error| self.sockets.over(error.to_string()))?;
        *current = Some(connection.clone());
        self.generation.fetch_add(1, Ordering::Relaxed);
        driver.drive(self.itself.clone());
        Ok(connection)
    }

    /// Drops the sender of a connection that accepts no more requests.
    async fn forget(&self, is_drained: &Arc<AtomicBool>) {
        let mut current = self.current.lock().await;
        current.take_if(|connection| Arc::ptr_eq(&connection.is_drained, is_drained));
    }
}

async fn handshake(target: &Target, stream: tls::Stream, kept: Kept) -> Result<(Connection, Driver), LinkError> {
    let (at, timeouts) = (target.at, target.connector.timeouts);
    let is_drained = Arc::new(AtomicBool::new(false));
    let (mut frames, goaway) = (Frames::default(), Arc::clone(&is_drained));
    let stream = InspectReader::new(stream, move |bytes| {
        // Moved here, so that the socket stays registered with the link as long as the stream exists.
        let _kept = &kept;
        if frames.read(bytes) {
            goaway.store(true, Ordering::Relaxed);
        }
    });
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(MAX_HEADERS)
        .keep_alive_interval(timeouts.ping_after)
        .keep_alive_timeout(timeouts.ping_answer)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| LinkError::Broken(format!("{at}: no HTTP/2: {}", chain(&error))))?;
    let current = Connection { sender, is_drained: Arc::clone(&is_drained) };
    Ok((current, Driver { at, connection: Box::pin(connection), is_drained, opened: Instant::now() }))
}

/// Runs a connection until it accepts no more requests.
struct Driver {
    at: std::net::SocketAddr,
    connection: Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
    is_drained: Arc<AtomicBool>,
    opened: Instant,
}

impl Driver {
    /// When hyper's end of the connection's queue is gone, no sender may remain: a request that is added to the queue at
    /// this moment stays there without an error until the last sender is dropped.
    fn drive(self, link: Weak<Http2>) {
        let Self { at, connection, is_drained, opened } = self;
        tokio::spawn(async move {
            let end = connection.await;
            let Some(http2) = link.upgrade() else { return };
            if !is_drained.load(Ordering::Relaxed) {
                http2.sockets.over(match end {
                    Ok(()) => format!("{at} closed it"),
                    Err(error) => format!("{at}: {}", chain(&error)),
                });
                return;
            }
            tracing::debug!("{at} drains the connection; requests go over another one");
            http2.forget(&is_drained).await;
            drop(http2);
            if opened.elapsed() < YOUNG {
                tokio::time::sleep(YOUNG).await;
            }
            // Connects before a request needs it, in order to detect an unavailable server immediately.
            let Some(http2) = link.upgrade().filter(|http2| http2.sockets.end().is_none()) else { return };
            let next: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(http2.connection());
            // A failure ends the link, and its users handle that.
            drop(next.await);
        });
    }
}
