//! The HTTP response to a load balancer, with the headers that kube-proxy sends.

use std::time::SystemTime;

use axum::body::Body;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};

/// The share of a service's traffic for this node, for load balancers that weight their targets.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HealthAnswer {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    pub(super) weight: Option<usize>,
    pub(super) body: String,
    pub(super) at: SystemTime,
}

impl HealthAnswer {
    /// An answer with status 200 or 503 and a JSON body.
    pub(super) fn json(is_good: bool, body: String, at: SystemTime) -> Self {
        let status = if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Self { status, content_type: "application/json", weight: None, body, at }
    }

    pub(super) fn not_found(at: SystemTime) -> Self {
        let content_type = "text/plain; charset=utf-8";
        Self { status: StatusCode::NOT_FOUND, content_type, weight: None, body: "404 page not found\n".into(), at }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let Self { status, content_type, weight, body, at } = self;
        let length = body.len();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(weight) = weight {
            headers.insert(WEIGHT, weight.into());
        }
        // A date is ASCII; without this header the server would add its own.
        if let Ok(date) = HeaderValue::try_from(httpdate::fmt_http_date(at.max(SystemTime::UNIX_EPOCH))) {
            headers.insert(DATE, date);
        }
        headers.insert(CONTENT_LENGTH, length.into());
        response
    }
}
