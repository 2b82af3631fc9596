//! Each rule of kube-proxy's `CategorizeEndpoints`, and the effect of health checks. A backend is written as words: its
//! state (`ready` by default), `node=n1`, `zone-hint=z1`, `node-hint=n1`, `weight=0`, and `failed` if it failed its
//! health checks.

use std::net::IpAddr;
use std::sync::Arc;

use super::{Candidate, Selection, explain, is_inside_local, is_outside_local, merge, select};
use crate::compile::select::Choice;
use crate::compile::weight::slot_counts;
use crate::model::addr::{Family, Protocol};
use crate::model::node::NodeFacts;
use crate::model::service::{
    Backend, BackendState, FrontendKind, Hints, Origin, Service, ServiceName, Slice, SliceName, SlicePort, Source,
    TrafficPolicy,
};

fn backend(index: usize, words: &str) -> Backend {
    let mut backend = Backend::new(format!("192.0.2.{index}").parse().expect("valid"), 80);
    let mut hints = Hints::default();
    for word in words.split_whitespace() {
        match word.split_once('=').unwrap_or((word, "")) {
            ("ready", _) => backend.state = BackendState::Active,
            ("terminating", _) => backend.state = BackendState::Terminating,
            ("drained", _) => backend.state = BackendState::Maintenance,
            ("unready", _) => backend.state = BackendState::NotReady,
            ("node", node) => backend.node = Some(node.into()),
            ("zone-hint", zone) => hints.zones.push(zone.into()),
            ("node-hint", node) => hints.nodes.push(node.into()),
            ("failed", _) => {}
            ("weight", weight) => backend.weight = weight.parse().expect("valid"),
            _ => panic!("{word}"),
        }
    }
    if hints != Hints::default() {
        backend.hints = Some(Arc::new(hints));
    }
    backend
}

fn node(name: &str, zone: &str) -> NodeFacts {
    NodeFacts { name: name.into(), zone: zone.into(), ..NodeFacts::default() }
}

/// The selection on node n1 in zone z1, as `cluster [0, 1] local [0]`, with ` empty` appended if there is no usable
/// backend.
fn selected(backends: &[&str]) -> String {
    selected_on(&node("n1", "z1"), backends)
}

fn selected_on(node: &NodeFacts, backends: &[&str]) -> String {
    selection_text(&with_candidates(backends, |candidates| select(candidates, node, true)))
}

/// The result of `ask` for the backends as candidates.
fn with_candidates<T>(words: &[&str], ask: impl FnOnce(&[Candidate<'_>]) -> T) -> T {
    let backends: Vec<Backend> = words.iter().enumerate().map(|(i, words)| backend(i, words)).collect();
    let (slice, error) = (slice("a", "", Vec::new()), Arc::from("connection refused"));
    let is_failed = |words: &&str| words.split(' ').any(|word| word == "failed");
    let failures = words.iter().map(|words| is_failed(words).then_some(&error));
    let candidate = |(backend, failure)| Candidate { backend, slice: &slice, failure, drain: None };
    ask(&backends.iter().zip(failures).map(candidate).collect::<Vec<_>>())
}

fn selection_text(selection: &Selection) -> String {
    let empty = if selection.has_backends { "" } else { " empty" };
    format!("cluster {:?} local {:?}{empty}", selection.cluster, selection.local)
}

#[test]
fn which_backends_are_selected() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("nothing", &[], "cluster [] local [] empty"),
        ("ready ones", &["", "unready", ""], "cluster [0, 2] local []"),
        ("here and elsewhere", &["node=n1", "node=n2", ""], "cluster [0, 1, 2] local [0]"),
        ("only elsewhere: local clients get EHOSTUNREACH", &["node=n2"], "cluster [0] local []"),
        ("KEP-1669: ready before terminating", &["", "terminating"], "cluster [0] local []"),
        ("KEP-1669: terminating if none is ready", &["terminating", "unready"], "cluster [0] local []"),
        ("the node decides for itself", &["node=n2", "terminating node=n1"], "cluster [0] local [1]"),
        ("ready here before terminating here", &["node=n1", "terminating node=n1"], "cluster [0] local [0]"),
        ("drained ones never, not even as the last", &["drained", "unready"], "cluster [] local [] empty"),
        ("weight 0 is drained", &["weight=0", "weight=2"], "cluster [1] local []"),
        ("weight 0 while terminating too", &["weight=0 terminating"], "cluster [] local [] empty"),
    ];
    for (reason, backends, expected) in cases {
        assert_eq!(selected(backends), *expected, "{reason}");
    }
}

#[test]
fn how_hints_narrow_the_cluster_view() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("own zone", &["zone-hint=z1", "zone-hint=z2"], "cluster [0] local []"),
        ("one of several zones", &["zone-hint=z2 zone-hint=z1", "zone-hint=z2"], "cluster [0] local []"),
        ("one ready backend without a hint switches hints off", &["zone-hint=z1", ""], "cluster [0, 1] local []"),
        ("one that is not ready does not", &["zone-hint=z1", "zone-hint=z2", "unready"], "cluster [0] local []"),
        ("nor does a drained one", &["zone-hint=z1", "zone-hint=z2", "drained"], "cluster [0] local []"),
        ("no hint for this zone", &["zone-hint=z2", "zone-hint=z3"], "cluster [0, 1] local []"),
        (
            "the node before the zone",
            &["zone-hint=z1 node-hint=n1", "zone-hint=z1 node-hint=n2"],
            "cluster [0] local []",
        ),
        (
            "no hint for this node: zone",
            &["zone-hint=z1 node-hint=n2", "zone-hint=z2 node-hint=n3"],
            "cluster [0] local []",
        ),
        ("one without a node hint: zone", &["zone-hint=z1 node-hint=n1", "zone-hint=z1"], "cluster [0, 1] local []"),
        ("no zone hints to fall back on", &["node-hint=n2", "node-hint=n3"], "cluster [0, 1] local []"),
        ("terminating ones wherever they are", &["terminating zone-hint=z2"], "cluster [0] local []"),
        ("hints do not apply to the local view", &["zone-hint=z2 node=n1", "zone-hint=z1"], "cluster [1] local [0]"),
        ("a zone is not a prefix", &["zone-hint=z", "zone-hint=z11"], "cluster [0, 1] local []"),
    ];
    for (reason, backends, expected) in cases {
        assert_eq!(selected(backends), *expected, "{reason}");
    }
}

/// Zone hints have no meaning until the node's own zone is known.
#[test]
fn a_node_without_a_zone_ignores_zone_hints() {
    assert_eq!(selected_on(&node("n1", ""), &["zone-hint=z1", "zone-hint=z2"]), "cluster [0, 1] local []");
    assert_eq!(selected_on(&node("n1", ""), &["node-hint=n1", "node-hint=n2"]), "cluster [0] local []");
}

#[test]
fn every_backend_is_explained() {
    let words = ["zone-hint=z1", "zone-hint=z2", "terminating", "weight=0", "unready", "failed"];
    let choices = |words: &[&str]| with_candidates(words, |all| explain(all, &node("n1", "z1"), true));
    let expected = [Choice::Selected, Choice::NotHinted, Choice::Terminating, Choice::Maintenance, Choice::NotReady];
    assert_eq!(choices(&words), [&expected[..], &[Choice::Quarantined]].concat());
    assert_eq!(choices(&["failed", "unready"]), [Choice::Selected, Choice::NotReady], "the last resort");
}

/// S10: 65,600 of 65,600 backends were "Selected", and the maps had 65,535.
#[test]
fn backends_beyond_the_slots_of_a_view_are_too_many() {
    let backend = |index: u32| Backend::new(IpAddr::from((0xc000_0200 + index).to_be_bytes()).into(), 80);
    let backends: Vec<Backend> =
        (0..65_600).map(|index| Backend { weight: u16::from(index != 7), ..backend(index) }).collect();
    let slice = slice("a", "", Vec::new());
    let candidate = |backend| Candidate { backend, slice: &slice, failure: None, drain: None };
    let candidates: Vec<_> = backends.iter().map(candidate).collect();
    let choices = explain(&candidates, &node("n1", "z1"), true);
    let weights: Vec<u16> = select(&candidates, &node("n1", "z1"), true).cluster.iter().map(|_| 1).collect();
    let served = slot_counts(&weights).iter().filter(|count| **count > 0).count();
    let of = |wanted: Choice| choices.iter().filter(|choice| **choice == wanted).count();
    assert_eq!((of(Choice::Selected), of(Choice::TooMany), of(Choice::Maintenance)), (served, 64, 1));
    assert!(choices[..65_536].iter().all(|choice| *choice != Choice::TooMany), "the first ones by address are served");
}

#[test]
fn backends_that_failed_checks_are_the_last_resort() {
    let cases: &[(&str, &[&str], &str, &str)] = &[
        ("one that did not", &["failed", ""], "cluster [1] local []", "cluster [1] local []"),
        ("terminating goes before", &["failed", "terminating"], "cluster [1] local []", "cluster [1] local []"),
        ("a terminating one fails too", &["failed terminating", ""], "cluster [1] local []", "cluster [1] local []"),
        ("all of them", &["failed", "failed"], "cluster [0, 1] local []", "cluster [] local [] empty"),
        ("drained stays drained", &["failed drained", "failed"], "cluster [1] local []", "cluster [] local [] empty"),
        ("weight 0 is drained", &["failed weight=0"], "cluster [] local [] empty", "cluster [] local [] empty"),
        ("not ready is not ready", &["failed unready"], "cluster [] local [] empty", "cluster [] local [] empty"),
        ("hints mean nothing then", &["failed zone-hint=z2"], "cluster [0] local []", "cluster [] local [] empty"),
        (
            "nor do those of failed ones",
            &["failed", "zone-hint=z1", "zone-hint=z2"],
            "cluster [1] local []",
            "cluster [1] local []",
        ),
        ("this node's own", &["failed node=n1", ""], "cluster [1] local [0]", "cluster [1] local []"),
        ("one of this node's", &["failed node=n1", "node=n1"], "cluster [1] local [1]", "cluster [1] local [1]"),
    ];
    for (reason, backends, with, without) in cases {
        for (last_resort, expected) in [(true, with), (false, without)] {
            let found = with_candidates(backends, |all| select(all, &node("n1", "z1"), last_resort));
            assert_eq!(selection_text(&found), *expected, "{reason}, {last_resort}");
        }
    }
}

fn slice(name: &str, port: &str, backends: Vec<Backend>) -> Arc<Slice> {
    Arc::new(Slice {
        name: SliceName::new("shop", name),
        service: ServiceName::new("shop", "web"),
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: port.into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    })
}

/// The result of the merge for port `http`, TCP, IPv4, as `last byte of the address: state from slice`.
fn merged(slices: &[Arc<Slice>]) -> Vec<String> {
    let merged = merge(slices.iter(), "http", Protocol::Tcp, Family::Ipv4);
    let text =
        |c: &Candidate<'_>| format!("{}: {} from {}", c.backend.addr.octets()[15], c.backend.state, c.slice.name.name);
    merged.iter().map(text).collect()
}

/// Rebalancing temporarily leaves an endpoint in two slices. It must not get twice its share.
#[test]
fn an_address_in_two_slices_counts_once() {
    let slices = [slice("a", "http", vec![backend(1, "")]), slice("b", "http", vec![backend(1, ""), backend(2, "")])];
    assert_eq!(merged(&slices), ["1: Active from a", "2: Active from b"]);
}

/// If entries contradict each other, the one that allows the use of the backend is newer, regardless of the order.
#[test]
fn an_entry_that_is_not_terminating_wins() {
    for (first, second, from) in
        [("terminating", "ready", "b"), ("ready", "terminating", "a"), ("unready", "ready", "b")]
    {
        let slices = [slice("a", "http", vec![backend(1, first)]), slice("b", "http", vec![backend(1, second)])];
        assert_eq!(merged(&slices), [format!("1: Active from {from}")], "{first}, {second}");
    }
}

#[test]
fn only_the_ports_of_that_name_protocol_and_family_count() {
    let ipv6 = Backend::new("2001:db8::1".parse().expect("valid"), 80);
    let mut udp = Slice::clone(&slice("udp", "http", vec![backend(4, "")]));
    udp.ports[0].protocol = Protocol::Udp;
    let slices = [
        slice("a", "http", vec![backend(1, ""), ipv6]),
        slice("b", "https", vec![backend(2, "")]),
        slice("c", "", vec![backend(3, "")]),
        Arc::new(udp),
    ];
    assert_eq!(merged(&slices), ["1: Active from a"]);
}

/// A named target port may have a different number in each slice. The same address with two ports is two backends.
#[test]
fn port_numbers_may_differ_between_slices() {
    let mut other = backend(1, "");
    other.port = 9090;
    let slices = [slice("a", "http", vec![backend(1, "")]), slice("b", "http", vec![other])];
    assert_eq!(merged(&slices), ["1: Active from a", "1: Active from b"]);
}

#[test]
fn which_policy_applies_to_which_client() {
    use FrontendKind::{ClusterIP, ExternalIP, LoadBalancer, NodePort, Static};
    let service = |internal_policy, external_policy| Service {
        ports: Vec::new(),
        internal_policy,
        external_policy,
        ..Service::new(ServiceName::new("shop", "web"), Source::Files)
    };
    let internal = service(TrafficPolicy::Local, TrafficPolicy::Cluster);
    let external = service(TrafficPolicy::Cluster, TrafficPolicy::Local);
    // The kind; inside and outside with the internal policy Local; inside and outside with the external policy Local.
    for (kind, expected) in [
        (ClusterIP, [true, true, false, false]),
        (Static, [true, false, false, true]),
        (NodePort, [false, false, false, true]),
        (ExternalIP, [false, false, false, true]),
        (LoadBalancer, [false, false, false, true]),
    ] {
        let views = [&internal, &external].map(|s| [is_inside_local(s, kind), is_outside_local(s, kind)]);
        assert_eq!(views.concat(), expected, "{kind}: a client on this node takes the short cut at external addresses");
    }
}
