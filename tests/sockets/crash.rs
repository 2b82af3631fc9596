//! kill -9 after each operation: the remaining state translates completely and correctly, and the
//! next start continues from there.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use nodelb_core::datapath::Datapath as _;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::uplink::UplinkEntry;
use nodelb_core::state::entries::{MapOp, MapState, OutsideEntry, ServiceEntry, ServiceId};
use nodelb_datapath::{CrashPoint, Options, cleanup};

use super::{
    Kernel, Prober, SocketMode, backends, entry, in_sandbox, l4, list, options, part, part_command, point, put,
};
use crate::crash_points::crash_points;
use crate::sandbox::Sandbox;

const SERVICE: &str = "198.51.100.1:80";
/// Upper bound of the operations of one run.
const MANY: u32 = 200;

/// The operations of one run: a start, changes of every kind, a link that has to be restored.
fn live(options: &Options) {
    let mut kernel = Kernel::open(options);
    let both = ServiceEntry { local: list(&["192.0.2.11:80/TCP"]), ..entry(&["192.0.2.10:80/TCP"; 3]) };
    kernel.apply(&[put(2, both.clone()), point("198.51.100.2:80/TCP", 2)]);
    kernel.apply(&[put(2, ServiceEntry { has_rings: true, ..both })]);
    let range = "203.0.113.0/24".parse::<ipnet::IpNet>().unwrap().into();
    let outside = OutsideEntry { service: ServiceId(2), local: false, has_ranges: true };
    let uplink = UplinkEntry {
        v4: None,
        v6: None,
        mtu: 1500,
        l2_length: 14,
        is_v4_source: false,
        is_v6_source: false,
        is_strict: false,
    };
    kernel.apply(&[
        MapOp::PutUplink(2, uplink),
        MapOp::PutSourceRange(ServiceId(2), range),
        MapOp::PutOutside(l4("198.51.100.2:80/TCP"), outside),
    ]);
    let many: Vec<MapOp> = (3..40).map(|i| point(&format!("198.51.100.{i}:80/TCP"), 2)).collect();
    kernel.apply(&many);
    kernel.apply(&many.iter().map(delete).collect::<Vec<_>>());
    kernel.apply(&[put(2, entry(&["192.0.2.11:80/TCP"])), MapOp::PutNodeAddr(l4("192.0.2.1:1/TCP").addr)]);
    std::fs::remove_file(options.pin_directory.join("v1/links/sendmsg6")).unwrap();
    kernel.datapath.ensure_attached().unwrap();
    kernel.apply(&[
        MapOp::DeleteOutside(l4("198.51.100.2:80/TCP")),
        MapOp::DeleteUplink(2),
        delete(&point("198.51.100.2:80/TCP", 2)),
        MapOp::DeleteSourceRange(ServiceId(2), range),
        MapOp::DeleteService(ServiceId(2)),
    ]);
}

fn delete(op: &MapOp) -> MapOp {
    match op {
        MapOp::PutFrontend(addr, _) => MapOp::DeleteFrontend(*addr),
        _ => panic!("no frontend: {op:?}"),
    }
}

/// The service that exists all the time.
fn steady() -> MapState {
    let mut state = MapState::default();
    state.apply(&put(1, entry(&["192.0.2.10:80/TCP"])));
    state.apply(&point("198.51.100.1:80/TCP", 1));
    state
}

/// Starts from the existing state, brings the maps to the steady state and compares.
fn converge(options: &Options) {
    let mut kernel = Kernel::open(options);
    assert_eq!(kernel.report.corrupt, Vec::<String>::new());
    let found = kernel.datapath.dump().unwrap();
    assert_eq!(found.services[&ServiceId(1)], steady().services[&ServiceId(1)]);
    let mut ops: Vec<MapOp> = found.node_addrs.iter().map(|addr| MapOp::DeleteNodeAddr(*addr)).collect();
    ops.extend(found.outside.keys().map(|addr| MapOp::DeleteOutside(*addr)));
    ops.extend(found.source_ranges.iter().map(|(id, range)| MapOp::DeleteSourceRange(*id, *range)));
    ops.extend(found.uplinks.keys().map(|index| MapOp::DeleteUplink(*index)));
    let is_other = |addr: &&L4Addr| !steady().frontends.contains_key(*addr);
    ops.extend(found.frontends.keys().filter(is_other).map(|addr| MapOp::DeleteFrontend(*addr)));
    ops.extend(found.services.keys().copied().filter(|id| id.0 != 1).map(MapOp::DeleteService));
    kernel.apply(&ops);
    assert_eq!(kernel.datapath.dump().unwrap(), steady());
    assert_eq!(kernel.datapath.verify_links(), []);
}

/// Whether the process ended normally; otherwise it must have crashed at the crash point.
pub(super) fn survived(status: ExitStatus, after: u32) -> bool {
    assert!(status.success() || status.signal() == Some(9), "after operation {after}: {status}");
    status.success()
}

/// The options of a run. Every other run has other limits, so that each start builds a new
/// generation.
fn options_of(env: &Sandbox, after: Option<u64>, other_limits: bool) -> Options {
    let mut options = Options { crash_after: after, ..options(env) };
    options.limits.slots += u32::from(other_limits);
    options
}

fn lives_under_traffic(test: &str, resize: bool) {
    in_sandbox(test, |env| {
        if let Some(after) = part() {
            return live(&options_of(env, Some(after.parse().unwrap()), resize));
        }
        backends(&["192.0.2.10:80/TCP", "192.0.2.11:80/TCP"]);
        let usual = options_of(env, None, false);
        Kernel::open(&usual).serve(1, "198.51.100.1:80/TCP", &["192.0.2.10:80/TCP"]);
        let prober = Prober::start(SocketMode::Tcp, SERVICE);
        let operations = crash_points(MANY).find(|after| {
            let status = part_command(test, &after.to_string()).status().unwrap();
            let survived = survived(status, *after);
            prober.go_on();
            converge(&usual);
            prober.go_on();
            survived
        });
        prober.finish();
        let operations = operations.expect("a life has an end");
        assert!(operations > 25, "only {operations} operations in a life");
    });
}

#[test]
fn a_crash_at_any_step_breaks_no_connection() {
    lives_under_traffic("sockets::crash::a_crash_at_any_step_breaks_no_connection", false);
}

#[test]
fn a_crash_while_maps_are_rebuilt_breaks_no_connection() {
    lives_under_traffic("sockets::crash::a_crash_while_maps_are_rebuilt_breaks_no_connection", true);
}

#[test]
fn a_crash_in_the_first_start_or_in_cleanup_leaves_nothing_odd() {
    const TEST: &str = "sockets::crash::a_crash_in_the_first_start_or_in_cleanup_leaves_nothing_odd";
    in_sandbox(TEST, |env| {
        let usual = options(env);
        let directory = &usual.pin_directory;
        if let Some(what) = part() {
            let (what, after) = what.split_once(' ').unwrap();
            let after = Some(after.parse().unwrap());
            if what == "start" {
                Kernel::open(&Options { crash_after: after, ..usual });
            } else {
                cleanup(directory, &|| (), &CrashPoint::new(after)).unwrap();
            }
            return;
        }
        for what in ["start", "cleanup"] {
            if what == "cleanup" {
                drop(Kernel::open(&usual));
            }
            let steps = crash_points(MANY).find(|after| {
                let status = part_command(TEST, &format!("{what} {after}")).status().unwrap();
                let kernel = Kernel::open(&usual);
                assert_eq!(kernel.datapath.dump().unwrap(), MapState::default());
                assert_eq!(kernel.datapath.verify_links(), []);
                drop(kernel);
                if what == "start" {
                    cleanup(directory, &|| (), &CrashPoint::default()).unwrap();
                    assert!(!directory.exists(), "after {what} {after}");
                }
                survived(status, *after)
            });
            assert!(steps.unwrap() > 20, "{what}: {steps:?}");
        }
    });
}
