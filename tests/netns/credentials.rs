//! Credentials that change, are missing or lack permissions while the daemon runs.

use std::process::Command;

use nodelb_apiserver::{Cluster, Credentials, Replica, Role};

use crate::cluster::{Writer, apply, cluster_at, configure, in_order, join, newest, serve, service, slice};
use crate::host::{Host, eventually, get, is_served_by};
use crate::network::Trap;
use crate::sandbox;

const SERVER: &str = "192.0.2.21:6443";

/// Waits until changes arrive over new watches, which nodelb opens with its current credentials.
fn receives_over_new_watches(server: &Replica, writer: &Writer) {
    server.faults().end_watches();
    let begun = writer.last();
    eventually("changes", || newest() > begun + 10);
}

#[test]
fn a_token_is_rotated() {
    sandbox::run("credentials::a_token_is_rotated", |sandbox| {
        let host = Host::new(sandbox);
        let cluster = cluster_at(&[SERVER]);
        let server = serve(&cluster, SERVER);
        let old = cluster.token("nodelb").unwrap();
        host.write("token", &old);
        host.write("ca.crt", cluster.ca_pem());
        let files = format!("token-file = {:?}\nca-file = {:?}\n", host.path("token"), host.path("ca.crt"));
        configure(&host, &format!("{files}{}", in_order(&[SERVER])));
        let daemon = host.start();
        let writer = Writer::start(&cluster);
        receives_over_new_watches(&server, &writer);
        host.write("token", &cluster.token("nodelb").unwrap());
        cluster.revoke_token(&old);
        receives_over_new_watches(&server, &writer);
        writer.finish(&host);
        daemon.stop();
    });
}

#[test]
fn a_client_certificate_is_rotated() {
    sandbox::run("credentials::a_client_certificate_is_rotated", |sandbox| {
        let host = Host::new(sandbox);
        let cluster = cluster_at(&[SERVER]);
        let server = serve(&cluster, SERVER);
        join(&host, &cluster, &[SERVER]);
        let daemon = host.start();
        let writer = Writer::start(&cluster);
        receives_over_new_watches(&server, &writer);
        cluster.allow("nodelb-2", Role::node_proxier());
        let certificate = Credentials::Certificate(cluster.certificate("nodelb-2", &[]).unwrap());
        host.write("kubeconfig", &cluster.kubeconfig_for(&certificate, &[&server.url()]));
        // On a busy machine, a handshake may take longer than nodelb waits. It keeps the old one then, and tries again.
        eventually("a watch with the new certificate", || server.faults().has_watched("nodelb-2"));
        receives_over_new_watches(&server, &writer);
        cluster.allow("nodelb", Role::none());
        receives_over_new_watches(&server, &writer);
        assert!(!host.log().contains("403 Forbidden"), "{}", host.log());
        writer.finish(&host);
        daemon.stop();
    });
}

#[test]
fn a_kubeconfig_may_come_later_and_proxy_variables_do_not_count() {
    sandbox::run("credentials::a_kubeconfig_may_come_later_and_proxy_variables_do_not_count", |sandbox| {
        let host = Host::new(sandbox);
        let proxy = Trap::set("192.0.2.9:3128");
        let cluster = cluster_at(&[SERVER]);
        let _server = serve(&cluster, SERVER);
        join(&host, &cluster, &[SERVER]);
        let kubeconfig = std::fs::read_to_string(host.path("kubeconfig")).unwrap();
        std::fs::remove_file(host.path("kubeconfig")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodelb"));
        for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
            command.env(name, "http://192.0.2.9:3128");
        }
        let mut daemon = host.launch(command, &[]);
        let path = host.path("kubeconfig").display().to_string();
        eventually("what is missing", || {
            host.log().lines().any(|line| line.contains(" WARN ") && line.contains(&path))
        });
        eventually("health without it", || get("/healthz").is_some());
        host.write("kubeconfig", &kubeconfig);
        assert!(daemon.wait_ready(), "{}", host.log());
        eventually("the cluster's service", || is_served_by("198.51.100.1:443/TCP", &["192.0.2.21:6443/TCP"]));
        assert_eq!(proxy.caught(), 0);
        daemon.stop();
    });
}

#[test]
fn a_missing_permission_is_named_and_services_stay() {
    sandbox::run("credentials::a_missing_permission_is_named_and_services_stay", |sandbox| {
        let host = Host::new(sandbox);
        let _backend = crate::host::backend("web", "192.0.2.80:80");
        let cluster: Cluster = cluster_at(&[SERVER]);
        apply(&cluster, service("web", "198.51.100.80"));
        apply(&cluster, slice("web", &["192.0.2.80:80"]));
        let server = serve(&cluster, SERVER);
        join(&host, &cluster, &[SERVER]);
        let daemon = host.start();
        cluster.allow("nodelb", Role::node_proxier().without("endpointslices"));
        server.faults().end_watches();
        let is_named = |line: &str| line.contains("kubectl auth can-i") && line.contains("endpointslices");
        eventually("the permission is named", || host.log().lines().any(is_named));
        std::thread::sleep(std::time::Duration::from_secs(3));
        let said = host.log().lines().filter(|line| is_named(line)).count();
        assert!(said <= 3, "once where it is asked for, and once for the server: {said}\n{}", host.log());
        assert!(is_served_by("198.51.100.80:443/TCP", &["192.0.2.80:80/TCP"]));
        assert_eq!(crate::host::answering("198.51.100.80:443"), ["web"]);
        cluster.allow("nodelb", Role::node_proxier());
        let writer = Writer::start(&cluster);
        eventually("changes", || newest() > 10);
        writer.finish(&host);
        daemon.stop();
    });
}
