use super::*;

#[test]
fn services_and_slices() {
    let service = json!({
        "metadata": {"name": "web", "creationTimestamp": "2026-01-01T23:59:58Z"},
        "spec": {"type": "NodePort", "clusterIP": "10.96.0.1", "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}]},
    });
    let list = json!({"metadata": {"resourceVersion": "7"}, "items": [service]});
    let services = Resource::find("services").unwrap();
    let table = table(services, &list, "2026-01-02T00:00:01Z");
    assert_eq!(table["rows"][0]["cells"], json!(["web", "NodePort", "10.96.0.1", "<none>", "80:30080/TCP", "3s"]));
    assert_eq!(table["metadata"]["resourceVersion"], "7");
    assert!(is_wanted("application/json;as=Table;v=v1;g=meta.k8s.io,application/json"));
    assert!(!is_wanted("application/json"));
}
