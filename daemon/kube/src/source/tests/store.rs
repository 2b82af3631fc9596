use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::Kind::{EndpointSlice, Service};
use super::*;
use crate::api::decode::{Decode, Decoder, Version};
use crate::api::scope::Selection;

/// A store of all Services, all EndpointSlices and a Node, with these numbers.
fn store(ports: usize) -> Store {
    Store::new(&Kind::SERVED.map(Scope::all), InMaps { ports, with_backends: ports })
}

fn number(kind: Kind) -> usize {
    Kind::ALL.iter().position(|it| *it == kind).unwrap()
}

/// A store, and the result of its changes: the existing names with their UIDs.
struct World {
    store: Store,
    served: BTreeMap<(Kind, String), String>,
    is_synced: bool,
}

impl World {
    fn new() -> Self {
        Self { store: store(0), served: BTreeMap::new(), is_synced: false }
    }

    fn apply(&mut self, kind: Kind, event: ListWatchEvent) -> Verdict {
        let mut changes = Vec::new();
        let verdict = self.store.apply(number(kind), event, &mut changes);
        for change in changes {
            match change {
                Change::UpsertService(s) => {
                    self.served.insert((Service, s.name.to_string()), s.origin.resource_version.to_string());
                }
                Change::UpsertSlice(s) => {
                    let name = format!("{}/{}", s.name.namespace, s.name.name);
                    self.served.insert((EndpointSlice, name), s.origin.resource_version.to_string());
                }
                Change::RemoveService(name, _) => drop(self.served.remove(&(Service, name.to_string()))),
                Change::RemoveSlice(name, _) => {
                    drop(self.served.remove(&(EndpointSlice, format!("{}/{}", name.namespace, name.name))));
                }
                Change::Synced { incomplete, .. } => self.is_synced = incomplete.is_none(),
                other => panic!("{other:?}"),
            }
        }
        verdict
    }

    fn list(&mut self, kind: Kind, objects: &[(&str, u32, u32)]) -> Verdict {
        _ = self.apply(kind, ListWatchEvent::ListStart { is_rewound: false });
        for (name, life, version) in objects {
            _ = self.apply(kind, upsert(kind, name, *life, *version));
        }
        self.apply(kind, ListWatchEvent::ListDone(Version(100)))
    }

    fn names(&self, of: Kind) -> Vec<&str> {
        self.served.keys().filter(|(kind, _)| *kind == of).map(|(_, name)| name.as_str()).collect()
    }
}

fn event(text: &str, kind: Kind) -> ListWatchEvent {
    match Decoder::new(kind).event(text.as_bytes()) {
        Ok(event) => event,
        other => panic!("{text}: {other:?}"),
    }
}

fn text(kind: Kind, name: &str, life: u32, version: u32) -> String {
    let metadata = format!(
        r#""metadata":{{"name":"{name}","namespace":"ns","uid":"{life:032x}","resourceVersion":"{version}","labels":{{"kubernetes.io/service-name":"{name}"}}}}"#
    );
    match kind {
        Service => format!(r#"{{{metadata},"spec":{{"clusterIP":"198.51.100.1","ports":[{{"port":80}}]}}}}"#),
        _ => format!(
            r#"{{{metadata},"addressType":"IPv4","endpoints":[{{"addresses":["192.0.2.1"]}}],"ports":[{{"port":80}}]}}"#
        ),
    }
}

fn upsert(kind: Kind, name: &str, life: u32, version: u32) -> ListWatchEvent {
    event(&format!(r#"{{"type":"ADDED","object":{}}}"#, text(kind, name, life, version)), kind)
}

fn delete(kind: Kind, name: &str, life: u32, version: u32) -> ListWatchEvent {
    event(&format!(r#"{{"type":"DELETED","object":{}}}"#, text(kind, name, life, version)), kind)
}

fn synced(services: &[(&str, u32, u32)]) -> World {
    let mut world = World::new();
    assert_eq!(world.list(Service, services), Verdict::Fine);
    assert_eq!(world.list(EndpointSlice, &[]), Verdict::Fine);
    assert!(world.is_synced);
    world
}

#[test]
fn nothing_is_removed_before_both_kinds_are_listed() {
    let mut world = World::new();
    for name in ["a", "b"] {
        world.store.remember(
            Service,
            &Key { namespace: "ns".into(), name: name.into() },
            &ServiceName::new("ns", name),
        );
        world.served.insert((Service, format!("ns/{name}")), String::new());
    }
    assert_eq!(world.list(Service, &[("b", 1, 1)]), Verdict::Fine);
    _ = world.apply(Service, delete(Service, "b", 1, 2));
    assert_eq!((world.names(Service), world.is_synced), (vec!["ns/a", "ns/b"], false));
    assert_eq!(world.list(EndpointSlice, &[]), Verdict::Fine);
    assert_eq!((world.names(Service), world.is_synced), (vec![], true));
}

#[test]
fn a_list_becomes_a_difference() {
    let mut world = synced(&[("a", 1, 1), ("b", 2, 2)]);
    assert_eq!(world.list(Service, &[("b", 3, 9), ("c", 4, 8)]), Verdict::Fine);
    assert_eq!(world.names(Service), ["ns/b", "ns/c"]);
    assert_eq!(world.served[&(Service, "ns/b".into())], "9");
}

#[test]
fn an_object_created_again_replaces_the_one_before() {
    let mut world = synced(&[("a", 1, 5)]);
    let mut changes = Vec::new();
    _ = world.store.apply(0, upsert(Service, "a", 2, 9), &mut changes);
    assert!(matches!(changes[..], [Change::RemoveService(..), Change::UpsertService(_)]));
    changes.clear();
    _ = world.store.apply(0, delete(Service, "a", 1, 8), &mut changes);
    assert_eq!(changes, [], "late news of the first life");
}

#[test]
fn late_and_repeated_news_change_nothing() {
    let mut world = synced(&[("a", 1, 5)]);
    let mut changes = Vec::new();
    for event in [upsert(Service, "a", 1, 5), upsert(Service, "a", 1, 4), delete(Service, "a", 1, 3)] {
        _ = world.store.apply(0, event, &mut changes);
    }
    assert_eq!(changes, []);
    _ = world.store.apply(0, delete(Service, "a", 1, 6), &mut changes);
    assert_eq!(changes.len(), 1);
    _ = world.store.apply(0, upsert(Service, "a", 1, 5), &mut changes);
    assert_eq!(changes.len(), 1, "the dead do not come back");
}

#[test]
fn what_was_created_and_deleted_in_the_wrong_order_is_gone() {
    let mut world = synced(&[]);
    _ = world.apply(Service, delete(Service, "a", 1, 12));
    _ = world.apply(Service, upsert(Service, "a", 1, 11));
    assert!(world.names(Service).is_empty());
    _ = world.apply(Service, upsert(Service, "a", 2, 13));
    assert_eq!(world.names(Service), ["ns/a"]);
}

#[test]
fn a_deletion_ends_what_an_odd_successor_left_behind() {
    let mut world = synced(&[("a", 1, 10)]);
    let key = Key { namespace: "ns".into(), name: "a".into() };
    _ = world.apply(Service, ListWatchEvent::Skipped { key: Some(key), reason: "odd".into() });
    assert_eq!(world.names(Service), ["ns/a"]);
    _ = world.apply(Service, delete(Service, "a", 2, 9));
    assert_eq!(world.names(Service), ["ns/a"], "of an earlier life");
    _ = world.apply(Service, delete(Service, "a", 2, 20));
    assert!(world.names(Service).is_empty());
    assert!(world.store.tally(0).problems.is_empty());
}

#[test]
fn a_complete_list_ends_the_problems_of_what_it_lacks() {
    let mut world = synced(&[]);
    let key = Key { namespace: "ns".into(), name: "odd".into() };
    _ = world.apply(Service, ListWatchEvent::Skipped { key: Some(key), reason: "odd".into() });
    _ = world.apply(Service, ListWatchEvent::Skipped { key: None, reason: "nameless".into() });
    assert_eq!(world.store.tally(0).problems.len(), 2);
    _ = world.list(Service, &[]);
    assert!(world.store.tally(0).problems.is_empty());
}

#[test]
fn a_rewound_cluster_makes_older_versions_count() {
    let mut world = synced(&[("a", 1, 50)]);
    _ = world.apply(Service, ListWatchEvent::ListStart { is_rewound: true });
    _ = world.apply(Service, upsert(Service, "a", 1, 50));
    _ = world.apply(Service, ListWatchEvent::ListDone(Version(50)));
    _ = world.apply(Service, upsert(Service, "a", 1, 51));
    assert_eq!(world.served[&(Service, "ns/a".into())], "51");
}

#[test]
fn invalid_objects_stay_as_they_were() {
    let mut world = synced(&[("a", 1, 5), ("b", 2, 5)]);
    let key = Key { namespace: "ns".into(), name: "a".into() };
    _ = world.apply(Service, ListWatchEvent::ListStart { is_rewound: false });
    _ = world.apply(Service, ListWatchEvent::Skipped { key: Some(key), reason: "no sense".into() });
    _ = world.apply(Service, ListWatchEvent::ListDone(Version(9)));
    assert_eq!(world.names(Service), ["ns/a"]);
    assert_eq!(world.store.tally(0).problems, ["ns/a: no sense"]);
    _ = world.apply(Service, upsert(Service, "a", 1, 6));
    assert_eq!(world.store.tally(0).problems, [""; 0]);
}

#[test]
fn a_list_with_something_nameless_removes_nothing() {
    let mut world = synced(&[("a", 1, 5)]);
    _ = world.apply(Service, ListWatchEvent::ListStart { is_rewound: false });
    _ = world.apply(Service, ListWatchEvent::Skipped { key: None, reason: "too long".into() });
    _ = world.apply(Service, ListWatchEvent::ListDone(Version(9)));
    assert_eq!((world.names(Service), world.is_synced), (vec!["ns/a"], false));
    assert_eq!(world.list(Service, &[]), Verdict::ListAgain { missing: 1, known: 1 });
    assert!(!world.is_synced, "a list that is doubted does not make the source complete");
    assert_eq!(world.list(Service, &[]), Verdict::Fine);
    assert_eq!((world.names(Service), world.is_synced), (vec![], true));
}

#[test]
fn a_list_that_lacks_most_needs_a_second_one() {
    let names: Vec<String> = (0..20).map(|n| format!("s{n:02}")).collect();
    let all: Vec<(&str, u32, u32)> = names.iter().map(|name| (name.as_str(), 1, 5)).collect();
    let mut world = synced(&all);
    assert_eq!(world.list(Service, &all[..9]), Verdict::ListAgain { missing: 11, known: 20 });
    assert_eq!(world.names(Service).len(), 20);
    assert_eq!(world.list(Service, &all), Verdict::Fine, "the second list has them all");
    assert_eq!(world.names(Service).len(), 20);
    assert_eq!(world.list(Service, &[]), Verdict::ListAgain { missing: 20, known: 20 });
    assert_eq!(world.list(Service, &all[..2]), Verdict::Fine, "the second list lacks most of the same");
    assert_eq!(world.names(Service).len(), 2);
}

/// An apiserver may return with an empty store, or with one that has only its own service.
#[test]
fn a_list_that_lacks_most_of_a_few_objects_needs_a_second_one_too() {
    for (known, left) in [(1, 0), (2, 0), (3, 1), (8, 0), (8, 1)] {
        let names: Vec<String> = (0..known).map(|n| format!("s{n}")).collect();
        let all: Vec<(&str, u32, u32)> = names.iter().map(|name| (name.as_str(), 1, 5)).collect();
        let mut world = synced(&all);
        assert_eq!(world.list(Service, &all[..left]), Verdict::ListAgain { missing: known - left, known });
        assert_eq!(world.names(Service).len(), known);
        assert_eq!(world.list(Service, &all), Verdict::Fine, "the second list has them all");
        _ = world.list(Service, &all[..left]);
        assert_eq!(world.list(Service, &all[..left]), Verdict::Fine);
        assert_eq!(world.names(Service).len(), left);
        // What a watch reports needs no list.
        let mut world = synced(&all);
        for name in &names[left..] {
            assert_eq!(world.apply(Service, delete(Service, name, 1, 6)), Verdict::Fine);
        }
        assert_eq!(world.names(Service).len(), left);
    }
    let mut world = World { store: store(1), served: BTreeMap::new(), is_synced: false };
    assert_eq!(world.list(Service, &[]), Verdict::ListAllAgain { missing: 1, known: 1 }, "the maps have a service");
}

#[test]
fn two_lists_that_disagree_remove_what_both_lack() {
    let names: Vec<String> = (0..30).map(|n| format!("s{n:02}")).collect();
    let all: Vec<(&str, u32, u32)> = names.iter().map(|name| (name.as_str(), 1, 5)).collect();
    let mut world = synced(&all);
    assert_eq!(world.list(Service, &all[..10]), Verdict::ListAgain { missing: 20, known: 30 });
    assert_eq!(world.list(Service, &all[20..]), Verdict::ListAgain { missing: 10, known: 30 });
    assert_eq!(world.names(Service).len(), 20);
    assert_eq!(world.list(Service, &all[20..]), Verdict::Fine);
    assert_eq!(world.names(Service).len(), 10);
}

#[test]
fn a_first_list_with_far_less_than_the_kernel_has_needs_a_second_one() {
    let mut world = World { store: store(20), served: BTreeMap::new(), is_synced: false };
    for kind in [EndpointSlice, Service] {
        assert_eq!(world.list(kind, &[]), Verdict::ListAllAgain { missing: 20, known: 20 });
        assert!(!world.is_synced);
        assert_eq!(world.list(kind, &[]), Verdict::Fine);
    }
    assert!(world.is_synced);
}

/// Each kind may have its own etcd, and the state file may be lost. All services of the node would be emptied at once.
#[test]
fn a_first_list_without_any_slice_needs_a_second_one_if_the_kernel_has_services() {
    let names: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    let all: Vec<(&str, u32, u32)> = names.iter().map(|name| (name.as_str(), 1, 5)).collect();
    for (left, is_doubted) in [(0, true), (9, true), (10, false), (20, false)] {
        let mut world = World { store: store(20), served: BTreeMap::new(), is_synced: false };
        assert_eq!(world.list(Service, &all), Verdict::Fine);
        let verdict = world.list(EndpointSlice, &all[..left]);
        assert_eq!(
            (verdict != Verdict::Fine, world.is_synced),
            (is_doubted, !is_doubted),
            "{left} slices: {verdict:?}"
        );
    }
}

#[test]
fn a_first_list_is_compared_with_the_kernel_port_by_port() {
    let names: Vec<String> = (0..12).map(|number| format!("s{number}")).collect();
    let list = |count: usize| {
        let mut store = store(48);
        let mut changes = Vec::new();
        _ = store.apply(0, ListWatchEvent::ListStart { is_rewound: false }, &mut changes);
        for name in &names[..count] {
            let dual = text(Service, name, 1, 1)
                .replace(r#""clusterIP":"198.51.100.1""#, r#""clusterIPs":["198.51.100.1","2001:db8::1"]"#)
                .replace(r#"{"port":80}"#, r#"{"name":"a","port":80,"nodePort":30080},{"name":"b","port":81}"#);
            _ = store.apply(0, event(&format!(r#"{{"type":"ADDED","object":{dual}}}"#), Service), &mut changes);
        }
        store.apply(0, ListWatchEvent::ListDone(Version(9)), &mut changes)
    };
    assert_eq!((list(12), list(6)), (Verdict::Fine, Verdict::Fine));
    assert_eq!(list(5), Verdict::ListAllAgain { missing: 28, known: 48 });
}

#[test]
fn a_service_that_becomes_headless_goes() {
    let mut world = synced(&[("a", 1, 5)]);
    let headless = text(Service, "a", 1, 6).replace("198.51.100.1", "None");
    _ = world.apply(Service, event(&format!(r#"{{"type":"MODIFIED","object":{headless}}}"#), Service));
    assert_eq!(world.names(Service), [""; 0]);
    let Tally { served, left_out, .. } = world.store.tally(0);
    assert_eq!((served, left_out), (0, 1));
}

/// A store of the Services and EndpointSlices of two namespaces, with these objects in its state file.
fn of_namespaces(remembered: &[(&str, &str)]) -> (Store, BTreeSet<String>) {
    let selection = Selection { namespaces: vec!["default".into(), "shop".into()], ..Selection::default() };
    let mut store = Store::new(&selection.scopes(), InMaps::default());
    let mut served = BTreeSet::new();
    for (namespace, name) in remembered {
        let service = ServiceName::new(namespace, name);
        let key = || Key { namespace: (*namespace).into(), name: (*name).into() };
        Kind::SERVED.into_iter().for_each(|kind| assert!(store.remember(kind, &key(), &service)));
        served.insert(service.to_string());
    }
    (store, served)
}

/// The numbers of the scopes of a namespace.
const OF_DEFAULT: [usize; 2] = [0, 1];
const OF_SHOP: [usize; 2] = [2, 3];

/// What a store sends about Services, and whether it is synced, and with what missing.
#[derive(Default)]
struct Sent {
    served: BTreeSet<String>,
    synced: Option<String>,
    /// The services that the selection leaves out, and why.
    unselected: Vec<(String, String)>,
}

impl Sent {
    fn take(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::UpsertService(service) => drop(self.served.insert(service.name.to_string())),
                Change::RemoveService(name, _) => drop(self.served.remove(&name.to_string())),
                Change::Unselect(name, _, why) => {
                    self.served.remove(&name.to_string());
                    self.unselected.push((name.to_string(), why.to_string()));
                }
                Change::Synced { incomplete, .. } => self.synced = Some(incomplete.unwrap_or_default().to_string()),
                _ => {}
            }
        }
    }

    /// Lists the objects of both kinds in a namespace, without a name for none.
    fn list(&mut self, store: &mut Store, numbers: [usize; 2], namespace: &str, names: &[&str]) -> Vec<Verdict> {
        let both = numbers.into_iter().zip(Kind::SERVED).map(|(number, kind)| {
            let mut changes = Vec::new();
            _ = store.apply(number, ListWatchEvent::ListStart { is_rewound: false }, &mut changes);
            for name in names {
                let text =
                    text(kind, name, 1, 5).replace(r#""namespace":"ns""#, &format!(r#""namespace":"{namespace}""#));
                let added = event(&format!(r#"{{"type":"ADDED","object":{text}}}"#), kind);
                _ = store.apply(number, added, &mut changes);
            }
            let verdict = store.apply(number, ListWatchEvent::ListDone(Version(9)), &mut changes);
            self.take(changes);
            verdict
        });
        both.collect()
    }

    fn deny(&mut self, store: &mut Store, numbers: [usize; 2]) {
        let mut changes = Vec::new();
        numbers.into_iter().for_each(|number| store.deny(number, &mut changes));
        self.take(changes);
    }

    fn names(&self) -> Vec<&str> {
        self.served.iter().map(String::as_str).collect()
    }
}

const BOTH_FINE: [Verdict; 2] = [Verdict::Fine; 2];

#[test]
fn a_namespace_does_not_wait_for_another_one_but_synced_does() {
    let (mut store, served) = of_namespaces(&[("default", "a"), ("default", "b"), ("shop", "c"), ("shop", "d")]);
    let mut sent = Sent { served, ..Sent::default() };
    assert_eq!(sent.list(&mut store, OF_SHOP, "shop", &["c"]), BOTH_FINE);
    assert_eq!((sent.names(), &sent.synced), (vec!["default/a", "default/b", "shop/c"], &None));
    assert_eq!(sent.list(&mut store, OF_DEFAULT, "default", &["b"]), BOTH_FINE);
    assert_eq!((sent.names(), sent.synced.as_deref()), (vec!["default/b", "shop/c"], Some("")));
}

#[test]
fn a_namespace_that_may_not_be_read_keeps_its_objects_and_no_other_waits_for_it() {
    let (mut store, served) = of_namespaces(&[("default", "a"), ("shop", "c"), ("shop", "d"), ("gone", "e")]);
    let mut sent = Sent { served, ..Sent::default() };
    sent.deny(&mut store, OF_DEFAULT);
    assert_eq!(sent.synced, None, "nothing has been read");
    assert_eq!(sent.list(&mut store, OF_SHOP, "shop", &["c"]), BOTH_FINE);
    let denied = "services/default, endpointslices/default may not be read";
    assert_eq!((sent.names(), sent.synced.as_deref()), (vec!["default/a", "gone/e", "shop/c"], Some(denied)));
    let again = sent.list(&mut store, OF_DEFAULT, "default", &[]);
    assert!(again.iter().all(|it| matches!(it, Verdict::ListAgain { missing: 1, known: 1 })), "{again:?}");
    assert_eq!(sent.list(&mut store, OF_DEFAULT, "default", &[]), BOTH_FINE);
    assert_eq!((sent.names(), sent.synced.as_deref()), (vec!["shop/c"], Some("")));
    sent.deny(&mut store, OF_SHOP);
    assert_eq!((sent.names(), sent.synced.as_deref()), (vec!["shop/c"], Some("")), "it was read before");
}

#[test]
fn what_is_no_longer_selected_goes_when_everything_is_listed() {
    let (mut store, served) = of_namespaces(&[("shop", "c"), ("gone", "e"), ("gone", "f")]);
    let mut sent = Sent { served, ..Sent::default() };
    assert_eq!(sent.list(&mut store, OF_SHOP, "shop", &["c"]), BOTH_FINE);
    assert_eq!(sent.names(), ["gone/e", "gone/f", "shop/c"]);
    assert_eq!(sent.list(&mut store, OF_DEFAULT, "default", &[]), BOTH_FINE);
    assert_eq!((sent.names(), sent.synced.as_deref()), (vec!["shop/c"], Some("")));
}

/// The slice of a service that is not selected any more belongs to one that is.
#[test]
fn a_slice_that_moved_into_the_selection_stays() {
    let selection = Selection { services: vec![ServiceName::new("default", "new")], ..Selection::default() };
    let mut store = Store::new(&selection.scopes(), InMaps::default());
    let key = Key { namespace: "default".into(), name: "s".into() };
    store.remember(EndpointSlice, &key, &ServiceName::new("default", "old"));
    let mut changes = Vec::new();
    for (number, kind) in Kind::SERVED.into_iter().enumerate() {
        _ = store.apply(number, ListWatchEvent::ListStart { is_rewound: false }, &mut changes);
        let text = text(kind, "s", 1, 5).replace(r#""namespace":"ns""#, r#""namespace":"default""#);
        _ = store.apply(number, event(&format!(r#"{{"type":"ADDED","object":{text}}}"#), kind), &mut changes);
        _ = store.apply(number, ListWatchEvent::ListDone(Version(9)), &mut changes);
    }
    assert!(store.synced.is_some() && !changes.iter().any(|it| matches!(it, Change::RemoveSlice(..))), "{changes:?}");
}

/// A disk that hangs at the start: what has been listed or watched since then is newer.
#[test]
fn what_is_remembered_late_does_not_replace_what_a_list_or_a_watch_has_delivered() {
    let mut world = World::new();
    let remember = |world: &mut World, kind, name| {
        world.store.remember(kind, &Key::new("ns", name), &ServiceName::new("ns", name))
    };
    assert!(world.store.may_be_recalled());
    _ = world.apply(Service, ListWatchEvent::ListStart { is_rewound: false });
    _ = world.apply(Service, upsert(Service, "listed", 1, 5));
    _ = world.apply(Service, delete(Service, "deleted", 2, 6));
    assert!(!world.store.may_be_recalled());
    let added = ["listed", "deleted", "not yet listed"].map(|name| remember(&mut world, Service, name));
    assert_eq!(added, [false, false, true]);
    world.served.insert((Service, "ns/not yet listed".into()), String::new());
    _ = world.apply(Service, ListWatchEvent::ListDone(Version(9)));
    let skipped = ListWatchEvent::Skipped { key: Some(Key::new("ns", "undecodable")), reason: "bad".into() };
    _ = world.apply(EndpointSlice, ListWatchEvent::ListStart { is_rewound: false });
    _ = world.apply(EndpointSlice, skipped);
    _ = world.apply(EndpointSlice, ListWatchEvent::ListDone(Version(9)));
    assert_eq!((world.names(Service), world.is_synced), (vec!["ns/listed"], true));
    assert!(world.store.may_be_recalled());
    assert!(!remember(&mut world, Service, "listed by none"));
    let added = ["undecodable", "listed by none"].map(|name| remember(&mut world, EndpointSlice, name));
    assert_eq!(added, [true, false]);
    _ = world.apply(Kind::Node, ListWatchEvent::ListStart { is_rewound: false });
    let missing = |world: &mut World| {
        let mut changes = vec![Change::NodeObject(None)];
        world.store.recall(&mut changes, Some("n1"));
        !changes.is_empty()
    };
    assert!(missing(&mut world));
    _ = world.apply(Kind::Node, ListWatchEvent::ListDone(Version(9)));
    assert!(!missing(&mut world) && !world.store.remember_node("n1"));
}

/// A store of namespace shop, with remembered services of the whole cluster: some of shop, and some of another namespace.
fn reselected(of_shop: u32, of_another: u32) -> Store {
    let selection = Selection { namespaces: vec!["default".into(), "shop".into()], ..Selection::default() };
    let mut store = Store::new(&selection.scopes(), InMaps::default());
    for (namespace, count) in [("shop", of_shop), ("pay", of_another)] {
        for number in 0..count {
            let name = ServiceName::new(namespace, &format!("s{number}"));
            store.remember(Service, &Key { namespace: namespace.into(), name: Arc::clone(&name.name) }, &name);
        }
    }
    store.reselect("kubernetes.namespaces = default, shop");
    store
}

/// Lists both namespaces, with these services of shop. Returns the services that are removed, and why.
fn list_shop(store: &mut Store, names: &[&str]) -> Vec<(String, String)> {
    let mut sent = Sent::default();
    _ = sent.list(store, OF_DEFAULT, "default", &[]);
    // A list that lacks much is confirmed by another one.
    for _ in 0..2 {
        _ = sent.list(store, OF_SHOP, "shop", names);
    }
    sent.unselected
}

#[test]
fn a_selection_that_leaves_out_most_services_waits_to_be_accepted() {
    let mut store = reselected(1, 2);
    assert_eq!(list_shop(&mut store, &["s0"]), []);
    let held = "kubernetes.namespaces = default, shop selects 1 of 3 known services";
    assert_eq!(store.held().map(|held| &**held), Some(held));
    assert_eq!(store.synced, Some(Some(held.into())));
    let mut changes = Vec::new();
    assert_eq!(store.accept(&mut changes).as_deref(), Some(held));
    let why: Arc<str> = "not selected by kubernetes.namespaces = default, shop".into();
    let gone = |name| Change::Unselect(ServiceName::new("pay", name), Source::Kubernetes, Arc::clone(&why));
    let synced = Change::Synced { source: Source::Kubernetes, incomplete: None };
    assert_eq!(changes, [gone("s0"), gone("s1"), synced]);
    assert_eq!(store.accept(&mut changes), None);
}

#[test]
fn a_selection_that_leaves_out_half_of_the_services_takes_effect() {
    let mut store = reselected(2, 2);
    let why = "not selected by kubernetes.namespaces = default, shop";
    let gone = list_shop(&mut store, &["s0", "s1"]);
    assert_eq!(gone, [("pay/s0".to_owned(), why.to_owned()), ("pay/s1".to_owned(), why.to_owned())]);
    assert!(!store.is_reselected());
}

/// Labels that match again later end the wait: what the lists lack counts, not what they lacked once.
#[test]
fn a_selection_that_selects_again_waits_for_nothing() {
    let mut store = reselected(3, 0);
    assert_eq!(list_shop(&mut store, &[]), []);
    assert!(store.held().is_some());
    assert_eq!(list_shop(&mut store, &["s0", "s1", "s2"]), []);
    assert!(!store.is_reselected());
}

#[test]
fn first_lists_of_namespaces_are_compared_with_the_kernel_together() {
    let selection = Selection { namespaces: vec!["default".into(), "shop".into()], ..Selection::default() };
    let mut store = Store::new(&selection.scopes(), InMaps { ports: 20, with_backends: 0 });
    let mut sent = Sent::default();
    assert_eq!(sent.list(&mut store, OF_DEFAULT, "default", &["a"]), BOTH_FINE);
    let verdicts = sent.list(&mut store, OF_SHOP, "shop", &["b"]);
    assert_eq!((verdicts[0], &sent.synced), (Verdict::ListAllAgain { missing: 18, known: 20 }, &None));
    assert_eq!(sent.list(&mut store, OF_SHOP, "shop", &["b"]), BOTH_FINE);
    assert_eq!(sent.synced, None, "the other one is listed again, too");
    assert_eq!(sent.list(&mut store, OF_DEFAULT, "default", &["a"]), BOTH_FINE);
    assert_eq!(sent.synced.as_deref(), Some(""));
}

proptest! {
    /// Repeated events, in any order of objects, and lists that may be incomplete result in the state of the last
    /// complete list and the events after it.
    #[test]
    fn any_news_end_as_the_cluster_is(
        steps in proptest::collection::vec((0_usize..8, 0_u8..6, any::<bool>()), 1..60),
    ) {
        let mut world = synced(&[]);
        let mut cluster: BTreeMap<String, (u32, u32)> = BTreeMap::new();
        let (mut version, mut lives) = (10, 0);
        for (object, step, twice) in steps {
            let name = format!("s{object}");
            version += 1;
            match step {
                0..=2 => {
                    let life = cluster.get(&name).map_or_else(|| { lives += 1; lives }, |(life, _)| *life);
                    cluster.insert(name.clone(), (life, version));
                    for _ in 0..=u8::from(twice) {
                        _ = world.apply(Service, upsert(Service, &name, life, version));
                    }
                }
                3 => if let Some((life, before)) = cluster.remove(&name) {
                    _ = world.apply(Service, delete(Service, &name, life, version));
                    if twice {
                        _ = world.apply(Service, upsert(Service, &name, life, before));
                    }
                },
                4 => {
                    let objects: Vec<_> = cluster.iter().map(|(n, (l, v))| (n.as_str(), *l, *v)).collect();
                    prop_assert_eq!(world.list(Service, &objects), Verdict::Fine);
                }
                _ => {
                    // An incomplete list, and then a complete one after changes without events.
                    _ = world.apply(Service, ListWatchEvent::ListStart { is_rewound: false });
                    cluster.remove(&name);
                    lives += 1;
                    cluster.insert(format!("s{}", (object + 1) % 8), (lives, version));
                    let objects: Vec<_> = cluster.iter().map(|(n, (l, v))| (n.as_str(), *l, *v)).collect();
                    prop_assert_eq!(world.list(Service, &objects), Verdict::Fine);
                }
            }
        }
        let served: Vec<_> = world.served.iter().map(|((_, name), v)| (name.clone(), v.clone())).collect();
        let wanted: Vec<_> = cluster.iter().map(|(n, (_, v))| (format!("ns/{n}"), v.to_string())).collect();
        prop_assert_eq!(served, wanted);
    }
}

/// A store that receives messages about the Node, and its results.
struct NodeWorld(Store);

impl NodeWorld {
    fn apply(&mut self, events: impl IntoIterator<Item = ListWatchEvent>) -> (Vec<Option<String>>, Verdict) {
        let (mut changes, mut verdict) = (Vec::new(), Verdict::Fine);
        for event in events {
            verdict = self.0.apply(2, event, &mut changes);
        }
        let reported = changes.into_iter().map(|change| match change {
            Change::NodeObject(object) => object.map(|object| object.zone.to_string()),
            other => panic!("{other:?}"),
        });
        (reported.collect(), verdict)
    }

    fn list(&mut self, nodes: impl IntoIterator<Item = ListWatchEvent>) -> (Vec<Option<String>>, Verdict) {
        let begin = std::iter::once(ListWatchEvent::ListStart { is_rewound: false });
        self.apply(begin.chain(nodes).chain([ListWatchEvent::ListDone(Version(100))]))
    }
}

fn node_event(kind: &str, version: u32) -> ListWatchEvent {
    let text = format!(
        r#"{{"type":"{kind}","object":{{"metadata":{{"name":"n1","resourceVersion":"{version}","labels":{{"topology.kubernetes.io/zone":"z{version}"}}}}}}}}"#
    );
    event(&text, Kind::Node)
}

const NOTHING: (Vec<Option<String>>, Verdict) = (Vec::new(), Verdict::Fine);
const DOUBT: (Vec<Option<String>>, Verdict) = (Vec::new(), Verdict::ListAgain { missing: 1, known: 1 });

fn zone(version: u32) -> (Vec<Option<String>>, Verdict) {
    (vec![Some(format!("z{version}"))], Verdict::Fine)
}

fn missing() -> (Vec<Option<String>>, Verdict) {
    (vec![None], Verdict::Fine)
}

#[test]
fn a_node_that_is_deleted_is_missing_at_once_and_back_when_it_is_created() {
    let mut world = NodeWorld(store(0));
    assert_eq!(world.list([node_event("ADDED", 5)]), zone(5));
    assert_eq!(world.apply([node_event("DELETED", 6)]), missing());
    assert_eq!(world.apply([node_event("MODIFIED", 4)]), NOTHING, "late news");
    assert_eq!(world.apply([node_event("ADDED", 7)]), zone(7));
    assert_eq!(world.apply([node_event("DELETED", 6)]), NOTHING, "late news");
}

#[test]
fn a_node_that_a_list_lacks_is_missing_when_a_second_list_agrees() {
    let mut world = NodeWorld(store(0));
    assert_eq!(world.list([node_event("ADDED", 5)]), zone(5));
    assert_eq!(world.list([]), DOUBT);
    assert_eq!(world.list([node_event("ADDED", 5)]), NOTHING, "it is there after all");
    assert_eq!(world.list([]), DOUBT);
    assert_eq!(world.list([]), missing());
    assert_eq!(world.list([]), NOTHING, "as is known");
    assert_eq!(world.list([node_event("ADDED", 5)]), zone(5), "in the previous version");
}

/// A watch delivers the Node again, and then a list lacks it: this is a new absence.
#[test]
fn a_node_that_came_back_can_be_missed_again() {
    let mut world = NodeWorld(store(0));
    assert_eq!((world.list([]), world.list([])), (DOUBT, missing()));
    assert_eq!(world.apply([node_event("ADDED", 5)]), zone(5));
    assert_eq!((world.list([]), world.list([])), (DOUBT, missing()));
    let mut world = NodeWorld(store(0));
    assert_eq!(world.list([]), DOUBT);
    assert_eq!(world.apply([node_event("ADDED", 5)]), zone(5));
    assert_eq!((world.list([]), world.list([])), (DOUBT, missing()), "one list is not two");
}

#[test]
fn a_node_that_was_never_there_is_missing_when_two_lists_say_so() {
    let mut world = NodeWorld(store(0));
    assert_eq!((world.list([]), world.list([])), (DOUBT, missing()));
    let mut world = NodeWorld(store(0));
    world.0.remember_node("n1");
    assert_eq!((world.list([]), world.list([])), (DOUBT, missing()));
}

#[test]
fn an_invalid_node_exists() {
    let odd = || [ListWatchEvent::Skipped { key: Some(Key::new("default", "n1")), reason: "odd".into() }];
    let nameless = || [ListWatchEvent::Skipped { key: None, reason: "odd".into() }];
    let mut world = NodeWorld(store(0));
    assert_eq!((world.list(odd()), world.list(nameless()), world.list(odd())), (NOTHING, NOTHING, NOTHING));
    assert_eq!(world.list([node_event("ADDED", 5)]), zone(5));
    assert_eq!((world.list(odd()), world.list(odd())), (NOTHING, NOTHING));
}
