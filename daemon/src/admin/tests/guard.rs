use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version};

use super::{check, is_loopback};

fn status(version: Version, uri: &'static str, headers: &[(&'static str, &'static str)]) -> Option<StatusCode> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    check(false, version, &Uri::from_static(uri), &map).err().map(|problem| problem.status)
}

#[test]
fn only_names_of_this_host_are_loopback() {
    for host in [
        "localhost",
        "LocalHost:9890",
        "127.0.0.1",
        "127.0.0.1:1",
        "127.8.8.8",
        "[::1]",
        "[::1]:9890",
        "[::ffff:127.0.0.1]",
    ] {
        assert!(is_loopback(host), "{host}");
    }
    for host in [
        "",
        ":",
        "localhost.",
        "localhost.evil.example",
        "evil.example:9890",
        "127.0.0.1.evil.example",
        "192.0.2.1",
        "::1",
        "[::1",
        "[::1]x",
        "[::1]:",
        "[::2]",
        "localhost:",
        "localhost:80:80",
        "localhost:http",
        "0.0.0.0",
        "user@localhost",
        "127.1",
    ] {
        assert!(!is_loopback(host), "{host}");
    }
}

#[test]
fn a_rebound_name_is_refused_wherever_it_stands() {
    let forbidden = Some(StatusCode::FORBIDDEN);
    assert_eq!(status(Version::HTTP_11, "/", &[("host", "localhost:9890")]), None);
    assert_eq!(status(Version::HTTP_11, "/", &[("host", "evil.example")]), forbidden);
    assert_eq!(status(Version::HTTP_11, "http://evil.example/", &[("host", "localhost")]), forbidden);
    assert_eq!(status(Version::HTTP_11, "http://localhost/", &[("host", "localhost")]), None);
}

#[test]
fn a_host_is_needed_exactly_once() {
    let bad = Some(StatusCode::BAD_REQUEST);
    assert_eq!(status(Version::HTTP_11, "/", &[]), bad);
    assert_eq!(status(Version::HTTP_11, "/", &[("host", "localhost"), ("host", "localhost")]), bad);
    assert_eq!(status(Version::HTTP_10, "/", &[]), None);
    assert_eq!(status(Version::HTTP_10, "/", &[("host", "evil.example")]), Some(StatusCode::FORBIDDEN));
}

#[test]
fn pages_of_other_sites_are_refused() {
    let forbidden = Some(StatusCode::FORBIDDEN);
    let with = |name, value| status(Version::HTTP_11, "/", &[("host", "localhost"), (name, value)]);
    assert_eq!(with("origin", "https://evil.example"), forbidden);
    assert_eq!(with("origin", "null"), forbidden);
    assert_eq!(with("sec-fetch-site", "cross-site"), forbidden);
    assert_eq!(with("sec-fetch-site", "same-site"), forbidden);
    assert_eq!(with("sec-fetch-site", "none"), None);
    assert_eq!(with("sec-fetch-site", "same-origin"), None);
}

#[test]
fn the_scripts_of_the_own_page_may_have_an_origin() {
    let of = |origin, site| {
        let headers = [("host", "localhost:9890"), ("origin", origin), ("sec-fetch-site", site)];
        status(Version::HTTP_11, "/page/main.js", &headers)
    };
    let forbidden = Some(StatusCode::FORBIDDEN);
    assert_eq!(of("http://localhost:9890", "same-origin"), None);
    assert_eq!(of("http://localhost:9890", "same-site"), forbidden);
    assert_eq!(of("http://localhost:8080", "same-origin"), forbidden);
    assert_eq!(of("https://localhost:9890", "same-origin"), forbidden);
}

#[test]
fn a_link_from_another_site_opens_the_page_and_nothing_else() {
    let with = |path, mode, accept| {
        let headers = [
            ("host", "localhost"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", mode),
            ("sec-fetch-dest", "document"),
            ("accept", accept),
        ];
        status(Version::HTTP_11, path, &headers)
    };
    let forbidden = Some(StatusCode::FORBIDDEN);
    assert_eq!(with("/", "navigate", "text/html,*/*"), None);
    assert_eq!(with("/", "no-cors", "text/html,*/*"), forbidden);
    assert_eq!(with("/", "navigate", "application/json"), forbidden);
    assert_eq!(with("/services", "navigate", "text/html"), forbidden);
    assert_eq!(with("/events", "navigate", "text/html"), forbidden);
}
