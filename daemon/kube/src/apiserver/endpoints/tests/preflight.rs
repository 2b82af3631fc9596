use super::*;

fn read(body: &[u8]) -> Result<(u64, Option<String>), String> {
    super::read(serde_json::from_slice(body).map_err(|error| error.to_string())?)
}

#[test]
fn the_answer_tells_identity_and_revision() {
    let body = br#"{"kind":"ServiceList","metadata":{"resourceVersion":"4711"},"items":[{"metadata":{"uid":"u-1"}}]}"#;
    assert_eq!(read(body), Ok((4711, Some("u-1".into()))));
    assert_eq!(read(br#"{"metadata":{"resourceVersion":"1"},"items":[]}"#), Ok((1, None)));
    assert_eq!(read(br#"{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"uid":""}}]}"#), Ok((1, None)));
}

#[test]
fn what_is_no_answer_of_an_apiserver_is_refused() {
    for body in ["", "<html>", "{}", "[]", r#"{"metadata":{}}"#, r#"{"metadata":{"resourceVersion":"x"}}"#] {
        assert!(read(body.as_bytes()).is_err(), "{body}");
    }
}

#[test]
fn errors_say_how_the_address_stands() {
    let timeouts = PoolTimeouts::default();
    assert!(matches!(outcome_of(&LinkError::TimedOut("x".into()), &timeouts), Outcome::Failed(_)));
    assert!(matches!(outcome_of(&LinkError::Forbidden("x".into()), &timeouts), Outcome::Refused(_)));
    let busy = LinkError::Busy { code: 503, message: "etcd".into(), retry_after: None };
    assert_eq!(outcome_of(&busy, &timeouts), Outcome::NotReady("503: etcd".into(), 0));
    let busy = |code| LinkError::Busy { code, message: "x".into(), retry_after: Some(Duration::from_secs(60)) };
    assert_eq!(outcome_of(&busy(429), &timeouts), Outcome::NotReady("429: x".into(), 60_000));
    assert_eq!(outcome_of(&busy(503), &timeouts), Outcome::NotReady("503: x".into(), timeouts.retry_most));
}

const TIMEOUT: Duration = Duration::from_secs(5);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn an_ip_address_needs_no_resolver() {
    let address = "192.0.2.1:6443".parse().unwrap();
    assert_eq!(resolve(&address, &[], Duration::ZERO).await, Ok(vec![at("192.0.2.1:6443")]));
}

#[tokio::test]
async fn a_name_that_does_not_resolve_keeps_its_last_answer() {
    let address = "nowhere.invalid:6443".parse().unwrap();
    let last = [at("192.0.2.1:6443")];
    assert_eq!(resolve(&address, &last, TIMEOUT).await, Ok(last.to_vec()));
    let error = resolve(&address, &[], TIMEOUT).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot connect: nowhere.invalid does not resolve: "), "{error}");
}

#[tokio::test]
async fn a_name_of_this_host_resolves() {
    let address = "localhost:6443".parse().unwrap();
    assert!(resolve(&address, &[], TIMEOUT).await.unwrap().iter().all(|at| at.ip().is_loopback()));
}

#[test]
fn answers_are_bounded_and_can_be_connected_to() {
    let many = (0..=255).map(|n| SocketAddr::from(([192, 0, 2, n], 1)));
    assert_eq!(usable(many).unwrap().len(), MOST_RESOLVED);
    let same = ["0.0.0.0:1", "224.0.0.1:1", "[::ffff:192.0.2.1]:1", "192.0.2.1:1"].map(at);
    assert_eq!(usable(same.into_iter()), Ok(vec![at("192.0.2.1:1")]));
    assert!(usable([at("[::]:1")].into_iter()).is_err());
}
