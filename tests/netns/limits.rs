//! Full maps: existing services keep working, new ones report why they are not served, and raising
//! the limit breaks nothing.

use serde_json::Value;

use crate::continuity::Traffic;
use crate::host::{Host, answering, backend, frontend, is_served_by, service};
use crate::sandbox;

/// The error in the row of the address; checks its status.
fn error(address: &str) -> String {
    let row = frontend(address).unwrap_or_default();
    assert_eq!(row["status"], "Refused", "{row:#}");
    row["error"].as_str().unwrap_or_default().to_owned()
}

/// With these limits, serves one service that fits and one that does not; then raises the limits.
fn overflow(host: &Host, map: &str, limits: &str) {
    let backends = ["192.0.2.11:8080", "192.0.2.12:8080"];
    host.configure(limits);
    host.serve("a.toml", &service("shop/stays", &["198.51.100.10:80"], &backends));
    let daemon = host.start();
    let traffic = Traffic::start();
    let more: Vec<String> = (1..=8).map(|n| format!("192.0.2.1{n}:9000")).collect();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let addresses: Vec<String> = (21..=28).map(|n| format!("198.51.100.{n}:80")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let many: String = (0..8).map(|n| service(&format!("shop/more-{n}"), &addresses[n..=n], &more)).collect();
    host.serve("b.toml", &many);
    crate::host::eventually("an error on what does not fit", || {
        frontend("198.51.100.28:80/UDP").is_some_and(|row| row["status"] == "Refused")
    });
    let said = error("198.51.100.28:80/UDP");
    assert!(said.contains(&format!("map {map} is full")), "{said}");
    assert!(said.contains(&format!("datapath.max-{map}")), "{said}");
    assert_eq!(answering("198.51.100.10:80"), ["1", "2"]);
    traffic.assert_unharmed("while the map is full");
    daemon.stop();
    host.configure("");
    let daemon = host.start();
    let served: Vec<String> = more.iter().map(|address| format!("{address}/UDP")).collect();
    let served: Vec<&str> = served.iter().map(String::as_str).collect();
    assert!(
        is_served_by("198.51.100.28:80/UDP", &served),
        "{:?}",
        frontend("198.51.100.28:80/UDP").map(|row: Value| row)
    );
    traffic.finish();
    daemon.stop();
    host.withdraw("b.toml");
    host.cleanup();
}

#[test]
fn a_full_map_hurts_only_what_does_not_fit() {
    sandbox::run("limits::a_full_map_hurts_only_what_does_not_fit", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = [backend("1", "192.0.2.11:8080"), backend("2", "192.0.2.12:8080")];
        overflow(&host, "slots", "max-slots = 32");
        overflow(&host, "services", "max-services = 8");
        overflow(&host, "frontends", "max-frontends = 8");
    });
}
