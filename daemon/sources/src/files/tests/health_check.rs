use std::time::Duration;

use nodelb_core::model::health_check::Method;

use super::super::*;
use crate::document::Problem;

/// A service with these lines under its `[service.health-check]`, which is line 5.
fn file(lines: &str) -> String {
    format!(
        "[[service]]\nname = \"shop/web\"\nfrontends = [\"198.51.100.10:80\"]\nbackends = [\"192.0.2.11:8080\"]\n\
         [service.health-check]\n{lines}\n"
    )
}

fn check(lines: &str) -> HealthCheck {
    let content = read(&file(lines), &"web.toml".into()).unwrap();
    HealthCheck::clone(content.services[0].value.health_check.as_ref().unwrap())
}

fn problems(text: &str) -> Vec<String> {
    let reported = read(text, &"web.toml".into()).unwrap_err();
    reported.iter().map(Problem::to_string).collect()
}

#[test]
fn the_kind_is_enough() {
    assert_eq!(check("type = \"tcp\""), HealthCheck::default());
    let method = Method::Http { path: "/".into(), host: None, status: 200..=399 };
    assert_eq!(check("type = \"http\""), HealthCheck { method, ..HealthCheck::default() });
}

#[test]
fn everything_can_be_said() {
    let lines = r#"
        type = "http"
        port = 8081
        path = "/healthz?full=1"
        host = "shop.example"
        expected-status = "200-204"
        interval = "1500ms"
        timeout = 1
        rise = 1
        fall = 100
        start = "unhealthy"
        last-resort = false
    "#;
    let expected = HealthCheck {
        method: Method::Http { path: "/healthz?full=1".into(), host: Some("shop.example".into()), status: 200..=204 },
        port: Some(8081),
        interval: Duration::from_millis(1_500),
        timeout: Duration::from_secs(1),
        rise: 1,
        fall: 100,
        starts_healthy: false,
        last_resort: false,
    };
    assert_eq!(check(lines), expected);
}

#[test]
fn one_status_is_a_range_of_one() {
    for (written, expected) in [("204", 204..=204), ("\"503\"", 503..=503), ("\"100-599\"", 100..=599)] {
        let Method::Http { status, .. } = check(&format!("type = \"http\"\nexpected-status = {written}")).method else {
            panic!("not a check over HTTP")
        };
        assert_eq!(status, expected);
    }
}

/// A check that takes as long as the default timeout would overlap with the next.
#[test]
fn a_short_interval_shortens_the_timeout() {
    assert_eq!(check("type = \"tcp\"\ninterval = \"1s\"").timeout, Duration::from_secs(1));
    assert_eq!(check("type = \"tcp\"\ninterval = \"5m\"").timeout, Duration::from_secs(2));
}

/// Checks that each table has exactly this problem, with `#` for the name of the service.
fn refuses(cases: &[(&str, &str)]) {
    for (lines, expected) in cases {
        assert_eq!(problems(&file(lines)), [expected.replace('#', "service shop/web: ")], "{lines}");
    }
}

#[test]
fn every_problem_has_its_line_and_remedy() {
    let cases = [
        ("", "line 5: #health-check has no type; add type = \"tcp\" or type = \"http\""),
        (
            "type = \"ping\"",
            "line 6: #health-check.type: `ping` is not one of the choices (expected \"tcp\" or \"http\")",
        ),
        ("type = 1", "line 6: #health-check.type: expected a string"),
        ("type = \"tcp\"\nport = 0", "line 7: #health-check.port: 0 is not in 1..=65535"),
        ("type = \"tcp\"\nport = \"80\"", "line 7: #health-check.port: expected an integer, found a string"),
        (
            "type = \"tcp\"\npath = \"/\"",
            "line 7: #health-check.path: has no effect on a check over TCP; change the type to http, or remove it",
        ),
        (
            "type = \"http\"\npath = \"healthz\"",
            "line 7: #health-check.path: `healthz` must begin with a slash, such as \"/healthz\"",
        ),
        (
            "type = \"http\"\npath = \"/a\\r\\nHost: evil\"",
            "line 7: #health-check.path: not a path: it has at most 1024 bytes, and characters that a URL cannot contain are written \
             like %20",
        ),
        (
            "type = \"http\"\nhost = \"a b\"",
            "line 7: #health-check.host: `a b` is not a host (expected like \"shop.example\" or \"192.0.2.1:80\")",
        ),
        (
            "type = \"http\"\nhost = \"a\\r\\nb\"",
            "line 7: #health-check.host: `a\\r\\nb` is not a host (expected like \"shop.example\" or \"192.0.2.1:80\")",
        ),
        (
            "type = \"http\"\nexpected-status = \"399-200\"",
            "line 7: #health-check.expected-status: `399-200` is not a status (expected one like 200 or a range like \
             \"200-399\")",
        ),
        (
            "type = \"http\"\nexpected-status = 600",
            "line 7: #health-check.expected-status: `600` is not a status (expected one like 200 or a range like \
             \"200-399\")",
        ),
        (
            "type = \"tcp\"\ninterval = \"50ms\"",
            "line 7: #health-check.interval: `50ms` is not a duration from 100ms to 1h, in multiples of 1ms (such as \"10s\", \
             \"1h30m\", or seconds as a number)",
        ),
        (
            "type = \"tcp\"\ntimeout = true",
            "line 7: #health-check.timeout: expected a duration such as \"10s\", found a boolean",
        ),
        (
            "type = \"tcp\"\ntimeout = \"11s\"",
            "line 7: #health-check.timeout: 11s is longer than the interval of 10s; a check ends before the next begins: \
             shorten the timeout",
        ),
    ];
    refuses(&cases);
}

#[test]
fn every_other_problem_has_its_line_and_remedy() {
    let cases = [
        ("type = \"tcp\"\nrise = 0", "line 7: #health-check.rise: 0 is not in 1..=100"),
        ("type = \"tcp\"\nfall = 101", "line 7: #health-check.fall: 101 is not in 1..=100"),
        (
            "type = \"tcp\"\nstart = \"up\"",
            "line 7: #health-check.start: `up` is not one of the choices (expected \"healthy\" or \"unhealthy\")",
        ),
        (
            "type = \"tcp\"\nlast-resort = \"no\"",
            "line 7: #health-check.last-resort: expected true or false, found a string",
        ),
        ("type = \"tcp\"\nfal = 3", "line 7: #unknown key `health-check.fal`; did you mean `fall`?"),
    ];
    refuses(&cases);
    let not_a_table = file("").replace("[service.health-check]", "health-check = \"tcp\"");
    assert_eq!(problems(&not_a_table), ["line 5: service shop/web: health-check: expected a table, found a string"]);
}

#[test]
fn what_is_not_served_over_tcp_needs_a_port_to_ask() {
    let dns = |more: &str| {
        format!(
            "[[service]]\nname = \"shop/dns\"\n\
             [[service.port]]\nname = \"dns\"\nfrontends = [\"198.51.100.53:53/UDP\"]\nbackends = [\"192.0.2.53:53\"]\n\
             [[service.port]]\nname = \"metrics\"\nfrontends = [\"198.51.100.53:9153\"]\nbackends = [\"192.0.2.53:9153\"]\n\
             [service.health-check]\ntype = \"tcp\"\n{more}\n"
        )
    };
    let expected = "line 11: service shop/dns: health-check: the backends of port dns are served over UDP only, and a check \
                    connects over TCP; add port = NUMBER with a port at which each backend accepts TCP connections";
    assert_eq!(problems(&dns("")), [expected]);
    let with_port = read(&dns("port = 53"), &"dns.toml".into()).unwrap();
    assert_eq!(with_port.services[0].value.health_check.as_ref().unwrap().port, Some(53));
}
