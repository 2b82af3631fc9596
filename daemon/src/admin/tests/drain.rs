use axum::http::{HeaderName, HeaderValue};

use super::*;

fn refusal(is_local: bool, uid: Option<u32>, headers: &[(&'static str, &'static str)]) -> Option<(u16, String)> {
    let headers: HeaderMap =
        headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect();
    let peer = uid.map(|uid| Peer { uid, pid: None });
    check((is_local, peer), &headers, "drain backends").err().map(|problem| (problem.status.as_u16(), problem.message))
}

#[test]
fn only_root_at_the_socket_drains_and_no_page_does() {
    assert_eq!(refusal(true, Some(0), &[("host", "localhost"), ("content-length", "0")]), None);
    let text =
        |is_local, uid, headers: &[_]| refusal(is_local, uid, headers).map(|(status, text)| format!("{status} {text}"));
    let over_tcp = "403 only root may drain backends, and only over the Unix socket admin.socket";
    assert_eq!(text(false, None, &[]).as_deref(), Some(over_tcp));
    assert_eq!(text(false, Some(0), &[]).as_deref(), Some(over_tcp));
    let user = "403 only root may drain backends, and this is user 1000: use sudo";
    assert_eq!(text(true, Some(1_000), &[]).as_deref(), Some(user));
    assert_eq!(text(true, None, &[]).as_deref(), Some("403 the kernel does not name the user of this connection"));
    for header in [("origin", "http://localhost"), ("origin", "null"), ("sec-fetch-site", "same-origin")] {
        let page = "403 web pages cannot drain backends";
        assert_eq!(text(true, Some(0), &[header]).as_deref(), Some(page), "{header:?}");
    }
    for header in [("content-length", "1"), ("content-length", "99999999999"), ("transfer-encoding", "chunked")] {
        let body = "413 this takes parameters and no body";
        assert_eq!(text(true, Some(0), &[header]).as_deref(), Some(body), "{header:?}");
    }
}
