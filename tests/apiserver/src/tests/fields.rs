use super::*;

fn owners(object: &Value) -> Vec<(String, Value)> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    entries.iter().map(|entry| (entry["manager"].as_str().unwrap().to_owned(), entry["fieldsV1"].clone())).collect()
}

#[test]
fn fields_change_hands() {
    let mut first = json!({"apiVersion": "v1", "metadata": {"name": "a"}, "spec": {"x": 1, "y": [1]}});
    record(None, &mut first, &Writer::new("kubectl"), "2026-01-01T00:00:00Z");
    assert_eq!(owners(&first), [("kubectl".into(), json!({"f:metadata": {}, "f:spec": {"f:x": {}, "f:y": {}}}))]);

    let mut second = first.clone();
    second["spec"]["y"] = json!([2]);
    record(Some(&first), &mut second, &Writer::new("controller"), "2026-01-01T00:00:01Z");
    assert_eq!(
        owners(&second),
        [
            ("kubectl".into(), json!({"f:metadata": {}, "f:spec": {"f:x": {}}})),
            ("controller".into(), json!({"f:spec": {"f:y": {}}})),
        ]
    );
    assert_eq!(second["metadata"]["managedFields"][1]["time"], "2026-01-01T00:00:01Z");
}

#[test]
fn removing_a_field_counts_as_a_write() {
    let mut first = json!({"apiVersion": "v1", "metadata": {}, "endpoints": [1]});
    record(None, &mut first, &Writer::new("a"), "2026-01-01T00:00:00Z");
    let mut second = first.clone();
    second.as_object_mut().unwrap().remove("endpoints");
    record(Some(&first), &mut second, &Writer::new("b"), "2026-01-01T00:00:01Z");
    assert_eq!(owners(&second).last().unwrap().0, "b");
}
