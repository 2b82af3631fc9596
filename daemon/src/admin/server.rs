//! Connections: accepts them, serves one request on each, and bounds everything a client can take up: how many there are
//! in each state, how long each lives there, how long and how large its header is. Owns no route.
//!
//! A connection waits for its header, then for a place to be answered at, then it is answered or follows a stream. Each
//! state has places of its own ([`places`]), and the unix socket has others than TCP: whoever does not ask, does not read,
//! or asks without end keeps nobody else from an answer.

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

/// What one server grants its clients, each kind of listener for itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Connections whose header has not come yet, or that wait for an answer's place.
    pub(super) asking: usize,
    /// How long such a one may stay when others wait.
    pub(super) asking_share: Duration,
    /// Connections that are answered at a time.
    pub(super) answered: usize,
    /// How long such a one may stay when others wait.
    pub(super) answered_share: Duration,
    /// Connections that follow a stream.
    pub(super) streams: usize,
    /// Time from accept to the end of the request's header.
    pub(super) header_time: Duration,
    /// Time from accept to the last byte of an answer that is no stream.
    pub(super) total_time: Duration,
    /// How long a client may take none of what is written to it.
    pub(super) stuck_time: Duration,
    /// Time connections get to finish when the server stops.
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

/// Pause after a failed accept (no file descriptor left): the next one would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// How long a question waits for a place to be answered at.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a connection looks whether its time is over.
const LOOK: Duration = Duration::from_secs(1);

/// One kind of listener: its places and what its clients are called.
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

/// Serves every listener that comes until `shutdown` resolves, then lets running answers finish for a moment.
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

/// Where a connection stands.
struct Seat {
    /// Notified when its place is given to somebody else.
    leave: Arc<Notify>,
    places: Mutex<Vec<Place>>,
    /// When it has to end; `None` for a stream.
    deadline: Mutex<Option<Instant>>,
}

impl Seat {
    fn new(place: Place, leave: Arc<Notify>) -> Self {
        Self { leave, places: Mutex::new(vec![place]), deadline: Mutex::new(None) }
    }

    /// From asking to being answered.
    ///
    /// # Errors
    /// When nobody makes room.
    async fn ask(&self, door: &Door) -> Result<(), Problem> {
        lock(&self.places).iter().for_each(Place::stay);
        let place = timeout(PATIENCE, door.answered.take(&self.leave)).await.map_err(|_elapsed| {
            let message = "too many questions at a time: others do not read their answers; try again";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
        })?;
        *lock(&self.places) = vec![place];
        Ok(())
    }

    /// From being answered to following: as long as it likes, in a place of another kind.
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

/// What is behind the locks here is whole at any moment.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One request and no more: a client that keeps its connection open without asking anything takes no place.
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
