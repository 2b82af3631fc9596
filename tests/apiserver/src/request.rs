//! Parses a request from its method and URL.

use std::collections::BTreeMap;

use hyper::{Method, Uri};
use serde::Deserialize;

use crate::resource::Resource;

/// The operation on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads all objects.
    List,
    /// Streams changes.
    Watch,
    /// Creates an object.
    Create,
    /// Replaces an object.
    Update,
    /// Changes part of an object.
    Patch,
    /// Deletes an object.
    Delete,
}

impl Verb {
    /// The name in RBAC rules.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }
}

/// A request without its body.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Decoded path.
    pub path: String,
    /// The operation.
    pub verb: Verb,
    /// The resource; `None` if the path does not belong to one.
    pub resource: Option<&'static Resource>,
    /// The namespace; `None` for all namespaces and for cluster-scoped resources.
    pub namespace: Option<String>,
    /// The name of the object; `None` for a collection.
    pub name: Option<String>,
    /// `status`
    pub subresource: Option<String>,
    /// Decoded query.
    pub query: BTreeMap<String, String>,
}

impl Request {
    /// Parses a URL. Never fails: an unknown path has no resource.
    pub(crate) fn parse(method: &Method, uri: &Uri) -> Self {
        let path = uri.path().to_owned();
        let query: BTreeMap<String, String> =
            form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let mut request =
            Self { path, verb: Verb::Get, resource: None, namespace: None, name: None, subresource: None, query };
        request.locate();
        request.verb = match *method {
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ if request.flag("watch") => Verb::Watch,
            _ if request.resource.is_some() && request.name.is_none() => Verb::List,
            _ => Verb::Get,
        };
        request
    }

    fn locate(&mut self) {
        let path = self.path.clone();
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..]
                if Resource::in_group(group, version, rest.first().unwrap_or(&"")).is_some() =>
            {
                (Some((*namespace).to_owned()), rest)
            }
            rest => (None, rest),
        };
        let [plural, rest @ ..] = rest else { return };
        self.resource = Resource::in_group(group, version, plural);
        self.namespace = namespace;
        self.name = rest.first().map(|name| (*name).to_owned());
        self.subresource = rest.get(1).map(|name| (*name).to_owned());
    }

    /// A query parameter; empty if missing.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// A boolean parameter.
    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.parameter(name), "true" | "1")
    }

    /// Reports whether the path of a list or watch includes this object.
    pub(crate) fn covers(&self, namespace: &str, name: &str) -> bool {
        self.namespace.as_ref().is_none_or(|it| it == namespace) && self.name.as_ref().is_none_or(|it| it == name)
    }
}

#[cfg(test)]
#[path = "tests/request.rs"]
mod tests;
