use std::sync::Arc;

use axum::http::Uri;

use nodelb_datapath::packets::ConnectionState;

use super::super::fixture::unsynced;
use super::super::query::{ADDRESS, LIMIT as LIMIT_PARAMETER, SERVICE};
use super::*;
use crate::devices::DeviceOutputs;

fn connection(client: &str, id: u32) -> Connection {
    Connection {
        client: client.parse().unwrap(),
        frontend: "198.51.100.1:80".parse().unwrap(),
        backend: "10.244.1.2:8080".parse().unwrap(),
        source: Some("203.0.113.1:10000".parse().unwrap()),
        service: ServiceId(id),
        ifindex: 2,
        is_redirected: true,
        forward: Forward::Translate,
        state: ConnectionState::Established,
        idle: 3,
        age: 60,
        bytes: 1234,
    }
}

/// What the API answers to this query about these connections.
fn asked(query: &str, connections: Vec<Connection>) -> serde_json::Value {
    let packets = DeviceOutputs {
        connections: Arc::new(move |see| {
            let _ = connections.iter().try_for_each(|connection| see(*connection));
            Ok(())
        }),
        ..DeviceOutputs::default()
    };
    let state = AdminState { packets: Some(packets), ..unsynced() };
    let uri: Uri = format!("/connections?{query}").parse().unwrap();
    let query = Query::parse(&uri, &[&SERVICE, &ADDRESS, &LIMIT_PARAMETER]).unwrap();
    serde_json::to_value(super::connections(&state, &query, Clocks::default()).ok().unwrap()).unwrap()
}

fn three() -> Vec<Connection> {
    let clients = ["192.0.2.1:40000", "192.0.2.2:40000", "192.0.2.1:40001"];
    clients.into_iter().map(|client| connection(client, 7)).collect()
}

#[test]
fn connections_are_listed_with_what_the_backend_sees() {
    let answer = asked("", three());
    let row = &answer["connections"][0];
    assert_eq!(row["client"], "192.0.2.1:40000/TCP");
    assert_eq!((&row["source_address"], &row["path"]), (&"203.0.113.1:10000/TCP".into(), &"redirect".into()));
    assert_eq!((&row["state"], &row["service"]), (&"established".into(), &"(deleted service 7)".into()));
    assert_eq!(answer["listed"]["complete"], true);
}

#[test]
fn a_forwarded_connection_shows_how() {
    for (forward, path) in [(Forward::Direct, "direct"), (Forward::Tunnel, "tunnel")] {
        let (source, state) = (None, ConnectionState::Forwarded);
        let answer = asked("", vec![Connection { forward, source, state, ..connection("192.0.2.1:40000", 7) }]);
        let row = &answer["connections"][0];
        assert_eq!((&row["path"], &row["state"]), (&path.into(), &"forwarded".into()));
        assert_eq!(
            (&row["backend"], &row["source_address"]),
            (&"10.244.1.2:8080/TCP".into(), &serde_json::Value::Null)
        );
    }
}

#[test]
fn the_list_ends_at_the_limit_and_says_so() {
    let answer = asked("limit=2", three());
    assert_eq!(answer["connections"].as_array().unwrap().len(), 2);
    assert_eq!((&answer["listed"]["connections"], &answer["listed"]["complete"]), (&2.into(), &false.into()));
    assert_eq!(asked("limit=3", three())["listed"]["complete"], true);
}

#[test]
fn filters_apply_before_the_limit() {
    let answer = asked("address=192.0.2.2&limit=1", three());
    assert_eq!(answer["connections"][0]["client"], "192.0.2.2:40000/TCP");
    assert_eq!(answer["listed"]["complete"], true);
    assert_eq!(asked("address=10.244.1.2", three())["listed"]["connections"], 3);
    assert_eq!(asked("service=shop/web", three())["listed"]["connections"], 0);
}

#[test]
fn a_connection_of_the_node_itself_is_of_no_service() {
    let answer = asked("", vec![connection("203.0.113.1:10001", 0)]);
    assert_eq!(answer["connections"][0]["service"], "(this node)");
}
