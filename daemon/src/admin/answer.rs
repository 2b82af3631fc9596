//! How a request is answered: its turn and its rendering. Owns what requests share; the route table
//! ([`super::routes`]) defines the routes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use nodelb_report::output::table::Style;
use nodelb_sources::document::nearest;
use tokio::sync::{Semaphore, watch};

use super::follow::{ChangeStream, OutputFormat};
use super::query::{Output, Problem, Query, accepts, internal};
use super::response::{Caller, UNREAD_KIB, content_type, problem_response, with_room};
use super::route::{Admission, Content, Form, Route};
use super::routes::ROUTES;
use super::state::AdminState;
use super::{accept, drain, follow, guard, metrics, page};

/// Time limit for rendering an answer, including the wait for its turn.
const ANSWER_TIME: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct SharedByRequests {
    state: Arc<AdminState>,
    /// At most one whole table is rendered at a time, and at most one answer about a single service. Readers of whole
    /// tables therefore neither occupy all cores nor delay an operator's narrow request.
    whole: Arc<Semaphore>,
    narrow: Arc<Semaphore>,
    /// A slow apiserver delays only requests that query an apiserver.
    live: Arc<Semaphore>,
    /// One stream looks for changes at a time.
    following: Arc<Semaphore>,
    unread: Arc<Semaphore>,
    stop: watch::Receiver<bool>,
}

/// Returns the routes over `state`, behind the guard. Streams end when `stop` becomes true.
pub(super) fn router(state: AdminState, stop: watch::Receiver<bool>) -> Router {
    let state = Arc::new(state);
    let page = page::router(Arc::clone(&state), stop.clone());
    let drains = drain::router(state.drains.clone());
    let accepts = accept::router(state.kubernetes.as_ref().map(|kubernetes| kubernetes.accepts.clone()));
    let shared = SharedByRequests {
        state,
        whole: Arc::new(Semaphore::new(1)),
        narrow: Arc::new(Semaphore::new(1)),
        live: Arc::new(Semaphore::new(1)),
        following: Arc::new(Semaphore::new(1)),
        unread: Arc::new(Semaphore::new(UNREAD_KIB as usize)),
        stop,
    };
    let mut router = Router::new();
    for route in ROUTES {
        let answering = move |State(shared): State<SharedByRequests>,
                              caller: Extension<Caller>,
                              uri: Uri,
                              headers: HeaderMap| async move {
            respond(route, shared, &caller, (&uri, &headers)).await
        };
        router = router.route(route.path, get(answering));
    }
    router
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(shared)
        .merge(page)
        .merge(drains)
        .merge(accepts)
        .layer(axum::middleware::from_fn(guard::guard))
}

async fn unknown_route(uri: Uri, headers: HeaderMap) -> Response {
    let paths = || ROUTES.iter().map(|route| route.path).filter(|path| *path != "/");
    let asked = uri.path().trim_end_matches('/');
    let similar = paths().find(|path| *path == asked).or_else(|| nearest(paths(), asked));
    let remedy = match similar {
        Some(path) => format!("did you mean {path}?"),
        None => format!("there are / {}", paths().collect::<Vec<_>>().join(" ")),
    };
    let message = format!("no route `{}`: {remedy}", uri.path());
    problem_response(&Problem::new(StatusCode::NOT_FOUND, message), Output::accepted(&headers))
}

async fn wrong_method(method: Method, headers: HeaderMap) -> Response {
    let message = format!("{method} is not allowed here: use GET");
    problem_response(&Problem::new(StatusCode::METHOD_NOT_ALLOWED, message), Output::accepted(&headers))
}

async fn respond(
    route: &'static Route,
    shared: SharedByRequests,
    caller: &Caller,
    (uri, headers): (&Uri, &HeaderMap),
) -> Response {
    if route.path == "/" && page::is_browser(headers) {
        return page::document();
    }
    let accepted = Output::accepted(headers);
    let query = match Query::parse(uri, &route.takes()) {
        Ok(query) => Query { openmetrics: accepts(headers, metrics::OPENMETRICS_MEDIA), ..query },
        Err(problem) => return problem_response(&problem, accepted),
    };
    let output = query.output.unwrap_or(accepted);
    if let (Some(feed), true) = (route.form.feed(), query.watch || query.output == Some(Output::Sse)) {
        if matches!(route.form, Form::Watched(..)) && !caller.is_local {
            let message = format!("{} can be watched only over the Unix socket admin.socket", route.path);
            return problem_response(&Problem::new(StatusCode::FORBIDDEN, message), output);
        }
        let resumed = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok());
        let output_format = OutputFormat { output, resumed, clock: Arc::clone(&shared.state.clock) };
        let followed = followed(route, &shared, caller, (feed(&shared.state, &query), output_format));
        return followed.unwrap_or_else(|problem| problem_response(&problem, output));
    }
    let answer = tokio::time::timeout(ANSWER_TIME, answer(route, &shared, query, output)).await;
    match answer.unwrap_or_else(|_elapsed| Err(busy(route))) {
        Ok((status, form, body)) => (status, [(CONTENT_TYPE, form)], Body::from(body)).into_response(),
        Err(problem) => problem_response(&problem, output),
    }
}

fn followed(
    route: &Route,
    shared: &SharedByRequests,
    caller: &Caller,
    (feed, output_format): (ChangeStream, OutputFormat),
) -> Result<Response, Problem> {
    let place = Arc::clone(&caller.streams).try_acquire_owned().map_err(|_full| {
        let message = format!("{} has too many watchers: stop another one, or omit watch", route.path);
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
    })?;
    let output = output_format.output;
    let limits =
        follow::StreamLimits { turn: Arc::clone(&shared.following), unread: Arc::clone(&shared.unread), _place: place };
    let body = follow::body(feed, output_format, limits, shared.stop.clone());
    caller.connection.detach();
    let form = match output {
        Output::Text => "text/plain; charset=utf-8",
        Output::Json => "application/jsonl",
        Output::Sse => "text/event-stream",
    };
    Ok((StatusCode::OK, [(CONTENT_TYPE, form)], body).into_response())
}

/// Short answers are rendered here. Long ones are rendered outside the runtime's workers, few at a time.
async fn answer(
    route: &'static Route,
    shared: &SharedByRequests,
    query: Query,
    output: Output,
) -> Result<(StatusCode, HeaderValue, Bytes), Problem> {
    let turn = match route.admission(&query) {
        None => {
            let (status, form, text) = render(route, &shared.state, &query, output)?;
            return Ok((status, form, text.into()));
        }
        Some(Admission::Whole) => &shared.whole,
        Some(Admission::Narrow) => &shared.narrow,
        Some(Admission::Live) => &shared.live,
    };
    let stopping = |_closed| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "nodelb is stopping");
    let rendering = Arc::clone(turn).acquire_owned().await.map_err(stopping)?;
    let state = Arc::clone(&shared.state);
    let rendered = tokio::task::spawn_blocking(move || {
        let _rendering = rendering;
        render(route, &state, &query, output)
    });
    let (status, form, text) = rendered.await.map_err(|error| internal(route.path, &error.to_string()))??;
    let body = with_room(text, &shared.unread).ok_or_else(|| unread(route))?;
    Ok((status, form, body))
}

fn busy(route: &Route) -> Problem {
    let seconds = ANSWER_TIME.as_secs();
    let path = route.path;
    let message = format!("{path} took longer than {seconds} s: the daemon is busy with other requests; try again");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

fn unread(route: &Route) -> Problem {
    let message = format!(
        "no memory for a response as long as {}: other clients do not read theirs; try again, or limit it with \
         service= or address=",
        route.path
    );
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

fn render(
    route: &Route,
    state: &AdminState,
    query: &Query,
    output: Output,
) -> Result<(StatusCode, HeaderValue, String), Problem> {
    let (status, content) = (route.answer)(state, query, (state.clock)())?;
    let (form, text) = match (content, output) {
        (Content::Own(form, text), _) => (HeaderValue::from_static(form), text),
        (Content::Data(data), Output::Text) => (content_type(output), data.text(&Style::default())),
        (Content::Data(data), Output::Json | Output::Sse) => {
            let json = data.json().map_err(|error| internal(route.path, &error.to_string()))?;
            (content_type(Output::Json), json)
        }
    };
    Ok((status, form, text))
}
