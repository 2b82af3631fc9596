//! The load balancer of a cloud: gives each Service of type LoadBalancer its addresses, and routes them to the nodes that
//! pass the health check. Packets arrive unchanged at the nodes, as with MetalLB and BGP. Runs in the router.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::http;

/// The finalizer of cloud providers, which a test of upstream examines.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Where kube-proxy and nodelb answer for the node.
const NODE_PORT: u16 = 10256;

const LIMIT: Duration = Duration::from_secs(1);

/// A node gets no new connections after it has not answered for so long; clouds take longer.
const UNHEALTHY: Duration = Duration::from_secs(5);

/// A label with which an administrator takes a node out of all load balancers.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Addresses of a Service.
#[derive(Debug, Default)]
struct Pool {
    /// By the Service's UID.
    used: BTreeMap<String, Vec<IpAddr>>,
}

/// A change of an object, and why.
#[derive(Debug, PartialEq, Eq)]
struct Patch {
    path: String,
    body: Value,
}

/// What one Service needs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    patches: Vec<Patch>,
    addresses: Vec<IpAddr>,
}

impl Pool {
    /// Compares a Service with the addresses that it has.
    fn wanted(&mut self, service: &Value) -> Wanted {
        let text = |pointer: &str| service.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let uid = text("/metadata/uid").to_owned();
        let path = format!("/api/v1/namespaces/{}/services/{}", text("/metadata/namespace"), text("/metadata/name"));
        let finalizers: Vec<_> = list(service, "/metadata/finalizers").iter().filter_map(Value::as_str).collect();
        let ingress = list(service, "/status/loadBalancer/ingress");
        let shown: Vec<IpAddr> = ingress.iter().filter_map(|one| one["ip"].as_str()?.parse().ok()).collect();
        let deleted = !text("/metadata/deletionTimestamp").is_empty();
        if text("/spec/type") != "LoadBalancer" || deleted || !text("/spec/loadBalancerClass").is_empty() {
            let mut wanted = Wanted::default();
            let ours = self.used.remove(&uid).is_some() || finalizers.contains(&FINALIZER);
            if ours && !shown.is_empty() && !deleted {
                wanted.patch(format!("{path}/status"), json!({"status": {"loadBalancer": {"ingress": null}}}));
            }
            if finalizers.contains(&FINALIZER) {
                let others: Vec<_> = finalizers.iter().filter(|name| **name != FINALIZER).collect();
                wanted.patch(path, json!({"metadata": {"finalizers": others}}));
            }
            return wanted;
        }
        let families: Vec<_> = list(service, "/spec/ipFamilies").iter().filter_map(Value::as_str).collect();
        let addresses = self.addresses(&uid, &shown, &families);
        let mut wanted = Wanted { addresses, ..Wanted::default() };
        if !finalizers.contains(&FINALIZER) {
            let all: Vec<_> = finalizers.iter().chain([&FINALIZER]).collect();
            wanted.patch(path.clone(), json!({"metadata": {"finalizers": all}}));
        }
        if shown != wanted.addresses {
            let ingress: Vec<_> = wanted.addresses.iter().map(|address| json!({"ip": address})).collect();
            wanted.patch(format!("{path}/status"), json!({"status": {"loadBalancer": {"ingress": ingress}}}));
        }
        wanted
    }

    /// Those that it has, also from before a restart of this program; otherwise the first free ones.
    fn addresses(&mut self, uid: &str, shown: &[IpAddr], families: &[&str]) -> Vec<IpAddr> {
        if let Some(addresses) = self.used.get(uid).filter(|addresses| addresses.len() == families.len().max(1)) {
            return addresses.clone();
        }
        let others: BTreeSet<_> =
            self.used.iter().filter(|(other, _)| *other != uid).flat_map(|(_, used)| used).collect();
        let families = if families.is_empty() { &["IPv4"][..] } else { families };
        let of = |family: &str, number: u16| -> Option<IpAddr> {
            if family == "IPv6" { format!("2001:db8:51::{number}") } else { format!("198.51.100.{number}") }
                .parse()
                .ok()
        };
        let addresses: Vec<_> = families
            .iter()
            .filter_map(|family| {
                let same = |address: &&IpAddr| address.is_ipv6() == (*family == "IPv6");
                let free =
                    || (10..250).filter_map(|number| of(family, number)).find(|address| !others.contains(address));
                shown.iter().find(same).copied().or_else(free)
            })
            .collect();
        self.used.insert(uid.to_owned(), addresses.clone());
        addresses
    }
}

impl Wanted {
    fn patch(&mut self, path: String, body: Value) {
        self.patches.push(Patch { path, body });
    }
}

fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The internal addresses of the nodes that get connections.
fn node_addresses(nodes: &Value) -> Vec<Vec<IpAddr>> {
    let internal = |address: &Value| {
        (address["type"] == "InternalIP").then(|| address["address"].as_str()?.parse().ok()).flatten()
    };
    let of = |node: &Value| list(node, "/status/addresses").iter().filter_map(internal).collect::<Vec<IpAddr>>();
    let included = |node: &&Value| node["metadata"]["labels"][EXCLUDED].is_null();
    list(nodes, "/items").iter().filter(included).map(of).filter(|addresses| !addresses.is_empty()).collect()
}

struct Balancer {
    api: SocketAddr,
    pool: Pool,
    /// The next hops of each address.
    routes: BTreeMap<IpAddr, Vec<IpAddr>>,
    /// When a node, by its first address, last passed the health check at a port.
    passed: BTreeMap<(IpAddr, u16), Instant>,
}

/// Runs until it is killed. Reports errors, and tries again.
pub(crate) fn run(api: &str) -> Result<ExitCode, String> {
    let api = api.parse().map_err(|error| format!("{api}: {error}"))?;
    let mut balancer = Balancer { api, pool: Pool::default(), routes: BTreeMap::new(), passed: BTreeMap::new() };
    for range in ["198.51.100.0/24", "2001:db8:51::/64"] {
        ip(range.contains(':'), &["route", "replace", "unreachable", range])?;
    }
    loop {
        if let Err(problem) = balancer.round() {
            log(&problem)?;
        }
        thread::sleep(Duration::from_millis(500));
    }
}

impl Balancer {
    fn round(&mut self) -> Result<(), String> {
        let nodes = node_addresses(&self.get("/api/v1/nodes")?);
        let services = self.get("/api/v1/services")?;
        let mut healthy = BTreeMap::new();
        let mut routed = BTreeSet::new();
        for service in list(&services, "/items") {
            let wanted = self.pool.wanted(service);
            for patch in &wanted.patches {
                self.patch(patch)?;
            }
            if wanted.addresses.is_empty() {
                continue;
            }
            let port = service.pointer("/spec/healthCheckNodePort").and_then(Value::as_u64);
            let port = port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0).unwrap_or(NODE_PORT);
            let passing = healthy.entry(port).or_insert_with(|| self.passing(&nodes, port));
            // Which node gets a client is a matter of the load balancer: with affinity and backends that differ, always the same.
            let sticky =
                port != NODE_PORT && service.pointer("/spec/sessionAffinity").is_some_and(|kind| kind == "ClientIP");
            let most = if sticky { 1 } else { passing.len() };
            for address in wanted.addresses {
                let same = |hop: &&IpAddr| hop.is_ipv6() == address.is_ipv6();
                let hops = passing[..most.min(passing.len())].iter().flatten().filter(same).copied().collect();
                self.route(address, hops)?;
                routed.insert(address);
            }
        }
        let gone: Vec<_> = self.routes.keys().filter(|address| !routed.contains(address)).copied().collect();
        gone.into_iter().try_for_each(|address| self.route(address, Vec::new()))
    }

    /// The nodes that pass the check of a port, or have passed it recently, except if they answer that they have no backend.
    fn passing(&mut self, nodes: &[Vec<IpAddr>], port: u16) -> Vec<Vec<IpAddr>> {
        let mut passes = |addresses: &&Vec<IpAddr>| {
            let Some(node) = addresses.first() else { return false };
            let answer = http::request(SocketAddr::new(*node, port), LIMIT, "GET /healthz", "");
            match answer {
                Ok((200, _)) => {
                    self.passed.insert((*node, port), Instant::now());
                    true
                }
                // Without a backend for the service, at once.
                Ok(_) if port != NODE_PORT => false,
                _ => self.passed.get(&(*node, port)).is_some_and(|passed| passed.elapsed() < UNHEALTHY),
            }
        };
        nodes.iter().filter(|addresses| passes(addresses)).cloned().collect()
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        let (status, body) = self.request(&format!("GET {path}"), "")?;
        if status != 200 {
            return Err(format!("GET {path}: {status}"));
        }
        serde_json::from_str(&body).map_err(|error| format!("GET {path}: {error}"))
    }

    /// Kubernetes may have changed the object meanwhile: the next round sees it.
    fn patch(&self, patch: &Patch) -> Result<(), String> {
        let (status, body) = self.request(&format!("PATCH {}", patch.path), &patch.body.to_string())?;
        if status < 300 || status == 404 || status == 409 {
            Ok(())
        } else {
            Err(format!("PATCH {}: {status} {body}", patch.path))
        }
    }

    fn request(&self, head: &str, body: &str) -> Result<(u16, String), String> {
        http::request(self.api, LIMIT * 5, head, body).map_err(|error| format!("{head}: {error}"))
    }

    fn route(&mut self, address: IpAddr, hops: Vec<IpAddr>) -> Result<(), String> {
        if self.routes.get(&address) == Some(&hops) || (hops.is_empty() && !self.routes.contains_key(&address)) {
            return Ok(());
        }
        let target = address.to_string();
        let texts: Vec<_> = hops.iter().map(ToString::to_string).collect();
        log(&format!("{target}: to {}", if hops.is_empty() { "no node".to_owned() } else { texts.join(", ") }))?;
        if hops.is_empty() {
            ip(address.is_ipv6(), &["route", "delete", &target])?;
            self.routes.remove(&address);
            return Ok(());
        }
        let mut words = vec!["route", "replace", &target];
        words.extend(texts.iter().flat_map(|hop| ["nexthop", "via", hop]));
        ip(address.is_ipv6(), &words)?;
        self.routes.insert(address, hops);
        Ok(())
    }
}

/// With the seconds since 1970, as the daemons' logs can be compared with.
fn log(text: &str) -> Result<(), String> {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    writeln!(io::stderr(), "{time:.1} {text}").map_err(|error| format!("cannot write: {error}"))
}

fn ip(six: bool, words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").arg(if six { "-6" } else { "-4" }).args(words).output();
    let output = output.map_err(|error| format!("cannot run ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr)))
}

#[cfg(test)]
#[path = "tests/balancer.rs"]
mod tests;
