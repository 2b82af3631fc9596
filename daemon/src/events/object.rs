//! Events as Kubernetes wants them written. Pure.

use hyper::Method;
use nodelb_core::model::calendar::utc;
use serde_json::{Value, json};

use super::board::Due;
use crate::apiserver::link::Statement;
use crate::source::kube::printable;
use crate::source::kube::seen::Metadata;

/// The longest message; the apiserver takes 1024 bytes.
const MAX_MESSAGE: usize = 1000;

/// The first of its kind: a new Event about the Service.
pub(super) fn first(due: &Due, about: &Metadata, node: &str, now: u64) -> Statement {
    let namespace = &due.service.namespace;
    let body = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": due.name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Service", "namespace": namespace, "name": due.service.name,
            "uid": about.uid, "resourceVersion": about.resource_version,
        },
        "reason": due.reason.to_string(),
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
pub(super) fn again(due: &Due, now: u64) -> Statement {
    let body = json!({"count": due.count, "lastTimestamp": utc(now), "message": message(due)});
    let path = format!("/api/v1/namespaces/{}/events/{}", due.service.namespace, due.name);
    statement(Method::PATCH, path, "application/merge-patch+json", &body)
}

fn statement(method: Method, path_and_query: String, content_type: &'static str, body: &Value) -> Statement {
    Statement { method, path_and_query, content_type, body: body.to_string().into() }
}

fn message(due: &Due) -> String {
    let shown = printable::sentence(&due.message);
    let end = shown.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= MAX_MESSAGE).last();
    shown.get(..end.unwrap_or(0)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
