//! A server in its own thread, so that it can be frozen.

use std::convert::Infallible;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use http_body_util::Full;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::service::service_fn;
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

use super::*;

pub(in crate::apiserver) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// A header with the TLS properties of the connection, which the server adds for its service.
pub(in crate::apiserver) const SEEN: &str = "x-seen";

pub(in crate::apiserver) enum Served {
    Answer(Answer),
    Never,
}

pub(in crate::apiserver) fn whole(status: u16, body: &str) -> Answer {
    Response::builder().status(status).body(UnsyncBoxBody::new(Full::from(body.to_owned()))).unwrap()
}

/// A body that never ends and consists of one frame.
pub(in crate::apiserver) fn stream(first: &'static str) -> Answer {
    Response::new(UnsyncBoxBody::new(Endless { frames: 1, frame: first.into() }))
}

/// A body of 400 MB.
pub(in crate::apiserver) fn huge(status: u16) -> Answer {
    let body = Endless { frames: 400, frame: vec![b' '; 1_000_000].into() };
    Response::builder().status(status).body(UnsyncBoxBody::new(body)).unwrap()
}

struct Endless {
    frames: usize,
    frame: Bytes,
}

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.frames.checked_sub(1) {
            Some(frames) => {
                self.frames = frames;
                Poll::Ready(Some(Ok(Frame::data(self.frame.clone()))))
            }
            None => Poll::Pending,
        }
    }
}

/// A running server, which stops when this value is dropped.
pub(in crate::apiserver) struct Serving {
    pub(in crate::apiserver) at: SocketAddr,
    connections: Arc<AtomicUsize>,
    leave: watch::Sender<()>,
    _stop: oneshot::Sender<()>,
    freeze: tokio::sync::mpsc::UnboundedSender<mpsc::Receiver<()>>,
}

impl Serving {
    pub(in crate::apiserver) fn start(
        authority: &Authority,
        protocols: &[&str],
        answer: impl Fn(Request<Incoming>) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::begin(authority, protocols, move |request| Served::Answer(answer(request)))
    }

    pub(in crate::apiserver) fn begin(
        authority: &Authority,
        protocols: &[&str],
        answer: impl Fn(Request<Incoming>) -> Served + Send + Sync + 'static,
    ) -> Self {
        Self::with(authority.server(&Authority::params(&["127.0.0.1"]), protocols), answer)
    }

    pub(in crate::apiserver) fn with(
        config: ServerConfig,
        answer: impl Fn(Request<Incoming>) -> Served + Send + Sync + 'static,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (stop, stopped) = oneshot::channel::<()>();
        let (freeze, mut freezes) = tokio::sync::mpsc::unbounded_channel::<mpsc::Receiver<()>>();
        let counted = Arc::clone(&connections);
        let (leave, leaving) = watch::channel(());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                tokio::spawn(accept(
                    TcpListener::from_std(listener).unwrap(),
                    config,
                    Arc::new(answer),
                    counted,
                    leaving,
                ));
                tokio::spawn(async move {
                    while let Some(thaw) = freezes.recv().await {
                        // Blocks the only thread of the runtime until the sender is dropped.
                        let _ = thaw.recv();
                    }
                });
                let _ = stopped.await;
            });
        });
        Self { at, connections, leave, _stop: stop, freeze }
    }

    pub(in crate::apiserver) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Drains all connections: each closes after its last request.
    pub(in crate::apiserver) fn go_away(&self) {
        self.leave.send_replace(());
    }

    /// Freezes the server until the result is dropped.
    pub(in crate::apiserver) fn freeze(&self) -> mpsc::Sender<()> {
        let (thaw, thawed) = mpsc::channel();
        self.freeze.send(thawed).unwrap();
        thaw
    }
}

async fn accept<A>(
    listener: TcpListener,
    config: ServerConfig,
    answer: Arc<A>,
    connections: Arc<AtomicUsize>,
    leave: watch::Receiver<()>,
) where
    A: Fn(Request<Incoming>) -> Served + Send + Sync + 'static,
{
    let acceptor = TlsAcceptor::from(Arc::new(config));
    while let Ok((stream, _)) = listener.accept().await {
        connections.fetch_add(1, Ordering::SeqCst);
        let (acceptor, answer, mut leave) = (acceptor.clone(), Arc::clone(&answer), leave.clone());
        leave.mark_unchanged();
        let kept_open = stream.as_fd().try_clone_to_owned();
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let connection = stream.get_ref().1;
            let is_http2 = connection.alpn_protocol() == Some(b"h2");
            let seen = format!(
                "{} client certificates, {:?} handshake",
                connection.peer_certificates().map_or(0, <[_]>::len),
                connection.handshake_kind().unwrap()
            );
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.headers_mut().insert(SEEN, seen.parse().unwrap());
                let served = answer(request);
                async move {
                    match served {
                        Served::Answer(answer) => Ok::<_, Infallible>(answer),
                        Served::Never => std::future::pending().await,
                    }
                }
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            // A builder that has to detect the version closes a connection that is drained at once without a GOAWAY.
            let builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
            let mut serving = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
            tokio::select! {
                _ = &mut serving => return,
                _ = leave.changed() => serving.as_mut().graceful_shutdown(),
            }
            // Sends a GOAWAY; pending requests continue.
            let _ = serving.await;
            // As in Go: a socket that is closed with unread data resets the connection, and a client may then never read
            // the GOAWAY.
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(kept_open);
        });
    }
}
