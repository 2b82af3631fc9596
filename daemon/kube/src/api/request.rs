//! The requests that list and watch one kind. Their selectors make the server leave out objects that nodelb would
//! ignore.

use std::time::Duration;

use nodelb_core::model::service::ServiceName;

use super::decode::{Kind, Version};
use crate::apiserver::error::LinkError;

/// The label of an EndpointSlice that names its service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The longest `Retry-After` of a server that nodelb obeys.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The label selector for the objects that kube-proxy handles (as of Kubernetes 1.36): no Services of another proxy,
/// and no slices of headless Services.
fn labels(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Service => Some("!service.kubernetes.io/service-proxy-name"),
        Kind::EndpointSlice => Some("!service.kubernetes.io/headless"),
        Kind::Node => None,
    }
}

/// The list and watch requests for one kind, without the features that the servers so far do not support.
#[derive(Clone, Debug)]
pub struct Query {
    /// The kind of the objects.
    pub kind: Kind,
    /// Whether to try streaming lists.
    pub streams: bool,
    /// The namespace; `None` for all.
    namespace: Option<String>,
    labels: Option<String>,
    fields: Option<String>,
    /// Whether the field selector only reduces traffic and may be dropped.
    fields_can_go: bool,
}

impl Query {
    /// All objects of a kind, or only one Service or its EndpointSlices; also those that no proxy handles.
    pub fn unfiltered(kind: Kind, service: Option<&ServiceName>) -> Self {
        let of_service = |service: &ServiceName| match kind {
            Kind::EndpointSlice => (Some(selector(kind, service).1), None),
            Kind::Service | Kind::Node => (None, Some(selector(kind, service).1)),
        };
        let (labels, fields) = service.map_or((None, None), of_service);
        let namespace = service.map(|service| service.namespace.to_string());
        Self { kind, streams: true, namespace, labels, fields, fields_can_go: false }
    }

    /// All Services or EndpointSlices.
    pub fn all(kind: Kind) -> Self {
        // No proxy serves headless services.
        let fields = (kind == Kind::Service).then(|| "spec.clusterIP!=None".to_owned());
        let labels = labels(kind).map(ToOwned::to_owned);
        Self { labels, fields, fields_can_go: true, ..Self::unfiltered(kind, None) }
    }

    /// One Service, or its EndpointSlices.
    pub fn of_service(kind: Kind, service: &ServiceName) -> Self {
        let query = Self::unfiltered(kind, Some(service));
        let all: Vec<&str> = labels(kind).into_iter().chain(query.labels.as_deref()).collect();
        Self { labels: Some(all.join(",")), ..query }
    }

    /// One Node.
    pub fn node(name: &str) -> Self {
        Self { fields: Some(format!("metadata.name={name}")), ..Self::unfiltered(Kind::Node, None) }
    }

    /// Stops using a feature that the server has rejected with `error`. Returns false if there is no such feature.
    pub fn make_do_without(&mut self, error: &LinkError) -> bool {
        let LinkError::Status { code, message } = error else { return false };
        if *code == 400 && message.contains("field") && self.fields_can_go && self.fields.is_some() {
            self.fields = None;
            return true;
        }
        // The apiserver responds with 422 if the feature gate WatchList is off; a proxy may respond with 400 or 404.
        let was_streaming = self.streams && (400..500).contains(code);
        self.streams &= !was_streaming;
        was_streaming
    }

    /// A request for one page of the list. A `limit` of 0 requests the whole list.
    pub fn page(&self, next: &str, limit: usize) -> String {
        let mut query = self.base();
        if limit > 0 {
            query.add("limit", &limit.to_string());
        }
        if !next.is_empty() {
            query.add("continue", next);
        }
        query.0
    }

    /// A watch that begins with the existing objects (a streaming list).
    pub fn stream(&self, at_least: Duration) -> String {
        let mut query = self.watching(at_least);
        query.add("sendInitialEvents", "true");
        query.add("resourceVersionMatch", "NotOlderThan");
        query.0
    }

    /// A watch for changes after the version `from`.
    pub fn watch(&self, from: Version, at_least: Duration) -> String {
        let mut query = self.watching(at_least);
        query.add("resourceVersion", &from.0.to_string());
        query.0
    }

    fn watching(&self, at_least: Duration) -> Text {
        let mut query = self.base();
        query.add("watch", "true");
        query.add("allowWatchBookmarks", "true");
        // A random factor between 1 and 2, so that the nodes of a cluster do not reconnect at the same time.
        query.add("timeoutSeconds", &at_least.mul_f64(1.0 + fastrand::f64()).as_secs().max(1).to_string());
        query
    }

    fn base(&self) -> Text {
        let mut query = Text(path(self.kind, self.namespace.as_deref()) + "?");
        if let Some(labels) = &self.labels {
            query.add("labelSelector", labels);
        }
        if let Some(fields) = &self.fields {
            query.add("fieldSelector", fields);
        }
        query
    }
}

/// The path for listing and watching a kind in one namespace, or in all.
pub fn path(kind: Kind, namespace: Option<&str>) -> String {
    match (namespace, kind.path().rsplit_once('/')) {
        (Some(namespace), Some((group, resource))) => format!("{group}/namespaces/{namespace}/{resource}"),
        _ => kind.path().to_owned(),
    }
}

/// The query parameter that selects one Service, or its EndpointSlices.
pub fn selector(kind: Kind, service: &ServiceName) -> (&'static str, String) {
    match kind {
        Kind::EndpointSlice => ("labelSelector", format!("{SERVICE_LABEL}={}", service.name)),
        Kind::Service | Kind::Node => ("fieldSelector", format!("metadata.name={}", service.name)),
    }
}

/// A path with query parameters, percent-encoded.
pub fn question(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut query = Text(format!("{path}?"));
    for (key, value) in parameters {
        query.add(key, value);
    }
    query.0
}

/// A path and query under construction.
struct Text(String);

impl Text {
    fn add(&mut self, key: &str, value: &str) {
        if !self.0.ends_with('?') {
            self.0.push('&');
        }
        self.0.push_str(key);
        self.0.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
                self.0.push(char::from(byte));
            } else {
                self.0.push_str(&format!("%{byte:02X}"));
            }
        }
    }
}

#[cfg(test)]
#[path = "tests/request.rs"]
mod tests;
