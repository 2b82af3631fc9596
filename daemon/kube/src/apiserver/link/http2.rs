//! The HTTP/2 connection of a link, and the next one to the same address when the server drains it (GOAWAY without an
//! error, as with `--goaway-chance`, or before it stops): what runs over the old connection goes on to its end,
//! requests go over the next one, and one that was not accepted is sent again. Draining is no failure; a next
//! connection that fails is.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::frames::Frames;
use super::sockets::{Kept, Sockets};
use super::{Login, Sent, Target, chain};
use crate::apiserver::error::LinkError;

/// What the server may send ahead on one request: enough that a list of 20 MB does not wait for our answers.
const STREAM_WINDOW: u32 = 2 << 20;

/// What it may send ahead in all: three readers that have fallen behind do not stop a fourth.
const CONNECTION_WINDOW: u32 = 4 * STREAM_WINDOW;

/// The most bytes of an answer's headers.
const MAX_HEADERS: u32 = 64 << 10;

/// How often one request is sent again.
const MOST_REPEATS: u32 = 3;

/// A connection that was drained before it was this old is not followed by another one before a request wants it, or
/// this time is over.
const YOUNG: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Http2 {
    target: Target,
    login: Arc<Login>,
    sockets: Arc<Sockets>,
    current: tokio::sync::Mutex<http2::SendRequest<Sent>>,
    /// Counts connections.
    generation: AtomicU64,
    itself: Weak<Self>,
}

impl Http2 {
    /// Begins with a connection that has just been made.
    pub(super) async fn start(
        target: Target,
        login: Arc<Login>,
        sockets: Arc<Sockets>,
        (stream, kept): (TlsStream<TcpStream>, Kept),
    ) -> Result<Arc<Self>, LinkError> {
        let (sender, driver) = handshake(&target, stream, kept).await?;
        let current = tokio::sync::Mutex::new(sender);
        let generation = AtomicU64::new(0);
        let new = |itself: &Weak<Self>| Self { target, login, sockets, current, generation, itself: itself.clone() };
        let this = Arc::new_cyclic(new);
        driver.drive(this.itself.clone());
        Ok(this)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Sends a request; again, over the next connection, if the one it was sent over is drained and has not accepted
    /// it.
    pub(super) async fn send(&self, request: Request<Sent>) -> Result<Response<Incoming>, LinkError> {
        let mut repeats = 0;
        loop {
            let mut sender = self.sender().await?;
            let error = match sender.send_request(request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            // What was never sent may be sent again; a question that was cut off may be asked again.
            let may_repeat = error.is_canceled() || request.method() == Method::GET;
            if !may_repeat || !sender.is_closed() || repeats == MOST_REPEATS || self.sockets.end().is_some() {
                return Err(LinkError::Broken(format!("{}: {}", self.target.at, chain(&error))));
            }
            repeats += 1;
        }
    }

    /// The connection, or the next one if this one takes no more requests.
    async fn sender(&self) -> Result<http2::SendRequest<Sent>, LinkError> {
        let mut current = self.current.lock().await;
        if current.is_closed() {
            if let Some(end) = self.sockets.end() {
                return Err(end.error());
            }
            // Rare, and large: every request would carry the room for it.
            let next = Box::pin(async {
                let (stream, kept) = self.target.connect(&self.login, &self.sockets).await?;
                if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                    return Err(LinkError::Broken(format!("{} speaks HTTP/2 no more", self.target.at)));
                }
                handshake(&self.target, stream, kept).await
            });
            let (sender, driver) = next.await.inspect_err(|error| self.sockets.over(error.to_string()))?;
            *current = sender;
            self.generation.fetch_add(1, Ordering::Relaxed);
            driver.drive(self.itself.clone());
        }
        Ok(current.clone())
    }
}

async fn handshake(
    target: &Target,
    stream: TlsStream<TcpStream>,
    kept: Kept,
) -> Result<(http2::SendRequest<Sent>, Driver), LinkError> {
    let (at, timing) = (target.at, target.dialer.timing);
    let is_drained = Arc::new(AtomicBool::new(false));
    let stream = Read { stream, frames: Frames::default(), is_drained: Arc::clone(&is_drained), _kept: kept };
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEADERS)
        .keep_alive_interval(timing.ping_after)
        .keep_alive_timeout(timing.ping_answer)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| LinkError::Broken(format!("{at}: no HTTP/2: {}", chain(&error))))?;
    Ok((sender, Driver { at, connection: Box::pin(connection), is_drained, opened: Instant::now() }))
}

/// What moves a connection, until it takes no more requests.
struct Driver {
    at: std::net::SocketAddr,
    connection: Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>,
    is_drained: Arc<AtomicBool>,
    opened: Instant,
}

impl Driver {
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
            drop(http2);
            if opened.elapsed() < YOUNG {
                tokio::time::sleep(YOUNG).await;
            }
            // Before a request needs it: a server that is gone is noticed now.
            let Some(http2) = link.upgrade().filter(|http2| http2.sockets.end().is_none()) else { return };
            let next: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(http2.sender());
            // Its failure is the end of the link, which its users see.
            drop(next.await);
        });
    }
}

/// A stream that notes a GOAWAY among what arrives, and is part of its link for as long as it lasts.
struct Read {
    stream: TlsStream<TcpStream>,
    frames: Frames,
    is_drained: Arc<AtomicBool>,
    _kept: Kept,
}

impl AsyncRead for Read {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        if self.frames.read(&buffer.filled()[before..]) {
            self.is_drained.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Read {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
