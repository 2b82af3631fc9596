use proptest::prelude::*;

use super::*;

fn read(annotations: &[(&str, &str)]) -> Result<Option<HealthCheck>, String> {
    read_with(annotations, &[("http", Protocol::Tcp)])
}

fn read_with(annotations: &[(&str, &str)], ports: &[(&str, Protocol)]) -> Result<Option<HealthCheck>, String> {
    let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let port = |(name, protocol): &(&str, Protocol)| ServicePort {
        name: (*name).into(),
        protocol: *protocol,
        frontends: Vec::new(),
    };
    from_annotations(&annotations, &ports.iter().map(port).collect::<Vec<_>>())
}

fn http(path: &str) -> Method {
    Method::Http { path: path.into(), host: None, status: 200..=399 }
}

#[test]
fn a_service_without_annotations_has_no_check() {
    assert_eq!(read(&[]), Ok(None));
}

#[test]
fn one_annotation_is_enough() {
    let cases = [
        ("tcp", Method::Tcp, None),
        ("tcp:8081", Method::Tcp, Some(8081)),
        ("http", http("/"), None),
        ("http:/healthz", http("/healthz"), None),
        ("http:8081", http("/"), Some(8081)),
        ("http:8081/healthz?full=1", http("/healthz?full=1"), Some(8081)),
    ];
    for (value, method, port) in cases {
        let expected = HealthCheck { method, port, ..HealthCheck::default() };
        assert_eq!(read(&[("", value)]), Ok(Some(expected)), "{value}");
    }
}

#[test]
fn every_setting_of_a_service_file_can_be_written() {
    let annotations = [
        ("", "http:8081/healthz"),
        ("-host", "shop.example"),
        ("-expected-status", "200-204"),
        ("-interval", "1500ms"),
        ("-timeout", "1"),
        ("-rise", "1"),
        ("-fall", "100"),
        ("-start", "unhealthy"),
        ("-last-resort", "false"),
    ];
    let expected = HealthCheck {
        method: Method::Http { path: "/healthz".into(), host: Some("shop.example".into()), status: 200..=204 },
        port: Some(8081),
        interval: Duration::from_millis(1_500),
        timeout: Duration::from_secs(1),
        rise: 1,
        fall: 100,
        starts_healthy: false,
        last_resort: false,
    };
    assert_eq!(read(&annotations), Ok(Some(expected)));
}

#[test]
fn every_problem_names_annotation_value_and_remedy() {
    let kinds = "is not a check (expected tcp, tcp:PORT, http:/PATH or http:PORT/PATH, such as http:/healthz)";
    for value in
        ["", "ping", "tcp:", "http:", "tcp:0", "tcp:65536", "tcp:80/", "http:web/", "https:/", "TCP", "tcp:+1x"]
    {
        let expected = format!("annotation nodelb.io/health-check: `{value}` {kinds}");
        assert_eq!(read(&[("", value)]), Err(expected), "{value}");
    }
    let cases = [
        (
            "-interval",
            "50ms",
            "`50ms` is not a duration from 100ms to 1h, in multiples of 1ms (such as \"10s\", \"1h30m\", or \
         seconds as a number)",
        ),
        (
            "-timeout",
            "20s",
            "20s is longer than the interval of 10s; a check ends before the next begins: shorten the timeout",
        ),
        ("-rise", "0", "0 is not in 1..=100"),
        ("-fall", "many", "`many` is not a number in 1..=100"),
        ("-start", "up", "`up` is neither healthy nor unhealthy"),
        ("-last-resort", "no", "`no` is neither true nor false"),
        ("-host", "shop.example", "has no effect on a check over TCP; change the type to http, or remove it"),
        (
            "-intervall",
            "1s",
            "is unknown; expected no suffix, or -interval, -timeout, -host, -expected-status, -rise, -fall, \
         -start or -last-resort: correct the name, or remove it",
        ),
    ];
    for (name, value, problem) in cases {
        let expected = format!("annotation nodelb.io/health-check{name}: {problem}");
        assert_eq!(read(&[("", "tcp"), (name, value)]), Err(expected), "{name}");
    }
}

#[test]
fn settings_without_a_check_are_a_problem() {
    let expected = "annotation nodelb.io/health-check is missing, so the others have no effect; add it, such as tcp";
    assert_eq!(read(&[("-interval", "1s")]), Err(expected.into()));
}

#[test]
fn what_is_not_served_over_tcp_needs_a_port_to_ask() {
    let ports = [("metrics", Protocol::Tcp), ("dns", Protocol::Udp)];
    let expected = "annotation nodelb.io/health-check: the backends of port dns are served over UDP only, and a check \
                    connects over TCP; add a port at which each backend accepts TCP connections, such as tcp:8080";
    assert_eq!(read_with(&[("", "tcp")], &ports), Err(expected.into()));
    assert_eq!(read_with(&[("", "tcp:53")], &ports).unwrap().unwrap().port, Some(53));
}

#[test]
fn a_request_cannot_end_early() {
    for value in ["http:/a\r\nHost: evil", "http:/a b", "http:/\u{202e}", &format!("http:/{}", "a".repeat(2_000))] {
        assert!(read(&[("", value)]).is_err(), "{value}");
    }
    assert!(read(&[("", "http:/"), ("-host", "a\r\nb")]).is_err());
}

proptest! {
    /// Whatever the annotations contain: a check within the limits, or a text.
    #[test]
    fn arbitrary_annotations_yield_a_check_within_the_limits_or_a_problem(
        annotations in proptest::collection::btree_map(
            prop_oneof!["", "-(interval|timeout|rise|fall|start|last-resort|host|expected-status)", ".{0,8}"],
            prop_oneof!["(tcp|http)(:[0-9]{0,6})?(/[a-z]{0,5})?", "[0-9]{1,7}(ms|s|m|h|d)?", ".{0,40}"],
            0..5,
        ),
    ) {
        match from_annotations(&annotations, &[]) {
            Ok(None) => prop_assert!(annotations.is_empty()),
            Ok(Some(check)) => {
                prop_assert!((100..=3_600_000).contains(&check.interval.as_millis()));
                prop_assert!((10..=60_000).contains(&check.timeout.as_millis()) && check.timeout <= check.interval);
                prop_assert!((1..=100).contains(&check.rise) && (1..=100).contains(&check.fall));
                prop_assert!(check.port != Some(0));
                if let Method::Http { path, .. } = &check.method {
                    prop_assert!(path.starts_with('/') && !path.contains(['\r', '\n', ' ']));
                }
            }
            Err(problem) => prop_assert!(problem.contains("annotation nodelb.io/health-check")),
        }
    }
}
