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

/// The permissions of a user, as in a `ClusterRole` and in `Role`s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) verbs: Vec<String>,
    pub(crate) resources: Vec<String>,
    /// The namespace of the Role; `None` for a ClusterRole.
    pub(crate) namespace: Option<String>,
    /// `resourceNames`; empty for all.
    pub(crate) names: Vec<String>,
}

impl Rule {
    fn allows(&self, attempt: &Attempt<'_>) -> bool {
        let has = |list: &[String], what: &str| list.iter().any(|it| it == "*" || it == what);
        has(&self.verbs, attempt.verb)
            && has(&self.resources, &attempt.resource)
            && self.namespace.as_deref().is_none_or(|namespace| Some(namespace) == attempt.namespace)
            && (self.names.is_empty() || attempt.name.is_some_and(|name| self.names.iter().any(|it| it == name)))
    }
}

/// What RBAC decides about.
struct Attempt<'a> {
    verb: &'a str,
    resource: String,
    /// `None` for all namespaces.
    namespace: Option<&'a str>,
    /// `None` for all objects.
    name: Option<&'a str>,
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
        self.rules.push(Rule { verbs: owned(verbs), resources: owned(resources), ..Rule::default() });
        self
    }

    /// Adds these verbs on these resources of a namespace; only on objects of these names, if there are any.
    #[must_use]
    pub fn within(mut self, namespace: &str, verbs: &[&str], resources: &[&str], names: &[&str]) -> Self {
        let namespace = Some(namespace.to_owned());
        self.rules.push(Rule { verbs: owned(verbs), resources: owned(resources), namespace, names: owned(names) });
        self
    }

    pub(crate) fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// Removes all permissions on a resource.
    #[must_use]
    pub fn without(mut self, resource: &str) -> Self {
        for rule in &mut self.rules {
            rule.resources.retain(|it| it != resource);
        }
        self
    }

    fn allows(&self, attempt: &Attempt<'_>) -> bool {
        self.rules.iter().any(|rule| rule.allows(attempt))
    }
}

fn owned(list: &[&str]) -> Vec<String> {
    list.iter().map(|it| (*it).to_owned()).collect()
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
    fn allows(&self, user: &User, attempt: &Attempt<'_>) -> bool {
        user.groups.iter().any(|group| group == "system:masters")
            || self.roles.get(&user.name).is_some_and(|role| role.allows(attempt))
    }

    /// Returns 403 if a request about a resource is not allowed.
    pub(crate) fn check(&self, user: &User, request: &Request) -> Result<(), Status> {
        let Some(resource) = request.resource else { return Ok(()) };
        let verb = request.verb.as_str();
        let full = match &request.subresource {
            Some(subresource) => format!("{}/{subresource}", resource.plural),
            None => resource.plural.to_owned(),
        };
        // As in a real apiserver, a field selector for one name makes a list or watch a request about that object.
        let fields = request.parameter("fieldSelector").split(',');
        let selected = fields.filter_map(|field| field.strip_prefix("metadata.name=")).next();
        let name = request.name.as_deref().or(selected);
        let attempt = Attempt { verb, resource: full.clone(), namespace: request.namespace.as_deref(), name };
        if self.allows(user, &attempt) {
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
        let (verb, namespace, name) = (part("verb"), part("namespace"), part("name"));
        let some = |text: &'_ str| Some(text).filter(|text| !text.is_empty()).map(str::to_owned);
        let (namespace, name) = (some(&namespace), some(&name));
        let attempt = Attempt { verb: &verb, resource, namespace: namespace.as_deref(), name: name.as_deref() };
        let allowed = asked.is_null() || self.allows(user, &attempt);
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
