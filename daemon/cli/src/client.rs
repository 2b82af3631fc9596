//! Asks a running daemon over its admin API. Owns the connection, its time limits and the words for a daemon that does
//! not answer; what is asked and how the answer is printed is the command line's business.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use nodelb_kube::clock::ticking;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::print::harmless;
use crate::exit::{Code, Failure};

/// The daemon listens on this host: either it accepts at once or it never will.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Longer than the daemon takes to give up on an answer.
const ANSWER_TIME: Duration = Duration::from_secs(65);

/// Between two looks whether an answer that goes on is still read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The most bytes of an answer: 10,000 services have some 20 MB of JSON.
const MAX_ANSWER: usize = 256 << 20;
/// The most bytes that are read, and told, of a refusal.
const MAX_REFUSAL: usize = 64 << 10;
const MAX_TOLD: usize = 4 << 10;

/// Where a daemon is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// At a loopback address.
    Tcp(SocketAddr),
    /// At a unix socket.
    Unix(PathBuf),
}

/// Whatever has a slash in it is a path.
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

/// The socket at which a daemon listens unless its configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/nodelb/nodelb.sock";

/// The addresses at which it listens, too.
pub const DEFAULT_LISTEN: [SocketAddr; 2] =
    [SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9890), SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 9890)];

/// Where a daemon so configured listens: the socket first, if there is one.
pub fn places(socket: &Path, listen: &[SocketAddr]) -> Vec<At> {
    let socket = Some(socket).filter(|path| path.exists());
    socket.map(|path| At::Unix(path.into())).into_iter().chain(listen.iter().copied().map(At::Tcp)).collect()
}

/// Where a daemon listens that is not configured otherwise.
pub fn default_places() -> Vec<At> {
    places(Path::new(DEFAULT_SOCKET), &DEFAULT_LISTEN)
}

/// The body of the answer to `target`, from the first of the places that answers.
///
/// # Errors
/// [`Code::Unavailable`] when none answers, or the daemon cannot tell now; [`Code::Data`] when it does not understand
/// the question.
pub fn get(places: &[At], target: &str) -> Result<Bytes, Failure> {
    first(places, |at| {
        let (status, body) = runtime()?.block_on(inquire(at, target))?;
        Ok(if status.is_success() { Ok(body) } else { Err(refused(at, status, &body)) })
    })
}

/// Hands the answer to `target` on as it comes, until it ends or `each` has seen enough, which it says with `false`. While
/// nothing comes, `each` gets an empty piece now and then.
///
/// # Errors
/// As [`get`]; [`Code::Unavailable`] also when the daemon ends the answer.
pub fn follow(
    places: &[At],
    target: &str,
    mut each: impl FnMut(&[u8]) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    first(places, |at| {
        let runtime = runtime()?;
        let response =
            runtime.block_on(async { timeout(CONNECT_TIME, open(at, target)).await.context("no answer in time")? })?;
        Ok(runtime.block_on(async {
            let (head, mut body) = response.into_parts();
            if !head.status.is_success() {
                let said = timeout(ANSWER_TIME, Limited::new(body, MAX_REFUSAL).collect()).await;
                let said = said.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes);
                return Err(refused(at, head.status, &said.unwrap_or_default()));
            }
            let mut look = ticking(LOOK_EVERY);
            loop {
                let frame = tokio::select! {
                    frame = body.frame() => match frame {
                        Some(Ok(frame)) => Some(frame),
                        _ => break,
                    },
                    _ = look.tick() => None,
                };
                let piece = match &frame {
                    Some(frame) => frame.data_ref().map(|bytes| &**bytes),
                    None => Some(&[][..]),
                };
                if let Some(piece) = piece
                    && !each(piece)?
                {
                    return Ok(());
                }
            }
            let message = format!(
                "the daemon at {at} ended the answer (it stopped, or this reader was too slow): ask again, and look with \
                 `systemctl status nodelb` if nobody answers"
            );
            Err(Failure::message(Code::Unavailable, message))
        }))
    })
}

/// The first that answers, whatever it answers.
fn first<Answer>(
    places: &[At],
    mut ask: impl FnMut(&At) -> anyhow::Result<Result<Answer, Failure>>,
) -> Result<Answer, Failure> {
    let mut silent = Vec::new();
    for at in places {
        match ask(at) {
            Ok(answer) => return answer,
            Err(error) => silent.push(format!("{at} ({error:#})")),
        }
    }
    let message = format!(
        "no nodelb daemon answers at {}. Look with `systemctl status nodelb` and `journalctl -u nodelb`, start it with \
         `systemctl start nodelb`, or name where it listens with --admin; a socket is for root and its group. \
         Connections go on as the kernel maps say, with or without it",
        silent.join(" or ")
    );
    Err(Failure::message(Code::Unavailable, message))
}

/// A refusal in JSON.
#[derive(Deserialize)]
struct Problem {
    error: String,
}

fn refused(at: &At, status: StatusCode, body: &[u8]) -> Failure {
    let body = body.get(..MAX_TOLD).unwrap_or(body);
    let problem = serde_json::from_slice::<Problem>(body).ok();
    let said = harmless(problem.as_ref().map_or(body, |problem| problem.error.as_bytes()));
    let (code, remedy) = match status {
        StatusCode::SERVICE_UNAVAILABLE => (Code::Unavailable, "; try again, and look into `journalctl -u nodelb`"),
        // Understood, and refused with what to do.
        StatusCode::BAD_REQUEST if !said.contains("parameter `") => (Code::Data, ""),
        _ => (Code::Data, "; is it a daemon of another version?"),
    };
    Failure::message(code, format!("the daemon at {at} answers {status}: {}{remedy}", said.trim_end()))
}

/// For a command, which does nothing else meanwhile.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")
}

/// One question on one connection, on the caller's runtime: the status and body of whatever answer there is.
///
/// # Errors
/// When there is none.
pub(crate) async fn inquire(at: &At, target: &str) -> anyhow::Result<(StatusCode, Bytes)> {
    let exchange = async {
        let (head, body) = open(at, target).await?.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| anyhow::anyhow!(error))?;
        anyhow::Ok((head.status, body.to_bytes()))
    };
    timeout(ANSWER_TIME, exchange).await.context("no answer in time")?
}

/// Asks, and returns the answer as soon as its head is there.
async fn open(at: &At, target: &str) -> anyhow::Result<Response<Incoming>> {
    let late = "no answer in time";
    match at {
        At::Tcp(address) => {
            let stream = timeout(CONNECT_TIME, TcpStream::connect(address)).await.context(late)??;
            send(stream, &address.to_string(), target).await
        }
        At::Unix(path) => {
            let stream = timeout(CONNECT_TIME, UnixStream::connect(path)).await.context(late)??;
            send(stream, "localhost", target).await
        }
    }
}

async fn send<S>(stream: S, host: &str, target: &str) -> anyhow::Result<Response<Incoming>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(target)
        .header(HOST, host)
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .context("the question cannot be put into a request")?;
    // The connection only moves the bytes; how it ends shows in the answer.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

#[cfg(test)]
#[path = "tests/client.rs"]
mod tests;
