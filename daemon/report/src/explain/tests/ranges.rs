use crate::explain::explanation::{Client, ConnectResult, explain, explain_from};
use crate::explain::outside::DropReason;
use crate::rows::from_maps::{MapContent, Names};
use nodelb_core::change::Change;
use nodelb_core::compile::outside::PacketsConfig;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};
use nodelb_core::packets::admission::Refusal;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::MapState;

const BALANCED: &str = "198.51.100.9:80";

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

/// A service with a ClusterIP and a load balancer address for clients in this range, on the node 192.0.2.1, which also
/// has 10.244.0.1.
fn snapshot(range: &str) -> Snapshot {
    let packets = PacketsConfig { is_on: true, ..PacketsConfig::default() };
    let sources = [Source::Kubernetes].into();
    let mut engine =
        Engine::new(EngineConfig { sources, max_services: 9, packets, ..EngineConfig::default() }, MapState::default());
    let addresses = ["192.0.2.1:1", "10.244.0.1:1", "127.0.0.1:1"].map(|text| l4(text).addr).into();
    engine.change(Change::Node(NodeFacts { name: "here".into(), addresses, ..NodeFacts::default() }));
    let spec = |text: &str, kind| FrontendSpec { addr: l4(text).addr, port: l4(text).port, kind };
    let frontends = vec![spec("10.96.7.9:80", FrontendKind::ClusterIP), spec(BALANCED, FrontendKind::LoadBalancer)];
    let (name, protocol): (ServiceName, _) = ("shop/web".parse().unwrap(), l4(BALANCED).protocol);
    engine.change(Change::UpsertService(Service {
        ports: vec![ServicePort { name: "http".into(), protocol, frontends }],
        source_ranges: Some(vec![range.parse().unwrap()]),
        ..Service::new(name.clone(), Source::Kubernetes)
    }));
    let pod = Backend { node: Some("here".into()), ..Backend::new(l4("10.244.0.10:1").addr, 80) };
    engine.change(Change::UpsertSlice(Slice {
        name: SliceName::new("shop", "web-1"),
        service: name,
        source: Source::Kubernetes,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "http".into(), protocol, backends: vec![pod] }],
        problem: None,
    }));
    engine.change(Change::Synced { source: Source::Kubernetes, incomplete: None });
    let limits = Limits { frontends: 9, services: 9, slots: 9, affinity: 4, outside: 9, source_ranges: 9 };
    assert_eq!(engine.reconcile(&mut MemoryDatapath::new(limits), Moment(0)).failed, 0);
    engine.snapshot(Moment(0))
}

const SERVED: ConnectResult = ConnectResult::Forwarded(1);
const DEPENDS: ConnectResult = ConnectResult::Depends(1);
const DROPPED: ConnectResult = ConnectResult::Dropped(DropReason::NotAdmitted);
const REFUSED: ConnectResult = ConnectResult::Refused(Refusal::NotAdmitted);

fn ends(range: &str, to: &str) -> [ConnectResult; 3] {
    let snapshot = snapshot(range);
    [Client::Host, Client::Pod, Client::Outside].map(|from| explain(&snapshot, l4(to), from).result)
}

/// A pod was said to be forwarded, whatever its address, and so were all clients outside.
#[test]
fn without_an_address_the_ranges_decide_as_far_as_they_can() {
    assert_eq!(ends("203.0.113.0/24", BALANCED), [REFUSED, DEPENDS, DEPENDS]);
    assert_eq!(ends("10.244.0.0/24", BALANCED), [SERVED, DEPENDS, DEPENDS], "the node has an address in it");
    assert_eq!(ends("0.0.0.0/0", BALANCED), [SERVED; 3]);
    assert_eq!(ends("203.0.113.0/24", "10.96.7.9:80"), [SERVED, SERVED, ConnectResult::PassedThrough]);
}

/// Such clients were said to be forwarded, although no address is admitted.
#[test]
fn a_family_without_a_range_admits_no_client() {
    assert_eq!(ends("2001:db8::/64", BALANCED), [REFUSED, REFUSED, DROPPED]);
}

/// A socket bound to a loopback address was said to be forwarded, because the node has an address in the range.
#[test]
fn an_address_is_that_of_a_bound_socket() {
    let snapshot = snapshot("10.244.0.0/24");
    let end = |from: &str| explain_from(&snapshot, l4(BALANCED), (from.parse().unwrap(), None)).result;
    assert_eq!(["10.244.0.1", "10.244.0.10", "10.244.0.77"].map(end), [SERVED; 3]);
    assert_eq!(["127.0.0.1", "192.0.2.1"].map(end), [REFUSED; 2]);
    assert_eq!(end("203.0.113.9"), DROPPED);
}

/// Such a client was said to be forwarded, and the answers to it went round.
#[test]
fn a_client_with_the_address_and_port_of_a_service_is_dropped() {
    let snapshot = snapshot("0.0.0.0/0");
    let end = |port: u16| explain_from(&snapshot, l4(BALANCED), (l4(BALANCED).addr, Some(port))).result;
    assert_eq!([80, 81].map(end), [ConnectResult::Dropped(DropReason::ServedSource), SERVED]);
}

/// Without the daemon, every client was said to be forwarded.
#[test]
fn the_maps_alone_have_the_ranges() {
    for (range, expected) in [("203.0.113.0/24", [DEPENDS; 3]), ("2001:db8::/64", [REFUSED, REFUSED, DROPPED])] {
        let snapshot = snapshot(range);
        let content = MapContent {
            state: snapshot.realised.clone(),
            names: Names::default(),
            nodeport_range: snapshot.config.guard.nodeport_range.clone(),
            has_outside: true,
        };
        let ends = [Client::Host, Client::Pod, Client::Outside].map(|from| content.trace(l4(BALANCED), from).result);
        assert_eq!(ends, expected, "{range}");
        let other = content.trace(l4("10.96.7.9:80"), Client::Pod);
        assert_eq!(other.result, SERVED);
    }
}
