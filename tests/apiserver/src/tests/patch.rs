use serde_json::{Value, json};

use super::*;

fn merged(mut target: Value, patch: impl Into<Value>) -> Value {
    merge(&mut target, &patch.into());
    target
}

fn strategically(mut target: Value, patch: impl Into<Value>) -> Value {
    strategic(&mut target, &patch.into());
    target
}

/// The cases of RFC 7396, appendix A.
#[test]
fn merge_patch() {
    for (target, patch, result) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": "foo"}), json!(null), json!(null)),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ] {
        assert_eq!(merged(target, patch), result);
    }
}

#[test]
fn json_patch() {
    let mut target = json!({"a": {"x/y": 1}, "l": [1, 2]});
    let patch = json!([
        {"op": "test", "path": "/a/x~1y", "value": 1},
        {"op": "replace", "path": "/a/x~1y", "value": 2},
        {"op": "add", "path": "/l/0", "value": 0},
        {"op": "add", "path": "/l/-", "value": 3},
        {"op": "remove", "path": "/l/1"},
        {"op": "copy", "from": "/a", "path": "/b"},
        {"op": "move", "from": "/l", "path": "/c"},
    ]);
    json(&mut target, &patch).unwrap();
    assert_eq!(target, json!({"a": {"x/y": 2}, "b": {"x/y": 2}, "c": [0, 2, 3]}));
    for wrong in [
        json!([{"op": "test", "path": "/a", "value": 1}]),
        json!([{"op": "replace", "path": "/none", "value": 1}]),
        json!([{"op": "remove", "path": "/c/9"}]),
        json!([{"op": "add", "path": "/c/9", "value": 1}]),
        json!([{"op": "add", "path": "x", "value": 1}]),
        json!([{"op": "fly", "path": "/a"}]),
    ] {
        assert_eq!(json(&mut target, &wrong).unwrap_err().code, 422, "{wrong}");
    }
    assert_eq!(json(&mut target, &json!({})).unwrap_err().code, 400);
}

#[test]
fn ports_are_merged_by_their_number() {
    let service = json!({"spec": {"ports": [{"port": 80, "name": "http"}, {"port": 443, "name": "https"}]}});
    let patch = json!({"spec": {"ports": [{"port": 80, "targetPort": 8080}, {"port": 53}]}});
    assert_eq!(
        strategically(service.clone(), patch),
        json!({"spec": {"ports": [{"port": 80, "name": "http", "targetPort": 8080}, {"port": 53}, {"port": 443, "name": "https"}]}})
    );
    let patch = json!({"spec": {
        "$setElementOrder/ports": [{"port": 53}, {"port": 443}],
        "ports": [{"port": 80, "$patch": "delete"}, {"port": 53}],
    }});
    assert_eq!(
        strategically(service.clone(), patch),
        json!({"spec": {"ports": [{"port": 53}, {"port": 443, "name": "https"}]}})
    );
    let patch = json!({"spec": {"ports": [{"$patch": "replace"}, {"port": 1}]}});
    assert_eq!(strategically(service, patch), json!({"spec": {"ports": [{"port": 1}]}}));
}

#[test]
fn endpoints_are_replaced_as_a_whole() {
    let slice = json!({"endpoints": [{"addresses": ["192.0.2.1"]}], "ports": [{"port": 80}]});
    assert_eq!(
        strategically(slice.clone(), json!({"endpoints": []})),
        json!({"endpoints": [], "ports": [{"port": 80}]})
    );
    assert_eq!(strategically(slice, json!({"endpoints": null, "ports": null})), json!({}));
}

#[test]
fn directives() {
    let object =
        json!({"metadata": {"finalizers": ["a", "b"], "labels": {"x": "1", "y": "2"}}, "spec": {"a": 1, "b": 2}});
    let patch = json!({
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["a"],
            "finalizers": ["c"],
            "labels": {"$patch": "replace", "z": "3"},
        },
        "spec": {"$retainKeys": ["b", "c"], "c": 3},
    });
    assert_eq!(
        strategically(object, patch),
        json!({"metadata": {"finalizers": ["b", "c"], "labels": {"z": "3"}}, "spec": {"b": 2, "c": 3}})
    );
}
