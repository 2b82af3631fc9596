use super::*;

fn due<'a>(service: &'a ServiceName, count: u32, message: &'a str) -> Event<'a> {
    Event { service, reason: "BackendsHeld", message, name: "web.00", first: 1_700_000_000, count }
}

fn service() -> ServiceName {
    "shop/web".parse().unwrap()
}

#[test]
fn the_first_names_the_service_by_uid() {
    let about = Metadata { uid: "u-1".into(), resource_version: "7".into(), ..Metadata::default() };
    let reported = first(&due(&service(), 1, "held"), &about, "n1", 1_700_000_010);
    assert_eq!((reported.method, reported.path_and_query.as_str()), (Method::POST, "/api/v1/namespaces/shop/events"));
    let body: Value = serde_json::from_slice(&reported.body).unwrap();
    assert_eq!(body["involvedObject"]["uid"], "u-1");
    assert_eq!(body["firstTimestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(body["lastTimestamp"], "2023-11-14T22:13:30Z");
    assert_eq!(
        (&body["reason"], &body["type"], &body["count"]),
        (&json!("BackendsHeld"), &json!("Warning"), &json!(1))
    );
    assert_eq!(body["source"], json!({"component": "nodelb", "host": "n1"}));
}

#[test]
fn a_repetition_changes_the_count_and_when() {
    let reported = again(&due(&service(), 3, "held"), 1_700_000_310);
    assert_eq!((reported.method, reported.content_type), (Method::PATCH, "application/merge-patch+json"));
    assert_eq!(reported.path_and_query, "/api/v1/namespaces/shop/events/web.00");
    let body: Value = serde_json::from_slice(&reported.body).unwrap();
    assert_eq!(body, json!({"count": 3, "lastTimestamp": "2023-11-14T22:18:30Z", "message": "held"}));
}

#[test]
fn a_message_is_short_and_printable() {
    let reported = again(&due(&service(), 2, &format!("\u{1b}[31m{}", "ü".repeat(5_000))), 0);
    let body: Value = serde_json::from_slice(&reported.body).unwrap();
    let message = body["message"].as_str().unwrap();
    assert!(message.len() <= 1024 && message.starts_with("\u{fffd}[31müü"), "{}", message.len());
}
