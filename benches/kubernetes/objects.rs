//! The objects of a cluster, as their writers send them.

use serde_json::{Value, json};

pub(crate) fn name(number: u32) -> String {
    format!("service-{number:05}")
}

pub(crate) fn service(name: &str, address: &str) -> Value {
    json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"namespace": "production", "name": name,
            "labels": {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "shop", "team": "checkout"},
            "annotations": {"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": "production"}},
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "selector": {"app": name},
            "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}]}})
}

pub(crate) fn slice(service: &str, suffix: &str, endpoints: &[Value]) -> Value {
    json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"namespace": "production", "name": format!("{service}-{suffix}"),
            "labels": {"kubernetes.io/service-name": service, "app.kubernetes.io/name": service,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}},
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]})
}

pub(crate) fn endpoint(service: u32, place: u32) -> Value {
    let number = service * 101 + place;
    json!({"addresses": [format!("10.{}.{}.{}", 128 + number / 62_500, number / 250 % 250, 1 + number % 250)],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "nodeName": format!("node-{:03}", number % 500), "zone": format!("zone-{}", number % 3),
        "targetRef": {"kind": "Pod", "namespace": "production", "name": format!("{}-7d9c5b8f6-{place:05}", name(service)),
            "uid": format!("0b5a6c7e-0000-4000-8000-{number:012x}")}})
}
