//! Responses: complete bodies, streamed bodies, and bodies that break off.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep};

use crate::faults::Fault;
use crate::status::Status;

/// A chunk of a streamed body.
pub(crate) type Piece = Result<Bytes, Broken>;

/// The body breaks off in a way that the client can detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("injected fault: the body breaks off")
    }
}

impl std::error::Error for Broken {}

/// The body of a response.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// The complete body.
    Whole(Option<Bytes>),
    /// A stream of chunks.
    Stream(mpsc::Receiver<Piece>),
    /// A part of the body, followed by an error.
    Partial(Option<Bytes>, Pin<Box<Sleep>>),
}

/// How long the socket has to send the data before a break; data that is still queued then is lost.
pub(crate) const FLUSH: Duration = Duration::from_millis(20);

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let piece = match &mut *self {
            Self::Whole(bytes) => bytes.take().map(Ok),
            Self::Stream(pieces) => std::task::ready!(pieces.poll_recv(context)),
            Self::Partial(bytes, pause) => match bytes.take() {
                Some(bytes) => Some(Ok(bytes)),
                None => {
                    std::task::ready!(pause.as_mut().poll(context));
                    Some(Err(Broken))
                }
            },
        };
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Stream(_) | Self::Partial(..) => SizeHint::default(),
        }
    }
}

/// A response with JSON that is already encoded.
pub(crate) fn json(code: u16, body: impl Into<Bytes>) -> Response<ReplyBody> {
    reply(code, "application/json", ReplyBody::Whole(Some(body.into())))
}

/// A response with a JSON value.
pub(crate) fn value(code: u16, body: &Value) -> Response<ReplyBody> {
    json(code, format!("{body}\n"))
}

/// A response with text.
pub(crate) fn text(code: u16, body: &'static str) -> Response<ReplyBody> {
    reply(code, "text/plain; charset=utf-8", ReplyBody::Whole(Some(body.into())))
}

/// A response with the events of a watch.
pub(crate) fn stream(pieces: mpsc::Receiver<Piece>) -> Response<ReplyBody> {
    reply(200, "application/json", ReplyBody::Stream(pieces))
}

/// An error response.
pub(crate) fn refusal(status: &Status) -> Response<ReplyBody> {
    let mut response = value(status.code, &status.body());
    if let Some(seconds) = status.retry_after {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// A complete body, modified by a fault.
pub(crate) fn with_fault(body: Bytes, fault: Option<&Fault>) -> Response<ReplyBody> {
    match fault {
        Some(Fault::Cut { after }) => {
            let body = body.slice(..(*after).min(body.len()));
            reply(200, "application/json", ReplyBody::Partial(Some(body), Box::pin(sleep(FLUSH))))
        }
        Some(Fault::Truncate { after }) => json(200, body.slice(..(*after).min(body.len()))),
        _ => json(200, body),
    }
}

fn reply(code: u16, kind: &'static str, body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}
