//! Servers that report the address that a client reached them from, and clients that query them. Over TCP a server
//! answers every line, so that a connection can last; over UDP every datagram.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nodelb_prober::Transport;
use socket2::SockRef;

use crate::host::socket;

/// How long a client waits for a connection and for each answer: longer than either takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
/// How long clients that expect silence wait.
pub(crate) const SHORT: Duration = Duration::from_millis(600);
/// A server checks at this interval whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The largest datagram over IPv4.
const MAX_DATAGRAM: usize = 65_507;

/// The answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The name of the server.
    pub(crate) name: String,
    /// The address that the server sees as its peer.
    pub(crate) seen: IpAddr,
}

impl Answer {
    fn parse(text: &str) -> Self {
        let (name, rest) = text.trim_end().split_once(' ').unwrap_or_else(|| panic!("an answer: {text:?}"));
        let peer = rest.split(' ').next().unwrap();
        Self { name: name.to_owned(), seen: peer.parse().unwrap() }
    }
}

/// A running server; stopped when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    /// Datagrams that were answered.
    answered: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens over TCP and UDP on each address, in the namespace of the calling thread.
    pub(crate) fn start(name: &str, addresses: &[&str], port: u16) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut threads = Vec::new();
        for address in addresses {
            let at = SocketAddr::new(address.parse().unwrap(), port);
            let (listener, datagrams) = (TcpListener::bind(at).unwrap(), UdpSocket::bind(at).unwrap());
            // Also the time limit of accept().
            SockRef::from(&listener).set_read_timeout(Some(POLL_INTERVAL)).unwrap();
            datagrams.set_read_timeout(Some(POLL_INTERVAL)).unwrap();
            let [(name, stopped), (other_name, other_stopped)] = [(); 2].map(|()| (name.to_owned(), Arc::clone(&stop)));
            threads.push(thread::spawn(move || accept(&listener, &name, &stopped)));
            let answered = Arc::clone(&answered);
            threads.push(thread::spawn(move || answer_datagrams(&datagrams, &other_name, (&other_stopped, &answered))));
        }
        Self { stop, answered, threads }
    }

    /// The number of datagrams that were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

fn accept(listener: &TcpListener, name: &str, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok((stream, peer)) = listener.accept() {
            let name = name.to_owned();
            thread::spawn(move || answer_lines(&stream, &name, peer));
        }
    }
}

fn answer_lines(stream: &TcpStream, name: &str, peer: SocketAddr) {
    drop(stream.set_read_timeout(None));
    drop(stream.set_nodelay(true));
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    while reader.read_line(&mut line).is_ok_and(|read| read > 0) {
        let answer = format!("{name} {} {line}", peer.ip());
        line.clear();
        let mut writer = stream;
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn answer_datagrams(datagrams: &UdpSocket, name: &str, (stop, answered): (&AtomicBool, &AtomicU64)) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((length, peer)) = datagrams.recv_from(&mut buffer) {
            let mut answer = format!("{name} {} ", peer.ip()).into_bytes();
            answer.extend_from_slice(&buffer[..length.min(MAX_DATAGRAM - answer.len())]);
            drop(datagrams.send_to(&answer, peer));
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A client that keeps its connection, or its UDP socket.
#[derive(Debug)]
pub(crate) enum Talk {
    Tcp(BufReader<TcpStream>),
    Udp(UdpSocket),
}

impl Talk {
    /// Connects from the namespace of the calling thread.
    pub(crate) fn open(to: &str, transport: Transport, timeout: Duration) -> Result<Self, ErrorKind> {
        let to = socket(to);
        if transport == Transport::Tcp {
            let stream = TcpStream::connect_timeout(&to, timeout).map_err(|error| error.kind())?;
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(timeout)).unwrap();
            return Ok(Self::Tcp(BufReader::new(stream)));
        }
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let datagrams = UdpSocket::bind(any).unwrap();
        datagrams.connect(to).map_err(|error| error.kind())?;
        datagrams.set_read_timeout(Some(timeout)).unwrap();
        Ok(Self::Udp(datagrams))
    }

    /// Sends a question and waits for the answer.
    pub(crate) fn ask(&mut self) -> Result<Answer, ErrorKind> {
        self.send("?").map(|text| Answer::parse(&text))
    }

    /// Sends this text and returns the whole answer.
    pub(crate) fn send(&mut self, text: &str) -> Result<String, ErrorKind> {
        let sent = match self {
            Self::Tcp(stream) => stream.get_mut().write_all(format!("{text}\n").as_bytes()),
            Self::Udp(datagrams) => datagrams.send(text.as_bytes()).map(drop),
        };
        sent.map_err(|error| kind(&error))?;
        self.receive()
    }

    /// Waits for an answer.
    pub(crate) fn receive(&mut self) -> Result<String, ErrorKind> {
        match self {
            Self::Tcp(stream) => {
                let mut answer = String::new();
                match stream.read_line(&mut answer).map_err(|error| kind(&error))? {
                    0 => Err(ErrorKind::UnexpectedEof),
                    _ => Ok(answer),
                }
            }
            Self::Udp(datagrams) => {
                let mut buffer = vec![0; MAX_DATAGRAM];
                let length = datagrams.recv(&mut buffer).map_err(|error| kind(&error))?;
                Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
            }
        }
    }

    /// The port of the client's socket.
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Tcp(stream) => stream.get_ref().local_addr().unwrap().port(),
            Self::Udp(datagrams) => datagrams.local_addr().unwrap().port(),
        }
    }
}

fn kind(error: &std::io::Error) -> ErrorKind {
    match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut,
        kind => kind,
    }
}

/// Sends one request on a new connection.
pub(crate) fn ask(to: &str, transport: Transport, timeout: Duration) -> Result<Answer, ErrorKind> {
    Talk::open(to, transport, timeout)?.ask()
}
