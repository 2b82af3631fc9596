use super::*;

fn request(method: &str, uri: &str) -> Request {
    Request::parse(&method.parse().unwrap(), &uri.parse().unwrap())
}

#[test]
fn paths() {
    let all = request("GET", "/api/v1/services?limit=5&continue=a%3Db");
    assert_eq!((all.verb, all.resource.unwrap().kind, all.parameter("continue")), (Verb::List, "Service", "a=b"));
    let one = request("PATCH", "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/web-1");
    assert_eq!(one.resource.unwrap().kind, "EndpointSlice");
    assert_eq!((one.namespace.as_deref(), one.name.as_deref()), (Some("shop"), Some("web-1")));
    let namespace = request("GET", "/api/v1/namespaces/shop");
    assert_eq!((namespace.resource.unwrap().kind, namespace.name.as_deref()), ("Namespace", Some("shop")));
    let status = request("PUT", "/api/v1/namespaces/shop/services/web/status");
    assert_eq!((status.subresource.as_deref(), status.verb), (Some("status"), Verb::Update));
    assert_eq!(request("GET", "/api/v1/nodes?watch=1").verb, Verb::Watch);
    for nothing in ["/readyz", "/api/v1", "/api/v1/configmaps", "/apis/discovery.k8s.io", "/"] {
        assert!(request("GET", nothing).resource.is_none(), "{nothing}");
    }
}
