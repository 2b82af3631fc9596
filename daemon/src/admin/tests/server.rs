use std::sync::Arc;
use std::time::{Duration, Instant};

use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::FrontendKind;
use tokio::net::TcpStream;

use super::{LIMITS, STREAMS};
use crate::http::Limits;
use crate::status::{Check, Health};

#[path = "server/hostile.rs"]
mod hostile;
#[path = "server/rig.rs"]
mod rig;
#[path = "server/streams.rs"]
mod streams;

use rig::{NOW, limited, served, status};

#[tokio::test]
async fn the_list_names_every_route_and_each_answers_in_both_forms() {
    let server = served().await;
    let list = server.get("/?output=json").await;
    let body: serde_json::Value = serde_json::from_str(list.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let routes: Vec<&str> =
        body["routes"].as_array().unwrap().iter().map(|row| row["route"].as_str().unwrap()).collect();
    let expected = [
        "/",
        "/status",
        "/services",
        "/frontends",
        "/backends",
        "/maps",
        "/history",
        "/diff",
        "/trace",
        "/sources",
        "/apiservers",
        "/devices",
        "/connections",
        "/drops",
        "/packets",
        "/config",
        "/openapi.json",
        "/healthz",
        "/readyz",
        "/metrics",
    ];
    assert_eq!(routes, expected);
    for route in routes.into_iter().filter(|route| !["/metrics", "/openapi.json"].contains(route)) {
        let question = if route == "/trace" { "/trace?to=10.96.7.7:80".into() } else { format!("{route}?wide") };
        let text = server.get(&question).await;
        assert_eq!(status(&text), "200", "{text}");
        assert!(text.contains("content-type: text/plain; charset=utf-8"), "{text}");
        assert!(text.contains("x-content-type-options: nosniff"), "{text}");
        let json = server.with(&question, "Accept: application/json\r\n").await;
        assert!(json.contains("content-type: application/json"), "{json}");
        let body: serde_json::Value = serde_json::from_str(json.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert!(body.is_object(), "{json}");
        let forced = server.with(&format!("{question}&output=text"), "Accept: application/json\r\n").await;
        assert!(forced.contains("content-type: text/plain"), "{forced}");
    }
    server.stop().await;
}

#[tokio::test]
async fn metrics_have_their_own_form_and_no_parameters() {
    let server = served().await;
    let answer = server.with("/metrics", "Accept: application/json\r\n").await;
    assert_eq!(status(&answer), "200", "{answer}");
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    let filter = server.get("/metrics?output=json").await;
    assert!(filter.contains("unknown parameter `output`: /metrics takes none"), "{filter}");
    server.stop().await;
}

#[tokio::test]
async fn frontends_have_exactly_their_columns() {
    let server = served().await;
    let answer = server.get("/frontends").await;
    let heading = answer.lines().last().unwrap();
    assert_eq!(heading, "Address  Type  Service  Port  Backends  Flags  Outside  Status  Since  Error");
    server.stop().await;
}

#[tokio::test]
async fn wrong_questions_get_words_that_help() {
    let server = served().await;
    let unknown = server.get("/frontend").await;
    assert_eq!(status(&unknown), "404");
    assert!(unknown.contains("no route `/frontend`: there are / /status /services"), "{unknown}");
    let post = server.raw("POST /frontends HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(status(&post), "405");
    assert!(post.to_ascii_lowercase().contains("allow: get,head"), "{post}");
    assert!(post.contains("POST is not allowed: the API is read-only, use GET"), "{post}");
    let filter = server.get("/frontends?servce=shop/web").await;
    assert_eq!(status(&filter), "400");
    assert!(filter.contains("unknown parameter `servce`"), "{filter}");
    let json = server.with("/frontends?x=1", "Accept: application/json\r\n").await;
    assert!(json.contains("output=text|json"), "{json}");
    server.stop().await;
}

#[tokio::test]
async fn strangers_are_refused() {
    let server = served().await;
    let rebound = server.raw("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").await;
    assert_eq!(status(&rebound), "403");
    assert!(rebound.contains("nosniff"), "{rebound}");
    assert_eq!(status(&server.raw("GET / HTTP/1.1\r\n\r\n").await), "400");
    assert_eq!(status(&server.raw("GET / HTTP/1.0\r\n\r\n").await), "200");
    assert_eq!(status(&server.with("/", "Origin: http://localhost:9890\r\n").await), "403");
    assert_eq!(status(&server.with("/nowhere", "Sec-Fetch-Site: cross-site\r\n").await), "403");
    assert_eq!(status(&server.raw("CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n").await), "403");
    assert_eq!(status(&server.raw("\x16\x03\x01nonsense\r\n\r\n").await), "400");
    server.stop().await;
}

#[tokio::test]
async fn health_and_readiness_say_why_not() {
    let server = served().await;
    assert_eq!(status(&server.get("/readyz").await), "200");
    server.health.send_replace(Arc::new(Health { heartbeat: NOW, checks: Vec::new() }));
    assert_eq!(status(&server.get("/healthz").await), "200");
    let starting = server.get("/readyz").await;
    assert_eq!(status(&starting), "503");
    assert!(starting.contains("the first full reconcile is not complete"), "{starting}");
    server
        .health
        .send_replace(Arc::new(Health { heartbeat: Moment(0), checks: vec![Check::failed("links", "link gone")] }));
    let stuck = server.get("/healthz").await;
    assert_eq!(status(&stuck), "503");
    assert!(stuck.contains("has been stuck for 60 s"), "{stuck}");
    let unready = server.get("/readyz").await;
    assert!(unready.contains("link gone") && unready.contains("for 60 s"), "{unready}");
    server.stop().await;
}

#[tokio::test]
async fn unreadable_maps_are_an_answer() {
    let server = served().await;
    let _ = server.maps.send_replace(Err("map services: no such file".into()));
    let answer = server.get("/maps").await;
    assert_eq!(status(&answer), "503");
    assert!(answer.contains("cannot read the kernel maps: map services: no such file"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn a_header_too_large_is_refused() {
    let server = served().await;
    let huge = server.with("/", &format!("X-Large: {}\r\n", "a".repeat(64 * 1024))).await;
    assert!(["431", "none"].contains(&status(&huge)), "{huge}");
    let many = (0..100).map(|n| format!("X-{n}: a\r\n")).collect::<String>();
    assert_eq!(status(&server.with("/", &many).await), "431");
    assert_eq!(status(&server.get(&format!("/{}", "a".repeat(64 * 1024))).await), "431");
    assert_eq!(status(&server.get("/").await), "200");
    server.stop().await;
}

#[tokio::test]
async fn stop_does_not_wait_for_a_silent_client() {
    let server = limited(Limits { stop: Duration::from_millis(200), ..LIMITS }, STREAMS).await;
    let silent = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(status(&server.get("/").await), "200");
    let start = Instant::now();
    server.stop().await;
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    drop(silent);
}

/// The answers have exactly the keys that `/openapi.json` describes, with values of the described kinds.
#[tokio::test]
async fn every_answer_is_as_openapi_describes_it() {
    let mut server = served().await;
    let taken = rig::service("shop/late", "10.96.7.7:80", FrontendKind::Static);
    let web = rig::service("shop/web", "10.96.7.7:80", FrontendKind::ClusterIP);
    server.apply([web, rig::backends("shop/web", &["10.1.0.1:8080"]), taken, rig::synced()]);
    let body = |answer: String| -> serde_json::Value {
        serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap()
    };
    let document = body(server.get("/openapi.json").await);
    let mut tables = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let schema = &item["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        let Some(described) = schema["properties"].as_object() else { continue };
        let required = item["get"]["parameters"].as_array().unwrap().iter().any(|it| it["required"] == true);
        let query = if required { "&to=10.96.7.7:80" } else { "" };
        let answer = body(server.get(&format!("{path}?output=json{query}")).await);
        let answer = answer.as_object().unwrap();
        assert!(answer.keys().eq(described.keys()), "{path}: {answer:?}");
        for (name, table) in described {
            for row in answer[name].as_array().unwrap() {
                tables += 1;
                fits(row, &table["items"], path);
            }
        }
    }
    assert!(tables > 10);
    server.stop().await;
}

fn fits(row: &serde_json::Value, schema: &serde_json::Value, path: &str) {
    let (row, columns) = (row.as_object().unwrap(), schema["properties"].as_object().unwrap());
    assert!(row.keys().eq(columns.keys()), "{path}: {row:?}");
    for (key, value) in row {
        let kind = match value {
            serde_json::Value::Null => "null",
            serde_json::Value::Bool(_) => "boolean",
            serde_json::Value::Number(_) => "integer",
            serde_json::Value::String(_) => "string",
            serde_json::Value::Array(_) => "array",
            serde_json::Value::Object(_) => "object",
        };
        let column = &columns[key];
        let is_named = column["enum"].as_array().is_some_and(|words| words.contains(value));
        let types = column["type"].as_array().cloned().unwrap_or_else(|| vec![column["type"].clone()]);
        assert!(is_named || types.contains(&kind.into()), "{path}: {key} is {value}, described as {column}");
    }
}
