//! Events as Kubernetes wants them written, and the questions that write them over a session. What is worth an Event is the
//! daemon's to say.

use std::time::Duration;

use hyper::Method;
use nodelb_core::model::calendar::utc;
use nodelb_core::model::service::ServiceName;
use serde_json::{Value, json};

use crate::api::printable;
use crate::api::request::question;
use crate::api::seen::{Items, Metadata};
use crate::apiserver::error::LinkError;
use crate::apiserver::link::Statement;
use crate::apiserver::session::Session;
use crate::apiserver::visit::ask;

/// For an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest message; the apiserver takes 1024 bytes.
const MAX_MESSAGE: usize = 1000;

/// An Event about a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The Service.
    pub service: &'a ServiceName,
    /// In one word.
    pub reason: &'a str,
    /// In words.
    pub message: &'a str,
    /// Its `metadata.name`.
    pub name: &'a str,
    /// When it was first seen, in seconds since 1970.
    pub first: u64,
    /// How often it has been told, this time included.
    pub count: u32,
}

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is there.
    Written,
    /// The service is gone.
    Moot,
}

/// Writes it, as this node and at this time, in seconds since 1970: a new one, or the same again with another count.
///
/// # Errors
/// What the connection or the apiserver says.
pub async fn post(session: &Session, event: &Event<'_>, node: &str, now: u64) -> Result<Told, LinkError> {
    let statement = if event.count > 1 {
        again(event, now)
    } else {
        let Some(about) = about(session, event).await? else { return Ok(Told::Moot) };
        first(event, &about, node, now)
    };
    session.link.tell(&statement, PATIENCE).await.map(|_answer| Told::Written)
}

/// The Service as an apiserver's cache has it: `kubectl describe` finds Events by its uid. `None` if it is gone.
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

/// The first of its kind: a new Event about the Service.
fn first(due: &Event<'_>, about: &Metadata, node: &str, now: u64) -> Statement {
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
    statement(Method::POST, format!("/api/v1/namespaces/{namespace}/events"), "application/json", &body)
}

/// It goes on: the same Event with another count.
fn again(due: &Event<'_>, now: u64) -> Statement {
    let body = json!({"count": due.count, "lastTimestamp": utc(now), "message": message(due)});
    let path = format!("/api/v1/namespaces/{}/events/{}", due.service.namespace, due.name);
    statement(Method::PATCH, path, "application/merge-patch+json", &body)
}

fn statement(method: Method, path_and_query: String, content_type: &'static str, body: &Value) -> Statement {
    Statement { method, path_and_query, content_type, body: body.to_string().into() }
}

fn message(due: &Event<'_>) -> String {
    let shown = printable::sentence(due.message);
    let end = shown.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MAX_MESSAGE).last();
    shown.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
