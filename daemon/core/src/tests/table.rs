use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Effect, Table};
use crate::change::Change;
use crate::model::addr::{Addr, Protocol};
use crate::model::node::{NodeFacts, NodeObject, NodePortAddress};
use crate::model::service::{
    Backend, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source, TrafficPolicy,
};

fn name(text: &str) -> ServiceName {
    text.parse().expect("valid in a test")
}

fn service(full: &str, source: Source, created: Option<u64>) -> Service {
    Service { created, ports: Vec::new(), ..Service::new(name(full), source) }
}

/// A slice `namespace/name` of the service, with one backend.
fn slice(full: &str, service: &str, source: Source) -> Slice {
    let SliceName { namespace, name: slice } = slice_name(full);
    let backends = vec![Backend::new("192.0.2.1".parse().expect("valid"), 80)];
    Slice {
        name: SliceName::new(&namespace, &slice),
        service: name(service),
        source,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    }
}

fn slice_name(full: &str) -> SliceName {
    let (namespace, slice) = full.split_once('/').expect("valid in a test");
    SliceName::new(namespace, slice)
}

/// The names of the services that the change makes dirty; `None` if it has no effect.
fn dirtied(table: &mut Table, change: Change) -> Option<Vec<String>> {
    match table.apply(change) {
        Effect::Services(names, _) => Some(names.iter().map(ToString::to_string).collect()),
        Effect::Deleted(name, _) => Some(vec![name.to_string()]),
        Effect::None => None,
        other => panic!("{other:?}"),
    }
}

fn dirty(names: &[&str]) -> Option<Vec<String>> {
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

/// The names of the slices that belong to the service.
fn slices(table: &Table, full: &str) -> Vec<String> {
    let (_, slices) = table.owner(&name(full)).expect("described");
    slices.iter().map(|slice| slice.name.to_string()).collect()
}

#[test]
fn a_known_object_has_no_effect() {
    let mut table = Table::default();
    let change = || Change::UpsertService(service("a/s", Source::Files, None));
    assert_eq!(dirtied(&mut table, change()), dirty(&["a/s"]));
    assert_eq!(table.apply(change()), Effect::None);
    let change = || Change::UpsertSlice(slice("a/x", "a/s", Source::Files));
    assert_eq!(dirtied(&mut table, change()), dirty(&["a/s"]));
    assert_eq!(table.apply(change()), Effect::None);
}

/// The trigger of the incident: an annotation results in a new resourceVersion. It is stored for display and has no
/// other effect.
#[test]
fn a_new_resource_version_has_no_effect_and_is_kept() {
    let mut table = Table::default();
    table.apply(Change::UpsertService(service("a/s", Source::Files, None)));
    let mut again = service("a/s", Source::Files, None);
    again.origin.resource_version = "2".into();
    assert_eq!(table.apply(Change::UpsertService(again)), Effect::None);
    assert_eq!(&*table.claims(&name("a/s"))[0].origin.resource_version, "2");
}

/// Objects that a list repeats would otherwise leave gaps in the heap, each in the place of an equal one.
#[test]
fn an_equal_object_stays_where_it_is_in_memory() {
    let mut table = Table::default();
    let mut report = || {
        table.apply(Change::UpsertService(service("a/s", Source::Files, None)));
        table.apply(Change::UpsertSlice(slice("a/x", "a/s", Source::Files)));
        let (owner, slices) = table.owner(&name("a/s")).expect("described");
        (Arc::clone(owner), Arc::clone(&slices[0]))
    };
    let (first, second) = (report(), report());
    assert!(Arc::ptr_eq(&first.0, &second.0));
    assert!(Arc::ptr_eq(&first.1, &second.1));
}

#[test]
fn every_field_a_connection_depends_on_makes_dirty() {
    let base = || service("a/s", Source::Files, Some(1));
    let port = ServicePort { name: "".into(), protocol: Protocol::Tcp, frontends: Vec::new() };
    for changed in [
        Service { created: Some(2), ..base() },
        Service { ports: vec![port], ..base() },
        Service { internal_policy: TrafficPolicy::Local, ..base() },
        Service { external_policy: TrafficPolicy::Local, ..base() },
        Service { affinity_seconds: Some(1), ..base() },
    ] {
        let mut table = Table::default();
        table.apply(Change::UpsertService(base()));
        assert_eq!(dirtied(&mut table, Change::UpsertService(changed.clone())), dirty(&["a/s"]), "{changed:?}");
    }
}

#[test]
fn removing_an_unknown_object_has_no_effect() {
    let mut table = Table::default();
    table.apply(Change::UpsertService(service("a/s", Source::Files, None)));
    table.apply(Change::UpsertSlice(slice("a/x", "a/s", Source::Files)));
    for change in [
        Change::RemoveService(name("a/other"), Source::Files),
        Change::RemoveService(name("a/s"), Source::Kubernetes),
        Change::RemoveSlice(slice_name("a/other"), Source::Files),
        Change::RemoveSlice(slice_name("a/x"), Source::Kubernetes),
        Change::RemoveSlice(slice_name("b/x"), Source::Files),
    ] {
        assert_eq!(table.apply(change.clone()), Effect::None, "{change:?}");
    }
    assert_eq!(slices(&table, "a/s"), ["a/x"]);
}

/// A service entry of a file has no slice if it has no backends. The entry still exists, with changed content.
#[test]
fn backends_that_leave_a_file_are_a_change_of_its_entry_and_not_its_removal() {
    let origin = |file: &str| Origin { object: file.into(), ..Origin::default() };
    let removed = |source, entry: Option<&str>| {
        let mut table = Table::default();
        table.apply(Change::UpsertSlice(Slice { origin: origin("a.toml"), ..slice("a/x", "a/s", source) }));
        if let Some(file) = entry {
            table.apply(Change::UpsertService(Service { origin: origin(file), ..service("a/s", source, None) }));
        }
        match table.apply(Change::RemoveSlice(slice_name("a/x"), source)) {
            Effect::Services(_, trigger) => trigger.cause().to_string(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(removed(Source::Files, Some("a.toml")), "a.toml");
    assert_eq!(removed(Source::Files, Some("b.toml")), "the removal of a.toml");
    assert_eq!(removed(Source::Files, None), "the removal of a.toml");
    assert_eq!(removed(Source::Kubernetes, Some("a.toml")), "the removal of a.toml");
}

/// It leaves one service and joins the other, so both must be compiled again.
#[test]
fn a_slice_that_moves_makes_both_services_dirty() {
    let mut table = Table::default();
    for full in ["a/one", "a/two"] {
        table.apply(Change::UpsertService(service(full, Source::Files, None)));
    }
    table.apply(Change::UpsertSlice(slice("a/x", "a/one", Source::Files)));
    assert_eq!(
        dirtied(&mut table, Change::UpsertSlice(slice("a/x", "a/two", Source::Files))),
        dirty(&["a/one", "a/two"])
    );
    assert!(slices(&table, "a/one").is_empty());
    assert_eq!(slices(&table, "a/two"), ["a/x"]);
    assert_eq!(dirtied(&mut table, Change::RemoveSlice(slice_name("a/x"), Source::Files)), dirty(&["a/two"]));
    assert_eq!(table.slice_count(), 0);
}

#[test]
fn equal_slice_names_in_two_namespaces_are_two_slices() {
    let mut table = Table::default();
    for full in ["default/s", "default-test/s"] {
        table.apply(Change::UpsertService(service(full, Source::Files, None)));
        let namespace = full.split('/').next().expect("a namespace");
        table.apply(Change::UpsertSlice(slice(&format!("{namespace}/x"), full, Source::Files)));
    }
    table.apply(Change::RemoveSlice(slice_name("default/x"), Source::Files));
    assert!(slices(&table, "default/s").is_empty());
    assert_eq!(slices(&table, "default-test/s"), ["default-test/x"]);
}

/// Names with a common prefix, or that would be equal if joined, are different names.
#[test]
fn a_service_has_its_own_slices_only() {
    let names = ["default/tes", "default/test", "default/test-extended", "a/b-c", "a-b/c"];
    let mut table = Table::default();
    for full in names {
        table.apply(Change::UpsertService(service(full, Source::Files, None)));
        table.apply(Change::UpsertSlice(slice(full, full, Source::Files)));
    }
    for full in names {
        assert_eq!(slices(&table, full), [full]);
    }
}

#[test]
fn the_oldest_description_counts_then_the_files() {
    let cases = [
        (None, Some(1), Source::Files),
        (Some(2), Some(1), Source::Kubernetes),
        (Some(1), Some(1), Source::Files),
        (Some(1), None, Source::Kubernetes),
    ];
    for (files, kubernetes, expected) in cases {
        let mut table = Table::default();
        table.apply(Change::UpsertService(service("a/s", Source::Kubernetes, kubernetes)));
        table.apply(Change::UpsertService(service("a/s", Source::Files, files)));
        let (owner, _) = table.owner(&name("a/s")).expect("described");
        assert_eq!(owner.source, expected, "files {files:?}, Kubernetes {kubernetes:?}");
    }
}

#[test]
fn a_service_is_checked_while_the_description_that_counts_asks_for_it() {
    let mut table = Table::default();
    let mut is_checked_after = |change| {
        table.apply(change);
        let checked = table.checked.get(&name("a/s"));
        assert!(checked.is_none_or(|service| Arc::ptr_eq(service, table.owner(&name("a/s")).expect("described").0)));
        checked.is_some()
    };
    let plain = service("a/s", Source::Kubernetes, Some(1));
    let checked = Service { health_check: Some(Arc::default()), ..plain.clone() };
    let from_file = service("a/s", Source::Files, None);
    assert!(!is_checked_after(Change::UpsertService(plain.clone())));
    assert!(is_checked_after(Change::UpsertService(checked.clone())));
    assert!(is_checked_after(Change::UpsertService(Service { created: Some(2), ..checked.clone() })));
    assert!(!is_checked_after(Change::UpsertService(from_file)), "the file takes precedence");
    assert!(is_checked_after(Change::RemoveService(name("a/s"), Source::Files)));
    assert!(!is_checked_after(Change::UpsertService(plain)));
    assert!(is_checked_after(Change::UpsertService(checked)));
    assert!(!is_checked_after(Change::RemoveService(name("a/s"), Source::Kubernetes)));
}

/// A file's service does not get the backends of a Kubernetes service of the same name.
#[test]
fn slices_join_only_services_of_their_source() {
    let mut table = Table::default();
    for source in [Source::Files, Source::Kubernetes] {
        table.apply(Change::UpsertSlice(slice(&format!("a/{source}"), "a/s", source)));
    }
    table.apply(Change::UpsertService(service("a/s", Source::Kubernetes, Some(1))));
    assert_eq!(slices(&table, "a/s"), ["a/kubernetes"]);
    table.apply(Change::UpsertService(service("a/s", Source::Files, None)));
    assert_eq!(slices(&table, "a/s"), ["a/files"]);
    table.apply(Change::RemoveService(name("a/s"), Source::Files));
    assert_eq!(slices(&table, "a/s"), ["a/kubernetes"]);
}

#[test]
fn a_slice_may_come_before_its_service_and_outlive_it() {
    let mut table = Table::default();
    table.apply(Change::UpsertSlice(slice("a/x", "a/s", Source::Files)));
    assert!(table.owner(&name("a/s")).is_none());
    assert_eq!(table.names().count(), 0);
    table.apply(Change::UpsertService(service("a/s", Source::Files, None)));
    assert_eq!(slices(&table, "a/s"), ["a/x"]);
    table.apply(Change::RemoveService(name("a/s"), Source::Files));
    assert_eq!((table.names().count(), table.slice_count()), (0, 1));
}

#[test]
fn node_facts_make_dirty_what_depends_on_them() {
    let mut table = Table::default();
    let facts = NodeFacts { name: "n1".into(), ..NodeFacts::default() };
    assert_eq!(table.apply(Change::Node(facts.clone())), Effect::AllServices);
    assert_eq!(table.apply(Change::Node(facts.clone())), Effect::None);
    let addr = |text: &str| text.parse().expect("valid");
    let own = ["203.0.113.1", "203.0.113.2"].map(addr);
    let moved = NodeFacts { addresses: own.into(), ..facts };
    assert_eq!(table.apply(Change::Node(moved.clone())), Effect::NodeAddresses(own.into()));
    let moved = NodeFacts { addresses: [own[0], addr("203.0.113.3")].into(), ..moved };
    let changed = [own[1], addr("203.0.113.3")].into();
    assert_eq!(table.apply(Change::Node(moved.clone())), Effect::NodeAddresses(changed));
    assert_eq!(table.apply(Change::Node(NodeFacts { zone: "z1".into(), ..moved })), Effect::AllServices);
}

/// The addresses that answer NodePorts may change although the addresses of the node do not.
#[test]
fn only_the_zone_in_the_node_object_makes_services_dirty() {
    let mut table = Table::default();
    let own: BTreeSet<Addr> = ["203.0.113.1", "203.0.113.2"].map(|text| text.parse().expect("valid")).into();
    let first = || own.iter().take(1).copied().collect();
    let last = || own.iter().skip(1).copied().collect();
    table.apply(Change::Node(NodeFacts {
        addresses: own.clone(),
        primary: first(),
        nodeport_addresses: vec![NodePortAddress::Primary],
        ..NodeFacts::default()
    }));
    assert_eq!(table.nodeport_addresses(), first());
    let reported = NodeObject { addresses: last(), ..NodeObject::default() };
    let only_addresses = || Effect::NodeAddresses(BTreeSet::new());
    assert_eq!(table.apply(Change::NodeObject(Some(reported.clone()))), only_addresses());
    assert_eq!(table.nodeport_addresses(), last());
    assert_eq!(table.apply(Change::NodeObject(Some(reported.clone()))), Effect::None);
    assert_eq!(table.apply(Change::NodeObject(None)), Effect::None);
    assert_eq!(table.nodeport_addresses(), last(), "the machine has not moved");
    assert_eq!(
        table.apply(Change::NodeObject(Some(NodeObject { zone: "z1".into(), ..reported }))),
        Effect::AllServices
    );
    assert_eq!((table.nodeport_addresses(), &*table.node().zone), (last(), "z1"));
    assert_eq!(table.apply(Change::NodeObjectUnknown), Effect::AllServices, "the zone was another Node's");
    assert_eq!((table.nodeport_addresses(), &*table.node().zone), (first(), ""));
    assert!(!table.is_node_object_known() && table.leaving().is_none());
}

#[test]
fn a_source_may_be_synced_but_for_a_file() {
    let mut table = Table::default();
    assert!(!table.is_synced(Source::Files));
    table.apply(Change::Synced { source: Source::Files, incomplete: Some("web.toml".into()) });
    assert!(table.is_synced(Source::Files) && !table.is_synced(Source::Kubernetes));
    assert_eq!(table.incomplete(Source::Files).map(|text| &**text), Some("web.toml"));
    table.apply(Change::Synced { source: Source::Files, incomplete: None });
    assert_eq!(table.incomplete(Source::Files), None);
}

#[test]
fn a_report_about_bound_nodeports_makes_nothing_dirty_and_replaces_the_previous_one() {
    let mut table = Table::default();
    let at = "0.0.0.0:30080/TCP".parse().expect("valid in a test");
    assert_eq!(table.apply(Change::Bound(BTreeMap::from([(at, "a process".into())]))), Effect::None);
    assert_eq!((table.bound.get(&at).map(AsRef::as_ref), table.bound.len()), (Some("a process"), 1));
    assert_eq!(table.apply(Change::Bound(BTreeMap::new())), Effect::None);
    assert_eq!((table.bound.get(&at), table.bound.len()), (None, 0));
}

#[test]
fn the_ports_of_a_slice_are_found_whatever_their_order() {
    let mut table = Table::default();
    let mut sent = slice("ns/web-1", "ns/web", Source::Kubernetes);
    let one = sent.ports.remove(0);
    // 7 and 50 have no common divisor.
    for number in (0..50).map(|place| place * 7 % 50) {
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            sent.ports.push(SlicePort { name: format!("p{number}").into(), protocol, ..one.clone() });
        }
    }
    sent.ports.push(one.clone());
    table.apply(Change::UpsertService(service("ns/web", Source::Kubernetes, None)));
    table.apply(Change::UpsertSlice(sent.clone()));
    let (_, slices) = table.owner(&name("ns/web")).expect("described");
    for port in &sent.ports {
        assert_eq!(slices[0].ports_of(&port.name, port.protocol), std::slice::from_ref(port));
    }
    assert_eq!(slices[0].ports_of("p50", Protocol::Tcp), []);
    assert_eq!(slices[0].ports_of("p1", Protocol::Sctp), []);
}
