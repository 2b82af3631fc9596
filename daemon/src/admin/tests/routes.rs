use super::*;
use crate::admin::route::Admission;

fn turn(target: &str) -> Option<Admission> {
    let uri: axum::http::Uri = target.parse().unwrap();
    let route = ROUTES.iter().find(|route| route.path == uri.path()).unwrap();
    route.admission(&Query::parse(&uri, &route.takes()).unwrap())
}

#[test]
fn only_cheap_requests_are_answered_during_whole_tables() {
    for target in [
        "/frontends?service=shop/web",
        "/frontends?address=10.96.7.7",
        "/services?service=shop/web&status=Refused",
        "/history?address=10.1.0.1",
        "/trace?to=10.96.7.7:80",
    ] {
        assert_eq!(turn(target), Some(Admission::Narrow), "{target}");
    }
    for target in [
        "/frontends",
        "/frontends?status=Refused",
        "/services?type=ClusterIP",
        "/backends?address=10.1.0.1",
        "/maps?service=shop/web",
        "/metrics",
    ] {
        assert_eq!(turn(target), Some(Admission::Whole), "{target}");
    }
    assert_eq!(turn("/diff?live&service=shop/web"), Some(Admission::Live));
    assert_eq!(turn("/healthz"), None);
}
