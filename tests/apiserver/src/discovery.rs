//! Discovery: API groups, resources, and just enough OpenAPI for `kubectl` to leave validation to
//! the server.

use serde_json::{Map, Value, json};

use crate::resource::{RBAC, RESOURCES, Resource};
use crate::status::Status;

/// Serves a path that describes the server itself.
///
/// # Errors
/// 404
pub(crate) fn answer(path: &str) -> Result<Value, Status> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        [] => Ok(
            json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]}),
        ),
        ["version"] => Ok(version()),
        ["api"] => Ok(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => {
            Ok(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups().map(group).collect::<Vec<_>>()}))
        }
        ["apis", name] if groups().any(|it| it == *name) => Ok(group(name)),
        ["api", "v1"] => resources("", "v1"),
        ["apis", group, version] => resources(group, version),
        ["openapi", "v3"] => Ok(openapi_index()),
        ["openapi", "v3", "api", "v1"] => openapi("", "v1"),
        ["openapi", "v3", "apis", group, version] => openapi(group, version),
        _ => Err(Status::new(404, "the server could not find the requested resource")),
    }
}

fn version() -> Value {
    json!({
        "major": "1", "minor": "32", "gitVersion": "v1.32.0-nodelb", "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc", "platform": "linux/amd64",
    })
}

/// The groups other than core; `authorization.k8s.io` has only review requests, no stored objects.
fn groups() -> impl Iterator<Item = &'static str> {
    ["authorization.k8s.io", "discovery.k8s.io", "networking.k8s.io", RBAC].into_iter()
}

fn group(name: &str) -> Value {
    let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": [version], "preferredVersion": version})
}

fn of_group(group: &str, version: &str) -> Vec<&'static Resource> {
    RESOURCES.iter().filter(|it| it.group == group && it.version == version).collect()
}

fn resources(group: &str, version: &str) -> Result<Value, Status> {
    let mut list = Vec::new();
    for resource in of_group(group, version) {
        list.push(json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "shortNames": resource.short,
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        }));
        if resource.status {
            list.push(json!({
                "name": format!("{}/status", resource.plural), "singularName": "", "namespaced": resource.namespaced,
                "kind": resource.kind, "verbs": ["get", "patch", "update"],
            }));
        }
    }
    if (group, version) == ("authorization.k8s.io", "v1") {
        list.push(json!({
            "name": "selfsubjectaccessreviews", "singularName": "selfsubjectaccessreview", "namespaced": false,
            "kind": "SelfSubjectAccessReview", "verbs": ["create"],
        }));
    }
    if list.is_empty() {
        return Err(Status::new(404, "the server could not find the requested resource"));
    }
    let version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": list}))
}

fn openapi_index() -> Value {
    let mut paths = Map::new();
    for resource in &RESOURCES {
        let place = place(resource.group, resource.version);
        paths.insert(place.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{place}")}));
    }
    json!({"paths": paths})
}

fn place(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// The paths of a group with the parameters of PATCH, where `kubectl` looks for `fieldValidation`.
fn openapi(group: &str, version: &str) -> Result<Value, Status> {
    let mut paths = Map::new();
    for resource in of_group(group, version) {
        let namespace = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
        let path = format!("/{}/{namespace}{}/{{name}}", place(group, version), resource.plural);
        let parameters: Vec<Value> = ["fieldManager", "fieldValidation"]
            .iter()
            .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}))
            .collect();
        let kind = json!({"group": group, "version": version, "kind": resource.kind});
        let patch = json!({
            "parameters": parameters, "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": "patch", "x-kubernetes-group-version-kind": kind,
        });
        paths.insert(path, json!({"patch": patch}));
    }
    if paths.is_empty() {
        return Err(Status::new(404, "the server could not find the requested resource"));
    }
    Ok(json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.32.0"}, "paths": paths}))
}
