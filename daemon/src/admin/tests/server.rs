use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::FrontendKind;
use tokio::net::TcpStream;

use super::{LIMITS, STREAMS};
use crate::admin::routes::ROUTES;
use crate::admin::{accept, drain};
use crate::http::ServerLimits;
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
    let expected: Vec<&str> = ROUTES.iter().map(|route| route.path).chain([drain::PATH, accept::PATH]).collect();
    assert_eq!(routes, expected);
    let others = ["/metrics", "/openapi.json", drain::PATH, accept::PATH];
    for route in routes.into_iter().filter(|route| !others.contains(route)) {
        let question = if route == "/trace" { "/trace?to=10.96.7.7:80".into() } else { format!("{route}?output=text") };
        let text = server.get(&question).await;
        assert_eq!(status(&text), "200", "{text}");
        assert!(text.contains("content-type: text/plain; charset=utf-8"), "{text}");
        assert!(text.contains("x-content-type-options: nosniff"), "{text}");
        let json = server.with(question.trim_end_matches("?output=text"), "Accept: application/json\r\n").await;
        assert!(json.contains("content-type: application/json"), "{json}");
        let body: serde_json::Value = serde_json::from_str(json.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert!(body.is_object(), "{json}");
        let forced = match route {
            "/trace" => server.with(&format!("{question}&output=text"), "Accept: application/json\r\n").await,
            _ => server.with(&question, "Accept: application/json\r\n").await,
        };
        assert!(forced.contains("content-type: text/plain"), "{forced}");
    }
    server.stop().await;
}

#[tokio::test]
async fn metrics_have_their_own_form_and_no_parameters() {
    let server = served().await;
    let answer = server.with("/metrics", "Accept: application/json\r\n").await;
    assert_eq!(status(&answer), "200", "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{answer}");
    assert!(answer.contains("# TYPE nodelb_reconciles_total counter\n") && !answer.contains("# EOF"), "{answer}");
    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4\r\n";
    let answer = server.with("/metrics", accept).await;
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
    assert_eq!(heading, "No frontends found.");
    server.stop().await;
}

#[tokio::test]
async fn wrong_questions_get_words_that_help() {
    let server = served().await;
    let unknown = server.get("/frontend").await;
    assert_eq!(status(&unknown), "404");
    assert!(unknown.contains("no route `/frontend`: did you mean /frontends?"), "{unknown}");
    let slash = server.get("/frontends/").await;
    assert!(slash.contains("no route `/frontends/`: did you mean /frontends?"), "{slash}");
    let nothing = server.get("/nothing").await;
    assert!(nothing.contains("no route `/nothing`: there are / /status /services"), "{nothing}");
    let parameter = server.get("/frontends?servce=shop/web").await;
    assert!(parameter.contains("unknown parameter `servce`: did you mean `service`?"), "{parameter}");
    let post = server.raw("POST /frontends HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(status(&post), "405");
    assert!(post.to_ascii_lowercase().contains("allow: get,head"), "{post}");
    assert!(post.contains("POST is not allowed here: use GET"), "{post}");
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
    server.health.send_replace(Arc::new(Health::unchecked(NOW)));
    let healthy = server.get("/healthz").await;
    assert!(status(&healthy) == "200" && healthy.ends_with("\r\n\r\nok\n"), "{healthy}");
    let verbose = server.get("/healthz?verbose").await;
    assert!(verbose.contains("Check") && verbose.contains("loop"), "{verbose}");
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
    let never = Duration::from_secs(3_600);
    let limits = ServerLimits { stop: Duration::from_millis(200), header: never, total: None, stuck: never, ..LIMITS };
    let server = limited(limits, STREAMS).await;
    let silent = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(status(&server.get("/").await), "200");
    tokio::time::timeout(Duration::from_secs(60), server.stop()).await.expect("no wait for the silent client");
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
    let mut objects = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let schema = &item["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        if schema["$ref"].is_null() {
            continue;
        }
        let required = item["get"]["parameters"].as_array().unwrap().iter().any(|it| it["required"] == true);
        let query = if required { "&to=10.96.7.7:80" } else { "" };
        let answer = body(server.get(&format!("{path}?output=json{query}")).await);
        fits(&answer, schema, &document, path);
        objects += 1;
    }
    assert!(objects > 10);
    server.stop().await;
}

/// Checks the keys and the kinds of values.
fn fits(value: &serde_json::Value, schema: &serde_json::Value, document: &serde_json::Value, path: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        return fits(value, document.pointer(&reference[1..]).unwrap(), document, path);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(some) = schema[key].as_array() {
            let is_null = |it: &&serde_json::Value| it["type"] == "null";
            let is_word = |it: &serde_json::Value| it["const"] == *value;
            match some.iter().find(|it| !is_null(it) && it["$ref"].is_string()) {
                Some(_) if value.is_null() => assert!(some.iter().any(|it| is_null(&it)), "{path}: null"),
                Some(other) => fits(value, other, document, path),
                None => {
                    let words = |it: &serde_json::Value| it["enum"].as_array().is_some_and(|them| them.contains(value));
                    assert!(some.iter().any(|it| is_word(it) || words(it)), "{path}: {value} is not one of {schema}");
                }
            }
            return;
        }
    }
    let kind = match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "boolean",
        serde_json::Value::Number(number) if number.is_f64() => "number",
        serde_json::Value::Number(_) => "integer",
        serde_json::Value::String(_) => "string",
        serde_json::Value::Array(_) => "array",
        serde_json::Value::Object(_) => "object",
    };
    let types = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    assert!(types.contains(&kind.into()), "{path}: {value} is described as {schema}");
    match value {
        serde_json::Value::Object(fields) => {
            let properties = schema["properties"].as_object();
            for (key, field) in fields {
                let described = properties.and_then(|it| it.get(key)).unwrap_or(&schema["additionalProperties"]);
                assert!(!described.is_null(), "{path}: {key} is not described");
                if described.is_object() {
                    fits(field, described, document, path);
                }
            }
            for key in properties.into_iter().flat_map(|it| it.keys()) {
                assert!(fields.contains_key(key), "{path}: {key} is missing");
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|it| fits(it, &schema["items"], document, path)),
        _ => {}
    }
}
