//! Restarts: the stored state is served before any apiserver responds, and corrected when one does.

use std::fs;
use std::time::{Duration, Instant};

use crate::objects::{self, backend, frontend};
use crate::rig::{Reads, Rig, objects};

const SERVICES: u64 = 12;

/// A node that was killed after it stored its state, while the apiserver is down.
fn killed() -> Rig {
    let rig = Rig::shop(SERVICES);
    rig.node.wait("the state is written", |_| {
        let written = fs::read_to_string(file(&rig)).unwrap_or_default();
        let lines = written.lines().filter(|line| line.contains("Upsert")).count();
        if lines as u64 == 2 * SERVICES { Ok(()) } else { Err(format!("{lines} lines")) }
    });
    rig.replica.faults().refuse(true);
    rig.replica.faults().reset_connections();
    rig
}

fn file(rig: &Rig) -> std::path::PathBuf {
    rig.state().join("kubernetes.jsonl")
}

/// A node may start while an apiserver stops, which removes its address from the slice of `default/kubernetes`.
#[test]
fn an_apiserver_that_stops_right_after_the_start_is_known() {
    let with = |endpoints: &[String]| {
        let mut objects = [objects::service("kubernetes", 1), objects::slice("kubernetes", 0, endpoints)];
        objects.iter_mut().for_each(|object| object["metadata"]["namespace"] = "default".into());
        objects
    };
    let rig = Rig::start(with(&["192.0.2.50".into()]));
    rig.converge("the beginning");
    with(&[]).into_iter().for_each(|object| rig.apply(object));
    let address = ("192.0.2.50".parse().expect("an address"), 8080);
    rig.node.wait("the address is known", |observer| {
        let known = &observer.apiservers;
        if known.contains(&address) { Ok(()) } else { Err(format!("{known:?}")) }
    });
}

#[test]
fn stored_services_are_served_while_the_apiserver_is_down() {
    let mut rig = killed();
    let before = objects(&rig.cluster);
    rig.restart_node();
    rig.node.wait("from memory", |observer| if observer.objects() == before { Ok(()) } else { Err("not all".into()) });
    for number in 0..SERVICES {
        assert_eq!(rig.node.observer().backends(&frontend(number)), [backend(number)]);
    }
    rig.cluster.delete("services", "ns", "s2").expect("was there");
    rig.cluster.delete("endpointslices", "ns", "s2-0").expect("was there");
    rig.node.observer().unwatch(&frontend(2));
    rig.cluster.delete("services", "ns", "s3").expect("was there");
    rig.apply(objects::service("s3", 3));
    rig.apply(objects::slice("s4", 0, &["192.0.2.4".into(), "203.0.113.4".into()]));
    objects::pair(50).into_iter().for_each(|object| rig.apply(object));
    rig.cluster.compact();
    rig.replica.faults().refuse(false);
    rig.converge("caught up");
}

/// The owner task of the daemon delays rounds while Kubernetes is not synced. A node that is killed then has nothing but the
/// file.
#[test]
fn a_restart_keeps_the_stored_state_until_a_snapshot_contains_it() {
    let mut rig = killed();
    rig.replica.faults().refuse(false);
    rig.restart_node_with(Reads { round_after: Duration::from_secs(2), ..Reads::default() });
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(1_500) {
        let stored = fs::read_to_string(file(&rig)).expect("the file stays");
        assert_eq!(stored.lines().filter(|line| line.contains("Upsert")).count() as u64, 2 * SERVICES, "{stored}");
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.restart_node_with(Reads::default());
    rig.converge("the next start");
}

#[test]
fn an_incomplete_first_list_removes_nothing_that_was_stored() {
    use nodelb_apiserver::{Fault, On};
    let mut rig = killed();
    for kind in ["services", "endpointslices"] {
        rig.replica.faults().answer_next(1, On::watch(kind), Fault::Keep { items: 1 });
    }
    rig.replica.faults().refuse(false);
    rig.restart_node();
    rig.converge("a first list that lies");
}

#[test]
fn the_state_is_that_after_the_last_change() {
    let rig = Rig::shop(2);
    for number in 0..4 {
        rig.apply(objects::slice("s0", 1, &[format!("203.0.113.{number}")]));
        rig.converge("a change");
        let version =
            rig.cluster.get("endpointslices", "ns", "s0-1").expect("there")["metadata"]["resourceVersion"].clone();
        rig.node.wait("the last change is written", |_| {
            let written = fs::read_to_string(file(&rig)).unwrap_or_default();
            let is_written = written.contains(&format!("\"resource_version\":{version}"));
            if is_written { Ok(()) } else { Err(written) }
        });
    }
}

#[test]
fn a_state_of_another_cluster_is_not_used() {
    let mut rig = killed();
    let written = fs::read_to_string(file(&rig)).expect("written");
    fs::write(file(&rig), written.replacen("\"clusters\":[\"", "\"clusters\":[\"another", 1)).expect("written");
    rig.restart_node();
    std::thread::sleep(Duration::from_millis(300));
    assert!(rig.node.observer().objects().services.is_empty());
    rig.replica.faults().refuse(false);
    rig.converge("learned again");
}

#[test]
fn the_valid_part_of_a_damaged_state_is_used() {
    for damage in [
        |text: String| text[..text.len() * 2 / 3].to_owned(),
        |text: String| text.replacen("UpsertSlice", "\u{0}{[", 3),
    ] {
        let mut rig = killed();
        let written = fs::read_to_string(file(&rig)).expect("written");
        fs::write(file(&rig), damage(written)).expect("written");
        rig.restart_node();
        rig.node.wait("what is left", |observer| {
            let services = observer.objects().services.len();
            if services as u64 == SERVICES { Ok(()) } else { Err(format!("{services} services")) }
        });
        rig.replica.faults().refuse(false);
        rig.converge("the rest is learned");
    }
    for damaged in ["", "\n", "{}", "{\"form\":99}\n", "\u{feff}\u{0}"] {
        let mut rig = killed();
        fs::write(file(&rig), damaged).expect("written");
        rig.restart_node();
        rig.replica.faults().refuse(false);
        rig.converge("learned again");
    }
}

/// As in the first step of every rotation of a certificate authority.
#[test]
fn a_bundle_that_gains_a_certificate_authority_while_the_daemon_is_down_is_of_the_same_cluster() {
    let mut rig = killed();
    let remembered = rig.node.observer().objects();
    rig.restart_node_with_another_authority();
    rig.node.wait("what is remembered", |observer| {
        if observer.objects() == remembered { Ok(()) } else { Err(format!("{:?}", observer.objects())) }
    });
    assert!(!rig.take_journal().contains("another cluster"));
    rig.replica.faults().refuse(false);
    rig.converge("the apiserver is back");
}
