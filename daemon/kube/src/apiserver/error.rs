//! What can go wrong with an apiserver, as far as anything follows from it.

use std::time::Duration;

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
    /// It refuses everything, its readiness included: it starts, or does not know who we are. What it said first.
    #[error("{0}; it refuses GET /readyz as well")]
    Unproven(String),
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
