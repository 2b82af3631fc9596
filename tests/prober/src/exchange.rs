//! One exchange of a client with an address: connect, check the peer's address, read the backend's
//! name, close.

use std::fmt;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use socket2::SockRef;

/// The byte that a client sends if it speaks first.
pub const QUESTION: u8 = b'?';

/// How a client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A TCP connection.
    Tcp,
    /// A TCP connection where the client speaks first, as in TLS: it sends [`QUESTION`].
    TcpAsking,
    /// A TCP connection where the client sends queries line by line.
    TcpLines,
    /// A connected UDP socket.
    Udp,
    /// An unconnected UDP socket that names the address with every datagram.
    UdpUnconnected,
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tcp" => Ok(Self::Tcp),
            "tcp-asking" => Ok(Self::TcpAsking),
            "tcp-lines" => Ok(Self::TcpLines),
            "udp" => Ok(Self::Udp),
            "udp-unconnected" => Ok(Self::UdpUnconnected),
            _ => Err(format!(
                "`{text}` is not a transport (expected tcp, tcp-asking, tcp-lines, udp or udp-unconnected)"
            )),
        }
    }
}

/// Why an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A system call returned this error.
    Os(Errno),
    /// The connection was not established or not served within the timeout.
    TimedOut,
    /// No answer to a datagram within twice the timeout. The port of the client identifies the
    /// datagram in a packet capture.
    NoAnswer(u16),
    /// The answer to a datagram arrived after the timeout but within twice the timeout: late, not
    /// lost.
    Late,
    /// The peer address of the socket is not the one that the client connected to: the client sees
    /// the backend.
    Peer(String),
    /// The answer does not come from a backend.
    Answer(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Os(errno) => write!(f, "{errno:?}"),
            Self::TimedOut => f.write_str("timed-out"),
            Self::NoAnswer(port) => write!(f, "no-answer-to-port-{port}"),
            Self::Late => f.write_str("late"),
            Self::Peer(peer) => write!(f, "peer-is-{peer}"),
            Self::Answer(answer) => write!(f, "answer-is-{answer:?}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match (error.kind(), error.raw_os_error()) {
            (ErrorKind::TimedOut | ErrorKind::WouldBlock, _) => Self::TimedOut,
            (_, Some(errno)) => Self::Os(Errno::from_raw(errno)),
            (_, None) => Self::Answer(error.to_string()),
        }
    }
}

/// Connects to the address and returns the name of the backend that answered. Uses an IPv6 socket
/// for an IPv4-mapped address.
///
/// # Errors
/// No backend answered within the timeout, or the peer's address is not the requested one.
pub fn exchange(to: SocketAddr, transport: Transport, timeout: Duration) -> Result<String, Failure> {
    match transport {
        Transport::Tcp => over_tcp(to, b"", timeout),
        Transport::TcpAsking => over_tcp(to, &[QUESTION], timeout),
        Transport::TcpLines => over_tcp(to, &[QUESTION, b'\n'], timeout),
        Transport::Udp | Transport::UdpUnconnected => over_udp(to, transport, timeout),
    }
}

fn over_tcp(to: SocketAddr, question: &[u8], timeout: Duration) -> Result<String, Failure> {
    let stream = TcpStream::connect_timeout(&to, timeout)?;
    // Close with RST: TIME_WAIT of thousands of clients per second would use up the ports.
    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
    stream.set_read_timeout(Some(timeout))?;
    check_peer(to, stream.peer_addr()?)?;
    (&stream).write_all(question)?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(name) => Ok(name.to_owned()),
        None => Err(Failure::Answer(line)),
    }
}

fn over_udp(to: SocketAddr, transport: Transport, timeout: Duration) -> Result<String, Failure> {
    static SEQUENCE: AtomicU64 = AtomicU64::new(0);
    let question = SEQUENCE.fetch_add(1, Ordering::Relaxed).to_string();
    let any: SocketAddr =
        if to.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(timeout))?;
    let mut buffer = [0; 512];
    let length = if transport == Transport::Udp {
        socket.connect(to)?;
        check_peer(to, socket.peer_addr()?)?;
        socket.send(question.as_bytes())?;
        or_late(&socket, || socket.recv(&mut buffer))?
    } else {
        socket.send_to(question.as_bytes(), to)?;
        let (length, from) = or_late(&socket, || socket.recv_from(&mut buffer))?;
        check_peer(to, from)?;
        length
    };
    let answer = String::from_utf8_lossy(&buffer[..length]);
    match answer.rsplit_once(' ') {
        Some((name, echo)) if echo == question => Ok(name.to_owned()),
        _ => Err(Failure::Answer(answer.into_owned())),
    }
}

/// Receives; after a timeout once more, to distinguish a late answer from a lost one. Both are
/// failures.
fn or_late<T>(socket: &UdpSocket, mut receive: impl FnMut() -> io::Result<T>) -> Result<T, Failure> {
    match receive().map_err(Failure::from) {
        Err(Failure::TimedOut) => match receive() {
            Ok(_) => Err(Failure::Late),
            Err(_) => Err(Failure::NoAnswer(socket.local_addr()?.port())),
        },
        result => result,
    }
}

fn check_peer(expected: SocketAddr, seen: SocketAddr) -> Result<(), Failure> {
    if seen == expected { Ok(()) } else { Err(Failure::Peer(seen.to_string())) }
}
