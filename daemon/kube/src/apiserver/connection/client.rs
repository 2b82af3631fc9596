//! kube's client over a [`Link`], for requests with a single response. Watches use the link directly, because they
//! decode a response while it arrives.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use nodelb_host::clock::by;
use tokio::time::Instant;

use super::error::LinkError;
use super::link::Link;

/// kube's client over `link`. The head of each response must arrive within `timeout`, and so must its body, which must
/// not exceed `max_bytes`. The client does not keep the link open.
pub fn over(link: &Arc<Link>, timeout: Duration, max_bytes: usize) -> Client {
    let link = Arc::downgrade(link);
    let service = tower::service_fn(move |request| answer(Weak::clone(&link), request, timeout, max_bytes));
    Client::new(service, "default")
}

async fn answer(
    link: Weak<Link>,
    request: Request<Body>,
    timeout: Duration,
    max_bytes: usize,
) -> Result<Response<Full<Bytes>>, LinkError> {
    let link = link.upgrade().ok_or_else(|| LinkError::Broken("closed by nodelb".into()))?;
    let what = format!("the answer of {} to {}", link.at(), request.uri().to_string().trim_end_matches('?'));
    let (head, body) = request.into_parts();
    let answer = link.send(Request::from_parts(head, body.collect_bytes().await?.into()), timeout).await?;
    drop(link);
    let (head, body) = answer.into_parts();
    let body = by(Instant::now() + timeout, Limited::new(body, max_bytes).collect()).await;
    let body = body.map_err(|_late| LinkError::TimedOut(format!("{what} is not complete within {timeout:?}")))?;
    let body = body.map_err(|error| LinkError::Broken(format!("{what}: {error}")))?;
    Ok(Response::from_parts(head, body.to_bytes().into()))
}

/// The error of the link, or that of the response if it cannot be decoded.
impl From<kube::Error> for LinkError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Service(cause) => match cause.downcast() {
                Ok(error) => *error,
                Err(other) => Self::Broken(other.to_string()),
            },
            other => Self::Broken(format!("it does not answer like an apiserver: {other}")),
        }
    }
}

#[cfg(test)]
#[path = "tests/client.rs"]
mod tests;
