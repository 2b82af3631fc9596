//! tcx links.

use libbpf_rs::Link;
use nodelb_datapath::packets::XdpMode;
use nodelb_datapath::{CrashPoint, Direction, LinkState, drop_thread_privileges};

use super::*;

#[test]
fn programs_are_attached_and_taken_over() {
    in_sandbox("devices::attach::programs_are_attached_and_taken_over", |env| {
        let ifindex = pair("v0", "v1");
        let (links, _) = pins(env);
        let mut node = Node::open(&options(env));
        let states = node.packets.hooks.attach(uplink("v0")).unwrap();
        assert_eq!(states, [(Direction::Out, LinkState::Created), (Direction::In, LinkState::Created)]);
        assert_eq!(names(&links, "packets"), [format!("packets-in-{ifindex}"), format!("packets-out-{ifindex}")]);
        assert_eq!(node.faults(), [""; 0]);

        drop(node);
        let node = Node::open(&options(env));
        assert_eq!(node.devices(), [ifindex], "attached since before the restart");
        assert_eq!(node.faults(), [""; 0], "and they run the programs of this start");
    });
}

/// Between a link and another one at the same hook, packets would pass untranslated.
#[test]
fn a_start_replaces_programs_and_keeps_links() {
    in_sandbox("devices::attach::a_start_replaces_programs_and_keeps_links", |env| {
        let ifindex = pair("v0", "v1");
        let (links, _) = pins(env);
        let options = with_packets(env, |packets| packets.xdp = Some(XdpMode::Generic));
        let mut node = Node::open(&options);
        node.attach("v0");
        node.packets.hooks.keep_xdp();
        let ids = || {
            ["packets-in", "packets-out", "packets-xdp"].map(|name| {
                let link = Link::open(links.join(format!("{name}-{ifindex}"))).unwrap();
                link.info().unwrap().id
            })
        };
        let before = ids();
        drop(node);
        let node = Node::open(&options);
        assert_eq!(ids(), before);
        assert_eq!(node.faults(), [""; 0]);
    });
}

#[test]
fn a_removed_pin_is_restored_without_interruption() {
    in_sandbox("devices::attach::a_removed_pin_is_restored_without_interruption", |env| {
        let ifindex = pair("v0", "v1");
        let (links, _) = pins(env);
        let mut node = Node::open(&options(env));
        node.attach("v0");
        fs::remove_file(links.join(format!("packets-in-{ifindex}"))).unwrap();
        assert_eq!(node.faults().len(), 1);
        let states = node.packets.hooks.attach(uplink("v0")).unwrap();
        assert_eq!(states, [(Direction::Out, LinkState::Updated), (Direction::In, LinkState::Pinned)]);
        assert_eq!(node.faults(), [""; 0]);
    });
}

/// The index of a device may be used again, by a device that needs no programs.
#[test]
fn links_of_a_device_that_is_gone_are_removed() {
    in_sandbox("devices::attach::links_of_a_device_that_is_gone_are_removed", |env| {
        let ifindex = pair("v0", "v1");
        let (links, _) = pins(env);
        let mut node = Node::open(&options(env));
        node.attach("v0");
        drop(node);
        command("ip", &["link", "del", "v0"]);
        let index = ifindex.to_string();
        command("ip", &["link", "add", "v2", "index", &index, "type", "veth", "peer", "name", "v3"]);
        let mut node = Node::open(&options(env));
        assert_eq!(node.devices(), [0; 0]);
        assert_eq!(names(&links, "packets"), [""; 0]);
        let states = node.packets.hooks.attach(uplink("v2")).unwrap();
        assert_eq!(states[0].1, LinkState::Created);
        command("ip", &["link", "del", "v2"]);
        assert_eq!(node.faults().len(), 2);
        node.packets.hooks.detach(ifindex).unwrap();
        assert_eq!((names(&links, "packets"), node.faults()), (Vec::new(), Vec::new()));
    });
}

#[test]
fn a_new_device_gets_programs_without_capabilities() {
    in_sandbox("devices::attach::a_new_device_gets_programs_without_capabilities", |env| {
        let ifindex = pair("v0", "v1");
        let mut node = Node::open(&options(env));
        std::thread::scope(|scope| {
            let attached = scope.spawn(|| {
                let remaining = drop_thread_privileges(&node.datapath).unwrap();
                assert_eq!(remaining.capabilities, [""; 0]);
                let states = node.packets.hooks.attach(uplink("v0")).unwrap();
                assert_eq!(node.packets.hooks.faults(), []);
                node.packets.hooks.detach(ifindex).unwrap();
                node.packets.hooks.attach(uplink("v0")).unwrap();
                states
            });
            assert_eq!(attached.join().unwrap()[1].1, LinkState::Created);
        });
        assert_eq!(node.devices(), [ifindex]);
    });
}

#[test]
fn the_programs_know_which_devices_have_no_link_layer_header() {
    in_sandbox("devices::attach::the_programs_know_which_devices_have_no_link_layer_header", |env| {
        let ifindex = pair("v0", "v1");
        let bare = HookedDevice { l2_length: 0, ..uplink("v0") };
        let mut node = Node::open(&options(env));
        let known = |node: &Node| -> Vec<Vec<u8>> { node.map("bare_devices").keys().collect() };
        std::thread::scope(|scope| {
            let without_capabilities = scope.spawn(|| {
                drop_thread_privileges(&node.datapath).unwrap();
                node.attach("v1");
                node.packets.hooks.attach(bare).unwrap();
                assert_eq!(known(&node), [ifindex.to_ne_bytes()]);
                node.packets.hooks.detach(ifindex).unwrap();
                assert_eq!(known(&node), [[0; 0]; 0]);
                node.packets.hooks.attach(bare).unwrap();
                node.attach("v0");
                assert_eq!(known(&node), [[0; 0]; 0]);
            });
            without_capabilities.join().unwrap();
        });
        // A start reads it from the device, which has a header.
        node.packets.hooks.attach(bare).unwrap();
        drop(node);
        let node = Node::open(&options(env));
        assert_eq!((known(&node), node.devices().len()), (Vec::new(), 2));
    });
}

#[test]
fn a_device_that_goes_before_it_has_programs_leaves_no_entry() {
    in_sandbox("devices::attach::a_device_that_goes_before_it_has_programs_leaves_no_entry", |env| {
        pair("v0", "v1");
        let bare = HookedDevice { l2_length: 0, ..uplink("v0") };
        let mut node = Node::open(&options(env));
        command("ip", &["link", "del", "v0"]);
        assert!(node.packets.hooks.attach(bare).is_err());
        assert_eq!(node.map("bare_devices").keys().count(), 0);
    });
}

#[test]
fn a_device_can_change_its_side() {
    in_sandbox("devices::attach::a_device_can_change_its_side", |env| {
        let ifindex = pair("v0", "v1");
        let mut node = Node::open(&options(env));
        node.packets.hooks.attach(HookedDevice { side: DeviceSide::Pod, ..uplink("v0") }).unwrap();
        drop(node);
        let mut node = Node::open(&options(env));
        assert_eq!(node.packets.hooks.devices()[0].side, DeviceSide::Pod);
        assert_eq!(node.faults(), [""; 0]);
        node.attach("v0");
        assert_eq!(node.faults(), [""; 0]);
        drop(node);
        let node = Node::open(&options(env));
        let device = node.packets.hooks.devices()[0];
        assert_eq!((device.side, device.ifindex), (DeviceSide::Uplink, ifindex));
    });
}

#[test]
fn without_programs_for_pods_their_devices_get_none() {
    in_sandbox("devices::attach::without_programs_for_pods_their_devices_get_none", |env| {
        pair("v0", "v1");
        let pod = HookedDevice { side: DeviceSide::Pod, ..uplink("v0") };
        let (links, _) = pins(env);
        let mut node = Node::open(&options(env));
        node.packets.hooks.attach(pod).unwrap();
        node.attach("v1");
        drop(node);
        let mut node = Node::open(&with_packets(env, |packets| packets.has_pods = false));
        assert_eq!((node.devices(), node.faults()), (vec![uplink("v1").ifindex], Vec::new()));
        assert_eq!(names(&links, "packets").len(), 2);
        let error = node.packets.hooks.attach(pod).unwrap_err().to_string();
        assert!(error.ends_with("the programs for devices of pods are not loaded"), "{error}");
        node.attach("v0");
        assert_eq!(node.devices().len(), 2);
    });
}

#[test]
fn cleanup_detaches_everything() {
    in_sandbox("devices::attach::cleanup_detaches_everything", |env| {
        pair("v0", "v1");
        let mut node = Node::open(&options(env));
        node.attach("v0");
        node.packets.hooks.attach(HookedDevice { side: DeviceSide::Pod, ..uplink("v1") }).unwrap();
        drop(node);
        let report = nodelb_datapath::cleanup(&env.bpffs.join("nodelb"), &|| (), &CrashPoint::default()).unwrap();
        // The cgroup's ten hooks, and four of devices.
        assert_eq!((report.links, report.left), (14, Vec::new()));
        assert!(!env.bpffs.join("nodelb").exists());
    });
}

#[test]
fn without_packets_nothing_is_left_of_them() {
    in_sandbox("devices::attach::without_packets_nothing_is_left_of_them", |env| {
        pair("v0", "v1");
        let (links, maps) = pins(env);
        let mut node = Node::open(&options(env));
        node.attach("v0");
        assert_eq!(names(&maps, "connections"), ["connections"]);
        drop(node);
        let (mut datapath, _) = KernelDatapath::open(&Options { packets: None, ..options(env) }).unwrap();
        assert!(datapath.take_packets().is_none());
        assert_eq!((names(&links, "packets"), names(&maps, "connections")), (Vec::new(), Vec::new()));
        assert_eq!(datapath.verify_links(), []);
    });
}
