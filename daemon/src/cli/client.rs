//! Asks a running daemon over its admin API. Owns the connection, its time limits and the words for a daemon that does
//! not answer; what is asked and how the answer is printed is the command line's business.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config;
use crate::exit::{Code, Failure};

/// The daemon listens on this host: either it accepts at once or it never will.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// Longer than the daemon takes to give up on an answer.
const ANSWER_TIME: Duration = Duration::from_secs(65);

/// Where the daemon listens unless it is configured otherwise.
pub fn default_addresses() -> Vec<SocketAddr> {
    config::Admin::default().listen
}

/// The body of the answer to `target`, from the first of the addresses that answers.
///
/// # Errors
/// [`Code::Unavailable`] when none answers, or the daemon cannot tell now; [`Code::Data`] when it does not understand
/// the question.
pub fn get(addresses: &[SocketAddr], target: &str) -> Result<Bytes, Failure> {
    let mut silent = Vec::new();
    for &address in addresses {
        match ask(address, target) {
            Ok((status, body)) if status.is_success() => return Ok(body),
            Ok((status, body)) => return Err(refused(address, status, &body)),
            Err(error) => silent.push(format!("{address} ({error:#})")),
        }
    }
    let message = format!(
        "no nodelb daemon answers at {}. Look with `systemctl status nodelb` and `journalctl -u nodelb`, start it with \
         `systemctl start nodelb`, or name the address it listens on with --admin. Connections go on as the kernel \
         maps say, with or without it",
        silent.join(" or ")
    );
    Err(Failure::message(Code::Unavailable, message))
}

fn refused(address: SocketAddr, status: StatusCode, body: &[u8]) -> Failure {
    let said = String::from_utf8_lossy(body);
    let (code, remedy) = match status {
        StatusCode::SERVICE_UNAVAILABLE => (Code::Unavailable, "try again, and look into `journalctl -u nodelb`"),
        _ => (Code::Data, "is it a daemon of another version?"),
    };
    Failure::message(code, format!("the daemon at {address} answers {status}: {}; {remedy}", said.trim_end()))
}

/// One question on one connection, on a runtime of its own: the command line does nothing else meanwhile.
fn ask(address: SocketAddr, target: &str) -> anyhow::Result<(StatusCode, Bytes)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(inquire(address, target))
}

/// The same on the caller's runtime: the status and body of whatever answer there is.
///
/// # Errors
/// When there is none.
pub(crate) async fn inquire(address: SocketAddr, target: &str) -> anyhow::Result<(StatusCode, Bytes)> {
    let stream = timeout(CONNECT_TIME, TcpStream::connect(address)).await.context("no answer in time")??;
    timeout(ANSWER_TIME, exchange(stream, address, target)).await.context("no answer in time")?
}

async fn exchange(stream: TcpStream, address: SocketAddr, target: &str) -> anyhow::Result<(StatusCode, Bytes)> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(target)
        .header(HOST, address.to_string())
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .context("the question cannot be put into a request")?;
    let answer = async {
        let response = sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        anyhow::Ok((head.status, body.collect().await?.to_bytes()))
    };
    // The connection only moves the bytes; how it ends shows in the answer.
    let (answer, _moved) = tokio::join!(answer, connection);
    answer
}

#[cfg(test)]
mod tests;
