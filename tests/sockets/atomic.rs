//! A backend list changes atomically: no client sees a mixture, and the change needs no system
//! call.

use std::collections::BTreeSet;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use libbpf_rs::Link;
use nodelb_core::datapath::{Limits, MapError};
use nodelb_datapath::Options;

use crate::sandbox::{self, Sandbox};

use super::{Kernel, entry, in_sandbox, options, part, part_command, point, put};

const CONNECTS: u64 = 1_000_000;
const CLIENTS: u64 = 4;

#[test]
fn a_list_is_never_seen_half_changed() {
    in_sandbox("sockets::atomic::a_list_is_never_seen_half_changed", |env| {
        let limits = Limits { slots: 1 << 20, ..options(env).limits };
        let mut kernel = Kernel::open(&Options { limits, ..options(env) });
        let set = |net: &str| -> Vec<String> { (1..=7).map(|i| format!("192.0.2.{net}{i}:{net}000/UDP")).collect() };
        let [one, other, third] = ["1", "2", "3"].map(set);
        let entry = |list: &[String]| entry(&list.iter().map(String::as_str).collect::<Vec<_>>());
        let ops = [&one, &other].map(|list| [put(1, entry(list)), put(2, entry(&third))]);
        kernel.apply(&ops[0]);
        kernel.apply(&[point("198.51.100.1:53/UDP", 1), point("198.51.100.2:53/UDP", 2)]);
        show_backends(env);
        let members: BTreeSet<SocketAddr> =
            one.iter().chain(&other).map(|text| text.trim_end_matches("/UDP").parse().unwrap()).collect();

        let mut flips = 0;
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| connect_and_check(&members))).collect();
            while !clients.iter().all(thread::ScopedJoinHandle::is_finished) {
                flips += 1;
                let at = flips % 2;
                // The third list moves as often, so that its slots lie between those of the others.
                for op in [&ops[at][0], &put(2, entry(&third[at..]))] {
                    match kernel.try_apply(std::slice::from_ref(op)).remove(0) {
                        // On a fast machine most slots rest.
                        Err(MapError::Resting | MapError::Full { map: "slots", .. }) => {
                            thread::sleep(Duration::from_millis(1));
                        }
                        other => other.unwrap(),
                    }
                }
            }
        });
        assert!(flips > 10_000, "the lists changed all the time: {flips} times");
    });
}

/// Detaches the getpeername hook: then the socket shows its backend, and a connect can be checked
/// without a datagram.
pub(super) fn show_backends(env: &Sandbox) {
    Link::open(env.bpffs.join("nodelb/v1/links/getpeername4")).unwrap().detach().unwrap();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("198.51.100.1:53").unwrap();
    // The kernel detaches in the background.
    while socket.peer_addr().unwrap() == "198.51.100.1:53".parse().unwrap() {
        thread::sleep(Duration::from_millis(1));
    }
}

fn connect_and_check(members: &BTreeSet<SocketAddr>) {
    let service: SocketAddr = "198.51.100.1:53".parse().unwrap();
    let mut socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    for count in 0..CONNECTS / CLIENTS {
        // Existing sockets search for their backend in the new list; new ones choose one.
        if count % 16 == 0 {
            socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        }
        socket.connect(service).unwrap();
        let backend = socket.peer_addr().unwrap();
        assert!(members.contains(&backend), "{backend} is in neither list");
    }
}

const BEGIN: &str = "/nodelb-begin";
const END: &str = "/nodelb-end";

#[test]
fn an_endpoint_change_makes_no_system_call() {
    const TEST: &str = "sockets::atomic::an_endpoint_change_makes_no_system_call";
    in_sandbox(TEST, |env| {
        if part().is_some() {
            let mut kernel = Kernel::open(&options(env));
            let lists = [entry(&["192.0.2.1:80/TCP", "192.0.2.2:80/TCP"]), entry(&["192.0.2.3:80/TCP"])];
            let ops = lists.map(|entry| [put(1, entry)]);
            kernel.apply(&ops[0]);
            let now = kernel.now();
            assert!(fs::metadata(BEGIN).is_err());
            for i in 0..1_000 {
                use nodelb_core::datapath::Datapath as _;
                assert!(kernel.datapath.apply(&ops[i % 2], now)[0].is_ok());
            }
            assert!(fs::metadata(END).is_err());
            return;
        }
        let name = format!("nodelb-strace-{}", env.cgroup.file_name().unwrap().display());
        let trace = std::env::temp_dir().join(name);
        let again = part_command(TEST, "changes");
        let status = sandbox::program("strace")
            .args(["-f", "-o"])
            .arg(&trace)
            .arg(again.get_program())
            .args(again.get_args())
            .env("NODELB_TEST_PART", "changes")
            .status()
            .expect("strace (package strace)");
        let text = fs::read_to_string(&trace).unwrap();
        fs::remove_file(&trace).unwrap();
        assert!(status.success());
        let begin = text.lines().position(|line| line.contains(BEGIN)).expect("the beginning is in the trace");
        let end = text.lines().position(|line| line.contains(END)).expect("the end is in the trace");
        let between: Vec<&str> = text.lines().skip(begin + 1).take(end - begin - 1).collect();
        assert_eq!(between, Vec::<&str>::new(), "system calls for 1000 changed lists");
    });
}
