use std::sync::{Arc, Mutex};

use hyper::{Method, Request, Response};
use kube::client::Body;
use serde_json::Value;

use super::*;

/// What arrives at the apiserver: method, content type, path and body.
type Arrived = (Method, String, String, Value);

fn due<'a>(service: &'a ServiceName, count: u32, message: &'a str) -> Event<'a> {
    Event { service, reason: "BackendsHeld", message, name: "web.00", first: 1_700_000_000, count }
}

fn service() -> ServiceName {
    "shop/web".parse().unwrap()
}

/// Writes the Event to an apiserver with these Services, and returns the last request.
async fn written(due: &Event<'_>, now: u64, services: Value) -> (PostOutcome, Arrived) {
    let arrived = Arc::new(Mutex::new(None));
    let last = Arc::clone(&arrived);
    let client = kube::Client::new(
        tower::service_fn(move |request: Request<Body>| {
            let (last, services) = (Arc::clone(&last), services.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let content_type = head.headers.get("content-type").map_or("-", |it| it.to_str().unwrap()).to_owned();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let answer =
                    if head.method == Method::GET { json!({"metadata": {}, "items": services}) } else { body.clone() };
                *last.lock().unwrap() = Some((head.method, content_type, head.uri.path().to_owned(), body));
                Ok::<_, kube::Error>(Response::new(Body::from(answer.to_string().into_bytes())))
            }
        }),
        "default",
    );
    let reported = write(client, due, "n1", now).await.unwrap();
    let arrived = arrived.lock().unwrap().take().unwrap();
    (reported, arrived)
}

#[tokio::test]
async fn the_first_names_the_service_by_uid() {
    let about = json!([{"metadata": {"name": "web", "uid": "u-1", "resourceVersion": "7"}}]);
    let (reported, arrived) = written(&due(&service(), 1, "held"), 1_700_000_010, about).await;
    let (method, content_type, path, body) = arrived;
    assert_eq!(
        (reported, method, path.as_str()),
        (PostOutcome::Written, Method::POST, "/api/v1/namespaces/shop/events")
    );
    assert_eq!(content_type, "application/json");
    assert_eq!(body["involvedObject"]["uid"], "u-1");
    assert_eq!(body["firstTimestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(body["lastTimestamp"], "2023-11-14T22:13:30Z");
    assert_eq!(
        (&body["reason"], &body["type"], &body["count"]),
        (&json!("BackendsHeld"), &json!("Warning"), &json!(1))
    );
    assert_eq!(body["source"], json!({"component": "nodelb", "host": "n1"}));
}

#[tokio::test]
async fn a_service_that_no_longer_exists_gets_no_event() {
    let (reported, (method, ..)) = written(&due(&service(), 1, "held"), 1_700_000_010, json!([])).await;
    assert_eq!((reported, method), (PostOutcome::Moot, Method::GET));
}

#[tokio::test]
async fn a_repetition_changes_the_count_and_when() {
    let (_, arrived) = written(&due(&service(), 3, "held"), 1_700_000_310, json!([])).await;
    let (method, content_type, path, body) = arrived;
    assert_eq!((method, content_type.as_str()), (Method::PATCH, "application/merge-patch+json"));
    assert_eq!(path, "/api/v1/namespaces/shop/events/web.00");
    assert_eq!(body, json!({"count": 3, "lastTimestamp": "2023-11-14T22:18:30Z", "message": "held"}));
}

#[tokio::test]
async fn a_message_is_short_and_printable() {
    let long = format!("\u{1b}[31m{}", "ü".repeat(5_000));
    let (_, (.., body)) = written(&due(&service(), 2, &long), 0, json!([])).await;
    let message = body["message"].as_str().unwrap();
    assert!(message.len() <= 1024 && message.starts_with("\u{fffd}[31müü"), "{}", message.len());
}
