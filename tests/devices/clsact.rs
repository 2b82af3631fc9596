//! Filters, on kernels without tcx links. Every kernel has them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{SyncSender, sync_channel};

use nodelb_datapath::{
    ChangeFilters, CrashPoint, Direction, FilterChange, InThisProcess, LinkState, drop_thread_privileges, filters,
};

use super::*;

fn by_filters(env: &Sandbox) -> Options {
    Options { hook_method: Some(HookMethod::Clsact), ..options(env) }
}

fn cleanup(env: &Sandbox) -> usize {
    nodelb_datapath::cleanup(&env.bpffs.join("nodelb"), &|| (), &CrashPoint::default()).unwrap().links
}

fn has_qdisc(device: &str) -> bool {
    output("tc", &["qdisc", "show", "dev", device]).contains("clsact")
}

#[test]
fn filters_are_attached_and_taken_over() {
    in_sandbox("devices::clsact::filters_are_attached_and_taken_over", |env| {
        let ifindex = pair("v0", "v1");
        let mut node = Node::open(&by_filters(env));
        let states = node.packets.hooks.attach(uplink("v0")).unwrap();
        assert_eq!(states, [(Direction::Out, LinkState::Created), (Direction::In, LinkState::Created)]);
        let shown = output("tc", &["filter", "show", "dev", "v0", "ingress"]);
        for part in ["protocol all", "pref 1", "handle 0x6e6c", "direct-action", "packet_in"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        drop(node);
        let mut node = Node::open(&by_filters(env));
        assert_eq!((node.devices(), node.faults()), (vec![ifindex], Vec::new()));
        assert_eq!(filters::at_device(ifindex).unwrap().len(), 2, "replaced, not added");

        command("tc", &["qdisc", "del", "dev", "v0", "clsact"]);
        assert_eq!(node.faults().len(), 2);
        node.attach("v0");
        assert_eq!(node.faults(), [""; 0]);
    });
}

#[test]
fn cleanup_removes_the_qdisc_that_nodelb_added() {
    in_sandbox("devices::clsact::cleanup_removes_the_qdisc_that_nodelb_added", |env| {
        for device in ["v0", "v2", "v4"] {
            pair(device, &format!("{device}p"));
        }
        command("tc", &["qdisc", "add", "dev", "v2", "clsact"]);
        let mut node = Node::open(&by_filters(env));
        for device in ["v0", "v2", "v4"] {
            node.attach(device);
        }
        drop(node);
        // A filter that matches no packet.
        command("tc", &["filter", "add", "dev", "v4", "egress", "pref", "5", "bpf", "bytecode", "1,6 0 0 0"]);
        assert_eq!(cleanup(env), 16, "the cgroup's ten links, and six filters");
        assert!(!has_qdisc("v0"), "added by nodelb");
        assert!(has_qdisc("v2"), "added by another program");
        assert!(has_qdisc("v4"), "used by another program");
        assert_eq!(filters::at_device(index("v4")).unwrap(), [""], "the other program's filter");
        assert_eq!(cleanup(env), 0);
    });
}

/// The pins may be lost: a BPF file system is memory.
#[test]
fn cleanup_finds_filters_without_pins() {
    in_sandbox("devices::clsact::cleanup_finds_filters_without_pins", |env| {
        let ifindex = pair("v0", "v1");
        let mut node = Node::open(&by_filters(env));
        node.attach("v0");
        drop(node);
        command("find", &[env.bpffs.join("nodelb").to_str().unwrap(), "-delete"]);
        assert_eq!(cleanup(env), 2);
        assert_eq!(filters::at_device(ifindex).unwrap(), [""; 0]);
    });
}

/// Passes changes to a thread that has kept its capabilities, as the daemon passes them to the reaper.
#[derive(Debug)]
struct ByThread(SyncSender<Request>);

type Request = (u32, FilterChange, Option<OwnedFd>, SyncSender<io::Result<()>>);

impl ChangeFilters for ByThread {
    fn change(&self, ifindex: u32, change: FilterChange, program: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let (answer, answers) = sync_channel(1);
        let program = program.map(|program| program.try_clone_to_owned().unwrap());
        self.0.send((ifindex, change, program, answer)).unwrap();
        answers.recv().unwrap()
    }
}

#[test]
fn without_packets_filters_are_removed_also_without_pins() {
    in_sandbox("devices::clsact::without_packets_filters_are_removed_also_without_pins", |env| {
        let ifindex = pair("v0", "v1");
        let mut node = Node::open(&by_filters(env));
        node.attach("v0");
        drop(node);
        command("find", &[env.bpffs.join("nodelb").to_str().unwrap(), "-delete"]);
        assert_eq!(filters::at_device(ifindex).unwrap().len(), 2);
        let (_, report) = KernelDatapath::open(&Options { packets: None, ..options(env) }).unwrap();
        assert_eq!((report.packets, filters::at_device(ifindex).unwrap()), (Ok(()), Vec::new()));
    });
}

/// Filters at devices that appear later take CAP_NET_ADMIN, which another thread has.
#[test]
fn no_capability_is_kept_for_filters() {
    in_sandbox("devices::clsact::no_capability_is_kept_for_filters", |env| {
        let ifindex = pair("v0", "v1");
        let mut node = Node::open(&by_filters(env));
        let (requests, received) = sync_channel::<Request>(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let remaining = drop_thread_privileges(&node.datapath).unwrap();
                assert_eq!(remaining.capabilities, [""; 0]);
                let refused = node.packets.hooks.attach(uplink("v0")).unwrap_err();
                assert_eq!(refused.source.kind(), io::ErrorKind::PermissionDenied);
                node.packets.hooks.change_filters_by(Box::new(ByThread(requests)));
                node.packets.hooks.attach(uplink("v0")).unwrap();
                assert_eq!(node.packets.hooks.faults(), []);
                assert_eq!(filters::at_device(ifindex).unwrap().len(), 2);
                node.packets.hooks.detach(ifindex).unwrap();
                node.packets.hooks.change_filters_by(Box::new(InThisProcess));
            });
            for (ifindex, change, program, answer) in received {
                let program = program.as_ref().map(AsFd::as_fd);
                answer.send(InThisProcess.change(ifindex, change, program)).unwrap();
            }
        });
        assert_eq!(filters::at_device(ifindex).unwrap(), [""; 0]);
        assert!(!has_qdisc("v0"));
    });
}
