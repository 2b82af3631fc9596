use serde_json::json;

use super::*;
use crate::similar::similar_names;

#[test]
fn names_that_may_have_been_meant() {
    let known = ["shop/web", "shop/web-admin", "shop/database", "prod/web", "shop/wbe", "prod/unrelated"];
    let near = |wanted| similar_names(wanted, known.into_iter()).collect::<Vec<_>>();
    assert_eq!(near("shop/wep"), ["shop/web", "prod/web"]);
    assert_eq!(
        similar_names("shop/wbe", ["shop/web"].into_iter()).collect::<Vec<_>>(),
        ["shop/web"],
        "letters exchanged"
    );
    assert_eq!(near("test/web"), ["prod/web", "shop/web", "shop/wbe"]);
    assert_eq!(near("shop/admin"), ["shop/web-admin"]);
    assert!(near("shop/entirely-different").is_empty());
    assert_eq!(similar_names("a/b", std::iter::empty()).count(), 0);
    let long = "x".repeat(10_000);
    assert_eq!(similar_names(&long, [long.as_str()].into_iter()).count(), 1);
}

#[test]
fn pods_that_almost_have_the_labels() {
    let pod = |name: &str, labels: serde_json::Value| -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    };
    let pods = [
        pod("far", json!({"role": "db"})),
        pod("two-wrong", json!({"app": "database", "tier": "back"})),
        pod("typo", json!({"app": "wbe", "tier": "front"})),
        pod("lacks", json!({"tier": "front"})),
    ];
    let selector = BTreeMap::from([("app".to_owned(), "web".to_owned()), ("tier".to_owned(), "front".to_owned())]);
    let near = similar_pods(&selector, &pods);
    let names: Vec<&str> = near.iter().map(|(pod, _)| pod.metadata.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["typo", "lacks", "two-wrong"]);
    assert_eq!(near[0].1, [Differs { label: "app", wanted: "web", has: Some("wbe") }]);
    assert_eq!(near[1].1, [Differs { label: "app", wanted: "web", has: None }]);
}
