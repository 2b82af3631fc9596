use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::claims::Row;
use nodelb_core::config::{EngineConfig, PacketsConfig};
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::Engine;
use nodelb_core::history::{Event, History, Stamp, What};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Family, L4Addr, Protocol, parse_net};
use nodelb_core::model::cause::Cause;
use nodelb_core::model::forward::Forward;
use nodelb_core::model::health_check::HealthCheck;
use nodelb_core::model::ipsec::{Policies, Policy, PolicyDirection, Selector};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, PortKey, Service, ServicePort, Slice, SliceName, SlicePort, Source,
};
use nodelb_core::packets::admission::Refusal;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::MapState;
use nodelb_core::state::status::Status;
use nodelb_report::explain::explanation::{self, Client, ConnectResult};
use nodelb_report::explain::outside::DropReason;
use nodelb_report::output::table::Style;
use nodelb_report::rows::{Answer, TraceAnswer};
use nodelb_report::time::{Clocks, Time};

use super::{Kernel, Query, SocketProgram, TraceFrom, answer, outside, trace};
use crate::devices::mode::{Activity, Decision};

fn snapshot() -> Snapshot {
    snapshot_with(100)
}

/// With room for this many addresses in the kernel.
fn snapshot_with(room: u32) -> Snapshot {
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 100, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    let at: L4Addr = "10.96.7.7:80".parse().unwrap();
    let frontends = vec![FrontendSpec { addr: at.addr, port: at.port, kind: FrontendKind::ClusterIP }];
    let port = ServicePort { name: "http".into(), protocol: at.protocol, frontends };
    let web = Service { ports: vec![port], ..Service::new("shop/web".parse().unwrap(), Source::Files) };
    let late = Service { created: Some(1), name: "shop/late".parse().unwrap(), ..web.clone() };
    engine.change(Change::UpsertService(web));
    engine.change(Change::UpsertService(late));
    let at: L4Addr = "198.51.100.9:80".parse().unwrap();
    let frontends = vec![FrontendSpec { addr: at.addr, port: at.port, kind: FrontendKind::LoadBalancer }];
    let port = ServicePort { name: "http".into(), protocol: at.protocol, frontends };
    let balanced = Service {
        ports: vec![port],
        source_ranges: Some(vec!["203.0.113.0/24".parse().unwrap()]),
        ..Service::new("shop/balanced".parse().unwrap(), Source::Files)
    };
    engine.change(Change::UpsertService(balanced));
    loopback(&mut engine);
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    let limits = Limits { frontends: room, services: 100, slots: 100, affinity: 4, outside: 0, source_ranges: 0 };
    engine.reconcile(&mut MemoryDatapath::new(limits), Moment(0));
    engine.snapshot(Moment(0))
}

/// A service with two backends, both on loopback addresses, which have failed their checks.
fn loopback(engine: &mut Engine) {
    let name: nodelb_core::model::service::ServiceName = "shop/local".parse().unwrap();
    let at: L4Addr = "10.96.7.8:80".parse().unwrap();
    let frontends = vec![FrontendSpec { addr: at.addr, port: at.port, kind: FrontendKind::Static }];
    let port = ServicePort { name: "http".into(), protocol: at.protocol, frontends };
    let check = HealthCheck { last_resort: true, ..HealthCheck::default() };
    let service =
        Service { ports: vec![port], health_check: Some(check.into()), ..Service::new(name.clone(), Source::Files) };
    let own = "127.0.0.1:1".parse::<L4Addr>().unwrap().addr;
    let port = SlicePort {
        name: "http".into(),
        protocol: at.protocol,
        backends: [8081, 8082].map(|port| Backend::new(own, port)).into(),
    };
    engine.change(Change::UpsertService(service));
    engine.change(Change::UpsertSlice(Slice {
        name: SliceName::new("shop", "local"),
        service: name.clone(),
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![port],
        problem: None,
    }));
    let failed = [8081, 8082].map(|port| ((own, port), "connection refused".into()));
    engine.change(Change::Quarantine(name, failed.into()));
}

fn text_of(answer: &TraceAnswer) -> String {
    answer.text(Time::default(), &Style::default())
}

fn reported(to: &str, from: Client) -> String {
    text_of(&answer(explanation::explain(&snapshot(), to.parse().unwrap(), from), None, Moment(5_000)))
}

#[test]
fn a_refusal_reads_from_the_client_to_the_verdict() {
    let expected = "\
trace:
Step      Finding
client    a process in the network namespace of the node connects to 10.96.7.7:80/TCP
hook      connect4
frontend  10.96.7.7:80/TCP is a ClusterIP address of shop/web, port http
claim     shop/late claims 10.96.7.7:80/TCP as ClusterIP, too: 10.96.7.7:80/TCP is owned by shop/web, which is older; takes over when that service gives it up
view      cluster: every backend that is selected (internalTrafficPolicy is Cluster)
affinity  none: a backend is chosen for each connection
backends  none: no EndpointSlice and no file has a backend for this port
status    NoBackends for 5s: it is in the kernel (to compare with the maps: nodelb diff)
verdict   refused with ECONNREFUSED (connection refused): no usable backend
";
    let text = reported("10.96.7.7:80", Client::Host);
    assert!(text.contains(expected), "{text}");
}

#[test]
fn other_addresses_pass_and_near_misses_are_shown() {
    let text = reported("10.96.7.7:443", Client::Pod);
    assert!(text.contains("is served at another port or protocol: 10.96.7.7:80/TCP"), "{text}");
    assert!(text.contains("not a service address: connects to 10.96.7.7:443/TCP directly"), "{text}");
    let outside = reported("10.96.7.7:80", Client::Outside);
    assert!(outside.contains("nodelb does not translate packets from outside while packets.mode is off"), "{outside}");
}

/// A connection to an address for which the map has no room is not forwarded, now or later.
#[test]
fn an_address_that_the_kernel_does_not_have_is_not_forwarded() {
    let snapshot = snapshot_with(2);
    let is_refused = |(at, row): &(&L4Addr, &Arc<Row>)| snapshot.status_of(row, 0, **at).status == Status::Refused;
    let refused = *snapshot.rows.iter().find(is_refused).unwrap().0;
    let explanation = explanation::explain(&snapshot, refused, Client::Host);
    assert_eq!(explanation.result.to_string(), "PassedThrough");
    let text = text_of(&answer(explanation, None, Moment(5_000)));
    let verdict = format!("verdict   not translated: connects to {refused} directly: map frontends is full");
    assert!(text.contains(&verdict), "{text}");
}

/// Once, "no service uses" the address, and the only service that asks for it did so "too".
#[test]
fn a_refused_address_has_the_service_that_asks_for_it() {
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 1, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    for (name, at) in [("shop/a", "198.51.100.1:80"), ("shop/b", "198.51.100.2:80")] {
        let at: L4Addr = at.parse().unwrap();
        let frontends = vec![FrontendSpec { addr: at.addr, port: at.port, kind: FrontendKind::Static }];
        let port = ServicePort { name: "".into(), protocol: at.protocol, frontends };
        engine.change(Change::UpsertService(Service {
            ports: vec![port],
            ..Service::new(name.parse().unwrap(), Source::Files)
        }));
    }
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    let limits = Limits { frontends: 9, services: 9, slots: 9, affinity: 4, outside: 0, source_ranges: 0 };
    engine.reconcile(&mut MemoryDatapath::new(limits), Moment(0));
    let explanation =
        explanation::explain(&engine.snapshot(Moment(0)), "198.51.100.2:80".parse().unwrap(), Client::Host);
    let text = text_of(&answer(explanation, None, Moment(5_000)));
    let steps = "frontend  none: 198.51.100.2:80/TCP is not served\n\
                 claim     shop/b asks for 198.51.100.2:80/TCP as Static and does not get it: map services is full (1";
    assert!(text.contains(steps), "{text}");
}

/// A file that cannot be read keeps the addresses of a service whose file is gone.
#[test]
fn an_address_that_is_kept_from_before_the_start_is_forwarded_all_the_same() {
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 100, ..EngineConfig::default() };
    let limits = Limits { frontends: 9, services: 9, slots: 9, affinity: 4, outside: 0, source_ranges: 0 };
    let mut maps = MemoryDatapath::new(limits);
    let at: L4Addr = "198.51.100.2:80".parse().unwrap();
    let frontends = vec![FrontendSpec { addr: at.addr, port: at.port, kind: FrontendKind::Static }];
    let port = ServicePort { name: "".into(), protocol: at.protocol, frontends };
    let service = Service { ports: vec![port], ..Service::new("shop/b".parse().unwrap(), Source::Files) };
    let backend: L4Addr = "192.0.2.7:8080".parse().unwrap();
    let backends = vec![Backend::new(backend.addr, backend.port)];
    let slice = Slice {
        name: SliceName::new("shop", "b"),
        service: service.name.clone(),
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    };
    let mut before = Engine::new(config.clone(), MapState::default());
    let synced =
        |incomplete: Option<&str>| Change::Synced { source: Source::Files, incomplete: incomplete.map(Into::into) };
    [Change::UpsertService(service), Change::UpsertSlice(slice), synced(None)]
        .into_iter()
        .for_each(|it| before.change(it));
    before.reconcile(&mut maps, Moment(0));
    let mut after = Engine::new(config, maps.dump().unwrap());
    after.change(synced(Some("a.toml: line 1")));
    after.reconcile(&mut maps, Moment(0));
    let snapshot = after.snapshot(Moment(0));
    let explanation = explanation::explain(&snapshot, at, Client::Host);
    let text = text_of(&answer(explanation, None, Moment(5_000)));
    let kept = "the kernel serves it as before the start, until nodelb has read everything from files: a.toml: line 1";
    assert!(text.contains(kept) && text.contains("verdict   forwarded to 192.0.2.7:8080/TCP"), "{text}");
}

#[test]
fn the_client_is_given_in_known_terms() {
    for (text, from) in [
        ("host", TraceFrom::Client(Client::Host)),
        ("outside", TraceFrom::Client(Client::Outside)),
        ("4026531840", TraceFrom::Namespace(4_026_531_840)),
        ("10.1.0.1", TraceFrom::At("10.1.0.1".parse().unwrap(), None)),
        ("10.1.0.1:40000", TraceFrom::At("10.1.0.1".parse().unwrap(), Some(40_000))),
        ("[2001:db8::1]:40000", TraceFrom::At("2001:db8::1".parse().unwrap(), Some(40_000))),
    ] {
        assert_eq!(text.parse::<TraceFrom>(), Ok(from), "{text}");
    }
    assert!("elsewhere".parse::<TraceFrom>().unwrap_err().contains("expected host, pod, outside"));
}

/// Clients outside the node are served: the trace names the range, the backend, and what cannot be reached.
#[test]
fn a_served_client_outside_learns_its_backend() {
    let text = |to: &str, from: &str| {
        let explanation = from.parse::<TraceFrom>().unwrap().explanation(&served(), to.parse().unwrap()).unwrap();
        text_of(&answer(explanation, None, Moment(0)))
    };
    let admitted = text("198.51.100.9:80", "203.0.113.9:40000");
    for part in [
        "  Forwarded  ",
        "hook           packet_in, where the packets arrive at the node",
        "source-ranges  203.0.113.0/24 of loadBalancerSourceRanges admits 203.0.113.9",
        "outside        served",
        "choice         10.1.0.",
        "the address and the port of the client and the ring of the service decide, on every node alike",
        "verdict        forwarded to 10.1.0.",
    ] {
        assert!(admitted.contains(part), "{part}: {admitted}");
    }
    let refused = text("198.51.100.9:80", "192.0.2.9:40000");
    assert!(refused.contains("  Dropped  "), "{refused}");
    assert!(refused.contains("no range of loadBalancerSourceRanges admits 192.0.2.9"), "{refused}");
    assert!(refused.contains("dropped: the client is not in loadBalancerSourceRanges"), "{refused}");
    let any = text("198.51.100.9:80", "outside");
    assert!(any.contains("from=ADDRESS:PORT names the backend"), "{any}");
    for (from, otherwise) in [("outside", "dropped"), ("pod", "refused with EHOSTUNREACH (no route to host)")] {
        let verdict = format!(
            "depends on the client: in 203.0.113.0/24 (loadBalancerSourceRanges) forwarded to one of 2 backends, with \
             equal probability; otherwise {otherwise}\n"
        );
        let text = text("198.51.100.9:80", from);
        assert!(text.contains("  Depends  ") && text.contains(&verdict), "{text}");
    }
    let inside = text("10.96.7.9:80", "203.0.113.9");
    assert!(inside.contains("a ClusterIP is for clients on the node, unless packets.cluster-ips is true"), "{inside}");
    assert!(inside.contains("passes: clients outside the node are not served at this address"), "{inside}");
}

/// It was said to pass, and went round between the router and the node.
#[test]
fn another_port_of_an_address_that_only_nodelb_has_is_refused() {
    let end = |to: &str, from: Client, activity: Activity| {
        let snapshot = served();
        let mut explanation = explanation::explain(&snapshot, to.parse().unwrap(), from);
        let decision = Decision { activity, reason: String::new() };
        outside::own(&mut explanation, &snapshot, Some(&decision));
        explanation.result
    };
    let (refused, passes) = (ConnectResult::Refused(Refusal::NoBackend), ConnectResult::PassedThrough);
    let ends = ["198.51.100.9:81", "198.51.100.9:80/UDP", "198.51.100.9:80/SCTP"];
    let ends = ends.map(|to| end(to, Client::Outside, Activity::On));
    assert_eq!(ends, [refused, refused, ConnectResult::Dropped(DropReason::NotServed)]);
    assert_eq!(end("198.51.100.8:81", Client::Outside, Activity::On), passes);
    assert_eq!(end("198.51.100.9:81", Client::Host, Activity::On), passes);
    assert_eq!(end("198.51.100.9:81", Client::Outside, Activity::Draining), passes);
    let sentence = outside::refused("198.51.100.9:81".parse().unwrap(), false);
    assert!(sentence.starts_with("refused with RST: no service has this port"), "{sentence}");
}

/// It was said to be forwarded, and went out in clear text.
#[test]
fn what_ipsec_protects_is_dropped() {
    let end = |protected: &str, from: &str| {
        let snapshot = served();
        let (to, from) = ("198.51.100.9:80".parse().unwrap(), (from.parse().unwrap(), None));
        let mut explanation = explanation::explain_from(&snapshot, to, from);
        let target = parse_net(protected).unwrap().into();
        let selector = Selector { target, ..Selector::everything(Family::Ipv4) };
        let policy = Policy { direction: PolicyDirection::Out, priority: 0, selector, is_protected: true };
        let found = outside::protect(&mut explanation, &snapshot, &Policies::new(&[policy], 100));
        (explanation.result == ConnectResult::Dropped(DropReason::Ipsec), found.unwrap_or_default())
    };
    let answer = end("203.0.113.9/32", "203.0.113.9");
    let sentence = "a policy of IPsec on this node protects packets between 203.0.113.9 and 198.51.100.9";
    assert_eq!(answer, (true, sentence.to_owned()));
    assert_eq!(end("203.0.113.8/32", "203.0.113.9"), (false, String::new()));
}

#[test]
fn packets_that_are_not_translated_are_a_step() {
    let text = |forward, from: &str| {
        let snapshot = served_by(forward);
        let explanation = from.parse::<TraceFrom>().unwrap().explanation(&snapshot, "198.51.100.9:80".parse().unwrap());
        text_of(&answer(explanation.unwrap(), None, Moment(0)))
    };
    let direct = text(Forward::Direct, "203.0.113.9:40000");
    assert!(direct.contains("forward        direct: the packets go unchanged to the backend, directly"), "{direct}");
    assert!(direct.contains("the answers do not pass this node"), "{direct}");
    let tunnel = text(Forward::Tunnel, "203.0.113.9:40000");
    assert!(tunnel.contains("forward        tunnel: ") && tunnel.contains("in a tunnel (IP in IP)"), "{tunnel}");
    for other in [text(Forward::Translate, "203.0.113.9:40000"), text(Forward::Tunnel, "pod")] {
        assert!(!other.contains("forward  "), "{other}");
    }
}

#[test]
fn ipv6_backends_of_an_ipv4_address_are_for_clients_outside_the_node() {
    let snapshot = tunnelled();
    let text = |from: &str| {
        let explanation = from.parse::<TraceFrom>().unwrap().explanation(&snapshot, "198.51.100.9:80".parse().unwrap());
        text_of(&answer(explanation.unwrap(), None, Moment(0)))
    };
    let outside = text("203.0.113.9:40000");
    assert!(outside.contains("forwarded to [2001:db8:b::1]:80/TCP\n"), "{outside}");
    for from in ["host", "pod"] {
        let inside = text(from);
        assert!(inside.contains("(IPv4 packets reach IPv6 backends in tunnels)"), "{inside}");
        assert!(inside.contains("refused with EHOSTUNREACH (no route to host): only clients outside"), "{inside}");
    }
}

/// A service with an IPv4 address and an IPv6 backend, which gets packets in tunnels.
fn tunnelled() -> Snapshot {
    let packets = PacketsConfig { is_on: true, cluster_ips: false, is_consistent: true, direct_return: true };
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 9, packets, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    let l4 = |text: &str| text.parse::<L4Addr>().unwrap();
    let (at, backend) = (l4("198.51.100.9:80"), l4("[2001:db8:b::1]:80"));
    let frontends = vec![FrontendSpec { addr: at.addr, port: at.port, kind: FrontendKind::Static }];
    let name: nodelb_core::model::service::ServiceName = "lab/web".parse().unwrap();
    engine.change(Change::UpsertService(Service {
        ports: vec![ServicePort { name: "".into(), protocol: at.protocol, frontends }],
        is_outside: true,
        forward: Forward::Tunnel,
        ..Service::new(name.clone(), Source::Files)
    }));
    let backends = vec![Backend::new(backend.addr, backend.port)];
    engine.change(Change::UpsertSlice(Slice {
        name: SliceName::new("lab", "web"),
        service: name,
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "".into(), protocol: at.protocol, backends }],
        problem: None,
    }));
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    let limits = Limits { frontends: 9, services: 9, slots: 99, affinity: 4, outside: 9, source_ranges: 9 };
    assert_eq!(engine.reconcile(&mut MemoryDatapath::new(limits), Moment(0)).failed, 0);
    engine.snapshot(Moment(0))
}

/// A service with a ClusterIP and a load balancer address, on a node that serves clients outside.
fn served() -> Snapshot {
    served_by(Forward::Translate)
}

fn served_by(forward: Forward) -> Snapshot {
    served_with(forward, None, 999)
}

/// With this session affinity in seconds, and room for this number of slots.
fn served_with(forward: Forward, affinity_seconds: Option<u32>, slots: u32) -> Snapshot {
    let packets = PacketsConfig { is_on: true, cluster_ips: false, is_consistent: true, direct_return: true };
    let sources = [Source::Kubernetes].into();
    let config = EngineConfig { sources, max_services: 100, packets, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    let l4 = |text: &str| text.parse::<L4Addr>().unwrap();
    let frontend = |text: &str, kind| FrontendSpec { addr: l4(text).addr, port: l4(text).port, kind };
    let frontends = vec![
        frontend("10.96.7.9:80", FrontendKind::ClusterIP),
        frontend("198.51.100.9:80", FrontendKind::LoadBalancer),
    ];
    let protocol = l4("10.96.7.9:80").protocol;
    let name: nodelb_core::model::service::ServiceName = "shop/web".parse().unwrap();
    engine.change(Change::UpsertService(Service {
        ports: vec![ServicePort { name: "http".into(), protocol, frontends }],
        source_ranges: Some(vec!["203.0.113.0/24".parse().unwrap()]),
        affinity_seconds,
        forward,
        ..Service::new(name.clone(), Source::Kubernetes)
    }));
    let backends = ["10.1.0.1:80", "10.1.0.2:80"].map(|text| Backend::new(l4(text).addr, l4(text).port)).into();
    engine.change(Change::UpsertSlice(Slice {
        name: SliceName::new("shop", "web-1"),
        service: name,
        source: Source::Kubernetes,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "http".into(), protocol, backends }],
        problem: None,
    }));
    engine.change(Change::Synced { source: Source::Kubernetes, incomplete: None });
    let limits = Limits { frontends: 9, services: 9, slots, affinity: 4, outside: 9, source_ranges: 9 };
    let mut maps = MemoryDatapath::new(limits);
    assert_eq!(engine.reconcile(&mut maps, Moment(0)).failed > 0, slots < 100, "a ring takes 86 slots");
    while let Some(due) = engine.next_round() {
        engine.reconcile(&mut maps, due);
    }
    engine.snapshot(Moment(0))
}

fn reported_of(to: &str, from: &str) -> String {
    let explanation = from.parse::<TraceFrom>().unwrap().explanation(&snapshot(), to.parse().unwrap()).unwrap();
    text_of(&answer(explanation, None, Moment(5_000)))
}

/// Such a request was refused with 400, and the operator had to add what the address alone does not show.
#[test]
fn an_address_that_nodelb_does_not_know_is_answered_as_one_outside() {
    assert!(
        reported_of("10.96.7.7:80", "127.0.0.1").contains("127.0.0.1, a process in the network namespace of the node")
    );
    let text = reported_of("10.96.7.7:80", "203.0.113.9");
    assert!(text.contains("203.0.113.9, another host (its packets arrive on a network device), connects to"), "{text}");
    assert!(text.contains("(for a pod on this node: from=pod)"), "{text}");
    assert!(text.contains("nodelb does not translate packets from outside while packets.mode is off"), "{text}");
    assert!(!text.contains("source-ranges"), "{text}");
    for (client, finding) in [
        ("203.0.113.9", "loadBalancerSourceRanges allows 203.0.113.9"),
        ("192.0.2.9", "loadBalancerSourceRanges does not allow 192.0.2.9: the load balancer must block it"),
    ] {
        let text = reported_of("198.51.100.9:80", client);
        assert!(text.contains(&format!("source-ranges  {finding}\n")), "{text}");
    }
}

/// The trace named the ring's backend as the only possible one, and `packets.choice` as the reason if a ring had no room.
#[test]
fn a_trace_says_what_else_may_choose_than_the_ring() {
    let text = |snapshot: &Snapshot, from: &str| {
        let explanation = from.parse::<TraceFrom>().unwrap().explanation(snapshot, "198.51.100.9:80".parse().unwrap());
        text_of(&answer(explanation.unwrap(), None, Moment(0)))
    };
    let sticky = text(&served_with(Forward::Translate, Some(60), 999), "203.0.113.9:40000");
    let unless = "unless this node keeps the client at another backend (session affinity)";
    for part in [format!("on every node alike, {unless}"), format!(":80/TCP, {unless}\n")] {
        assert!(sticky.contains(&part), "{part}: {sticky}");
    }
    let other = text(&served(), "203.0.113.9:40000");
    assert!(!other.contains(unless), "{other}");
    let full = text(&served_with(Forward::Tunnel, None, 20), "203.0.113.9:40000");
    assert!(full.contains("at random: the slots have no room for its ring (datapath.max-slots)"), "{full}");
}

/// The answer for a pod was that its connection is forwarded, but the pod reached its own loopback.
#[test]
fn a_pod_is_warned_of_loopback_backends_and_everyone_of_a_last_resort() {
    let pod = reported("10.96.7.8:80", Client::Pod);
    let warning = "127.0.0.1:8081/TCP and 1 more are loopback addresses: the connection goes there, but ends in the \
                   network namespace of the client";
    assert!(pod.contains(warning), "{pod}");
    let host = reported("10.96.7.8:80", Client::Host);
    assert!(!host.contains("warning"), "{host}");
    assert!(host.contains("2 of 2 usable, as a last resort: all of them have failed their health checks"), "{host}");
}

/// The answer for an address that had been served a minute ago was only that no service uses it.
#[test]
fn the_last_service_at_an_address_is_named() {
    let mut history = History::default();
    let gave_up = |service: &str, address: &str, object: &str| {
        let key = PortKey { service: service.parse().unwrap(), port: "http".into(), ..key() };
        let origin = Origin { object: object.into(), ..Origin::default() };
        let event = Event::for_port(&Arc::new(key), None, What::Removed, Cause { origin, is_removed: true });
        Event { withdrawn: [address.parse().unwrap()].into_iter().collect(), ..event }
    };
    history.add(gave_up("shop/old", "198.51.100.70:80", "/etc/old.toml"), Stamp { at: 1_000, to_kernel: 0 });
    history.add(gave_up("shop/past", "198.51.100.70:80", "/etc/past.toml"), Stamp { at: 2_000, to_kernel: 0 });
    history.add(gave_up("shop/past", "10.96.7.7:80", "/etc/past.toml"), Stamp { at: 2_000, to_kernel: 0 });
    let traced = |to: &str| {
        let query = Query { to: Some(to.parse().unwrap()), ..Query::default() };
        trace(
            &snapshot(),
            &history,
            Kernel::default(),
            (&query, Clocks { moment: Moment(0), time: Time::from_seconds(5) }),
        )
        .unwrap()
    };
    let text = text_of(&traced("198.51.100.70:80"));
    let steps = "frontend  none: no service uses 198.51.100.70:80/TCP\n\
                 history   until 3s ago this was shop/past; its entry in /etc/past.toml was removed\n\
                 verdict   not a service address: connects to 198.51.100.70:80/TCP directly\n";
    assert!(text.contains(steps), "{text}");
    let removed = traced("198.51.100.70:80").removed.unwrap();
    assert_eq!((removed.service.as_deref(), removed.what), (Some("shop/past"), What::Removed));
    for other in ["198.51.100.70:81", "198.51.100.70:80/UDP", "10.96.7.7:80"] {
        let answer = traced(other);
        assert!(answer.removed.is_none() && !text_of(&answer).contains("history"), "{other}: {}", text_of(&answer));
    }
}

fn key() -> PortKey {
    let (service, protocol, family) = ("shop/web".parse().unwrap(), Protocol::Tcp, Family::Ipv4);
    PortKey { service, port: "http".into(), protocol, family }
}

#[test]
fn a_client_outside_is_not_forwarded_by_a_node_that_does_not_forward_packets() {
    let snapshot = served();
    let text = |from: &str, to: &str| {
        let mut explanation = from.parse::<TraceFrom>().unwrap().explanation(&snapshot, to.parse().unwrap()).unwrap();
        let stopped = outside::stop(&mut explanation, &snapshot, Some("net.ipv4.ip_forward is 0"));
        (stopped, text_of(&answer(explanation, None, Moment(0))))
    };
    let (stopped, outside) = text("203.0.113.9:40000", "198.51.100.9:80");
    assert!(stopped.unwrap().starts_with("net.ipv4.ip_forward is 0: packets reach only"));
    let verdict = "verdict        dropped by the kernel: this node does not forward packets";
    assert!(outside.contains("  Dropped  ") && outside.contains(verdict), "{outside}");
    let (stopped, of_the_node) = text("host", "10.96.7.9:80");
    assert!(stopped.is_none() && of_the_node.contains("  Forwarded  "), "{of_the_node}");
}

/// The verdict was Forwarded, and no connection began (V10 of the findings about IPv6).
#[test]
fn a_client_that_no_packet_leads_to_is_not_forwarded() {
    let snapshot = served();
    let explained =
        |from: &str, to: &str| from.parse::<TraceFrom>().unwrap().explanation(&snapshot, to.parse().unwrap());
    let Err(problem) = explained("2001:db8::9", "198.51.100.9:80") else { panic!("an IPv6 client of an IPv4 address") };
    let text = format!("{problem:?}");
    assert!(text.contains("from=2001:db8::9 is an IPv6 address, and to=198.51.100.9:80/TCP an IPv4 one"), "{text}");
    let mut explanation = explained("203.0.113.9", "198.51.100.9:80").unwrap();
    assert_eq!(outside::stop(&mut explanation, &snapshot, None), None);
    explanation.client_address.as_mut().unwrap().addr = "fe80::9".parse().unwrap();
    let stopped = outside::stop(&mut explanation, &snapshot, None).unwrap();
    assert!(
        stopped.starts_with("the client has a link-local address: packets reach only backends with an address"),
        "{stopped}"
    );
    let text = text_of(&answer(explanation, None, Moment(0)));
    assert!(
        text.contains("verdict        dropped by the kernel: packets from a link-local address are not forwarded"),
        "{text}"
    );
}

/// The verdict was Forwarded although another proxy got the packets.
#[test]
fn a_client_outside_is_not_forwarded_while_new_connections_are_left_to_another_proxy() {
    let text = |activity, from: &str, to: &str| {
        let explanation = from.parse::<TraceFrom>().unwrap().explanation(&served(), to.parse().unwrap());
        let decision = Decision { activity, reason: "packets.mode is \"drain\"".into() };
        text_of(&answer(explanation.unwrap(), Some(&decision), Moment(0)))
    };
    let balancer = "198.51.100.9:80";
    for activity in [Activity::Draining, Activity::Off] {
        let left = text(activity, "203.0.113.9:40000", balancer);
        let verdict = "verdict        passes: nodelb translates no new connections from outside the node to the \
                       service now (packets.mode is \"drain\")";
        assert!(left.contains("  PassedThrough  ") && left.contains(verdict), "{left}");
        assert!(!left.contains("forwarded to"), "{left}");
    }
    assert!(text(Activity::On, "203.0.113.9:40000", balancer).contains("forwarded to 10.1.0."));
    let of_the_node = text(Activity::Draining, "host", "10.96.7.9:80");
    assert!(of_the_node.contains("  Forwarded  "), "processes of the node are clients of sockets");
    assert!(text(Activity::On, "host", balancer).contains("no address of the client"), "not in the source ranges");
}

#[test]
fn programs_of_others_are_a_step_if_they_run_before_nodelb() {
    let program = |is_first, hook| SocketProgram { is_first, hook, id: 7, name: "other".into(), of_nodelb: None };
    let others = [program(true, "connect4"), program(false, "sendmsg4"), program(true, "connect6")];
    let step = |to: &str, from| {
        let query = Query { to: Some(to.parse().unwrap()), from: Some(TraceFrom::Client(from)), ..Query::default() };
        let now = Clocks { moment: Moment(0), time: Time::from_seconds(5) };
        let answer =
            trace(&snapshot(), &History::default(), Kernel { programs: &others, ..Kernel::default() }, (&query, now))
                .unwrap();
        answer.trace.into_iter().find(|row| row.step == "programs").map(|row| row.finding)
    };
    let tcp = step("10.96.7.7:80", Client::Pod).unwrap();
    assert!(tcp.starts_with("before nodelb, other (7) at connect4: "), "{tcp}");
    assert!(step("[2001:db8::7]:80", Client::Host).unwrap().contains("connect6"), "an address of no service");
    assert_eq!(step("10.96.7.7:80", Client::Outside), None);
}

/// The mode is "on", and the programs could not be started: the trace said that packets.mode is off.
#[test]
fn a_packet_path_that_could_not_be_started_is_not_off_by_its_mode() {
    let explained = explanation::explain(&snapshot(), "198.51.100.9:80".parse().unwrap(), Client::Outside);
    let reason = "the packet programs cannot be started: ENOMEM";
    let decision = Decision { activity: Activity::Off, reason: reason.into() };
    let text = text_of(&answer(explained, Some(&decision), Moment(0)));
    assert!(text.contains(reason) && !text.contains("packets.mode is off"), "{text}");
}
