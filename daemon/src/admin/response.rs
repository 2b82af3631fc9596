//! A response without regard to its route: its client, its format, and the memory that it occupies until the client has
//! read it.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use nodelb_sources::drains::Peer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::query::{Output, Problem};
use crate::http::HttpConnection;

/// Maximum size of all rendered answers that wait for slow readers, in KiB. An answer that does not fit is refused.
pub(super) const UNREAD_KIB: u32 = 64 * 1024;
/// Maximum size in KiB of an answer that does not count there. Slow readers therefore never keep an operator from a
/// narrow request.
const SMALL_KIB: u32 = 64;

/// The client, as the connection knows it.
#[derive(Clone)]
pub(super) struct Caller {
    /// Whether it uses the Unix socket, which no browser can reach.
    pub(super) is_local: bool,
    /// The process at the other end of the Unix socket, if the kernel names it.
    pub(super) peer: Option<Peer>,
    pub(super) streams: Arc<Semaphore>,
    pub(super) connection: Arc<HttpConnection>,
}

/// Counts the text as unread until the client has read it; `None` if too much is unread.
pub(super) fn with_room(text: String, unread: &Arc<Semaphore>) -> Option<Bytes> {
    let kib = u32::try_from(text.len() / 1024).unwrap_or(u32::MAX).min(UNREAD_KIB);
    if kib <= SMALL_KIB {
        return Some(text.into());
    }
    let room = Arc::clone(unread).try_acquire_many_owned(kib).ok()?;
    Some(Bytes::from_owner(Unread { text, _room: room }))
}

/// A rendered answer that counts as unread until the kernel has taken its last byte.
struct Unread {
    text: String,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Unread {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

pub(super) fn content_type(output: Output) -> HeaderValue {
    HeaderValue::from_static(match output {
        Output::Text => "text/plain; charset=utf-8",
        Output::Json | Output::Sse => "application/json",
    })
}

/// Returns the result of a change as an answer: one line of text, or `{"done": "..."}`.
pub(super) fn change_response(changed: Result<String, Problem>, output: Output) -> Response {
    let text = match changed {
        Ok(text) => text,
        Err(problem) => return problem_response(&problem, output),
    };
    let body = match output {
        Output::Text => format!("{text}\n"),
        Output::Json | Output::Sse => format!("{}\n", serde_json::json!({ "done": text })),
    };
    ([(CONTENT_TYPE, content_type(output))], body).into_response()
}

/// Returns a problem as an answer: one line of text, or `{"error": "..."}`.
pub(super) fn problem_response(problem: &Problem, output: Output) -> Response {
    let body = match output {
        Output::Text => format!("{}\n", problem.message.escape_debug()),
        Output::Json | Output::Sse => format!("{}\n", serde_json::json!({ "error": problem.message })),
    };
    (problem.status, [(CONTENT_TYPE, content_type(output))], body).into_response()
}
