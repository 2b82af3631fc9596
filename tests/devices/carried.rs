//! Connections over restarts and changes of the maps' sizes.

use std::os::fd::AsFd as _;

use libbpf_rs::MapInfo;
use nodelb_datapath::packets::ConnectionCount;

use super::*;
use crate::crash_points::crash_points;
use crate::links::attached;

fn resized(env: &Sandbox, connections: u32, handshakes: u32) -> Options {
    with_packets(env, |packets| {
        packets.max_connections = connections;
        packets.max_handshakes = handshakes;
    })
}

#[test]
fn connections_outlive_the_daemon() {
    in_sandbox("devices::carried::connections_outlive_the_daemon", |env| {
        let node = Node::open(&options(env));
        node.connect("connections", 1);
        node.connect("half_open", 2);
        drop(node);
        let node = Node::open(&options(env));
        assert!(node.has_connection("connections", 1) && node.has_connection("half_open", 2));
        assert!(!node.has_connection("connections", 2));
    });
}

/// The numbers with the second bit have the flag of direct return.
#[test]
fn a_connection_with_direct_return_is_counted_by_its_only_entry() {
    in_sandbox("devices::carried::a_connection_with_direct_return_is_counted_by_its_only_entry", |env| {
        let node = Node::open(&options(env));
        [1, 4, 5, 8].into_iter().for_each(|number| node.connect("connections", number));
        [1, 4, 2, 3, 6].into_iter().for_each(|number| node.connect("half_open", number));
        let count = node.packets.connections.count().expect("a count");
        assert_eq!(count, ConnectionCount { connections: 2, handshakes: 1, forwarded: 3 });
        assert_eq!(count.half_open(), 3, "5 entries have the room of 3 handshakes");
    });
}

#[test]
fn maps_of_other_sizes_get_all_entries() {
    in_sandbox("devices::carried::maps_of_other_sizes_get_all_entries", |env| {
        let (_, pins) = pins(env);
        let mut node = Node::open(&options(env));
        pair("v0", "v1");
        node.attach("v0");
        for number in 0..100 {
            node.connect("connections", number);
        }
        drop(node);
        for (connections, handshakes) in [(1000, 128), (1000, 64), (64, 4096)] {
            let node = Node::open(&resized(env, connections, handshakes));
            assert_eq!(node.map("connections").max_entries(), connections * 2);
            assert_eq!(node.map("half_open").max_entries(), handshakes * 2);
            assert!((0..100).all(|number| node.has_connection("connections", number)));
            for former in ["former_connections", "former_half_open"] {
                let is_set =
                    |index: u32| node.map(former).lookup(&index.to_ne_bytes(), MapFlags::ANY).unwrap().is_some();
                assert!(!(0..2).any(is_set), "{former}: the memory of the old maps is released");
            }
            assert_eq!(names(&pins, "connections"), ["connections"]);
            assert_eq!((node.devices().len(), node.faults().len()), (1, 0));
        }
    });
}

#[test]
fn a_limit_below_the_number_of_connections_keeps_the_present_size() {
    in_sandbox("devices::carried::a_limit_below_the_number_of_connections_keeps_the_present_size", |env| {
        let (_, pins) = pins(env);
        let node = Node::open(&options(env));
        for number in 0..100 {
            node.connect("connections", number);
        }
        assert_eq!(node.packets.max_connections, 128);
        drop(node);
        let node = Node::open(&resized(env, 10, 64));
        assert_eq!((node.packets.max_connections, &node.packets.faults), (128, &Vec::new()));
        assert_eq!(node.map("half_open").max_entries(), 128, "the other map has its new size");
        assert!((0..100).all(|number| node.has_connection("connections", number)));
        assert_eq!(names(&pins, "connections"), ["connections"]);
        (10..100).for_each(|number| node.map("connections").delete(&[number; 40]).unwrap());
        drop(node);
        let node = Node::open(&resized(env, 10, 64));
        assert_eq!(node.packets.max_connections, 10);
        assert!((0..10).all(|number| node.has_connection("connections", number)));
    });
}

fn has_entry(pin: &Path, number: u8) -> bool {
    MapHandle::from_pinned_path(pin).unwrap().lookup(&[number; 40], MapFlags::ANY).unwrap().is_some()
}

/// The process is killed after each step of a start with other sizes; the next start, with any sizes, has every entry.
/// Nothing is copied before the programs are replaced: what the old ones end afterwards would be there again.
#[test]
fn a_crash_at_any_step_loses_no_connection() {
    in_sandbox("devices::carried::a_crash_at_any_step_loses_no_connection", |env| {
        if let Some(after) = part() {
            let after = after.parse().expect("a number");
            drop(KernelDatapath::open(&Options { crash_after: Some(after), ..resized(env, 1000, 64) }));
            return;
        }
        pair("v0", "v1");
        let (links, pins) = pins(env);
        let mut node = Node::open(&options(env));
        node.attach("v0");
        drop(node);
        for after in crash_points(200) {
            let node = Node::open(&options(env));
            node.connect("connections", 1);
            node.connect("half_open", 2);
            drop(node);
            let before = attached(&links);
            let test = "devices::carried::a_crash_at_any_step_loses_no_connection";
            let mut crash = Command::new(std::env::current_exe().expect("the path of the test binary"));
            crash.args(["--exact", test, "--nocapture", "--test-threads=1"]);
            let status = crash.env(PART, after.to_string()).status().expect("the same test again");
            // The old programs may end a connection until then.
            for (map, number) in
                [("connections", 1), ("half_open", 2)].into_iter().filter(|_| attached(&links) == before)
            {
                let with_entry = names(&pins, map).iter().filter(|name| has_entry(&pins.join(name), number)).count();
                assert_eq!(with_entry, 1, "step {after}: maps with the entry");
            }
            let sizes = if after % 2 == 0 { options(env) } else { resized(env, 1000, 64) };
            let node = Node::open(&sizes);
            assert!(node.has_connection("connections", 1) && node.has_connection("half_open", 2), "step {after}");
            assert_eq!((names(&pins, "connections"), node.faults().len()), (vec!["connections".into()], 0));
            if status.success() {
                assert!(after > 10, "there are more steps than {after}");
                return;
            }
        }
        panic!("the start has no end");
    });
}

/// Whether programs look into the maps only for what the Bloom filter contains.
fn is_relied_on(bloom: &MapHandle) -> bool {
    let words = (0..bloom.max_entries()).map(|index| bloom.lookup(&index.to_ne_bytes(), MapFlags::ANY));
    let mut words = words.map(|word| u64::from_ne_bytes(word.unwrap().unwrap().try_into().unwrap()));
    let first = words.next().unwrap() >> 63;
    assert!(words.all(|word| word >> 63 == first));
    first == 1
}

/// If the next start fails, the programs meet addresses that it has added. Until each device has the programs of a newer
/// layout, those of the older one meet connections that these have begun.
#[test]
fn programs_of_an_earlier_start_look_into_the_maps_again() {
    in_sandbox("devices::carried::programs_of_an_earlier_start_look_into_the_maps_again", |env| {
        let node = Node::open(&options(env));
        let mut earlier = MapHandle::try_from(node.map("packet_bloom")).unwrap();
        assert!(is_relied_on(&earlier));
        drop(node);
        // Another size needs another filter.
        for (layout, outside) in [(nodelb_datapath::LAYOUT, 10_000), (nodelb_datapath::LAYOUT + 1, 64)] {
            let resized = with_packets(env, |packets| packets.limits.outside = outside);
            let node = Node::open(&Options { layout, ..resized });
            let bloom = MapHandle::try_from(node.map("packet_bloom")).unwrap();
            assert!(!is_relied_on(&earlier) && is_relied_on(&bloom), "layout {layout}");
            let version = env.bpffs.join(format!("nodelb/v{layout}"));
            assert_eq!(names(&version, "packet_bloom"), ["packet_bloom"]);
            earlier = bloom;
        }
    });
}

/// What was in the filter and is in no map is gone with the start, although the programs are the same.
#[test]
fn a_start_empties_the_filter_that_it_takes_over() {
    in_sandbox("devices::carried::a_start_empties_the_filter_that_it_takes_over", |env| {
        let node = Node::open(&options(env));
        let bloom = MapHandle::try_from(node.map("packet_bloom")).unwrap();
        let all = |word: u64| {
            (0..bloom.max_entries()).all(|index| {
                let found = bloom.lookup(&index.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
                u64::from_ne_bytes(found.try_into().unwrap()) == word
            })
        };
        assert!(all(1 << 63), "there are no connections and no addresses");
        drop(node);
        (0..bloom.max_entries())
            .for_each(|index| bloom.update(&index.to_ne_bytes(), &u64::MAX.to_ne_bytes(), MapFlags::ANY).unwrap());
        let node = Node::open(&options(env));
        let found = MapHandle::try_from(node.map("packet_bloom")).unwrap();
        assert_eq!(id(&found), id(&bloom));
        assert!(all(1 << 63));
    });
}

fn id(map: &MapHandle) -> u32 {
    MapInfo::new(map.as_fd()).unwrap().info.id
}
