//! Tables, the default output of `kubectl get`. Only for lists and objects, not for watches.

use serde_json::{Value, json};

use crate::resource::Resource;

/// Reports whether a client prefers a table.
pub(crate) fn is_wanted(accept: &str) -> bool {
    accept.split(',').next().is_some_and(|first| first.contains("as=Table") && first.contains("v=v1;"))
}

/// A list or an object as a table.
pub(crate) fn table(resource: &Resource, answer: &Value, now: &str) -> Value {
    let one = std::slice::from_ref(answer);
    let items = answer["items"].as_array().map_or(one, Vec::as_slice);
    let names: &[&str] = match resource.kind {
        "Service" => &["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age"],
        "EndpointSlice" => &["Name", "AddressType", "Ports", "Endpoints", "Age"],
        _ => &["Name", "Age"],
    };
    let columns: Vec<Value> = names
        .iter()
        .map(|name| {
            let format = if *name == "Name" { "name" } else { "" };
            json!({"name": name, "type": "string", "format": format, "description": "", "priority": 0})
        })
        .collect();
    let rows: Vec<Value> =
        items.iter().map(|item| json!({"cells": cells(resource, item, now), "object": head(item)})).collect();
    let metadata = if answer["items"].is_array() { answer["metadata"].clone() } else { json!({}) };
    json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns, "rows": rows})
}

fn head(item: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": item["metadata"]})
}

fn cells(resource: &Resource, item: &Value, now: &str) -> Vec<String> {
    let spec = &item["spec"];
    let mut cells = vec![text(&item["metadata"]["name"])];
    match resource.kind {
        "Service" => {
            let ingress = list(&item["status"]["loadBalancer"]["ingress"], |it| text(&it["ip"]));
            let outside = [list(&spec["externalIPs"], text), ingress].concat();
            cells.extend([
                text(&spec["type"]),
                text(&spec["clusterIP"]),
                joined(&outside),
                joined(&list(&spec["ports"], service_port)),
            ]);
        }
        "EndpointSlice" => {
            let ports = list(&item["ports"], |port| text(&port["port"]));
            let addresses: Vec<String> = list(&item["endpoints"], |it| joined(&list(&it["addresses"], text)));
            cells.extend([text(&item["addressType"]), joined(&ports), joined(&addresses)]);
        }
        _ => {}
    }
    cells.push(age(&text(&item["metadata"]["creationTimestamp"]), now));
    cells
}

fn list(value: &Value, each: impl Fn(&Value) -> String) -> Vec<String> {
    value.as_array().into_iter().flatten().map(each).collect()
}

fn joined(parts: &[String]) -> String {
    if parts.is_empty() { "<none>".to_owned() } else { parts.join(",") }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<none>".to_owned(),
        other => other.to_string(),
    }
}

/// `80/TCP`, `80:30080/TCP`
fn service_port(port: &Value) -> String {
    let node = if port["nodePort"].is_null() { String::new() } else { format!(":{}", port["nodePort"]) };
    format!("{}{node}/{}", port["port"], text(&port["protocol"]))
}

/// The age, if both times are on the same day: a test cluster is never older.
fn age(then: &str, now: &str) -> String {
    let seconds = |time: &str| -> Option<u64> {
        let (_, clock) = time.strip_suffix('Z')?.split_once('T')?;
        clock.split(':').try_fold(0, |sum, part| Some(sum * 60 + part.parse::<u64>().ok()?))
    };
    match (seconds(then), seconds(now)) {
        (Some(then), Some(now)) => format!("{}s", (now + 86_400 - then) % 86_400),
        _ => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
