//! The errors of requests to an apiserver, as far as nodelb handles them differently.

use std::time::Duration;

/// The longest pause that a server with too many requests (429) may ask for.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The reason why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// No connection: refused, no route, or a timeout.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The TLS handshake failed: the server presents the wrong certificate or rejects the connection.
    #[error("{0}")]
    Certificate(String),
    /// 401: the server does not accept the credentials.
    #[error("401 Unauthorized: {0}")]
    Unauthorized(String),
    /// 403: the server accepts the credentials, but they lack the permission.
    #[error("403 Forbidden: {0}")]
    Forbidden(String),
    /// The server refuses all requests including the readiness check: it is starting, or does not know the credentials.
    /// Contains its first response.
    #[error("{0}; it also refuses GET /readyz")]
    Unproven(String),
    /// 410: the resourceVersion or the continue token is too old.
    #[error("410 Gone: {0}")]
    Gone(String),
    /// 429 or 5xx.
    #[error("{code}: {message}")]
    Busy {
        /// The HTTP status.
        code: u16,
        /// The message of the server.
        message: String,
        /// The `Retry-After` header, if there is one.
        retry_after: Option<Duration>,
    },
    /// Any other status.
    #[error("{code}: {message}")]
    Status {
        /// The HTTP status.
        code: u16,
        /// The message of the server.
        message: String,
    },
    /// The connection ended prematurely, or the response is not HTTP.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// A timeout, with a description of the request.
    #[error("timeout: {0}")]
    TimedOut(String),
}

impl LinkError {
    /// The pause that the server asks for, or zero. Only the `Retry-After` of a 429 is reliable. That of a server error is
    /// a guess, often of a load balancer in front of the server; it counts up to `most`.
    pub fn pause(&self, most: Duration) -> Duration {
        match self {
            Self::Busy { code: 429, retry_after: Some(wait), .. } => (*wait).min(MAX_PAUSE),
            Self::Busy { retry_after: Some(wait), .. } => (*wait).min(most),
            _ => Duration::ZERO,
        }
    }
}
