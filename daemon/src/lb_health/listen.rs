//! One listening socket that any host can reach: accepts, answers, and limits the resources of clients. There is always
//! room for one more connection: if the limit is reached, the oldest connection is closed, because a legitimate client
//! has already gone by then. Does not know the content of the answers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nodelb_core::messages;
use nodelb_kube::apiserver::connect::Register;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::answer::Answer;
use crate::http;
use crate::listen;

/// The limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of concurrent connections to one address and port.
    pub per_door: usize,
    /// Maximum number of concurrent connections in total.
    pub overall: usize,
    /// Maximum number of listening sockets.
    pub doors: usize,
    /// How long a connection may wait for its next request, or take to send it.
    pub idle: Duration,
}

/// Number of file descriptors that are reserved for the rest of nodelb: maps, links, apiservers, the admin API, files.
const OTHER_FILES: usize = 256;

impl Bounds {
    /// The limits for a process with this maximum of open files (`RLIMIT_NOFILE`): listening sockets and their clients
    /// must not prevent the rest of the process from opening files.
    pub fn within(files: usize) -> Self {
        let overall = (files / 4).min(512);
        let doors = files.saturating_sub(overall + OTHER_FILES);
        // Load balancers send a request every few seconds, some over a persistent connection.
        Self { per_door: 64, overall, doors, idle: Duration::from_secs(120) }
    }
}

/// The pause after a failed accept (no file descriptor left): the next one would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Returns the answer for a path. Runs in the task of the connection and must not block.
pub(super) type Reply = Arc<dyn Fn(&str) -> Answer + Send + Sync>;

/// The same as [`listen::bind`].
///
/// # Errors
/// The kernel's error.
pub(super) fn bind(at: SocketAddr, only_v6: bool, register: &Register) -> io::Result<TcpListener> {
    TcpListener::from_std(listen::bind(at, only_v6, register)?)
}

/// A listening socket with its server. After a drop it is closed soon, with all its connections.
#[derive(Debug)]
pub(super) struct Door(JoinHandle<()>);

impl Door {
    /// Starts to answer requests.
    pub(super) fn open(listener: TcpListener, places: &Places, reply: Reply) -> Self {
        let places = places.clone();
        Self(tokio::spawn(async move { accept_all(&listener, &places, &reply).await }))
    }

    /// Closes the socket, and waits until the address is free.
    pub(super) async fn close(mut self) {
        self.0.abort();
        // The abort ends the task.
        _ = (&mut self.0).await;
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn accept_all(listener: &TcpListener, places: &Places, reply: &Reply) {
    let door = places.door();
    let mut connections = JoinSet::new();
    let mut is_reported = false;
    loop {
        tokio::select! {
            Some(_finished) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _peer)) => {
                    is_reported = false;
                    let place = places.take(door);
                    connections.spawn(converse(stream, place, places.bounds, Arc::clone(reply)));
                }
                Err(error) => {
                    if !is_reported {
                        is_reported = true;
                        tracing::warn!(
                            message_id = %messages::ACCEPT_FAILED,
                            "a load balancer's connection could not be accepted: {error}; trying again"
                        );
                    }
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// Answers requests until the client closes the connection, is idle for too long, or must make room for another.
async fn converse(stream: TcpStream, mut place: Place, bounds: Bounds, reply: Reply) {
    let mut http = http::server(bounds.idle);
    http.title_case_headers(true);
    let service = service_fn(|request: Request<Incoming>| {
        let answer = reply(request.uri().path());
        async { Ok::<_, Infallible>(answer.into_response()) }
    });
    tokio::select! {
        served = http.serve_connection(TokioIo::new(stream), service) => {
            if let Err(error) = served {
                tracing::debug!("a load balancer's connection ended early: {error}");
            }
        }
        _ = &mut place.cut => {}
    }
}

/// The current connections of all sockets.
#[derive(Clone, Debug)]
pub(super) struct Places {
    bounds: Bounds,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// The connections in the order of their arrival.
    guests: BTreeMap<u64, Guest>,
}

/// Closes the connection when it is dropped.
#[derive(Debug)]
struct Guest {
    door: u64,
    _cut: oneshot::Sender<()>,
}

/// The place of a connection, until it is dropped.
#[derive(Debug)]
struct Place {
    number: u64,
    /// Ready when the connection must make room.
    cut: oneshot::Receiver<()>,
    taken: Arc<Mutex<Taken>>,
}

impl Places {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, taken: Arc::default() }
    }

    /// A new number for a socket.
    fn door(&self) -> u64 {
        lock(&self.taken).number()
    }

    /// Takes a place at the socket; closes the oldest connection if there is no free one.
    fn take(&self, door: u64) -> Place {
        let mut taken = lock(&self.taken);
        let here = |guests: &BTreeMap<u64, Guest>| {
            let mut here = guests.iter().filter(|(_, guest)| guest.door == door).map(|(number, _)| *number);
            (here.next(), 1 + here.count())
        };
        if let (Some(first), count) = here(&taken.guests)
            && count >= self.bounds.per_door
        {
            taken.guests.remove(&first);
        }
        if taken.guests.len() >= self.bounds.overall {
            taken.guests.pop_first();
        }
        let number = taken.number();
        let (guest, cut) = oneshot::channel();
        taken.guests.insert(number, Guest { door, _cut: guest });
        Place { number, cut, taken: Arc::clone(&self.taken) }
    }
}

impl Taken {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.taken).guests.remove(&self.number);
    }
}

/// Every change under the lock is complete, so poisoning does no harm.
fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "tests/listen.rs"]
mod tests;
