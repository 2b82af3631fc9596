//! Clients that keep their connections, or their UDP sockets, and send requests on them at a constant interval, until
//! they are stopped.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::exchange::{Failure, QUESTION, Transport};
use crate::tally::Tally;

/// How long a client waits for a connection and for each answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Connections to a backend that answers each line or each datagram.
#[derive(Debug)]
pub struct Kept {
    connections: Vec<Connection>,
    start: Instant,
    tally: Tally,
}

#[derive(Debug)]
enum Connection {
    Lines(BufReader<TcpStream>),
    Datagrams(UdpSocket),
}

impl Kept {
    /// Opens this many connections; over UDP, connected sockets.
    ///
    /// # Errors
    /// One cannot be opened.
    pub fn open(to: SocketAddr, transport: Transport, count: u32) -> std::io::Result<Self> {
        let open = |_| Connection::open(to, transport);
        let connections = (0..count).map(open).collect::<std::io::Result<_>>()?;
        Ok(Self { connections, start: Instant::now(), tally: Tally::default() })
    }

    /// Sends one request on each connection. One that fails is given up.
    pub fn ask(&mut self) {
        let (start, tally) = (self.start, &mut self.tally);
        self.connections.retain_mut(|connection| {
            let began = Instant::now();
            let answer = connection.ask();
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

impl Connection {
    fn open(to: SocketAddr, transport: Transport) -> std::io::Result<Self> {
        if matches!(transport, Transport::Udp | Transport::UdpUnconnected) {
            let any: SocketAddr =
                if to.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
            let socket = UdpSocket::bind(any)?;
            socket.connect(to)?;
            socket.set_read_timeout(Some(TIMEOUT))?;
            return Ok(Self::Datagrams(socket));
        }
        let stream = TcpStream::connect_timeout(&to, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self::Lines(BufReader::new(stream)))
    }

    fn ask(&mut self) -> Result<String, Failure> {
        let (text, end) = match self {
            Self::Lines(stream) => {
                stream.get_mut().write_all(&[QUESTION, b'\n'])?;
                let mut line = String::new();
                stream.read_line(&mut line)?;
                (line, "\n")
            }
            Self::Datagrams(socket) => {
                socket.send(&[QUESTION])?;
                let mut buffer = [0; 512];
                let length = socket.recv(&mut buffer)?;
                (String::from_utf8_lossy(&buffer[..length]).into_owned(), " ?")
            }
        };
        text.strip_suffix(end).map(ToOwned::to_owned).ok_or(Failure::Answer(text))
    }
}

#[cfg(test)]
#[path = "tests/kept.rs"]
mod tests;
