//! Writes Events to the apiserver over a session. The daemon decides which problems are reported as Events.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Event as KubeEvent, EventSource, ObjectReference, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use nodelb_core::model::service::ServiceName;
use serde_json::json;

use crate::apiserver::connection::client;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::session::Session;
use nodelb_core::text;

const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum size of a response in bytes; it contains one Service or one Event.
const MAX_ANSWER: usize = 2 << 20;

/// The maximum length of a message in bytes; the apiserver accepts 1024.
const MAX_MESSAGE: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    pub service: &'a ServiceName,
    /// The reason, one CamelCase word.
    pub reason: &'a str,
    pub message: &'a str,
    /// The `metadata.name` of the Event.
    pub name: &'a str,
    /// The time of the first occurrence, in seconds since 1970.
    pub first: u64,
    /// The number of occurrences so far, including this one.
    pub count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostOutcome {
    Written,
    /// The service no longer exists.
    Moot,
}

/// Writes the Event with this node as its source and `now` in seconds since 1970. Creates an Event if `count` is 1;
/// otherwise updates the existing one.
pub async fn post(session: &Session, event: &Event<'_>, node: &str, now: u64) -> Result<PostOutcome, LinkError> {
    write(client::over(&session.link, TIMEOUT, MAX_ANSWER), event, node, now).await
}

async fn write(client: kube::Client, due: &Event<'_>, node: &str, now: u64) -> Result<PostOutcome, LinkError> {
    let (namespace, service) = (&*due.service.namespace, &*due.service.name);
    let events: Api<KubeEvent> = Api::namespaced(client.clone(), namespace);
    if due.count > 1 {
        let patch = Patch::Merge(json!({"count": due.count, "lastTimestamp": time(now), "message": message(due)}));
        events.patch(due.name, &PatchParams::default(), &patch).await?;
        return Ok(PostOutcome::Written);
    }
    // From the apiserver's cache, and only for its uid: `kubectl describe` finds Events by it.
    let by_name = ListParams::default().fields(&format!("metadata.name={service}")).at("0");
    let found = Api::<Service>::namespaced(client, namespace).list(&by_name).await?;
    let Some(about) = found.items.into_iter().next() else { return Ok(PostOutcome::Moot) };
    events.create(&PostParams::default(), &first(due, about.metadata, node, now)).await?;
    Ok(PostOutcome::Written)
}

fn first(due: &Event<'_>, about: ObjectMeta, node: &str, now: u64) -> KubeEvent {
    let namespace = Some(due.service.namespace.to_string());
    KubeEvent {
        metadata: ObjectMeta { name: Some(due.name.into()), namespace: namespace.clone(), ..Default::default() },
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Service".into()),
            namespace,
            name: Some(due.service.name.to_string()),
            uid: about.uid,
            resource_version: about.resource_version,
            field_path: None,
        },
        reason: Some(due.reason.into()),
        message: Some(message(due)),
        type_: Some("Warning".into()),
        first_timestamp: time(due.first),
        last_timestamp: time(now),
        count: i32::try_from(due.count).ok(),
        source: Some(EventSource { component: Some("nodelb".into()), host: Some(node.into()) }),
        reporting_component: Some("nodelb".into()),
        reporting_instance: Some(node.into()),
        ..Default::default()
    }
}

fn time(seconds: u64) -> Option<Time> {
    Timestamp::from_second(seconds.try_into().ok()?).ok().map(Time)
}

fn message(due: &Event<'_>) -> String {
    let shown = text::sentence(due.message);
    let end = shown.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MAX_MESSAGE).last();
    shown.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}

#[cfg(test)]
#[path = "tests/events.rs"]
mod tests;
