//! Programs that a start takes over from an earlier one, and what is none of these.

use std::os::unix::fs::PermissionsExt as _;

use nodelb_datapath::packets::XdpMode;
use nodelb_datapath::{CrashPoint, ProgramCount, StartReport, cleanup};

use super::*;
use crate::crash_points::crash_points;
use crate::links::{Attached, attached};

/// The programs of each object, with packets and XDP.
const OBJECTS: [(&str, usize); 7] =
    [("chain", 1), ("flows", 4), ("order", 1), ("packet", 3), ("sock", 10), ("sweep", 2), ("xdp", 1)];

fn with_xdp(env: &Sandbox) -> Options {
    with_packets(env, |packets| packets.xdp = Some(XdpMode::Auto))
}

/// A start, and the links that it leaves pinned, with their programs.
fn start(options: &Options) -> (StartReport, Vec<Attached>) {
    let (mut datapath, report) = KernelDatapath::open(options).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(datapath.verify_links(), []);
    let mut packets = datapath.take_packets().expect("packets are on");
    if packets.hooks.devices().is_empty() {
        packets.hooks.attach(uplink("v0")).unwrap_or_else(|error| panic!("{error}"));
    }
    packets.hooks.keep_xdp();
    assert_eq!((packets.hooks.faults(), &packets.faults), (vec![], &vec![]));
    (report, attached(&options.pin_directory.join(format!("v{}/links", options.layout))))
}

fn all() -> usize {
    OBJECTS.iter().map(|(_, programs)| programs).sum()
}

/// What a start reports that has loaded so many programs.
fn assert_loaded(report: &StartReport, loaded: usize, faults: &[&str]) {
    let ProgramCount { loaded: found, taken_over, verified } = report.programs;
    assert_eq!((found, taken_over), (loaded, all() - loaded), "{:?}", report.program_faults);
    assert_eq!(verified > 0, loaded > 0);
    assert_eq!(report.program_faults.len(), faults.len(), "{:?}", report.program_faults);
    for (fault, part) in report.program_faults.iter().zip(faults) {
        assert!(fault.contains(part), "{fault}, and not {part}");
    }
}

/// The directory of programs.
fn programs(env: &Sandbox) -> PathBuf {
    pins(env).1.join("programs")
}

/// The only directory, or the only pin, with this prefix.
fn only(directory: &Path, prefix: &str) -> PathBuf {
    let found = names(directory, prefix);
    assert_eq!(found.len(), 1, "{prefix} in {}: {found:?}", directory.display());
    directory.join(&found[0])
}

/// Pins a pinned program or map a second time.
fn pin_again(kind: &str, from: &Path, to: &Path) {
    let [from, to] = [from, to].map(|path| path.to_str().expect("a path"));
    command("bpftool", &[kind, "pin", "pinned", from, to]);
}

#[test]
fn a_start_takes_over_what_is_as_it_was() {
    in_sandbox("devices::kept::a_start_takes_over_what_is_as_it_was", |env| {
        pair("v0", "v1");
        let options = with_xdp(env);
        let (report, first) = start(&options);
        assert_loaded(&report, all(), &[]);
        for _ in 0..3 {
            let (report, ids) = start(&options);
            assert_loaded(&report, 0, &[]);
            assert_eq!(ids, first, "the same programs at every hook");
        }
        let found = names(&programs(env), "");
        let objects: Vec<&str> = found.iter().filter_map(|name| Some(name.rsplit_once('-')?.0)).collect();
        assert_eq!(objects, OBJECTS.map(|(name, _)| name));
    });
}

#[test]
fn other_constants_maps_and_objects_are_loaded_and_replace_what_was_there() {
    in_sandbox("devices::kept::other_constants_maps_and_objects_are_loaded_and_replace_what_was_there", |env| {
        pair("v0", "v1");
        let usual = with_xdp(env);
        start(&usual);
        let constants = with_packets(env, |packets| {
            packets.xdp = Some(XdpMode::Auto);
            packets.source_ports = 10_001..=29_999;
        });
        let maps = with_packets(env, |packets| {
            packets.xdp = Some(XdpMode::Auto);
            packets.max_connections = 256;
        });
        let flags = with_packets(env, |packets| packets.xdp = Some(XdpMode::Generic));
        let object = Options { layout: nodelb_datapath::LAYOUT + 1, ..usual.clone() };
        for (what, other, loaded) in
            [("constants", &constants, 6), ("maps", &maps, 6), ("flags", &flags, 6), ("a version", &object, all())]
        {
            let (report, _) = start(other);
            assert_eq!(report.programs.loaded, loaded, "{what}: {report:?}");
            assert_eq!(report.program_faults, [""; 0]);
            let version = env.bpffs.join(format!("nodelb/v{}/programs", other.layout));
            let found = names(&version, "");
            assert_eq!(found.len(), OBJECTS.len(), "{what}: nothing outdated is left: {found:?}");
            assert_eq!(start(other).0.programs.loaded, 0, "{what}");
        }
        cleanup(&usual.pin_directory, &|| (), &CrashPoint::default()).expect("a cleanup");
        assert!(!usual.pin_directory.exists());
    });
}

/// What a start reports, and what makes it do so in a directory of programs.
type Spoil<'a> = (&'a str, &'a dyn Fn(&Path));

/// A program of other software, a program with other maps, and what is damaged: each is loaded again, and replaced.
#[test]
fn what_is_not_the_program_of_an_earlier_start_is_not_taken_over() {
    in_sandbox("devices::kept::what_is_not_the_program_of_an_earlier_start_is_not_taken_over", |env| {
        pair("v0", "v1");
        let options = with_xdp(env);
        start(&options);
        let twin = Options { pin_directory: env.bpffs.join("twin"), ..options.clone() };
        let (mut other, _) = KernelDatapath::open(&twin).unwrap_or_else(|error| panic!("{error}"));
        drop(other.take_packets());
        drop(other);
        let of_twin = only(&env.bpffs.join("twin/v1/programs"), "packet-");
        let ours = programs(env);
        let spoil: [Spoil<'_>; 8] = [
            ("another program", &|packet| {
                let pin = only(packet, "packet_in-");
                fs::remove_file(&pin).unwrap();
                pin_again("prog", &only(packet, "packet_out-"), &pin);
            }),
            ("another program", &|packet| {
                // The same instructions and constants, with other maps.
                let pin = only(packet, "packet_in-");
                fs::remove_file(&pin).unwrap();
                pin_again("prog", &only(&of_twin, "packet_in-"), &pin);
            }),
            ("another map", &|packet| {
                let pin = only(packet, "packet_settings-");
                fs::remove_file(&pin).unwrap();
                pin_again("map", &only(&of_twin, "packet_settings-"), &pin);
            }),
            ("not a program", &|packet| {
                let pin = only(packet, "packet_in-");
                fs::remove_file(&pin).unwrap();
                pin_again("map", &only(packet, "packet_settings-"), &pin);
            }),
            ("its pin is gone", &|packet| fs::remove_file(only(packet, "pod_in-")).unwrap()),
            ("not one of its pins", &|packet| {
                pin_again("prog", &only(packet, "pod_in-"), &packet.join("pod_out-0123456789abcdef"));
            }),
            ("others can change it", &|packet| nix::unistd::chown(packet, Some(1.into()), None).unwrap()),
            ("others can change it", &|packet| fs::set_permissions(packet, fs::Permissions::from_mode(0o722)).unwrap()),
        ];
        for (number, (fault, spoil)) in spoil.iter().enumerate() {
            let before = start(&options).1;
            spoil(&only(&ours, "packet-"));
            let (report, ids) = start(&options);
            // Also those that use the maps of these.
            assert!(report.programs.loaded >= 3, "{number}: {report:?}");
            assert!(report.program_faults[0].contains(fault), "{number}: {:?}", report.program_faults);
            assert_ne!(ids, before, "{number}: devices run the new programs");
            assert_eq!(start(&options).0.program_faults, [""; 0], "{number}");
        }
    });
}

/// All pins of an earlier configuration, under the name of the present one.
#[test]
fn programs_under_another_hash_are_not_taken_over() {
    in_sandbox("devices::kept::programs_under_another_hash_are_not_taken_over", |env| {
        pair("v0", "v1");
        let usual = with_xdp(env);
        let other = with_packets(env, |packets| {
            packets.xdp = Some(XdpMode::Auto);
            packets.source_ports = 10_001..=29_999;
        });
        start(&other);
        let (aside, ours) = (env.bpffs.join("aside"), programs(env));
        fs::rename(only(&ours, "packet-"), &aside).unwrap();
        start(&usual);
        let place = only(&ours, "packet-");
        fs::remove_dir_all(&place).unwrap();
        fs::rename(&aside, &place).unwrap();
        let (report, _) = start(&usual);
        assert!(report.program_faults[0].contains("another program"), "{:?}", report.program_faults);
    });
}

#[test]
fn a_directory_that_others_can_change_is_replaced() {
    in_sandbox("devices::kept::a_directory_that_others_can_change_is_replaced", |env| {
        pair("v0", "v1");
        let (options, directory) = (with_xdp(env), programs(env));
        let spoil: [&dyn Fn(); 3] = [
            &|| nix::unistd::chown(&directory, Some(1.into()), None).unwrap(),
            &|| fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap(),
            &|| {
                fs::remove_dir_all(&directory).unwrap();
                std::os::unix::fs::symlink("/tmp", &directory).unwrap();
            },
        ];
        for spoil in spoil {
            start(&options);
            spoil();
            assert_loaded(&start(&options).0, all(), &["others can change it"]);
            assert_eq!(fs::symlink_metadata(&directory).unwrap().permissions().mode() & 0o7777, 0o700);
            assert_loaded(&start(&options).0, 0, &[]);
        }
    });
}

/// Such a link is attached. A tcx hook takes a program only once, so that every later start failed at the device.
#[test]
fn a_link_that_a_crash_has_left_runs_the_program_that_is_taken_over() {
    in_sandbox("devices::kept::a_link_that_a_crash_has_left_runs_the_program_that_is_taken_over", |env| {
        let ifindex = pair("v0", "v1");
        let (options, (links, _)) = (with_xdp(env), pins(env));
        let first = start(&options).1;
        for direction in ["in", "out"] {
            let name = format!("packets-{direction}-{ifindex}");
            fs::rename(links.join(&name), links.join(format!("{name}-new"))).unwrap();
            let (report, found) = start(&options);
            assert_loaded(&report, 0, &[]);
            assert_eq!(names(&links, &name), [name]);
            assert_eq!(found, first, "the same programs at every hook");
        }
    });
}

/// The process is killed after steps of a start that takes over, that has other constants, and of one with another
/// version of nodelb. The next start makes every hook run what is configured, and leaves nothing outdated.
#[test]
fn a_crash_at_any_step_leaves_nothing_odd() {
    const TEST: &str = "devices::kept::a_crash_at_any_step_leaves_nothing_odd";
    in_sandbox(TEST, |env| {
        // Without direct return, a start loads a third less.
        let usual = with_packets(env, |packets| (packets.xdp, packets.direct_return) = (Some(XdpMode::Auto), false));
        let mut constants = usual.clone();
        constants.packets.as_mut().expect("packets are on").source_ports = 10_001..=29_999;
        let upgraded = Options { layout: nodelb_datapath::LAYOUT + 1, ..usual.clone() };
        let kinds = [("again", &usual), ("constants", &constants), ("version", &upgraded)];
        if let Some(part) = part() {
            let (kind, after) = part.split_once(' ').expect("a kind and a number");
            let options = kinds.iter().find(|(name, _)| *name == kind).expect("a kind").1.clone();
            start(&Options { crash_after: Some(after.parse().expect("a number")), ..options });
            return;
        }
        pair("v0", "v1");
        for (kind, options) in kinds {
            let steps = crash_points(300).find(|after| {
                start(&usual);
                let mut crash = Command::new(std::env::current_exe().expect("the path of the test binary"));
                crash.args(["--exact", TEST, "--nocapture", "--test-threads=1"]);
                let status = crash.env(PART, format!("{kind} {after}")).status().expect("the same test again");
                let (report, _) = start(options);
                assert_eq!(report.program_faults, [""; 0], "{kind} {after}");
                let version = env.bpffs.join(format!("nodelb/v{}/programs", options.layout));
                let found = names(&version, "");
                assert_eq!(found.len(), OBJECTS.len(), "{kind} {after}: {found:?}");
                assert_loaded(&start(options).0, 0, &[]);
                if kind == "version" {
                    cleanup(&usual.pin_directory, &|| (), &CrashPoint::default()).expect("a cleanup");
                }
                status.success()
            });
            assert!(steps.is_some_and(|steps| steps > 10), "{kind}: {steps:?}");
        }
    });
}
