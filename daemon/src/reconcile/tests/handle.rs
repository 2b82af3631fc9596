use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{Origin, ServiceName, Slice, SliceName, Source};
use nodelb_core::state::entries::Realised;

use super::*;

/// A slice without backends.
fn slice(namespace: &str, service: &str) -> Change {
    Change::UpsertSlice(Slice {
        name: SliceName { namespace: namespace.into(), name: format!("{service}-1").into() },
        service: ServiceName::new(namespace, service),
        source: Source::Kubernetes,
        origin: Origin::default(),
        ports: Vec::new(),
        problem: None,
    })
}

/// Each event woke the tasks for the source, for devices and for stale sockets, and with them another thread.
#[test]
fn an_event_wakes_only_the_tasks_that_it_concerns() {
    let limits = Limits { frontends: 8, services: 8, slots: 8, affinity: 8, outside: 8, source_ranges: 8 };
    let mut engine =
        Engine::new(EngineConfig { max_services: limits.services, ..EngineConfig::default() }, Realised::default());
    let mut maps = MemoryDatapath::new(limits);
    let marker = Marker::default();
    let mut marks = marker.marks();
    let mut woken_by = |change| {
        engine.change(change);
        engine.reconcile(&mut maps, Moment(1));
        marker.publish(&engine.snapshot(Moment(1)));
        let Marks { followed, is_outside_served, stale_udp, stale } = &mut marks;
        let woken = [
            followed.has_changed().unwrap(),
            is_outside_served.has_changed().unwrap(),
            stale_udp.has_changed().unwrap(),
            stale.has_changed().unwrap(),
        ];
        followed.mark_unchanged();
        is_outside_served.mark_unchanged();
        stale_udp.mark_unchanged();
        stale.mark_unchanged();
        woken
    };
    let [followed, ..] = woken_by(Change::Node(NodeFacts { name: "n1".into(), ..NodeFacts::default() }));
    assert!(followed, "the source watches the Node of this name");
    assert_eq!(woken_by(slice("shop", "web")), [false; 4]);
    assert_eq!(woken_by(slice("default", "kubernetes")), [true, false, false, false]);
    assert_eq!(woken_by(slice("shop", "api")), [false; 4]);
}
