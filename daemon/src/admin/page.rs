//! The web page: its files, which the binary contains, and the stream of events that keeps it up to date. The page is
//! read-only, needs no other request than those to the daemon, and shows text from the cluster as text only. Owns the
//! files; [`events`] owns the stream, and the admin API ([`super::answer`]) its routes.

use std::sync::Arc;

use axum::body::Body;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tokio::sync::{Semaphore, watch};

use self::events::Hub;
use super::query::{Output, Problem, accepts};
use super::response::{Caller, problem_response};
use super::state::AdminState;

mod events;

#[derive(Debug)]
struct Asset {
    path: &'static str,
    content_type: &'static str,
    content: &'static str,
}

/// The path of the events. Only the page reads them: their format may change with any version.
const EVENTS: &str = "/events";

/// The document, which `/` returns to browsers.
static DOCUMENT: Asset =
    Asset { path: "/", content_type: "text/html; charset=utf-8", content: include_str!("page/assets/index.html") };

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files that the document loads.
static ASSETS: [Asset; 10] = [
    Asset {
        path: "/page/style.css",
        content_type: "text/css; charset=utf-8",
        content: include_str!("page/assets/style.css"),
    },
    Asset { path: "/page/icon.svg", content_type: "image/svg+xml", content: include_str!("page/assets/icon.svg") },
    Asset { path: "/page/main.js", content_type: SCRIPT, content: include_str!("page/assets/main.js") },
    Asset { path: "/page/dom.js", content_type: SCRIPT, content: include_str!("page/assets/dom.js") },
    Asset { path: "/page/lines.js", content_type: SCRIPT, content: include_str!("page/assets/lines.js") },
    Asset { path: "/page/state.js", content_type: SCRIPT, content: include_str!("page/assets/state.js") },
    Asset { path: "/page/services.js", content_type: SCRIPT, content: include_str!("page/assets/services.js") },
    Asset { path: "/page/panels.js", content_type: SCRIPT, content: include_str!("page/assets/panels.js") },
    Asset { path: "/page/trace.js", content_type: SCRIPT, content: include_str!("page/assets/trace.js") },
    Asset { path: "/page/wall.js", content_type: SCRIPT, content: include_str!("page/assets/wall.js") },
];

/// What the page may load: its own files, and data from the daemon. No markup in a name can run code or reach another
/// host.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The maximum number of open pages. Each occupies a connection.
const PAGES: usize = 64;

/// The routes of the page: its files and its events, which end when `stop` becomes true. Must be called in a runtime.
pub(super) fn router(state: Arc<AdminState>, stop: watch::Receiver<bool>) -> Router {
    let hub = Arc::new(Hub::new(state));
    tokio::spawn(Arc::clone(&hub).run(stop.clone()));
    let places = Arc::new(Semaphore::new(PAGES));
    let events = move |Extension(caller): Extension<Caller>| {
        let place = Arc::clone(&places).try_acquire_owned();
        let (hub, stop) = (Arc::clone(&hub), stop.clone());
        async move {
            let Ok(place) = place else {
                let message = format!("{PAGES} pages are open already: close one");
                return problem_response(&Problem::new(StatusCode::SERVICE_UNAVAILABLE, message), Output::Text);
            };
            caller.connection.detach();
            ([(CONTENT_TYPE, "text/event-stream")], hub.body(place, stop)).into_response()
        }
    };
    let files =
        ASSETS.iter().fold(Router::new(), |router, asset| router.route(asset.path, get(|| async { file(asset) })));
    files.route(EVENTS, get(events))
}

pub(super) fn document() -> Response {
    file(&DOCUMENT)
}

/// Whether the client shows documents: a browser, unlike curl, accepts HTML.
pub(super) fn is_browser(headers: &HeaderMap) -> bool {
    accepts(headers, "text/html")
}

fn file(asset: &'static Asset) -> Response {
    let headers: [(HeaderName, &str); 3] =
        [(CONTENT_TYPE, asset.content_type), (CONTENT_SECURITY_POLICY, POLICY), (REFERRER_POLICY, "no-referrer")];
    (headers, Body::from(asset.content)).into_response()
}

#[cfg(test)]
#[path = "tests/page.rs"]
mod tests;
