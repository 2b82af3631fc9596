use std::sync::Arc;

use super::*;
use crate::model::addr::L4Addr;
use crate::model::source_range::SourceRange;
use crate::model::uplink::UplinkEntry;
use crate::state::entries::{BackendId, Slot};

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

fn list(backends: &[u8]) -> ServiceEntry {
    let slot = |n: &u8| Slot { backend: BackendId((*n).into()), addr: l4(&format!("192.0.2.{n}:80")) };
    ServiceEntry { cluster: backends.iter().map(slot).collect(), has_backends: true, ..ServiceEntry::default() }
}

fn state() -> MapState {
    let mut state = MapState::default();
    state.services.insert(ServiceId(1), Arc::new(list(&[1, 2])));
    let entry = FrontendEntry { service: ServiceId(1), inside_local: false, outside_local: false };
    state.frontends.insert(l4("198.51.100.1:80"), entry);
    state.node_addrs.insert(l4("203.0.113.1:80").addr);
    state
}

/// The report after `work` has changed the maps as another program does.
fn drift(work: impl FnOnce(&mut Content)) -> Vec<String> {
    let (left, mut content) = (state(), Content { state: state(), ..Content::default() });
    work(&mut content);
    let text = |key| {
        let (kind, fault) = detect(&content, &left, key).expect("a difference is detected");
        Drift { key, kind, fault, owner: None }.to_string()
    };
    differing_entries(&content, &left).into_iter().map(text).collect()
}

#[test]
fn unchanged_maps_do_not_differ() {
    assert_eq!(drift(|_| ()), Vec::<String>::new());
    let same = Content { state: state(), ..Content::default() };
    assert_eq!(detect(&same, &state(), EntryKey::Service(ServiceId(1))), None);
    assert_eq!(detect(&same, &state(), EntryKey::Service(ServiceId(9))), None);
}

#[test]
fn each_kind_of_entry_tells_what_was_done_to_it() {
    let frontend = l4("198.51.100.1:80");
    assert_eq!(drift(|c| _ = c.state.frontends.remove(&frontend)), ["frontend 198.51.100.1:80/TCP deleted"]);
    let foreign = FrontendEntry { service: ServiceId(1), inside_local: true, outside_local: false };
    assert_eq!(
        drift(|c| _ = c.state.frontends.insert(frontend, foreign)),
        ["frontend 198.51.100.1:80/TCP overwritten"]
    );
    let other = l4("[2001:db8::1]:53/UDP");
    assert_eq!(drift(|c| _ = c.state.frontends.insert(other, foreign)), ["frontend [2001:db8::1]:53/UDP added"]);
    assert_eq!(drift(|c| _ = c.state.services.remove(&ServiceId(1))), ["service of id 1 deleted"]);
    let set = |entry| move |c: &mut Content| _ = c.state.services.insert(ServiceId(1), Arc::new(entry));
    assert_eq!(drift(set(list(&[1]))), ["service of id 1 overwritten"]);
    assert_eq!(drift(set(list(&[1, 3]))), ["slots of id 1 overwritten"]);
    assert_eq!(drift(set(ServiceEntry { affinity_seconds: 5, ..list(&[1, 2]) })), ["service of id 1 overwritten"]);
    assert_eq!(drift(|c| _ = c.state.services.insert(ServiceId(4), Arc::default())), ["service of id 4 added"]);
    let addr = l4("203.0.113.1:80").addr;
    assert_eq!(drift(|c| _ = c.state.node_addrs.remove(&addr)), ["node address 203.0.113.1 deleted"]);
    let addr = l4("203.0.113.2:80").addr;
    assert_eq!(drift(|c| _ = c.state.node_addrs.insert(addr)), ["node address 203.0.113.2 added"]);
}

#[test]
fn entries_for_outside_clients_tell_what_was_done_to_them() {
    let (address, range) = (l4("198.51.100.1:80"), SourceRange::new(l4("10.0.0.0:1").addr, 104));
    let outside = OutsideEntry { service: ServiceId(1), local: false, has_ranges: false };
    let mut left = state();
    left.outside.insert(address, outside);
    left.source_ranges.insert((ServiceId(1), range));
    left.uplinks.insert(2, UplinkEntry::default());
    let drift = |work: &dyn Fn(&mut MapState)| -> Vec<String> {
        let mut content = Content { state: left.clone(), ..Content::default() };
        work(&mut content.state);
        let keys = differing_entries(&content, &left).into_iter();
        let found = keys.map(|key| (key, detect(&content, &left, key).expect("a difference is detected")));
        found.map(|(key, (kind, fault))| Drift { key, kind, fault, owner: None }.to_string()).collect()
    };
    assert_eq!(drift(&|s| _ = s.outside.remove(&address)), ["outside frontend 198.51.100.1:80/TCP deleted"]);
    let local = OutsideEntry { local: true, ..outside };
    assert_eq!(drift(&|s| _ = s.outside.insert(address, local)), ["outside frontend 198.51.100.1:80/TCP overwritten"]);
    assert_eq!(drift(&|s| s.source_ranges.clear()), ["source range 10.0.0.0/8 of id 1 deleted"]);
    let other = (ServiceId(3), range);
    assert_eq!(drift(&|s| _ = s.source_ranges.insert(other)), ["source range 10.0.0.0/8 of id 3 added"]);
    let jumbo = UplinkEntry { mtu: 9_000, ..UplinkEntry::default() };
    assert_eq!(drift(&|s| _ = s.uplinks.insert(2, jumbo)), ["uplink 2 overwritten"]);
    assert_eq!(drift(&|s| _ = s.uplinks.insert(3, jumbo)), ["uplink 3 added"]);
}

#[test]
fn a_broken_entry_counts_as_overwritten_or_foreign_and_never_as_missing() {
    let text = || "not written by nodelb".to_owned();
    let frontend = l4("198.51.100.1:80");
    let broken = drift(|c| {
        c.state.frontends.remove(&frontend);
        c.broken.entries.insert(EntryKey::Frontend(frontend), text());
        c.broken.entries.insert(EntryKey::Frontend(l4("198.51.100.9:80")), text());
        c.broken.with_invalid_key.push("a key that is no address".into());
    });
    assert_eq!(broken, ["frontend 198.51.100.1:80/TCP overwritten", "frontend 198.51.100.9:80/TCP added"]);
}
