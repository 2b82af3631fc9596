//! A Kubernetes cluster for a node in a sandbox: its objects, its apiservers, nodelb's
//! configuration for them, and a writer that makes changes continuously.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ipnet::IpNet;
use nodelb_apiserver::{Cluster, Ranges, Replica, ServeOptions};
use serde_json::{Value, json};

use crate::host::{Host, frontend, get};
use crate::network::ip;

/// Cluster addresses, which work only through nodelb.
const SERVICE_CIDR: &str = "198.51.100.0/24";

/// The node's address, which accepts NodePorts.
pub(crate) const NODE: &str = "192.0.2.1";

/// A cluster with the service addresses of a sandbox.
pub(crate) fn cluster() -> Cluster {
    let addresses = vec![SERVICE_CIDR.parse::<IpNet>().unwrap()];
    Cluster::with(Ranges { addresses, ..Ranges::default() }).unwrap()
}

/// A cluster whose apiservers have these addresses.
pub(crate) fn cluster_at(apiservers: &[&str]) -> Cluster {
    let cluster = cluster();
    apply(&cluster, service("kubernetes", "198.51.100.1"));
    apply(&cluster, slice("kubernetes", apiservers));
    cluster
}

pub(crate) fn apply(cluster: &Cluster, object: Value) {
    cluster.apply_value(object).unwrap();
}

/// A service in the namespace `default` with port 443.
pub(crate) fn service(name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "clusterIP": address, "clusterIPs": [address],
            "ports": [{"name": "https", "port": 443, "protocol": "TCP"}],
        },
    })
}

/// Its slice, with these endpoints, which share one port.
pub(crate) fn slice(service: &str, endpoints: &[&str]) -> Value {
    let at: Vec<(&str, u16)> = endpoints
        .iter()
        .map(|endpoint| endpoint.rsplit_once(':').map(|(ip, port)| (ip, port.parse().unwrap())).unwrap())
        .collect();
    let port = at.first().map_or(443, |(_, port)| *port);
    let endpoints: Vec<Value> =
        at.iter().map(|(ip, _)| json!({"addresses": [ip], "conditions": {"ready": true}})).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": service, "namespace": "default", "labels": {"kubernetes.io/service-name": service},
        },
        "endpoints": endpoints, "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    })
}

/// Serves the cluster at an address of the sandbox.
pub(crate) fn serve(cluster: &Cluster, at: &str) -> Replica {
    serve_on(cluster, TcpListener::bind(at).unwrap(), &ServeOptions::default().alpn)
}

/// [`serve`] on a listener, with these ALPN protocols.
pub(crate) fn serve_on(cluster: &Cluster, listener: TcpListener, alpn: &[&'static str]) -> Replica {
    serve_with(cluster, listener, ServeOptions { alpn: alpn.to_vec(), ..ServeOptions::default() })
}

/// [`serve_on`] with these options.
pub(crate) fn serve_with(cluster: &Cluster, listener: TcpListener, mut options: ServeOptions) -> Replica {
    options.names.extend([crate::apiserver_incident::BALANCER, crate::apiserver_incident::DIRECT].map(host_of));
    cluster.serve(listener, options).unwrap()
}

fn host_of(address: &str) -> String {
    address.rsplit_once(':').unwrap().0.to_owned()
}

/// Configures a node for a cluster: a kubeconfig with the first address, and all addresses in
/// order.
pub(crate) fn join(host: &Host, cluster: &Cluster, servers: &[&str]) {
    let url = format!("https://{}", servers[0]);
    host.write("kubeconfig", &cluster.kubeconfig(&[&url]).unwrap());
    let kubeconfig = format!("kubeconfig = {:?}\n", host.path("kubeconfig"));
    configure(host, &format!("{kubeconfig}{}", in_order(servers)));
}

/// The servers as tables of the configuration, with the name that all certificates contain.
pub(crate) fn in_order(servers: &[&str]) -> String {
    let table =
        |server: &&str| format!("[[kubernetes.apiserver]]\naddress = {server:?}\ntls-server-name = \"kubernetes\"\n");
    servers.iter().map(table).collect()
}

/// Adds the node's address.
pub(crate) fn have_address() {
    ip(&["address", "replace", &format!("{NODE}/32"), "dev", "lo"]);
}

/// Writes the node's configuration with these lines in `[kubernetes]`.
pub(crate) fn configure(host: &Host, kubernetes: &str) {
    std::fs::create_dir_all(host.path("state")).unwrap();
    have_address();
    host.configure(&format!(
        "[node]\nnodeport-addresses = [{NODE:?}]\n[state]\ndirectory = {:?}\n[kubernetes]\n{kubernetes}",
        host.path("state")
    ));
}

/// Whether the address is held and its row contains all of `words`.
pub(crate) fn is_held(address: &str, words: &[&str]) -> bool {
    frontend(address).is_some_and(|row| {
        let row_text = row.to_string();
        row["status"] == "Held" && words.iter().all(|part| row_text.contains(part))
    })
}

/// `metadata.resourceVersion` of an object.
pub(crate) fn version(cluster: &Cluster, resource: &str, name: &str) -> String {
    let object = cluster.get(resource, "default", name).unwrap();
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// Adds a numbered service every few milliseconds and removes an earlier one.
pub(crate) struct Writer {
    cluster: Cluster,
    stop: Arc<AtomicBool>,
    last: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

/// Number of numbered services at a time.
const KEPT: u32 = 12;
const PACE: Duration = Duration::from_millis(20);

impl Writer {
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let (stop, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let thread = {
            let (cluster, stop, last) = (cluster.clone(), Arc::clone(&stop), Arc::clone(&last));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    write(&cluster, last.fetch_add(1, Ordering::Relaxed) + 1);
                    thread::sleep(PACE);
                }
            })
        };
        Self { cluster: cluster.clone(), stop, last, thread: Some(thread) }
    }

    /// The highest number so far.
    pub(crate) fn last(&self) -> u32 {
        self.last.load(Ordering::Relaxed)
    }

    /// Stops, and waits until nodelb has exactly the services of the cluster.
    pub(crate) fn finish(mut self, host: &Host) {
        self.join();
        let wanted = numbers(&self.cluster.list("services"), |service| service["metadata"]["name"].as_str());
        assert!(!wanted.is_empty());
        crate::host::eventually("exactly the cluster's services", || {
            shown() == Some(wanted.clone()) && wanted.iter().all(|number| is_served(&self.cluster, *number))
        });
        assert!(!host.log().contains(" ERROR "), "{}", host.log());
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn write(cluster: &Cluster, number: u32) {
    let name = format!("n{number}");
    let mut numbered = service(&name, "");
    numbered["spec"] = json!({"ports": [{"name": "https", "port": 443, "protocol": "TCP"}]});
    apply(cluster, numbered);
    apply(cluster, slice(&name, &[&backend_of(number)]));
    if let Some(old) = number.checked_sub(KEPT).filter(|old| *old > 0) {
        let name = format!("n{old}");
        cluster.delete("services", "default", &name).unwrap();
        cluster.delete("endpointslices", "default", &name).unwrap();
    }
}

fn backend_of(number: u32) -> String {
    format!("192.0.2.{}:{}", 100 + number % 100, 1000 + number)
}

/// The highest number that nodelb has received.
pub(crate) fn newest() -> u32 {
    shown().and_then(|numbers| numbers.last().copied()).unwrap_or(0)
}

fn shown() -> Option<BTreeSet<u32>> {
    let answer = get("/services")?;
    let name = |row: &'_ Value| row["service"].as_str().map(|name| name.trim_start_matches("default/").to_owned());
    Some(answer["services"].as_array()?.iter().filter_map(|row| name(row)?.strip_prefix('n')?.parse().ok()).collect())
}

fn numbers(objects: &[Value], name: impl Fn(&Value) -> Option<&str>) -> BTreeSet<u32> {
    objects.iter().filter_map(|object| name(object)?.strip_prefix('n')?.parse().ok()).collect()
}

fn is_served(cluster: &Cluster, number: u32) -> bool {
    let Some(service) = cluster.get("services", "default", &format!("n{number}")) else { return false };
    let address = format!("{}:443/TCP", service["spec"]["clusterIP"].as_str().unwrap());
    crate::host::is_served_by(&address, &[&format!("{}/TCP", backend_of(number))])
}
