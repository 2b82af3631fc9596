use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Apiservers, MAX_OBSERVED, leads_to, lists_apiservers};
use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::model::node::NodeFacts;
use crate::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName,
    SlicePort, Source,
};

fn at(text: &str) -> (Addr, u16) {
    let L4Addr { addr, port, .. } = text.parse().expect("valid in a test");
    (addr, port)
}

fn slice(service: &str, source: Source, backends: &[(Addr, u16)]) -> Slice {
    let service: ServiceName = service.parse().expect("valid in a test");
    let backends = backends.iter().map(|(addr, port)| Backend::new(*addr, *port)).collect();
    Slice {
        name: SliceName::new(&service.namespace, "x"),
        service,
        source,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    }
}

fn service(protocol: Protocol, frontend: &str, kind: FrontendKind) -> Service {
    let (addr, port) = at(frontend);
    Service {
        ports: vec![ServicePort { name: "".into(), protocol, frontends: vec![FrontendSpec { addr, port, kind }] }],
        ..Service::new(ServiceName::new("a", "s"), Source::Kubernetes)
    }
}

#[test]
fn an_apiserver_that_was_known_once_stays_known() {
    let mut apiservers = Apiservers::default();
    let (one, two) = (at("192.0.2.1:6443"), at("192.0.2.2:6443"));
    assert_eq!(apiservers.set_reported([one].into()), BTreeSet::from([one]));
    assert_eq!(apiservers.set_reported([one, two].into()), BTreeSet::from([two]));
    assert!(apiservers.set_reported(BTreeSet::new()).is_empty());
    assert_eq!(apiservers.iter().collect::<Vec<_>>(), [one, two]);
    assert!(apiservers.has(L4Addr::new(one.0, one.1, Protocol::Tcp)));
    assert!(!apiservers.has(L4Addr::new(one.0, one.1, Protocol::Udp)));
    assert!(!apiservers.contains(one.0, 6444));
}

/// A user who may write slices must not be able to exhaust memory or to declare a loopback address an apiserver.
#[test]
fn what_slices_say_is_bounded_and_checked() {
    let mut apiservers = Apiservers::default();
    let nonsense = ["127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[ff02::1]:1"].map(at);
    let port_zero = (at("192.0.2.1:1").0, 0);
    let backends: Vec<_> = nonsense.into_iter().chain([port_zero]).collect();
    assert!(apiservers.learn(&slice("default/kubernetes", Source::Kubernetes, &backends)).is_empty());
    let many: Vec<_> = (1..=1_000).map(|port| (at("192.0.2.1:1").0, port)).collect();
    assert_eq!(apiservers.learn(&slice("default/kubernetes", Source::Kubernetes, &many)).len(), MAX_OBSERVED);
    let reported = at("192.0.2.9:6443");
    assert_eq!(
        apiservers.set_reported([reported].into()),
        BTreeSet::from([reported]),
        "the pool's addresses are never limited"
    );
}

#[test]
fn only_the_service_default_kubernetes_lists_apiservers() {
    let tells = |service: &str, source| lists_apiservers(&slice(service, source, &[]));
    assert!(tells("default/kubernetes", Source::Kubernetes));
    assert!(!tells("default/kubernetes", Source::Files));
    assert!(!tells("default/kubernetes-intranet", Source::Kubernetes));
    assert!(!tells("kubernetes/default", Source::Kubernetes));
    assert!(!ServiceName::new("default-kubernetes", "").is_default_kubernetes());
}

#[test]
fn a_service_leads_to_an_apiserver_by_an_address_or_a_backend() {
    let is_apiserver = |addr, port| [at("192.0.2.1:6443"), at("203.0.113.1:31443")].contains(&(addr, port));
    let addresses = ["203.0.113.1", "2001:db8::1"].map(|text| text.parse().expect("valid")).into();
    let node = NodeFacts { addresses, ..NodeFacts::default() };
    let leads = |service: &Service, slices: &[Arc<Slice>]| leads_to(service, slices, &node, is_apiserver);
    let (tcp, lb, nodeport) = (Protocol::Tcp, FrontendKind::LoadBalancer, FrontendKind::NodePort);
    for (protocol, frontend, kind, expected) in [
        (tcp, "192.0.2.1:6443", lb, true),
        (tcp, "192.0.2.1:6443", FrontendKind::ClusterIP, true),
        (tcp, "192.0.2.1:443", lb, false),
        (Protocol::Udp, "192.0.2.1:6443", lb, false),
        (tcp, "0.0.0.0:31443", nodeport, true),
        (tcp, "[::]:31443", nodeport, false),
        (tcp, "0.0.0.0:6443", nodeport, false),
    ] {
        assert_eq!(leads(&service(protocol, frontend, kind), &[]), expected, "{frontend}/{protocol} {kind}");
    }
    let other = service(tcp, "192.0.2.7:443", lb);
    let mut slice = slice("a/s", Source::Kubernetes, &[at("192.0.2.2:6443"), at("192.0.2.1:6443")]);
    slice.ports[0].backends[1].state = BackendState::NotReady;
    assert!(leads(&other, &[Arc::new(slice.clone())]), "usable or not");
    slice.ports[0].protocol = Protocol::Udp;
    assert!(!leads(&other, &[Arc::new(slice)]));
}
