//! The HTTP server of the admin API: one request per connection, and limits ([`http`](crate::http)) for TCP and for the
//! Unix socket separately. A client that does not send, does not read, or sends requests without end therefore keeps no
//! other client from an answer. Owns no route.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use nodelb_sources::drains::Peer;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::answer;
use super::response::Caller;
use super::state::AdminState;
use crate::http::{HttpConnection, Listener, Server, ServerLimits, Slots};

/// The maximum number of connections that follow a stream, for TCP and for the Unix socket.
pub(super) const STREAMS: usize = 16;

/// The default limits, for TCP and for the Unix socket. The TCP addresses share the slots.
pub(super) const LIMITS: ServerLimits = ServerLimits {
    per_listener: 128,
    overall: 128,
    waiting: Duration::from_millis(100),
    answering: Duration::from_secs(1),
    header: Duration::from_secs(5),
    stuck: Duration::from_secs(10),
    total: Some(Duration::from_secs(60)),
    stop: Duration::from_secs(2),
};

/// Serves every listener that arrives until `shutdown` is ready, and then gives running answers a moment to finish.
pub(super) async fn serve(
    mut listeners: mpsc::Receiver<Listener>,
    state: AdminState,
    (limits, streams): (ServerLimits, usize),
    shutdown: impl Future<Output = ()>,
) {
    let (stop_sender, stop) = watch::channel(false);
    let router = answer::router(state, stop.clone());
    let server = |is_local| {
        let (router, streams) = (router.clone(), Arc::new(Semaphore::new(streams)));
        let respond =
            move |request, connection| answered(router.clone(), request, caller(is_local, &streams, connection));
        Server { name: "admin API", respond, slots: Slots::new(limits), is_like_go: false }
    };
    let (tcp, unix) = (server(false), server(true));
    let mut loops = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(listener) = listeners.recv() => {
                let server = if matches!(listener, Listener::Unix(_)) { &unix } else { &tcp };
                let mut stop = stop.clone();
                let stopped = async move { _ = stop.changed().await };
                loops.spawn(server.clone().serve(listener, stopped));
            }
        }
    }
    stop_sender.send_replace(true);
    while loops.join_next().await.is_some() {}
}

fn caller(is_local: bool, streams: &Arc<Semaphore>, connection: Arc<HttpConnection>) -> Caller {
    let peer = connection.peer.map(|peer| Peer { uid: peer.uid(), pid: peer.pid().filter(|pid| *pid > 0) });
    Caller { is_local, peer, streams: Arc::clone(streams), connection }
}

async fn answered(router: Router, mut request: Request<Incoming>, caller: Caller) -> Response {
    request.extensions_mut().insert(caller);
    let Ok(response) = TowerToHyperService::new(router).call(request).await;
    response
}

#[cfg(test)]
#[path = "tests/server.rs"]
mod tests;
