//! Requests over HTTP without TLS: to the API (through kubectl proxy) and to health checks.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Sends a request and returns the status and the body. HTTP/1.0: the server closes the connection after the answer.
pub(crate) fn request(to: SocketAddr, limit: Duration, head: &str, body: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&to, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let length = body.len();
    let kind = "application/merge-patch+json";
    write!(
        stream,
        "{head} HTTP/1.0\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&String::from_utf8_lossy(&answer)).ok_or_else(|| io::Error::other("not an answer of HTTP"))
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

#[cfg(test)]
#[path = "tests/http.rs"]
mod tests;
