//! A long outage of all apiservers, or only apiservers that are not configured: services keep
//! working, wrong data is rejected, and missed changes are applied afterwards.

use std::fs;
use std::net::TcpListener;

use nodelb_apiserver::{Cluster, Replica, ServeOptions};
use nodelb_prober::{Plan, Probe, Transport};
use serde_json::{Value, json};

use crate::cluster::{apply, cluster_at, join, serve, service, slice};
use crate::host::{Daemon, Host, answer, backend, eventually, frontend, get, is_served_by, socket};
use crate::network::{Trap, own};
use crate::sandbox;

const FIRST: &str = "192.0.2.21:6443";
const SECOND: &str = "192.0.2.22:6443";

const BACKEND: &str = "192.0.2.80:80";

/// Applies a service with this backend.
fn serve_web(cluster: &Cluster, name: &str, address: &str) {
    apply(cluster, service(name, address));
    apply(cluster, slice(name, &[BACKEND]));
}

fn is_web(address: &str) -> bool {
    is_served_by(&format!("{address}:443/TCP"), &["192.0.2.80:80/TCP"])
}

fn is_gone(address: &str) -> bool {
    frontend(&format!("{address}:443/TCP")).is_none()
}

/// Waits until nodelb has received a change made now.
fn receives(cluster: &Cluster, name: &str, address: &str) {
    serve_web(cluster, name, address);
    eventually(&format!("the new service {name}"), || is_web(address));
}

fn spawn(host: &Host) -> Daemon {
    let daemon = host.spawn(None);
    eventually("the API", || get("/healthz").is_some());
    daemon
}

#[test]
fn services_go_on_while_every_apiserver_is_away() {
    sandbox::run("outage::services_go_on_while_every_apiserver_is_away", |sandbox| {
        let host = Host::new(sandbox);
        let _backend = backend("web", BACKEND);
        let cluster = cluster_at(&[FIRST]);
        let start = || [FIRST, SECOND].map(|at| serve(&cluster, at));
        let servers = start();
        serve_web(&cluster, "web", "198.51.100.80");
        serve_web(&cluster, "goes", "198.51.100.81");
        join(&host, &cluster, &[FIRST, SECOND]);
        let daemon = host.start();
        eventually("both are served", || is_web("198.51.100.80") && is_web("198.51.100.81"));
        let traffic = Probe::start(Plan { rate: 200, ..Plan::new(socket("198.51.100.80:443"), Transport::Tcp) });

        let said_before = warnings(&host);
        drop(servers);
        eventually("the loss is logged", || host.log().contains("no apiserver is reachable"));
        assert!(get("/healthz").is_some() && get("/readyz").is_some(), "it is as healthy and as ready as before");
        assert_stale();
        cluster.delete("services", "default", "goes").unwrap();
        cluster.delete("endpointslices", "default", "goes").unwrap();
        serve_web(&cluster, "comes", "198.51.100.82");
        cluster.compact();
        let said = warnings(&host) - said_before;
        // On a busy machine, the second server is used before it ends, too.
        assert!(
            said <= 5,
            "two lines for each address at most, and one for the loss, and not one for each attempt: {said}\n{}",
            host.log()
        );

        daemon.kill();
        let mut daemon = spawn(&host);
        eventually("what was known last is served", || is_web("198.51.100.80") && is_web("198.51.100.81"));
        std::thread::sleep(std::time::Duration::from_secs(2));
        assert!(get("/healthz").is_some(), "healthy without an apiserver");

        let servers = start();
        assert!(daemon.wait_ready(), "{}", host.log());
        eventually("what happened meanwhile", || is_gone("198.51.100.81") && is_web("198.51.100.82"));
        receives(&cluster, "more", "198.51.100.83");
        let tally = traffic.finish();
        assert_eq!(tally.failures(), 0, "{tally}, {:?}", tally.first_failure);
        drop((servers, daemon));
    });
}

/// A service of type LoadBalancer with a NodePort, as the cluster has it since a moment ago.
fn change_balanced(cluster: &Cluster, policy: &str, endpoints: &[&str]) {
    let mut balanced = service("balanced", "198.51.100.90");
    balanced["spec"]["type"] = "LoadBalancer".into();
    balanced["spec"]["externalTrafficPolicy"] = policy.into();
    balanced["spec"]["sessionAffinity"] = "ClientIP".into();
    balanced["spec"]["loadBalancerSourceRanges"] = json!(["203.0.113.0/24"]);
    balanced["spec"]["ports"][0]["nodePort"] = json!(30_090);
    balanced["status"] = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.10"}]}});
    if policy == "Local" {
        balanced["spec"]["healthCheckNodePort"] = json!(31_234);
    }
    apply(cluster, balanced);
    let mut slice = slice("balanced", endpoints);
    for endpoint in slice["endpoints"].as_array_mut().unwrap() {
        endpoint["nodeName"] = "n1".into();
    }
    apply(cluster, slice);
}

/// `/frontends` and the ports for load balancers, without times.
fn shown() -> Option<(Value, Value)> {
    let (mut frontends, mut services) = (get("/frontends")?, get("/services")?);
    for row in frontends["frontends"].as_array_mut()? {
        row["since"].take();
    }
    for row in services["services"].as_array_mut()? {
        row["since"].take();
    }
    Some((frontends, services))
}

/// What changed in the last seconds before the loss of the apiserver was not stored.
#[test]
fn a_kill_while_every_apiserver_is_away_changes_nothing() {
    sandbox::run("outage::a_kill_while_every_apiserver_is_away_changes_nothing", |sandbox| {
        let host = Host::new(sandbox);
        let cluster = cluster_at(&[FIRST]);
        apply(&cluster, json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}));
        change_balanced(&cluster, "Cluster", &[BACKEND]);
        let server = serve(&cluster, FIRST);
        join(&host, &cluster, &[FIRST]);
        let config = fs::read_to_string(host.path("nodelb.toml")).unwrap();
        host.write("nodelb.toml", &config.replace("[node]\n", "[node]\nname = \"n1\"\n"));
        let daemon = host.start();
        let stored = || fs::read_to_string(host.path("state").join("kubernetes.jsonl")).unwrap_or_default();
        eventually("the first state is stored", || stored().contains("balanced"));
        change_balanced(&cluster, "Local", &[BACKEND, "192.0.2.81:80"]);
        serve_web(&cluster, "web", "198.51.100.80");
        let node_port = "0.0.0.0:30090/TCP";
        eventually("the new state is served", || {
            is_served_by(node_port, &["192.0.2.80:80/TCP", "192.0.2.81:80/TCP"]) && is_web("198.51.100.80")
        });
        drop(server);
        eventually("the loss is logged", || host.log().contains("no apiserver is reachable"));
        assert!(stored().contains("31234"), "stored when the apiserver was lost");
        let before = shown();
        daemon.kill();
        let _daemon = spawn(&host);
        eventually("everything is as before", || shown() == before);
        std::thread::sleep(std::time::Duration::from_secs(1));
        assert_eq!(shown(), before, "and stays so");
    });
}

fn warnings(host: &Host) -> usize {
    host.log().lines().filter(|line| line.contains(" WARN ")).count()
}

/// Panics unless status and metrics show that the data is stale.
fn assert_stale() {
    let table = get("/apiservers").unwrap();
    let rows = table["apiservers"].as_array().unwrap();
    assert!(rows.len() == 2 && rows.iter().all(|row| row["state"] == "Failed"), "{table}");
    let metrics = answer("/metrics", "text/plain").unwrap();
    let value = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    assert_eq!(value("nodelb_apiserver_connected "), Some(0.0), "{metrics}");
    assert!(value("nodelb_apiserver_last_response_seconds ").is_some_and(|age| age >= 9.0), "{metrics}");
}

/// A node with a configured apiserver that never returns; it has stored the learned address SECOND.
fn node_that_has_learned(host: &Host, cluster: &Cluster) -> (Daemon, Replica) {
    let (first, second) = (serve(cluster, FIRST), serve(cluster, SECOND));
    join(host, cluster, &[FIRST]);
    let daemon = host.start();
    receives(cluster, "web", "198.51.100.80");
    first.stop();
    receives(cluster, "learned", "198.51.100.81");
    let file = host.path("state").join("apiservers.json");
    eventually("the learned address is remembered", || {
        fs::read_to_string(&file).is_ok_and(|text| text.contains(SECOND))
    });
    (daemon, second)
}

#[test]
fn a_learned_address_is_enough_and_is_remembered() {
    sandbox::run("outage::a_learned_address_is_enough_and_is_remembered", |sandbox| {
        let host = Host::new(sandbox);
        let cluster = cluster_at(&[SECOND]);
        let (daemon, second) = node_that_has_learned(&host, &cluster);
        daemon.kill();
        host.cleanup();
        let daemon = host.start();
        receives(&cluster, "remembered", "198.51.100.82");
        drop((daemon, second));
    });
}

#[test]
fn another_cluster_behind_a_remembered_address_is_not_believed() {
    sandbox::run("outage::another_cluster_behind_a_remembered_address_is_not_believed", |sandbox| {
        let host = Host::new(sandbox);
        let cluster = cluster_at(&[SECOND]);
        let (daemon, second) = node_that_has_learned(&host, &cluster);
        second.stop();
        daemon.stop();
        let stranger = cluster_at(&[SECOND]);
        serve_web(&stranger, "strange", "198.51.100.90");
        // Another certificate authority; then the same one with another Service default/kubernetes.
        for (identity, reason) in
            [(None, "certificate"), (Some(cluster.identity().clone()), "another cluster answers there")]
        {
            let options = ServeOptions { identity, ..ServeOptions::default() };
            let server = stranger.serve(TcpListener::bind(SECOND).unwrap(), options).unwrap();
            let daemon = spawn(&host);
            let is_reported = |line: &str| line.contains(SECOND) && line.contains(reason);
            eventually(reason, || host.log().lines().any(is_reported));
            eventually("what was known is served", || is_web("198.51.100.80") && is_web("198.51.100.81"));
            assert!(is_gone("198.51.100.90"));
            server.stop();
            daemon.stop();
        }
        let (mut daemon, _second) = (host.spawn(None), serve(&cluster, SECOND));
        assert!(daemon.wait_ready(), "{}", host.log());
        receives(&cluster, "back", "198.51.100.82");
    });
}

#[test]
fn nodelb_never_connects_to_service_addresses() {
    sandbox::run("outage::nodelb_never_connects_to_service_addresses", |sandbox| {
        const IN_CIDR: &str = "198.51.100.77:6443";
        const BALANCED: &str = "203.0.113.10:6443";
        let host = Host::new(sandbox);
        for address in ["198.51.100.77/32", "203.0.113.10/32"] {
            own(address);
        }
        let traps = [IN_CIDR, BALANCED].map(Trap::set);
        let cluster = cluster_at(&[IN_CIDR, BALANCED]);
        let mut balanced = service("balanced", "198.51.100.60");
        balanced["spec"]["type"] = "LoadBalancer".into();
        balanced["spec"]["ports"][0]["port"] = json!(6443);
        balanced["status"] = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.10"}]}});
        apply(&cluster, balanced);
        apply(&cluster, slice("balanced", &["192.0.2.80:6443"]));
        let first = serve(&cluster, FIRST);
        join(&host, &cluster, &[FIRST]);
        let _daemon = host.start();
        receives(&cluster, "web", "198.51.100.80");
        first.stop();
        // No other server is left, and nodelb still rejects this one.
        eventually("the loss is logged", || host.log().contains("no apiserver is reachable"));
        assert_eq!(traps.each_ref().map(Trap::caught), [0, 0], "{}", host.log());
        let _first = serve(&cluster, FIRST);
        receives(&cluster, "back", "198.51.100.81");
    });
}
