//! Clients that keep their TCP connections and ask on them at a constant interval, until they are stopped.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::exchange::{Failure, QUESTION};
use crate::tally::Tally;

/// How long a client waits for a connection and for each answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Connections to a backend that answers each line.
#[derive(Debug)]
pub struct Kept {
    connections: Vec<BufReader<TcpStream>>,
    start: Instant,
    tally: Tally,
}

impl Kept {
    /// Opens this many connections.
    ///
    /// # Errors
    /// One cannot be opened.
    pub fn open(to: SocketAddr, count: u32) -> std::io::Result<Self> {
        let open = |_| {
            let stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            Ok(BufReader::new(stream))
        };
        let connections = (0..count).map(open).collect::<std::io::Result<_>>()?;
        Ok(Self { connections, start: Instant::now(), tally: Tally::default() })
    }

    /// Asks once on each connection. One that fails is given up.
    pub fn ask(&mut self) {
        let (start, tally) = (self.start, &mut self.tally);
        self.connections.retain_mut(|connection| {
            let began = Instant::now();
            let answer = question(connection);
            let lives = answer.is_ok();
            tally.record(answer, start.elapsed(), began.elapsed());
            lives
        });
    }

    /// The answers so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }
}

fn question(connection: &mut BufReader<TcpStream>) -> Result<String, Failure> {
    connection.get_mut().write_all(&[QUESTION, b'\n'])?;
    let mut line = String::new();
    connection.read_line(&mut line)?;
    line.strip_suffix('\n').map(ToOwned::to_owned).ok_or_else(|| Failure::Answer(line.clone()))
}

#[cfg(test)]
#[path = "tests/kept.rs"]
mod tests;
