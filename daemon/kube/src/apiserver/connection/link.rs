//! A connection to an apiserver. Uses HTTP/2 if the server supports it, with a new connection when the server drains
//! the current one; otherwise one HTTP/1.1 connection per request. Keeps the sockets, so that it can shut them down.
//! [`connect`](super::connect) opens them, and [`credentials`](crate::apiserver::credentials) provides the login.

mod frames;
mod http2;
mod sockets;
mod target;

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use http_body_util::Full;
use http_body_util::combinators::BoxBody;
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::http::uri::{PathAndQuery, Scheme};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use nodelb_host::clock::by;
use tokio::time::Instant;

use self::http2::Http2;
use self::sockets::{Kept, Sockets};
use self::target::{Sent, Target, chain};
use super::connect::{Connector, second_descriptor};
use super::error::{Asked, LinkError, read_error};
use super::tls;
use crate::apiserver::address::Server;
use crate::apiserver::credentials::login::Login;

const AGENT: &str = concat!("nodelb/", env!("CARGO_PKG_VERSION"));

/// A connection for requests. Dropping it ends all its connections.
pub struct Link {
    target: Target,
    login: RwLock<Arc<Login>>,
    transport: Transport,
    sockets: Arc<Sockets>,
}

/// The body of a response. Yields an error as soon as the link is cut.
pub type Body = BoxBody<Bytes, LinkError>;

enum Transport {
    Http2(Arc<Http2>),
    /// Without HTTP/2. Contains the connection that was opened to negotiate the protocol, until the first request uses
    /// it.
    Http1(Mutex<Option<http1::SendRequest<Sent>>>),
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut link = f.debug_struct("Link");
        link.field("at", &self.target.at).field("protocol", &self.protocol()).field("over", &self.sockets.end());
        link.finish_non_exhaustive()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Link {
    /// Connects to `at`, which must present a certificate for `server`.
    ///
    /// # Errors
    /// [`LinkError::Unreachable`], [`LinkError::Certificate`], [`LinkError::TimedOut`] or [`LinkError::Broken`].
    /// Rejected credentials only show in the response to the first request.
    pub async fn open(
        connector: &Connector,
        at: SocketAddr,
        server: &Server,
        login: &Arc<Login>,
    ) -> Result<Arc<Self>, LinkError> {
        let name = tls::server_name(server)?;
        let target = Target { connector: connector.clone(), at, name, address: server.address.clone() };
        let sockets = Arc::new(Sockets::default());
        let (stream, kept) = target.connect(login, &sockets).await?;
        let transport = if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            let (to, login, sockets) = (target.clone(), Arc::clone(login), Arc::clone(&sockets));
            Transport::Http2(Http2::start(to, login, sockets, (stream, kept)).await?)
        } else {
            Transport::Http1(Mutex::new(Some(start_http1(stream, kept).await?)))
        };
        Ok(Arc::new(Self { target, login: RwLock::new(Arc::clone(login)), transport, sockets }))
    }

    pub fn at(&self) -> SocketAddr {
        self.target.at
    }

    pub fn login(&self) -> Arc<Login> {
        Arc::clone(&self.login.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// `h2` or `http/1.1`.
    pub fn protocol(&self) -> &'static str {
        match self.transport {
            Transport::Http2(_) => "h2",
            Transport::Http1(_) => "http/1.1",
        }
    }

    /// The number of times that a new HTTP/2 connection has replaced one that the server drained. The new connection
    /// may reach another server.
    pub fn generation(&self) -> u64 {
        match &self.transport {
            Transport::Http2(http2) => http2.generation(),
            Transport::Http1(_) => 0,
        }
    }

    /// Uses a rotated token for future requests. Returns false if the certificates differ, which require a new link.
    pub fn renew(&self, login: &Arc<Login>) -> bool {
        let mut current = self.login.write().unwrap_or_else(PoisonError::into_inner);
        let same_certificates = Arc::ptr_eq(&current.tls, &login.tls);
        if same_certificates {
            *current = Arc::clone(login);
        }
        same_certificates
    }

    pub async fn get(&self, path_and_query: &str, timeout: Duration) -> Result<Response<Body>, LinkError> {
        let request = Request::get(path_and_query).body(Sent::default());
        self.send(request.map_err(|error| bad_request(path_and_query, &error))?, timeout).await
    }

    /// Sends a request with the link's credentials, and waits at most `timeout` for the head of the response. If there
    /// is no response, it is unknown whether the server has performed the request.
    ///
    /// # Errors
    /// The request failed, or the status is not 2xx; then the error contains the server's message.
    pub async fn send(&self, request: Request<Full<Bytes>>, timeout: Duration) -> Result<Response<Body>, LinkError> {
        let login = &self.login();
        let (method, uri) = (request.method().clone(), request.uri().to_string());
        let path_and_query = uri.trim_end_matches('?');
        let request = self.complete(request, login).map_err(|error| bad_request(path_and_query, &error))?;
        let answer = tokio::select! {
            biased;
            answer = by(Instant::now() + timeout, self.exchange(request, login)) => answer.unwrap_or_else(|_late| {
                let at = self.target.at;
                Err(LinkError::TimedOut(format!("{at} has not answered {method} {path_and_query} within {timeout:?}")))
            })?,
            error = self.ended() => return Err(error),
        };
        if !answer.status().is_success() {
            let identity = login.described(SystemTime::now());
            let user = login.user.as_deref();
            let (server, groups) = (self.target.at, login.groups.as_slice());
            let asked = Asked { server, identity: &identity, user, groups, method: &method, path_and_query };
            return Err(read_error(answer, &asked, self.target.connector.timeouts.refusal).await);
        }
        let (at, sockets) = (self.target.at, Arc::clone(&self.sockets));
        Ok(answer.map(|inner| BoxBody::new(Streamed { inner, at, sockets })))
    }

    /// Shuts down all sockets immediately. Pending requests and bodies end with an error.
    pub fn cut(&self) {
        self.sockets.cut();
    }

    /// Waits until the link cannot send any more requests, and returns the reason: the HTTP/2 connection has ended
    /// without being drained, its replacement failed, or the link was cut. Without HTTP/2 only a cut ends the link.
    pub async fn ended(&self) -> LinkError {
        self.sockets.ended().await
    }

    /// Adds the server's address and the credentials to a request.
    fn complete(&self, request: Request<Sent>, login: &Login) -> Result<Request<Sent>, hyper::http::Error> {
        let (mut head, body) = request.into_parts();
        let host = self.target.address.to_string();
        match self.transport {
            Transport::Http2(_) => {
                let path_and_query = head.uri.path_and_query().cloned().unwrap_or(PathAndQuery::from_static("/"));
                let uri = Uri::builder().scheme(Scheme::HTTPS).authority(host).path_and_query(path_and_query);
                head.uri = uri.build()?;
            }
            Transport::Http1(_) => _ = head.headers.insert(HOST, host.try_into()?),
        }
        head.headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        head.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(authorization) = &login.authorization {
            head.headers.insert(AUTHORIZATION, authorization.clone());
        }
        Ok(Request::from_parts(head, body))
    }

    async fn exchange(&self, request: Request<Sent>, login: &Login) -> Result<Response<Incoming>, LinkError> {
        match &self.transport {
            Transport::Http2(http2) => return http2.send(request).await,
            Transport::Http1(spare) => {
                let spare = spare.lock().unwrap_or_else(PoisonError::into_inner).take();
                let mut sender = match ready(spare).await {
                    Some(sender) => sender,
                    None => {
                        let (stream, kept) = self.target.connect(login, &self.sockets).await?;
                        start_http1(stream, kept).await?
                    }
                };
                sender.send_request(request).await
            }
        }
        .map_err(|error| LinkError::Broken(format!("{}: {}", self.target.at, chain(&error))))
    }
}

impl Target {
    async fn connect(&self, login: &Login, sockets: &Arc<Sockets>) -> Result<(tls::Stream, Kept), LinkError> {
        let stream = self.connector.open(self.at).await?;
        let descriptor = second_descriptor(&stream)
            .map_err(|error| LinkError::Unreachable(format!("{}: no second descriptor: {error}", self.at)))?;
        let kept = sockets.keep(descriptor);
        let timeout = self.connector.timeouts.handshake;
        Ok((tls::handshake(&login.tls, (stream, self.at), &self.name, timeout).await?, kept))
    }
}

async fn start_http1(stream: tls::Stream, kept: Kept) -> Result<http1::SendRequest<Sent>, LinkError> {
    let (sender, connection) = http1::Builder::new()
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| LinkError::Broken(format!("no HTTP/1.1: {}", chain(&error))))?;
    tokio::spawn(async move {
        // The reader of the body receives the error.
        let _ = connection.await;
        drop(kept);
    });
    Ok(sender)
}

/// The connection, unless the server has closed it.
async fn ready(spare: Option<http1::SendRequest<Sent>>) -> Option<http1::SendRequest<Sent>> {
    let mut sender = spare?;
    sender.ready().await.is_ok().then_some(sender)
}

fn bad_request(path_and_query: &str, error: &hyper::http::Error) -> LinkError {
    LinkError::Broken(format!("`{path_and_query}` cannot be asked for: {error}"))
}

/// A body that ends when its link is cut.
struct Streamed {
    inner: Incoming,
    at: SocketAddr,
    sockets: Arc<Sockets>,
}

impl hyper::body::Body for Streamed {
    type Data = Bytes;
    type Error = LinkError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, LinkError>>> {
        // After a cut, the kernel and the HTTP/2 connection may still buffer megabytes, and a body without a length
        // would seem to be complete.
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        let at = self.at;
        match (self.sockets.cut_error(), polled) {
            (Some(error), Poll::Ready(_)) => Poll::Ready(Some(Err(error))),
            (_, polled) => polled.map_err(|error| LinkError::Broken(format!("{at}: {}", chain(&error)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
#[path = "tests/link.rs"]
pub(super) mod tests;
