//! Create, update, patch and delete with the rules of an apiserver: names, conflicts, read-only
//! fields, defaults, and field managers.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::defaults;
use crate::fields::{self, Writer};
use crate::patch;
use crate::pools::Pools;
use crate::resource::Resource;
use crate::status::Status;
use crate::store::{Key, Object, Store};

/// The state of a cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) pools: Pools,
    /// Makes the UIDs of different clusters differ.
    pub(crate) seed: u64,
    /// Number of UIDs assigned so far.
    pub(crate) uids: u64,
}

/// The part of an object that a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything except the status, for resources with a `/status`.
    Main,
    /// Only the status.
    Status,
    /// Everything, for tests.
    Whole,
}

/// The parameters of a write except its content.
#[derive(Clone, Debug)]
pub(crate) struct Write<'a> {
    pub(crate) resource: &'static Resource,
    pub(crate) part: Part,
    pub(crate) writer: &'a Writer,
    /// RFC 3339.
    pub(crate) now: &'a str,
}

/// A patch by type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patch {
    /// RFC 6902, `application/json-patch+json`.
    Json(Value),
    /// RFC 7396, `application/merge-patch+json`.
    Merge(Value),
    /// Kubernetes', `application/strategic-merge-patch+json`.
    Strategic(Value),
}

impl State {
    /// Creates an object.
    ///
    /// # Errors
    /// 400, 409 or 422, as a real apiserver.
    pub(crate) fn create(&mut self, write: &Write<'_>, namespace: &str, mut new: Value) -> Result<Arc<Object>, Status> {
        let resource = write.resource;
        identify(resource, namespace, &mut new)?;
        if new["metadata"]["name"].as_str().unwrap_or_default().is_empty()
            && let Some(prefix) = new["metadata"]["generateName"].as_str()
        {
            new["metadata"]["name"] = format!("{prefix}{:05}", self.uids).into();
        }
        let key = (namespace.to_owned(), checked_name(resource, &new)?);
        if self.store.get(resource, &key).is_some() {
            let message = format!("{} {:?} already exists", resource.qualified(), key.1);
            return Err(Status::new(409, message).reason("AlreadyExists").about(
                resource.plural,
                resource.group,
                &key.1,
            ));
        }
        let metadata = &mut new["metadata"];
        metadata["uid"] = self.uid().into();
        metadata["creationTimestamp"] = write.now.into();
        if let Value::Object(metadata) = metadata {
            for field in ["resourceVersion", "generation", "deletionTimestamp", "managedFields"] {
                metadata.remove(field);
            }
        }
        if resource.kind == "EndpointSlice" {
            new["metadata"]["generation"] = json!(1);
        }
        if resource.kind == "Service" && write.part == Part::Main {
            new["status"] = json!({});
        }
        defaults::complete(resource, None, &mut new, &mut self.pools)?;
        fields::record(None, &mut new, write.writer, write.now);
        Ok(self.store.put(resource, &key, new))
    }

    /// Replaces an object. A write without changes takes no revision.
    ///
    /// # Errors
    /// 400, 404, 409 or 422, as a real apiserver.
    pub(crate) fn update(&mut self, write: &Write<'_>, key: &Key, mut new: Value) -> Result<Arc<Object>, Status> {
        let resource = write.resource;
        let old = self.find(resource, key)?;
        identify(resource, &key.0, &mut new)?;
        if checked_name(resource, &new)? != key.1 {
            let message = format!(
                "the name of the object ({}) does not match the name on the URL ({})",
                new["metadata"]["name"], key.1
            );
            return Err(Status::new(400, message));
        }
        check_unchanged(resource, &old, &new)?;
        keep_what_clients_cannot_set(&old.value, &mut new, write.part, resource);
        defaults::complete(resource, Some(&old.value), &mut new, &mut self.pools)?;
        if content(&old.value) == content(&new) {
            return Ok(old);
        }
        if resource.kind == "EndpointSlice" && body(&old.value) != body(&new) {
            new["metadata"]["generation"] = (old.value["metadata"]["generation"].as_u64().unwrap_or(0) + 1).into();
        }
        fields::record(Some(&old.value), &mut new, write.writer, write.now);
        if !new["metadata"]["deletionTimestamp"].is_null() && !has_finalizers(&new) {
            return self.remove(resource, key);
        }
        Ok(self.store.put(resource, key, new))
    }

    /// Patches an object.
    ///
    /// # Errors
    /// As [`Self::update`], or the patch cannot be applied.
    pub(crate) fn patch(&mut self, write: &Write<'_>, key: &Key, with: &Patch) -> Result<Arc<Object>, Status> {
        let mut new = self.find(write.resource, key)?.value.clone();
        match with {
            Patch::Json(operations) => patch::json(&mut new, operations)?,
            Patch::Merge(document) => patch::merge(&mut new, document),
            Patch::Strategic(document) => patch::strategic(&mut new, document),
        }
        self.update(write, key, new)
    }

    /// Deletes an object, or marks it as deleted while it has finalizers. Deleting a namespace
    /// deletes its content; a request over the network only marks it as terminating.
    ///
    /// # Errors
    /// 404; 409 if `preconditions` name another `uid` or `resourceVersion`.
    pub(crate) fn delete(
        &mut self,
        write: &Write<'_>,
        key: &Key,
        preconditions: &Value,
    ) -> Result<Arc<Object>, Status> {
        let resource = write.resource;
        let old = self.find(resource, key)?;
        check_unchanged(resource, &old, &json!({"metadata": preconditions}))?;
        let terminates = resource.kind == "Namespace" && write.part == Part::Main;
        if has_finalizers(&old.value) || terminates {
            let mut new = old.value.clone();
            if !new["metadata"]["deletionTimestamp"].is_null() {
                return Ok(old);
            }
            new["metadata"]["deletionTimestamp"] = write.now.into();
            if terminates {
                new["status"]["phase"] = json!("Terminating");
            }
            return Ok(self.store.put(resource, key, new));
        }
        if resource.kind == "Namespace" {
            for inner in crate::resource::RESOURCES.iter().filter(|it| it.namespaced) {
                for (key, _) in self.store.objects(inner).iter().filter(|((namespace, _), _)| *namespace == key.1) {
                    self.remove(inner, key)?;
                }
            }
        }
        self.remove(resource, key)
    }

    /// Returns an object.
    ///
    /// # Errors
    /// 404
    pub(crate) fn find(&self, resource: &'static Resource, key: &Key) -> Result<Arc<Object>, Status> {
        self.store.get(resource, key).cloned().ok_or_else(|| not_found(resource, &key.1))
    }

    fn remove(&mut self, resource: &'static Resource, key: &Key) -> Result<Arc<Object>, Status> {
        let gone = self.store.remove(resource, key).ok_or_else(|| not_found(resource, &key.1))?;
        if resource.kind == "Service" {
            self.pools.release(&gone.value);
        }
        Ok(gone)
    }

    /// Restores an earlier state; UIDs continue.
    pub(crate) fn restore(&mut self, backup: &Self) {
        self.store.restore(&backup.store);
        self.pools = backup.pools.clone();
    }

    fn uid(&mut self) -> String {
        self.uids += 1;
        let (a, b, c) = (self.seed >> 32, (self.seed >> 16) & 0xffff, self.seed & 0xfff);
        format!("{a:08x}-{b:04x}-4{c:03x}-8000-{:012x}", self.uids)
    }
}

/// 404 for one object.
pub(crate) fn not_found(resource: &Resource, name: &str) -> Status {
    let message = format!("{} {name:?} not found", resource.qualified());
    Status::new(404, message).about(resource.plural, resource.group, name)
}

/// Validates or sets the kind, name and namespace of an object.
fn identify(resource: &Resource, namespace: &str, object: &mut Value) -> Result<(), Status> {
    if !object.is_object() || !(object["metadata"].is_object() || object["metadata"].is_null()) {
        return Err(Status::new(400, "the body is not an object with metadata"));
    }
    for (field, wanted) in [("kind", resource.kind.to_owned()), ("apiVersion", resource.api_version())] {
        match object[field].as_str() {
            Some(given) if given != wanted => {
                let message = format!("{field} {given:?} in the body does not match the expected {wanted:?}");
                return Err(Status::new(400, message));
            }
            _ => object[field] = wanted.into(),
        }
    }
    let given = object["metadata"]["namespace"].as_str().unwrap_or_default();
    if !given.is_empty() && given != namespace {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::new(400, message));
    }
    if resource.namespaced {
        object["metadata"]["namespace"] = namespace.into();
    }
    Ok(())
}

fn checked_name(resource: &Resource, object: &Value) -> Result<String, Status> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let invalid = |why: &str| Status::new(422, format!("{} {name:?} is invalid: metadata.name: {why}", resource.kind));
    if name.is_empty() {
        return Err(invalid("Required value: name or generateName is required"));
    }
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if name.len() > 253 || !name.chars().all(allowed) || !name.starts_with(edge) || !name.ends_with(edge) {
        return Err(invalid("Invalid value: a lowercase RFC 1123 subdomain is expected"));
    }
    Ok(name.to_owned())
}

/// 409 if the writer has read another version, or another object of that name.
fn check_unchanged(resource: &Resource, old: &Object, new: &Value) -> Result<(), Status> {
    let name = old.value["metadata"]["name"].as_str().unwrap_or_default();
    for (field, why) in [
        (
            "resourceVersion",
            "the object has been modified; please apply your changes to the latest version and try again",
        ),
        ("uid", "Precondition failed: UID in precondition does not match UID in object meta"),
    ] {
        let seen = new["metadata"][field].as_str().unwrap_or_default();
        if !seen.is_empty() && old.value["metadata"][field] != seen {
            let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
            return Err(Status::new(409, message).about(resource.plural, resource.group, name));
        }
    }
    Ok(())
}

fn keep_what_clients_cannot_set(old: &Value, new: &mut Value, part: Part, resource: &Resource) {
    if part == Part::Status {
        let status = new["status"].take();
        *new = old.clone();
        new["status"] = status;
        return;
    }
    for field in
        ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields"]
    {
        match old["metadata"].get(field) {
            Some(value) => new["metadata"][field] = value.clone(),
            None => drop(new["metadata"].as_object_mut().and_then(|metadata| metadata.remove(field))),
        }
    }
    new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
    let keeps_status = part == Part::Main || new.get("status").is_none();
    if resource.status
        && keeps_status
        && let Some(status) = old.get("status")
    {
        new["status"] = status.clone();
    }
}

fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
}

/// The fields whose change is a change of the object.
fn content(object: &Value) -> Value {
    let mut content = object.clone();
    if let Value::Object(metadata) = &mut content["metadata"] {
        metadata.remove("managedFields");
        metadata.remove("resourceVersion");
    }
    content
}

/// The fields whose change increments `generation`.
fn body(object: &Value) -> Value {
    let mut body = object.clone();
    body["metadata"].take();
    body
}

#[cfg(test)]
#[path = "tests/write.rs"]
mod tests;
