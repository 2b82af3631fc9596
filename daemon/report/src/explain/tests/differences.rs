use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{
    Backend, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort,
};
use nodelb_core::state::entries::{FrontendEntry, MapOp, ServiceId};
use nodelb_core::state::kernel_check::EntryKey;

const LIMITS: Limits = Limits { frontends: 5, services: 32, slots: 128, affinity: 16, outside: 0, source_ranges: 0 };
const NEXT: NextCheck = NextCheck { seconds: Some(84) };

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

fn service(full: &str, source: Source, created: u64, frontend: &str) -> Change {
    let L4Addr { addr, port, .. } = l4(frontend);
    let frontends = vec![FrontendSpec { addr, port, kind: FrontendKind::ClusterIP }];
    Change::UpsertService(Service {
        created: Some(created),
        ports: vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, frontends }],
        ..Service::new(full.parse().expect("valid in a test"), source)
    })
}

fn slice(full: &str, source: Source, backends: &[&str]) -> Change {
    let service: ServiceName = full.parse().expect("valid in a test");
    let object: Arc<str> = format!("EndpointSlice {full}").into();
    let resource_version = "7".into();
    let backends = backends.iter().map(|text| Backend::new(l4(text).addr, l4(text).port)).collect();
    Change::UpsertSlice(Slice {
        name: SliceName::new(&service.namespace, "s"),
        service,
        source,
        origin: Origin { object, resource_version, ..Origin::default() },
        ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    })
}

fn synced(source: Source) -> Change {
    Change::Synced { source, incomplete: None }
}

struct World {
    engine: Engine,
    maps: MemoryDatapath,
}

impl World {
    /// A synced state with `shop/web` of Kubernetes served.
    fn new() -> Self {
        let sources = BTreeSet::from([Source::Files, Source::Kubernetes]);
        let config = EngineConfig { sources, max_services: LIMITS.services, ..EngineConfig::default() };
        let maps = MemoryDatapath::new(LIMITS);
        let mut world = Self { engine: Engine::new(config, maps.dump().expect("memory can be read")), maps };
        world.send([
            service("shop/web", Source::Kubernetes, 100, "198.51.100.10:80"),
            slice("shop/web", Source::Kubernetes, &["192.0.2.1:8080", "192.0.2.2:8080"]),
            synced(Source::Files),
            synced(Source::Kubernetes),
        ]);
        world
    }

    fn send(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.engine.reconcile(&mut self.maps, Moment(0));
    }

    /// Changes the maps as another program does.
    fn meddle(&mut self, op: MapOp) {
        assert!(self.maps.apply(&[op], Moment(0)).iter().all(Result::is_ok));
    }

    fn content(&self) -> Content {
        Content { state: self.maps.dump().expect("memory can be read"), ..Content::default() }
    }

    fn rows(&self, filter: &Filter) -> Vec<Difference> {
        differences(&self.engine.snapshot(Moment(0)), &self.content(), NEXT, filter)
    }

    /// Every row as `what | source | memory | kernel | cause | action`.
    fn texts(&self) -> Vec<String> {
        self.rows(&Filter::default()).iter().map(text).collect()
    }
}

/// A node-local DNS cache made every comparison fail.
#[test]
fn an_address_that_the_node_has_on_purpose_is_no_difference() {
    let mut world = World::new();
    let addresses = BTreeSet::from([l4("198.51.100.10:80").addr]);
    world.send([Change::Node(NodeFacts { addresses, ..NodeFacts::default() })]);
    assert_eq!(world.texts(), [""; 0]);
}

fn text(row: &Difference) -> String {
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
    let columns = [or_none(&row.source), or_none(&row.memory), or_none(&row.kernel)];
    format!("{} | {} | {} | {}", row.what, columns.join(" | "), row.cause, row.action)
}

#[test]
fn nothing_differs_if_everything_is_served() {
    assert_eq!(World::new().texts(), Vec::<String>::new());
}

#[test]
fn drift_is_reported_as_drift() {
    let mut world = World::new();
    world.meddle(MapOp::DeleteFrontend(l4("198.51.100.10:80")));
    let entry = FrontendEntry { service: ServiceId(1), inside_local: true, outside_local: false };
    world.meddle(MapOp::PutFrontend(l4("198.51.100.66:80"), entry));
    let tools = "bpftool, or another program with access to the maps";
    let soon = "repaired at the next check, in 84 s; `systemctl reload nodelb` checks immediately";
    assert_eq!(
        world.texts(),
        [
            format!(
                "198.51.100.10:80/TCP | - | leads to shop/web:http/TCP/IPv4 | absent | another process deleted the entry: {tools} | {soon}"
            ),
            format!(
                "198.51.100.66:80/TCP | - | absent | leads to shop/web:http/TCP/IPv4 (local view) | another process added \
                 the entry: {tools} | {soon}"
            ),
        ]
    );
    let mut content = world.content();
    content.broken.entries.insert(EntryKey::Frontend(l4("198.51.100.10:80")), "junk".into());
    content.broken.with_invalid_key.push("a key that is no address".into());
    let rows = differences(&world.engine.snapshot(Moment(0)), &content, NEXT, &Filter::default());
    assert_eq!(rows[0].kernel.as_deref(), Some("junk"));
    assert_eq!(rows.last().map(|row| row.what.as_str()), Some("map frontends"));
}

#[test]
fn lists_are_shown_side_by_side() {
    let mut world = World::new();
    world.meddle(MapOp::PutService(ServiceId(1), Arc::default()));
    let rows = world.rows(&Filter::default());
    assert_eq!(rows[0].what, "shop/web:http/TCP/IPv4");
    assert_eq!(rows[0].memory.as_deref(), Some("cluster [192.0.2.1:8080/TCP, 192.0.2.2:8080/TCP]"));
    assert_eq!(rows[0].kernel.as_deref(), Some("cluster []"));
}

#[test]
fn filters_narrow_both_halves() {
    let mut world = World::new();
    world.send([
        service("shop/other", Source::Kubernetes, 100, "198.51.100.11:80"),
        slice("shop/other", Source::Kubernetes, &["192.0.2.3:8080"]),
    ]);
    world.meddle(MapOp::DeleteFrontend(l4("198.51.100.10:80")));
    world.meddle(MapOp::PutService(ServiceId(2), Arc::default()));
    let count = |service: Option<&str>, address: Option<&str>| {
        let service = service.map(|name| name.parse().expect("valid in a test"));
        let address = address.map(|text| l4(text).addr);
        world
            .rows(&Filter { service, address, ..Filter::default() })
            .iter()
            .map(|row| row.what.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(count(Some("shop/web"), None), ["198.51.100.10:80/TCP"]);
    assert_eq!(count(Some("shop/other"), None), ["shop/other:http/TCP/IPv4"]);
    assert_eq!(count(None, Some("198.51.100.10:80")), ["198.51.100.10:80/TCP"]);
    assert_eq!(count(None, Some("198.51.100.11:80")), ["shop/other:http/TCP/IPv4"]);
    assert_eq!(count(None, Some("192.0.2.3:80")), ["shop/other:http/TCP/IPv4"]);
    assert_eq!(count(Some("shop/none"), None), Vec::<String>::new());
}

#[test]
fn a_full_map_is_reported_with_its_remedy() {
    let mut world = World::new();
    for n in 1..=3 {
        let name = format!("shop/more-{n}");
        world.send([
            service(&name, Source::Kubernetes, 200, &format!("198.51.100.2{n}:80")),
            slice(&name, Source::Kubernetes, &["192.0.2.1:8080"]),
        ]);
    }
    let full = "map frontends is full (5 entries): raise datapath.max-frontends and restart nodelb";
    assert_eq!(
        world.texts(),
        [format!(
            "198.51.100.23:80/TCP | - | leads to shop/more-3:http/TCP/IPv4 | absent | {full} | retried at least \
             every 5 s until it succeeds"
        )]
    );
}

#[test]
fn held_contested_refused_and_doubly_described_are_differences_with_the_source() {
    let mut world = World::new();
    world.send([
        service("default/kubernetes", Source::Kubernetes, 100, "198.51.100.1:443"),
        slice("default/kubernetes", Source::Kubernetes, &["192.0.2.9:6443"]),
    ]);
    world.send([
        slice("default/kubernetes", Source::Kubernetes, &[]),
        service("shop/late", Source::Kubernetes, 300, "198.51.100.10:80"),
        service("shop/bad", Source::Kubernetes, 300, "127.0.0.1:80"),
        slice("shop/web", Source::Kubernetes, &["192.0.2.1:8080", "127.0.0.1:8080"]),
        service("shop/web", Source::Files, 400, "198.51.100.10:80"),
    ]);
    let rows = world.rows(&Filter::default());
    let shown: Vec<(&str, &str)> =
        rows.iter().map(|row| (row.what.as_str(), row.memory.as_deref().unwrap_or("-"))).collect();
    assert_eq!(
        shown,
        [
            ("shop/web", "another description takes precedence"),
            ("default/kubernetes:http/TCP/IPv4", "[192.0.2.9:6443/TCP]"),
            ("127.0.0.1:80/TCP", "not served"),
            ("198.51.100.10:80/TCP", "served for shop/web:http/TCP/IPv4"),
            ("shop/web:http backend 127.0.0.1:8080/TCP", "Refused"),
        ]
    );
    assert_eq!(rows[1].cause, "EndpointSlice default/kubernetes at resourceVersion 7 left it without backends");
    assert!(rows.iter().all(|row| row.between == Between::SourceMemory && !row.cause.is_empty()), "{rows:#?}");
}

#[test]
fn a_waiting_object_names_its_source() {
    let mut world = World::new();
    let sources = BTreeSet::from([Source::Files, Source::Kubernetes]);
    let config = EngineConfig { sources, max_services: LIMITS.services, ..EngineConfig::default() };
    world.engine = Engine::new(config, world.content().state);
    world.send([Change::Node(NodeFacts::default()), synced(Source::Files)]);
    let rows = world.rows(&Filter::default());
    assert_eq!(rows[0].what, "source kubernetes");
    assert!(rows[0].cause.contains("nodelb apiservers"), "{}", rows[0].cause);
    let frontend = rows.iter().find(|row| row.what == "198.51.100.10:80/TCP").expect("it is not wanted yet");
    assert_eq!(frontend.cause, "nodelb has not read everything from kubernetes yet");
    assert_eq!(frontend.action, "waits for that: nothing is removed before");
}
