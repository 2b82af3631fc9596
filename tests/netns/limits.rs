//! Full maps: existing services keep working, new ones report why they are not served, and raising
//! the limit breaks nothing.

use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::continuity::Traffic;
use crate::diagnose::problems;
use crate::host::{Host, answering, backend, eventually, frontend, get, is_served_by, service};
use crate::lab_services::PACKETS_ON;
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
    eventually("an error on what does not fit", || {
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
    // The next start would remember them, and serve who was there first, to the second.
    host.withdraw("b.toml");
    eventually("the others are gone", || frontend("198.51.100.28:80/UDP").is_none());
    daemon.stop();
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

/// The number of slots that are in use, as `/maps` shows it, and whether a service lacks its ring.
fn slots() -> (u64, bool) {
    let maps = get("/maps").unwrap();
    let is_slots = |row: &&Value| row["map"] == "slots";
    let used = maps["limits"].as_array().unwrap().iter().find(is_slots).unwrap()["used"].as_u64().unwrap();
    (used, problems().iter().any(|problem| problem["reason"] == "NotConsistent"))
}

/// As `a_ring_that_does_not_fit_next_to_the_old_one_is_written_when_that_is_gone`, with slots that rest in the kernel.
#[test]
fn a_changed_list_gets_its_ring_when_the_old_one_is_gone() {
    sandbox::run("limits::a_changed_list_gets_its_ring_when_the_old_one_is_gone", |sandbox| {
        let host = Host::new(sandbox);
        // Two lists, by TCP and by UDP, of 88 slots each with their rings.
        host.configure(&format!("max-slots = 200\n{PACKETS_ON}choice = \"consistent\"\n"));
        let serve = |last: &str| {
            let text = service("shop/web", &["198.51.100.10:80"], &["192.0.2.11:8080", last]);
            host.serve("a.toml", &format!("{text}outside = true\n"));
            let both = ["192.0.2.11:8080/UDP", &format!("{last}/UDP")];
            eventually("the list", || is_served_by("198.51.100.10:80/UDP", &both));
        };
        host.serve("a.toml", "");
        let daemon = host.start();
        serve("192.0.2.12:8080");
        let (with_rings, lacks_one) = slots();
        assert!(with_rings >= 176 && !lacks_one, "{with_rings}");
        for last in ["192.0.2.13:8080", "192.0.2.12:8080"] {
            serve(last);
            // Longer than slots rest.
            thread::sleep(Duration::from_secs(4));
            assert_eq!(slots(), (with_rings, false), "{last}");
        }
        daemon.stop();
        host.cleanup();
    });
}
