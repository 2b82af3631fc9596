//! The requests that list and watch one kind. Their selectors make the server leave out objects that nodelb would
//! ignore.

use std::time::Duration;

use kube::api::{ListParams, Request, WatchParams};
use kube::core::request;
use nodelb_core::model::service::ServiceName;

use super::decode::Kind;
use super::scope::Scope;
use crate::apiserver::connection::error::LinkError;

const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// The label selector for the objects that kube-proxy handles (as of Kubernetes 1.36): no Services of another proxy,
/// and no slices of headless Services.
fn of_proxies(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Service => Some("!service.kubernetes.io/service-proxy-name"),
        Kind::EndpointSlice => Some("!service.kubernetes.io/headless"),
        Kind::Node => None,
    }
}

/// The list and watch requests for one kind, without the features that the servers so far do not support.
#[derive(Clone, Debug)]
pub struct Query {
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
            Kind::EndpointSlice => (Some(format!("{SERVICE_LABEL}={}", service.name)), None),
            Kind::Service | Kind::Node => (None, Some(format!("metadata.name={}", service.name))),
        };
        let (labels, fields) = service.map_or((None, None), of_service);
        let namespace = service.map(|service| service.namespace.to_string());
        Self { kind, streams: true, namespace, labels, fields, fields_can_go: false }
    }

    /// The objects of a scope that a proxy handles.
    pub fn of(scope: &Scope) -> Self {
        Self::selecting(scope, of_proxies(scope.kind))
    }

    /// The same, with the EndpointSlices that no proxy uses, although a proxy may handle their Service.
    pub fn with_unused_slices(scope: &Scope) -> Self {
        Self::selecting(scope, of_proxies(scope.kind).filter(|_| scope.kind != Kind::EndpointSlice))
    }

    fn selecting(scope: &Scope, of_proxies: Option<&str>) -> Self {
        let Scope { kind, namespace, names, labels } = scope;
        let of_services = match (kind, &names[..]) {
            (Kind::EndpointSlice, [name]) => Some(format!("{SERVICE_LABEL}={name}")),
            (Kind::EndpointSlice, [_, ..]) => Some(format!("{SERVICE_LABEL} in ({})", names.join(","))),
            _ => None,
        };
        let (fields, fields_can_go) = match (kind, &names[..]) {
            (Kind::EndpointSlice, _) | (Kind::Node, []) => (None, false),
            (_, [name, ..]) => (Some(format!("metadata.name={name}")), false),
            // No proxy serves headless services.
            (Kind::Service, []) => (Some("spec.clusterIP!=None".to_owned()), true),
        };
        let own = Some(&**labels).filter(|labels| !labels.is_empty());
        let labels: Vec<&str> = of_proxies.into_iter().chain(of_services.as_deref()).chain(own).collect();
        let labels = Some(labels.join(",")).filter(|labels| !labels.is_empty());
        let namespace = namespace.as_ref().map(ToString::to_string);
        Self { namespace, labels, fields, fields_can_go, ..Self::unfiltered(*kind, None) }
    }

    /// Whether the request is about one namespace.
    pub fn is_narrow(&self) -> bool {
        self.namespace.is_some()
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
    ///
    /// # Errors
    /// The namespace cannot be part of a URL; so in the other requests.
    pub fn page(&self, next: &str, limit: u32) -> Result<String, LinkError> {
        let parameters = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit: Some(limit).filter(|limit| *limit > 0),
            continue_token: Some(next.to_owned()).filter(|next| !next.is_empty()),
            ..ListParams::default()
        };
        path_and_query(self.request().list(&parameters))
    }

    /// A watch that begins with the existing objects (a streaming list).
    pub fn stream(&self, at_least: Duration) -> Result<String, LinkError> {
        path_and_query(self.request().watch(&self.watching(at_least).initial_events(), ""))
    }

    /// A watch for changes after the version `from`.
    pub fn watch(&self, from: &str, at_least: Duration) -> Result<String, LinkError> {
        path_and_query(self.request().watch(&self.watching(at_least), from))
    }

    fn watching(&self, at_least: Duration) -> WatchParams {
        // A random factor between 1 and 2, so that the nodes of a cluster do not reconnect at the same time.
        let seconds = at_least.mul_f64(1.0 + fastrand::f64()).as_secs().max(1);
        WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: u32::try_from(seconds).ok(),
            ..WatchParams::default()
        }
    }

    fn request(&self) -> Request {
        Request::new(match (&self.namespace, self.kind.path().rsplit_once('/')) {
            (Some(namespace), Some((group, resource))) => format!("{group}/namespaces/{namespace}/{resource}"),
            _ => self.kind.path().to_owned(),
        })
    }
}

fn path_and_query(request: Result<hyper::Request<Vec<u8>>, request::Error>) -> Result<String, LinkError> {
    request.map(|request| request.uri().to_string()).map_err(|error| LinkError::Broken(error.to_string()))
}

#[cfg(test)]
#[path = "tests/request.rs"]
mod tests;
