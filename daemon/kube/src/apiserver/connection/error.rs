//! The errors of requests to an apiserver, by how nodelb handles them. Converts a response without a 2xx status into an
//! error with the server's message.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, Method, Response, StatusCode};
use nodelb_core::text::is_control;
use serde::Deserialize;

/// The longest pause that a server with too many requests (429) may request.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// The maximum size of the body in bytes.
const MAX_BODY: usize = 64 << 10;

/// The maximum length of the server's message in characters.
const MAX_MESSAGE: usize = 600;

/// The longest `Retry-After` of a server that nodelb obeys.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(300);

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
    Busy { code: u16, message: String, retry_after: Option<Duration> },
    /// Any other status.
    #[error("{code}: {message}")]
    Status { code: u16, message: String },
    /// The connection ended prematurely, or the response is not HTTP.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// A timeout, with a description of the request.
    #[error("timeout: {0}")]
    TimedOut(String),
}

impl LinkError {
    /// The pause that the server requests, or zero. Only the `Retry-After` of a 429 is reliable. That of a server error
    /// is a guess, often of a load balancer in front of the server; it counts up to `most`.
    pub fn pause(&self, most: Duration) -> Duration {
        match self {
            Self::Busy { code: 429, retry_after: Some(wait), .. } => (*wait).min(MAX_PAUSE),
            Self::Busy { retry_after: Some(wait), .. } => (*wait).min(most),
            _ => Duration::ZERO,
        }
    }
}

/// The request, for messages about missing permissions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) server: SocketAddr,
    /// [`Login::described`](crate::apiserver::credentials::login::Login::described).
    pub(super) identity: &'a str,
    pub(super) user: Option<&'a str>,
    /// The groups in Kubernetes that the certificate contains.
    pub(super) groups: &'a [String],
    pub(super) method: &'a Method,
    pub(super) path_and_query: &'a str,
}

/// The fields of `meta/v1.Status` that nodelb uses.
#[derive(Deserialize)]
struct Status {
    kind: String,
    #[serde(default)]
    message: String,
}

pub(super) async fn read_error(answer: Response<Incoming>, asked: &Asked<'_>, timeout: Duration) -> LinkError {
    let (head, body) = answer.into_parts();
    let message = match tokio::time::timeout(timeout, Limited::new(body, MAX_BODY).collect()).await {
        Ok(Ok(body)) => message(&body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => "the error message is too long".into(),
        Ok(Err(_)) | Err(_) => "the error message did not arrive".into(),
    };
    let message = if message.is_empty() { "no error message".into() } else { message };
    refusal(head.status, &head.headers, message, asked)
}

fn refusal(status: StatusCode, headers: &HeaderMap, message: String, asked: &Asked<'_>) -> LinkError {
    let Asked { server, identity, .. } = asked;
    match status.as_u16() {
        401 => LinkError::Unauthorized(format!("{server} does not accept {identity}: {message}")),
        403 => LinkError::Forbidden(format!(
            "{server} denies {identity} the permission: {message}; check with `{}`",
            can_i(asked)
        )),
        410 => LinkError::Gone(message),
        code @ (429 | 500..) => LinkError::Busy { code, message, retry_after: retry_after(headers) },
        code => LinkError::Status { code, message },
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

/// The message of a Kubernetes `Status`; for a failed health check, the failed checks; otherwise the first line.
fn message(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let reported = match serde_json::from_slice::<Status>(body) {
        Ok(status) if status.kind == "Status" => status.message,
        _ => {
            let failed: Vec<_> = text.lines().filter(|line| line.starts_with("[-]")).collect();
            if failed.is_empty() { text.trim().lines().next().unwrap_or_default().into() } else { failed.join(", ") }
        }
    };
    let mut characters = reported.trim().chars().map(|c| if is_control(c) { ' ' } else { c });
    let mut message: String = characters.by_ref().take(MAX_MESSAGE).collect();
    if characters.next().is_some() {
        message.push('…');
    }
    message
}

/// The command that shows whether Kubernetes permits the request.
fn can_i(asked: &Asked<'_>) -> String {
    let Asked { user, groups, method, path_and_query, .. } = *asked;
    let (path, query) = path_and_query.split_once('?').unwrap_or((path_and_query, ""));
    let mut segments = path.trim_matches('/').split('/');
    let group = match segments.next() {
        Some("api") => Some(String::new()),
        Some("apis") => segments.next().map(|group| format!(".{group}")),
        _ => None,
    };
    let mut rest = segments.skip(1).peekable();
    let namespace = rest.next_if_eq(&"namespaces").and_then(|_| rest.next());
    let is_plain = |text: &&str| !text.contains('\'');
    let mut user = user.filter(is_plain).map(|user| format!(" --as '{user}'")).unwrap_or_default();
    if !user.is_empty() {
        let groups = groups.iter().map(String::as_str).filter(is_plain).map(|group| format!(" --as-group '{group}'"));
        user.extend(groups);
    }
    let (Some(group), Some(resource)) = (group, rest.next()) else {
        return format!("kubectl auth can-i get {path}{user}");
    };
    let name = rest.next().map(|name| format!("/{name}"));
    let verb = match &name {
        _ if *method == Method::POST => "create",
        _ if *method == Method::PATCH => "patch",
        Some(_) => "get",
        None if query.split('&').any(|pair| pair == "watch=1" || pair == "watch=true") => "watch",
        None => "list",
    };
    let scope = match (namespace, &name) {
        (Some(namespace), _) => format!(" --namespace {namespace}"),
        // A named object without a namespace is cluster-scoped.
        (None, Some(_)) => String::new(),
        (None, None) => " --all-namespaces".into(),
    };
    let name = name.unwrap_or_default();
    format!("kubectl auth can-i {verb} {resource}{group}{name}{scope}{user}")
}

#[cfg(test)]
#[path = "tests/error.rs"]
mod tests;
