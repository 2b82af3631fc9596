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
    let may_list =
        |resource: &str| role.allows(&Attempt { verb: "list", resource: resource.into(), namespace: None, name: None });
    assert!(may_list("services") && !may_list("endpointslices"));
}

#[test]
fn a_role_of_a_namespace_and_of_one_object() {
    let mut access = Access::default();
    let role = Role::none().within("shop", &["list", "watch"], &["services"], &[]).within(
        "default",
        &["list"],
        &["services"],
        &["kubernetes"],
    );
    access.roles.insert("nodelb".into(), role);
    let code = |uri: &str| access.check(&user("nodelb", "x"), &request("GET", uri)).map_or_else(|it| it.code, |()| 200);
    assert_eq!((code("/api/v1/namespaces/shop/services?watch=1"), code("/api/v1/services")), (200, 403));
    assert_eq!(code("/api/v1/namespaces/default/services"), 403);
    assert_eq!(code("/api/v1/namespaces/default/services?fieldSelector=metadata.name%3Dkubernetes"), 200);
    assert_eq!(code("/api/v1/namespaces/default/services?fieldSelector=metadata.name%3Ddns"), 403);
    assert_eq!(code("/api/v1/namespaces/default/services?watch=1&fieldSelector=metadata.name%3Dkubernetes"), 403);
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
