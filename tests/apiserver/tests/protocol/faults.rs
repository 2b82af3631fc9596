//! Every fault as a client sees it, and its end.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use nodelb_apiserver::{Cluster, EventFault, Fault, On, Patch, Replica};
use serde_json::json;

use crate::client::{Client, Lines, TIMEOUT};

const SERVICES: &str = "/api/v1/services";
const MOMENT: Duration = Duration::from_millis(100);

fn cluster() -> (Cluster, Replica, Client) {
    let cluster = Cluster::new().unwrap();
    for name in ["a", "b"] {
        let object = json!({"kind": "Service", "metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
        cluster.apply_value(object).unwrap();
    }
    let replica = cluster.serve_on_free_port().unwrap();
    let client = Client::admin(&cluster, replica.address());
    (cluster, replica, client)
}

fn touch(cluster: &Cluster, name: &str) {
    let patch = json!({"metadata": {"annotations": {"at": cluster.revision().to_string()}}});
    cluster.patch("services", "default", name, &Patch::Merge(patch)).unwrap();
}

async fn watch(client: &Client, cluster: &Cluster) -> Lines {
    client
        .watch(&format!("{SERVICES}?watch=true&allowWatchBookmarks=true&resourceVersion={}", cluster.revision()))
        .await
}

#[tokio::test]
async fn statuses() {
    let (cluster, replica, client) = cluster();
    let busy = Fault::Status { code: 429, retry_after: Some(7) };
    replica.faults().answer_next(1, On::list("services"), busy);
    let response = client.open(SERVICES).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (429, "7"));
    assert_eq!(client.get(SERVICES).await.0, 200);
    replica.faults().not_ready();
    assert_eq!((client.get("/readyz").await.0, client.get("/livez").await.0), (503, 200));
    replica.faults().answer(On::resource("endpointslices"), Fault::Status { code: 403, retry_after: None });
    assert_eq!(client.get("/apis/discovery.k8s.io/v1/endpointslices").await.0, 403);
    assert_eq!(client.get(SERVICES).await.0, 200);
    replica.faults().clear();
    assert_eq!(client.get("/readyz").await.0, 200);
    replica.faults().answer_next(1, On::watch("services"), Fault::ErrorEvent { code: 410 });
    assert_eq!(watch(&client, &cluster).await.events(2).await, ["ERROR 410", "the watch ended"]);
    replica.faults().behave(|behaviour| behaviour.expired_as_status = true);
    cluster.compact();
    assert_eq!(client.get(&format!("{SERVICES}?watch=true&resourceVersion=1")).await.0, 410);
    assert!(replica.faults().take_requests().contains(&"GET /readyz".to_owned()));
}

#[tokio::test]
async fn faulty_lists() {
    let (_cluster, replica, client) = cluster();
    for client in [client.clone(), client.http2()] {
        replica.faults().answer_next(1, On::list("services"), Fault::Keep { items: 0 });
        assert_eq!(client.get(SERVICES).await.1["items"], json!([]));
        replica.faults().answer_next(1, On::list("services"), Fault::Cut { after: 100 });
        let mut body = client.open(SERVICES).await.unwrap().into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 100);
        assert!(body.frame().await.unwrap().is_err());
        replica.faults().answer_next(1, On::list("services"), Fault::Truncate { after: 100 });
        let body = client.open(SERVICES).await.unwrap().into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes().len(), 100);
        replica.faults().answer_next(1, On::list("services"), Fault::Garbage { bytes: "{\"spec\":[]}".into() });
        assert_eq!(client.get(SERVICES).await.1["items"].as_array().unwrap().len(), 3);
    }
}

#[tokio::test]
async fn faulty_events() {
    let (cluster, replica, client) = cluster();
    let faults = replica.faults();
    let mut stream = watch(&client, &cluster).await;
    faults.events_next(1, "services", EventFault::Duplicate);
    touch(&cluster, "a");
    assert_eq!(stream.events(2).await, ["MODIFIED a", "MODIFIED a"]);
    faults.events_next(1, "services", EventFault::Swap);
    touch(&cluster, "a");
    touch(&cluster, "b");
    assert_eq!(stream.events(2).await, ["MODIFIED b", "MODIFIED a"]);
    faults.events_next(1, "services", EventFault::Garbage { bytes: "nonsense".into() });
    touch(&cluster, "a");
    assert_eq!(stream.events(2).await, ["nonsense\n", "MODIFIED a"]);
    faults.events_next(1, "services", EventFault::Error { code: 500 });
    touch(&cluster, "a");
    assert_eq!(stream.events(2).await, ["ERROR 500", "the watch ended"]);

    let mut stream = watch(&client, &cluster).await;
    faults.events_next(1, "services", EventFault::Cut { after: 10 });
    touch(&cluster, "a");
    let error = stream.line(TIMEOUT).await.unwrap_err();
    assert!(error.contains("{\\\"type\\\":\\\""), "{error}");
}

#[tokio::test]
async fn a_silent_stream() {
    let (cluster, replica, client) = cluster();
    let path = format!("{SERVICES}?watch=true&resourceVersion={}", cluster.revision());
    let mut stream = client.watch(&path).await;
    replica.faults().events_next(1, "services", EventFault::Silence);
    touch(&cluster, "a");
    touch(&cluster, "b");
    assert_eq!(stream.line(MOMENT).await, Err("silent".into()));
    assert_eq!(client.watch(&path).await.events(2).await, ["MODIFIED a", "MODIFIED b"]);
}

#[tokio::test]
async fn all_watches_are_ended() {
    let (cluster, replica, client) = cluster();
    let (mut first, mut second) = (watch(&client, &cluster).await, watch(&client, &cluster).await);
    replica.faults().expire_watches();
    assert_eq!(first.events(2).await, ["ERROR 410", "the watch ended"]);
    assert_eq!(second.events(2).await, ["ERROR 410", "the watch ended"]);
    let mut third = watch(&client, &cluster).await;
    replica.faults().end_watches();
    assert_eq!(third.event().await, "the watch ended");
}

#[tokio::test]
async fn refused_and_reset() {
    let (cluster, replica, client) = cluster();
    let mut stream = watch(&client, &cluster).await;
    replica.faults().refuse(true);
    tokio::time::sleep(MOMENT).await;
    assert!(client.open(SERVICES).await.unwrap_err().contains("refused"));
    touch(&cluster, "a");
    assert_eq!(stream.event().await, "MODIFIED a", "connections that were made go on");
    replica.faults().refuse(false);
    tokio::time::sleep(MOMENT).await;
    assert_eq!(client.get(SERVICES).await.0, 200);
    replica.faults().reset_connections();
    assert!(stream.line(TIMEOUT).await.is_err());
    replica.faults().reset_after(100, 1);
    assert!(client.open(SERVICES).await.is_err());
    assert_eq!(client.get(SERVICES).await.0, 200);
}

#[tokio::test]
async fn frozen_and_black_holed() {
    let (cluster, replica, client) = cluster();
    let mut stream = watch(&client, &cluster).await;
    replica.faults().black_hole(true);
    assert!(tokio::time::timeout(MOMENT, client.open(SERVICES)).await.is_err());
    touch(&cluster, "a");
    assert_eq!(stream.event().await, "MODIFIED a");
    replica.faults().black_hole(false);
    replica.faults().freeze(true);
    touch(&cluster, "b");
    assert_eq!(stream.line(MOMENT).await, Err("silent".into()));
    assert!(tokio::time::timeout(MOMENT, client.open(SERVICES)).await.is_err());
    replica.faults().clear();
    assert_eq!(stream.event().await, "MODIFIED b");
    assert_eq!(client.get(SERVICES).await.0, 200);
    replica.faults().answer_next(1, On::list("services"), Fault::Stall);
    assert!(tokio::time::timeout(MOMENT, client.open(SERVICES)).await.is_err());
}

#[tokio::test]
async fn slow() {
    let (_cluster, replica, client) = cluster();
    replica.faults().slow(500, Duration::from_millis(20));
    let begin = Instant::now();
    assert_eq!(client.get(SERVICES).await.0, 200);
    assert!(begin.elapsed() > Duration::from_millis(60), "{:?}", begin.elapsed());
}
