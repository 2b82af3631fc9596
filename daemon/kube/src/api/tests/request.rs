use super::*;
use crate::api::scope::Selection;

fn all(kind: Kind) -> Query {
    Query::of(&Scope::all(kind))
}

fn node(name: &str) -> Query {
    Query::of(&Scope::node(name))
}

#[test]
fn what_no_proxy_serves_is_not_asked_for() {
    let page = |query: Query, next: &str, limit| query.page(next, limit).unwrap();
    let services = page(all(Kind::Service), "", 500);
    assert_eq!(
        services,
        "/api/v1/services?&fieldSelector=spec.clusterIP%21%3DNone\
         &labelSelector=%21service.kubernetes.io%2Fservice-proxy-name&limit=500"
    );
    assert!(page(all(Kind::EndpointSlice), "a=", 0).ends_with("headless&continue=a%3D"));
    assert_eq!(page(node("n 1"), "", 1), "/api/v1/nodes?&fieldSelector=metadata.name%3Dn+1&limit=1");
}

#[test]
fn a_watch_says_from_where_and_for_how_long() {
    let watch = node("n").watch("7", Duration::from_secs(100)).unwrap();
    let seconds = watch.split("timeoutSeconds=").nth(1).and_then(|rest| rest.split('&').next()?.parse::<u64>().ok());
    assert!(seconds.is_some_and(|seconds| (100..=200).contains(&seconds)), "{watch}");
    assert!(watch.ends_with("&resourceVersion=7") && watch.contains("allowWatchBookmarks=true"), "{watch}");
    let stream = node("n").stream(Duration::from_secs(1)).unwrap();
    assert!(stream.ends_with("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion="), "{stream}");
}

#[test]
fn what_a_server_refuses_is_given_up_once() {
    let refused = |code, message: &str| LinkError::Status { code, message: message.into() };
    let mut query = all(Kind::Service);
    assert!(query.make_do_without(&refused(400, "field label not supported: spec.clusterIP")));
    assert!(query.streams && !query.page("", 0).unwrap().contains("fieldSelector"));
    assert!(query.make_do_without(&refused(422, "sendInitialEvents: Forbidden")));
    assert!(!query.streams);
    assert!(!query.make_do_without(&refused(422, "sendInitialEvents: Forbidden")), "nothing is left to give up");
    let mut node = node("n");
    assert!(node.make_do_without(&refused(400, "field label not supported")) && !node.streams);
    assert!(node.page("", 0).unwrap().contains("fieldSelector"), "never every Node");
    assert!(!node.make_do_without(&LinkError::Gone(String::new())));
}

#[test]
fn one_service_is_asked_for_in_its_namespace() {
    let service = "shop/web".parse().unwrap();
    let page = |query: Query| query.page("", 0).unwrap();
    let services = "/api/v1/namespaces/shop/services?&fieldSelector=metadata.name%3Dweb";
    let slices = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices?&labelSelector=";
    let of_it = "kubernetes.io%2Fservice-name%3Dweb";
    assert_eq!(page(Query::unfiltered(Kind::Service, Some(&service))), services);
    assert_eq!(page(Query::unfiltered(Kind::EndpointSlice, Some(&service))), format!("{slices}{of_it}"));
    assert_eq!(page(Query::unfiltered(Kind::Service, None)), "/api/v1/services?");
    let [of_service, of_slices] = &Selection::default().scopes_of(&service)[..] else { panic!("two kinds") };
    let no_other_proxy = "&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name";
    assert_eq!(page(Query::of(of_service)), format!("{services}{no_other_proxy}"));
    let not_headless = "%21service.kubernetes.io%2Fheadless%2C";
    assert_eq!(page(Query::of(of_slices)), format!("{slices}{not_headless}{of_it}"));
}

#[test]
fn slices_that_no_proxy_uses_are_asked_for_too() {
    let service = "shop/web".parse().unwrap();
    let page = |scope: &Scope| page_of(&Query::with_unused_slices(scope));
    let [of_service, of_slices] = &Selection::default().scopes_of(&service)[..] else { panic!("two kinds") };
    assert_eq!(page(of_service), page_of(&Query::of(of_service)), "Services of another proxy remain its own");
    assert!(page(of_slices).ends_with("labelSelector=kubernetes.io%2Fservice-name%3Dweb"), "{}", page(of_slices));
    assert_eq!(page(&Scope::all(Kind::EndpointSlice)), "/apis/discovery.k8s.io/v1/endpointslices?");
}

#[test]
fn the_server_evaluates_what_the_operator_selects() {
    let pages = |selection: &Selection| {
        let scopes = selection.scopes();
        scopes.iter().map(|scope| Query::of(scope).page("", 0).unwrap()).collect::<Vec<_>>()
    };
    let labels = Selection { labels: "team in (shop,pay)".into(), ..Selection::default() };
    let services = &pages(&labels)[0];
    assert!(
        services.ends_with("%21service.kubernetes.io%2Fservice-proxy-name%2Cteam+in+%28shop%2Cpay%29"),
        "{services}"
    );
    assert!(services.contains("fieldSelector=spec.clusterIP%21%3DNone"), "{services}");
    assert_eq!(
        pages(&labels)[1],
        page_of(&all(Kind::EndpointSlice)),
        "slices do not always have the labels of the Service"
    );
    let namespaces = Selection { namespaces: vec!["shop".into()], ..labels };
    let asked = pages(&namespaces);
    assert_eq!(asked[0].replace("/namespaces/shop", ""), *services);
    assert_eq!(asked[1].replace("/namespaces/shop", ""), page_of(&all(Kind::EndpointSlice)));
    let services = ["shop/a", "shop/b"].map(|name| name.parse().unwrap()).to_vec();
    let asked = pages(&Selection { services, ..Selection::default() });
    assert!(asked[1].starts_with("/api/v1/namespaces/shop/services?&fieldSelector=metadata.name%3Da&"), "{asked:#?}");
    assert!(asked[3].ends_with("kubernetes.io%2Fservice-name+in+%28a%2Cb%29"), "{asked:#?}");
}

fn page_of(query: &Query) -> String {
    query.page("", 0).unwrap()
}
