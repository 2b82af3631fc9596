use serde_json::json;

use super::*;

fn slice() -> Value {
    json!({
        "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "kubernetes", "namespace": "default", "resourceVersion": "8812", "generation": 4,
            "managedFields": [
                {"manager": "first", "time": "2026-01-01T00:00:00Z"}, {"manager": "kube-apiserver", "time": "2026-01-01T00:00:09Z"},
            ],
        },
        "endpoints": null, "ports": null,
    })
}

#[test]
fn a_line_says_who_what_and_which_version() {
    let mut before = slice();
    before["endpoints"] = json!([{"addresses": ["169.254.128.7"]}]);
    let event = Event::between("EndpointSlice", Some(&before), Some(&slice()), false);
    let line = Line::event(Time(1_700_000_000_007), event);
    assert_eq!(
        line.to_text(),
        "2023-11-14T22:13:20.007Z EndpointSlice default/kubernetes MODIFIED rv=8812 gen=4 by=kube-apiserver: backends \
         -169.254.128.7 (ready); endpoints: null\n"
    );
    let json: Value = serde_json::from_str(&line.to_json().unwrap()).unwrap();
    assert_eq!(json["writer"], "kube-apiserver");
    assert_eq!(json["differences"][1]["field"], "endpoints: null");
    assert_eq!(
        (&json["event"], &json["generation"], &json["annotations_only"]),
        (&json!("MODIFIED"), &json!(4), &json!(false))
    );
}

#[test]
fn an_annotation_only_update_is_shown_as_such() {
    let mut after = slice();
    after["metadata"]["annotations"] = json!({"synced": "now"});
    let event = Event::between("EndpointSlice", Some(&slice()), Some(&after), false);
    assert!(event.reported().ends_with(": only annotations: annotations +synced"), "{}", event.reported());
    let event = Event::between("EndpointSlice", Some(&slice()), Some(&slice()), false);
    assert!(event.reported().ends_with(": no relevant difference"), "{}", event.reported());
}

#[test]
fn a_notice_is_distinguishable() {
    let line = Line::notice(Time(0), "lost".into());
    assert_eq!(line.to_text(), "1970-01-01T00:00:00.000Z # lost\n");
    assert_eq!(line.to_json().unwrap(), "{\"at\":\"1970-01-01T00:00:00.000Z\",\"notice\":\"lost\"}\n");
}
