use serde_json::json;

use super::*;

fn service() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web", "tier": "front"}},
        "spec": {"clusterIP": "None", "type": "ClusterIP"},
    })
}

fn matches(labels: &str, fields: &str) -> bool {
    Selector::parse(Resource::find("services").unwrap(), labels, fields).unwrap().matches(&service())
}

#[test]
fn labels() {
    for yes in
        ["", "app", "app=web", "app==web,tier!=back", "!other", "tier in (back, front)", "x notin (a,b),app", "x!=1"]
    {
        assert!(matches(yes, ""), "{yes}");
    }
    for no in ["other", "app=shop", "!app", "tier in (back)", "tier notin (front,back)", "app=web,tier=back"] {
        assert!(!matches(no, ""), "{no}");
    }
}

#[test]
fn fields() {
    assert!(matches("", "metadata.name=web,metadata.namespace=shop"));
    assert!(matches("", "spec.clusterIP=None"));
    assert!(!matches("", "spec.clusterIP!=None"));
    assert!(!matches("", "metadata.name=we"));
}

#[test]
fn what_is_refused() {
    let services = Resource::find("services").unwrap();
    let refused = Selector::parse(services, "", "spec.ports=1").unwrap_err();
    assert_eq!(refused.code, 400);
    assert!(refused.message.ends_with("field label not supported: spec.ports"), "{refused}");
    assert_eq!(Selector::parse(services, "a b", "").unwrap_err().code, 400);
    assert_eq!(Selector::parse(services, "a in (b", "").unwrap_err().code, 400);
    assert_eq!(Selector::parse(Resource::find("nodes").unwrap(), "", "metadata.namespace=x").unwrap_err().code, 400);
}
