//! Service accounts: creates a token for each token Secret, and grants each account the permissions
//! of the ClusterRoles and Roles bound to it. A real cluster leaves this to a controller and an authorizer.
//! Bindings of groups and users are ignored.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::access::{Role, Rule};
use crate::cluster::Cluster;
use crate::resource::{RBAC, Resource};
use crate::status::Status;
use crate::write::Patch;

/// Reports whether a write to the resource can affect service accounts.
pub(crate) fn is_relevant(resource: &Resource) -> bool {
    resource.plural == "secrets" || resource.group == RBAC
}

/// Creates missing tokens and updates the permissions of service accounts. An account whose binding
/// was removed keeps its permissions.
///
/// # Errors
/// The random number generator failed.
pub(crate) fn settle(cluster: &Cluster) -> Result<(), Status> {
    cluster.list("secrets").iter().try_for_each(|secret| fill(cluster, secret))?;
    let mut roles: BTreeMap<String, Role> = BTreeMap::new();
    for binding in [cluster.list("clusterrolebindings"), cluster.list("rolebindings")].concat() {
        let namespace = binding["metadata"]["namespace"].as_str();
        let name = text(&binding["roleRef"]["name"]);
        let role = match (text(&binding["roleRef"]["kind"]), namespace) {
            ("Role", Some(namespace)) => cluster.get("roles", namespace, name),
            _ => cluster.get("clusterroles", "", name),
        };
        let role = role.unwrap_or_default();
        for subject in items(&binding["subjects"]).iter().filter(|subject| subject["kind"] == "ServiceAccount") {
            let user = user(text(&subject["namespace"]), text(&subject["name"]));
            let of_user = roles.entry(user).or_insert_with(Role::none);
            items(&role["rules"]).iter().for_each(|rule| of_user.add(within(namespace, rule)));
        }
    }
    roles.into_iter().for_each(|(user, role)| cluster.allow(&user, role));
    Ok(())
}

/// A rule of a role that is bound in a namespace, or in all.
fn within(namespace: Option<&str>, rule: &Value) -> Rule {
    let words = |name: &str| items(&rule[name]).iter().map(|it| text(it).to_owned()).collect();
    Rule {
        verbs: words("verbs"),
        resources: words("resources"),
        namespace: namespace.map(str::to_owned),
        names: words("resourceNames"),
    }
}

/// Fills a token Secret that has no token.
fn fill(cluster: &Cluster, secret: &Value) -> Result<(), Status> {
    let meta = &secret["metadata"];
    let account = text(&meta["annotations"]["kubernetes.io/service-account.name"]);
    let is_wanted = secret["type"] == "kubernetes.io/service-account-token" && !account.is_empty();
    if !is_wanted || secret["data"]["token"].is_string() {
        return Ok(());
    }
    let namespace = text(&meta["namespace"]);
    let token = cluster.token(&user(namespace, account)).map_err(|error| Status::new(500, error.to_string()))?;
    let encoded = |bytes: &str| STANDARD.encode(bytes);
    let data = json!({
        "token": encoded(&token), "ca.crt": encoded(cluster.ca_pem()), "namespace": encoded(namespace),
    });
    let controller = cluster.writing_as("kube-controller-manager");
    controller.patch("secrets", namespace, text(&meta["name"]), &Patch::Merge(json!({"data": data})))
}

fn user(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
#[path = "tests/accounts.rs"]
mod tests;
