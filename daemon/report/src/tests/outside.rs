use std::sync::Arc;

use super::super::problem::{DroppedPackets, DroppingChain};
use super::super::problems;
use super::*;
use crate::explain::summary::Summary;
use crate::time::Time;
use nodelb_core::change::Change;
use nodelb_core::config::{EngineConfig, PacketsConfig};
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Family, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServicePort, Slice, SliceName, SlicePort, Source,
    TrafficPolicy,
};
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::packets::outcomes::{Answers, Outcome, Outcomes};
use nodelb_core::state::entries::{BackendId, MapState};

const LIMITS: Limits = Limits { frontends: 9, services: 9, slots: 30, affinity: 4, outside: 9, source_ranges: 9 };

fn service(policy: TrafficPolicy) -> Service {
    let frontend = "198.51.100.1:80/TCP".parse::<L4Addr>().unwrap();
    let spec = FrontendSpec { addr: frontend.addr, port: frontend.port, kind: FrontendKind::Static };
    let port = ServicePort { name: "".into(), protocol: frontend.protocol, frontends: vec![spec] };
    let name = ServiceName::new("shop", "web");
    Service { external_policy: policy, is_outside: true, ports: vec![port], ..Service::new(name, Source::Files) }
}

/// A node with the address 192.0.2.1 that serves clients outside these backends.
fn observed(policy: TrafficPolicy, backends: &[&str]) -> Observed {
    let packets = PacketsConfig { is_on: true, ..PacketsConfig::default() };
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 8, packets, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    let own = "192.0.2.1".parse().unwrap();
    let backends = backends.iter().map(|text| {
        let at = text.parse::<L4Addr>().unwrap();
        let node = (at.addr == own).then(|| "node".into());
        Backend { node, ..Backend::new(at.addr, at.port) }
    });
    let service = service(policy);
    let ports = vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends: backends.collect() }];
    let (name, of) = (SliceName::new("shop", "web"), service.name.clone());
    let slice = Slice { name, service: of, source: Source::Files, origin: Origin::default(), ports, problem: None };
    let uplink = Uplink { ifindex: 2, name: "eth0".into(), entry: UplinkEntry { v4: Some(own), ..Default::default() } };
    let changes = [
        Change::Node(NodeFacts { name: "node".into(), addresses: [own].into(), ..NodeFacts::default() }),
        Change::Uplinks(vec![uplink]),
        Change::UpsertService(service),
        Change::UpsertSlice(slice),
        Change::Synced { source: Source::Files, incomplete: None },
    ];
    changes.into_iter().for_each(|change| engine.change(change));
    engine.reconcile(&mut MemoryDatapath::new(LIMITS), Moment(0));
    let snapshot = engine.snapshot(Moment(0));
    Observed { summary: Arc::new(Summary::new(&snapshot)), snapshot: Arc::new(snapshot), ..Observed::default() }
}

fn found(observed: &Observed) -> Vec<(Reason, Severity, String)> {
    problems(observed).into_iter().map(|it| (it.reason, it.severity, it.cause)).collect()
}

const CLUSTER: TrafficPolicy = TrafficPolicy::Cluster;

#[test]
fn a_service_with_loopback_backends_is_not_served_to_clients_outside() {
    let all = observed(CLUSTER, &["127.0.0.1:8081/TCP"]);
    assert!(all.snapshot.realised.outside.is_empty() && !all.snapshot.realised.frontends.is_empty());
    let [(reason, severity, cause)] = &found(&all)[..] else { panic!("{:?}", found(&all)) };
    assert_eq!((*reason, *severity), (Reason::NoOutsideBackend, Severity::Critical));
    assert!(cause.starts_with("clients outside the node are not served: 127.0.0.1:8081/TCP is a loopback"), "{cause}");
    let some = observed(CLUSTER, &["127.0.0.1:8081/TCP", "203.0.113.11:8080/TCP"]);
    assert!(!some.snapshot.realised.outside.is_empty());
    let [(_, severity, cause)] = &found(&some)[..] else { panic!("{:?}", found(&some)) };
    assert!(*severity == Severity::Warning && cause.contains("no answer from 1 of 2 backends"), "{cause}");
    assert_eq!(found(&observed(CLUSTER, &["203.0.113.11:8080/TCP"])), []);
}

/// Load balancers ask nodelb about Services of Kubernetes, and send no clients here without a local backend.
#[test]
fn a_service_of_a_file_without_the_local_backend_that_it_asks_for_is_a_problem() {
    let without = found(&observed(TrafficPolicy::Local, &["203.0.113.11:8080/TCP"]));
    let [(reason, severity, cause)] = &without[..] else { panic!("{without:?}") };
    assert_eq!((*reason, *severity), (Reason::NoOutsideBackend, Severity::Warning));
    assert!(cause.starts_with("198.51.100.1:80/TCP: packets of clients outside the node are dropped"), "{cause}");
    assert_eq!(found(&observed(TrafficPolicy::Local, &["192.0.2.1:8080/TCP"])), []);
}

#[test]
fn a_kernel_that_does_not_forward_is_a_problem_before_the_first_client() {
    let with = |backends: &[&str], is_everywhere: bool, packets: u64| {
        let settings = vec!["net.ipv4.ip_forward is 0".into()];
        let not_forwarding = Some(vec![NotForwarding { family: Family::Ipv4, settings, is_everywhere }]);
        let (reason, verdict) = ("no-forwarding", "passed");
        let drops = (packets > 0).then_some(DroppedPackets { reason, verdict, packets, first: Time(0), last: Time(0) });
        Observed { not_forwarding, drops: drops.into_iter().collect(), ..observed(CLUSTER, backends) }
    };
    let found = |backends: &[&str], is_everywhere, packets| found(&with(backends, is_everywhere, packets));
    let cause = "net.ipv4.ip_forward is 0: clients outside the node reach no backend of shop/web; set it to 1";
    let critical = (Reason::NotForwarding, Severity::Critical, cause.to_owned());
    assert_eq!(found(&["203.0.113.11:8080/TCP"], true, 0), [critical]);
    let lost = &found(&["203.0.113.11:8080/TCP"], true, 8)[0].2;
    let services = problems(&with(&["203.0.113.11:8080/TCP"], true, 0)).pop().unwrap().services;
    assert_eq!(services, ["shop/web"], "however many are in the line");
    assert!(lost.ends_with("set it to 1 (8 packets of clients lost)"), "{lost}");
    let some = found(&["203.0.113.11:8080/TCP", "192.0.2.1:8080/TCP"], true, 0);
    assert!(some[0].1 == Severity::Warning && some[0].2.contains("only the backends on this node"), "{some:?}");
    let at_one_device = found(&["203.0.113.11:8080/TCP"], false, 0);
    assert!(
        at_one_device[0].1 == Severity::Warning && at_one_device[0].2.contains("arrive there"),
        "{at_one_device:?}"
    );
    assert_eq!(found(&["192.0.2.1:8080/TCP"], true, 0), []);
    let other_family = NotForwarding { family: Family::Ipv6, settings: vec!["x".into()], is_everywhere: true };
    let served = observed(CLUSTER, &["203.0.113.11:8080/TCP"]);
    assert_eq!(unforwarded(&served.snapshot, &[other_family]), None);
}

/// Clients outside hung while there was no problem (A1 of the operators' findings).
#[test]
fn backends_that_do_not_answer_are_a_problem_of_the_service() {
    let found = |outcomes: &[(usize, u64, u64)]| {
        let observed = observed(TrafficPolicy::Cluster, &["192.0.2.8:8080", "192.0.2.9:8080"]);
        let realised = &observed.snapshot.realised;
        let (id, entry) = realised.services.iter().find(|(_, entry)| !entry.cluster.is_empty()).unwrap();
        let mut answers = Answers::default();
        let of = |(at, answered, unanswered): &(usize, u64, u64)| {
            (*id, entry.cluster[*at].backend, Outcomes { answered: *answered, refused: 0, unanswered: *unanswered })
        };
        let outcomes: Vec<Outcome> = outcomes.iter().map(of).collect();
        answers.take(&outcomes, Moment(0), Moment(1_000), |_| Some(entry));
        let silent = Arc::new(answers.silent_ports(&observed.snapshot));
        let found = problems(&Observed { silent, ..observed });
        let of_reason = found.into_iter().find(|problem| problem.reason == Reason::Unanswered);
        of_reason.map(|it| (it.severity, it.object, it.cause, it.command))
    };
    let problem = |severity, cause: &str| {
        Some((severity, "shop/web".to_owned(), cause.to_owned(), "nodelb diagnose shop/web".to_owned()))
    };
    assert_eq!(found(&[(0, 5, 0), (1, 0, 2)]), None);
    let one = "TCP/IPv4: the last 4 connections of clients outside the node to 192.0.2.9:8080/TCP got no answer; other \
               backends answer";
    assert_eq!(found(&[(0, 5, 0), (1, 0, 4)]), problem(Severity::Warning, one));
    let all = "TCP/IPv4: the last 3 connections of clients outside the node to 192.0.2.8:8080/TCP, 192.0.2.9:8080/TCP got no \
               answer";
    assert_eq!(found(&[(0, 0, 1), (1, 0, 2)]), problem(Severity::Critical, all));
}

/// The first sign of a firewall that drops what it forwards were the clients that hung (A1).
#[test]
fn a_firewall_is_a_notice_until_a_backend_behind_it_has_answered() {
    let observed = observed(TrafficPolicy::Cluster, &["192.0.2.8:8080", "192.0.2.9:8080"]);
    let realised = &observed.snapshot.realised;
    let (id, entry) = realised.services.iter().find(|(_, entry)| !entry.cluster.is_empty()).unwrap();
    let [elsewhere, pod] = [0, 1].map(|at| entry.cluster[at].backend);
    let chain = |name: &str| DroppingChain { name: name.into(), family: None };
    let of = |chains: &[&str], answered: &[BackendId]| {
        let behind = [(*id, [pod].into())].into();
        let firewall = Firewall { chains: chains.iter().copied().map(chain).collect(), behind };
        let ways = Arc::new(Ways { firewall, ..Ways::default() });
        let answered = Arc::new([(*id, answered.iter().copied().collect())].into());
        let found = problems(&Observed { ways, answered, ..observed.clone() });
        let of_reason = found.into_iter().find(|problem| problem.reason == Reason::ForwardPolicy);
        let of_reason = of_reason.inspect(|it| assert_eq!(it.services, ["shop/web"]));
        of_reason.map(|it| (it.severity, it.cause))
    };
    let docker = "the chain FORWARD of the table filter";
    let cause = "the chain FORWARD of the table filter drops forwarded packets that no rule accepts, and clients outside the \
                 node have had no answer yet from the backends behind it of shop/web";
    assert_eq!(of(&[docker], &[]), Some((Severity::Notice, cause.to_owned())));
    assert_eq!(
        of(&[docker], &[elsewhere]),
        Some((Severity::Notice, cause.to_owned())),
        "it is not behind the firewall"
    );
    assert_eq!(of(&[docker], &[pod]), None);
    assert!(of(&[docker, "the chain forward of the table mine"], &[]).unwrap().1.contains("table mine drop forwarded"));
    assert_eq!(problems(&observed).iter().find(|it| it.reason == Reason::ForwardPolicy), None);
}

#[test]
fn a_device_without_programs_that_leads_to_a_router_is_a_warning_with_its_services() {
    let observed = observed(TrafficPolicy::Cluster, &["192.0.2.8:8080"]);
    let (id, _) = observed.snapshot.owners.iter().next().unwrap();
    let ways = Ways { gateways: [("eth1".into(), [*id].into())].into(), ..Ways::default() };
    let found = problems(&Observed { ways: ways.into(), ..observed.clone() });
    let problem = found.iter().find(|problem| problem.reason == Reason::GatewayWithoutPrograms).unwrap();
    assert_eq!((&*problem.object, &problem.services[..]), ("device eth1", &["shop/web".to_owned()][..]));
    let cause = "eth1 leads to a router, and nodelb's programs are not there: clients outside the node get no answer from the \
                 backends behind it of shop/web; add it to packets.devices";
    assert_eq!((problem.severity, &*problem.cause), (Severity::Warning, cause));
}

#[test]
fn strict_checks_of_the_way_back_are_a_notice_on_a_node_with_several_ways() {
    let uplink = |ifindex, is_strict| Uplink {
        ifindex,
        name: format!("eth{ifindex}").into(),
        entry: UplinkEntry { v4: "192.0.2.1".parse().ok(), is_strict, ..UplinkEntry::default() },
    };
    assert_eq!(strict(&[uplink(0, true)]), None, "every route back leads there");
    assert_eq!(strict(&[uplink(0, false), uplink(1, false)]), None);
    let two = strict(&[uplink(0, false), uplink(1, true)]).unwrap();
    assert!(two.starts_with("rp_filter is 1 on eth1: packets of a client that arrive there are dropped"), "{two}");
    let v6 = Uplink { entry: UplinkEntry { v4: None, ..uplink(1, true).entry }, ..uplink(1, true) };
    assert_eq!(strict(&[uplink(0, true), v6]), None, "the kernel checks IPv4 alone");
}
