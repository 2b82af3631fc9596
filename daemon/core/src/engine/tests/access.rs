use ipnet::IpNet;

use crate::change::Change;
use crate::compile::outside::PacketsConfig;
use crate::config::EngineConfig;
use crate::datapath::{Datapath as _, Limits};
use crate::engine::Engine;
use crate::engine::former::NOT_SEEN;
use crate::history::{Event, Kernel, What};
use crate::memory::MemoryDatapath;
use crate::model::addr::{L4Addr, Protocol};
use crate::model::forward::Forward;
use crate::model::moment::Moment;
use crate::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServicePort, Slice, SliceName, SlicePort, Source,
    TrafficPolicy,
};
use crate::model::uplink::{Uplink, UplinkEntry};
use crate::state::entries::MapOp;

const LIMITS: Limits = Limits { frontends: 64, services: 64, slots: 64, affinity: 16, outside: 64, source_ranges: 64 };

fn service(kind: FrontendKind) -> Service {
    let L4Addr { addr, port, protocol } = "198.51.100.1:80/TCP".parse().expect("valid in a test");
    let port = ServicePort { name: "http".into(), protocol, frontends: vec![FrontendSpec { addr, port, kind }] };
    let origin = Origin { object: "Service shop/web".into(), ..Origin::default() };
    Service { ports: vec![port], origin, ..Service::new("shop/web".parse().expect("valid in a test"), Source::Files) }
}

fn slice() -> Slice {
    let at: L4Addr = "192.0.2.1:80/TCP".parse().expect("valid in a test");
    Slice {
        name: SliceName::new("shop", "web"),
        service: "shop/web".parse().expect("valid in a test"),
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            backends: vec![Backend::new(at.addr, at.port)],
        }],
        problem: None,
    }
}

fn uplink() -> Uplink {
    Uplink { ifindex: 2, name: "eth0".into(), entry: UplinkEntry::default() }
}

fn ranges(service: &Service, ranges: &[&str]) -> Service {
    let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse().expect("valid in a test")).collect();
    Service { source_ranges: Some(ranges), ..service.clone() }
}

fn engine<const N: usize>(sources: [Source; N], datapath: &MemoryDatapath) -> Engine {
    let packets = PacketsConfig { is_on: true, direct_return: true, ..PacketsConfig::default() };
    let config = EngineConfig { packets, sources: sources.into(), max_services: 64, ..EngineConfig::default() };
    Engine::new(config, datapath.dump().expect("memory can be read"))
}

fn synced(source: Source) -> Change {
    Change::Synced { source, incomplete: None }
}

/// A run of nodelb with these sources that has read this state of the service, and its events.
fn start_with<const N: usize>(
    sources: [Source; N],
    state: &Service,
    datapath: &mut MemoryDatapath,
) -> (Engine, Vec<Event>) {
    let mut engine = engine(sources, datapath);
    engine.change(Change::Uplinks(vec![uplink()]));
    engine.change(Change::UpsertService(state.clone()));
    engine.change(Change::UpsertSlice(slice()));
    engine.change(synced(Source::Files));
    let events = engine.reconcile(datapath, Moment(1)).events;
    (engine, events)
}

fn start(state: &Service, datapath: &mut MemoryDatapath) -> (Engine, Vec<Event>) {
    start_with([Source::Files], state, datapath)
}

fn details_of(events: &[Event]) -> Vec<String> {
    let text = |event: &Event| {
        assert_eq!((event.what, &*event.cause.origin.object), (What::Changed, "Service shop/web"));
        event.detail.as_deref().unwrap_or_default().to_owned()
    };
    events.iter().filter(|event| event.what != What::Synced).map(text).collect()
}

/// The details of the events as the service goes through these states, one list for each after the first. They are the
/// same if each state but the first is found by a run that begins with it.
fn details(states: &[Service]) -> Vec<Vec<String>> {
    let [first, later @ ..] = states else { return Vec::new() };
    let mut datapath = MemoryDatapath::new(LIMITS);
    let mut engine = start(first, &mut datapath).0;
    let after = |(state, at): (&Service, u64)| {
        engine.change(Change::UpsertService(state.clone()));
        details_of(&engine.reconcile(&mut datapath, Moment(at)).events)
    };
    let found = later.iter().zip(2..).map(after).collect::<Vec<_>>();
    let mut datapath = MemoryDatapath::new(LIMITS);
    assert_eq!(details_of(&start(first, &mut datapath).1), [""; 0], "a first start is no news");
    for (state, expected) in later.iter().zip(&found) {
        let prefix = format!("changed {NOT_SEEN}");
        let events = details_of(&start(state, &mut datapath).1);
        let rest =
            |detail: &String| detail.strip_prefix(&prefix).expect("not seen").trim_start_matches(": ").to_owned();
        // Whether this node has a backend of its own is in the status.
        let without_here = |detail: &String| detail.rsplit("this node; ").next().unwrap_or_default().to_owned();
        let expected: Vec<String> = expected.iter().map(without_here).collect();
        assert_eq!(events.iter().map(rest).collect::<Vec<_>>(), expected, "{state:?}");
    }
    found
}

/// Found as: the ranges of a service did not admit its clients any more, and `nodelb history` had no changes.
#[test]
fn who_may_connect_is_in_the_history() {
    let balancer = service(FrontendKind::LoadBalancer);
    let with = |all: &[&str]| ranges(&balancer, all);
    let states = [
        balancer.clone(),
        with(&["10.0.0.0/8"]),
        with(&["10.0.0.0/8"]),
        with(&["203.0.113.0/24", "10.0.0.0/8"]),
        with(&["2001:db8::/32"]),
        balancer.clone(),
    ];
    let only = |ranges: &str| vec![format!("only clients in {ranges} may connect to load balancer addresses")];
    assert_eq!(
        details(&states),
        [
            only("10.0.0.0/8"),
            vec![],
            only("10.0.0.0/8, 203.0.113.0/24"),
            vec!["no client may connect to load balancer addresses".into()],
            vec!["all clients may connect to load balancer addresses".into()],
        ]
    );
}

/// Found as: clients outside timed out after each of these changes, and the history had nothing.
#[test]
fn another_policy_or_an_end_of_access_from_outside_is_in_the_history() {
    let balancer = service(FrontendKind::LoadBalancer);
    let local = |external_policy| Service { external_policy, ..balancer.clone() };
    let states = [balancer.clone(), local(TrafficPolicy::Local), local(TrafficPolicy::Cluster)];
    assert_eq!(
        details(&states),
        [
            ["clients outside the node get only backends on this node, and none is usable"],
            ["clients outside the node get the backends on all nodes"]
        ]
    );
    let file = service(FrontendKind::Static);
    let outside = Service { is_outside: true, ..file.clone() };
    assert_eq!(
        details(&[outside.clone(), file.clone(), outside]),
        [["clients outside the node may no longer connect"], ["clients outside the node may connect"]]
    );
    let local = Service { internal_policy: TrafficPolicy::Local, ..file.clone() };
    assert_eq!(
        details(&[file.clone(), local, file]),
        [
            ["no usable backend is on this node; clients on this node get only the backends there"],
            ["clients on this node get the backends on all nodes"]
        ]
    );
}

/// The history said that different backends are selected on this node, which was false.
#[test]
fn another_way_to_other_nodes_is_in_the_history_as_such() {
    let file = Service { is_outside: true, ..service(FrontendKind::Static) };
    let tunnel = Service { forward: Forward::Tunnel, ..file.clone() };
    assert_eq!(
        details(&[file.clone(), tunnel, file]),
        [
            ["packets from outside go to backends on other nodes in a tunnel"],
            ["packets from outside to backends on other nodes are translated"]
        ]
    );
}

/// Which object the history names for a change, and which changes it has.
mod credit {
    use super::*;
    use crate::model::service::ServiceName;

    fn about<'e>(events: &'e [Event], words: &str) -> Vec<&'e Event> {
        events.iter().filter(|event| event.detail.as_deref().is_some_and(|detail| detail.contains(words))).collect()
    }

    /// A change of the ranges and a change of an EndpointSlice in one round: the history says that the controller of the
    /// slices has locked the clients out.
    #[test]
    fn a_change_of_ranges_is_credited_to_the_service_and_not_to_a_slice_of_the_same_round() {
        let mut datapath = MemoryDatapath::new(LIMITS);
        let mut engine = engine([Source::Kubernetes], &datapath);
        let origin = Origin { object: "Service shop/web".into(), writer: "kubectl-edit".into(), ..Origin::default() };
        let balancer = Service { source: Source::Kubernetes, origin, ..service(FrontendKind::LoadBalancer) };
        let origin = Origin {
            object: "EndpointSlice shop/web".into(),
            writer: "endpointslice-controller".into(),
            ..Origin::default()
        };
        let list = Slice { source: Source::Kubernetes, origin, ..slice() };
        engine.change(Change::UpsertService(balancer.clone()));
        engine.change(Change::UpsertSlice(list.clone()));
        engine.change(synced(Source::Kubernetes));
        engine.reconcile(&mut datapath, Moment(1));
        engine.change(Change::UpsertService(ranges(&balancer, &["10.0.0.0/8"])));
        let mut list = list;
        list.ports[0].backends[0].node = Some("elsewhere".into());
        engine.change(Change::UpsertSlice(list));
        let events = engine.reconcile(&mut datapath, Moment(2)).events;
        let [event] = about(&events, "only clients in 10.0.0.0/8")[..] else { panic!("{events:?}") };
        assert_eq!(&*event.cause.origin.object, "Service shop/web", "{event:?}");
    }

    /// The service that waits for the address has no clients, and who may connect there is not its decision.
    #[test]
    fn ranges_of_a_service_that_has_no_address_are_no_change_for_clients() {
        let mut datapath = MemoryDatapath::new(LIMITS);
        let mut engine = engine([Source::Files], &datapath);
        let owner = service(FrontendKind::LoadBalancer);
        let name: ServiceName = "shop/late".parse().expect("valid in a test");
        let late = Service { created: Some(9), name: name.clone(), ..owner.clone() };
        engine.change(Change::UpsertService(owner));
        engine.change(Change::UpsertService(ranges(&late, &["10.0.0.0/8"])));
        engine.change(Change::UpsertSlice(slice()));
        let list = Slice { name: SliceName::new("shop", "late"), service: name, ..slice() };
        engine.change(Change::UpsertSlice(list));
        engine.change(synced(Source::Files));
        engine.reconcile(&mut datapath, Moment(1));
        engine.change(Change::UpsertService(ranges(&late, &["203.0.113.0/24"])));
        let events = engine.reconcile(&mut datapath, Moment(2)).events;
        assert_eq!(about(&events, "may connect to load balancer addresses"), Vec::<&Event>::new());
    }

    #[test]
    fn two_changes_in_one_reload_are_both_in_the_history() {
        let file = Service { is_outside: true, ..service(FrontendKind::Static) };
        let both = Service { forward: Forward::Tunnel, affinity_seconds: Some(60), ..file.clone() };
        let said = details(&[file, both]).concat().join("; ");
        assert!(said.contains("keep their backend for 60 s") && said.contains("in a tunnel"), "{said}");
    }

    /// The sockets of the node and of its pods are refused by the ranges, too (`bpf/clients.h`).
    #[test]
    fn ranges_are_said_to_concern_every_client_that_they_refuse() {
        let mut datapath = MemoryDatapath::new(LIMITS);
        let balancer = service(FrontendKind::LoadBalancer);
        let mut engine = start(&balancer, &mut datapath).0;
        engine.change(Change::UpsertService(ranges(&balancer, &["10.0.0.0/8"])));
        let events = engine.reconcile(&mut datapath, Moment(2)).events;
        let maps = datapath.dump().expect("memory can be read");
        let [at, node]: [L4Addr; 2] =
            ["198.51.100.1:80/TCP", "203.0.113.1:1/TCP"].map(|text| text.parse().expect("valid in a test"));
        let is_refused = !crate::trace::admits(&maps, at, &[node.addr]);
        let is_said_of_outside = !about(&events, "clients outside").is_empty();
        assert!(is_refused && !is_said_of_outside, "a process of the node is refused: {is_refused}; {events:?}");
    }

    #[test]
    fn the_end_of_local_backends_hides_no_other_change_of_the_reload() {
        let file = Service { is_outside: true, ..service(FrontendKind::Static) };
        let local = Service { internal_policy: TrafficPolicy::Local, affinity_seconds: Some(60), ..file.clone() };
        let said = details(&[file, local]).concat().join("; ");
        assert!(said.contains("keep their backend for 60 s"), "{said}");
    }

    #[test]
    fn a_change_of_access_that_fails_has_the_error_and_is_healed_once() {
        let balancer = service(FrontendKind::LoadBalancer);
        for is_range in [true, false] {
            let refuse = move |op: &MapOp| match op {
                MapOp::PutSourceRange(..) => is_range,
                MapOp::PutOutside(..) => !is_range,
                _ => false,
            };
            let mut datapath = MemoryDatapath::new(LIMITS);
            let mut engine = start(&balancer, &mut datapath).0;
            let mut datapath = datapath.with_fault(Box::new(refuse));
            engine.change(Change::UpsertService(ranges(&balancer, &["10.0.0.0/8"])));
            let events = engine.reconcile(&mut datapath, Moment(2)).events;
            let [event] = about(&events, "only clients in 10.0.0.0/8")[..] else { panic!("{events:?}") };
            assert!(matches!(event.kernel, Kernel::Failed(_)), "{is_range}: {event:?}");
            datapath.clear_fault();
            let events: Vec<Event> = (1..100)
                .flat_map(|second| engine.reconcile(&mut datapath, Moment(2 + second * 1_000)).events)
                .collect();
            let healed = events.iter().filter(|event| event.what == What::Healed).count();
            assert_eq!(healed, 1, "{is_range}: {events:?}");
        }
    }

    /// Found as: the history said that a change of the policy was done, while it waited for a source that had not reported
    /// everything.
    #[test]
    fn a_change_of_access_that_waits_is_not_done() {
        let file = Service { is_outside: true, ..service(FrontendKind::Static) };
        let mut datapath = MemoryDatapath::new(LIMITS);
        start(&file, &mut datapath);
        let mut engine = start_with([Source::Files, Source::Kubernetes], &file, &mut datapath).0;
        engine.change(Change::UpsertService(Service { external_policy: TrafficPolicy::Local, ..file }));
        let events = engine.reconcile(&mut datapath, Moment(2)).events;
        let [event] = about(&events, "only backends on this node")[..] else { panic!("{events:?}") };
        let is_local = |datapath: &MemoryDatapath| {
            let maps = datapath.dump().expect("memory can be read");
            maps.outside.values().all(|outside| outside.local)
        };
        assert_eq!((event.kernel.clone(), is_local(&datapath)), (Kernel::Deferred, false), "{event:?}");
        engine.change(synced(Source::Kubernetes));
        let events = engine.reconcile(&mut datapath, Moment(3)).events;
        let is_healed = events.iter().any(|event| event.what == What::Healed);
        assert_eq!((is_healed, is_local(&datapath)), (true, true), "{events:?}");
    }
}
