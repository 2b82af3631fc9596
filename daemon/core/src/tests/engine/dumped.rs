use std::sync::Arc;

use super::dump::dump;
use crate::model::addr::L4Addr;
use crate::model::source_range::SourceRange;
use crate::model::uplink::UplinkEntry;
use crate::state::entries::{BackendId, FrontendEntry, MapState, OutsideEntry, ServiceEntry, ServiceId, Slot};

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

fn slot(text: &str, backend: u32) -> Slot {
    Slot { backend: BackendId(backend), addr: l4(text) }
}

/// Services `(id, first backend id)`, each with three slots of two backends.
fn state(first: (u32, u32), second: (u32, u32)) -> MapState {
    let mut state = MapState::default();
    for (index, (id, backend)) in [first, second].into_iter().enumerate() {
        let slots =
            [slot("192.0.2.1:80", backend), slot("192.0.2.2:80", backend + 1), slot("192.0.2.2:80", backend + 1)];
        let entry = ServiceEntry { cluster: slots.into(), has_backends: true, ..ServiceEntry::default() };
        state.services.insert(ServiceId(id), Arc::new(entry));
        let entry = FrontendEntry { service: ServiceId(id), inside_local: false, outside_local: index == 1 };
        state.frontends.insert(l4(&format!("198.51.100.{index}:80")), entry);
    }
    state
}

#[test]
fn each_entry_is_a_line() {
    let mut state = state((1, 1), (2, 1));
    let empty =
        ServiceEntry { affinity_seconds: 60, local: [slot("192.0.2.9:80", 9)].into(), ..ServiceEntry::default() };
    state.services.insert(ServiceId(3), Arc::new(empty));
    state.node_addrs.insert(l4("203.0.113.1:1").addr);
    let outside = OutsideEntry { service: ServiceId(1), local: true, has_ranges: true };
    state.outside.insert(l4("198.51.100.0:80"), outside);
    state.outside.insert(l4("198.51.100.1:80"), OutsideEntry { local: false, has_ranges: false, ..outside });
    state.source_ranges.insert((ServiceId(1), SourceRange::new(l4("192.0.2.7:1").addr, 96 + 24)));
    let uplink = UplinkEntry {
        v4: Some(l4("203.0.113.1:1").addr),
        v6: None,
        mtu: 1_500,
        l2_length: 14,
        ..UplinkEntry::default()
    };
    state.uplinks.insert(2, uplink);
    let name = |id: ServiceId| (id != ServiceId(2)).then(|| format!("a/s{id}"));
    assert_eq!(
        dump(&state, name),
        "frontend 198.51.100.0:80/TCP  a/s1  inside=cluster outside=cluster\n\
         frontend 198.51.100.1:80/TCP  service 2  inside=cluster outside=local\n\
         service  a/s1  cluster=[192.0.2.1:80/TCP, 192.0.2.2:80/TCP*2]\n\
         service  a/s3  cluster=[]  local=[192.0.2.9:80/TCP]  affinity=60s  empty\n\
         service  service 2  cluster=[192.0.2.1:80/TCP, 192.0.2.2:80/TCP*2]\n\
         node     203.0.113.1\n\
         outside  198.51.100.0:80/TCP  a/s1  local  ranges\n\
         outside  198.51.100.1:80/TCP  a/s1  cluster\n\
         range    192.0.2.0/24  a/s1\n\
         uplink   2  203.0.113.1  none  mtu=1500 l2=14\n"
    );
}

/// The assigned numbers depend on the history, but what they stand for does not.
#[test]
fn states_that_mean_the_same_read_the_same() {
    let one = dump(&state((1, 1), (2, 3)), |id| Some(if id.0 == 1 { "a".into() } else { "b".into() }));
    let other = dump(&state((9, 7), (4, 5)), |id| Some(if id.0 == 9 { "a".into() } else { "b".into() }));
    assert_eq!(one, other);
}
