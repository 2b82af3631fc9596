//! A backend: answers with its name. Has one thread for each listening socket; all of them end when
//! it is dropped.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::exchange::Transport;

/// Large enough for every connection of 1,000 clients per second while the machine is busy.
const BACKLOG: i32 = 4096;

/// A thread checks at this interval whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A running backend. Over TCP it sends its name and a newline and closes, or answers each line
/// with that; over UDP it answers `NAME DATAGRAM`.
#[derive(Debug)]
pub struct Backend {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Backend {
    /// Listens on every given address.
    ///
    /// # Errors
    /// An address cannot be bound; the message names it.
    pub fn start(name: &str, listen: &[(Transport, SocketAddr)]) -> io::Result<Self> {
        let mut backend = Self { stop: Arc::default(), threads: Vec::new() };
        for &(transport, addr) in listen {
            let socket = bind(transport, addr)
                .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}")))?;
            let (name, stop) = (name.to_owned(), Arc::clone(&backend.stop));
            backend.threads.push(thread::spawn(move || match transport {
                Transport::Tcp | Transport::TcpAsking => answer_connections(&socket, transport, &name, &stop),
                Transport::TcpLines => answer_lines(&socket, &name, &stop),
                Transport::Udp | Transport::UdpUnconnected => answer_datagrams(&socket.into(), &name, &stop),
            }));
        }
        Ok(backend)
    }

    /// Serves until the process ends.
    pub fn serve(mut self) {
        for thread in self.threads.drain(..) {
            // A thread that panicked has already printed a message; the others still serve.
            drop(thread.join());
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

fn bind(transport: Transport, addr: SocketAddr) -> io::Result<Socket> {
    let is_stream = matches!(transport, Transport::Tcp | Transport::TcpAsking | Transport::TcpLines);
    let kind = if is_stream { Type::STREAM } else { Type::DGRAM };
    let socket = Socket::new(Domain::for_address(addr), kind, None)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if is_stream {
        // Allows a restarted backend to use its port again at once.
        socket.set_reuse_address(true)?;
    }
    socket.bind(&addr.into())?;
    socket.set_read_timeout(Some(POLL_INTERVAL))?;
    if is_stream {
        socket.listen(BACKLOG)?;
    }
    Ok(socket)
}

fn answer_connections(listener: &Socket, transport: Transport, name: &str, stop: &AtomicBool) {
    let line = format!("{name}\n");
    while !stop.load(Ordering::Relaxed) {
        if let Ok((mut client, _)) = listener.accept() {
            // Closing a connection with unread data would reset it.
            if transport == Transport::TcpAsking && client.read_exact(&mut [0]).is_err() {
                continue;
            }
            // A client that has disconnected counts the failure itself.
            drop(client.write_all(line.as_bytes()));
        }
    }
}

/// Has a thread for each connection, which ends with the connection or the backend.
fn answer_lines(listener: &Socket, name: &str, stop: &Arc<AtomicBool>) {
    let line = format!("{name}\n");
    while !stop.load(Ordering::Relaxed) {
        if let Ok((client, _)) = listener.accept() {
            let (line, stop, client) = (line.clone(), Arc::clone(stop), TcpStream::from(client));
            // The listener's timeout is not for clients that are silent for a while.
            if client.set_read_timeout(None).is_err() {
                continue;
            }
            thread::spawn(move || {
                let mut question = String::new();
                let mut reader = BufReader::new(&client);
                while !stop.load(Ordering::Relaxed) && reader.read_line(&mut question).is_ok_and(|read| read > 0) {
                    if stop.load(Ordering::Relaxed) || (&client).write_all(line.as_bytes()).is_err() {
                        return;
                    }
                    question.clear();
                }
            });
        }
    }
}

fn answer_datagrams(socket: &UdpSocket, name: &str, stop: &AtomicBool) {
    let mut buffer = [0; 512];
    while !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut buffer) {
            Ok((length, client)) => {
                let answer = [name.as_bytes(), b" ", &buffer[..length]].concat();
                drop(socket.send_to(&answer, client));
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => {}
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}
