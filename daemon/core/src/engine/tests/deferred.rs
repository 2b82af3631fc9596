//! What waits until more is known: for how long, and what ends the wait.

use super::*;

fn files(incomplete: Option<&str>) -> Change {
    Change::Synced { source: Source::Files, incomplete: incomplete.map(Arc::from) }
}

fn renamed(full: &str, frontend: &str) -> Service {
    let mut service = service(full, frontend);
    service.ports[0].name = "web".into();
    service
}

fn renamed_slice(full: &str, backends: &[&str]) -> Slice {
    let mut slice = slice(full, "a", backends);
    slice.ports[0].name = "web".into();
    slice
}

/// A kernel that leads to the port `http` of shop/web, and an engine that starts next to it.
fn restarted() -> (Engine, MemoryDatapath) {
    let (mut engine, mut datapath) = new_pair();
    engine.change(Change::UpsertService(service("shop/web", "198.51.100.10:80/TCP")));
    engine.change(Change::UpsertSlice(slice("shop/web", "a", &["192.0.2.1:80"])));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    (engine_beside(&datapath), datapath)
}

/// The backends of a frontend in the kernel.
fn backends(datapath: &MemoryDatapath, address: &str) -> Vec<String> {
    let state = datapath.dump().expect("readable");
    match trace(&state, &(30_000..=32_767), l4(address)) {
        Verdict::Forwarded(_, slots) => slots.iter().map(|slot| slot.addr.to_string()).collect(),
        _ => Vec::new(),
    }
}

/// An unreadable file cannot describe another port of a service that a readable file describes.
#[test]
fn a_port_renamed_before_the_start_is_updated_while_another_file_is_unreadable() {
    let (mut engine, mut datapath) = restarted();
    engine.change(Change::UpsertService(renamed("shop/web", "198.51.100.10:80/TCP")));
    engine.change(Change::UpsertSlice(renamed_slice("shop/web", &["192.0.2.2:80"])));
    engine.change(files(Some("b.toml: line 3")));
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), ["192.0.2.2:80/TCP"]);
    engine.change(files(None));
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), ["192.0.2.2:80/TCP"]);
    assert_eq!(datapath.dump().expect("readable").services.len(), 2, "the old entry is pruned");
}

/// Its backends may be in the file that cannot be read.
#[test]
fn a_port_renamed_before_the_start_is_not_emptied_while_another_file_is_unreadable() {
    let (mut engine, mut datapath) = restarted();
    engine.change(Change::UpsertService(renamed("shop/web", "198.51.100.10:80/TCP")));
    engine.change(files(Some("b.toml: line 3")));
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), ["192.0.2.1:80/TCP"]);
    engine.change(files(None));
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!(backends(&datapath, "198.51.100.10:80/TCP"), [] as [&str; 0]);
}

/// A source may stay incomplete for months: what waits for it is kept once, however often it is planned.
#[test]
fn what_is_deferred_does_not_grow_with_the_rounds() {
    let (mut engine, mut datapath) = restarted();
    engine.change(Change::UpsertService(service("shop/web", "198.51.100.10:80/TCP")));
    engine.change(files(Some("b.toml: line 3")));
    for round in 1..100 {
        let mut again = service("shop/web", "198.51.100.10:80/TCP");
        again.affinity_seconds = Some(round);
        engine.change(Change::UpsertService(again));
        engine.reconcile(&mut datapath, Moment(round.into()));
        assert_eq!(engine.deferred.len(), 1, "round {round}");
    }
}
