//! Pinned objects outlive the process, grow without affecting connections, and disappear on
//! cleanup.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nodelb_core::datapath::{Datapath as _, Limits, MapError};
use nodelb_core::state::entries::{MapOp, MapState, ServiceEntry, ServiceId};
use nodelb_datapath::{
    CrashPoint, KernelDatapath, LinkState, OpenError, Options, Origin, cleanup, drop_thread_privileges,
};
use nodelb_prober::SetAtEnd;

use super::content::{content, fill};
use super::{Kernel, Prober, SocketMode, backends, entry, exchange, in_sandbox, l4, list, options, point, put};
use crate::sandbox;

const SERVICE: &str = "198.51.100.1:80";

fn grown(options: &Options) -> Options {
    let Limits { frontends, services, slots, affinity, outside, source_ranges } = options.limits;
    let limits = Limits {
        frontends: frontends * 2,
        services: services * 2,
        slots: slots * 2,
        affinity,
        outside: outside * 2,
        source_ranges: source_ranges * 2,
    };
    Options { limits, ..options.clone() }
}

#[test]
fn a_restart_finds_everything_as_it_was() {
    in_sandbox("sockets::lifecycle::a_restart_finds_everything_as_it_was", |env| {
        let options = options(env);
        backends(&["192.0.2.10:80/TCP"]);
        let mut kernel = Kernel::open(&options);
        assert_eq!(kernel.report.origin, Origin::Created);
        fill(&mut kernel, &content());
        assert_eq!(kernel.datapath.dump().unwrap(), content());
        drop(kernel);

        exchange(SocketMode::Tcp, SERVICE.parse().unwrap()).expect("traffic goes on without the daemon");
        let mut kernel = Kernel::open(&options);
        assert_eq!(kernel.report.origin, Origin::Reused);
        assert!(kernel.report.links.iter().all(|(_, state)| *state == LinkState::Updated), "{:?}", kernel.report.links);
        assert_eq!(kernel.datapath.dump().unwrap(), content());
        assert_eq!(kernel.datapath.reader().dump().unwrap(), content());
        // Three slots are followed by a ring of 86.
        assert_eq!((content().slot_count(), kernel.datapath.reader().clients().unwrap()), (5 + 86, 0));

        let mut empty = vec![MapOp::DeleteNodeAddr(l4("192.0.2.1:1/TCP").addr)];
        empty.extend(content().frontends.keys().map(|addr| MapOp::DeleteFrontend(*addr)));
        empty.extend(content().services.keys().copied().map(MapOp::DeleteService));
        empty.push(MapOp::DeleteNodeAddr(l4("[2001:db8:b::1]:1/TCP").addr));
        empty.extend(content().outside.keys().map(|addr| MapOp::DeleteOutside(*addr)));
        empty.extend(content().source_ranges.iter().map(|(id, range)| MapOp::DeleteSourceRange(*id, *range)));
        empty.extend(content().uplinks.keys().map(|index| MapOp::DeleteUplink(*index)));
        kernel.apply(&empty);
        kernel.apply(&empty);
        assert_eq!(kernel.datapath.dump().unwrap(), MapState::default());
    });
}

#[test]
fn limits_grow_without_a_connection_noticing() {
    in_sandbox("sockets::lifecycle::limits_grow_without_a_connection_noticing", |env| {
        let small = options(env);
        backends(&["192.0.2.10:80/TCP"]);
        let mut kernel = Kernel::open(&small);
        fill(&mut kernel, &content());
        let prober = Prober::start(SocketMode::Tcp, SERVICE);
        for round in 0..6 {
            drop(kernel);
            let from = kernel_limits(round, &small);
            kernel = Kernel::open(&if round % 2 == 0 { grown(&small) } else { small.clone() });
            assert_eq!(kernel.report.origin, Origin::Rebuilt { from });
            assert_eq!(kernel.datapath.dump().unwrap(), content());
            kernel.apply(&[put(9, entry(&["192.0.2.12:80/TCP"])), MapOp::DeleteService(ServiceId(9))]);
        }
        assert_eq!(generations(env), ["g7"]);
        drop(kernel);

        let tiny = Options { limits: Limits { slots: 4, ..small.limits }, ..small.clone() };
        for _ in 0..3 {
            let refusal = KernelDatapath::open(&tiny).unwrap_err();
            assert!(matches!(refusal, OpenError::TooSmall { map: "slots", limit: 4 }), "{refusal}");
            assert!(refusal.to_string().contains("raise datapath.max-slots"), "{refusal}");
            // Each of these has loaded programs for maps of its own.
            assert_eq!(programs_for_sockets(env), 1);
        }
        assert_eq!(generations(env), ["g7"]);
        let kernel = Kernel::open(&small);
        assert_eq!((kernel.report.origin, kernel.datapath.dump().unwrap()), (Origin::Reused, content()));
        prober.finish();
    });
}

fn kernel_limits(round: u32, small: &Options) -> Limits {
    if round.is_multiple_of(2) { small.limits } else { grown(small).limits }
}

/// The number of directories with pinned programs for sockets.
fn programs_for_sockets(env: &sandbox::Sandbox) -> usize {
    names(&env.bpffs.join("nodelb/v1/programs"), "sock-").len()
}

/// The names in a directory with this prefix, sorted.
fn names(directory: &Path, prefix: &str) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

fn generations(env: &sandbox::Sandbox) -> Vec<String> {
    names(&env.bpffs.join("nodelb/v1"), "g")
}

#[test]
fn what_fits_a_full_map_keeps_working() {
    in_sandbox("sockets::lifecycle::what_fits_a_full_map_keeps_working", |env| {
        let limits = Limits { frontends: 4, services: 6, slots: 5, affinity: 16, outside: 0, source_ranges: 0 };
        let tiny = Options { limits, ..options(env) };
        backends(&["192.0.2.10:80/TCP", "192.0.2.11:80/TCP"]);
        let mut kernel = Kernel::open(&tiny);
        kernel.apply(&[put(1, entry(&["192.0.2.10:80/TCP"]))]);
        let frontends: Vec<MapOp> = (1..=20).map(|i| point(&format!("198.51.100.{i}:80/TCP"), 1)).collect();
        let results = kernel.try_apply(&frontends);
        assert!(results[..4].iter().all(Result::is_ok), "{results:?}");
        let full = |map, limit| Err(MapError::Full { map, limit });
        assert!(results[4..].iter().all(|result| *result == full("frontends", 4)), "{results:?}");
        kernel.apply(&frontends[..4]);
        assert_eq!(kernel.try_apply(&[put(6, entry(&[]))]), [full("services", 6)]);

        let (three, two) = (["192.0.2.10:80/TCP", "192.0.2.11:80/TCP", "192.0.2.12:80/TCP"], ["192.0.2.11:80/TCP"; 2]);
        kernel.apply(&[put(2, entry(&three))]);
        let before = kernel.datapath.dump().unwrap();
        let both = ServiceEntry { local: list(&["192.0.2.11:80/TCP"]), ..entry(&["192.0.2.11:80/TCP"]) };
        assert_eq!(kernel.try_apply(&[put(1, entry(&two))]), [full("slots", 5)], "2 slots where 1 is free");
        assert_eq!(kernel.try_apply(&[put(1, both.clone())]), [full("slots", 5)], "its second list has no room");
        assert_eq!(kernel.datapath.dump().unwrap(), before, "a refused operation changes nothing");
        let reached = || exchange(SocketMode::Tcp, SERVICE.parse().unwrap()).unwrap().backend;
        assert_eq!(reached(), l4("192.0.2.10:80/TCP"));
        kernel.apply(&[put(1, entry(&["192.0.2.11:80/TCP"]))]);
        assert_eq!(reached(), l4("192.0.2.11:80/TCP"), "what was tried in vain left no slots behind");

        drop(kernel);
        let mut kernel = Kernel::open(&options(env));
        kernel.apply(&frontends);
        kernel.apply(&[put(6, entry(&[])), put(1, both)]);
        assert_eq!(
            exchange(SocketMode::Tcp, "198.51.100.20:80".parse().unwrap()).unwrap().backend,
            l4("192.0.2.11:80/TCP")
        );
    });
}

#[test]
fn links_follow_the_cgroup() {
    in_sandbox("sockets::lifecycle::links_follow_the_cgroup", |env| {
        let (one, other) = (env.cgroup.join("one"), env.cgroup.join("other"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&other).unwrap();
        let at_one = Options { cgroup: Some(one.clone()), ..options(env) };
        backends(&["192.0.2.10:80/TCP"]);
        let mut kernel = Kernel::open(&at_one);
        kernel.serve(1, "198.51.100.1:80/TCP", &["192.0.2.10:80/TCP"]);
        let join = |cgroup: &Path| fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
        let is_served = || exchange(SocketMode::Tcp, SERVICE.parse().unwrap()).is_ok();
        assert!(!is_served(), "not in the cgroup");
        join(&one);
        assert!(is_served());
        join(&env.cgroup);

        fs::remove_dir(&one).unwrap();
        let faults = kernel.datapath.verify_links();
        assert_eq!(faults.len(), 10, "{faults:?}");
        fs::create_dir(&one).unwrap();
        // The kernel detaches links of a removed cgroup a moment later.
        let reason = &kernel.datapath.verify_links()[0].reason;
        assert!(reason.starts_with("its link ") && reason.ends_with(" removed"), "{reason}");
        assert_eq!(kernel.datapath.ensure_attached().unwrap().len(), 10);
        assert_eq!(kernel.datapath.verify_links(), []);
        join(&one);
        assert!(is_served());
        drop(kernel);

        let kernel = Kernel::open(&Options { cgroup: Some(other.clone()), ..options(env) });
        assert!(
            kernel.report.links.iter().all(|(_, state)| *state == LinkState::Replaced),
            "{:?}",
            kernel.report.links
        );
        join(&other);
        assert!(is_served());
        let links = fs::read_dir(env.bpffs.join("nodelb/v1/links")).unwrap();
        assert_eq!(links.count(), 10, "nothing unfinished is left");
        join(&env.cgroup);
    });
}

#[test]
fn corrupt_entries_are_left_out_and_named() {
    in_sandbox("sockets::lifecycle::corrupt_entries_are_left_out_and_named", |env| {
        let mut kernel = Kernel::open(&options(env));
        for id in 1..=4 {
            kernel.serve(id, &format!("198.51.100.{id}:80/TCP"), &[&format!("192.0.2.{id}:80/TCP")]);
        }
        let mut expected = kernel.datapath.dump().unwrap();
        drop(kernel);
        // Service 2 gets the slots of 3, and 4 gets slots that do not exist.
        for (id, first) in [(2u8, 2u8), (4, 255)] {
            let map = env.bpffs.join("nodelb/v1/g1/services");
            let view = [first, if first == 255 { 255 } else { 0 }, 0, 0, 1, 0, 9, 0];
            let value: Vec<String> = view.iter().map(u8::to_string).chain(vec!["0".into(); 8]).collect();
            let flags = "3 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0";
            let status = Command::new("sh")
                .args([
                    "-c",
                    &format!(
                        "bpftool map update pinned {} key {id} 0 0 0 value {} {flags}",
                        map.display(),
                        value.join(" ")
                    ),
                ])
                .status()
                .expect("bpftool (package bpftool)");
            assert!(status.success());
        }
        let kernel = Kernel::open(&options(env));
        assert_eq!(kernel.report.origin, Origin::Cleaned, "{:?}", kernel.report);
        let said = kernel.report.corrupt.join("\n");
        for (id, text) in [(2, "uses the same slots"), (3, "uses the same slots"), (4, "exceeds the slots map")] {
            assert!(
                said.lines().any(|line| line.starts_with(&format!("service {id}:")) && line.contains(text)),
                "{said}"
            );
            expected.services.remove(&ServiceId(id));
            expected.frontends.remove(&l4(&format!("198.51.100.{id}:80/TCP")));
        }
        assert_eq!(kernel.datapath.dump().unwrap(), expected);
    });
}

#[test]
fn cleanup_removes_everything_and_nothing_else() {
    in_sandbox("sockets::lifecycle::cleanup_removes_everything_and_nothing_else", |env| {
        let options = options(env);
        let directory = &options.pin_directory;
        backends(&["192.0.2.10:80/TCP"]);
        let mut kernel = Kernel::open(&options);
        kernel.serve(1, "198.51.100.1:80/TCP", &["192.0.2.10:80/TCP"]);
        assert!(matches!(KernelDatapath::open(&options).unwrap_err(), OpenError::Busy { .. }));
        assert!(matches!(cleanup(directory, &|| (), &CrashPoint::default()).unwrap_err(), OpenError::Busy { .. }));
        assert!(exchange(SocketMode::Tcp, SERVICE.parse().unwrap()).is_ok());
        drop(kernel);

        let foreign = directory.join("v1/foreign");
        fs::create_dir(&foreign).unwrap();
        let report = cleanup(directory, &|| (), &CrashPoint::default()).unwrap();
        assert_eq!((report.links, report.maps), (10, 14));
        assert_eq!(report.left, [directory.join("v1"), foreign.clone()]);
        assert!(exchange(SocketMode::Tcp, SERVICE.parse().unwrap()).is_err(), "nothing is translated any more");
        fs::remove_dir(&foreign).unwrap();
        cleanup(directory, &|| (), &CrashPoint::default()).unwrap();
        assert!(!directory.exists());
        assert_eq!(
            cleanup(directory, &|| (), &CrashPoint::default()).unwrap(),
            nodelb_datapath::CleanupReport::default()
        );
    });
}

/// Number of files below the directory, without programs: the next start loads those that are gone.
fn pins_below(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let entries = entries.filter(|path| !path.ends_with("programs"));
    entries.map(|path| if path.is_dir() { pins_below(&path) } else { 1 }).sum()
}

/// The pins are removed with their directory, or hidden by another bpffs: while the daemon runs no
/// connection fails, and the next start finds everything.
#[test]
fn what_is_pinned_outlives_its_pins_while_the_daemon_runs() {
    in_sandbox("sockets::lifecycle::what_is_pinned_outlives_its_pins_while_the_daemon_runs", |env| {
        let options = options(env);
        let directory = &options.pin_directory;
        backends(&["192.0.2.10:80/TCP"]);
        let mut kernel = Kernel::open(&options);
        fill(&mut kernel, &content());
        let (all, prober) = (pins_below(directory), Prober::start(SocketMode::Tcp, SERVICE));
        assert_eq!(kernel.datapath.ensure_attached().unwrap(), []);
        let restored = |kernel: &mut Kernel, count| {
            let repairs = kernel.datapath.ensure_attached().unwrap();
            assert!(repairs.len() == count && repairs.iter().all(|repair| repair.lasted), "{count}: {repairs:?}");
            assert_eq!((kernel.datapath.verify_links(), pins_below(directory)), (Vec::new(), all));
            assert_eq!(kernel.datapath.ensure_attached().unwrap(), []);
            assert!(matches!(KernelDatapath::open(&options).unwrap_err(), OpenError::Busy { .. }));
        };
        fs::remove_dir_all(directory.join("v1/links")).unwrap();
        restored(&mut kernel, 10);
        fs::remove_file(directory.join("v1/g1/slots")).unwrap();
        restored(&mut kernel, 1);
        fs::remove_dir_all(directory).unwrap();
        restored(&mut kernel, all);
        mount_over(&env.bpffs, "bpf");
        restored(&mut kernel, all);
        drop(kernel);

        let kernel = Kernel::open(&options);
        assert_eq!((kernel.report.origin, kernel.datapath.dump().unwrap()), (Origin::Reused, content()));
        assert!(kernel.report.links.iter().all(|(_, state)| *state == LinkState::Updated), "{:?}", kernel.report.links);
        assert_eq!(kernel.report.foreign_pin_directories, Vec::<PathBuf>::new());
        prober.finish();
    });
}

/// A bpffs was mounted over the pins of one daemon, and a second one was started there.
#[test]
fn what_a_second_daemon_pinned_is_left_to_it() {
    in_sandbox("sockets::lifecycle::what_a_second_daemon_pinned_is_left_to_it", |env| {
        let options = options(env);
        let mut first = Kernel::open(&options);
        mount_over(&env.bpffs, "bpf");
        let mut second = Kernel::open(&options);
        fs::remove_file(options.pin_directory.join("v1/links/connect4")).unwrap();
        for _ in 0..2 {
            assert!(matches!(first.datapath.ensure_attached().unwrap_err(), OpenError::Busy { .. }));
            assert!(!options.pin_directory.join("v1/links/connect4").exists(), "nothing is written");
            assert_eq!(second.datapath.verify_links().len(), 1, "no link runs another program");
        }
        assert_eq!(second.datapath.ensure_attached().unwrap().len(), 1);
        assert_eq!(second.datapath.verify_links(), []);
    });
}

pub(super) fn mount_over(directory: &Path, kind: &str) {
    let mounted = Command::new("mount").args(["-t", kind, kind]).arg(directory).status().unwrap();
    assert!(mounted.success());
}

/// The programs stay attached if they cannot be pinned.
#[test]
fn without_a_bpffs_links_are_held() {
    in_sandbox("sockets::lifecycle::without_a_bpffs_links_are_held", |env| {
        backends(&["192.0.2.10:80/TCP"]);
        let mut kernel = Kernel::open(&options(env));
        kernel.serve(1, "198.51.100.1:80/TCP", &["192.0.2.10:80/TCP"]);
        fs::remove_dir_all(env.bpffs.join("nodelb/v1/links")).unwrap();
        mount_over(&env.bpffs, "tmpfs");
        let error = kernel.datapath.ensure_attached().unwrap_err();
        assert!(error.to_string().contains("pinning"), "{error}");
        assert!(kernel.datapath.ensure_attached().is_err(), "said as long as it lasts");
        exchange(SocketMode::Tcp, SERVICE.parse().unwrap()).expect("translated all the same");
    });
}

/// The id of the program that a link runs.
fn program_of(link: &Path) -> String {
    let shown = sandbox::program("bpftool").args(["-j", "link", "show", "pinned"]).arg(link).output();
    let shown = shown.expect("bpftool (package bpftool)").stdout;
    let shown = String::from_utf8(shown).unwrap();
    let id = shown.split_once("\"prog_id\":").unwrap().1;
    id.chars().take_while(char::is_ascii_digit).collect()
}

/// Another program has a hook exclusively: the error has its id and name, and nothing is created.
#[test]
fn a_program_that_has_a_hook_to_itself_is_named() {
    in_sandbox("sockets::lifecycle::a_program_that_has_a_hook_to_itself_is_named", |env| {
        let [elsewhere, here] = ["elsewhere", "here"].map(|name| env.cgroup.join(name));
        let below = here.join("below");
        fs::create_dir(&elsewhere).unwrap();
        fs::create_dir_all(&below).unwrap();
        let other = env.bpffs.join("other");
        let another = Options { cgroup: Some(elsewhere), pin_directory: other.clone(), ..options(env) };
        let _loaded = Kernel::open(&another);
        let program = program_of(&other.join("v1/links/connect4"));
        let bpftool = |action: &str, flags: &[&str]| {
            let mut command = sandbox::program("bpftool");
            command.args(["cgroup", action]).arg(&here).args(["connect4", "id", &program]).args(flags);
            assert!(command.status().unwrap().success(), "{action}");
        };
        let expect_refused = |at: &Path, where_to: bool| {
            let error = KernelDatapath::open(&Options { cgroup: Some(at.into()), ..options(env) }).unwrap_err();
            let OpenError::Exclusive { hook, cgroup, is_here, program: id, name } = &error else { panic!("{error}") };
            assert_eq!((*hook, cgroup, *is_here, id.to_string()), ("connect4", &here, where_to, program.clone()));
            assert_eq!(name.as_deref(), Some("connect4"));
            assert!(error.to_string().contains("without BPF_F_ALLOW_MULTI"), "{error}");
            assert!(!options(env).pin_directory.exists(), "nothing is pinned");
        };
        bpftool("attach", &[]);
        expect_refused(&here, true);
        expect_refused(&below, false);
        bpftool("detach", &[]);
        bpftool("attach", &["override"]);
        expect_refused(&here, true);
        drop(Kernel::open(&Options { cgroup: Some(below), ..options(env) }));
        bpftool("detach", &[]);
        drop(Kernel::open(&Options { cgroup: Some(here.clone()), ..options(env) }));
    });
}

/// A cleanup during a start removes nothing that belongs to the start: each start that succeeds
/// finds all its pins.
#[test]
fn a_cleanup_during_a_start_removes_nothing_of_it() {
    in_sandbox("sockets::lifecycle::a_cleanup_during_a_start_removes_nothing_of_it", |env| {
        let options = options(env);
        let stop = AtomicBool::new(false);
        let started = thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match cleanup(&options.pin_directory, &|| (), &CrashPoint::default()) {
                        Ok(_) | Err(OpenError::Busy { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            });
            let _end = SetAtEnd(&stop);
            let mut all = None;
            let starts = (0..12).filter(|_| match KernelDatapath::open(&options) {
                Ok((datapath, _)) => {
                    assert_eq!(datapath.verify_links(), []);
                    let pins = pins_below(&options.pin_directory);
                    assert_eq!(*all.get_or_insert(pins), pins);
                    true
                }
                Err(OpenError::Busy { .. }) => false,
                Err(error) => panic!("{error}"),
            });
            starts.count()
        });
        assert!(started > 0, "not one start came between two cleanups");
    });
}

#[test]
fn start_says_what_is_missing() {
    in_sandbox("sockets::lifecycle::start_says_what_is_missing", |env| {
        let error = |options: &Options| KernelDatapath::open(options).unwrap_err().to_string();
        let elsewhere = Options { pin_directory: "/tmp/nodelb".into(), ..options(env) };
        assert_eq!(error(&elsewhere), "/tmp/nodelb is not on a bpffs: mount -t bpf -o mode=0700 bpf /sys/fs/bpf");
        let whole = Options { pin_directory: env.bpffs.join("."), ..options(env) };
        assert!(matches!(KernelDatapath::open(&whole).unwrap_err(), OpenError::WholeBpffs { .. }), "{}", error(&whole));
        let nowhere = Options { cgroup: Some("/sys/fs/cgroup/none".into()), ..options(env) };
        assert!(error(&nowhere).contains("/sys/fs/cgroup/none is not a cgroup v2 directory"), "{}", error(&nowhere));
        let kernel = Kernel::open(&options(env));
        drop_thread_privileges(&kernel.datapath).unwrap();
        drop(kernel);
        let text = error(&options(env));
        assert!(text.contains("CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON are missing"), "{text}");
    });
}

/// A backup or a hardening tool has changed the owner of the pins, which the daemon without capabilities cannot open then.
#[test]
fn pins_of_another_user_are_no_fault_of_the_programs() {
    in_sandbox("sockets::lifecycle::pins_of_another_user_are_no_fault_of_the_programs", |env| {
        let options = options(env);
        let mut kernel = Kernel::open(&options);
        assert_eq!(kernel.datapath.links().foreign_directory(), None);
        sandbox::command("chown", &["-R", "1000", options.pin_directory.to_str().unwrap()]);
        drop_thread_privileges(&kernel.datapath).unwrap();
        let error = fs::read_dir(&options.pin_directory).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        assert_eq!((kernel.datapath.verify_links(), kernel.datapath.ensure_attached().unwrap()), (vec![], vec![]));
        let foreign = kernel.datapath.links().foreign_directory().unwrap();
        assert_eq!((foreign.path, foreign.owner, foreign.mode), (options.pin_directory, 1000, 0o700));
    });
}
