//! Defaulting, allocation and immutable fields: how an apiserver completes objects before it stores
//! them.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::pools::{Pools, addresses, ports};
use crate::resource::Resource;
use crate::status::Status;

/// Sets missing fields. `old` is the object that is replaced.
///
/// # Errors
/// 422: a field is missing, is immutable, or has a value that another object uses.
pub(crate) fn complete(
    resource: &Resource,
    old: Option<&Value>,
    new: &mut Value,
    pools: &mut Pools,
) -> Result<(), Status> {
    match resource.kind {
        "Service" => {
            if let Some(old) = old {
                pools.release(old);
            }
            let result = service(old, new, pools);
            pools.claim(if result.is_ok() { new } else { old.unwrap_or(&Value::Null) });
            result
        }
        "EndpointSlice" => slice(old, new),
        "Namespace" => {
            default(&mut new["spec"], "finalizers", json!(["kubernetes"]));
            default(&mut new["status"], "phase", json!("Active"));
            let name = new["metadata"]["name"].clone();
            default(&mut new["metadata"]["labels"], "kubernetes.io/metadata.name", name);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Sets a field that is missing, null or empty.
fn default(object: &mut Value, name: &str, value: Value) {
    if !object.is_object() {
        *object = json!({});
    }
    if is_empty(&object[name]) {
        object[name] = value;
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

fn invalid(object: &Value, field: &str, why: &str) -> Status {
    let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
    let (kind, name) = (kind.as_str().unwrap_or_default(), name.as_str().unwrap_or_default());
    Status::new(422, format!("{kind} {name:?} is invalid: {field}: {why}"))
}

/// Stores empty `endpoints` and `ports` as `null`, as an apiserver does.
fn slice(old: Option<&Value>, new: &mut Value) -> Result<(), Status> {
    for list in ["endpoints", "ports"] {
        if is_empty(&new[list]) {
            new[list] = Value::Null;
        }
    }
    if is_empty(&new["addressType"]) {
        return Err(invalid(new, "addressType", "Required value"));
    }
    if old.is_some_and(|old| old["addressType"] != new["addressType"]) {
        return Err(invalid(new, "addressType", "Invalid value: field is immutable"));
    }
    for port in new["ports"].as_array_mut().into_iter().flatten() {
        if port.is_object() {
            default(port, "protocol", json!("TCP"));
            if port["name"].is_null() {
                port["name"] = json!("");
            }
        }
    }
    Ok(())
}

fn service(old: Option<&Value>, new: &mut Value, pools: &mut Pools) -> Result<(), Status> {
    default(&mut new["spec"], "type", json!("ClusterIP"));
    default(&mut new["spec"], "sessionAffinity", json!("None"));
    if new["spec"]["sessionAffinity"] == "ClientIP" {
        default(&mut new["spec"]["sessionAffinityConfig"]["clientIP"], "timeoutSeconds", json!(10800));
    }
    if !new["status"].is_object() || is_empty(&new["status"]["loadBalancer"]) {
        default(&mut new["status"], "loadBalancer", json!({}));
    }
    let kind = new["spec"]["type"].as_str().unwrap_or_default().to_owned();
    if kind == "ExternalName" {
        return Ok(());
    }
    default(&mut new["spec"], "internalTrafficPolicy", json!("Cluster"));
    for port in new["spec"]["ports"].as_array_mut().into_iter().flatten() {
        if port.is_object() {
            let number = port["port"].clone();
            default(port, "protocol", json!("TCP"));
            default(port, "targetPort", number);
        }
    }
    cluster_addresses(old, new, pools)?;
    let outside = kind == "NodePort" || kind == "LoadBalancer";
    if outside {
        default(&mut new["spec"], "externalTrafficPolicy", json!("Cluster"));
    }
    if kind == "LoadBalancer" {
        default(&mut new["spec"], "allocateLoadBalancerNodePorts", json!(true));
    }
    let wanted = outside && new["spec"]["allocateLoadBalancerNodePorts"] != false;
    node_ports(old, new, pools, wanted)?;
    if kind == "LoadBalancer" && new["spec"]["externalTrafficPolicy"] == "Local" {
        let before = old.map_or(Value::Null, |old| old["spec"]["healthCheckNodePort"].clone());
        let port = if before.is_null() { pools.port()?.into() } else { before };
        default(&mut new["spec"], "healthCheckNodePort", port);
    }
    Ok(())
}

/// Keeps, validates or allocates the cluster IPs, and sets `ipFamilies`.
fn cluster_addresses(old: Option<&Value>, new: &mut Value, pools: &mut Pools) -> Result<(), Status> {
    let spec = &mut new["spec"];
    if is_empty(&spec["clusterIP"]) && !is_empty(&spec["clusterIPs"]) {
        spec["clusterIP"] = spec["clusterIPs"][0].clone();
    }
    if let Some(before) = old.map(|old| &old["spec"]).filter(|before| !is_empty(&before["clusterIP"])) {
        default(spec, "clusterIP", before["clusterIP"].clone());
        if spec["clusterIP"] == before["clusterIP"] {
            default(spec, "clusterIPs", before["clusterIPs"].clone());
        } else {
            return Err(invalid(new, "spec.clusterIPs[0]", "Invalid value: may not change once set"));
        }
    }
    if spec["clusterIP"] == "None" {
        spec["clusterIPs"] = json!(["None"]);
        default(spec, "ipFamilies", json!(["IPv4"]));
        default(spec, "ipFamilyPolicy", json!("SingleStack"));
        return Ok(());
    }
    if !is_empty(&spec["clusterIP"]) {
        let first = json!([spec["clusterIP"]]);
        default(spec, "clusterIPs", first);
    }
    for address in addresses(new) {
        if pools.has_address(address) {
            let why = format!(
                "Invalid value: [\"{address}\"]: failed to allocate IP {address}: provided IP is already allocated"
            );
            return Err(invalid(new, "spec.clusterIPs", &why));
        }
    }
    let families = families(new, pools);
    let mut given = addresses(new);
    for v6 in &families {
        if !given.iter().any(|address| address.is_ipv6() == *v6) {
            given.push(pools.address(*v6)?);
        }
    }
    let name = |v6: bool| if v6 { "IPv6" } else { "IPv4" };
    let spec = &mut new["spec"];
    spec["clusterIP"] = given.first().map(IpAddr::to_string).into();
    spec["clusterIPs"] = given.iter().map(IpAddr::to_string).collect();
    spec["ipFamilies"] = given.iter().map(|address| name(address.is_ipv6())).collect();
    default(spec, "ipFamilyPolicy", json!(if given.len() > 1 { "RequireDualStack" } else { "SingleStack" }));
    Ok(())
}

/// The IP families of a service, the primary one first; `true` is IPv6.
fn families(service: &Value, pools: &Pools) -> Vec<bool> {
    let spec = &service["spec"];
    let mut wanted: Vec<bool> = addresses(service).iter().map(IpAddr::is_ipv6).collect();
    if wanted.is_empty() {
        wanted = spec["ipFamilies"].as_array().into_iter().flatten().map(|family| family == "IPv6").collect();
    }
    let mut all = pools.ranges.addresses.iter().map(|range| range.addr().is_ipv6());
    if wanted.is_empty() {
        wanted.extend(all.clone().next());
    }
    let dual = matches!(spec["ipFamilyPolicy"].as_str(), Some("PreferDualStack" | "RequireDualStack"));
    if dual && let Some(second) = all.find(|v6| !wanted.contains(v6)) {
        wanted.push(second);
    }
    wanted
}

/// Keeps, validates, allocates or releases the node ports.
fn node_ports(old: Option<&Value>, new: &mut Value, pools: &mut Pools, wanted: bool) -> Result<(), Status> {
    if let Some(port) = ports(new).into_iter().find(|port| pools.has_port(*port)) {
        let why = format!("Invalid value: {port}: provided port is already allocated");
        return Err(invalid(new, "spec.ports[0].nodePort", &why));
    }
    pools.claim(new);
    let before: Vec<Value> =
        old.and_then(|old| old["spec"]["ports"].as_array()).map(|ports| ports.to_vec()).unwrap_or_default();
    for port in new["spec"]["ports"].as_array_mut().into_iter().flatten() {
        if !wanted || !port.is_object() {
            continue;
        }
        let same = before.iter().find(|it| it["port"] == port["port"] && it["protocol"] == port["protocol"]);
        if port["nodePort"].as_u64().unwrap_or(0) == 0 {
            port["nodePort"] = match same.map(|it| it["nodePort"].clone()) {
                Some(number) if !number.is_null() => number,
                _ => pools.port()?.into(),
            };
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "tests/defaults.rs"]
mod tests;
