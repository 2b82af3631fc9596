//! Client of the daemon's admin API. Owns the connection, its time limits and the messages about a daemon that does not
//! answer; the commands own the requests and print the answers.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use nodelb_host::clock::ticking;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

use super::print::sanitize;
use crate::exit::{Code, Failure};

/// Time limit of a connect. The daemon listens on this host, so it either accepts immediately or not at all.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Time limit of an answer. Longer than the daemon's own time limit of an answer.
const ANSWER_TIME: Duration = Duration::from_secs(65);
/// A command that waits for an answer checks at this interval that the daemon responds at all.
const CHECK_EVERY: Duration = Duration::from_secs(3);
/// Time limit of the answer to such a check, which the daemon gives at once.
const CHECK_TIME: Duration = Duration::from_secs(2);
const CHECK: &str = "/healthz";

/// A command checks at this interval that the output of a continuous answer still has a reader.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Maximum size of an answer in bytes: 10,000 services have about 20 MB of JSON.
const MAX_ANSWER: usize = 256 << 20;
/// Maximum size in bytes of a refusal that is read, and of the part that is shown.
const MAX_REFUSAL: usize = 64 << 10;
const MAX_REPORTED: usize = 4 << 10;

/// Address of a daemon's admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Text that contains a slash is a path.
impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        text.parse().map(Self::Tcp).map_err(|_no_address| {
            format!("`{text}` is neither an address with a port, such as 127.0.0.1:9890, nor the path of a socket")
        })
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

pub const DEFAULT_SOCKET: &str = "/run/nodelb/nodelb.sock";

/// Default addresses of the daemon, in addition to the socket.
pub const DEFAULT_LISTEN: [SocketAddr; 2] =
    [SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9890), SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 9890)];

/// Returns the addresses of a daemon with this configuration: the socket first, if it exists.
pub fn addresses(socket: &Path, listen: &[SocketAddr]) -> Vec<At> {
    let socket = Some(socket).filter(|path| path.exists());
    socket.map(|path| At::Unix(path.into())).into_iter().chain(listen.iter().copied().map(At::Tcp)).collect()
}

pub fn default_addresses() -> Vec<At> {
    addresses(Path::new(DEFAULT_SOCKET), &DEFAULT_LISTEN)
}

/// Returns the body of the answer to `target` from the first address that answers.
///
/// # Errors
/// [`Code::Unavailable`] when no address answers, or when the daemon cannot answer now; [`Code::Refused`] when it is asked
/// again too early; [`Code::Data`] when it does not understand the request.
pub fn get(addresses: &[At], target: &str) -> Result<Bytes, Failure> {
    first(addresses, |at| {
        let (status, body) = runtime()?.block_on(inquire(at, target))?;
        Ok(if status.is_success() { Ok(body) } else { Err(refused(at, status, &body)) })
    })
}

/// Sends a request that changes something, and returns the body of the answer.
///
/// # Errors
/// As [`get`]; [`Code::Permission`] when this user may not do that; [`Code::NotFound`], [`Code::Usage`] and
/// [`Code::Refused`] when the daemon refuses what is requested.
pub(crate) fn change(at: &At, method: &Method, target: &str) -> Result<Bytes, Failure> {
    first(std::slice::from_ref(at), |at| {
        let (status, body) = runtime()?.block_on(exchange(at, method, target))?;
        if status.is_success() {
            return Ok(Ok(body));
        }
        let failure = refused(at, status, &body);
        let said = serde_json::from_slice::<Problem>(&body).map(|problem| sanitize(problem.error.as_bytes()));
        Ok(Err(match (status, said) {
            (StatusCode::FORBIDDEN, Ok(said)) => Failure::message(Code::Permission, said),
            (StatusCode::CONFLICT, Ok(said)) => Failure::message(Code::Refused, said),
            // An earlier daemon has no such route.
            (StatusCode::NOT_FOUND, Ok(said)) if !said.starts_with("no route") => {
                Failure::message(Code::NotFound, said)
            }
            _ => failure,
        }))
    })
}

/// Passes the answer to `target` to `each` as it arrives, until the answer ends or `each` returns `false`. While
/// nothing arrives, `each` gets an empty piece from time to time.
///
/// # Errors
/// As [`get`]; [`Code::Unavailable`] also when the daemon ends the answer.
pub fn follow(
    addresses: &[At],
    target: &str,
    mut each: impl FnMut(&[u8]) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    first(addresses, |at| {
        let runtime = runtime()?;
        let response = runtime.block_on(async {
            timeout(CONNECT_TIME, open(at, &Method::GET, target)).await.context("no answer in time")?
        })?;
        Ok(runtime.block_on(async {
            let (head, mut body) = response.into_parts();
            if !head.status.is_success() {
                let said = timeout(ANSWER_TIME, Limited::new(body, MAX_REFUSAL).collect()).await;
                let said = said.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes);
                return Err(refused(at, head.status, &said.unwrap_or_default()));
            }
            let mut look = ticking(LOOK_EVERY);
            loop {
                let piece = tokio::select! {
                    frame = body.frame() => match frame {
                        Some(Ok(frame)) => frame.into_data().ok(),
                        _ => break,
                    },
                    _ = look.tick() => Some(Bytes::new()),
                };
                if let Some(piece) = piece
                    && !each(&piece)?
                {
                    return Ok(());
                }
            }
            let message = format!(
                "the daemon at {at} closed the response early: it has stopped, or this reader was too slow. Try again, \
                 and check `systemctl status nodelb`"
            );
            Err(Failure::message(Code::Unavailable, message))
        }))
    })
}

/// Returns the first answer, which may be a refusal.
fn first<Answer>(
    addresses: &[At],
    mut ask: impl FnMut(&At) -> anyhow::Result<Result<Answer, Failure>>,
) -> Result<Answer, Failure> {
    let (mut silent, mut is_running) = (Vec::new(), false);
    for at in addresses {
        match ask(at) {
            Ok(answer) => return answer,
            Err(error) => {
                silent.push((at.clone(), format!("{error:#}")));
                is_running |= is_listening(&error);
                // The other addresses are those of the same daemon.
                if error.is::<Hanging>() {
                    break;
                }
            }
        }
    }
    Err(Failure::new(Code::Unavailable, Unreachable { silent, is_running, pins: None }))
}

/// Whether a process has the address: it has accepted the connection, or too many wait to be accepted.
fn is_listening(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_none_or(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// The daemon accepts connections, but does not even answer a request that needs no work.
#[derive(Debug, thiserror::Error)]
#[error("it accepts connections, but does not respond")]
pub(crate) struct Hanging;

/// No daemon answers: the addresses that were tried, each with the reason.
#[derive(Debug)]
pub(crate) struct Unreachable {
    silent: Vec<(At, String)>,
    /// Whether a process listens at one of them: a start changes nothing then.
    is_running: bool,
    /// What is pinned, once that is known: what the missing daemon means for connections depends on it.
    pub(crate) pins: Option<Pins>,
}

impl Unreachable {
    /// The first address, with the reason, such as `/run/nodelb/nodelb.sock (connection refused)`.
    pub(crate) fn first(&self) -> String {
        let Some((at, reason)) = self.silent.first() else { return "any address".into() };
        tried(at, reason)
    }
}

/// What is pinned: what connections do without the daemon depends on it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pins {
    /// Maps of nodelb are pinned.
    Present,
    /// This directory has none.
    Absent(PathBuf),
    /// The maps cannot be read, for this reason.
    Unknown(String),
}

impl Pins {
    /// Returns what happens to connections, as sentences.
    pub fn effect(&self) -> String {
        match self {
            Self::Present => "Existing and new connections continue with the last known backends, even with backends \
                              that have failed since: nodelb diagnose NAMESPACE/NAME tests them."
                .into(),
            Self::Absent(directory) => {
                format!("No BPF maps of nodelb are pinned in {}: service addresses do not work", directory.display())
            }
            Self::Unknown(why) => format!("Whether service addresses work is not known: {why}"),
        }
    }
}

/// Formats as `/run/nodelb/nodelb.sock (connection refused)`: without the number of the error.
fn tried(at: &At, reason: &str) -> String {
    let reason = reason.split(" (os error").next().unwrap_or(reason);
    let mut letters = reason.chars();
    let lower = letters.next().map(|first| first.to_lowercase().chain(letters).collect::<String>());
    format!("{at} ({})", lower.unwrap_or_default())
}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let silent: Vec<String> = self.silent.iter().map(|(at, reason)| tried(at, reason)).collect();
        write!(f, "cannot reach the nodelb daemon at {}", silent.join(" or "))?;
        if let Some(pins) = &self.pins {
            write!(f, "\n{}", pins.effect())?;
        }
        let remedy = match self.is_running {
            true => "Restart it: systemctl restart nodelb.",
            false => "Start it: systemctl start nodelb.",
        };
        let other = "Other address: --admin. The socket is for root and its group.";
        write!(f, "\nCheck: systemctl status nodelb; journalctl -u nodelb. {remedy}\n{other}")
    }
}

impl std::error::Error for Unreachable {}

/// The JSON body of a refusal.
#[derive(Deserialize)]
struct Problem {
    error: String,
}

fn refused(at: &At, status: StatusCode, body: &[u8]) -> Failure {
    let body = body.get(..MAX_REPORTED).unwrap_or(body);
    let problem = serde_json::from_slice::<Problem>(body).ok();
    let said = sanitize(problem.as_ref().map_or(body, |problem| problem.error.as_bytes()));
    let said = said.trim_end();
    match status {
        StatusCode::SERVICE_UNAVAILABLE => {
            Failure::message(Code::Unavailable, format!("{said}; try again, and check `journalctl -u nodelb`"))
        }
        // The daemon understood the request, and its refusal names the remedy.
        StatusCode::CONFLICT => Failure::message(Code::Usage, said),
        StatusCode::TOO_MANY_REQUESTS => Failure::message(Code::Refused, said),
        StatusCode::BAD_REQUEST if !said.contains("parameter `") => Failure::message(Code::Usage, said),
        _ => Failure::message(Code::Data, format!("{said}; the daemon at {at} may have another version")),
    }
}

/// Returns a single-threaded runtime, because a command does nothing else meanwhile.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")
}

/// Sends one request on one connection, on the caller's runtime, and returns the status and body of any answer.
///
/// # Errors
/// When there is no answer; [`Hanging`] when the daemon does not respond to anything.
pub(crate) async fn inquire(at: &At, target: &str) -> anyhow::Result<(StatusCode, Bytes)> {
    exchange(at, &Method::GET, target).await
}

async fn exchange(at: &At, method: &Method, target: &str) -> anyhow::Result<(StatusCode, Bytes)> {
    let exchange = async {
        let (head, body) = open(at, method, target).await?.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| anyhow::anyhow!(error))?;
        anyhow::Ok((head.status, body.to_bytes()))
    };
    tokio::select! {
        answer = timeout(ANSWER_TIME, exchange) => answer.context("no answer in time")?,
        () = until_hanging(at) => Err(Hanging.into()),
    }
}

/// Returns when the daemon accepts connections and does not respond.
async fn until_hanging(at: &At) {
    loop {
        sleep(CHECK_EVERY).await;
        // A connection that fails is no reason to wait no longer: the pending request fails, too.
        if timeout(CHECK_TIME, open(at, &Method::GET, CHECK)).await.is_err() {
            return;
        }
    }
}

/// Sends the request, and returns the answer as soon as its header has arrived.
async fn open(at: &At, method: &Method, target: &str) -> anyhow::Result<Response<Incoming>> {
    match at {
        At::Tcp(address) => {
            let stream = connected(TcpStream::connect(address)).await?;
            send(stream, &address.to_string(), (method, target)).await
        }
        At::Unix(path) => {
            let stream = connected(UnixStream::connect(path)).await?;
            send(stream, "localhost", (method, target)).await
        }
    }
}

async fn connected<S>(connect: impl Future<Output = io::Result<S>>) -> io::Result<S> {
    let late = |_elapsed| io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
    timeout(CONNECT_TIME, connect).await.map_err(late)?
}

async fn send<S>(stream: S, host: &str, (method, target): (&Method, &str)) -> anyhow::Result<Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::builder().method(method).uri(target).header(HOST, host).header(CONNECTION, "close");
    let request = if *method == Method::GET { request } else { request.header(ACCEPT, "application/json") };
    let request = request.body(Empty::<Bytes>::new()).context("cannot build the request")?;
    // This task only moves bytes. An error of the connection appears in the answer.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

#[cfg(test)]
#[path = "tests/client.rs"]
mod tests;
