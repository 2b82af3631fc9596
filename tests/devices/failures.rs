//! Starts where a part of the packet path fails: the rest of the datapath works.

use nodelb_datapath::PacketFailure;

use super::*;

/// Entries for addresses that clients outside the node can connect to, in maps of the generation.
const SERVED: Limits = Limits { outside: 64, source_ranges: 64, ..LIMITS };

/// Starts with maps of these sizes, without the packet path.
fn failed(env: &Sandbox, limits: Limits) -> PacketFailure {
    let (mut datapath, report) = KernelDatapath::open(&Options { limits, ..options(env) }).unwrap();
    assert_eq!(datapath.verify_links(), [], "sockets have their programs");
    assert!(datapath.take_packets().is_none());
    assert!(datapath.ensure_attached().unwrap().is_empty());
    report.packets.unwrap_err()
}

#[test]
fn sockets_are_translated_without_the_packet_path() {
    in_sandbox("devices::failures::sockets_are_translated_without_the_packet_path", |env| {
        let ifindex = pair("v0", "v1");
        let (_, maps) = pins(env);
        let mut node = Node::open(&Options { limits: SERVED, ..options(env) });
        node.attach("v0");
        let outside = MapHandle::try_from(node.map("outside")).unwrap();
        drop(node);

        // A map of another kind under the name of the connections.
        fs::remove_file(maps.join("connections")).unwrap();
        fs::hard_link(maps.join("g1/services"), maps.join("connections")).unwrap();
        let failure = failed(env, SERVED);
        assert!(failure.is_earlier_active && failure.reason.contains("different type"), "{failure:?}");

        let (key, value) = (vec![1; outside.key_size() as usize], vec![1; outside.value_size() as usize]);
        outside.update(&key, &value, MapFlags::ANY).unwrap();

        let larger = Limits { frontends: 2048, ..SERVED };
        assert!(!failed(env, larger).is_earlier_active);
        assert_eq!(outside.keys().count(), 0, "the earlier programs translate no new connections with old maps");
        assert!(!failed(env, larger).is_earlier_active, "as after the last start");

        fs::remove_file(maps.join("connections")).unwrap();
        let node = Node::open(&Options { limits: larger, ..options(env) });
        assert_eq!((node.devices(), node.faults()), (vec![ifindex], Vec::new()));
        drop(node);
        fs::remove_file(maps.join("connections")).unwrap();
        fs::hard_link(maps.join("g2/services"), maps.join("connections")).unwrap();
        assert!(failed(env, larger).is_earlier_active);
    });
}

#[test]
fn a_device_that_cannot_be_changed_is_left_for_later() {
    in_sandbox("devices::failures::a_device_that_cannot_be_changed_is_left_for_later", |env| {
        let ifindexes = [pair("v0", "v0p"), pair("v2", "v2p")];
        let (links, maps) = pins(env);
        let mut node = Node::open(&options(env));
        node.attach("v0");
        node.attach("v2");
        drop(node);
        fs::remove_file(links.join(format!("packets-in-{}", ifindexes[0]))).unwrap();
        let obstacle = links.join(format!("packets-in-{}-new", ifindexes[0]));
        fs::create_dir(&obstacle).unwrap();
        // A start removes a directory, but no mount point.
        command("mount", &["-t", "tmpfs", "tmpfs", obstacle.to_str().unwrap()]);
        let mut node = Node::open(&resized(env));
        assert_eq!(node.packets.faults.len(), 1, "{:?}", node.packets.faults);
        assert_eq!((node.devices(), node.faults().len()), (ifindexes.into(), 1));
        assert_eq!(names(&maps, "connections"), ["connections"], "the start is complete");
        command("umount", &[obstacle.to_str().unwrap()]);
        fs::remove_dir(&obstacle).unwrap();
        node.attach("v0");
        assert_eq!(node.faults(), [""; 0]);
    });
}

/// Options with other sizes for connections.
fn resized(env: &Sandbox) -> Options {
    with_packets(env, |packets| packets.max_connections = 1000)
}
