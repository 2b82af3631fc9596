use std::sync::Arc;

use imbl::OrdSet;

use super::{CompileContext, Guard, PortPlan, compile};
use crate::compile::guard::Refusal;
use crate::compile::outside::PacketsConfig;
use crate::compile::select::Checks;
use crate::model::addr::{L4Addr, Protocol};
use crate::model::forward::Forward;
use crate::model::node::NodeFacts;
use crate::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName,
    SlicePort, Source, TrafficPolicy,
};
use crate::table::apiservers::Apiservers;

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

fn port(name: &str, protocol: Protocol, frontends: &[(&str, FrontendKind)]) -> ServicePort {
    let spec = |(text, kind): &(&str, FrontendKind)| {
        let L4Addr { addr, port, .. } = l4(text);
        FrontendSpec { addr, port, kind: *kind }
    };
    ServicePort { name: name.into(), protocol, frontends: frontends.iter().map(spec).collect() }
}

fn service(ports: Vec<ServicePort>) -> Service {
    Service { ports, ..Service::new(ServiceName::new("shop", "web"), Source::Files) }
}

fn backend(text: &str) -> Backend {
    Backend::new(l4(text).addr, l4(text).port)
}

fn slice(port: &str, backends: Vec<Backend>) -> Vec<Arc<Slice>> {
    vec![Arc::new(Slice {
        name: SliceName::new("shop", "web"),
        service: ServiceName::new("shop", "web"),
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: port.into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    })]
}

fn compiled(service: &Service, slices: &[Arc<Slice>]) -> Vec<PortPlan> {
    let node = NodeFacts { name: "n1".into(), ..NodeFacts::default() };
    compiled_on(&node, &Guard::default(), service, slices)
}

fn compiled_on(node: &NodeFacts, guard: &Guard, service: &Service, slices: &[Arc<Slice>]) -> Vec<PortPlan> {
    let (apiservers, node_addrs) = (Apiservers::default(), node.primary.iter().copied().collect());
    let (apiservers, node_addrs) = (&apiservers, &node_addrs);
    let (checks, packets) = (Checks::default(), PacketsConfig { direct_return: true, ..PacketsConfig::default() });
    compile(service, slices, &CompileContext { node, node_addrs, guard, apiservers, checks, drains: None, packets })
}

/// The plans as `key: [cluster] frontends`.
fn text(plans: &[PortPlan]) -> Vec<String> {
    let plan = |plan: &PortPlan| {
        let slots = plan.cluster.iter().map(|(addr, count)| format!("{addr}*{count}")).collect::<Vec<_>>();
        let frontends = plan.frontends.iter().map(|f| f.address.to_string()).collect::<Vec<_>>();
        format!("{}: [{}] {}", plan.key, slots.join(" "), frontends.join(" "))
    };
    plans.iter().map(plan).collect()
}

use FrontendKind::{ClusterIP, ExternalIP, LoadBalancer, NodePort, Static};

#[test]
fn each_family_has_its_own_entry_and_backends() {
    let frontends = [("10.96.0.1:80", ClusterIP), ("[2001:db8::1]:80", ClusterIP), ("198.51.100.1:80", LoadBalancer)];
    let service = service(vec![port("http", Protocol::Tcp, &frontends)]);
    let slices = slice("http", vec![backend("192.0.2.1:8080"), backend("[2001:db8:1::1]:8080")]);
    assert_eq!(
        text(&compiled(&service, &slices)),
        [
            "shop/web:http/TCP/IPv4: [192.0.2.1:8080/TCP*1] 10.96.0.1:80/TCP 198.51.100.1:80/TCP",
            "shop/web:http/TCP/IPv6: [[2001:db8:1::1]:8080/TCP*1] [2001:db8::1]:80/TCP",
        ]
    );
}

#[test]
fn a_family_without_frontends_has_no_entry() {
    let service =
        service(vec![port("http", Protocol::Tcp, &[("10.96.0.1:80", ClusterIP)]), port("x", Protocol::Tcp, &[])]);
    let slices = slice("http", vec![backend("[2001:db8:1::1]:8080")]);
    assert_eq!(text(&compiled(&service, &slices)), ["shop/web:http/TCP/IPv4: [] 10.96.0.1:80/TCP"]);
}

#[test]
fn ports_are_distinguished_by_name_and_protocol() {
    let service = service(vec![
        port("dns", Protocol::Udp, &[("10.96.0.1:53", ClusterIP)]),
        port("dns-tcp", Protocol::Tcp, &[("10.96.0.1:53", ClusterIP)]),
        port("dns", Protocol::Tcp, &[("10.96.0.1:54", ClusterIP)]),
    ]);
    let slices = slice("dns", vec![backend("192.0.2.1:5353")]);
    assert_eq!(
        text(&compiled(&service, &slices)),
        [
            "shop/web:dns/UDP/IPv4: [] 10.96.0.1:53/UDP",
            "shop/web:dns-tcp/TCP/IPv4: [] 10.96.0.1:53/TCP",
            "shop/web:dns/TCP/IPv4: [192.0.2.1:5353/TCP*1] 10.96.0.1:54/TCP",
        ]
    );
}

#[test]
fn ports_of_equal_name_and_protocol_are_one() {
    let ports = ["10.96.0.1:80", "10.96.0.1:81"].map(|text| port("", Protocol::Tcp, &[(text, Static)]));
    assert_eq!(
        text(&compiled(&service(ports.to_vec()), &slice("", vec![backend("192.0.2.1:80")]))),
        ["shop/web/TCP/IPv4: [192.0.2.1:80/TCP*1] 10.96.0.1:80/TCP 10.96.0.1:81/TCP"]
    );
}

#[test]
fn weights_become_slots_and_drained_backends_none() {
    let with = |text, weight, state| Backend { weight, state, ..backend(text) };
    let slices = slice(
        "",
        vec![
            with("192.0.2.1:80", 10, BackendState::Active),
            with("192.0.2.2:80", 30, BackendState::Active),
            with("192.0.2.3:80", 0, BackendState::Active),
            with("192.0.2.4:80", 10, BackendState::Maintenance),
        ],
    );
    let service = service(vec![port("", Protocol::Tcp, &[("198.51.100.1:80", Static)])]);
    assert_eq!(
        text(&compiled(&service, &slices)),
        ["shop/web/TCP/IPv4: [192.0.2.1:80/TCP*1 192.0.2.2:80/TCP*3] 198.51.100.1:80/TCP"]
    );
}

/// Shares are relative to the view: within the local view, the weights of remote backends do not matter.
#[test]
fn each_view_has_its_own_shares() {
    let on = |text, weight, node: &str| Backend { weight, node: Some(node.into()), ..backend(text) };
    let slices =
        slice("", vec![on("192.0.2.1:80", 20, "n1"), on("192.0.2.2:80", 20, "n1"), on("192.0.2.3:80", 10, "n2")]);
    let service = service(vec![port("", Protocol::Tcp, &[("198.51.100.1:80", Static)])]);
    let plan = &compiled(&service, &slices)[0];
    assert_eq!(plan.cluster.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [2, 2, 1]);
    assert_eq!(plan.local.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn what_is_refused_as_a_frontend_and_why() {
    let net = |text: &str| vec![text.parse().expect("a network")];
    let guard = Guard {
        bypass: net("203.0.113.0/24"),
        external_ips: net("198.51.100.0/25"),
        own_addresses: net("198.51.100.9/32"),
        own_ports: vec![(10_256, "kubernetes.healthz-addresses")],
        ..Guard::default()
    };
    let own = ["198.51.100.7:1", "[2001:db8::7]:1", "198.51.100.9:1"].map(|text| l4(text).addr);
    let own_port = Refusal::OwnPort { port: 10_256, key: "kubernetes.healthz-addresses" };
    let node = NodeFacts { addresses: own.into(), ..NodeFacts::default() };
    let loopback = Some(Refusal::NotUnicast("loopback"));
    let cases = [
        ("198.51.100.1:80/TCP", Static, None),
        ("127.0.0.1:80/TCP", Static, loopback.clone()),
        ("[::1]:80/TCP", ExternalIP, loopback.clone()),
        ("[::ffff:127.0.0.1]:80/TCP", ExternalIP, loopback),
        ("0.0.0.0:80/TCP", Static, Some(Refusal::NotUnicast("unspecified"))),
        ("169.254.1.1:80/TCP", ExternalIP, Some(Refusal::NotUnicast("link-local"))),
        ("224.0.0.1:80/UDP", Static, Some(Refusal::NotUnicast("multicast"))),
        ("255.255.255.255:80/UDP", Static, Some(Refusal::NotUnicast("multicast"))),
        ("203.0.113.9:80/TCP", LoadBalancer, Some(Refusal::Bypassed(guard.bypass[0]))),
        ("192.0.0.8:80/TCP", Static, Some(Refusal::Reserved)),
        ("[100::8]:9/UDP", Static, Some(Refusal::Reserved)),
        ("198.51.100.1:80/TCP", ExternalIP, None),
        ("198.51.100.129:80/TCP", ExternalIP, Some(Refusal::ExternalIpNotAllowed(l4("198.51.100.129:1").addr))),
        ("198.51.100.129:80/TCP", LoadBalancer, None),
        ("198.51.100.7:80/TCP", ClusterIP, Some(Refusal::HeldClusterIp(own[0]))),
        ("198.51.100.7:80/UDP", ExternalIP, Some(Refusal::OwnAddress(own[0]))),
        ("[2001:db8::7]:80/TCP", Static, Some(Refusal::OwnAddress(own[1]))),
        ("198.51.100.9:80/TCP", LoadBalancer, None),
        ("198.51.100.9:80/UDP", ExternalIP, None),
        ("198.51.100.9:10256/TCP", Static, Some(own_port.clone())),
        ("198.51.100.9:10256/UDP", Static, None),
        ("198.51.100.8:10256/TCP", Static, None),
        ("0.0.0.0:10256/TCP", NodePort, Some(Refusal::NodePortOutsideRange(30_000..=32_767))),
        ("198.51.100.1:80/SCTP", ClusterIP, Some(Refusal::UnsupportedProtocol)),
        ("0.0.0.0:30080/TCP", NodePort, None),
        ("0.0.0.0:29999/TCP", NodePort, Some(Refusal::NodePortOutsideRange(30_000..=32_767))),
    ];
    for (text, kind, expected) in cases {
        let L4Addr { addr, port, protocol } = l4(text);
        let refusal = guard.check_frontend(&FrontendSpec { addr, port, kind }, protocol, &node).err();
        assert_eq!(refusal, expected, "{text}");
    }
}

/// No translated connection may reach nodelb itself or an invalid address.
#[test]
fn what_is_refused_as_a_backend() {
    let admin = ["192.0.2.9:9890", "127.0.0.1:9890"].map(|text| (l4(text).addr, l4(text).port));
    let guard = Guard { admin: admin.into(), ..Guard::default() };
    let mut apiservers = Apiservers::default();
    apiservers.set_reported([(l4("169.254.128.7:1").addr, 60_002)].into());
    for (text, by_a_file, by_kubernetes) in [
        ("192.0.2.9:80", true, true),
        ("192.0.2.8:9890", true, true),
        ("127.0.0.1:8080", true, false),
        ("[::ffff:127.0.0.1]:8080", true, false),
        ("[::1]:8080", true, false),
        ("169.254.128.7:60002", true, true),
        ("[::ffff:169.254.128.7]:60002", true, true),
        ("169.254.128.7:60002/UDP", true, false),
        ("169.254.128.7:60003", true, false),
        ("169.254.169.254:80", true, false),
        ("[fe80::1]:80", true, false),
        ("192.0.2.9:9890", false, false),
        ("[::ffff:192.0.2.9]:9890", false, false),
        ("127.0.0.1:9890", false, false),
        ("[::ffff:127.0.0.1]:9890", false, false),
        ("0.0.0.0:80", false, false),
        ("[::]:80", false, false),
        ("[::ffff:0.0.0.0]:80", false, false),
        ("224.0.0.1:80", false, false),
        ("255.255.255.255:80", false, false),
        ("[ff02::1]:80", false, false),
    ] {
        let admits = |source| guard.admits_backend(l4(text), source, &apiservers);
        assert_eq!((admits(Source::Files), admits(Source::Kubernetes)), (by_a_file, by_kubernetes), "{text}");
    }
    let port_zero = L4Addr::new(l4("192.0.2.1:1").addr, 0, Protocol::Tcp);
    assert!(!guard.admits_backend(port_zero, Source::Files, &apiservers), "port 0");
}

/// A refused backend is ignored: without others, the service has none.
#[test]
fn a_refused_backend_is_not_used() {
    let guard = Guard { admin: vec![(l4("192.0.2.9:9890").addr, 9890)], ..Guard::default() };
    let service = service(vec![port("", Protocol::Tcp, &[("198.51.100.1:80", Static)])]);
    let slices = slice("", vec![backend("192.0.2.9:9890")]);
    let plan = &compiled_on(&NodeFacts::default(), &guard, &service, &slices)[0];
    assert!(plan.cluster.is_empty() && !plan.has_backends);
}

/// One port number is the NodePort and the port that the service's backend on this node binds.
#[test]
fn a_nodeport_may_be_bound_by_the_services_own_backend_or_where_it_is_answered_nowhere() {
    let addrs = |texts: &[&str]| texts.iter().map(|text| l4(text).addr).collect();
    let node =
        NodeFacts { addresses: addrs(&["192.0.2.7:1"]), primary: addrs(&["192.0.2.7:1"]), ..NodeFacts::default() };
    let nowhere = NodeFacts { primary: addrs(&[]), ..node.clone() };
    let both =
        service(vec![port("http", Protocol::Tcp, &[("198.51.100.1:80", ClusterIP), ("0.0.0.0:30080", NodePort)])]);
    let cluster_ip = service(vec![port("http", Protocol::Tcp, &[("198.51.100.1:30080", ClusterIP)])]);
    let may_be_bound = |node: &NodeFacts, service: &Service, slices: &[Arc<Slice>]| {
        compiled_on(node, &Guard::default(), service, slices)[0].may_be_bound
    };
    let here = backend("192.0.2.7:30080");
    let not_ready = Backend { state: BackendState::NotReady, ..here.clone() };
    for (slices, expected) in [
        (slice("http", vec![here.clone()]), true),
        (slice("http", vec![backend("192.0.2.1:8080"), not_ready]), true),
        (slice("http", vec![backend("192.0.2.7:8080")]), false),
        (slice("http", vec![backend("192.0.2.8:30080")]), false),
        (slice("metrics", vec![here]), false),
        (Vec::new(), false),
    ] {
        assert_eq!(may_be_bound(&node, &both, &slices), expected, "{slices:?}");
        assert!(may_be_bound(&nowhere, &both, &slices), "no address answers it: {slices:?}");
        assert!(!may_be_bound(&node, &cluster_ip, &slices), "no NodePort: {slices:?}");
    }
}

#[test]
fn a_nodeport_on_one_of_nodelbs_own_ports_is_refused() {
    let guard = Guard { own_ports: vec![(30_256, "kubernetes.healthz-addresses")], ..Guard::default() };
    let check = |text: &str| {
        let L4Addr { addr, port, protocol } = l4(text);
        guard.check_frontend(&FrontendSpec { addr, port, kind: NodePort }, protocol, &NodeFacts::default())
    };
    for taken in ["0.0.0.0:30256/TCP", "[::]:30256/TCP"] {
        let key = "kubernetes.healthz-addresses";
        assert_eq!(check(taken), Err(Refusal::OwnPort { port: 30_256, key }), "{taken}");
    }
    for free in ["0.0.0.0:30256/UDP", "0.0.0.0:30257/TCP"] {
        assert_eq!(check(free), Ok(()), "{free}");
    }
}

#[test]
fn a_nodeport_that_is_a_source_port_is_refused() {
    let guard = Guard { nodeport_range: 1..=65_535, source_ports: Some(20_000..=29_999), ..Guard::default() };
    let check = |port, kind| {
        let addr = l4("0.0.0.0:1").addr;
        guard.check_frontend(&FrontendSpec { addr, port, kind }, Protocol::Udp, &NodeFacts::default())
    };
    for port in [20_000, 29_999] {
        assert_eq!(check(port, NodePort), Err(Refusal::NodePortIsSourcePort(20_000..=29_999)), "{port}");
    }
    for port in [19_999, 30_000] {
        assert_eq!(check(port, NodePort), Ok(()), "{port}");
    }
    let refusal = check(20_000, NodePort).unwrap_err().to_string();
    assert!(refusal.contains("inside 20000-29999") && refusal.contains("packets.snat-ports"), "{refusal}");
    let elsewhere = FrontendSpec { addr: l4("198.51.100.1:1").addr, port: 20_000, kind: ClusterIP };
    assert_eq!(guard.check_frontend(&elsewhere, Protocol::Udp, &NodeFacts::default()), Ok(()));
}

#[test]
fn direct_needs_backends_with_the_port_of_the_frontend() {
    let port = port("http", Protocol::Tcp, &[("198.51.100.1:80", LoadBalancer), ("0.0.0.0:30080", NodePort)]);
    let with = |forward, backends: &[&str], direct_return| {
        let slices = slice("http", backends.iter().map(|text| backend(text)).collect());
        let service = Service { forward, is_outside: true, ..service(vec![port.clone()]) };
        let node = NodeFacts { name: "n1".into(), ..NodeFacts::default() };
        let packets = PacketsConfig { is_on: true, direct_return, ..PacketsConfig::default() };
        let (node_addrs, guard, apiservers) = (OrdSet::new(), Guard::default(), Apiservers::default());
        let (node, node_addrs, guard, apiservers) = (&node, &node_addrs, &guard, &apiservers);
        let checks = Checks::default();
        let context = CompileContext { node, node_addrs, guard, apiservers, checks, drains: None, packets };
        compile(&service, &slices, &context)[0].forward
    };
    let forward = |forward, backends| with(forward, backends, true);
    assert_eq!(forward(Forward::Direct, &["10.1.0.1:80", "10.1.0.2:80"]), Forward::Direct);
    assert_eq!(forward(Forward::Direct, &["10.1.0.1:80", "10.1.0.2:8080"]), Forward::Translate);
    assert_eq!(forward(Forward::Tunnel, &["10.1.0.1:8080"]), Forward::Tunnel);
    for way in [Forward::Direct, Forward::Tunnel] {
        assert_eq!(with(way, &["10.1.0.1:80"], false), Forward::Translate, "the programs have no direct return");
    }
}

#[test]
fn an_ipv4_address_in_tunnels_shares_the_ipv6_backends_of_a_port_without_others() {
    let frontends = [("198.51.100.1:80", Static), ("[2001:db8::1]:80", Static)];
    let tunnel = Service { forward: Forward::Tunnel, ..service(vec![port("http", Protocol::Tcp, &frontends)]) };
    let here = |backend: Backend| Backend { node: Some("n1".into()), ..backend };
    let slices = slice("http", vec![here(backend("[2001:db8:1::1]:80"))]);
    let shared = "shop/web:http/TCP/IPv6: [[2001:db8:1::1]:80/TCP*1] 198.51.100.1:80/TCP [2001:db8::1]:80/TCP";
    let plans = compiled(&tunnel, &slices);
    assert_eq!(text(&plans), [shared]);
    // What clients on the node get at the IPv4 address.
    assert!(plans[0].local.is_empty());
    let apart = [
        "shop/web:http/TCP/IPv4: [] 198.51.100.1:80/TCP",
        "shop/web:http/TCP/IPv6: [[2001:db8:1::1]:80/TCP*1] [2001:db8::1]:80/TCP",
    ];
    let local = TrafficPolicy::Local;
    for other in [
        Service { forward: Forward::Translate, ..tunnel.clone() },
        Service { forward: Forward::Direct, ..tunnel.clone() },
        Service { internal_policy: local, ..tunnel.clone() },
        Service { external_policy: local, ..tunnel.clone() },
    ] {
        assert_eq!(text(&compiled(&other, &slices)), apart, "{other:?}");
    }
    // Services of Kubernetes have the backends of each family in slices of their own.
    let frontends = [("198.51.100.1:80", LoadBalancer), ("[2001:db8::1]:80", LoadBalancer)];
    let other = Service { ports: vec![port("http", Protocol::Tcp, &frontends)], ..tunnel.clone() };
    assert_eq!(text(&compiled(&other, &slices)), apart);
    // An IPv4 backend is not replaced while it is not ready.
    let unready = Backend { state: BackendState::NotReady, ..backend("192.0.2.1:80") };
    let both = slice("http", vec![backend("[2001:db8:1::1]:80"), unready]);
    assert_eq!(text(&compiled(&tunnel, &both)), apart);
}
