use super::*;

#[test]
fn impersonation_is_sent_as_client_go_sends_it() {
    let wanted = Impersonation {
        user: "system:serviceaccount:kube-system:nodelb".into(),
        uid: "42".into(),
        groups: vec!["system:nodes".into(), "b".into()],
        extra: [("example.com/Reason%".to_owned(), vec!["x".to_owned(), "y z".into()]), ("none".into(), vec![])].into(),
    };
    let headers = wanted.headers().unwrap();
    let shown: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    assert_eq!(
        shown,
        [
            "impersonate-user: system:serviceaccount:kube-system:nodelb",
            "impersonate-uid: 42",
            "impersonate-group: system:nodes",
            "impersonate-group: b",
            "impersonate-extra-example.com%2freason%25: x",
            "impersonate-extra-example.com%2freason%25: y z",
        ]
    );
}

#[test]
fn what_no_header_can_carry_is_named() {
    let good = Impersonation { user: "a".into(), ..Impersonation::default() };
    let bad = || "a\nb".to_owned();
    let cases = [
        (Impersonation { user: bad(), ..good.clone() }, "as"),
        (Impersonation { uid: bad(), ..good.clone() }, "as-uid"),
        (Impersonation { groups: vec![bad()], ..good.clone() }, "as-groups"),
        (Impersonation { extra: [("k".into(), vec![bad()])].into(), ..good.clone() }, "as-user-extra"),
    ];
    for (wanted, field) in cases {
        assert_eq!(wanted.headers(), Err(field));
    }
    let any_key = Impersonation { extra: [("a\nb\u{e9} ".into(), vec!["v".into()])].into(), ..good };
    assert_eq!(any_key.headers().unwrap()[1].0.as_str(), "impersonate-extra-a%0ab%c3%a9%20");
}
