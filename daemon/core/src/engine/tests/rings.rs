use std::collections::BTreeSet;

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
        let maps = MemoryDatapath::new(LIMITS);
        let config = EngineConfig {
            sources: BTreeSet::from([Source::Kubernetes]),
            max_services: LIMITS.services,
            packets: PacketsConfig { is_on: true, cluster_ips: false, is_consistent: true },
            ..EngineConfig::default()
        };
        let engine = Engine::new(config, maps.dump().expect("memory can be read"));
        let mut node = Self { engine, maps, now: Moment(0) };
        node.send([Change::Synced { source: Source::Kubernetes, incomplete: None }]);
        node
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
