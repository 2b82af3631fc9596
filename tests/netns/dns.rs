//! Backends that have DNS names, with a real DNS server (unbound): addresses and Consul-like SRV records that change, the
//! server behind a service address, its death, and a restart of nodelb without it.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use nodelb_prober::Transport;

use crate::host::{Host, answering, backend, errno, eventually, frontend, history, is_served_by};
use crate::sandbox;
use crate::unbound::Unbound;

const SERVER: &str = "192.0.2.53:53";

/// A DNS server with these records and no others.
fn start(host: &Host, records: &[&str]) -> Unbound {
    let data: String = records.iter().map(|record| format!("  local-data: {record:?}\n")).collect();
    let zones = "  local-zone: \"example.\" static\n  local-zone: \"consul.\" static\n";
    Unbound::start(host, "192.0.2.53", &format!("{zones}{data}"))
}

const SERVICES: &str = r#"
[[service]]
name = "shop/web"
frontends = ["198.51.100.10:80"]
backends = ["web.example:8080"]

[[service]]
name = "shop/api"
frontends = ["198.51.100.11:80"]
backends-from = "srv:_http._tcp.api.service.consul"

# The address of the DNS server itself leads to a backend that does not exist.
[[service]]
name = "shop/dns"
frontends = ["192.0.2.53:53/UDP", "192.0.2.53:53/TCP"]
backends = ["192.0.2.99:53"]
"#;

/// Waits until the address has exactly these backends.
fn served(address: &str, backends: &[&str]) {
    eventually(&format!("{address} with {backends:?}"), || is_served_by(address, backends));
}

fn status_of(address: &str) -> String {
    frontend(address).map_or_else(String::new, |row| row["status"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn names_follow_a_dns_server_and_stay_when_it_dies() {
    sandbox::run("dns::names_follow_a_dns_server_and_stay_when_it_dies", |sandbox| {
        let host = Host::new(sandbox);
        host.configure(&format!("[dns]\nservers = [\"{SERVER}\"]"));
        let _backends =
            [backend("1", "192.0.2.11:8080"), backend("2", "192.0.2.12:8080"), backend("3", "192.0.2.13:9000")];
        let unbound = start(
            &host,
            &[
                "web.example. 1 IN A 192.0.2.11",
                "_http._tcp.api.service.consul. 1 IN SRV 1 1 9000 node-3.node.consul.",
                "_http._tcp.api.service.consul. 1 IN SRV 2 1 8080 node-1.node.consul.",
                "node-3.node.consul. 1 IN A 192.0.2.13",
                "node-1.node.consul. 1 IN A 192.0.2.11",
            ],
        );
        host.serve("a.toml", SERVICES);
        let daemon = host.start();
        served("198.51.100.10:80/TCP", &["192.0.2.11:8080/TCP"]);
        served("198.51.100.11:80/TCP", &["192.0.2.13:9000/TCP"]);
        assert_eq!(answering("198.51.100.10:80"), ["1"]);
        assert_eq!(answering("198.51.100.11:80"), ["3"]);

        // A program that connects to the server's address reaches the service, which has no working backend. nodelb does
        // not need its own balancing: it still sees every change.
        assert_eq!(errno("192.0.2.53:53", Transport::Tcp), "ECONNREFUSED");
        unbound.control(&["local_data", "web.example. 1 IN A 192.0.2.12"]);
        served("198.51.100.10:80/TCP", &["192.0.2.11:8080/TCP", "192.0.2.12:8080/TCP"]);
        unbound.replace("web.example.", &["web.example. 1 IN A 192.0.2.12"]);
        served("198.51.100.10:80/TCP", &["192.0.2.12:8080/TCP"]);
        unbound.replace(
            "_http._tcp.api.service.consul.",
            &["_http._tcp.api.service.consul. 1 IN SRV 2 1 8080 node-1.node.consul."],
        );
        served("198.51.100.11:80/TCP", &["192.0.2.11:8080/TCP"]);
        let record = |row: &serde_json::Value| {
            let text = row.to_string();
            text.contains("DNS A record of web.example") && text.contains(SERVER)
        };
        assert!(history("shop/web").iter().any(record), "{:?}", history("shop/web"));

        // The server dies.
        drop(unbound);
        eventually("a held service", || status_of("198.51.100.10:80/TCP") == "Held");
        assert_eq!(answering("198.51.100.10:80"), ["2"]);
        daemon.stop();

        // nodelb starts without it, with the last answers, and then with the content of the kernel alone.
        let daemon = host.start();
        assert_eq!(answering("198.51.100.10:80"), ["2"]);
        eventually("a held service after a restart", || status_of("198.51.100.10:80/TCP") == "Held");
        daemon.kill();
        fs::remove_file(host.path("state/names.json")).unwrap();
        let daemon = host.spawn(None);
        eventually("an answer of the admin API", || !status_of("198.51.100.10:80/TCP").is_empty());
        sleep(Duration::from_secs(2));
        assert_eq!(answering("198.51.100.10:80"), ["2"]);
        assert_eq!(answering("198.51.100.11:80"), ["1"]);

        let unbound = start(
            &host,
            &[
                "web.example. 1 IN A 192.0.2.11",
                "_http._tcp.api.service.consul. 1 IN SRV 2 1 8080 node-1.node.consul.",
                "node-1.node.consul. 1 IN A 192.0.2.11",
            ],
        );
        served("198.51.100.10:80/TCP", &["192.0.2.11:8080/TCP"]);
        daemon.stop();
        drop(unbound);
        host.withdraw("a.toml");
        host.cleanup();
    });
}
