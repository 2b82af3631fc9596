//! Who may do what: users, and rules as of RBAC. Owns no certificates; `identity` tells who somebody is.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::request::Request;
use crate::status::Status;

/// Somebody who has shown who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Common name of the certificate, or what the token stands for.
    pub name: String,
    /// Organisations of the certificate.
    pub groups: Vec<String>,
}

/// What somebody may do, as a `ClusterRole`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    rules: Vec<(Vec<String>, Vec<String>)>,
}

impl Role {
    /// Everything.
    pub fn admin() -> Self {
        Self::default().and(&["*"], &["*"])
    }

    /// What `ClusterRole` `system:node-proxier` allows. Not to get a single service: it must be listed.
    pub fn node_proxier() -> Self {
        Self::default()
            .and(&["list", "watch"], &["services", "endpoints", "endpointslices", "servicecidrs"])
            .and(&["get", "list", "watch"], &["nodes"])
            .and(&["create", "patch", "update"], &["events"])
    }

    /// Nothing but what everybody may: discovery, health, version.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// The same, and these verbs on these resources.
    #[must_use]
    pub fn and(mut self, verbs: &[&str], resources: &[&str]) -> Self {
        let owned = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect();
        self.rules.push((owned(verbs), owned(resources)));
        self
    }

    /// The same without a resource.
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
    /// Whether a user may; members of `system:masters` always may.
    pub(crate) fn allows(&self, user: &User, verb: &str, resource: &str) -> bool {
        user.groups.iter().any(|group| group == "system:masters")
            || self.roles.get(&user.name).is_some_and(|role| role.allows(verb, resource))
    }

    /// 403 where a request about a resource is not allowed.
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

/// 403 in the words of an apiserver.
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
mod tests;
