//! The services of the lab: Kubernetes manifests of node A, each with every kind of address.

use serde_json::{Value, json};

use crate::host::Host;
use crate::lab::{NODE_A, NODE_B, POD_A1, POD_A2, POD_B};

/// The configuration of node A after its `[datapath]` section: NodePorts on the uplink's addresses,
/// packets on.
pub(crate) const PACKETS_ON: &str = "
[node]
name = \"node-a\"
nodeport-addresses = [\"203.0.113.2/32\", \"2001:db8:1::2/128\"]
[packets]
mode = \"on\"
";

/// Where a backend runs: its addresses and its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint([&'static str; 2], &'static str);

/// The first pod on node A.
pub(crate) const ON_A1: Endpoint = Endpoint(POD_A1, "node-a");
/// The second pod on node A.
pub(crate) const ON_A2: Endpoint = Endpoint(POD_A2, "node-a");
/// The pod on node B.
pub(crate) const ON_B: Endpoint = Endpoint(POD_B, "node-b");
/// A process of node A in its own network namespace.
pub(crate) const HOST_A: Endpoint = Endpoint(NODE_A, "node-a");
/// A process of node B in its own network namespace.
pub(crate) const HOST_B: Endpoint = Endpoint(NODE_B, "node-b");

/// A service with the number `n`, which determines its addresses and ports: 1 to 99.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    n: u16,
    spec: Value,
    endpoints: Vec<(Endpoint, Value)>,
}

impl Service {
    /// A service of type LoadBalancer with default policies.
    pub(crate) fn new(n: u16, endpoints: &[Endpoint]) -> Self {
        let port = |name, protocol| json!({"name": name, "port": 80, "nodePort": 30_000 + n, "protocol": protocol});
        let spec = json!({
            "type": "LoadBalancer",
            "clusterIP": format!("198.51.100.{n}"),
            "clusterIPs": [format!("198.51.100.{n}"), format!("2001:db8:f::{n}")],
            "ipFamilies": ["IPv4", "IPv6"],
            "ports": [port("tcp", "TCP"), port("udp", "UDP")],
        });
        let conditions = json!({"ready": true});
        Self { n, spec, endpoints: endpoints.iter().map(|endpoint| (*endpoint, conditions.clone())).collect() }
    }

    /// This service with these endpoints, which are ready.
    pub(crate) fn on(self, endpoints: &[Endpoint]) -> Self {
        Self { endpoints: Self::new(self.n, endpoints).endpoints, ..self }
    }

    /// This service with another value of a field of its spec.
    pub(crate) fn with(mut self, field: &str, value: Value) -> Self {
        self.spec[field] = value;
        self
    }

    /// This service with an endpoint that is terminating and still serves.
    pub(crate) fn terminating(mut self, endpoint: Endpoint) -> Self {
        let conditions = json!({"ready": false, "serving": true, "terminating": true});
        self.endpoints.push((endpoint, conditions));
        self
    }

    /// The port that its backends listen on.
    pub(crate) fn backend_port(&self) -> u16 {
        8_000 + self.n
    }

    /// Its ClusterIPs with the port.
    pub(crate) fn cluster_ips(&self) -> [String; 2] {
        [format!("198.51.100.{}:80", self.n), format!("[2001:db8:f::{}]:80", self.n)]
    }

    /// Its load balancer addresses with the port.
    pub(crate) fn load_balancer(&self) -> [String; 2] {
        [format!("198.51.100.{}:80", 100 + self.n), format!("[2001:db8:f:1::{}]:80", self.n)]
    }

    /// Its NodePort on node A.
    pub(crate) fn node_ports(&self) -> [String; 2] {
        let port = 30_000 + self.n;
        [format!("{}:{port}", NODE_A[0]), format!("[{}]:{port}", NODE_A[1])]
    }

    /// Writes the manifest, and waits until nodelb has applied it.
    pub(crate) fn apply(&self, host: &Host) {
        let name = format!("s{}", self.n);
        let metadata = |name: &str, labels: Value| json!({"name": name, "namespace": "lab", "labels": labels});
        let addresses = self.load_balancer().map(|address| {
            let ip = address.rsplit_once(':').unwrap().0.trim_matches(['[', ']']).to_owned();
            json!({"ip": ip})
        });
        let mut documents = vec![json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata(&name, json!({})),
            "spec": self.spec, "status": {"loadBalancer": {"ingress": addresses}},
        })];
        for (family, kind) in ["IPv4", "IPv6"].into_iter().enumerate() {
            let port = |name, protocol| json!({"name": name, "port": self.backend_port(), "protocol": protocol});
            let endpoints: Vec<Value> = self
                .endpoints
                .iter()
                .map(|(Endpoint(addresses, node), conditions)| {
                    json!({"addresses": [addresses[family]], "nodeName": node, "conditions": conditions})
                })
                .collect();
            documents.push(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": metadata(&format!("{name}-{}", family + 4), json!({"kubernetes.io/service-name": name})),
                "addressType": kind, "ports": [port("tcp", "TCP"), port("udp", "UDP")], "endpoints": endpoints,
            }));
        }
        let text: Vec<String> = documents.iter().map(Value::to_string).collect();
        host.serve(&format!("{name}.yaml"), &text.join("\n---\n"));
    }
}
