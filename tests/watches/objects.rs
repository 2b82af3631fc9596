//! The objects of the tests.

use serde_json::{Value, json};

/// A service in namespace `ns` at `198.51.100.<number>:80`.
pub(crate) fn service(name: &str, number: u64) -> Value {
    json!({"kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "ns", "name": name},
        "spec": {"clusterIP": format!("198.51.100.{number}"), "clusterIPs": [format!("198.51.100.{number}")],
            "ports": [{"port": 80, "targetPort": 8080}]}})
}

/// The slice `<service>-<slice>` of a service, with these backends on port 8080.
pub(crate) fn slice(service: &str, slice: u64, backends: &[String]) -> Value {
    let endpoints: Vec<Value> =
        backends.iter().map(|ip| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
    json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"namespace": "ns", "name": format!("{service}-{slice}"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "", "port": 8080, "protocol": "TCP"}]})
}

/// A service `s<number>` with the only backend `192.0.2.<number>`.
pub(crate) fn pair(number: u64) -> [Value; 2] {
    let name = format!("s{number}");
    [service(&name, number), slice(&name, 0, &[format!("192.0.2.{number}")])]
}

/// The address of the service with this number.
pub(crate) fn frontend(number: u64) -> String {
    format!("198.51.100.{number}:80/TCP")
}

/// The backend with this number.
pub(crate) fn backend(number: u64) -> String {
    format!("192.0.2.{number}:8080/TCP")
}
