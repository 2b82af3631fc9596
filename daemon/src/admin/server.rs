//! Connections: accepts them, serves one request on each, and bounds everything a client can take up: how many there
//! are, how long each lives, how long and how large its header is. Owns no route.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::log::messages;

/// What one server grants its clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Connections served at a time; further ones wait in the listen queue.
    pub(super) connections: usize,
    /// Time from accept to the end of the request's header.
    pub(super) header_time: Duration,
    /// Time from accept to the last byte of the answer.
    pub(super) total_time: Duration,
    /// Time connections get to finish when the server stops.
    pub(super) stop_time: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: 64,
            header_time: Duration::from_secs(5),
            total_time: Duration::from_secs(60),
            stop_time: Duration::from_secs(2),
        }
    }
}

/// Largest request header, in bytes, and the most lines in it.
const HEADER_BYTES: usize = 8 * 1024;
const HEADER_LINES: usize = 64;
/// Pause after a failed accept (no file descriptor left): the next one would fail too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

struct Server {
    router: Router,
    bounds: Bounds,
    places: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

/// Serves every listener until `shutdown` resolves, then lets running answers finish for a moment.
pub(super) async fn serve(
    listeners: Vec<TcpListener>,
    router: Router,
    bounds: Bounds,
    shutdown: impl Future<Output = ()>,
) {
    let (stop_sender, stop) = watch::channel(false);
    let server = Arc::new(Server { router, bounds, places: Arc::new(Semaphore::new(bounds.connections)), stop });
    let mut loops = JoinSet::new();
    for listener in listeners {
        loops.spawn(accept_loop(listener, Arc::clone(&server)));
    }
    shutdown.await;
    stop_sender.send_replace(true);
    while loops.join_next().await.is_some() {}
}

async fn accept_loop(listener: TcpListener, server: Arc<Server>) {
    let mut connections = JoinSet::new();
    let mut stop = server.stop.clone();
    loop {
        tokio::select! {
            _ = stop.changed() => break,
            Some(_finished) = connections.join_next() => {}
            accepted = accept(&listener, &server.places) => match accepted {
                Ok((stream, place)) => {
                    connections.spawn(connection(stream, Arc::clone(&server), place));
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
    if timeout(server.bounds.stop_time, finish).await.is_err() {
        tracing::debug!("admin API: connections still open at stop are cut");
    }
}

async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _peer) = listener.accept().await?;
    Ok((stream, place))
}

/// HTTP as everybody gets it who connects to nodelb: a header is bounded in size and time.
pub(crate) fn http1(header_time: Duration) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(header_time)
        .max_header_size(HEADER_BYTES)
        .max_headers(HEADER_LINES);
    http
}

/// One request and no more: a client that keeps its connection open without asking anything takes no place.
async fn connection(stream: TcpStream, server: Arc<Server>, _place: OwnedSemaphorePermit) {
    let mut http = http1(server.bounds.header_time);
    http.keep_alive(false);
    let service = TowerToHyperService::new(server.router.clone());
    let serving = http.serve_connection(TokioIo::new(stream), service);
    match timeout(server.bounds.total_time, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("admin API: a connection ended early: {error}"),
        Err(_elapsed) => tracing::debug!("admin API: a connection that did not end in time is cut"),
    }
}

#[cfg(test)]
mod tests;
