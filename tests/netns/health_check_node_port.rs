//! The health checks of load balancers against a node: a service's healthCheckNodePort and port
//! 10256, during changes of endpoints, policies, the Node, the apiserver and the daemon. Responses
//! are compared byte by byte, except for dates.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nodelb_apiserver::{Cluster, Replica};
use serde_json::{Value, json};

use crate::cluster::{NODE, apply, cluster_at, have_address, in_order, serve, service, slice};
use crate::host::{Daemon, Host, eventually, get, say};
use crate::sandbox;

const FIRST: &str = "192.0.2.21:6443";
/// The healthCheckNodePort of the service.
const ASKED: &str = "192.0.2.1:31234";
const HEALTHZ: &str = "127.0.0.1:10256";

/// Adds a node called n1 to the cluster and configures nodelb.
fn join(host: &Host, cluster: &Cluster) {
    fs::create_dir_all(host.path("state")).unwrap();
    have_address();
    host.write("kubeconfig", &cluster.kubeconfig(&[&format!("https://{FIRST}")]).unwrap());
    host.configure(&format!(
        "[node]\nname = \"n1\"\nnodeport-addresses = [{NODE:?}]\n[state]\ndirectory = {:?}\n[kubernetes]\nkubeconfig = {:?}\n{}",
        host.path("state"),
        host.path("kubeconfig"),
        in_order(&[FIRST])
    ));
}

fn node(spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": spec})
}

/// The service `web` of type LoadBalancer, with this policy.
fn web(policy: &str, port: u16) -> Value {
    let mut web = service("web", "198.51.100.80");
    web["spec"]["type"] = "LoadBalancer".into();
    web["spec"]["externalTrafficPolicy"] = policy.into();
    if policy == "Local" {
        web["spec"]["healthCheckNodePort"] = port.into();
    }
    web
}

/// Its endpoints on this node, and one on another node, with these conditions.
fn endpoints(here: &[&str], conditions: &Value) -> Value {
    let mut slice = slice("web", &["192.0.2.99:80"]);
    slice["endpoints"][0]["nodeName"] = "n2".into();
    for address in here {
        let endpoint = json!({"addresses": [address], "nodeName": "n1", "conditions": conditions});
        slice["endpoints"].as_array_mut().unwrap().push(endpoint);
    }
    slice
}

fn ready() -> Value {
    json!({"ready": true, "serving": true, "terminating": false})
}

/// The raw response to the request of `curl -i` without the date; `None` if nothing listens.
fn ask(at: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(at).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {at}\r\nUser-Agent: curl/8\r\nAccept: */*\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (before, after) = answer.split_once("Date: ")?;
    Some(format!("{before}Date: D{}", after.get(29..)?))
}

/// Head and body of kube-proxy's response for the service.
fn response(status: &str, count: usize) -> Option<String> {
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"web\"\n\t}},\n\
         \t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": true\n}}"
    );
    Some(format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\n\
         X-Load-Balancing-Endpoint-Weight: {count}\r\nDate: D\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    ))
}

fn says(status: &str, count: usize) {
    eventually(&format!("{status}, {count}"), || ask(ASKED, "/") == response(status, count));
}

fn is_closed() {
    eventually("the port is closed", || ask(ASKED, "/").is_none());
}

/// Status, `nodeEligible` and `healthy` of `/healthz` or `/livez`; checks the times.
fn health(path: &str) -> Option<(String, Option<bool>, bool)> {
    let answer = ask(HEALTHZ, path)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let (status, headers) = head.split_once("\r\n").unwrap();
    let length = body.len();
    assert_eq!(
        headers,
        format!(
            "Content-Type: application/json\r\nX-Content-Type-Options: nosniff\r\nDate: D\r\nContent-Length: {length}\r\n\
             Connection: close"
        )
    );
    let health: Value = serde_json::from_str(body).unwrap();
    let is_time = |time: &Value| time.as_str().is_some_and(|time| time.starts_with("20") && time.ends_with('Z'));
    let times = [&health["lastUpdated"], &health["currentTime"], &health["status"]["IPv4"]["lastUpdated"]];
    assert!(times.into_iter().all(is_time) && health["status"]["IPv4"] == health["status"]["IPv6"], "{body}");
    Some((status.to_owned(), health["nodeEligible"].as_bool(), health["healthy"].as_bool().unwrap()))
}

fn good() -> Option<(String, Option<bool>, bool)> {
    Some(("HTTP/1.1 200 OK".into(), Some(true), true))
}

/// The daemon works, and the node is about to be removed.
fn leaving() -> Option<(String, Option<bool>, bool)> {
    Some(("HTTP/1.1 503 Service Unavailable".into(), Some(false), true))
}

fn is_live() -> bool {
    health("/livez") == Some(("HTTP/1.1 200 OK".into(), None, true))
}

/// A cluster with the Node and the service, and nodelb on the node.
fn start(host: &Host) -> (Cluster, Replica, Daemon) {
    let cluster = cluster_at(&[FIRST]);
    apply(&cluster, node(&json!({})));
    apply(&cluster, web("Local", 31_234));
    apply(&cluster, endpoints(&["192.0.2.80"], &ready()));
    let replica = serve(&cluster, FIRST);
    join(host, &cluster);
    let daemon = host.start();
    (cluster, replica, daemon)
}

#[test]
fn a_health_check_node_port_follows_endpoints_and_policy() {
    sandbox::run("health_check_node_port::a_health_check_node_port_follows_endpoints_and_policy", |sandbox| {
        let host = Host::new(sandbox);
        let (cluster, replica, daemon) = start(&host);
        says("200 OK", 1);
        assert_eq!(ask("127.0.0.1:31234", "/"), None, "only where NodePorts are answered");
        apply(&cluster, endpoints(&["192.0.2.80", "192.0.2.81"], &ready()));
        says("200 OK", 2);
        apply(&cluster, endpoints(&["192.0.2.80"], &json!({"ready": false, "serving": true, "terminating": true})));
        says("503 Service Unavailable", 0);
        apply(&cluster, endpoints(&["192.0.2.80"], &ready()));
        says("200 OK", 1);
        apply(&cluster, endpoints(&[], &ready()));
        says("503 Service Unavailable", 0);
        apply(&cluster, endpoints(&["192.0.2.80"], &ready()));

        apply(&cluster, web("Cluster", 0));
        is_closed();
        apply(&cluster, web("Local", 31_234));
        says("200 OK", 1);

        drop(replica);
        eventually("the loss is logged", || host.log().contains("no apiserver is reachable"));
        assert_eq!(ask(ASKED, "/"), response("200 OK", 1), "as before");
        // The state was stored when the apiserver was lost.
        daemon.kill();
        is_closed();
        let daemon = host.spawn(None);
        says("200 OK", 1);
        let _replica = serve(&cluster, FIRST);
        cluster.delete("services", "default", "web").unwrap();
        is_closed();
        daemon.stop();
    });
}

#[test]
fn a_port_that_is_taken_is_shown_and_had_when_it_is_free() {
    sandbox::run("health_check_node_port::a_port_that_is_taken_is_shown_and_had_when_it_is_free", |sandbox| {
        let host = Host::new(sandbox);
        let taken = [TcpListener::bind(ASKED).unwrap(), TcpListener::bind(HEALTHZ).unwrap()];
        let (_cluster, _replica, _daemon) = start(&host);
        let error = || {
            let answer = get("/services?service=default/web")?;
            answer["services"][0]["error"].as_str().map(str::to_owned)
        };
        let why = "healthCheckNodePort 31234: another process listens on 192.0.2.1:31234: stop it";
        eventually("it is shown with the service", || error().is_some_and(|error| error.contains(why)));
        let warning =
            "/healthz health checks of load balancers on [::]:10256: another process listens there, perhaps kube-proxy";
        let shown = || get("/readyz").is_some_and(|checks| checks.to_string().contains(warning));
        eventually("and for the node, which is ready all the same", shown);
        let lines = |words: &str| host.log().lines().filter(|line| line.contains(words)).count();
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!((lines(why), lines(warning)), (1, 1), "once, however often it is tried:\n{}", host.log());
        drop(taken);
        let free = Instant::now();
        says("200 OK", 1);
        eventually("the node too, soon", || health("/healthz") == good());
        assert!(free.elapsed() < Duration::from_secs(3), "{:?}", free.elapsed());
        eventually("the node too", || health("/healthz") == good());
        eventually("nothing is shown any more", || error().is_none() && !shown());
    });
}

#[test]
fn a_node_that_leaves_says_so_and_nothing_else_makes_it() {
    sandbox::run("health_check_node_port::a_node_that_leaves_says_so_and_nothing_else_makes_it", |sandbox| {
        let host = Host::new(sandbox);
        let (cluster, replica, daemon) = start(&host);
        assert_eq!(health("/healthz"), good());
        for at in ["192.0.2.1:10256", "[::1]:10256"] {
            assert!(ask(at, "/livez").is_some_and(|answer| answer.starts_with("HTTP/1.1 200 OK")), "{at}");
        }
        let taint = |key: &str| node(&json!({"taints": [{"key": key, "effect": "NoSchedule"}]}));
        apply(&cluster, taint("ToBeDeletedByClusterAutoscaler"));
        eventually("tainted", || health("/healthz") == leaving());
        assert!(is_live());
        apply(&cluster, taint("node.kubernetes.io/unschedulable"));
        eventually("cordoned, which is no reason", || health("/healthz") == good());
        cluster.delete("nodes", "", "n1").unwrap();
        eventually("deleted", || health("/healthz") == leaving());
        assert!(is_live());
        host.assert_logged("Kubernetes has no Node of this name");
        says("200 OK", 1);
        apply(&cluster, node(&json!({})));
        eventually("created again", || health("/healthz") == good());

        drop(replica);
        eventually("the loss is logged", || host.log().contains("no apiserver is reachable"));
        assert_eq!(health("/healthz"), good(), "that is no reason either");
        daemon.kill();
        let daemon = host.spawn(None);
        first_answer_is(&good());
        let replica = serve(&cluster, FIRST);
        apply(&cluster, taint("ToBeDeletedByClusterAutoscaler"));
        eventually("tainted", || health("/healthz") == leaving());
        let saved =
            || fs::read_to_string(host.path("state").join("kubernetes.jsonl")).is_ok_and(|s| s.contains("taint"));
        drop(replica);
        daemon.stop();
        assert!(saved(), "what is known of the Node outlives the daemon");
        let _daemon = host.spawn(None);
        eventually("what was known last", || health("/healthz") == leaving());
    });
}

#[test]
fn a_reload_with_another_node_name_is_a_whole_one() {
    sandbox::run("health_check_node_port::a_reload_with_another_node_name_is_a_whole_one", |sandbox| {
        let host = Host::new(sandbox);
        let cluster = cluster_at(&[FIRST]);
        let mut other = node(&json!({}));
        other["metadata"] = json!({"name": "n2", "labels": {"topology.kubernetes.io/zone": "zone-b"}});
        apply(&cluster, other);
        apply(&cluster, web("Local", 31_234));
        // One endpoint is on n2.
        apply(&cluster, endpoints(&[], &ready()));
        let replica = serve(&cluster, FIRST);
        join(&host, &cluster);
        let daemon = host.start();
        eventually("Kubernetes has no Node n1", || health("/healthz") == leaving());
        says("503 Service Unavailable", 0);

        // As an operator may write it: kube-proxy accepts this as n2, too.
        let config = fs::read_to_string(host.path("nodelb.toml")).unwrap();
        host.write("nodelb.toml", &config.replace("name = \"n1\"", "name = \" N2 \""));
        daemon.signal(Signal::SIGHUP);
        eventually("the Node n2 is there", || health("/healthz") == good());
        says("200 OK", 1);
        host.assert_logged("the Node n2 is watched");
        cluster.delete("nodes", "", "n2").unwrap();
        eventually("the Node n2 is followed", || health("/healthz") == leaving());
        let mut other = node(&json!({}));
        other["metadata"] = json!({"name": "n2", "labels": {"topology.kubernetes.io/zone": "zone-c"}});
        apply(&cluster, other);
        eventually("created again", || health("/healthz") == good());
        daemon.stop();
        let state = fs::read_to_string(host.path("state").join("kubernetes.jsonl")).unwrap();
        let header = state.lines().next().unwrap_or_default();
        assert!(header.contains("\"node\":\"n2\"") && state.contains("\"zone\":\"zone-c\""), "{state}");
        drop(replica);
    });
}

/// Sends requests as soon as the daemon listens: the first response must be this one, and still be
/// after a while.
fn first_answer_is(expected: &Option<(String, Option<bool>, bool)>) {
    let mut first = None;
    eventually("the daemon listens", || {
        first = health("/healthz");
        first.is_some()
    });
    assert_eq!(first, *expected);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(health("/healthz"), *expected);
}

#[test]
fn hostile_clients_do_not_affect_others() {
    sandbox::run("health_check_node_port::hostile_clients_do_not_affect_others", |sandbox| {
        const CROWD: usize = 600;
        let host = Host::new(sandbox);
        let (cluster, _replica, daemon) = start(&host);
        says("200 OK", 1);
        let mut crowd = Vec::new();
        for number in 0..CROWD {
            let at = if number % 2 == 0 { ASKED } else { HEALTHZ };
            let mut stream = TcpStream::connect(at).unwrap();
            let header =
                ["GET / HTTP/1.1\r\nX: ", "", "\0\0\0", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"][number % 4];
            // The server may have closed the first connections already.
            _ = stream.write_all(header.as_bytes());
            crowd.push(stream);
            if number % 100 == 99 {
                let begun = Instant::now();
                assert_eq!((ask(ASKED, "/"), health("/healthz")), (response("200 OK", 1), good()));
                assert!(get("/healthz").is_some());
                say(&format!("{} waiting: answered after {:?}", crowd.len(), begun.elapsed()));
                assert!(begun.elapsed() < Duration::from_secs(2));
            }
        }
        let open = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
        assert!(open < 250, "{open} files are open: 64 connections at each of two ports, and nodelb's own");
        apply(&cluster, endpoints(&["192.0.2.80", "192.0.2.81"], &ready()));
        says("200 OK", 2);
        drop(crowd);
        daemon.stop();
    });
}
