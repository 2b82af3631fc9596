use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use nodelb_core::model::service::{FrontendKind, ServiceName};
use nodelb_core::state::status::Status;

use super::{ADDRESS, OUTPUT, Output, Parameter, Problem, Query, SERVICE, STATUS, TYPE};

const ALL: &[&Parameter] = &[&SERVICE, &ADDRESS, &TYPE, &STATUS, &OUTPUT];

fn parse(uri: &'static str) -> Result<Query, Problem> {
    Query::parse(&Uri::from_static(uri), ALL)
}

#[test]
fn reads_every_parameter() {
    let query =
        parse("/frontends?service=shop%2Fweb&address=2001:db8:0::7&output=json&type=NodePort&status=Held").unwrap();
    assert_eq!((query.filter.kind, query.filter.status), (Some(FrontendKind::NodePort), Some(Status::Held)));
    assert_eq!(query.filter.service, Some(ServiceName::new("shop", "web")));
    assert_eq!(query.filter.address, Some("2001:db8::7".parse().unwrap()));
    assert_eq!(query.output, Some(Output::Json));
    assert_eq!(parse("/frontends").unwrap(), Query::default());
}

#[test]
fn refuses_what_it_does_not_understand_by_name() {
    let cases = [
        ("/frontends?servce=shop/web", "unknown parameter `servce`: did you mean `service`?"),
        ("/frontends?name=web", "unknown parameter `name`: /frontends takes service=NAMESPACE/NAME, "),
        ("/frontends?service=web", "parameter `service`: `web` is not a service name"),
        ("/frontends?service=", "parameter `service`: `` is not a service name"),
        ("/frontends?address=10.0.0.1:80", "parameter `address`: `10.0.0.1:80` is not an IP address"),
        (
            "/frontends?type=Nodeport2",
            "parameter `type`: `Nodeport2` is not a type (expected ClusterIP, NodePort, ExternalIP, LoadBalancer, Static)",
        ),
        (
            "/frontends?status=Done",
            "parameter `status`: `Done` is not a status (expected OK, NoBackends, LastResort, Held, Kept, Conflict, Refused, \
             Pending)",
        ),
        ("/frontends?output=xml", "parameter `output`: `xml` is not a form (expected text, json)"),
        ("/frontends?status=held", "parameter `status`: `held` is not a status (expected OK, "),
        ("/frontends?output=text&output=json", "parameter `output` is given more than once"),
        ("/frontends?SERVICE=a/b", "unknown parameter `SERVICE`"),
    ];
    for (uri, start) in cases {
        let problem = parse(uri).unwrap_err();
        assert_eq!(problem.status, StatusCode::BAD_REQUEST, "{uri}");
        assert!(problem.message.starts_with(start), "{uri}: {}", problem.message);
    }
}

#[test]
fn a_route_takes_only_its_own_parameters() {
    let problem = Query::parse(&Uri::from_static("/?service=a/b"), &[&OUTPUT]).unwrap_err();
    assert_eq!(problem.message, "unknown parameter `service`: / takes output=text|json");
}

#[test]
fn accept_names_json_or_gets_text() {
    let accepted = |values: &[&'static str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("accept", HeaderValue::from_static(value));
        }
        Output::accepted(&headers)
    };
    assert_eq!(accepted(&[]), Output::Text);
    assert_eq!(accepted(&["*/*"]), Output::Text);
    assert_eq!(accepted(&["text/html,application/xhtml+xml"]), Output::Text);
    assert_eq!(accepted(&["application/json"]), Output::Json);
    assert_eq!(accepted(&["text/plain", "Application/JSON; charset=utf-8"]), Output::Json);
    assert_eq!(accepted(&["text/event-stream"]), Output::Sse);
    assert_eq!(accepted(&["application/json-patch+json"]), Output::Text);
}
