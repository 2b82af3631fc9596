use super::*;

fn request(method: &str, uri: &str) -> Request {
    Request::parse(&method.parse().unwrap(), &uri.parse().unwrap())
}

fn user(name: &str, group: &str) -> User {
    User { name: name.into(), groups: vec![group.into()] }
}

#[test]
fn node_proxier_lists_and_watches() {
    let mut access = Access::default();
    access.roles.insert("nodelb".into(), Role::node_proxier());
    let nodelb = user("nodelb", "x");
    for uri in
        ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices?watch=true", "/api/v1/nodes/n1", "/readyz"]
    {
        access.check(&nodelb, &request("GET", uri)).unwrap();
    }
    let refused = access.check(&nodelb, &request("GET", "/api/v1/namespaces/shop/services/web")).unwrap_err();
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.message,
        "services \"web\" is forbidden: User \"nodelb\" cannot get resource \"services\" in API group \"\" in the namespace \"shop\""
    );
    assert!(access.check(&nodelb, &request("PATCH", "/api/v1/namespaces/shop/services/web")).is_err());
}

#[test]
fn masters_may_do_everything_and_anonymous_users_nothing() {
    let access = Access::default();
    let delete = request("DELETE", "/api/v1/nodes/n1");
    access.check(&user("a", "system:masters"), &delete).unwrap();
    assert!(access.check(&user("a", "b"), &delete).is_err());
}

#[test]
fn a_role_without_a_resource() {
    let role = Role::node_proxier().without("endpointslices");
    assert!(role.allows("list", "services") && !role.allows("list", "endpointslices"));
}

#[test]
fn can_i() {
    let mut access = Access::default();
    access.roles.insert("nodelb".into(), Role::node_proxier());
    let ask = |verb: &str| json!({"spec": {"resourceAttributes": {"verb": verb, "resource": "services"}}});
    let nodelb = user("nodelb", "x");
    assert_eq!(access.review(&nodelb, ask("list"))["status"]["allowed"], true);
    assert_eq!(access.review(&nodelb, ask("delete"))["status"]["allowed"], false);
}
