use std::time::Instant;

use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, DeleteParams, ListParams, PostParams};

use super::*;
use crate::apiserver::connection::link::tests::open;
use crate::apiserver::connection::link::tests::server::{Answer, Served, Serving, huge, stream, whole};
use crate::apiserver::credentials::login::tests::Authority;

/// Long enough for a megabyte on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(3);

const MAX: usize = 1 << 20;

const LIST: &str = r#"{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"web","uid":"u-1"}}]}"#;

fn services(link: &Arc<Link>) -> Api<Service> {
    Api::namespaced(over(link, TIMEOUT, MAX), "shop")
}

async fn listed(link: &Arc<Link>) -> Result<Vec<Option<String>>, LinkError> {
    let found = services(link).list(&ListParams::default()).await?;
    Ok(found.items.into_iter().map(|service| service.metadata.name).collect())
}

#[tokio::test]
async fn objects_are_listed_and_written_with_the_credentials_of_the_link() {
    for protocol in ["h2", "http/1.1"] {
        let authority = Authority::new();
        let serving = Serving::start(&authority, &[protocol], |request| {
            assert_eq!(request.headers()["authorization"], "Bearer abc");
            match request.method().as_str() {
                "GET" => whole(200, LIST),
                "POST" => whole(201, r#"{"metadata":{"name":"made"}}"#),
                other => whole(409, &format!(r#"{{"kind":"Status","message":"no {other}"}}"#)),
            }
        });
        let link = open(&serving, &authority).await;
        assert_eq!(listed(&link).await, Ok(vec![Some("web".into())]));
        let made = services(&link).create(&PostParams::default(), &Service::default()).await.unwrap();
        assert_eq!(made.metadata.name.as_deref(), Some("made"));
        let error = services(&link).delete("web", &DeleteParams::default()).await.unwrap_err();
        assert_eq!(LinkError::from(error), LinkError::Status { code: 409, message: "no DELETE".into() });
    }
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_given_up_early() {
    let kinds: [fn() -> Answer; 3] = [|| stream("{"), || huge(200), || huge(503)];
    for (kind, expected) in kinds.into_iter().zip([
        "timeout: the answer of AT to /api/v1/namespaces/shop/services is not complete within 3s",
        "the connection broke: the answer of AT to /api/v1/namespaces/shop/services: length limit exceeded",
        "503: the error message is too long",
    ]) {
        let authority = Authority::new();
        let serving = Serving::start(&authority, &["h2"], move |_| kind());
        let link = open(&serving, &authority).await;
        let start = Instant::now();
        let error = listed(&link).await.unwrap_err().to_string();
        assert_eq!(error, expected.replace("AT", &serving.at.to_string()));
        assert!(start.elapsed() < 2 * TIMEOUT, "{error}");
    }
}

#[tokio::test]
async fn an_answer_of_something_else_is_an_error() {
    for body in ["", "<html>", "{}", r#"{"items":[{"metadata":"x"}]}"#] {
        let authority = Authority::new();
        let serving = Serving::start(&authority, &["h2"], move |_| whole(200, body));
        let error = listed(&open(&serving, &authority).await).await.unwrap_err().to_string();
        assert!(error.starts_with("the connection broke: it does not answer like an apiserver: "), "{error}");
    }
}

#[tokio::test]
async fn a_client_neither_keeps_nor_outlives_its_link() {
    let authority = Authority::new();
    let serving = Serving::begin(&authority, &["h2"], |request| match request.uri().query() {
        Some("&limit=1") => Served::Answer(stream("{")),
        _ => Served::Answer(whole(200, LIST)),
    });
    let link = open(&serving, &authority).await;
    let services = services(&link);
    services.list(&ListParams::default()).await.unwrap();
    let one = ListParams::default().limit(1);
    let reading = services.list(&one);
    let dropping = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(link);
    };
    let start = Instant::now();
    let (read, ()) = tokio::join!(reading, dropping);
    assert!(LinkError::from(read.unwrap_err()).to_string().contains("closed by nodelb"));
    assert!(start.elapsed() < TIMEOUT);
    let error = services.list(&ListParams::default()).await.map(|_| ()).unwrap_err();
    assert_eq!(LinkError::from(error), LinkError::Broken("closed by nodelb".into()));
}
