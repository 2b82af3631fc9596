use super::*;

#[test]
fn what_no_proxy_serves_is_not_asked_for() {
    let page = Query::all(Kind::Service).page("", 500);
    assert_eq!(
        page,
        "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
         &fieldSelector=spec.clusterIP%21%3DNone&limit=500"
    );
    assert!(Query::all(Kind::EndpointSlice).page("a=", 0).ends_with("headless&continue=a%3D"));
    assert_eq!(Query::node("n 1").page("", 1), "/api/v1/nodes?fieldSelector=metadata.name%3Dn%201&limit=1");
}

#[test]
fn a_watch_says_from_where_and_for_how_long() {
    let watch = Query::node("n").watch(Version(7), Duration::from_secs(100));
    let seconds = watch.split("timeoutSeconds=").nth(1).and_then(|rest| rest.split('&').next()?.parse::<u64>().ok());
    assert!(seconds.is_some_and(|seconds| (100..=200).contains(&seconds)), "{watch}");
    assert!(watch.ends_with("&resourceVersion=7") && watch.contains("allowWatchBookmarks=true"), "{watch}");
    let stream = Query::node("n").stream(Duration::from_secs(1));
    assert!(stream.ends_with("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"), "{stream}");
}

#[test]
fn what_a_server_refuses_is_given_up_once() {
    let refused = |code, message: &str| LinkError::Status { code, message: message.into() };
    let mut query = Query::all(Kind::Service);
    assert!(query.make_do_without(&refused(400, "field label not supported: spec.clusterIP")));
    assert!(query.streams && !query.page("", 0).contains("fieldSelector"));
    assert!(query.make_do_without(&refused(422, "sendInitialEvents: Forbidden")));
    assert!(!query.streams);
    assert!(!query.make_do_without(&refused(422, "sendInitialEvents: Forbidden")), "nothing is left to give up");
    let mut node = Query::node("n");
    assert!(node.make_do_without(&refused(400, "field label not supported")) && !node.streams);
    assert!(node.page("", 0).contains("fieldSelector"), "never every Node");
    assert!(!node.make_do_without(&LinkError::Gone(String::new())));
}
