use super::*;

#[test]
fn what_no_proxy_serves_is_not_asked_for() {
    let page = |query: Query, next: &str, limit| query.page(next, limit).unwrap();
    let services = page(Query::all(Kind::Service), "", 500);
    assert_eq!(
        services,
        "/api/v1/services?&fieldSelector=spec.clusterIP%21%3DNone\
         &labelSelector=%21service.kubernetes.io%2Fservice-proxy-name&limit=500"
    );
    assert!(page(Query::all(Kind::EndpointSlice), "a=", 0).ends_with("headless&continue=a%3D"));
    assert_eq!(page(Query::node("n 1"), "", 1), "/api/v1/nodes?&fieldSelector=metadata.name%3Dn+1&limit=1");
}

#[test]
fn a_watch_says_from_where_and_for_how_long() {
    let watch = Query::node("n").watch("7", Duration::from_secs(100)).unwrap();
    let seconds = watch.split("timeoutSeconds=").nth(1).and_then(|rest| rest.split('&').next()?.parse::<u64>().ok());
    assert!(seconds.is_some_and(|seconds| (100..=200).contains(&seconds)), "{watch}");
    assert!(watch.ends_with("&resourceVersion=7") && watch.contains("allowWatchBookmarks=true"), "{watch}");
    let stream = Query::node("n").stream(Duration::from_secs(1)).unwrap();
    assert!(stream.ends_with("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion="), "{stream}");
}

#[test]
fn what_a_server_refuses_is_given_up_once() {
    let refused = |code, message: &str| LinkError::Status { code, message: message.into() };
    let mut query = Query::all(Kind::Service);
    assert!(query.make_do_without(&refused(400, "field label not supported: spec.clusterIP")));
    assert!(query.streams && !query.page("", 0).unwrap().contains("fieldSelector"));
    assert!(query.make_do_without(&refused(422, "sendInitialEvents: Forbidden")));
    assert!(!query.streams);
    assert!(!query.make_do_without(&refused(422, "sendInitialEvents: Forbidden")), "nothing is left to give up");
    let mut node = Query::node("n");
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
    let no_other_proxy = "&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name";
    assert_eq!(page(Query::of_service(Kind::Service, &service)), format!("{services}{no_other_proxy}"));
    let not_headless = "%21service.kubernetes.io%2Fheadless%2C";
    assert_eq!(page(Query::of_service(Kind::EndpointSlice, &service)), format!("{slices}{not_headless}{of_it}"));
}
