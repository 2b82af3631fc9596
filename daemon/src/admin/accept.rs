//! `/accept`: lets something take effect that a source holds back because it may be a mistake. For the same callers as
//! [`super::drain`].

use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use nodelb_kube::source::selecting::{Accept, By};
use nodelb_sources::drains::Peer;
use tokio::sync::{mpsc, oneshot};

use super::drain::check;
use super::query::{Output, Problem, Query};
use super::response::{Caller, change_response, problem_response};

pub(super) const PATH: &str = "/accept";
pub(super) const SHOWS: &str = "accepts a changed selection of Kubernetes services that leaves out most of them (POST): only for root, over the Unix socket";

/// The answer if no source holds back anything.
const NOTHING: &str = "nothing waits to be accepted";

/// The route over the Kubernetes source, if there is one.
pub(super) fn router<S: Clone + Send + Sync + 'static>(accepts: Option<mpsc::Sender<Accept>>) -> Router<S> {
    let accept = move |caller: Extension<Caller>, uri: Uri, headers: HeaderMap| {
        let accepts = accepts.clone();
        async move {
            change_response(
                respond(accepts, (caller.is_local, caller.peer), (&uri, &headers)).await,
                Output::accepted(&headers),
            )
        }
    };
    Router::new().route(PATH, post(accept)).method_not_allowed_fallback(wrong_method)
}

async fn wrong_method(method: Method, headers: HeaderMap) -> Response {
    let message = format!("{method} is not allowed here: use POST; `nodelb status` shows what waits to be accepted");
    problem_response(&Problem::new(StatusCode::METHOD_NOT_ALLOWED, message), Output::accepted(&headers))
}

async fn respond(
    accepts: Option<mpsc::Sender<Accept>>,
    caller: (bool, Option<Peer>),
    (uri, headers): (&Uri, &HeaderMap),
) -> Result<String, Problem> {
    check(caller, headers, "accept changes")?;
    Query::parse(uri, &[])?;
    let Some(accepts) = accepts else { return Ok(NOTHING.into()) };
    let (reply, answer) = oneshot::channel();
    let unavailable = |text: &str| Problem::new(StatusCode::SERVICE_UNAVAILABLE, text);
    accepts
        .try_send(Accept { by: By::Command, reply })
        .map_err(|_full| unavailable("too many requests at once: try again"))?;
    let ended = answer.await.map_err(|_ended| unavailable("nodelb is stopping"))?;
    Ok(ended.map_or_else(|| NOTHING.into(), |ended| format!("accepted: {ended}; the others are removed")))
}

#[cfg(test)]
#[path = "tests/accept.rs"]
mod tests;
