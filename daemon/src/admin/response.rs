//! What answers and refusals have in common, whatever gives them: who asks, the form of a refusal, and the room that an answer
//! takes up until it is read.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::query::{Output, Problem};

/// How much of rendered answers may wait for slow readers at a time, in KiB. What does not fit is not answered.
pub(super) const UNREAD_KIB: u32 = 64 * 1024;
/// Answers up to this size, in KiB, need no room there: slow readers never keep an operator from a narrow question.
const SMALL_KIB: u32 = 64;

/// Whoever asks, as the connection knows it.
#[derive(Clone)]
pub(super) struct Caller {
    /// Over the unix socket, which no browser reaches.
    pub(super) is_local: bool,
    /// The places for those who follow a stream.
    pub(super) streams: Arc<Semaphore>,
    /// Tells the connection that its answer has no end.
    pub(super) follow: Arc<dyn Fn() + Send + Sync>,
}

/// What takes up room until it is read; `None` where there is no room for it.
pub(super) fn with_room(text: String, unread: &Arc<Semaphore>) -> Option<Bytes> {
    let kib = u32::try_from(text.len() / 1024).unwrap_or(u32::MAX).min(UNREAD_KIB);
    if kib <= SMALL_KIB {
        return Some(text.into());
    }
    let room = Arc::clone(unread).try_acquire_many_owned(kib).ok()?;
    Some(Bytes::from_owner(Unread { text, _room: room }))
}

/// A rendered answer that counts as unread until its last byte has been handed to the kernel.
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

/// A problem as an answer: one line of text, or `{"error": "..."}`.
pub(super) fn problem_response(problem: &Problem, output: Output) -> Response {
    let body = match output {
        Output::Text => format!("{}\n", problem.message.escape_debug()),
        Output::Json | Output::Sse => format!("{}\n", serde_json::json!({ "error": problem.message })),
    };
    (problem.status, [(CONTENT_TYPE, content_type(output))], body).into_response()
}
