//! Open web pages: clients that read the events of the page and discard them.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::JoinHandle;

use crate::admin::ADMIN;

/// Open pages; closed when dropped.
pub(crate) struct Pages(Vec<(TcpStream, JoinHandle<u64>)>);

impl Pages {
    /// Opens this number of pages. Each has received everything when this returns.
    pub(crate) fn open(number: usize) -> Self {
        Self((0..number).map(|_| open()).collect())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        for (stream, reader) in self.0.drain(..) {
            stream.shutdown(Shutdown::Both).unwrap();
            assert!(reader.join().unwrap() > 0, "a page received no change");
        }
    }
}

/// A page, and the thread that counts the bytes that it receives after the first message.
fn open() -> (TcpStream, JoinHandle<u64>) {
    let mut stream = TcpStream::connect(ADMIN).unwrap();
    write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut piece = vec![0; 1 << 16];
    let mut received = Vec::new();
    // The status is the last event of the first message that every daemon sends.
    while !received.windows(14).any(|window| window == b"event: status\n") {
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "the daemon closed a page");
        let kept = received.len().saturating_sub(14);
        received.drain(..kept);
        received.extend_from_slice(&piece[..length]);
    }
    let mut reader = stream.try_clone().unwrap();
    let count = move || {
        let mut bytes = 0;
        while let Ok(length @ 1..) = reader.read(&mut piece) {
            bytes += length as u64;
        }
        bytes
    };
    (stream, std::thread::spawn(count))
}
