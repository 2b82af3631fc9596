use super::*;

#[test]
fn selectors_that_kubectl_takes() {
    let long = format!("{}={}", "k".repeat(63), "v".repeat(63));
    for selector in [
        "",
        " ",
        "team=shop",
        "team == shop",
        "team!=shop, tier",
        "!team,! tier",
        "team in (shop, pay),tier notin (test)",
        "app.kubernetes.io/part-of=shop",
        "team=",
        "team in (a,)",
        "A.b_c-1=X.y_z-2",
        "in=notin",
        &long,
    ] {
        assert_eq!(check(selector), Ok(()), "{selector}");
    }
}

#[test]
fn selectors_that_are_refused_with_the_wrong_part() {
    let long = "k".repeat(64);
    for (selector, wrong) in [
        ("team=shop,", ""),
        (",", ""),
        ("=shop", "=shop"),
        ("team=shop tier=x", "team=shop tier=x"),
        ("team=shop&watch=true", "team=shop&watch=true"),
        ("a=b,team=shop\r\nHost: x", "team=shop\\r\\nHost: x"),
        ("team=-shop", "team=-shop"),
        ("team=schön", "team=schön"),
        ("team in (a,b", "team in (a,b"),
        ("team in a", "team in a"),
        ("team of (a)", "team of (a)"),
        ("team in (a) b", "team in (a) b"),
        ("replicas>3", "replicas>3"),
        ("/team=a", "/team=a"),
        ("example.com/=a", "example.com/=a"),
        ("Example.com/team=a", "Example.com/team=a"),
        ("a/b/c=d", "a/b/c=d"),
        ("!", "!"),
        ("team\0=a", "team\\0=a"),
        (&long, &long),
    ] {
        let problem = check(selector).unwrap_err();
        assert!(problem.starts_with(&format!("`{wrong}` is not a requirement")), "{selector:?}: {problem}");
    }
    let problem = check(&"a,".repeat(600)).unwrap_err();
    assert_eq!(problem, "a label selector has at most 1024 bytes, not 1200; shorten it");
}

#[test]
fn a_selector_matches_as_in_kubernetes() {
    let labels = [("team", "shop"), ("tier", "")].map(|(label, value)| (label.to_owned(), value.to_owned())).into();
    for selector in
        ["", "team", "team=shop, tier=", "team in (pay,shop)", "!app,app!=x", "app notin (x)", "tier notin (x)"]
    {
        assert!(matches(selector, &labels), "{selector}");
    }
    for selector in ["app", "!team", "team=pay", "team!=shop", "team=shop,tier=x", "team notin (shop)", "app in (x,)"] {
        assert!(!matches(selector, &labels), "{selector}");
    }
}

#[test]
fn names_of_objects() {
    for name in ["a", "0", "kube-system", &"n".repeat(63)] {
        assert!(is_object_name(name), "{name}");
    }
    for name in ["", "-", "a-", "Shop", "a.b", "a/b", "..", "a b", "ä", &"n".repeat(64)] {
        assert!(!is_object_name(name), "{name}");
    }
}
