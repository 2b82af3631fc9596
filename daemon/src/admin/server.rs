//! Connections: accepts them, serves one request on each, and limits all resources that a client can use: the number of
//! connections in each state, their lifetime, and the time and size of the header. Owns no route.
//!
//! A connection waits for its header, then for a place to be answered, and then it is answered or follows a stream.
//! Each state has places of its own ([`places`]), and those of the Unix socket are separate from those of TCP. A client
//! that does not send, does not read, or sends requests without end therefore keeps no other client from an answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use nodelb_core::messages;
use nodelb_kube::clock;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::answer;
use super::query::{Output, Problem};
use super::response::{Caller, problem_response};
use super::state::AdminState;
use crate::http;

mod places;
mod wire;

use places::{Place, Places};
pub use wire::Listener;
use wire::{Stream, Stuck, Watched};

/// The limits of one server, for each kind of listener separately.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Maximum number of connections that wait for their header or for a place to be answered.
    pub(super) asking: usize,
    /// Time that such a connection may keep its place while others wait.
    pub(super) asking_share: Duration,
    /// Maximum number of connections that are answered concurrently.
    pub(super) answered: usize,
    /// Time that such a connection may keep its place while others wait.
    pub(super) answered_share: Duration,
    /// Maximum number of connections that follow a stream.
    pub(super) streams: usize,
    /// Time from accept to the end of the request's header.
    pub(super) header_time: Duration,
    /// Time from accept to the last byte of an answer that is not a stream.
    pub(super) total_time: Duration,
    /// Maximum time that a client may take nothing of what the server writes.
    pub(super) stuck_time: Duration,
    /// Time for connections to finish when the server stops.
    pub(super) stop_time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            asking: 128,
            asking_share: Duration::from_millis(100),
            answered: 64,
            answered_share: Duration::from_secs(1),
            streams: 16,
            header_time: Duration::from_secs(5),
            total_time: Duration::from_secs(60),
            stuck_time: Duration::from_secs(10),
            stop_time: Duration::from_secs(2),
        }
    }
}

/// Pause after a failed accept (no file descriptor left): the next one would fail, too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Maximum time that a request waits for a place to be answered.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which a connection checks whether its time is over.
const LOOK: Duration = Duration::from_secs(1);

/// One kind of listener: its places, and the name of its clients.
struct Door {
    router: Router,
    bounds: Bounds,
    is_local: bool,
    asking: Arc<Places>,
    answered: Arc<Places>,
    streams: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

impl Door {
    fn new(router: Router, bounds: Bounds, is_local: bool, stop: watch::Receiver<bool>) -> Arc<Self> {
        Arc::new(Self {
            router,
            bounds,
            is_local,
            asking: Places::new(bounds.asking, bounds.asking_share),
            answered: Places::new(bounds.answered, bounds.answered_share),
            streams: Arc::new(Semaphore::new(bounds.streams)),
            stop,
        })
    }
}

/// Serves every listener that arrives until `shutdown` resolves, and then gives running answers a moment to finish.
pub(super) async fn serve(
    mut listeners: mpsc::Receiver<Listener>,
    state: AdminState,
    bounds: Bounds,
    shutdown: impl Future<Output = ()>,
) {
    let (stop_sender, stop) = watch::channel(false);
    let router = answer::router(state, stop.clone());
    let tcp = Door::new(router.clone(), bounds, false, stop.clone());
    let unix = Door::new(router, bounds, true, stop);
    let mut loops = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(listener) = listeners.recv() => {
                let door = if matches!(listener, Listener::Unix(_)) { &unix } else { &tcp };
                loops.spawn(accept_loop(listener, Arc::clone(door)));
            }
        }
    }
    stop_sender.send_replace(true);
    while loops.join_next().await.is_some() {}
}

async fn accept_loop(listener: Listener, door: Arc<Door>) {
    let mut connections = JoinSet::new();
    let mut stop = door.stop.clone();
    loop {
        tokio::select! {
            _ = stop.changed() => break,
            Some(_finished) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    let leave = Arc::new(Notify::new());
                    let place = door.asking.take(&leave).await;
                    connections.spawn(connection(stream, Arc::clone(&door), Seat::new(place, leave)));
                }
                Err(error) => {
                    tracing::warn!(
                        message_id = %messages::ACCEPT_FAILED,
                        "admin API: a connection could not be accepted: {error}; trying again"
                    );
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let finish = async { while connections.join_next().await.is_some() {} };
    if timeout(door.bounds.stop_time, finish).await.is_err() {
        tracing::debug!("admin API: connections still open at stop are cut");
    }
}

/// The state of a connection.
struct Seat {
    /// Notified when the place is given to another connection.
    leave: Arc<Notify>,
    places: Mutex<Vec<Place>>,
    /// The time at which the connection has to end; `None` for a stream.
    deadline: Mutex<Option<Instant>>,
}

impl Seat {
    fn new(place: Place, leave: Arc<Notify>) -> Self {
        Self { leave, places: Mutex::new(vec![place]), deadline: Mutex::new(None) }
    }

    /// Moves the connection from waiting to being answered.
    ///
    /// # Errors
    /// When no place becomes free in time.
    async fn ask(&self, door: &Door) -> Result<(), Problem> {
        lock(&self.places).iter().for_each(Place::stay);
        let place = timeout(TIMEOUT, door.answered.take(&self.leave)).await.map_err(|_elapsed| {
            let message = "too many questions at a time: others do not read their answers; try again";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        *lock(&self.places) = vec![place];
        Ok(())
    }

    /// Moves the connection from being answered to following a stream: without a deadline, in a place of another kind.
    fn follow(&self) {
        lock(&self.places).clear();
        *lock(&self.deadline) = None;
    }

    /// Resolves when the connection has to end, with the reason.
    async fn ends(&self, stuck: &Stuck, stuck_time: Duration) -> &'static str {
        let mut looks = clock::ticking(LOOK.min(stuck_time / 2));
        loop {
            tokio::select! {
                () = self.leave.notified() => return "others wait for its place",
                _ = looks.tick() => {}
            }
            if stuck.since().is_some_and(|since| since.elapsed() > stuck_time) {
                return "it does not take what is written to it";
            }
            if lock(&self.deadline).is_some_and(|deadline| deadline <= Instant::now()) {
                return "it takes too long";
            }
        }
    }
}

/// The data behind these locks is consistent at any moment, so a poisoned lock can still be used.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one request per connection, so that a client that keeps its connection open without a request occupies no
/// place.
async fn connection(stream: Stream, door: Arc<Door>, seat: Seat) {
    let stuck = Stuck::default();
    let seat = Arc::new(seat);
    *lock(&seat.deadline) = Some(Instant::now() + door.bounds.total_time);
    let mut http = http::server(door.bounds.header_time);
    http.keep_alive(false);
    let answering = service_fn(|request| answered(request, Arc::clone(&door), Arc::clone(&seat)));
    let serving = http.serve_connection(TokioIo::new(Watched { stream, stuck: stuck.clone() }), answering);
    tokio::select! {
        served = serving => match served {
            Ok(()) => {}
            Err(error) => tracing::debug!("admin API: a connection ended early: {error}"),
        },
        why = seat.ends(&stuck, door.bounds.stuck_time) => tracing::debug!("admin API: a connection is cut: {why}"),
    }
}

async fn answered(
    mut request: Request<Incoming>,
    door: Arc<Door>,
    seat: Arc<Seat>,
) -> Result<Response<Body>, std::convert::Infallible> {
    if let Err(problem) = seat.ask(&door).await {
        return Ok(problem_response(&problem, Output::accepted(request.headers())));
    }
    let streams = Arc::clone(&door.streams);
    let caller = Caller { is_local: door.is_local, streams, follow: Arc::new(move || seat.follow()) };
    request.extensions_mut().insert(caller);
    TowerToHyperService::new(door.router.clone()).call(request).await
}

#[cfg(test)]
#[path = "tests/server.rs"]
mod tests;
