use super::*;

/// `nodelb drain --wait` waited for up to a minute for connections that both sides had closed.
#[test]
fn a_closed_connection_has_ended_some_seconds_after_its_last_packet() {
    let row = |state: &str, last_packet| ConnectionRow {
        client: "203.0.113.10:40000/TCP".into(),
        frontend: "198.51.100.1:80/TCP".into(),
        backend: "192.0.2.1:8080/TCP".into(),
        source_address: None,
        path: "stack".into(),
        state: state.into(),
        last_packet: Time(last_packet),
        first_packet: Time(0),
        bytes: 0,
        service: "shop/web:http/TCP/IPv4".into(),
    };
    let now = Time(100_000);
    assert!(has_ended(&row("closing", 95_000), now));
    assert!(!has_ended(&row("closing", 98_000), now), "the other side may still send");
    assert!(!has_ended(&row("established", 0), now), "it is idle");
}
