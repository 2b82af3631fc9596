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
    let (name, L4Addr { addr, port, .. }) = (full.parse::<ServiceName>().expect("valid in a test"), l4(frontend));
    let frontends = vec![FrontendSpec { addr, port, kind: FrontendKind::LoadBalancer }];
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

#[test]
fn a_list_is_written_although_its_ring_does_not_fit() {
    let mut maps = MemoryDatapath::new(LIMITS);
    let config = EngineConfig {
        sources: BTreeSet::from([Source::Kubernetes]),
        max_services: LIMITS.services,
        packets: PacketsConfig { is_on: true, cluster_ips: false, is_consistent: true },
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(config, maps.dump().expect("memory can be read"));
    let mut now = 0;
    let mut send = |changes: Vec<Change>| {
        changes.into_iter().for_each(|change| engine.change(change));
        for _ in 0..3 {
            now += 10_000;
            engine.reconcile(&mut maps, Moment(now));
        }
        let found = services(&maps);
        let ringless = engine.snapshot(Moment(now)).ringless;
        assert_eq!(ringless.len(), found.iter().filter(|(_, has_rings)| !has_rings).count(), "the snapshot says so");
        found
    };
    let first = described("shop/a", "198.51.100.1:80", &["192.0.2.1:80", "192.0.2.2:80"]);
    let synced = Change::Synced { source: Source::Kubernetes, incomplete: None };
    assert_eq!(send(first.into_iter().chain([synced]).collect()), [(vec![1, 2], true)]);
    let second = described("shop/b", "198.51.100.2:80", &["192.0.2.3:80", "192.0.2.4:80"]);
    assert_eq!(send(second.into()), [(vec![1, 2], true), (vec![3, 4], false)], "no room for a second ring");
    let changed = described("shop/a", "198.51.100.1:80", &["192.0.2.1:80", "192.0.2.5:80"]);
    assert_eq!(
        send(changed.into()),
        [(vec![1, 5], false), (vec![3, 4], false)],
        "nor for a new ring next to the old one"
    );
    let name = "shop/b".parse().expect("valid in a test");
    let gone = send(vec![Change::RemoveService(name, Source::Kubernetes)]);
    assert_eq!(gone, [(vec![1, 5], true)], "a service is gone: there is room again");
}
