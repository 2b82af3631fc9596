//! The next layout version takes over the content of the maps, the links and the open sockets; the
//! previous version refuses to start afterwards. The next version has the entries of
//! `bpf/next_layout.h`.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use nodelb_core::datapath::{Datapath as _, Limits};
use nodelb_core::state::entries::{MapState, ServiceEntry};
use nodelb_datapath::{CrashPoint, KernelDatapath, LAYOUT, LinkState, OpenError, Options, Origin, cleanup};

use super::content::{content, fill};
use super::{
    Kernel, Prober, SocketMode, backends, entry, exchange, in_sandbox, l4, list, options, part, part_command, point,
    put,
};
use crate::crash_points::crash_points;
use crate::links::{assert_replaced_in_place, attached};
use crate::sandbox::Sandbox;

const SERVICE: &str = "198.51.100.1:80";
/// Has session affinity.
const WITH_AFFINITY: &str = "198.51.100.7:80";
/// Upper bound of the operations of a start.
const MANY: u32 = 200;

fn next(env: &Sandbox) -> Options {
    Options { layout: LAYOUT + 1, ..options(env) }
}

fn versions(env: &Sandbox) -> Vec<String> {
    names(&env.bpffs.join("nodelb"))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// All paths below a directory.
fn below(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![directory.to_path_buf()];
    if directory.is_dir() {
        found.extend(names(directory).iter().flat_map(|name| below(&directory.join(name))));
    }
    found
}

fn reach(to: &str) -> super::Reached {
    exchange(SocketMode::Tcp, to.parse().unwrap()).unwrap_or_else(|error| panic!("{to}: {error}"))
}

/// Size of an entry of `services` in bytes, and the first entry that is not empty.
fn service_bytes(generation: &Path) -> (u32, Vec<u8>) {
    let services = MapHandle::from_pinned_path(generation.join("services")).unwrap();
    let entries =
        (0..services.max_entries()).map(|id| services.lookup(&id.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap());
    let first = entries.into_iter().find(|entry| entry.iter().any(|byte| *byte != 0));
    (services.value_size(), first.unwrap())
}

/// Services of every kind, one of them with a client that has a backend.
fn serve_everything(kernel: &mut Kernel) -> MapState {
    fill(kernel, &content());
    let loyal = ServiceEntry { affinity_seconds: 10_800, ..entry(&["192.0.2.10:80/TCP", "192.0.2.11:80/TCP"]) };
    kernel.apply(&[put(8, loyal), point("198.51.100.7:80/TCP", 8)]);
    kernel.datapath.dump().unwrap()
}

#[test]
fn the_next_layout_takes_everything_over() {
    in_sandbox("sockets::layout::the_next_layout_takes_everything_over", |env| {
        backends(&["192.0.2.10:80/TCP", "192.0.2.11:80/TCP"]);
        let mut kernel = Kernel::open(&options(env));
        let all = serve_everything(&mut kernel);
        let loyal_to = reach(WITH_AFFINITY).backend;
        let open = TcpStream::connect(SERVICE).unwrap();
        let before = attached(&env.bpffs.join("nodelb/v1/links"));
        assert_eq!(before.len(), 10);
        let (size, old) = service_bytes(&env.bpffs.join("nodelb/v1/g1"));
        assert_eq!(size, 32);
        drop(kernel);
        let prober = Prober::start(SocketMode::Tcp, SERVICE);

        let mut kernel = Kernel::open(&next(env));
        assert_eq!(kernel.report.origin, Origin::Upgraded { from: LAYOUT });
        assert!(kernel.report.links.iter().all(|(_, state)| *state == LinkState::Updated), "{:?}", kernel.report.links);
        assert_replaced_in_place(&before, &attached(&env.bpffs.join("nodelb/v2/links")));
        assert_eq!(versions(env), ["v2"], "the old version's directory is gone");
        let (size, new) = service_bytes(&env.bpffs.join("nodelb/v2/g1"));
        assert_eq!((size, &new[8..16], &new[24..32]), (48, &old[24..], &old[16..24]), "owner and policies moved");
        assert_eq!(kernel.datapath.dump().unwrap(), all);
        assert_eq!(kernel.report.corrupt, Vec::<String>::new());
        assert_eq!(kernel.datapath.verify_links(), []);
        assert_eq!(kernel.datapath.reader().clients().unwrap(), 1);
        assert_eq!(open.peer_addr().unwrap(), SERVICE.parse().unwrap(), "open sockets keep the name of their peer");
        assert!((0..20).all(|_| reach(WITH_AFFINITY).backend == loyal_to), "clients keep their backends");
        kernel.serve(9, "198.51.100.9:80/TCP", &["192.0.2.11:80/TCP"]);
        assert_eq!(reach("198.51.100.9:80").backend, l4("192.0.2.11:80/TCP"), "the new maps are those that are used");
        let all = kernel.datapath.dump().unwrap();
        drop(kernel);

        let kernel = Kernel::open(&next(env));
        assert_eq!((kernel.report.origin, kernel.datapath.dump().unwrap()), (Origin::Reused, all.clone()));
        drop(kernel);
        let limits = Limits { slots: 8192, ..options(env).limits };
        let kernel = Kernel::open(&Options { limits, ..next(env) });
        assert!(matches!(kernel.report.origin, Origin::Rebuilt { .. }), "{:?}", kernel.report.origin);
        assert_eq!(kernel.datapath.dump().unwrap(), all);
        drop(kernel);
        prober.finish();
        assert_eq!(cleanup(&env.bpffs.join("nodelb"), &|| (), &CrashPoint::default()).unwrap().links, 10);
        assert!(!env.bpffs.join("nodelb").exists());
    });
}

#[test]
fn what_cannot_be_read_is_left_as_it_is() {
    in_sandbox("sockets::layout::what_cannot_be_read_is_left_as_it_is", |env| {
        let directory = env.bpffs.join("nodelb");
        backends(&["192.0.2.10:80/TCP"]);
        let mut kernel = Kernel::open(&next(env));
        kernel.serve(1, "198.51.100.1:80/TCP", &["192.0.2.10:80/TCP"]);
        assert!(matches!(KernelDatapath::open(&next(env)).unwrap_err(), OpenError::Busy { .. }));
        let much_newer = Options { layout: 7, ..options(env) };
        let (pins, programs) = (below(&directory), attached(&directory.join("v2/links")));
        drop(kernel);
        for (refused, words) in [
            (options(env), ["layout 2 from a newer nodelb", "supports layout 1 and changes nothing"]),
            (much_newer, ["layout 2 from an older nodelb", "uses layout 7, cannot read them"]),
        ] {
            let error = KernelDatapath::open(&refused).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, OpenError::NewerLayout { .. } | OpenError::UnknownLayout { .. }), "{error:?}");
            assert!(words.iter().all(|words| text.contains(words)), "{text}");
            assert!(text.contains("nodelb cleanup"), "{text}");
            assert_eq!((below(&directory), attached(&directory.join("v2/links"))), (pins.clone(), programs.clone()));
            reach(SERVICE);
        }
        let kernel = Kernel::open(&next(env));
        assert_eq!(kernel.report.origin, Origin::Reused);
        drop(kernel);
        let too_small = Options { limits: Limits { slots: 0, ..options(env).limits }, ..next(env) };
        assert!(KernelDatapath::open(&too_small).is_err());
        reach(SERVICE);
    });
}

#[test]
fn an_upgrade_that_does_not_fit_changes_nothing() {
    in_sandbox("sockets::layout::an_upgrade_that_does_not_fit_changes_nothing", |env| {
        backends(&["192.0.2.10:80/TCP"]);
        let mut kernel = Kernel::open(&options(env));
        kernel.apply(&[put(
            1,
            ServiceEntry { cluster: list(&["192.0.2.10:80/TCP"; 8]), ..entry(&["192.0.2.10:80/TCP"]) },
        )]);
        kernel.apply(&[point("198.51.100.1:80/TCP", 1)]);
        let all = kernel.datapath.dump().unwrap();
        drop(kernel);
        let programs = attached(&env.bpffs.join("nodelb/v1/links"));
        let tiny = Options { limits: Limits { slots: 4, ..options(env).limits }, ..next(env) };
        let refusal = KernelDatapath::open(&tiny).unwrap_err();
        assert!(matches!(refusal, OpenError::TooSmall { map: "slots", limit: 4 }), "{refusal}");
        assert_eq!(attached(&env.bpffs.join("nodelb/v1/links")), programs);
        reach(SERVICE);
        let kernel = Kernel::open(&options(env));
        assert_eq!((kernel.report.origin, kernel.datapath.dump().unwrap()), (Origin::Reused, all));
        assert_eq!(versions(env), ["v1"], "what was begun is gone");
    });
}

/// The state that cleanup finds after an unknown layout version.
#[test]
fn cleanup_removes_what_it_does_not_know() {
    in_sandbox("sockets::layout::cleanup_removes_what_it_does_not_know", |env| {
        let directory = env.bpffs.join("nodelb");
        backends(&["192.0.2.10:80/TCP"]);
        Kernel::open(&Options { layout: 9, ..options(env) }).serve(1, "198.51.100.1:80/TCP", &["192.0.2.10:80/TCP"]);
        let v9 = directory.join("v9");
        fs::rename(v9.join("links/connect4"), v9.join("links/unknown4")).unwrap();
        fs::rename(v9.join("tcp_sockets"), v9.join("sockets")).unwrap();
        fs::rename(v9.join("g1/slots"), v9.join("g1/places")).unwrap();
        reach(SERVICE);
        let report = cleanup(&directory, &|| (), &CrashPoint::default()).unwrap();
        assert_eq!((report.links, report.maps, report.left), (10, 14, Vec::new()));
        assert!(!directory.exists());
        assert!(exchange(SocketMode::Tcp, SERVICE.parse().unwrap()).is_err(), "nothing is translated any more");
    });
}

/// Whether the maps of the next version are in use.
fn is_committed(env: &Sandbox) -> bool {
    let v2 = env.bpffs.join("nodelb/v2");
    v2.exists() && names(&v2).iter().any(|name| name == "g1")
}

/// Upgrades with a crash after some operations; then the requested version continues or refuses.
fn upgrade_and_go_on(env: &Sandbox, crash: impl FnOnce() -> bool, back: bool) -> bool {
    let directory = env.bpffs.join("nodelb");
    let mut kernel = Kernel::open(&options(env));
    let all = serve_everything(&mut kernel);
    drop(kernel);
    let prober = Prober::start(SocketMode::Tcp, SERVICE);
    reach(WITH_AFFINITY);
    let survived = crash();
    reach(SERVICE);
    let goes_on = if back && is_committed(env) {
        let error = KernelDatapath::open(&options(env)).unwrap_err();
        assert!(matches!(error, OpenError::NewerLayout { found: 2, known: 1, .. }), "{error}");
        next(env)
    } else if back {
        options(env)
    } else {
        next(env)
    };
    let kernel = Kernel::open(&goes_on);
    assert_eq!(kernel.datapath.dump().unwrap(), all);
    assert_eq!(kernel.datapath.verify_links(), []);
    assert_eq!(kernel.report.corrupt, Vec::<String>::new());
    assert_eq!(versions(env), [format!("v{}", goes_on.layout)]);
    drop(kernel);
    prober.finish();
    assert_eq!(cleanup(&directory, &|| (), &CrashPoint::default()).unwrap().left, Vec::<PathBuf>::new());
    survived
}

/// Crashes after each operation of an upgrade, each time in a part of the test of this name.
fn crash_at_each_step(test: &str, back: bool) {
    in_sandbox(test, |env| {
        if let Some(after) = part() {
            Kernel::open(&Options { crash_after: Some(after.parse().unwrap()), ..next(env) });
            return;
        }
        backends(&["192.0.2.10:80/TCP", "192.0.2.11:80/TCP"]);
        let steps = crash_points(MANY).find(|after| {
            let crash = || super::crash::survived(part_command(test, &after.to_string()).status().unwrap(), *after);
            upgrade_and_go_on(env, crash, back)
        });
        assert!(steps.unwrap() > 60, "{steps:?} operations in an upgrade");
    });
}

#[test]
fn a_crash_at_any_step_of_an_upgrade_breaks_no_connection() {
    crash_at_each_step("sockets::layout::a_crash_at_any_step_of_an_upgrade_breaks_no_connection", false);
}

#[test]
fn an_upgrade_that_crashed_at_any_step_is_undone_or_refused_by_the_earlier_version() {
    let test = "sockets::layout::an_upgrade_that_crashed_at_any_step_is_undone_or_refused_by_the_earlier_version";
    crash_at_each_step(test, true);
}
