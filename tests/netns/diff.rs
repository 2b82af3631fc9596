//! `nodelb diff` with an apiserver that does not report all its changes, and with connection
//! probes.

use std::process::{Command, Output};

use nodelb_apiserver::{Cluster, EventFault, Fault, On, Patch, Replica};
use nodelb_prober::SetAtEnd;
use serde_json::{Value, json};

use crate::cluster::{apply, cluster_at, join, serve, service, slice};
use crate::host::{Daemon, Host, answer, backend, eventually, get, is_served_by};
use crate::sandbox::{self, Sandbox};

const APISERVER: &str = "192.0.2.21:6443";
const SHOP: &str = "198.51.100.20:443/TCP";

/// A node that serves the one service of a cluster.
struct Shop {
    host: Host,
    cluster: Cluster,
    replica: Replica,
    daemon: Daemon,
}

impl Shop {
    fn open(sandbox: &Sandbox) -> Self {
        let host = Host::new(sandbox);
        let cluster = cluster_at(&[APISERVER]);
        let replica = serve(&cluster, APISERVER);
        apply(&cluster, service("shop", "198.51.100.20"));
        apply(&cluster, slice("shop", &["192.0.2.11:8443"]));
        join(&host, &cluster, &[APISERVER]);
        let daemon = host.start();
        eventually("the shop", || is_served_by(SHOP, &["192.0.2.11:8443/TCP"]));
        Self { host, cluster, replica, daemon }
    }
}

fn rows(path: &str) -> Vec<Value> {
    let answer = get(path).unwrap_or_else(|| panic!("no answer to {path}"));
    answer["differences"].as_array().unwrap().clone()
}

fn text<'r>(row: &'r Value, column: &str) -> &'r str {
    row[column].as_str().unwrap_or_default()
}

/// Runs the command, and panics unless it exits with this code, says why, and neither prints nor counts a difference.
fn says_that_nothing_was_compared(arguments: &[&str], code: i32, why: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodelb")).args(arguments).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*output.stdout), (Some(code), &b""[..]), "{output:?}");
    assert!(message.contains("not compared with an API server: ") && message.contains(why), "{message}");
    assert!(!message.contains("difference"), "{message}");
}

/// An update that the watch did not report. In the incident, its authors had to write a program to
/// detect this.
#[test]
fn an_update_missing_from_the_watch_is_found_by_a_list() {
    sandbox::run("diff::an_update_missing_from_the_watch_is_found_by_a_list", |sandbox| {
        let Shop { host, cluster, replica, daemon } = Shop::open(sandbox);
        eventually("source, memory and kernel agree", || rows("/diff").is_empty());
        assert_eq!(rows("/diff?live&service=default/shop"), Vec::<Value>::new());

        replica.faults().events("endpointslices", EventFault::Silence);
        apply(&cluster, slice("shop", &["192.0.2.12:8443"]));
        assert_eq!(rows("/diff"), Vec::<Value>::new(), "memory and kernel agree, and both are wrong");
        let found = rows("/diff?live&service=default/shop");
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(text(&found[0], "what"), "EndpointSlice default/shop");
        assert!(text(&found[0], "source").contains("192.0.2.12:8443/TCP"), "{found:#?}");
        assert!(text(&found[0], "memory").contains("192.0.2.11:8443/TCP"), "{found:#?}");
        assert!(text(&found[0], "likely_cause").ends_with("has not arrived by watch"), "{found:#?}");
        assert_eq!(rows("/diff?live")[0], found[0], "of all services, too");
        says_that_nothing_was_compared(&["diff", "--live"], 75, "ask again in ");

        replica.faults().answer(On::list("services"), Fault::Status { code: 403, retry_after: None });
        says_that_nothing_was_compared(&["diff", "--live", "default/shop"], 69, "the permission");

        replica.faults().clear();
        replica.faults().reset_connections();
        eventually("the watch delivers it eventually", || is_served_by(SHOP, &["192.0.2.12:8443/TCP"]));
        eventually("source, memory and kernel agree", || rows("/diff?live&service=default/shop").is_empty());
        replica.stop();
        eventually("no apiserver is in use", || get("/apiservers").unwrap()["session"]["apiserver"].is_null());
        says_that_nothing_was_compared(&["diff", "--live"], 69, "no apiserver is reachable");
        daemon.stop();
        host.cleanup();
    });
}

/// nodelb asks an API server to leave such slices out: all agreed, and the service had no backend.
#[test]
fn a_slice_that_no_proxy_uses_is_a_difference_of_its_service() {
    sandbox::run("diff::a_slice_that_no_proxy_uses_is_a_difference_of_its_service", |sandbox| {
        let Shop { host, cluster, daemon, replica: _serving } = Shop::open(sandbox);
        let label = |value: Value| {
            let patch = Patch::Merge(json!({"metadata": {"labels": {"service.kubernetes.io/headless": value}}}));
            cluster.patch("endpointslices", "default", "shop", &patch).unwrap();
        };
        label("".into());
        eventually("no backend", || is_served_by(SHOP, &[]));
        assert_eq!(rows("/diff"), Vec::<Value>::new());
        for path in ["/diff?live&service=default/shop", "/diff?live"] {
            let found = rows(path);
            assert_eq!(found.len(), 1, "{found:#?}");
            let [what, service, cause] = ["what", "service", "likely_cause"].map(|column| text(&found[0], column));
            assert_eq!((what, service), ("EndpointSlice default/shop", "default/shop"));
            assert_eq!(cause, "label service.kubernetes.io/headless; left out");
        }
        label(Value::Null);
        eventually("the backend", || is_served_by(SHOP, &["192.0.2.11:8443/TCP"]));
        assert_eq!(rows("/diff?live&service=default/shop"), Vec::<Value>::new());
        daemon.stop();
        host.cleanup();
    });
}

fn probe() -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_nodelb")).args(["diff", "--probe"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn a_probe_sees_the_backend_of_a_connection_and_the_metrics_count_it() {
    sandbox::run("diff::a_probe_sees_the_backend_of_a_connection_and_the_metrics_count_it", |sandbox| {
        let host = Host::new(sandbox);
        let _backend = backend("1", "192.0.2.11:8080");
        host.serve("a.toml", &crate::host::service("shop/web", &["198.51.100.10:80"], &["192.0.2.11:8080"]));
        host.serve("b.toml", &crate::host::service("shop/empty", &["198.51.100.11:80"], &[]));
        let daemon = host.start();
        let live = Command::new(env!("CARGO_BIN_EXE_nodelb")).args(["diff", "--live"]).output().unwrap();
        let refused = String::from_utf8_lossy(&live.stderr);
        assert!(refused.contains("needs Kubernetes, which is not configured: set [kubernetes]"), "{refused}");
        assert!(!refused.contains("another version"), "{refused}");
        let (output, text) = probe();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(text.starts_with("source, memory and kernel agree: 2 services"), "{text}");
        let metrics = answer("/metrics", "text/plain").unwrap();
        for (service, result) in [("web", "translated"), ("empty", "refused")] {
            for protocol in ["TCP", "UDP"] {
                let labels = format!("service=\"shop/{service}\",port=");
                let is_counted = |line: &&str| {
                    line.starts_with("nodelb_service_connections_total{")
                        && line.contains(&labels)
                        && line.contains(&format!("protocol=\"{protocol}\",from=\"inside\",result=\"{result}\"}} 1"))
                };
                assert!(metrics.lines().any(|line| is_counted(&line)), "{service} {protocol}:\n{metrics}");
            }
        }
        assert!(metrics.lines().any(|line| line == "nodelb_map_entries{map=\"frontends\"} 6"), "{metrics}");

        host.serve("c.toml", &crate::host::service("shop/closed", &["198.51.100.12:80"], &["192.0.2.12:8080"]));
        eventually("it is served", || is_served_by("198.51.100.12:80/TCP", &["192.0.2.12:8080/TCP"]));
        let (output, text) = probe();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text.contains("kernel/connect") && text.contains("198.51.100.12:80/TCP"), "{text}");
        assert!(text.contains("Connection refused"), "{text}");
        daemon.stop();
        host.cleanup();
    });
}

/// `--goaway-chance`: a server that drains a connection still answers `diff`.
#[test]
fn a_server_that_drains_its_connections_can_be_asked() {
    sandbox::run("diff::a_server_that_drains_its_connections_can_be_asked", |sandbox| {
        let Shop { host, replica, daemon, .. } = Shop::open(sandbox);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    replica.faults().go_away();
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            });
            let _end = SetAtEnd(&stop);
            let found: Vec<_> = (0..40).flat_map(|_| rows("/diff?live&service=default/shop")).collect();
            assert_eq!(found, Vec::<Value>::new());
        });
        let log = host.log();
        assert!(!log.lines().any(|line| line.contains(" WARN ") && line.contains(APISERVER)), "{log}");
        daemon.stop();
    });
}
