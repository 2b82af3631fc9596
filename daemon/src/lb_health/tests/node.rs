use std::time::Duration;

use nodelb_core::change::Change;
use tokio::net::TcpListener;

use super::*;
use crate::lb_health::tests::{HERE, World, ask, free, node_object, raw, until};

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_186_623 + seconds)
}

/// Status and body for a node with this health and eligibility.
fn said(is_healthy: bool, is_eligible: Option<bool>) -> (u16, String) {
    let answer = reported(LoopStatus { is_healthy, updated: at(0), now: at(9) }, is_eligible);
    assert_eq!((answer.content_type, answer.weight), ("application/json", None));
    (answer.status.as_u16(), answer.body)
}

/// The bytes of Go's `json.Marshal` for kube-proxy's `ProxyHealth`. `lastUpdated` is the current time for a healthy
/// node; `healthy` is independent of the Node.
#[test]
fn bodies_are_those_of_kube_proxy() {
    let status = |healthy| {
        format!(
            r#""status":{{"IPv4":{{"lastUpdated":"2026-11-20T14:57:03Z","healthy":{healthy}}},"IPv6":{{"lastUpdated":"2026-11-20T14:57:03Z","healthy":{healthy}}}}}}}"#
        )
    };
    let well = r#"{"lastUpdated":"2026-11-20T14:57:12Z","currentTime":"2026-11-20T14:57:12Z","#;
    let ill = r#"{"lastUpdated":"2026-11-20T14:57:03Z","currentTime":"2026-11-20T14:57:12Z","#;
    let yes = format!(r#""healthy":true,{}"#, status(true));
    let no = format!(r#""healthy":false,{}"#, status(false));
    assert_eq!(said(true, Some(true)), (200, format!(r#"{well}"nodeEligible":true,{yes}"#)));
    assert_eq!(said(true, Some(false)), (503, format!(r#"{ill}"nodeEligible":false,{yes}"#)));
    assert_eq!(said(false, Some(true)), (503, format!(r#"{ill}"nodeEligible":true,{no}"#)));
    assert_eq!(said(true, None), (200, format!("{well}{yes}")));
    assert_eq!(said(false, None), (503, format!("{ill}{no}")));
}

#[test]
fn times_are_written_as_go_writes_them() {
    let cases = [
        (0, 0, "1970-01-01T00:00:00Z", "Thu, 01 Jan 1970 00:00:00 GMT"),
        (951_782_399, 120_000_000, "2000-02-28T23:59:59.12Z", "Mon, 28 Feb 2000 23:59:59 GMT"),
        (951_782_400, 1, "2000-02-29T00:00:00.000000001Z", "Tue, 29 Feb 2000 00:00:00 GMT"),
        (1_795_186_623, 999_999_999, "2026-11-20T14:57:03.999999999Z", "Fri, 20 Nov 2026 14:57:03 GMT"),
        (4_107_542_400, 0, "2100-03-01T00:00:00Z", "Mon, 01 Mar 2100 00:00:00 GMT"),
    ];
    for (seconds, nanos, json, http) in cases {
        let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
        let answer = HealthAnswer::not_found(time).into_response();
        assert_eq!((rfc3339(time).as_str(), answer.headers()["date"].to_str().unwrap()), (json, http));
    }
}

#[test]
fn a_clock_before_1970_is_no_reason_to_fail() {
    let time = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
    assert_eq!(rfc3339(time), "1969-12-31T23:59:59Z");
    assert_eq!(HealthAnswer::not_found(time).into_response().headers()["date"], "Thu, 01 Jan 1970 00:00:00 GMT");
}

/// The answer with `T` for every time in its body.
fn timeless(answer: &str) -> String {
    let is_time = |part: &str| part.len() >= 20 && part.ends_with('Z') && part.contains('T');
    answer.split('"').map(|part| if is_time(part) { "T" } else { part }).collect::<Vec<_>>().join("\"")
}

#[tokio::test]
async fn whole_answers_are_those_of_kube_proxy() {
    let mut world = World::synced();
    let here = free().await;
    world.entry.healthz_addresses = vec![here];
    let _server = tokio::spawn(run(world.entry.clone(), Slots::new(world.entry.bounds.limits())));
    until(here, Result::is_ok).await;
    let shown = |answer: String| {
        let answer = timeless(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let is_length = |line: &&str| !line.starts_with("Content-Length: ");
        (head.lines().filter(is_length).collect::<Vec<_>>().join("|"), body.to_owned())
    };
    let head = |status: &str| {
        format!(
            "HTTP/1.1 {status}|Content-Type: application/json|X-Content-Type-Options: nosniff|Date: D|Connection: close"
        )
    };
    let healthy = r#""healthy":true,"status":{"IPv4":{"lastUpdated":"T","healthy":true},"IPv6":{"lastUpdated":"T","healthy":true}}}"#;
    let body = |eligible: &str| format!(r#"{{"lastUpdated":"T","currentTime":"T",{eligible}{healthy}"#);
    let (stays, leaves) = (body(r#""nodeEligible":true,"#), body(r#""nodeEligible":false,"#));
    let (ok, unavailable) = (head("200 OK"), head("503 Service Unavailable"));
    let asked = async |path: &str| shown(ask(here, path).await.expect("answered"));

    assert_eq!(asked("/healthz").await, (ok.clone(), stays.clone()), "nothing is known of the Node");
    for change in [node_object(Some("it is being deleted")), Change::NodeObject(None)] {
        world.apply([change]);
        assert_eq!(asked("/healthz").await, (unavailable.clone(), leaves.clone()));
        assert_eq!(asked("/livez").await, (ok.clone(), body("")), "the node is none of its business");
    }
    world.apply([node_object(None)]);
    assert_eq!(asked("/healthz?verbose").await, (ok, stays));
    let head = "HTTP/1.1 404 Not Found|Content-Type: text/plain; charset=utf-8|X-Content-Type-Options: nosniff|Date: D|Connection: close";
    for path in ["/", "/healthz/", "/readyz", "/metrics", "/livezz"] {
        assert_eq!(asked(path).await, (head.to_owned(), "404 page not found\n".to_owned()), "{path}");
    }
    let head_only =
        raw(here, "HEAD /healthz HTTP/1.1\r\nHost: lb\r\nConnection: close\r\n\r\n").await.expect("answered");
    assert!(head_only.starts_with("HTTP/1.1 200 OK\r\n") && head_only.ends_with("\r\n\r\n"), "{head_only}");
}

#[tokio::test]
async fn an_address_in_use_is_reported_and_retried() {
    let mut world = World::synced();
    let taken = TcpListener::bind((HERE, 0)).await.expect("a port");
    let here = taken.local_addr().expect("an address");
    world.entry.healthz_addresses = vec![here];
    let _server = tokio::spawn(run(world.entry.clone(), Slots::new(world.entry.bounds.limits())));
    let Change::HealthCheckPortError(None, Some(error)) = world.next().await else { panic!("an error of the node") };
    assert_eq!(
        &*error,
        &format!(
            "cannot answer /healthz health checks of load balancers on {here}: another process listens there, perhaps \
             kube-proxy, which answers until it ends: stop it, or change kubernetes.healthz-addresses"
        )
    );
    drop(taken);
    assert_eq!(world.next().await, Change::HealthCheckPortError(None, None));
    until(here, |answer| answer.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 404"))).await;
}
