use super::*;

#[test]
fn messages_are_found_in_whatever_the_server_says() {
    let long = "x".repeat(1000);
    let cases = [
        (r#"{"kind":"Status","message":"services is forbidden: no"}"#, "services is forbidden: no"),
        (r#"{"kind":"Other","message":"x"}"#, r#"{"kind":"Other","message":"x"}"#),
        (
            "[+]ping ok\n[-]etcd failed: reason withheld\n[-]poststarthook/x failed\nreadyz check failed",
            "[-]etcd failed: reason withheld, [-]poststarthook/x failed",
        ),
        ("<html>\n<body>502 Bad Gateway", "<html>"),
        ("a\u{1b}[31mred", "a [31mred"),
        ("", ""),
        (&long, &format!("{}…", "x".repeat(600))),
    ];
    for (body, expected) in cases {
        assert_eq!(message(body.as_bytes()), expected);
    }
    assert_eq!(message(b"\xff\xfe"), "\u{fffd}\u{fffd}");
}

#[test]
fn the_missing_permission_is_named_as_kubectl_asks_for_it() {
    let cases = [
        ("/api/v1/services?limit=500", "list services --all-namespaces"),
        ("/api/v1/services?watch=1&resourceVersion=5", "watch services --all-namespaces"),
        (
            "/apis/discovery.k8s.io/v1/endpointslices?watch=true",
            "watch endpointslices.discovery.k8s.io --all-namespaces",
        ),
        ("/api/v1/nodes/n1", "get nodes/n1"),
        (
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            "list endpointslices.discovery.k8s.io --namespace default",
        ),
        ("/readyz", "get /readyz"),
        ("/version?timeout=5s", "get /version"),
        ("/api", "get /api"),
    ];
    let can_i = |path_and_query: &str, user: Option<&str>, groups: &[String]| {
        let server = "192.0.2.1:6443".parse().unwrap();
        can_i(&Asked { server, identity: "", user, groups, method: &Method::GET, path_and_query })
    };
    for (path, expected) in cases {
        assert_eq!(can_i(path, None, &[]), format!("kubectl auth can-i {expected}"));
        let with_user = format!("kubectl auth can-i {expected} --as 'system:kube-proxy'");
        assert_eq!(can_i(path, Some("system:kube-proxy"), &[]), with_user);
        let groups = ["system:nodes".to_owned(), "ops".to_owned()];
        let with_groups = format!("{with_user} --as-group 'system:nodes' --as-group 'ops'");
        assert_eq!(can_i(path, Some("system:kube-proxy"), &groups), with_groups);
    }
}

#[test]
fn writes_need_another_verb() {
    let server = "192.0.2.1:6443".parse().unwrap();
    let reported = |method: &Method, path_and_query: &str| {
        can_i(&Asked { server, identity: "", user: None, groups: &[], method, path_and_query })
    };
    let events = "/api/v1/namespaces/shop/events";
    assert_eq!(reported(&Method::POST, events), "kubectl auth can-i create events --namespace shop");
    let one = format!("{events}/web.1");
    assert_eq!(reported(&Method::PATCH, &one), "kubectl auth can-i patch events/web.1 --namespace shop");
}

#[test]
fn retry_after_is_believed_within_bounds() {
    let of = |text: &str| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]));
    assert_eq!(of("1"), Some(Duration::from_secs(1)));
    assert_eq!(of("99999999999"), Some(MAX_RETRY_AFTER));
    assert_eq!(of("soon"), None);
    assert_eq!(retry_after(&HeaderMap::new()), None);
}
