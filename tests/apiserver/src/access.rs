//! Authorization: users, and roles as in RBAC. Authentication (certificates) is in `identity`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::request::Request;
use crate::status::Status;

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Common name of the client certificate, or the user that a token belongs to.
    pub name: String,
    /// Organizations of the client certificate.
    pub groups: Vec<String>,
}

/// The permissions of a user, as in a `ClusterRole`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    rules: Vec<(Vec<String>, Vec<String>)>,
}

impl Role {
    /// Every verb on every resource.
    pub fn admin() -> Self {
        Self::default().and(&["*"], &["*"])
    }

    /// The permissions of the ClusterRole `system:node-proxier`. It may list and watch services but
    /// not get one.
    pub fn node_proxier() -> Self {
        Self::default()
            .and(&["list", "watch"], &["services", "endpoints", "endpointslices", "servicecidrs"])
            .and(&["get", "list", "watch"], &["nodes"])
            .and(&["create", "patch", "update"], &["events"])
    }

    /// No permissions beyond those of every user: discovery, health, version.
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds these verbs on these resources.
    #[must_use]
    pub fn and(mut self, verbs: &[&str], resources: &[&str]) -> Self {
        let owned = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect();
        self.rules.push((owned(verbs), owned(resources)));
        self
    }

    /// Removes all permissions on a resource.
    #[must_use]
    pub fn without(mut self, resource: &str) -> Self {
        for (_, resources) in &mut self.rules {
            resources.retain(|it| it != resource);
        }
        self
    }

    fn allows(&self, verb: &str, resource: &str) -> bool {
        let has = |list: &[String], what: &str| list.iter().any(|it| it == "*" || it == what);
        self.rules.iter().any(|(verbs, resources)| has(verbs, verb) && has(resources, resource))
    }
}

/// Tokens and roles of one cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    pub(crate) tokens: BTreeMap<String, User>,
    /// By user name.
    pub(crate) roles: BTreeMap<String, Role>,
}

impl Access {
    /// Reports whether a user may do this. Members of `system:masters` may do everything.
    pub(crate) fn allows(&self, user: &User, verb: &str, resource: &str) -> bool {
        user.groups.iter().any(|group| group == "system:masters")
            || self.roles.get(&user.name).is_some_and(|role| role.allows(verb, resource))
    }

    /// Returns 403 if a request about a resource is not allowed.
    pub(crate) fn check(&self, user: &User, request: &Request) -> Result<(), Status> {
        let Some(resource) = request.resource else { return Ok(()) };
        let verb = request.verb.as_str();
        let full = match &request.subresource {
            Some(subresource) => format!("{}/{subresource}", resource.plural),
            None => resource.plural.to_owned(),
        };
        if self.allows(user, verb, &full) {
            return Ok(());
        }
        Err(forbidden(&user.name, request, &full))
    }

    /// Answers a `SelfSubjectAccessReview`.
    pub(crate) fn review(&self, user: &User, mut review: Value) -> Value {
        let asked = &review["spec"]["resourceAttributes"];
        let part = |name: &str| asked[name].as_str().unwrap_or_default().to_owned();
        let resource = match part("subresource") {
            empty if empty.is_empty() => part("resource"),
            subresource => format!("{}/{subresource}", part("resource")),
        };
        let allowed = asked.is_null() || self.allows(user, &part("verb"), &resource);
        review["status"] = json!({"allowed": allowed});
        review
    }
}

/// The 403 error message of a real apiserver.
pub(crate) fn forbidden(user: &str, request: &Request, resource: &str) -> Status {
    let plain = request.resource.map_or("", |resource| resource.plural);
    let group = request.resource.map_or("", |resource| resource.group);
    let name = request.name.as_deref().unwrap_or_default();
    let subject = if name.is_empty() { String::new() } else { format!(" {name:?}") };
    let place = match &request.namespace {
        Some(namespace) => format!(" in the namespace {namespace:?}"),
        None => " at the cluster scope".to_owned(),
    };
    let whole = if group.is_empty() { plain.to_owned() } else { format!("{plain}.{group}") };
    let message = format!(
        "{whole}{subject} is forbidden: User {user:?} cannot {} resource {resource:?} in API group {group:?}{place}",
        request.verb.as_str()
    );
    Status::new(403, message).about(plain, group, name)
}

#[cfg(test)]
#[path = "tests/access.rs"]
mod tests;
