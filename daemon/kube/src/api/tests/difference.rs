use serde_json::json;

use super::*;

fn reported(before: &Value, after: &Value) -> Vec<String> {
    let side = |side: &'static str, value: &Value| (!value.is_null()).then(|| (side, value.clone()));
    let (before, after) = (side("before", before), side("after", after));
    let (found, more) = differences(before.as_ref().map(|it| &it.1), after.as_ref().map(|it| &it.1));
    assert_eq!(more, 0);
    found.iter().map(ToString::to_string).collect()
}

fn slice(endpoints: &Value) -> Value {
    json!({
        "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "kubernetes", "namespace": "default", "resourceVersion": "1", "generation": 3},
        "endpoints": endpoints, "ports": [{"name": "https", "port": 60002, "protocol": "TCP"}],
    })
}

#[test]
fn the_missed_step_is_shown() {
    let full = slice(&json!([{"addresses": ["169.254.128.7"], "conditions": {"ready": true}}]));
    let mut null = slice(&Value::Null);
    null["ports"] = Value::Null;
    null["metadata"]["resourceVersion"] = "2".into();
    assert_eq!(
        reported(&full, &null),
        ["backends -169.254.128.7 (ready)", "endpoints: null", "ports -https=60002/TCP"]
    );
    assert_eq!(reported(&null, &full), ["backends +169.254.128.7 (ready)", "ports +https=60002/TCP"]);
    assert_eq!(reported(&full, &slice(&json!([]))), ["backends -169.254.128.7 (ready)", "endpoints: []"]);
    assert_eq!(reported(&Value::Null, &null), ["addressType +IPv4", "endpoints: null"]);
}

#[test]
fn an_update_of_an_annotation_is_one() {
    let before =
        json!({"metadata": {"annotations": {"synced": "10:00", "kept": "x"}, "resourceVersion": "5"}, "spec": {}});
    let mut after = before.clone();
    after["metadata"]["annotations"]["synced"] = "10:05".into();
    after["metadata"]["managedFields"] = json!([{"manager": "cloud"}]);
    let (found, _) = differences(Some(&before), Some(&after));
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), ["annotations ~synced"]);
    assert!(is_annotations_only(&found));
    after["spec"]["type"] = "LoadBalancer".into();
    let (found, _) = differences(Some(&before), Some(&after));
    assert!(!is_annotations_only(&found) && !is_annotations_only(&[]));
}

#[test]
fn states_ports_labels_and_addresses_are_reported() {
    let endpoint = |ready: bool, terminating: bool| {
        json!([{"addresses": ["10.1.0.1"], "conditions": {"ready": ready, "serving": true, "terminating": terminating},
                "targetRef": {"kind": "Pod", "name": "web-1"}, "nodeName": "n1"}])
    };
    assert_eq!(
        reported(&slice(&endpoint(true, false)), &slice(&endpoint(false, true))),
        ["backends 10.1.0.1 (ready, pod web-1, node n1) -> terminating, serving, pod web-1, node n1"]
    );
    let service = |port: u16, label: &str, ingress: &Value| {
        json!({
            "kind": "Service", "metadata": {"labels": {"app": label}},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": port, "targetPort": "web", "nodePort": 30080}]},
            "status": {"loadBalancer": {"ingress": ingress}},
        })
    };
    assert_eq!(
        reported(&service(80, "a", &Value::Null), &service(81, "b", &json!([{"ip": "10.15.1.8"}]))),
        [
            "labels app=a -> app=b",
            "spec.ports +http=81/TCP nodePort 30080 targetPort web",
            "spec.ports -http=80/TCP nodePort 30080 targetPort web",
            r#"status.loadBalancer.ingress +{"ip":"10.15.1.8"}"#,
        ]
    );
}

#[test]
fn differences_are_bounded_and_printable() {
    let many: Map<String, Value> = (0..500).map(|n| (format!("k{n:03}\u{1b}[31m"), Value::from("x"))).collect();
    let object = json!({"metadata": {"annotations": many}, "spec": {"a": "y".repeat(100_000)}});
    let (found, more) = differences(None, Some(&object));
    assert_eq!((found.len(), more), (MOST, 500 + 1 - MOST));
    assert!(found.iter().all(|difference| !difference.to_string().contains('\u{1b}')), "{found:?}");
    let long = json!({"spec": {"a": "y".repeat(100_000)}});
    assert!(reported(&Value::Null, &long)[0].len() < 2 * MAX_VALUE);
    let mut deep = json!("end");
    for _ in 0..100 {
        deep = json!({ "x": deep });
    }
    assert_eq!(differences(None, Some(&json!({ "spec": deep }))).0.len(), 1, "below a depth one difference");
    for odd in [json!([]), json!("x"), json!(7), json!({"metadata": [], "endpoints": {"a": 1}, "addressType": "IPv4"})]
    {
        differences(Some(&odd), Some(&slice(&odd)));
        differences(Some(&slice(&odd)), Some(&odd));
    }
}
