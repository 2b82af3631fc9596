//! Another program changes the maps and links of the daemon: `/diff` reports it, and the daemon
//! repairs it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use nix::sys::signal::Signal;
use nodelb_prober::Transport;
use serde_json::Value;

use crate::host::{Daemon, Host, answer, answering, backend, errno, eventually, get, is_served_by, service};
use crate::sandbox;

const WEB: &str = "198.51.100.10:80";

/// A map of the current generation.
fn map(host: &Host, name: &str) -> MapHandle {
    let layout = host.pins.join("v1");
    let names = fs::read_dir(&layout).unwrap().map(|entry| entry.unwrap().path());
    let generation: PathBuf = names.filter(|path| path.join("frontends").exists()).max().unwrap();
    MapHandle::from_pinned_path(generation.join(name)).unwrap()
}

/// The key of an IPv4 frontend over TCP, as in `bpf/shared.h`.
fn key(address: [u8; 4], port: u16) -> Vec<u8> {
    let mut key = [[0; 10].as_slice(), &[0xff; 2], &address].concat();
    key.extend(port.to_be_bytes());
    key.extend([6, 0]);
    key
}

fn web() -> Vec<u8> {
    key([198, 51, 100, 10], 80)
}

fn differences() -> Vec<Value> {
    get("/diff").map(|answer| answer["differences"].as_array().unwrap().clone()).unwrap_or_default()
}

/// The only difference that the daemon reports.
fn only_difference() -> Value {
    let mut rows = differences();
    assert_eq!(rows.len(), 1, "{rows:#?}");
    rows.remove(0)
}

fn repaired(kind: &str) -> String {
    let metrics = answer("/metrics", "text/plain").unwrap();
    let name = format!("nodelb_drift_repaired_total{{kind=\"{kind}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap().to_owned()
}

/// Starts a check of the maps and waits until they are correct.
fn check(daemon: &Daemon) {
    daemon.signal(Signal::SIGHUP);
    eventually("nothing differs", || {
        answer("/diff", "text/plain").is_some_and(|text| text.starts_with("source, memory and kernel agree"))
    });
}

/// A node that serves one service with two backends.
fn serving(host: &Host) -> Daemon {
    host.serve("a.toml", &service("shop/web", &[WEB], &["192.0.2.11:8080", "192.0.2.12:8080"]));
    let daemon = host.start();
    assert!(is_served_by("198.51.100.10:80/TCP", &["192.0.2.11:8080/TCP", "192.0.2.12:8080/TCP"]));
    assert_eq!(differences(), Vec::<Value>::new());
    daemon
}

#[test]
fn a_frontend_deleted_by_hand_is_shown_and_put_back() {
    sandbox::run("drift::a_frontend_deleted_by_hand_is_shown_and_put_back", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = [backend("1", "192.0.2.11:8080"), backend("2", "192.0.2.12:8080")];
        let daemon = serving(&host);
        map(&host, "frontends").delete(&web()).unwrap();
        assert_eq!(errno(WEB, Transport::Tcp), "ENETUNREACH");
        let row = only_difference();
        assert_eq!((&row["between"], &row["what"]), (&"memory/kernel".into(), &"198.51.100.10:80/TCP".into()));
        assert_eq!((&row["service"], &row["kernel"]), (&"shop/web".into(), &"absent".into()));
        assert!(row["likely_cause"].as_str().unwrap().contains("another process deleted"), "{row:#}");
        let narrow = get("/diff?service=shop/other").unwrap();
        assert_eq!(narrow["differences"].as_array().map(Vec::len), Some(0), "{narrow:#}");

        let command = Command::new(env!("CARGO_BIN_EXE_nodelb")).arg("diff").output().unwrap();
        assert_eq!(command.status.code(), Some(1), "{command:?}");
        assert!(String::from_utf8_lossy(&command.stdout).contains("198.51.100.10:80/TCP"), "{command:?}");

        check(&daemon);
        assert_eq!(answering(WEB), ["1", "2"]);
        assert_eq!((repaired("frontend"), repaired("service")), ("1".into(), "0".into()));
        let said = "repaired map entries that another process modified: frontend 198.51.100.10:80/TCP deleted";
        eventually("the journal names it", || host.log().contains(said));
        let command = Command::new(env!("CARGO_BIN_EXE_nodelb")).arg("diff").output().unwrap();
        assert_eq!(command.status.code(), Some(0), "{command:?}");
        daemon.stop();
        host.cleanup();
    });
}

/// Entries that refer to slots of another service or to none, and slots without an owner: the
/// allocation of slots stays the same.
#[test]
fn services_and_slots_that_were_overwritten_are_repaired() {
    sandbox::run("drift::services_and_slots_that_were_overwritten_are_repaired", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = [backend("1", "192.0.2.11:8080"), backend("2", "192.0.2.12:8080")];
        host.serve("b.toml", &service("shop/other", &["198.51.100.11:80"], &["192.0.2.12:8080"]));
        let daemon = serving(&host);
        let (services, slots) = (map(&host, "services"), map(&host, "slots"));
        let frontend = map(&host, "frontends").lookup(&web(), MapFlags::ANY).unwrap().unwrap();
        let id = &frontend[..4];
        let before = services.lookup(id, MapFlags::ANY).unwrap().unwrap();
        let empty = vec![0; before.len()];
        let outside = [u32::MAX.to_ne_bytes().as_slice(), &before[4..]].concat();
        let anothers = [[0; 4].as_slice(), &1_u16.to_ne_bytes(), &before[6..]].concat();
        for (count, entry) in [empty, outside, anothers].iter().enumerate() {
            services.update(id, entry, MapFlags::ANY).unwrap();
            let row = only_difference();
            assert_eq!((&row["service"], &row["between"]), (&"shop/web".into(), &"memory/kernel".into()), "{row:#}");
            check(&daemon);
            assert_eq!(answering(WEB), ["1", "2"]);
            assert_eq!(repaired("service"), (count + 1).to_string());
        }
        let view = services.lookup(id, MapFlags::ANY).unwrap().unwrap();
        let first = u32::from_ne_bytes(*view.first_chunk().unwrap());
        let mut slot = slots.lookup(&first.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        slot[15] = 99;
        slots.update(&first.to_ne_bytes(), &slot, MapFlags::ANY).unwrap();
        let row = only_difference();
        assert!(row["kernel"].as_str().unwrap().contains("192.0.2.99:8080/TCP"), "{row:#}");
        check(&daemon);
        assert_eq!((repaired("slots"), answering(WEB)), ("1".into(), vec!["1".to_owned(), "2".to_owned()]));
        assert_eq!(answering("198.51.100.11:80"), ["2"]);

        host.withdraw("b.toml");
        eventually("it is gone", || crate::host::frontend("198.51.100.11:80/TCP").is_none());
        check(&daemon);
        daemon.stop();
        let daemon = host.start();
        assert!(!host.log().contains("not copied to the new maps"), "{}", host.log());
        assert_eq!(answering(WEB), ["1", "2"]);
        daemon.stop();
        host.cleanup();
    });
}

#[test]
fn foreign_frontends_and_node_addresses_are_removed() {
    sandbox::run("drift::foreign_frontends_and_node_addresses_are_removed", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = [backend("1", "192.0.2.11:8080"), backend("2", "192.0.2.12:8080")];
        host.serve("b.toml", &service("shop/other", &["198.51.100.11:80"], &["192.0.2.12:8080"]));
        let daemon = serving(&host);
        let frontends = map(&host, "frontends");
        let other = key([198, 51, 100, 11], 80);
        let sealed = frontends.lookup(&other, MapFlags::ANY).unwrap().unwrap();
        host.withdraw("b.toml");
        eventually("it is gone", || crate::host::frontend("198.51.100.11:80/TCP").is_none());

        frontends.update(&other, &sealed, MapFlags::ANY).unwrap();
        frontends.update(&key([198, 51, 100, 12], 80), &[7; 8], MapFlags::ANY).unwrap();
        let node_addr = [[0; 10].as_slice(), &[0xff; 2], &[203, 0, 113, 9]].concat();
        map(&host, "node_addrs").update(&node_addr, &[0; 4], MapFlags::ANY).unwrap();
        let rows = differences();
        let what: Vec<&str> = rows.iter().map(|row| row["what"].as_str().unwrap()).collect();
        assert_eq!(what, ["198.51.100.11:80/TCP", "198.51.100.12:80/TCP", "203.0.113.9"]);
        assert!(rows.iter().all(|row| row["memory"] == "absent"), "{rows:#?}");
        check(&daemon);
        for address in [other, key([198, 51, 100, 12], 80)] {
            assert_eq!(frontends.lookup(&address, MapFlags::ANY).unwrap(), None);
        }
        assert_eq!((repaired("frontend"), repaired("node_address")), ("2".into(), "1".into()));
        assert_eq!(answering(WEB), ["1", "2"]);
        daemon.stop();
        host.cleanup();
    });
}

#[test]
fn hooks_that_were_detached_or_unpinned_are_attached_again() {
    sandbox::run("drift::hooks_that_were_detached_or_unpinned_are_attached_again", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = [backend("1", "192.0.2.11:8080"), backend("2", "192.0.2.12:8080")];
        let daemon = serving(&host);
        let links = host.pins.join("v1/links");
        Link::open(links.join("connect4")).unwrap().detach().unwrap();
        fs::remove_file(links.join("getpeername6")).unwrap();
        // Unless they are attached again already.
        for row in differences() {
            let said = row["kernel"].as_str().unwrap();
            assert!(said.contains("hook connect4") || said.contains("hook getpeername6"), "{row:#}");
        }
        eventually("the hooks are attached again", || repaired("link") == "2");
        assert_eq!(answering(WEB), ["1", "2"]);
        assert_eq!(differences(), Vec::<Value>::new());
        daemon.stop();
        host.cleanup();
    });
}
