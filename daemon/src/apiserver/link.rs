//! One connection to one apiserver: HTTP/2 where the server speaks it, else one HTTP/1.1 connection per request. Owns the
//! sockets, so that it can cut them.

use std::time::Duration;

use http_body_util::combinators::BoxBody;
use hyper::Response;
use hyper::body::Bytes;

/// A connection that requests are sent over.
#[derive(Debug)]
pub struct Link {}

/// The body of an answer; ends with an error as soon as the link is cut.
pub type Body = BoxBody<Bytes, LinkError>;

impl Link {
    /// Sends a GET with the link's credentials and waits at most `patience` for the answer's head.
    ///
    /// # Errors
    /// Everything but a 2xx status, with what the server says about it.
    pub async fn get(&self, path_and_query: &str, patience: Duration) -> Result<Response<Body>, LinkError> {
        let _ = (path_and_query, patience);
        Err(LinkError::Broken("not connected".into()))
    }

    /// Shuts every socket down, now: requests in flight and bodies being read end with an error.
    pub fn cut(&self) {}

    /// Resolves when the link can carry no more requests, whoever ended it.
    pub async fn ended(&self) {}
}

/// Why a request has no answer that is of use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// No connection: refused, no route, not within the time.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The server is not the one it should be, or will not speak TLS with us.
    #[error("{0}")]
    Certificate(String),
    /// 401: the server does not accept who we say we are.
    #[error("401 Unauthorized: {0}")]
    Unauthorized(String),
    /// 403: it knows who we are, and we may not.
    #[error("403 Forbidden: {0}")]
    Forbidden(String),
    /// 410: the resourceVersion or the continue token is too old.
    #[error("410 Gone: {0}")]
    Gone(String),
    /// 429 or 5xx with the time to wait, where the server names one.
    #[error("{code}: {message}")]
    Busy {
        /// HTTP status.
        code: u16,
        /// What the server says.
        message: String,
        /// `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// Any other status.
    #[error("{code}: {message}")]
    Status {
        /// HTTP status.
        code: u16,
        /// What the server says.
        message: String,
    },
    /// The connection ended in the middle, or what arrived is not HTTP.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// No answer in time; what was waited for.
    #[error("no answer in time: {0}")]
    TimedOut(String),
}
