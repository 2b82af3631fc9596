//! The cost of a round grows linearly with the number of changes. It is counted in comparisons of addresses, which do
//! not depend on the machine.

use super::*;
use crate::model::addr::work;

const ROOM: Limits =
    Limits { frontends: 8_192, services: 8_192, slots: 32_768, affinity: 16, outside: 0, source_ranges: 0 };

fn full(index: usize) -> String {
    format!("n{}/s{index}", index % 10)
}

/// The service and slice with the number `index`, at an address of its own.
fn described(index: usize, backends: &[&str]) -> [Change; 2] {
    let address = format!("198.51.{}.{}:80/TCP", index / 256, index % 256);
    let full = full(index);
    [Change::UpsertService(service(&full, &address)), Change::UpsertSlice(slice(&full, &full, backends))]
}

fn listed(index: usize, backends: &[&str]) -> Change {
    Change::UpsertSlice(slice(&full(index), &full(index), backends))
}

/// The cost of a round, including the changes before it.
fn cost(engine: &mut Engine, datapath: &mut MemoryDatapath, changes: impl IntoIterator<Item = Change>, at: u64) -> u64 {
    let (cost, _) = work::measure(|| {
        changes.into_iter().for_each(|change| engine.change(change));
        engine.reconcile(datapath, Moment(at))
    });
    cost
}

/// Settled maps with `count` services of one backend each.
fn settled(count: usize) -> (Engine, MemoryDatapath) {
    let mut datapath = MemoryDatapath::new(ROOM);
    let mut engine = engine_with(&datapath);
    (0..count).flat_map(|index| described(index, &["192.0.2.1:8080"])).for_each(|change| engine.change(change));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    (engine, datapath)
}

/// As in `t_quad`: a restart with those maps while one file cannot be read, so that nothing is pruned.
fn unpruned(count: usize) -> (Engine, MemoryDatapath) {
    let (_, mut datapath) = settled(count);
    let mut engine = engine_with(&datapath);
    (0..count).flat_map(|index| described(index, &["192.0.2.1:8080"])).for_each(|change| engine.change(change));
    engine.change(Change::Synced { source: Source::Files, incomplete: Some("broken.toml: line 1".into()) });
    engine.reconcile(&mut datapath, Moment(1));
    (engine, datapath)
}

type Storm = (&'static str, fn(usize) -> u64);

const STORMS: [Storm; 9] = [
    ("every list is emptied while a file cannot be read", |count| {
        let (mut engine, mut datapath) = unpruned(count);
        let cost = cost(&mut engine, &mut datapath, (0..count).map(|index| listed(index, &[])), 2);
        assert_eq!(datapath.slots_used().0, 0, "emptied");
        cost
    }),
    ("every service is removed while a file cannot be read", |count| {
        let (mut engine, mut datapath) = unpruned(count);
        let removed = (0..count).map(|index| Change::RemoveService(name(&full(index)), Source::Files));
        cost(&mut engine, &mut datapath, removed, 2)
    }),
    ("every service is described for the first time", |count| {
        let mut datapath = MemoryDatapath::new(ROOM);
        let mut engine = engine_with(&datapath);
        let changes = (0..count).flat_map(|index| described(index, &["192.0.2.1:8080"])).chain([synced()]);
        cost(&mut engine, &mut datapath, changes, 0)
    }),
    ("a restart finds every service", |count| {
        let (_, mut datapath) = settled(count);
        let mut engine = engine_with(&datapath);
        let changes = (0..count).flat_map(|index| described(index, &["192.0.2.1:8080"])).chain([synced()]);
        cost(&mut engine, &mut datapath, changes, 1)
    }),
    ("every list changes", |count| {
        let (mut engine, mut datapath) = settled(count);
        cost(&mut engine, &mut datapath, (0..count).map(|index| listed(index, &["192.0.2.2:8080"])), 2)
    }),
    ("every service is removed", |count| {
        let (mut engine, mut datapath) = settled(count);
        let removed = (0..count).map(|index| Change::RemoveService(name(&full(index)), Source::Files));
        cost(&mut engine, &mut datapath, removed, 2)
    }),
    ("every service exchanges its address with its neighbour", |count| {
        let (mut engine, mut datapath) = settled(count);
        let moved = (0..count).map(|index| {
            let [Change::UpsertService(other), _] = described(index ^ 1, &[]) else { unreachable!("a service first") };
            Change::UpsertService(Service { name: name(&full(index)), ..other })
        });
        cost(&mut engine, &mut datapath, moved, 2)
    }),
    ("no list fits, and every one is tried again", |count| {
        let mut datapath = MemoryDatapath::new(Limits { slots: 0, ..ROOM });
        let mut engine = engine_with(&datapath);
        let changes = (0..count).flat_map(|index| described(index, &["192.0.2.1:8080"])).chain([synced()]);
        let first = cost(&mut engine, &mut datapath, changes, 0);
        first + cost(&mut engine, &mut datapath, [], 10_000)
    }),
    ("no address of the node fits, and every one is tried again", |count| {
        let mut datapath = MemoryDatapath::new(ROOM).with_node_addrs(0);
        let mut engine = engine_with(&datapath);
        let node = NodeFacts {
            addresses: (0..count).map(|index| l4(&format!("203.0.{}.{}:1", index / 256, index % 256)).addr).collect(),
            nodeport_addresses: vec!["203.0.0.0/16".parse().expect("a network")],
            ..NodeFacts::default()
        };
        let first = cost(&mut engine, &mut datapath, [Change::Node(node), synced()], 0);
        assert_eq!(engine.snapshot(Moment(0)).unanswered_node_addrs().count(), count);
        first + cost(&mut engine, &mut datapath, [], 10_000)
    }),
];

/// `t_quad`: a round took 14 s with 10,000 services and 64 s with 20,000.
#[test]
fn twice_as_many_changes_cost_twice_as_much() {
    for (storm, cost) in STORMS {
        let (small, large) = (cost(256), cost(1_024));
        // Four times as many, plus a logarithmic factor for the size of the maps.
        assert!(large < 6 * small, "{storm}: {small} comparisons for 256 services, {large} for 1,024");
    }
}
