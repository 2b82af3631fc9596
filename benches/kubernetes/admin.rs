//! The response time of the admin API, from the connection to the last byte.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const TIMES: usize = 30;

/// The default address of the admin API.
pub(crate) const ADMIN: &str = "127.0.0.1:9890";

/// The median time, and the size of a response in bytes.
pub(crate) fn ask(target: &str) -> (Duration, usize) {
    let mut times: Vec<(Duration, usize)> = (0..TIMES).map(|_| once(target)).collect();
    times.sort();
    times[TIMES / 2]
}

fn once(target: &str) -> (Duration, usize) {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(ADMIN).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{target}");
    (begun.elapsed(), answer.len())
}
