use std::sync::Arc;

use super::{Verdict, admits, lookup_outside, trace_outside};
use crate::model::addr::{Addr, L4Addr};
use crate::packets::admission::{Admission, Refusal, admission};
use crate::packets::choice;
use crate::state::entries::{BackendId, Lead, MapState, OutsideEntry, ServiceEntry, ServiceId, Slot};

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

fn slots(texts: &[&str]) -> Arc<[Slot]> {
    (1..).zip(texts).map(|(id, text)| Slot { backend: BackendId(id), addr: l4(text) }).collect()
}

/// A load balancer address for some clients, a NodePort of the same service for all, and an address that is not for
/// clients outside.
fn state(cluster: &[&str], local: &[&str], has_backends: bool) -> MapState {
    let entry = ServiceEntry {
        cluster: slots(cluster),
        local: slots(local),
        has_backends,
        has_rings: true,
        ..ServiceEntry::default()
    };
    let mut state = MapState::default();
    state.services.insert(ServiceId(1), entry.into());
    let outside = OutsideEntry { service: ServiceId(1), local: false, has_ranges: true };
    state.outside.insert(l4("198.51.100.1:80"), outside);
    let nodeport = OutsideEntry { local: true, has_ranges: false, ..outside };
    state.outside.insert(l4("0.0.0.0:30080"), nodeport);
    for range in ["203.0.113.0/24", "203.0.113.128/25", "2001:db8::/32"] {
        state.source_ranges.insert((ServiceId(1), range.parse::<ipnet::IpNet>().expect("a network").into()));
    }
    state.node_addrs.insert(l4("192.0.2.1:1").addr);
    state
}

fn end(state: &MapState, to: &str, client: &str) -> String {
    let client = l4(&format!("{client}:1")).addr;
    match trace_outside(state, &(30_000..=32_767), l4(to), Some(client)) {
        Verdict::Forwarded(_, slots) => format!("{} slots", slots.len()),
        Verdict::Refused(_, Refusal::NoBackend) => "refused".into(),
        Verdict::Refused(_, Refusal::NoLocalBackend) => "no local backend".into(),
        Verdict::Refused(_, Refusal::NotAdmitted) => "not admitted".into(),
        Verdict::PassedThrough => "passed through".into(),
    }
}

const BOTH: [&str; 2] = ["10.1.0.1:8080", "10.1.0.2:8080"];

#[test]
fn ranges_apply_to_sockets_of_the_node() {
    let served = state(&BOTH, &BOTH[..1], true);
    let is_admitted = |to, sources: &[&str]| {
        let sources: Vec<Addr> = sources.iter().map(|text| text.parse().expect("an address")).collect();
        admits(&served, l4(to), &sources)
    };
    assert!(is_admitted("198.51.100.1:80", &["203.0.113.7"]));
    assert!(!is_admitted("198.51.100.1:80", &["198.51.100.77"]) && !is_admitted("198.51.100.1:80", &[]));
    assert!(is_admitted("198.51.100.1:80", &["127.0.0.1", "10.0.0.1", "203.0.113.7"]), "any address of the namespace");
    assert!(!is_admitted("198.51.100.1:80", &["2001:db9::1"]));
    assert!(is_admitted("198.51.100.1:81", &["10.0.0.1"]), "not an address with ranges");
    assert!(is_admitted("192.0.2.1:30080", &["10.0.0.1"]), "the ranges are not for NodePorts");
}

#[test]
fn addresses_ranges_and_views_decide() {
    let served = state(&BOTH, &BOTH[..1], true);
    let of = |to| end(&served, to, "203.0.113.200");
    assert_eq!((of("198.51.100.1:80"), of("192.0.2.1:30080")), ("2 slots".into(), "1 slots".into()));
    assert_eq!(end(&served, "198.51.100.1:80", "198.51.100.77"), "not admitted");
    assert_eq!(end(&served, "192.0.2.1:30080", "198.51.100.77"), "1 slots", "the ranges are not for NodePorts");
    for to in ["198.51.100.1:81", "198.51.100.1:80/UDP", "192.0.2.2:30080", "0.0.0.0:30080", "192.0.2.1:80/SCTP"] {
        assert_eq!(of(to), "passed through", "{to}");
    }
    let elsewhere = state(&BOTH, &[], true);
    assert_eq!(end(&elsewhere, "192.0.2.1:30080", "203.0.113.1"), "no local backend");
    let empty = state(&[], &[], false);
    assert_eq!(end(&empty, "198.51.100.1:80", "203.0.113.1"), "refused");
    assert_eq!(end(&empty, "198.51.100.1:80", "198.51.100.77"), "not admitted", "this is decided first");
}

#[test]
fn the_longest_range_is_named() {
    let state = state(&BOTH, &[], true);
    let (_, entry) = lookup_outside(&state, &(30_000..=32_767), l4("198.51.100.1:80")).expect("an entry");
    let lead = *entry;
    let by = |client: &str| admission(&state, lead, Some(l4(&format!("{client}:1")).addr));
    assert!(matches!(by("203.0.113.200"), Admission::Range(range) if range.to_string() == "203.0.113.128/25"));
    assert!(matches!(by("203.0.113.1"), Admission::Range(range) if range.to_string() == "203.0.113.0/24"));
    assert_eq!(by("192.0.2.1"), Admission::No);
    assert_eq!(admission(&state, lead, None), Admission::Unknown);
    let open = Lead { has_ranges: false, ..lead };
    assert_eq!(admission(&state, open, None), Admission::All);
}

/// The expected backends were computed by another program.
#[cfg(target_endian = "little")]
#[test]
fn the_ring_names_the_backend() {
    let state = state(&["10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"], &[], true);
    let (to, client) = (l4("198.51.100.1:80"), l4("203.0.113.7:1").addr);
    let service = (*state.services[&ServiceId(1)]).clone();
    let chosen = |service: &ServiceEntry, port| {
        let offset = choice::selected(service, &service.cluster, (client, port), to)?;
        Some(service.cluster[offset].addr.to_string())
    };
    let found: Vec<String> = (40_000..40_008).map(|port| chosen(&service, Some(port)).unwrap()).collect();
    let last: String = found.iter().filter_map(|text| text.split(['.', ':']).nth(3)).collect();
    assert_eq!(last, "31113212");
    assert_eq!(chosen(&service, None), None, "the port decides");
    let sticky = ServiceEntry { affinity_seconds: 60, ..service.clone() };
    assert_eq!(chosen(&sticky, None), chosen(&sticky, Some(1)));
    assert!(chosen(&sticky, None).is_some());
    assert_eq!(chosen(&ServiceEntry { has_rings: false, ..service.clone() }, Some(40_000)), None, "chance decides");
    let one = ServiceEntry { cluster: slots(&["10.1.0.9:1"]), has_rings: false, ..service };
    assert_eq!(chosen(&one, None).as_deref(), Some("10.1.0.9:1/TCP"));
}
