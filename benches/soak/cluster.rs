//! The content of the cluster: one service with the traffic of the node, one with that of clients outside, and many that
//! change.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use nodelb_apiserver::{Cluster, Replica, ServeOptions};
use nodelb_prober::{Backend, Transport};
use serde_json::{Value, json};

use crate::lab::{NODE_A, POD_A1, POD_A2, POD_B};

/// The address of the service with the traffic. It always exists; its endpoints change, and all of
/// them answer.
pub(crate) const STABLE: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 10), 80));

/// The address and the NodePorts of the service with the traffic of clients outside the node. The second NodePort is that
/// of port 81, where backends answer each line.
pub(crate) const OUTSIDE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 110);
pub(crate) const OUTSIDE_NODE_PORT: u16 = 30_110;
pub(crate) const OUTSIDE_NODE_PORT_LINES: u16 = 30_111;

/// The ports of its backends.
pub(crate) const KEPT_PORT: u16 = 8080;
pub(crate) const LINES: u16 = 8081;

/// Number of services, including the first one with traffic.
pub(crate) const SERVICES: u32 = 1000;

/// The name of the node.
pub(crate) const NODE: &str = "node-a";

/// Number of running backends of the service with the traffic.
pub(crate) const BACKENDS: u8 = 6;

/// The addresses of the two apiservers: addresses of the sandbox that do not belong to a service.
const APISERVERS: [(Ipv4Addr, u16); 2] = [(Ipv4Addr::new(192, 0, 2, 201), 6443), (Ipv4Addr::new(192, 0, 2, 202), 6443)];

pub(crate) struct Content {
    pub(crate) cluster: Cluster,
    replicas: [Replica; 2],
}

impl Content {
    pub(crate) fn new() -> Self {
        let cluster = Cluster::new().unwrap();
        let replicas = [(); 2].map(|()| {
            let mut options = ServeOptions::default();
            options.names.extend(APISERVERS.map(|(address, _)| address.to_string()));
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            cluster.serve(listener, options).unwrap()
        });
        let content = Self { cluster, replicas };
        content.reset();
        content
    }

    /// For each apiserver, the address to which nodelb connects and the one on which the server
    /// behind it listens.
    pub(crate) fn replicas(&self) -> [(SocketAddr, SocketAddr); 2] {
        [0, 1].map(|index: usize| (SocketAddr::from(APISERVERS[index]), self.replicas[index].address()))
    }

    /// Puts the whole cluster into the state in which samples are taken.
    pub(crate) fn reset(&self) {
        apply(&self.cluster, node());
        apply(&self.cluster, stays());
        apply(&self.cluster, stable_slice(0));
        apply(&self.cluster, outside());
        apply(&self.cluster, outside_slice(0));
        for number in 1..SERVICES {
            apply(&self.cluster, service(number, 0));
            apply(&self.cluster, slice(number, 3));
        }
    }
}

pub(crate) fn start_backends() -> Vec<Backend> {
    let start = |number: u8| {
        let at = backend(number);
        Backend::start(&format!("b{number}"), &[(Transport::Tcp, at), (Transport::Udp, at)]).unwrap()
    };
    (1..=BACKENDS).map(start).collect()
}

pub(crate) fn backend(number: u8) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(192, 0, 2, 10 + number), 8080))
}

pub(crate) fn apply(cluster: &Cluster, object: Value) {
    cluster.apply_value(object).unwrap();
}

fn ports() -> Value {
    json!([{"name": "tcp", "port": 80, "targetPort": 8080, "protocol": "TCP"},
        {"name": "udp", "port": 80, "targetPort": 8080, "protocol": "UDP"}])
}

fn stays() -> Value {
    let address = STABLE.ip().to_string();
    json!({"kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "soak", "name": "stays"},
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ports": ports()}})
}

/// Four of the six backends, a different four for each `turn`.
pub(crate) fn stable_slice(turn: u32) -> Value {
    let first = u8::try_from(turn % u32::from(BACKENDS)).unwrap();
    let addresses = (first..first + 4).map(|number| format!("192.0.2.{}", 11 + number % BACKENDS));
    endpoint_slice("stays", addresses)
}

/// Clients outside reach it by its load balancer address and by NodePorts.
fn outside() -> Value {
    let port = |name, protocol, ports: [u16; 3]| {
        let [port, target, node] = ports;
        json!({"name": name, "protocol": protocol, "port": port, "targetPort": target, "nodePort": node})
    };
    let ports = [
        port("tcp", "TCP", [80, KEPT_PORT, OUTSIDE_NODE_PORT]),
        port("udp", "UDP", [80, KEPT_PORT, OUTSIDE_NODE_PORT]),
        port("lines", "TCP", [81, LINES, OUTSIDE_NODE_PORT_LINES]),
    ];
    json!({"kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "soak", "name": "outside"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.96.255.1", "clusterIPs": ["10.96.255.1"], "ports": ports},
        "status": {"loadBalancer": {"ingress": [{"ip": OUTSIDE.to_string()}]}}})
}

/// Two of the three pods, different ones for each `turn`.
pub(crate) fn outside_slice(turn: u32) -> Value {
    let pods = [(POD_A1, NODE), (POD_A2, NODE), (POD_B, "node-b")];
    let endpoints: Vec<Value> = [turn, turn + 1]
        .map(|place| pods[place as usize % pods.len()])
        .map(|(pod, node)| json!({"addresses": [pod[0]], "nodeName": node, "conditions": {"ready": true}}))
        .into();
    let ports = [("tcp", KEPT_PORT, "TCP"), ("udp", KEPT_PORT, "UDP"), ("lines", LINES, "TCP")]
        .map(|(name, port, protocol)| json!({"name": name, "port": port, "protocol": protocol}));
    json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": {"namespace": "soak", "name": "outside", "labels": {"kubernetes.io/service-name": "outside"}},
        "endpoints": endpoints, "ports": ports})
}

/// The object of the node.
fn node() -> Value {
    json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": NODE},
        "status": {"addresses": [{"type": "InternalIP", "address": NODE_A[0]}]}})
}

pub(crate) fn name(number: u32) -> String {
    format!("service-{number:04}")
}

/// A service that changes; `turn` is only stored in an annotation.
pub(crate) fn service(number: u32, turn: u32) -> Value {
    let address = format!("10.96.{}.{}", number / 250, 1 + number % 250);
    json!({"kind": "Service", "apiVersion": "v1",
        "metadata": {"namespace": "soak", "name": name(number), "annotations": {"example.com/turn": turn.to_string()}},
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ports": ports()}})
}

/// Its slice, with this number of endpoints.
pub(crate) fn slice(number: u32, endpoints: u32) -> Value {
    endpoint_slice(
        &name(number),
        (0..endpoints).map(|place| format!("10.1.{}.{}", number / 125, 1 + number % 125 * 2 + place)),
    )
}

fn endpoint_slice(service: &str, addresses: impl Iterator<Item = String>) -> Value {
    let endpoints: Vec<Value> =
        addresses.map(|address| json!({"addresses": [address], "conditions": {"ready": true}})).collect();
    json!({"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": {"namespace": "soak", "name": service, "labels": {"kubernetes.io/service-name": service}},
        "endpoints": endpoints,
        "ports": [{"name": "tcp", "port": 8080, "protocol": "TCP"}, {"name": "udp", "port": 8080, "protocol": "UDP"}]})
}
