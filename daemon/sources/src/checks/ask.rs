//! One check of one backend: a TCP connect, or an HTTP GET and its status. It uses sockets of nodelb's own, so that no
//! service answers instead of a backend. A backend may be slow, hostile or unreachable: time and bytes are limited, and
//! nothing but the status of an answer is used.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::TcpStream as StdTcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper::rt::ReadBufCursor;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use nix::errno::Errno;
use nodelb_core::durations;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::forward::Forward;
use nodelb_core::model::health_check::Method;
use nodelb_host::clock::{Late, by};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use super::board::Question;
use super::state::CheckOutcome;

/// Maximum size of an answer's header in bytes. hyper accepts no smaller limit.
const MAX_HEAD: usize = 8 << 10;

const AGENT: &str = concat!("nodelb/", env!("CARGO_PKG_VERSION"), " (health check)");

/// A bad answer, or no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckFailure {
    pub(super) outcome: CheckOutcome,
    /// The error as text, such as `connection refused`.
    pub(super) text: Arc<str>,
    /// Whether this host has no route to the backend, which is true of every backend until the host's network is up.
    pub(super) has_no_route: bool,
}

impl CheckFailure {
    fn new(outcome: CheckOutcome, text: impl Into<Arc<str>>) -> Self {
        Self { outcome, text: text.into(), has_no_route: false }
    }

    fn timed_out(late: Late, text: String) -> Self {
        match late {
            Late::Work => Self::new(CheckOutcome::Timeout, text),
            Late::Process => Self::new(CheckOutcome::Unasked, "nodelb was stopped during the check"),
        }
    }

    fn from_error(error: &io::Error) -> Self {
        let outcome = match error.kind() {
            _ if is_own(error) => CheckOutcome::Unasked,
            ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => CheckOutcome::Refused,
            // The kernel has given up before the time limit of the check.
            ErrorKind::TimedOut => CheckOutcome::Timeout,
            _ => CheckOutcome::Unreachable,
        };
        let text = match error.raw_os_error() {
            Some(errno) => Errno::from_raw(errno).desc().to_lowercase(),
            None => error.to_string(),
        };
        Self { has_no_route: is_one_of(error, &[Errno::ENETUNREACH, Errno::ENETDOWN]), ..Self::new(outcome, text) }
    }
}

/// Whether the error concerns this host, not the backend.
fn is_own(error: &io::Error) -> bool {
    let resources = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM, Errno::EADDRNOTAVAIL, Errno::EAGAIN];
    is_one_of(error, &resources)
}

fn is_one_of(error: &io::Error, errnos: &[Errno]) -> bool {
    error.raw_os_error().is_some_and(|errno| errnos.contains(&Errno::from_raw(errno)))
}

/// Makes the socket of a check nodelb's own, which the BPF programs ignore, but for the way to a backend with direct return:
/// that of clients' packets to this address of the service.
pub type Prepare = Arc<dyn Fn(BorrowedFd<'_>, Option<(L4Addr, Forward)>) -> io::Result<()> + Send + Sync>;

/// Makes the check, and waits for the answer no longer than its time limit.
pub(super) async fn ask(question: &Question, prepare: &Prepare) -> Result<(), CheckFailure> {
    let deadline = Instant::now() + question.check.timeout;
    let stream = by(deadline, connect(question, prepare)).await.map_err(|late| {
        let within = durations::exact(question.check.timeout);
        let text = match question.way {
            Some((service, Forward::Tunnel)) => format!("no connection to {service} in the tunnel within {within}"),
            Some((service, _)) => format!("no connection to {service} within {within}"),
            None => format!("no connection within {within}"),
        };
        CheckFailure::timed_out(late, text)
    })??;
    answer(question, stream, deadline).await
}

async fn connect(question: &Question, prepare: &Prepare) -> Result<TcpStream, CheckFailure> {
    let socket =
        open(question, prepare).map_err(|error| CheckFailure::new(CheckOutcome::Unasked, error.to_string()))?;
    let connecting = TcpSocket::from_std_stream(StdTcpStream::from(socket)).connect(question.at);
    connecting.await.map_err(|error| CheckFailure::from_error(&error))
}

/// Closing the socket resets the connection: a thousand checks a second must not leave a thousand ports a second in
/// TIME_WAIT.
fn open(question: &Question, prepare: &Prepare) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(question.at), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_linger(Some(Duration::ZERO))?;
    prepare(socket.as_fd(), question.way)?;
    Ok(socket)
}

async fn answer(question: &Question, stream: TcpStream, deadline: Instant) -> Result<(), CheckFailure> {
    let check = &question.check;
    match &check.method {
        Method::Tcp => Ok(()),
        Method::Http { path, host, status } => {
            let host = host.as_deref().map_or_else(|| question.at.to_string(), str::to_owned);
            let asking = Box::pin(get(stream, path, &host));
            let answer = by(deadline, asking).await.map_err(|late| {
                CheckFailure::timed_out(late, format!("no answer within {}", durations::exact(check.timeout)))
            })??;
            if status.contains(&answer.as_u16()) {
                return Ok(());
            }
            let (first, last) = (status.start(), status.end());
            let expected = if first == last { first.to_string() } else { format!("{first}-{last}") };
            Err(CheckFailure::new(CheckOutcome::Status, format!("status {}, expected {expected}", answer.as_u16())))
        }
    }
}

/// Returns the status of the final answer to a GET.
async fn get(stream: TcpStream, path: &str, host: &str) -> Result<StatusCode, CheckFailure> {
    let broken = |error: hyper::Error| CheckFailure::new(CheckOutcome::Protocol, chain(&error));
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(MAX_HEAD).handshake(Abrupt(TokioIo::new(stream))).await.map_err(broken)?;
    let request = Request::get(path)
        .header(HOST, host)
        .header(USER_AGENT, AGENT)
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| CheckFailure::new(CheckOutcome::Unasked, error.to_string()))?;
    let mut answering = std::pin::pin!(sender.send_request(request));
    let answer = tokio::select! {
        biased;
        answer = &mut answering => answer,
        // The connection has ended, so it has delivered everything that it received.
        _ = connection => answering.await,
    };
    answer.map(|answer| answer.status()).map_err(|error| match reset(&error) {
        Some(cause) => CheckFailure::from_error(cause),
        None => broken(error),
    })
}

/// A connection that is not shut down before it is closed: the side that shuts down first is left with a port in
/// TIME_WAIT.
struct Abrupt(TokioIo<TcpStream>);

impl hyper::rt::Read for Abrupt {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl hyper::rt::Write for Abrupt {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Returns the socket error that caused an HTTP error, if there is one.
fn reset(error: &hyper::Error) -> Option<&io::Error> {
    error.source()?.downcast_ref::<io::Error>().filter(|cause| cause.raw_os_error().is_some())
}

/// Returns an error with its causes.
fn chain(error: &(dyn Error + 'static)) -> String {
    anyhow::Chain::new(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
#[path = "tests/ask.rs"]
mod tests;
