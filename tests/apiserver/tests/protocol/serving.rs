//! The protocol over TLS, without faults.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use nodelb_apiserver::{Cluster, Patch, Replica, Role, ServeOptions, WatchList};
use serde_json::{Value, json};

use crate::client::{Client, TIMEOUT};

const SERVICES: &str = "/api/v1/services";

fn cluster() -> (Cluster, Replica, Client) {
    let cluster = Cluster::new().unwrap();
    let replica = cluster.serve_on_free_port().unwrap();
    let client = Client::admin(&cluster, replica.address());
    (cluster, replica, client)
}

fn service(name: &str) -> Value {
    json!({
        "kind": "Service", "apiVersion": "v1", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"ports": [{"port": 80}]},
    })
}

fn label(cluster: &Cluster, name: &str, value: &str) {
    let patch = json!({"metadata": {"labels": {"x": value}}});
    cluster.patch("services", "shop", name, &Patch::Merge(patch)).unwrap();
}

#[tokio::test]
async fn the_same_over_http1_and_http2() {
    let (cluster, _replica, client) = cluster();
    cluster.apply_value(service("web")).unwrap();
    for client in [client.clone(), client.http2()] {
        let (code, list) = client.get(SERVICES).await;
        assert_eq!((code, &list["kind"]), (200, &json!("ServiceList")));
        assert_eq!(list["metadata"]["resourceVersion"], cluster.revision().to_string());
        assert_eq!(list["items"][0]["metadata"]["name"], "web");
        assert_eq!(client.get("/readyz").await, (200, json!("ok")));
        let mut watch = client.watch("/api/v1/services?watch=true").await;
        assert_eq!(watch.event().await, "ADDED web");
    }
}

#[tokio::test]
async fn written_over_the_network() {
    let (cluster, _replica, client) = cluster();
    let services = "/api/v1/namespaces/shop/services";
    let (code, status) = client.write("POST", services, "application/json", &service("web")).await;
    assert_eq!((code, &status["reason"]), (404, &json!("NotFound")), "the namespace does not exist");
    let namespace = json!({"metadata": {"name": "shop"}});
    assert_eq!(client.write("POST", "/api/v1/namespaces", "application/json", &namespace).await.0, 201);
    assert_eq!(client.write("POST", services, "application/json", &service("web")).await.0, 201);
    let web = format!("{services}/web");
    let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]);
    let (code, object) = client.write("PATCH", &web, "application/json-patch+json", &patch).await;
    assert_eq!((code, &object["metadata"]["labels"]), (200, &json!({"a": "b"})));
    assert_eq!(object["metadata"]["managedFields"][0]["manager"], "tester");
    let (code, _) = client.write("PATCH", &web, "text/plain", &patch).await;
    assert_eq!(code, 415);
    let mut stale = object.clone();
    label(&cluster, "web", "1");
    stale["metadata"]["labels"] = json!({});
    assert_eq!(client.write("PUT", &web, "application/json", &stale).await.1["reason"], "Conflict");
    assert_eq!(client.write("DELETE", &web, "application/json", &json!({})).await.0, 200);
    assert_eq!(client.get(&web).await.0, 404);
}

#[tokio::test]
async fn pages_and_selectors() {
    let (cluster, _replica, client) = cluster();
    for name in ["a", "b", "c"] {
        cluster.apply_value(service(name)).unwrap();
    }
    let (_, first) = client.get("/api/v1/services?limit=2").await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = client.get(&format!("/api/v1/services?limit=2&continue={token}")).await;
    assert_eq!(second["items"][0]["metadata"]["name"], "c");
    cluster.compact();
    assert_eq!(client.get(&format!("/api/v1/services?continue={token}")).await.0, 410);
    let (code, refused) = client.get("/apis/discovery.k8s.io/v1/endpointslices?fieldSelector=spec.x%3D1").await;
    assert_eq!(code, 400);
    assert!(refused["message"].as_str().unwrap().contains("field label not supported: spec.x"), "{refused}");
    let (_, none) = client.get("/api/v1/services?fieldSelector=spec.clusterIP%3DNone").await;
    assert_eq!(none["items"], json!([]));
}

#[tokio::test]
async fn a_watch_from_a_revision() {
    let (cluster, _replica, client) = cluster();
    cluster.apply_value(service("a")).unwrap();
    let path = format!("{SERVICES}?watch=true&resourceVersion={}", cluster.revision());
    cluster.apply_value(service("b")).unwrap();
    let mut watch = client.watch(&path).await;
    assert_eq!(watch.event().await, "ADDED b");
    label(&cluster, "a", "1");
    cluster.delete("services", "shop", "b").unwrap();
    assert_eq!(watch.events(2).await, ["MODIFIED a", "DELETED b"]);
    cluster.compact();
    cluster.apply_value(service("c")).unwrap();
    assert_eq!(watch.event().await, "ADDED c", "a watch that runs does not mind compaction");
    let mut late = client.watch(&path).await;
    assert_eq!(late.events(2).await, ["ERROR 410", "the watch ended"]);
}

#[tokio::test]
async fn selected_events() {
    let (cluster, _replica, client) = cluster();
    cluster.apply_value(service("a")).unwrap();
    let mut watch = client.watch("/api/v1/services?watch=true&labelSelector=x%3D1").await;
    label(&cluster, "a", "1");
    label(&cluster, "a", "2");
    cluster.delete("services", "shop", "a").unwrap();
    cluster.apply_value(service("b")).unwrap();
    label(&cluster, "b", "1");
    assert_eq!(watch.events(3).await, ["ADDED a", "DELETED a", "ADDED b"]);
}

const STREAMED: &str = "/api/v1/services?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                        &allowWatchBookmarks=true&resourceVersion=0";

#[tokio::test]
async fn a_streamed_list() {
    let (cluster, replica, client) = cluster();
    cluster.apply_value(service("a")).unwrap();
    let mut watch = client.watch(STREAMED).await;
    assert_eq!(watch.events(2).await, ["ADDED a", "BOOKMARK true"]);
    cluster.apply_value(service("b")).unwrap();
    assert_eq!(watch.event().await, "ADDED b");

    replica.faults().behave(|behaviour| behaviour.watch_list = WatchList::Off);
    let (code, refused) = client.get(STREAMED).await;
    assert_eq!((code, &refused["reason"]), (422, &json!("Invalid")));

    replica.faults().behave(|behaviour| behaviour.watch_list = WatchList::Unsupported);
    let mut watch = client.watch(STREAMED).await;
    cluster.apply_value(service("c")).unwrap();
    assert_eq!(watch.events(3).await, ["ADDED a", "ADDED b", "ADDED c"]);
}

#[tokio::test]
async fn bookmarks_and_the_end_of_a_watch() {
    let (cluster, replica, client) = cluster();
    replica.faults().behave(|behaviour| behaviour.bookmarks = Some(Duration::from_millis(20)));
    let from = cluster.revision();
    let path = format!("{SERVICES}?watch=true&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion={from}");
    let mut watch = client.watch(&path).await;
    tokio::time::sleep(Duration::from_millis(60)).await;
    cluster.advance(5);
    let line = watch.line(TIMEOUT).await.unwrap().unwrap();
    let bookmark: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["metadata"]["resourceVersion"], (from + 5).to_string());
    assert_eq!(watch.line(TIMEOUT).await, Ok(None), "no further bookmark while nothing happens, then a clean end");
}

#[tokio::test]
async fn a_restored_cluster_sends_nothing_to_watches_of_later_revisions() {
    let (cluster, _replica, client) = cluster();
    let backup = cluster.backup();
    for name in ["a", "b", "c"] {
        cluster.apply_value(service(name)).unwrap();
    }
    let from = cluster.revision();
    cluster.restore_backup(&backup);
    assert_eq!((cluster.list("services").len(), cluster.revision() < from), (0, true));
    let mut watch = client.watch(&format!("{SERVICES}?watch=true&resourceVersion={from}")).await;
    cluster.apply_value(service("d")).unwrap();
    assert_eq!(watch.line(Duration::from_millis(100)).await, Err("silent".into()));
    assert_eq!(client.get(&format!("{SERVICES}?resourceVersion={from}")).await.0, 504);
}

#[tokio::test]
async fn authentication_and_authorization() {
    let (cluster, replica, _) = cluster();
    let anonymous = Client::new(&cluster, replica.address(), None);
    assert_eq!(anonymous.get("/readyz").await.0, 401);
    let token = cluster.token("nodelb").unwrap();
    let nodelb = anonymous.clone().token(&token);
    assert_eq!(nodelb.get(SERVICES).await.0, 200);
    let (code, refused) = nodelb.get("/api/v1/namespaces").await;
    assert_eq!((code, &refused["reason"]), (403, &json!("Forbidden")));
    cluster.allow("nodelb", Role::node_proxier().without("services"));
    assert_eq!(nodelb.get(SERVICES).await.0, 403);
    cluster.revoke_token(&token);
    assert_eq!(nodelb.get("/readyz").await.0, 401);
    assert_eq!(anonymous.token("wrong").get("/readyz").await.0, 401);
    let other = Cluster::new().unwrap().certificate("admin", &["system:masters"]).unwrap();
    let stranger = Client::new(&cluster, replica.address(), Some(&other));
    assert_eq!(stranger.get("/readyz").await.0, 401, "the handshake succeeds, as with an apiserver");
}

#[tokio::test]
async fn another_clusters_certificate() {
    let (cluster, _replica, _) = cluster();
    let identity = Cluster::new().unwrap().identity().clone();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stranger =
        cluster.serve(listener, ServeOptions { identity: Some(identity), ..ServeOptions::default() }).unwrap();
    let error = Client::admin(&cluster, stranger.address()).open("/readyz").await.unwrap_err();
    assert!(error.contains("certificate"), "{error}");
}

#[tokio::test]
async fn two_replicas_one_cluster_and_a_stop() {
    let (cluster, first, client) = cluster();
    let second = cluster.serve_on_free_port().unwrap();
    let mut watch = client.watch("/api/v1/services?watch=true").await;
    let other = Client::admin(&cluster, second.address());
    cluster.apply_value(service("a")).unwrap();
    assert_eq!(watch.event().await, "ADDED a");
    let address = first.address();
    first.stop();
    assert!(watch.line(TIMEOUT).await.is_err());
    assert!(client.open("/readyz").await.is_err());
    assert_eq!(other.get(SERVICES).await.1["items"].as_array().unwrap().len(), 1);
    let _again = cluster.serve(std::net::TcpListener::bind(address).unwrap(), ServeOptions::default()).unwrap();
    assert_eq!(client.get("/readyz").await.0, 200);
}

#[tokio::test]
async fn changes_without_events() {
    let (cluster, _replica, client) = cluster();
    let mut watch = client.watch("/api/v1/services?watch=true").await;
    cluster.without_events(|cluster| cluster.apply_value(service("a"))).unwrap();
    cluster.apply_value(service("b")).unwrap();
    assert_eq!(watch.event().await, "ADDED b");
    assert_eq!(cluster.list("services").len(), 2);
}

#[tokio::test]
async fn a_large_cluster_is_listed_quickly() {
    let (cluster, _replica, client) = cluster();
    let slice = |name: String, endpoints: usize| {
        let endpoints: Vec<Value> = (0..endpoints)
            .map(|it| json!({"addresses": [format!("192.0.2.{it}")], "conditions": {"ready": true}}))
            .collect();
        json!({
            "kind": "EndpointSlice", "metadata": {"name": name, "namespace": "shop"},
            "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 80}],
        })
    };
    for number in 0..10_000 {
        cluster.apply_value(service(&format!("s{number}"))).unwrap();
        cluster.apply_value(slice(format!("s{number}"), 1)).unwrap();
    }
    for number in 0..1000 {
        cluster.apply_value(slice(format!("large-{number}"), 100)).unwrap();
    }
    let client = client.http2();
    let begin = Instant::now();
    let mut bytes = 0;
    for path in [SERVICES, "/apis/discovery.k8s.io/v1/endpointslices"] {
        bytes += client.open(path).await.unwrap().into_body().collect().await.unwrap().to_bytes().len();
    }
    assert!(bytes > 10_000_000, "{bytes}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?} for {bytes} bytes", begin.elapsed());
}
