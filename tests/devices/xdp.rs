//! The XDP program at devices.

use std::collections::BTreeMap;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nodelb_datapath::XdpState;
use nodelb_datapath::packets::XdpMode;

use super::*;
use crate::crash_points::crash_points;
use crate::extent;

/// What runs at a device: `xdp`, `xdpgeneric`, or nothing; and the id of the program.
fn runs(device: &str) -> Option<(String, String)> {
    let text = output("ip", &["-details", "link", "show", device]);
    let mode = ["xdpgeneric", "xdp"].into_iter().find(|mode| text.contains(&format!(" {mode} ")))?;
    let id = text.split_once("prog/xdp id ")?.1.split(' ').next()?;
    Some((mode.to_owned(), id.to_owned()))
}

fn open(env: &Sandbox, mode: Option<XdpMode>) -> Node {
    let node = Node::open(&with_packets(env, |packets| packets.xdp = mode));
    assert_eq!(node.packets.faults, [""; 0]);
    node
}

fn at(ifindex: u32, state: XdpState) -> BTreeMap<u32, XdpState> {
    [(ifindex, state)].into()
}

#[test]
fn each_start_makes_devices_run_xdp_as_it_is_configured() {
    in_sandbox("devices::xdp::each_start_makes_devices_run_xdp_as_it_is_configured", |env| {
        let ifindex = pair("v0", "v1");
        let (links, _) = pins(env);
        let mut node = open(env, None);
        node.attach("v0");
        assert_eq!((node.packets.hooks.keep_xdp(), runs("v0")), (BTreeMap::new(), None));
        drop(node);
        let (auto, generic) = (Some(XdpMode::Auto), Some(XdpMode::Generic));
        let (mut last, mut before) = (None, None);
        for mode in [auto, auto, generic, generic, auto, None, generic, None] {
            let mut node = open(env, mode);
            let (state, name) = match mode {
                None => (None, None),
                Some(XdpMode::Auto) => (Some(XdpState::Native), Some("xdp")),
                Some(XdpMode::Generic) => (Some(XdpState::Generic), Some("xdpgeneric")),
            };
            if last.is_none() {
                // Before the devices have been read, the start knows only those with the program.
                assert_eq!(runs("v0"), None);
                node.attach("v0");
                node.packets.hooks.keep_xdp();
            }
            let found = runs("v0");
            assert_eq!(found.as_ref().map(|(name, _)| name.as_str()), name, "from the start on");
            let is_same = found.is_some() && mode == before;
            assert_eq!(found == last, is_same || (found.is_none() && last.is_none()), "the program of this start");
            let pinned = name.map(|_| format!("packets-xdp-{ifindex}"));
            assert_eq!(names(&links, "packets-xdp"), pinned.into_iter().collect::<Vec<_>>());
            assert_eq!(node.packets.hooks.keep_xdp(), state.map(|state| (ifindex, state)).into_iter().collect());
            assert_eq!(runs("v0"), found, "nothing to do");
            assert_eq!(node.faults(), [""; 0]);
            (last, before) = (found, mode);
        }
    });
}

/// The process is killed after each step of a start that attaches, replaces, moves or detaches the program. The next start
/// makes the device run it as it is configured, at once.
#[test]
fn a_crash_at_any_step_of_a_switch_leaves_nothing_odd() {
    const TEST: &str = "devices::xdp::a_crash_at_any_step_of_a_switch_leaves_nothing_odd";
    in_sandbox(TEST, |env| {
        let modes = [Some(XdpMode::Auto), Some(XdpMode::Auto), Some(XdpMode::Generic), Some(XdpMode::Auto), None];
        let shown = [Some("xdp"), Some("xdp"), Some("xdpgeneric"), Some("xdp"), None];
        if let Some(part) = part() {
            let (to, after) = part.split_once(' ').expect("two numbers");
            let options = with_packets(env, |packets| packets.xdp = modes[to.parse::<usize>().expect("a number")]);
            let crash_after = Some(after.parse().expect("a number"));
            let mut node = Node::open(&Options { crash_after, ..options });
            node.attach("v0");
            node.packets.hooks.keep_xdp();
            return;
        }
        let ifindex = pair("v0", "v1");
        let (links, _) = pins(env);
        let mut node = open(env, None);
        node.attach("v0");
        drop(node);
        let start = |to: usize| {
            let mut node = open(env, modes[to]);
            node.attach("v0");
            node.packets.hooks.keep_xdp();
            assert_eq!(runs("v0").map(|(mode, _)| mode).as_deref(), shown[to]);
            let pinned = shown[to].map(|_| format!("packets-xdp-{ifindex}"));
            assert_eq!(names(&links, "packets-xdp"), pinned.into_iter().collect::<Vec<_>>());
            let state = modes[to].map(|mode| match mode {
                XdpMode::Auto => XdpState::Native,
                XdpMode::Generic => XdpState::Generic,
            });
            assert_eq!(node.packets.hooks.keep_xdp(), state.map(|state| (ifindex, state)).into_iter().collect());
        };
        let mut left = BTreeMap::new();
        // Each state is where the next switch begins.
        let mut rounds = crash_points(100).map(|after| {
            let ended = [0, 1, 2, 3, 4].map(|to| {
                let mut crash = Command::new(std::env::current_exe().expect("the path of the test binary"));
                crash.args(["--exact", TEST, "--nocapture", "--test-threads=1"]);
                let status = crash.env(PART, format!("{to} {after}")).output().expect("the same test again").status;
                let found = (names(&links, "packets-xdp").len(), runs("v0").is_some());
                *left.entry(found).or_insert(0) += 1;
                start(to);
                status.success()
            });
            ended == [true; 5]
        });
        assert!(rounds.any(|is_last| is_last), "the starts have no end");
        // A link that is pinned under its first name alone.
        assert!(!extent::is_all() || left.contains_key(&(1, true)) && left.contains_key(&(0, false)), "{left:?}");
    });
}

#[test]
fn a_device_that_becomes_one_of_a_pod_loses_the_program() {
    in_sandbox("devices::xdp::a_device_that_becomes_one_of_a_pod_loses_the_program", |env| {
        let ifindex = pair("v0", "v1");
        let mut node = open(env, Some(XdpMode::Auto));
        node.attach("v0");
        assert_eq!(node.packets.hooks.keep_xdp(), at(ifindex, XdpState::Native));
        node.packets.hooks.attach(HookedDevice { side: DeviceSide::Pod, ..uplink("v0") }).unwrap();
        assert_eq!((node.packets.hooks.keep_xdp(), runs("v0")), (BTreeMap::new(), None));
    });
}

#[test]
fn a_lost_xdp_link_is_attached_again_and_removed_with_the_device() {
    in_sandbox("devices::xdp::a_lost_xdp_link_is_attached_again_and_removed_with_the_device", |env| {
        let ifindex = pair("v0", "v1");
        let (links, _) = pins(env);
        let pin = links.join(format!("packets-xdp-{ifindex}"));
        for (mode, state) in [(XdpMode::Auto, XdpState::Native), (XdpMode::Generic, XdpState::Generic)] {
            let mut node = open(env, Some(mode));
            node.attach("v0");
            assert_eq!(node.packets.hooks.keep_xdp(), at(ifindex, state.clone()));
            command("bpftool", &["link", "detach", "pinned", pin.to_str().unwrap()]);
            assert_eq!(runs("v0"), None);
            assert_eq!(node.packets.hooks.keep_xdp(), at(ifindex, state.clone()));
            fs::remove_file(&pin).unwrap();
            assert_eq!(node.packets.hooks.keep_xdp(), at(ifindex, state.clone()));
            assert!(pin.exists() && runs("v0").is_some());
            command("ip", &["link", "set", "v0", "down"]);
            command("ip", &["link", "set", "v0", "up"]);
            assert_eq!(node.packets.hooks.keep_xdp(), at(ifindex, state));
            node.packets.hooks.detach(ifindex).unwrap();
            assert_eq!((names(&links, "packets"), runs("v0")), (Vec::new(), None));
        }
        let mut node = open(env, Some(XdpMode::Auto));
        node.attach("v0");
        node.packets.hooks.keep_xdp();
        drop(node);
        command("ip", &["link", "del", "v0"]);
        drop(open(env, Some(XdpMode::Auto)));
        assert_eq!(names(&links, "packets"), [""; 0]);
    });
}

#[test]
fn an_xdp_program_of_others_is_left_alone() {
    in_sandbox("devices::xdp::an_xdp_program_of_others_is_left_alone", |env| {
        let ifindex = pair("v0", "v1");
        let object = std::env::temp_dir().join("early.o");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/early.bpf.c");
        let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
        let [object, source] = [&object, &source].map(|path| path.to_str().unwrap());
        command("clang", &["-target", "bpf", "-g", "-O2", "-Wall", "-Werror", &headers, "-c", "-o", object, source]);
        let pin = env.bpffs.join("early");
        command("bpftool", &["prog", "load", object, pin.to_str().unwrap(), "type", "xdp"]);
        for (mode, state) in [(XdpMode::Auto, XdpState::Native), (XdpMode::Generic, XdpState::Generic)] {
            for theirs in ["xdpdrv", "xdpgeneric"] {
                command("ip", &["link", "set", "dev", "v0", theirs, "pinned", pin.to_str().unwrap()]);
                let before = runs("v0").unwrap();
                let mut node = open(env, Some(mode));
                node.attach("v0");
                let program = before.1.parse().unwrap();
                assert_eq!(node.packets.hooks.keep_xdp(), at(ifindex, XdpState::Foreign { program }));
                assert_eq!(runs("v0").unwrap(), before);
                command("ip", &["link", "set", "dev", "v0", theirs, "off"]);
                assert_eq!(node.packets.hooks.keep_xdp(), at(ifindex, state.clone()));
                node.packets.hooks.detach(ifindex).unwrap();
            }
        }
    });
}

/// A crash has left a link whose pin has its first name.
#[test]
fn a_link_that_a_crash_has_left_is_not_one_of_others() {
    in_sandbox("devices::xdp::a_link_that_a_crash_has_left_is_not_one_of_others", |env| {
        let ifindex = pair("v0", "v1");
        let (links, _) = pins(env);
        for mode in [None, Some(XdpMode::Auto), Some(XdpMode::Generic)] {
            let mut node = open(env, Some(XdpMode::Auto));
            node.attach("v0");
            node.packets.hooks.keep_xdp();
            drop(node);
            let before = runs("v0").unwrap();
            let pin = links.join(format!("packets-xdp-{ifindex}"));
            fs::rename(&pin, pin.with_file_name(format!("packets-xdp-{ifindex}-new"))).unwrap();
            drop(open(env, mode));
            let after = runs("v0");
            assert_eq!(after.is_some(), mode.is_some());
            // It has taken over the program if its flags are the same.
            assert_eq!(after == Some(before), mode == Some(XdpMode::Auto), "the program of the last start");
            let pinned = mode.map(|_| format!("packets-xdp-{ifindex}"));
            assert_eq!(names(&links, "packets-xdp"), pinned.into_iter().collect::<Vec<_>>());
        }
    });
}

/// A driver may take the tag of a packet off, and show the packet without it; and a bond runs the program at its ports.
/// Each start attached it there until the devices had been read, which interrupts the traffic of network cards.
#[test]
fn no_xdp_program_is_at_a_device_with_vlans_or_at_a_bond_also_after_a_start() {
    const TEST: &str = "devices::xdp::no_xdp_program_is_at_a_device_with_vlans_or_at_a_bond_also_after_a_start";
    in_sandbox(TEST, |env| {
        let ifindex = pair("v0", "v1");
        for (fit, state) in [(XdpFit::Vlans, XdpState::Vlans), (XdpFit::Ports, XdpState::Ports)] {
            let mut node = open(env, Some(XdpMode::Auto));
            for (xdp, state) in [(XdpFit::Fits, XdpState::Native), (fit, state)] {
                node.packets.hooks.attach(HookedDevice { xdp, ..uplink("v0") }).unwrap();
                assert_eq!(node.packets.hooks.keep_xdp(), at(ifindex, state));
                assert_eq!(runs("v0").is_none(), xdp != XdpFit::Fits);
            }
            drop(node);
            let mut node = open(env, Some(XdpMode::Auto));
            assert_eq!((runs("v0"), node.packets.hooks.keep_xdp()), (None, BTreeMap::new()));
        }
    });
}

/// What cannot be read for lack of descriptors is not attached again, which may interrupt the traffic; and where the program
/// could not be attached, there is a pause before the next attempt.
#[test]
fn a_lack_of_descriptors_detaches_nothing_and_is_followed_by_a_pause() {
    in_sandbox("devices::xdp::a_lack_of_descriptors_detaches_nothing_and_is_followed_by_a_pause", |env| {
        let ifindex = pair("v0", "v1");
        let mut node = open(env, Some(XdpMode::Auto));
        node.attach("v0");
        let (usual, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let without_descriptors = |node: &mut Node| {
            setrlimit(Resource::RLIMIT_NOFILE, 0, most).unwrap();
            let states = node.packets.hooks.keep_xdp();
            setrlimit(Resource::RLIMIT_NOFILE, usual, most).unwrap();
            states
        };
        let failed = without_descriptors(&mut node);
        assert!(matches!(failed[&ifindex], XdpState::Failed(_)), "{failed:?}");
        assert_eq!((node.packets.hooks.keep_xdp(), runs("v0")), (failed, None));
        std::thread::sleep(std::time::Duration::from_secs(10));
        assert_eq!(node.packets.hooks.keep_xdp(), at(ifindex, XdpState::Native));
        let before = runs("v0");
        assert_eq!(without_descriptors(&mut node), at(ifindex, XdpState::Native));
        assert_eq!((node.packets.hooks.keep_xdp(), runs("v0")), (at(ifindex, XdpState::Native), before));
    });
}

/// A driver without XDP, such as that of bridges.
#[test]
fn a_driver_without_xdp_is_served_by_generic_xdp_alone() {
    in_sandbox("devices::xdp::a_driver_without_xdp_is_served_by_generic_xdp_alone", |env| {
        command("ip", &["link", "add", "d0", "type", "bridge"]);
        command("ip", &["link", "set", "d0", "up"]);
        let ifindex = index("d0");
        for (mode, state) in [(XdpMode::Auto, XdpState::NoDriver), (XdpMode::Generic, XdpState::Generic)] {
            let mut node = open(env, Some(mode));
            node.attach("d0");
            assert_eq!(node.packets.hooks.keep_xdp(), at(ifindex, state));
        }
    });
}

/// The programs of the device at tc and the XDP program would use different maps.
#[test]
fn a_device_whose_programs_cannot_be_replaced_gets_no_other_xdp_program() {
    in_sandbox("devices::xdp::a_device_whose_programs_cannot_be_replaced_gets_no_other_xdp_program", |env| {
        let ifindex = pair("v0", "v1");
        let (links, _) = pins(env);
        for earlier in [None, Some(XdpMode::Auto)] {
            let mut node = open(env, earlier);
            node.attach("v0");
            node.packets.hooks.keep_xdp();
            let before = runs("v0");
            assert_eq!(before.is_some(), earlier.is_some());
            drop(node);
            let [pin, obstacle] = ["", "-new"].map(|end| links.join(format!("packets-in-{ifindex}{end}")));
            fs::remove_file(pin).unwrap();
            fs::create_dir(&obstacle).unwrap();
            // A start removes a directory, but no mount point.
            command("mount", &["-t", "tmpfs", "tmpfs", obstacle.to_str().unwrap()]);
            let other = |packets: &mut PacketOptions| {
                packets.xdp = Some(XdpMode::Auto);
                packets.source_ports = 10_001..=29_999;
            };
            let mut node = Node::open(&with_packets(env, other));
            assert_eq!(node.packets.faults.len(), 1, "{:?}", node.packets.faults);
            assert_eq!((node.packets.hooks.keep_xdp(), runs("v0")), (BTreeMap::new(), before.clone()));
            command("umount", &[obstacle.to_str().unwrap()]);
            fs::remove_dir(&obstacle).unwrap();
            node.attach("v0");
            assert_eq!(node.packets.hooks.keep_xdp(), at(ifindex, XdpState::Native));
            assert!(runs("v0").is_some_and(|now| Some(now) != before));
            drop(node);
            assert_eq!(open(env, None).faults(), [""; 0]);
        }
    });
}
