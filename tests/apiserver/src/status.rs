//! `Status`: the error responses of an apiserver, with their codes and reasons.

use serde_json::{Value, json};

/// An error response: an HTTP status, with a `meta/v1` Status as its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// HTTP status, also `code` in the body.
    pub code: u16,
    /// `reason`, machine-readable.
    pub reason: String,
    /// `message`, human-readable.
    pub message: String,
    /// `Retry-After` in seconds, also `details.retryAfterSeconds`.
    pub retry_after: Option<u32>,
    /// `details`, without `retryAfterSeconds`.
    pub details: Option<Value>,
}

impl Status {
    /// Creates a status with the reason that an apiserver gives for this code.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        let reason = match code {
            400 => "BadRequest",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            406 => "NotAcceptable",
            409 => "Conflict",
            410 => "Expired",
            413 => "RequestEntityTooLarge",
            415 => "UnsupportedMediaType",
            422 => "Invalid",
            429 => "TooManyRequests",
            500 => "InternalError",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "",
        };
        Self { code, reason: reason.into(), message: message.into(), retry_after: None, details: None }
    }

    /// Replaces the reason.
    pub fn reason(mut self, reason: &str) -> Self {
        self.reason = reason.into();
        self
    }

    /// Adds a `Retry-After`, in seconds.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// Adds the object that the error is about.
    pub fn about(mut self, resource: &str, group: &str, name: &str) -> Self {
        self.details = Some(json!({"name": name, "group": group, "kind": resource}));
        self
    }

    /// 410: a list or watch requests a revision that was compacted.
    pub fn expired(asked: u64, oldest: u64) -> Self {
        Self::new(410, format!("too old resource version: {asked} ({oldest})"))
    }

    /// The body of the response.
    pub fn body(&self) -> Value {
        let mut body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        let mut details = self.details.clone();
        if let Some(seconds) = self.retry_after {
            details.get_or_insert_with(|| json!({}))["retryAfterSeconds"] = seconds.into();
        }
        if let Some(details) = details {
            body["details"] = details;
        }
        body
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Status {}
