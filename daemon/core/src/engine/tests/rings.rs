use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::change::Change;
use crate::config::{EngineConfig, PacketsConfig};
use crate::datapath::{Datapath, Limits};
use crate::engine::Engine;
use crate::memory::MemoryDatapath;
use crate::model::addr::{L4Addr, Protocol};
use crate::model::moment::Moment;
use crate::model::service::{
    Backend, FrontendKind, FrontendSpec, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};
use crate::state::entries::MapOp;
use crate::state::status::Status;

/// A list of two backends takes 88 slots with its ring.
const LIMITS: Limits = Limits { frontends: 64, services: 32, slots: 128, affinity: 16, outside: 16, source_ranges: 16 };

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

/// A service for clients outside the node, with these backends.
fn described(full: &str, frontend: &str, backends: &[&str]) -> [Change; 2] {
    described_at(full, (FrontendKind::LoadBalancer, frontend), backends)
}

fn described_at(full: &str, (kind, frontend): (FrontendKind, &str), backends: &[&str]) -> [Change; 2] {
    let (name, L4Addr { addr, port, .. }) = (full.parse::<ServiceName>().expect("valid in a test"), l4(frontend));
    let frontends = vec![FrontendSpec { addr, port, kind }];
    let service = Service {
        ports: vec![ServicePort { name: "web".into(), protocol: Protocol::Tcp, frontends }],
        ..Service::new(name.clone(), Source::Kubernetes)
    };
    let backends = backends.iter().map(|text| Backend::new(l4(text).addr, l4(text).port)).collect();
    let slice = Slice {
        name: SliceName::new(&name.namespace, &name.name),
        source: Source::Kubernetes,
        origin: service.origin.clone(),
        ports: vec![SlicePort { name: "web".into(), protocol: Protocol::Tcp, backends }],
        service: name,
        problem: None,
    };
    [Change::UpsertService(service), Change::UpsertSlice(slice)]
}

/// For each service in the maps: the last octets of its backends, and whether it has rings.
fn services(maps: &MemoryDatapath) -> Vec<(Vec<u8>, bool)> {
    let state = maps.dump().expect("memory can be read");
    let used = state.services.values().filter(|entry| entry.tag.is_some());
    used.map(|entry| (entry.cluster.iter().map(|slot| slot.addr.addr.octets()[15]).collect(), entry.has_rings))
        .collect()
}

/// A node that makes the choice of backends consistent.
struct Node {
    engine: Engine,
    maps: MemoryDatapath,
    now: Moment,
}

impl Node {
    fn new() -> Self {
        let mut node = Self::started(MemoryDatapath::new(LIMITS));
        node.send([Change::Synced { source: Source::Kubernetes, incomplete: None }]);
        node
    }

    /// Without a report of its source.
    fn started(maps: MemoryDatapath) -> Self {
        let config = EngineConfig {
            sources: BTreeSet::from([Source::Kubernetes]),
            max_services: LIMITS.services,
            packets: PacketsConfig { is_on: true, cluster_ips: false, is_consistent: true, direct_return: true },
            ..EngineConfig::default()
        };
        let engine = Engine::new(config, maps.dump().expect("memory can be read"));
        Self { engine, maps, now: Moment(0) }
    }

    /// The services in the maps after these changes, and the number of those that lack their rings.
    fn send(&mut self, changes: impl IntoIterator<Item = Change>) -> (Vec<(Vec<u8>, bool)>, usize) {
        changes.into_iter().for_each(|change| self.engine.change(change));
        for _ in 0..3 {
            self.now = self.now.plus(10_000);
            self.engine.reconcile(&mut self.maps, self.now);
        }
        (services(&self.maps), self.engine.snapshot(self.now).ringless.len())
    }
}

#[test]
fn a_list_is_written_although_its_ring_does_not_fit() {
    let mut node = Node::new();
    let first = described("shop/a", "198.51.100.1:80", &["192.0.2.1:80", "192.0.2.2:80"]);
    assert_eq!(node.send(first), (vec![(vec![1, 2], true)], 0));
    let second = described("shop/b", "198.51.100.2:80", &["192.0.2.3:80", "192.0.2.4:80"]);
    assert_eq!(node.send(second), (vec![(vec![1, 2], true), (vec![3, 4], false)], 1), "no room for a second ring");
    let changed = described("shop/a", "198.51.100.1:80", &["192.0.2.1:80", "192.0.2.5:80"]);
    let (lists, ringless) = node.send(changed);
    let backends: Vec<_> = lists.iter().map(|(backends, _)| backends.clone()).collect();
    assert_eq!((backends, ringless), (vec![vec![1, 5], vec![3, 4]], 1), "the lists, and room for one ring again");
    let name = "shop/b".parse().expect("valid in a test");
    let gone = node.send([Change::RemoveService(name, Source::Kubernetes)]);
    assert_eq!(gone, (vec![(vec![1, 5], true)], 0), "a service is gone: there is room again");
}

/// Found as: after one change of its endpoints, a service with direct return had no ring any more, with most slots free, so
/// that its packets went to other backends at every other node of entry.
#[test]
fn a_ring_that_does_not_fit_next_to_the_old_one_is_written_when_that_is_gone() {
    let mut node = Node::new();
    node.send(described("shop/a", "198.51.100.1:80", &["192.0.2.1:80", "192.0.2.2:80"]));
    let changed = described("shop/a", "198.51.100.1:80", &["192.0.2.1:80", "192.0.2.5:80"]);
    assert_eq!(node.send(changed), (vec![(vec![1, 5], true)], 0));
}

#[test]
fn a_list_that_shrinks_makes_room_for_the_ring_of_another() {
    let mut node = Node::new();
    node.send(described("shop/a", "198.51.100.1:80", &["192.0.2.1:80", "192.0.2.2:80"]));
    let second = described("shop/b", "198.51.100.2:80", &["192.0.2.3:80", "192.0.2.4:80"]);
    assert_eq!(node.send(second).1, 1);
    // One backend needs no ring.
    let changed = described("shop/a", "198.51.100.1:80", &["192.0.2.1:80"]);
    assert_eq!(node.send(changed), (vec![(vec![1], true), (vec![3, 4], true)], 0));
}

#[test]
fn a_service_that_clients_outside_cannot_reach_any_more_does_not_lack_its_ring() {
    let mut node = Node::new();
    node.send(described("shop/a", "198.51.100.1:80", &["192.0.2.1:80", "192.0.2.2:80"]));
    let b = |kind| described_at("shop/b", (kind, "198.51.100.2:80"), &["192.0.2.3:80", "192.0.2.4:80"]);
    let both = vec![(vec![1, 2], true), (vec![3, 4], false)];
    assert_eq!(node.send(b(FrontendKind::LoadBalancer)), (both.clone(), 1));
    assert_eq!(node.send(b(FrontendKind::ClusterIP)), (both.clone(), 0));
    assert_eq!(node.send(b(FrontendKind::LoadBalancer)), (both, 1));
}

/// Found as: after a surge of backends, a service had no ring until the next start, with most slots free.
#[test]
fn a_ring_that_did_not_fit_is_tried_when_the_list_needs_a_smaller_one() {
    let at = |backends: std::ops::Range<u8>| -> Vec<String> { backends.map(|n| format!("192.0.2.{n}:80")).collect() };
    let with = |backends: &[String]| {
        described("shop/a", "198.51.100.1:80", &backends.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for (after, expected) in [(1..3, vec![1, 2]), (1..2, vec![1])] {
        let mut node = Node::new();
        assert_eq!(node.send(with(&at(1..12))).1, 1, "a ring of 341 slots");
        assert_eq!(node.send(with(&at(2..13))).1, 1, "the same size is not tried again");
        assert_eq!(node.send(with(&at(after))), (vec![(expected, true)], 0));
    }
}

/// Found as: the backend got connections until the source reported, although checks had failed it.
#[test]
fn a_failed_backend_leaves_a_list_whose_ring_does_not_fit_twice_before_its_source_reports() {
    let mut node = Node::new();
    let backends = ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80"];
    let checked = || {
        described("shop/a", "198.51.100.1:80", &backends).map(|change| match change {
            Change::UpsertService(service) => {
                Change::UpsertService(Service { health_check: Some(Arc::default()), ..service })
            }
            other => other,
        })
    };
    node.send(checked());
    assert_eq!(services(&node.maps), [(vec![1, 2, 3], true)]);
    let mut node = Node::started(node.maps);
    node.send(checked());
    let failed = BTreeMap::from([((l4(backends[0]).addr, 80), "refused".into())]);
    node.send([Change::Quarantine("shop/a".parse().expect("valid in a test"), failed)]);
    let lists: Vec<_> = services(&node.maps).into_iter().map(|(backends, _)| backends).collect();
    assert_eq!(lists, [[2, 3]]);
}

/// Found as: the list without its ring waited as long as the operation of another service that had failed for minutes.
#[test]
fn a_list_without_its_ring_is_written_soon_although_another_service_fails_all_the_time() {
    let mut node = Node::new();
    node.send(described("shop/a", "198.51.100.1:80", &["192.0.2.1:80", "192.0.2.2:80"]));
    let refused = l4("198.51.100.9:80");
    node.maps = node.maps.with_fault(Box::new(move |op| matches!(op, MapOp::PutFrontend(at, _) if *at == refused)));
    node.send(described("shop/x", "198.51.100.9:80", &["192.0.2.9:80"]));
    (0..3).for_each(|_| drop(node.send([])));
    assert_eq!(node.engine.next_round(), Some(node.now.plus(5_000)));
    described("shop/b", "198.51.100.2:80", &["192.0.2.3:80", "192.0.2.4:80"])
        .into_iter()
        .for_each(|change| node.engine.change(change));
    node.engine.reconcile(&mut node.maps, node.now);
    let due = node.engine.next_round().expect("the ring did not fit");
    assert!(due <= node.now.plus(100), "{due:?}, and it is {:?}", node.now);
    node.engine.reconcile(&mut node.maps, due);
    assert!(services(&node.maps).contains(&(vec![3, 4], false)));
}

/// Found as: an address was Pending while only its ring waited for room, and then OK since that moment.
#[test]
fn an_address_stays_ok_while_only_its_ring_waits_for_room() {
    let mut node = Node::new();
    node.send(described("shop/a", "198.51.100.1:80", &["192.0.2.1:80", "192.0.2.2:80"]));
    node.send(described("shop/b", "198.51.100.2:80", &["192.0.2.3:80", "192.0.2.4:80"]));
    let status = |engine: &Engine| {
        let snapshot = engine.snapshot(Moment(9));
        let row = &snapshot.rows[&l4("198.51.100.2:80")].status;
        (row.status, row.since)
    };
    let before = status(&node.engine);
    assert_eq!(before.0, Status::Ok);
    node.engine.change(Change::RemoveService("shop/a".parse().expect("valid in a test"), Source::Kubernetes));
    let mut now = node.now.plus(1);
    let mut waited = false;
    for _ in 0..20 {
        node.engine.reconcile(&mut node.maps, now);
        node.engine.end_round(&mut node.maps, now);
        assert_eq!(status(&node.engine), before);
        waited |= node.maps.slots_used().1 > 0;
        now = now.plus(100);
    }
    assert!(waited, "the slots of the removed service rest");
    assert_eq!(services(&node.maps), [(vec![3, 4], true)]);
}
