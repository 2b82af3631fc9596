//! `/drains`, the only route that changes something: drains a backend, or ends a drain. Owns who may do that: root, over
//! the Unix socket, as the kernel knows the process at the other end. A page in a browser may not, by any way; and no
//! request has a body.

use axum::http::header::{CONTENT_LENGTH, ORIGIN, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use nodelb_sources::drains::{Action, Peer, Refusal, Request, Wish, author};
use tokio::sync::{mpsc, oneshot};

use super::query::{BACKEND, DRAINED_SERVICE, FOR, FORCE, Output, Parameter, Problem, Query};
use super::response::{Caller, change_response, problem_response};

pub(super) const PATH: &str = "/drains";
pub(super) const SHOWS: &str = "drains a backend (POST), or ends that (DELETE): only for root, over the Unix socket";

pub(super) static OF_DRAIN: [&Parameter; 4] = [&DRAINED_SERVICE, &BACKEND, &FOR, &FORCE];
pub(super) static OF_UNDRAIN: [&Parameter; 2] = [&DRAINED_SERVICE, &BACKEND];

/// The route over the task that keeps the drains.
pub(super) fn router<S: Clone + Send + Sync + 'static>(drains: mpsc::Sender<Request>) -> Router<S> {
    let change = move |method: Method, caller: Extension<Caller>, uri: Uri, headers: HeaderMap| {
        let drains = drains.clone();
        async move {
            change_response(respond(&drains, &caller, (&method, &uri, &headers)).await, Output::accepted(&headers))
        }
    };
    Router::new().route(PATH, post(change.clone()).delete(change)).method_not_allowed_fallback(wrong_method)
}

async fn wrong_method(method: Method, headers: HeaderMap) -> Response {
    let message = format!("{method} is not allowed here: use POST or DELETE; `nodelb backends` shows drains");
    problem_response(&Problem::new(StatusCode::METHOD_NOT_ALLOWED, message), Output::accepted(&headers))
}

async fn respond(
    drains: &mpsc::Sender<Request>,
    caller: &Caller,
    (method, uri, headers): (&Method, &Uri, &HeaderMap),
) -> Result<String, Problem> {
    let peer = check((caller.is_local, caller.peer), headers, "drain backends")?;
    let is_drain = *method == Method::POST;
    let query = Query::parse(uri, if is_drain { &OF_DRAIN } else { &OF_UNDRAIN })?;
    let service = query.filter.service;
    let Some(backend) = query.backend else {
        return Err(Problem::new(StatusCode::BAD_REQUEST, format!("{PATH} needs a backend")));
    };
    let action =
        if is_drain { Action::Drain { length: query.length, is_forced: query.force } } else { Action::Undrain };
    let (reply, answer) = oneshot::channel();
    let request = Request { wish: Wish { service, backend, action }, by: author(peer).await, reply };
    let unavailable = |text: &str| Problem::new(StatusCode::SERVICE_UNAVAILABLE, text);
    drains.try_send(request).map_err(|_full| unavailable("too many drains at once: try again"))?;
    let answer = answer.await.map_err(|_ended| unavailable("nodelb is stopping"))?;
    answer.map_err(|refusal| match refusal {
        Refusal::Unknown(text) => Problem::new(StatusCode::NOT_FOUND, text),
        Refusal::Invalid(text) => Problem::new(StatusCode::BAD_REQUEST, text),
        Refusal::Refused(text) => Problem::new(StatusCode::CONFLICT, text),
        Refusal::Failed(text) => unavailable(&text),
    })
}

/// Returns the process that sends the request, if it may change anything. `what`: such as `drain backends`.
pub(super) fn check((is_local, peer): (bool, Option<Peer>), headers: &HeaderMap, what: &str) -> Result<Peer, Problem> {
    let forbidden = |text: String| Problem::new(StatusCode::FORBIDDEN, text);
    if !is_local {
        return Err(forbidden(format!("only root may {what}, and only over the Unix socket admin.socket")));
    }
    if headers.contains_key(ORIGIN) || headers.keys().any(|name| name.as_str().starts_with("sec-fetch-")) {
        return Err(forbidden(format!("web pages cannot {what}")));
    }
    let peer = peer.ok_or_else(|| forbidden("the kernel does not name the user of this connection".into()))?;
    if peer.uid != 0 {
        return Err(forbidden(format!("only root may {what}, and this is user {}: use sudo", peer.uid)));
    }
    let has_length = headers.get_all(CONTENT_LENGTH).iter().any(|length| length.as_bytes() != b"0");
    if has_length || headers.contains_key(TRANSFER_ENCODING) {
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "this takes parameters and no body"));
    }
    Ok(peer)
}

#[cfg(test)]
#[path = "tests/drain.rs"]
mod tests;
