//! Lists: pages, continue tokens, resourceVersions.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::body::Bytes;
use serde_json::json;

use crate::faults::Fault;
use crate::request::Request;
use crate::resource::Resource;
use crate::selector::Selector;
use crate::status::Status;
use crate::store::{Key, Object, Objects, Store};

/// Serves a list request.
///
/// # Errors
/// 400, 410 or 504, as a real apiserver.
pub(crate) fn list(
    store: &mut Store,
    resource: &'static Resource,
    request: &Request,
    fault: Option<&Fault>,
) -> Result<Bytes, Status> {
    let selector = selector(resource, request)?;
    let (objects, revision, after) = start(store, resource, request)?;
    let limit = match request.parameter("limit") {
        "" => 0,
        limit => limit.parse().map_err(|error| Status::new(400, format!("limit {limit:?}: {error}")))?,
    };
    let mut chosen = chosen(&objects, request, &selector, after.as_ref());
    if let Some(Fault::Keep { items }) = fault {
        chosen.truncate(*items);
    }
    let left = if limit == 0 { 0 } else { chosen.len().saturating_sub(limit) };
    let mut metadata = json!({"resourceVersion": (revision + store.offset(resource)).to_string()});
    if left > 0 {
        chosen.truncate(limit);
        store.pin(resource, revision, objects.clone());
        let last = chosen.last().map(|(key, _)| *key);
        metadata["continue"] = token(revision, last).into();
        metadata["remainingItemCount"] = left.into();
    }
    Ok(body(resource, &metadata, &chosen, fault))
}

/// The selectors of a list or watch.
pub(crate) fn selector(resource: &Resource, request: &Request) -> Result<Selector, Status> {
    Selector::parse(resource, request.parameter("labelSelector"), request.parameter("fieldSelector"))
}

/// The objects that a request selects, in order.
pub(crate) fn chosen<'a>(
    objects: &'a Objects,
    request: &Request,
    selector: &Selector,
    after: Option<&Key>,
) -> Vec<(&'a Key, &'a Arc<Object>)> {
    let all = objects.iter().filter(|(key, _)| after.is_none_or(|after| *key > after));
    all.filter(|(key, object)| request.covers(&key.0, &key.1) && selector.matches(&object.value)).collect()
}

/// The objects to list, their revision, and the last key of the previous page.
fn start(store: &Store, resource: &'static Resource, request: &Request) -> Result<(Objects, u64, Option<Key>), Status> {
    let asked = store_revision(store, resource, revision(request.parameter("resourceVersion"))?);
    let token = request.parameter("continue");
    if !token.is_empty() {
        let (revision, key) = parse_token(token).ok_or_else(|| Status::new(400, "continue key is not valid"))?;
        let objects = store.pinned(resource, revision).ok_or_else(|| {
            Status::new(
                410,
                "The provided continue parameter is too old to display a consistent list result. You can start a new \
                 list without the continue parameter.",
            )
        })?;
        return Ok((objects, revision, Some(key)));
    }
    let current = store.revision();
    check_not_ahead(asked, current)?;
    if request.parameter("resourceVersionMatch") == "Exact" && asked != current {
        let objects = store.pinned(resource, asked).ok_or_else(|| Status::expired(asked, store.compacted()))?;
        return Ok((objects, asked, None));
    }
    Ok((store.objects(resource), current, None))
}

/// Returns 504 if the client requires a revision that does not exist yet.
pub(crate) fn check_not_ahead(asked: u64, current: u64) -> Result<(), Status> {
    if asked <= current {
        return Ok(());
    }
    let mut status =
        Status::new(504, format!("Too large resource version: {asked}, current: {current}")).retry_after(1);
    let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
    status.details = Some(json!({"causes": [cause]}));
    Err(status)
}

/// Converts a resourceVersion of a client to a revision of the store; 0 stays 0.
pub(crate) fn store_revision(store: &Store, resource: &Resource, asked: u64) -> u64 {
    if asked == 0 { 0 } else { asked.saturating_sub(store.offset(resource)).max(1) }
}

/// Parses a `resourceVersion`; 0 if empty.
pub(crate) fn revision(text: &str) -> Result<u64, Status> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|error| Status::new(400, format!("resourceVersion: Invalid value: {text:?}: {error}")))
}

fn token(revision: u64, last: Option<&Key>) -> String {
    URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": last}).to_string())
}

fn parse_token(token: &str) -> Option<(u64, Key)> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
    let value: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
    let part = |at: usize| value["start"][at].as_str().map(str::to_owned);
    Some((value["rv"].as_u64()?, (part(0)?, part(1)?)))
}

fn body(
    resource: &Resource,
    metadata: &serde_json::Value,
    chosen: &[(&Key, &Arc<Object>)],
    fault: Option<&Fault>,
) -> Bytes {
    let size: usize = chosen.iter().map(|(_, object)| object.bytes.len() + 1).sum();
    let mut body = Vec::with_capacity(size + 256);
    let head = format!(
        "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
        resource.kind,
        resource.api_version()
    );
    body.extend_from_slice(head.as_bytes());
    let garbage = match fault {
        Some(Fault::Garbage { bytes }) => Some(bytes.as_bytes()),
        _ => None,
    };
    let objects = chosen.iter().map(|(_, object)| object.bytes.as_ref());
    for (number, item) in garbage.into_iter().chain(objects).enumerate() {
        if number > 0 {
            body.push(b',');
        }
        body.extend_from_slice(item);
    }
    body.extend_from_slice(b"]}\n");
    body.into()
}

#[cfg(test)]
#[path = "tests/list.rs"]
mod tests;
