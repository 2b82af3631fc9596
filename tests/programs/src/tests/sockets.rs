use std::sync::Arc;

use nodelb_core::model::addr::L4Addr;
use nodelb_core::state::entries::{FrontendEntry, MapState, ServiceEntry, ServiceId};
use nodelb_core::trace::taken_nodeports;

use super::{is_answer, refuses_bind};

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

/// Maps where these addresses point at service 1, which has no backend.
fn kernel(frontends: &[&str]) -> MapState {
    let mut state = MapState::default();
    state.services.insert(ServiceId(1), Arc::default());
    for address in frontends {
        let entry = FrontendEntry { service: ServiceId(1), inside_local: false, outside_local: false };
        state.frontends.insert(l4(address), entry);
    }
    state.node_addrs.insert(l4("203.0.113.1:1").addr);
    state
}

#[test]
fn a_bind_is_refused_where_it_takes_a_nodeport() {
    let mut state = kernel(&["0.0.0.0:30080", "[::]:30081", "0.0.0.0:80"]);
    state.node_addrs.insert(l4("[2001:db8::1]:1").addr);
    for (at, refused) in [
        ("0.0.0.0:30080", true),
        ("203.0.113.1:30080", true),
        ("[::ffff:203.0.113.1]:30080", true),
        ("[::]:30080", true),
        ("[::]:30081", true),
        ("[2001:db8::1]:30081", true),
        ("0.0.0.0:30081", false),
        ("[2001:db8::1]:30080", false),
        ("203.0.113.2:30080", false),
        ("127.0.0.1:30080", false),
        ("0.0.0.0:30080/UDP", false),
        ("0.0.0.0:30080/SCTP", false),
        ("0.0.0.0:80", false),
    ] {
        assert_eq!(refuses_bind(&state, &(30_000..=32_767), l4(at)), refused, "{at}");
    }
}

/// Sets the value in the entry of the service that all addresses of `kernel()` point at.
fn set_may_be_bound(state: &mut MapState, may_be_bound: bool) {
    let entry = ServiceEntry { may_be_bound, ..(*state.services[&ServiceId(1)]).clone() };
    state.services.insert(ServiceId(1), entry.into());
}

#[test]
fn a_nodeport_may_be_bound_where_its_service_says_so() {
    let mut state = kernel(&["0.0.0.0:30080", "[::]:30080"]);
    let refused = |state: &MapState| {
        ["0.0.0.0:30080", "203.0.113.1:30080", "[::]:30080"].map(|at| refuses_bind(state, &(30_000..=32_767), l4(at)))
    };
    assert_eq!(refused(&state), [true; 3]);
    set_may_be_bound(&mut state, true);
    assert_eq!(refused(&state), [false; 3]);
    assert_eq!(taken_nodeports(&state, l4("[::]:30080"), false).count(), 0, "and is not reported as taken");
    state.services.clear();
    assert_eq!(refused(&state), [true; 3], "an entry that is not there says nothing");
}

#[test]
fn what_is_sent_to_a_socket_that_has_sent_something_is_an_answer() {
    let mut state = kernel(&["0.0.0.0:30080/UDP", "203.0.113.1:30090/UDP"]);
    let answer = |state: &MapState, to: &str| is_answer(state, &(30_000..=32_767), l4(to), true);
    let client = "203.0.113.1:30080/UDP";
    assert!(answer(&state, client));
    assert!(!is_answer(&state, &(30_000..=32_767), l4(client), false), "the sender has received nothing from there");
    for to in ["203.0.113.2:30080/UDP", "203.0.113.1:30080/TCP", "203.0.113.1:30090/UDP"] {
        assert!(!answer(&state, to), "{to}");
    }
    set_may_be_bound(&mut state, true);
    assert!(!answer(&state, client), "that socket is the service's backend");
}
