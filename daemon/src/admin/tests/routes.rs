use super::*;

fn turn(target: &str) -> Option<Turn> {
    let uri: axum::http::Uri = target.parse().unwrap();
    let route = ROUTES.iter().find(|route| route.path == uri.path()).unwrap();
    route.turn(&Query::parse(&uri, &route.takes()).unwrap())
}

#[test]
fn only_what_costs_little_is_answered_beside_whole_tables() {
    for target in [
        "/frontends?service=shop/web",
        "/frontends?address=10.96.7.7",
        "/services?service=shop/web&status=Error",
        "/history?address=10.1.0.1",
        "/trace?to=10.96.7.7:80",
    ] {
        assert_eq!(turn(target), Some(Turn::Narrow), "{target}");
    }
    for target in [
        "/frontends",
        "/frontends?status=Error",
        "/services?type=ClusterIP",
        "/backends?address=10.1.0.1",
        "/maps?service=shop/web",
        "/metrics",
    ] {
        assert_eq!(turn(target), Some(Turn::Whole), "{target}");
    }
    assert_eq!(turn("/diff?live&service=shop/web"), Some(Turn::Live));
    assert_eq!(turn("/healthz"), None);
}
