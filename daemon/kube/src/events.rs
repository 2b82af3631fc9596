//! Writes Events to the apiserver over a session. The daemon decides which problems are reported as Events.

use std::time::Duration;

use hyper::Method;
use nodelb_core::model::calendar::utc;
use nodelb_core::model::service::ServiceName;
use serde_json::{Value, json};

use crate::api::printable;
use crate::api::request::question;
use crate::api::seen::{Items, Metadata};
use crate::apiserver::error::LinkError;
use crate::apiserver::link::RequestBody;
use crate::apiserver::one_shot::ask;
use crate::apiserver::session::Session;

/// The timeout for the response to a write.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum length of a message in bytes; the apiserver accepts 1024.
const MAX_MESSAGE: usize = 1000;

/// An Event about a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The Service that the Event is about.
    pub service: &'a ServiceName,
    /// The reason, one CamelCase word.
    pub reason: &'a str,
    /// The message, a sentence.
    pub message: &'a str,
    /// The `metadata.name` of the Event.
    pub name: &'a str,
    /// The time of the first occurrence, in seconds since 1970.
    pub first: u64,
    /// The number of occurrences so far, including this one.
    pub count: u32,
}

/// The result of writing an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostOutcome {
    /// The apiserver has stored the Event.
    Written,
    /// The service no longer exists.
    Moot,
}

/// Writes the Event with this node as its source and `now` in seconds since 1970. Creates an Event if `count` is 1;
/// otherwise updates the existing one.
///
/// # Errors
/// The connection failed, or the apiserver rejected the request.
pub async fn post(session: &Session, event: &Event<'_>, node: &str, now: u64) -> Result<PostOutcome, LinkError> {
    let request_body = if event.count > 1 {
        again(event, now)
    } else {
        let Some(about) = about(session, event).await? else { return Ok(PostOutcome::Moot) };
        first(event, &about, node, now)
    };
    session.link.send_body(&request_body, TIMEOUT).await.map(|_answer| PostOutcome::Written)
}

/// The metadata of the Service from the apiserver's cache: `kubectl describe` finds Events by the uid. `None` if the
/// Service no longer exists.
async fn about(session: &Session, due: &Event<'_>) -> Result<Option<Metadata>, LinkError> {
    #[derive(serde::Deserialize)]
    struct Object {
        metadata: Metadata,
    }
    let path = format!("/api/v1/namespaces/{}/services", due.service.namespace);
    let by_name = format!("metadata.name={}", due.service.name);
    let found: Items<Object> =
        ask(&session.link, &question(&path, &[("fieldSelector", &by_name), ("resourceVersion", "0")])).await?;
    Ok(found.items.into_iter().next().map(|object| object.metadata))
}

/// The request that creates the Event.
fn first(due: &Event<'_>, about: &Metadata, node: &str, now: u64) -> RequestBody {
    let namespace = &due.service.namespace;
    let body = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": due.name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Service", "namespace": namespace, "name": due.service.name,
            "uid": about.uid, "resourceVersion": about.resource_version,
        },
        "reason": due.reason,
        "message": message(due),
        "type": "Warning",
        "firstTimestamp": utc(due.first),
        "lastTimestamp": utc(now),
        "count": due.count,
        "source": {"component": "nodelb", "host": node},
        "reportingComponent": "nodelb",
        "reportingInstance": node,
    });
    request_body(Method::POST, format!("/api/v1/namespaces/{namespace}/events"), "application/json", &body)
}

/// The request that updates the count, the message and the time of the existing Event.
fn again(due: &Event<'_>, now: u64) -> RequestBody {
    let body = json!({"count": due.count, "lastTimestamp": utc(now), "message": message(due)});
    let path = format!("/api/v1/namespaces/{}/events/{}", due.service.namespace, due.name);
    request_body(Method::PATCH, path, "application/merge-patch+json", &body)
}

fn request_body(method: Method, path_and_query: String, content_type: &'static str, body: &Value) -> RequestBody {
    RequestBody { method, path_and_query, content_type, body: body.to_string().into() }
}

fn message(due: &Event<'_>) -> String {
    let shown = printable::sentence(due.message);
    let end = shown.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MAX_MESSAGE).last();
    shown.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}

#[cfg(test)]
#[path = "tests/events.rs"]
mod tests;
