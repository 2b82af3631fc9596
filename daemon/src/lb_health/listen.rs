//! One listening socket that anybody may reach: accepts, answers, and bounds what clients can take up. There is always room
//! for one more: where none is left, the connection that has been there longest is cut, for an honest client is gone by
//! then. Knows nothing of what is answered.

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
use nodelb_kube::apiserver::dial::Register;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::answer::Answer;
use crate::http;
use crate::listen;

/// What clients may take up.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections to one address and port at a time.
    pub per_door: usize,
    /// Connections to all of them.
    pub overall: usize,
    /// Addresses and ports listened on.
    pub doors: usize,
    /// How long a connection may wait for its next request, or take to say it.
    pub idle: Duration,
}

/// File descriptors that are for the rest of nodelb alone: maps, links, apiservers, the admin API, files.
const OTHER_FILES: usize = 256;

impl Bounds {
    /// Those of a process that may have so many files open (`RLIMIT_NOFILE`): nobody who listens or asks keeps the rest of
    /// it from opening what it needs.
    pub fn within(files: usize) -> Self {
        let overall = (files / 4).min(512);
        let doors = files.saturating_sub(overall + OTHER_FILES);
        // Load balancers ask every few seconds, some over the connection they have.
        Self { per_door: 64, overall, doors, idle: Duration::from_secs(120) }
    }
}

/// Pause after a failed accept (no file descriptor left): the next one would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// What is answered to a request for a path. Called in the task that serves the connection: never blocks.
pub(super) type Reply = Arc<dyn Fn(&str) -> Answer + Send + Sync>;

/// As [`listen::bind`].
///
/// # Errors
/// The kernel's.
pub(super) fn bind(at: SocketAddr, only_v6: bool, register: &Register) -> io::Result<TcpListener> {
    TcpListener::from_std(listen::bind(at, only_v6, register)?)
}

/// A listening socket that is being served. Dropped, it is closed soon, with every connection it has.
#[derive(Debug)]
pub(super) struct Door(JoinHandle<()>);

impl Door {
    /// Begins to answer.
    pub(super) fn open(listener: TcpListener, places: &Places, reply: Reply) -> Self {
        let places = places.clone();
        Self(tokio::spawn(async move { accept_all(&listener, &places, &reply).await }))
    }

    /// Closes it, and waits until the address is free.
    pub(super) async fn close(mut self) {
        self.0.abort();
        // It ends by having been aborted.
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
    let mut is_told = false;
    loop {
        tokio::select! {
            Some(_finished) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _peer)) => {
                    is_told = false;
                    let place = places.take(door);
                    connections.spawn(converse(stream, place, places.bounds, Arc::clone(reply)));
                }
                Err(error) => {
                    if !is_told {
                        is_told = true;
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

/// Answers requests until the client goes, is silent for too long, or has to make room.
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

/// Who is being served, at all doors.
#[derive(Clone, Debug)]
pub(super) struct Places {
    bounds: Bounds,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// By the order in which they came.
    guests: BTreeMap<u64, Guest>,
}

/// Dropped, the connection is cut.
#[derive(Debug)]
struct Guest {
    door: u64,
    _cut: oneshot::Sender<()>,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
struct Place {
    number: u64,
    /// Resolves when it has to make room.
    cut: oneshot::Receiver<()>,
    taken: Arc<Mutex<Taken>>,
}

impl Places {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, taken: Arc::default() }
    }

    /// A number for a door.
    fn door(&self) -> u64 {
        lock(&self.taken).number()
    }

    /// A place at the door, if need be that of who came first.
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

/// Nothing is ever left half done under the lock.
fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "tests/listen.rs"]
mod tests;
