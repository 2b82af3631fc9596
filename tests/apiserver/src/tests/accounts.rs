use super::*;
use crate::access::User;
use crate::request::Request;

const MANIFEST: &str = "
apiVersion: v1
kind: Secret
metadata: {name: reader, namespace: shop, annotations: {kubernetes.io/service-account.name: reader}}
type: kubernetes.io/service-account-token
---
apiVersion: v1
kind: Secret
metadata: {name: other, namespace: shop}
type: Opaque
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: shop}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules: [{apiGroups: [''], resources: [services], verbs: [list]}]
";

fn may(cluster: &Cluster, uri: &str) -> bool {
    let user = User { name: "system:serviceaccount:shop:reader".into(), groups: Vec::new() };
    let request = Request::parse(&hyper::Method::GET, &uri.parse().unwrap());
    cluster.access(|access| access.check(&user, &request)).is_ok()
}

/// The result does not depend on the order of the objects' creation.
#[test]
fn an_account_may_what_its_role_says() {
    let cluster = Cluster::new().unwrap();
    cluster.apply(MANIFEST).unwrap();
    assert!(may(&cluster, "/api/v1/services"));
    assert!(!may(&cluster, "/api/v1/services?watch=true") && !may(&cluster, "/api/v1/secrets"));
    let wider = json!([{"apiGroups": [""], "resources": ["services", "secrets"], "verbs": ["list"]}]);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "reader"}, "rules": wider,
    });
    cluster.apply_value(role).unwrap();
    assert!(may(&cluster, "/api/v1/secrets"));
}

#[test]
fn a_secret_for_a_token_gets_one_and_keeps_it() {
    let cluster = Cluster::new().unwrap();
    cluster.apply(MANIFEST).unwrap();
    let token = || cluster.get("secrets", "shop", "reader").unwrap()["data"]["token"].clone();
    let first = STANDARD.decode(token().as_str().unwrap()).unwrap();
    let first = String::from_utf8(first).unwrap();
    let known = cluster.access(|access| access.tokens.get(&first).cloned()).unwrap();
    assert_eq!(known.name, "system:serviceaccount:shop:reader");
    cluster.patch("clusterroles", "", "reader", &Patch::Merge(json!({"rules": []}))).unwrap();
    settle(&cluster).unwrap();
    assert_eq!(token(), STANDARD.encode(first));
    assert!(cluster.get("secrets", "shop", "other").unwrap()["data"].is_null());
}
