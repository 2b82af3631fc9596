use std::sync::Arc;

use super::{Verdict, destination, taken_nodeports, trace};
use crate::model::addr::L4Addr;
use crate::packets::admission::Refusal;
use crate::state::entries::{BackendId, FrontendEntry, MapState, ServiceEntry, ServiceId, Slot};

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

/// Maps where service 1 has these views, and these addresses point at it, some at its local view.
fn kernel(cluster: &[&str], local: &[&str], frontends: &[(&str, bool)]) -> MapState {
    let slots = |texts: &[&str]| texts.iter().map(|t| Slot { backend: BackendId(1), addr: l4(t) }).collect();
    let (cluster, local): (Arc<[Slot]>, Arc<[Slot]>) = (slots(cluster), slots(local));
    let has_backends = !cluster.is_empty() || !local.is_empty();
    let mut state = MapState::default();
    state
        .services
        .insert(ServiceId(1), Arc::new(ServiceEntry { cluster, local, has_backends, ..ServiceEntry::default() }));
    for (address, inside_local) in frontends {
        let entry = FrontendEntry { service: ServiceId(1), inside_local: *inside_local, outside_local: false };
        state.frontends.insert(l4(address), entry);
    }
    state.node_addrs.insert(l4("203.0.113.1:1").addr);
    state
}

/// The verdict in a word or two.
fn verdict(state: &MapState, to: &str) -> String {
    match trace(state, &(30_000..=32_767), l4(to)) {
        Verdict::Forwarded(_, slots) => slots.iter().map(|slot| slot.addr.to_string()).collect::<Vec<_>>().join(" "),
        Verdict::Refused(_, errno) => errno.to_string(),
        Verdict::PassedThrough => "passed".into(),
    }
}

#[test]
fn an_address_is_matched_whole() {
    let state = kernel(&["192.0.2.1:8080"], &[], &[("198.51.100.1:80", false)]);
    for (to, expected) in [
        ("198.51.100.1:80/TCP", "192.0.2.1:8080/TCP"),
        ("[::ffff:198.51.100.1]:80/TCP", "192.0.2.1:8080/TCP"),
        ("198.51.100.1:80/UDP", "passed"),
        ("198.51.100.1:81/TCP", "passed"),
        ("198.51.100.10:80/TCP", "passed"),
    ] {
        assert_eq!(verdict(&state, to), expected, "{to}");
    }
}

#[test]
fn an_empty_view_says_why() {
    let frontends = [("198.51.100.1:80", false), ("198.51.100.2:80", true)];
    let empty = kernel(&[], &[], &frontends);
    let elsewhere = kernel(&["192.0.2.1:80"], &[], &frontends);
    assert_eq!(verdict(&empty, "198.51.100.1:80"), Refusal::NoBackend.to_string());
    assert_eq!(verdict(&empty, "198.51.100.2:80"), "ECONNREFUSED", "no backend at all, policy or not");
    assert_eq!(verdict(&elsewhere, "198.51.100.2:80"), "EHOSTUNREACH", "a backend, but not here");
    assert_eq!(verdict(&elsewhere, "198.51.100.1:80"), "192.0.2.1:80/TCP");
}

#[test]
fn the_frontend_says_which_view() {
    let state = kernel(
        &["192.0.2.1:80", "192.0.2.2:80"],
        &["192.0.2.2:80"],
        &[("198.51.100.1:80", false), ("198.51.100.2:80", true)],
    );
    assert_eq!(verdict(&state, "198.51.100.1:80"), "192.0.2.1:80/TCP 192.0.2.2:80/TCP");
    assert_eq!(verdict(&state, "198.51.100.2:80"), "192.0.2.2:80/TCP");
}

/// Below the port range there is no second lookup: an ordinary connection to the node costs only one.
#[test]
fn a_nodeport_is_answered_at_the_nodes_addresses_only() {
    let state = kernel(&["192.0.2.1:80"], &[], &[("0.0.0.0:30080", false), ("0.0.0.0:8080", false)]);
    for (to, expected) in [
        ("203.0.113.1:30080", "192.0.2.1:80/TCP"),
        ("203.0.113.2:30080", "passed"),
        ("203.0.113.1:30081", "passed"),
        ("203.0.113.1:8080", "passed"),
        ("203.0.113.1:30080/UDP", "passed"),
        ("[2001:db8::1]:30080", "passed"),
    ] {
        assert_eq!(verdict(&state, to), expected, "{to}");
    }
}

#[test]
fn an_exact_address_comes_before_a_nodeport() {
    let mut state = kernel(&["192.0.2.1:80"], &[], &[("0.0.0.0:30080", false)]);
    let other = ServiceEntry {
        cluster: [Slot { backend: BackendId(2), addr: l4("192.0.2.2:80") }].into(),
        ..ServiceEntry::default()
    };
    state.services.insert(ServiceId(2), Arc::new(other));
    let entry = FrontendEntry { service: ServiceId(2), inside_local: false, outside_local: false };
    state.frontends.insert(l4("203.0.113.1:30080"), entry);
    assert_eq!(verdict(&state, "203.0.113.1:30080"), "192.0.2.2:80/TCP");
}

#[test]
fn a_frontend_without_its_entry_refuses() {
    let mut state = kernel(&["192.0.2.1:80"], &[], &[("198.51.100.1:80", false)]);
    state.services.clear();
    assert_eq!(verdict(&state, "198.51.100.1:80"), "ECONNREFUSED");
}

#[test]
fn sctp_is_left_alone() {
    let state = kernel(&["192.0.2.1:80"], &[], &[("198.51.100.1:80/SCTP", false)]);
    assert_eq!(verdict(&state, "198.51.100.1:80/SCTP"), "passed");
}

#[test]
fn a_wildcard_socket_of_ipv6_takes_both_families_unless_it_says_otherwise() {
    let state = kernel(&[], &[], &[("0.0.0.0:30080", false), ("[::]:30080", false)]);
    let taken = |at, only_v6| taken_nodeports(&state, l4(at), only_v6).collect::<Vec<_>>();
    assert_eq!(taken("[::]:30080", false), [l4("[::]:30080"), l4("0.0.0.0:30080")]);
    assert_eq!(taken("[::]:30080", true), [l4("[::]:30080")]);
    assert_eq!(taken("0.0.0.0:30080", false), [l4("0.0.0.0:30080")]);
}

/// The kernel sends packets for 0.0.0.0 or :: to loopback, and the entry of a NodePort has exactly that address.
#[test]
fn the_unspecified_address_is_loopback_and_never_a_nodeports_key() {
    let mut state = kernel(&["192.0.2.1:80"], &[], &[("0.0.0.0:30080", false), ("[::]:30080", false)]);
    let all = ["0.0.0.0:30080", "[::ffff:0.0.0.0]:30080", "[::]:30080"];
    for to in all {
        assert_eq!(verdict(&state, to), "passed", "{to}: NodePorts are not answered on loopback");
    }
    state.node_addrs.insert(l4("127.0.0.1:1").addr);
    assert_eq!(all.map(|to| verdict(&state, to)), ["192.0.2.1:80/TCP", "192.0.2.1:80/TCP", "passed"]);
    state.node_addrs.insert(l4("[::1]:1").addr);
    assert_eq!(verdict(&state, "[::]:30080"), "192.0.2.1:80/TCP");
    assert_eq!(destination(l4("[::]:1")), l4("[::1]:1"));
    assert_eq!(destination(l4("198.51.100.1:1")), l4("198.51.100.1:1"));
}
