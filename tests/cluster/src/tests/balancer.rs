use super::*;

fn service(kind: &str, families: &[&str]) -> Value {
    json!({"metadata": {"uid": "1", "namespace": "a", "name": "b"}, "spec": {"type": kind, "ipFamilies": families}})
}

#[test]
fn a_service_gets_addresses_once() {
    let mut pool = Pool::default();
    let mut service = service("LoadBalancer", &["IPv4", "IPv6"]);
    let wanted = pool.wanted(&service);
    let ingress = json!([{"ip": "198.51.100.10"}, {"ip": "2001:db8:51::10"}]);
    assert_eq!(
        wanted.patches[0],
        Patch {
            path: "/api/v1/namespaces/a/services/b".to_owned(),
            body: json!({"metadata": {"finalizers": [FINALIZER]}})
        }
    );
    assert_eq!(wanted.patches[1].body, json!({"status": {"loadBalancer": {"ingress": ingress}}}));
    service["metadata"]["finalizers"] = json!([FINALIZER]);
    service["status"] = json!({"loadBalancer": {"ingress": ingress}});
    assert_eq!(pool.wanted(&service), Wanted { patches: vec![], addresses: wanted.addresses.clone() });
    // After a restart of the load balancer.
    assert_eq!(Pool::default().wanted(&service), Wanted { patches: vec![], addresses: wanted.addresses });
}

#[test]
fn services_have_different_addresses() {
    let mut pool = Pool::default();
    let mut other = service("LoadBalancer", &["IPv4"]);
    let first = pool.wanted(&other).addresses;
    other["metadata"]["uid"] = json!("2");
    assert_ne!(pool.wanted(&other).addresses, first);
}

#[test]
fn a_service_that_is_deleted_loses_its_finalizer_and_its_address() {
    let mut pool = Pool::default();
    let mut service = service("LoadBalancer", &["IPv4"]);
    pool.wanted(&service);
    service["metadata"]["finalizers"] = json!(["x", FINALIZER]);
    service["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let wanted = pool.wanted(&service);
    assert_eq!(
        wanted.patches.iter().map(|patch| &patch.body).collect::<Vec<_>>(),
        [&json!({"metadata": {"finalizers": ["x"]}})]
    );
    assert!(wanted.addresses.is_empty() && pool.used.is_empty());
}

#[test]
fn a_service_of_another_type_again_loses_its_status() {
    let mut pool = Pool::default();
    pool.wanted(&service("LoadBalancer", &["IPv4"]));
    let mut changed = service("ClusterIP", &["IPv4"]);
    assert_eq!(pool.wanted(&changed), Wanted::default());
    changed["metadata"]["finalizers"] = json!([FINALIZER]);
    changed["status"] = json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.10"}]}});
    let bodies = [json!({"status": {"loadBalancer": {"ingress": null}}}), json!({"metadata": {"finalizers": []}})];
    assert_eq!(pool.wanted(&changed).patches.iter().map(|patch| patch.body.clone()).collect::<Vec<_>>(), bodies);
}

#[test]
fn nodes_without_addresses_and_excluded_nodes_get_no_routes() {
    let node = |address: &str, label: &str| {
        json!({"metadata": {"labels": {label: ""}}, "status": {"addresses": [
            {"type": "InternalIP", "address": address}, {"type": "Hostname", "address": "node1"}]}})
    };
    let nodes =
        json!({"items": [node("10.89.0.11", "a"), node("10.89.0.12", EXCLUDED), {"metadata": {}, "status": {}}]});
    assert_eq!(node_addresses(&nodes), [vec!["10.89.0.11".parse::<IpAddr>().unwrap()]]);
}
