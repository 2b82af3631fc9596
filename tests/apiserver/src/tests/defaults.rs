use super::*;
use crate::pools::Ranges;

fn stored(pools: &mut Pools, old: Option<&Value>, spec: impl Into<Value>) -> Result<Value, Status> {
    let mut new = json!({"kind": "Service", "metadata": {"name": "web"}, "spec": spec.into()});
    complete(Resource::find("services").unwrap(), old, &mut new, pools)?;
    Ok(new["spec"].clone())
}

fn pools() -> Pools {
    let ranges = ["10.96.0.0/16", "fd00::/112"].map(|range| range.parse().unwrap());
    Pools::new(Ranges { addresses: ranges.to_vec(), ports: 30000..=30002 })
}

#[test]
fn a_plain_service() {
    let spec = stored(&mut pools(), None, json!({"ports": [{"port": 80}]})).unwrap();
    assert_eq!(
        spec,
        json!({
            "type": "ClusterIP", "clusterIP": "10.96.0.17", "clusterIPs": ["10.96.0.17"], "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        })
    );
}

#[test]
fn addresses_differ_and_are_kept() {
    let mut pools = pools();
    let first = stored(&mut pools, None, json!({})).unwrap();
    let second = stored(&mut pools, None, json!({})).unwrap();
    assert_eq!((&first["clusterIP"], &second["clusterIP"]), (&json!("10.96.0.17"), &json!("10.96.0.18")));
    let again = stored(&mut pools, Some(&json!({"spec": first})), json!({})).unwrap();
    assert_eq!(again["clusterIP"], "10.96.0.17");
    let moved = stored(&mut pools, Some(&json!({"spec": first})), json!({"clusterIP": "10.96.0.99"})).unwrap_err();
    assert_eq!(moved.code, 422);
    let taken = stored(&mut pools, None, json!({"clusterIP": "10.96.0.18"})).unwrap_err();
    assert!(taken.message.contains("already allocated"), "{taken}");
    pools.release(&json!({"spec": second}));
    stored(&mut pools, None, json!({"clusterIP": "10.96.0.18"})).unwrap();
}

#[test]
fn both_families() {
    let spec = stored(&mut pools(), None, json!({"ipFamilyPolicy": "PreferDualStack"})).unwrap();
    assert_eq!(spec["clusterIPs"], json!(["10.96.0.17", "fd00::10"]));
    assert_eq!(spec["ipFamilies"], json!(["IPv4", "IPv6"]));
    let spec = stored(&mut pools(), None, json!({"clusterIP": "fd00::99"})).unwrap();
    assert_eq!(spec["ipFamilies"], json!(["IPv6"]));
}

#[test]
fn node_ports_are_allocated_and_kept() {
    let mut pools = pools();
    let ports = json!([{"port": 80}, {"port": 443, "nodePort": 30000}]);
    let spec = stored(&mut pools, None, json!({"type": "NodePort", "ports": ports})).unwrap();
    assert_eq!((&spec["ports"][0]["nodePort"], &spec["ports"][1]["nodePort"]), (&json!(30001), &json!(30000)));
    let again = stored(&mut pools, Some(&json!({"spec": spec})), json!({"type": "NodePort", "ports": [{"port": 80}]}));
    assert_eq!(again.unwrap()["ports"][0]["nodePort"], 30001);
    let taken = stored(&mut pools, None, json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30001}]}));
    assert_eq!(taken.unwrap_err().code, 422);
}

#[test]
fn others() {
    let headless = stored(&mut pools(), None, json!({"clusterIP": "None"})).unwrap();
    assert_eq!(headless["clusterIPs"], json!(["None"]));
    let name = stored(&mut pools(), None, json!({"type": "ExternalName", "externalName": "example.com"})).unwrap();
    assert!(name.get("clusterIP").is_none());
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]});
    let local = stored(&mut pools(), None, local).unwrap();
    assert_eq!((&local["ports"][0]["nodePort"], &local["healthCheckNodePort"]), (&json!(30000), &json!(30001)));
}

#[test]
fn a_slice_without_endpoints_says_null() {
    let slices = Resource::find("endpointslices").unwrap();
    let mut slice = json!({"kind": "EndpointSlice", "metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": []});
    complete(slices, None, &mut slice, &mut pools()).unwrap();
    assert_eq!((&slice["endpoints"], &slice["ports"]), (&Value::Null, &Value::Null));
    slice["addressType"] = Value::Null;
    assert_eq!(complete(slices, None, &mut slice, &mut pools()).unwrap_err().code, 422);
}
