//! Sends UDP packets from a client through a node, and measures the CPU time of a packet: XDP live
//! frames, which cost little, arrive at the node as from a network device. All work happens on one
//! CPU, on behalf of this thread or of the kernel's ksoftirqd thread of the CPU.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libbpf_rs::{Link, MapCore as _, MapFlags, Object, ObjectBuilder, ProgramInput};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use crate::site::{Namespace, Site};

const SOURCE: &str = include_str!("generator.bpf.c");

/// Bytes of a frame.
const FRAME: usize = 64;
/// `BPF_F_TEST_XDP_LIVE_FRAMES` of `linux/bpf.h`.
const LIVE_FRAMES: u32 = 2;
/// The share of packets that may be lost, in a measurement that counts.
const MOST_LOST: f64 = 0.001;
/// Flows that are established at a time, so that all of them are handshakes at once.
const ESTABLISHED_AT_ONCE: u32 = 5_000;

/// Paths of the pinned programs.
#[derive(Debug)]
pub(crate) struct Pins {
    pub(crate) receive: PathBuf,
    pub(crate) discard: PathBuf,
    pub(crate) empty: PathBuf,
    pub(crate) store: PathBuf,
    /// XDP programs: two that do the same as the first two, and one that does what a new connection needs.
    pub(crate) receive_early: PathBuf,
    pub(crate) discard_early: PathBuf,
    pub(crate) begin_early: PathBuf,
}

/// The addresses that packets are sent to: `count` from `first`, by `step`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Targets {
    pub(crate) first: Ipv4Addr,
    pub(crate) count: u32,
    pub(crate) step: u32,
    pub(crate) port: u16,
}

/// Flows that take turns, from number `first`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flows {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// The loaded programs.
pub(crate) struct Generator {
    object: Object,
    /// Attaches the program that sends to a device without packets. Otherwise the kernel would
    /// prepare it for each run, and wait for all CPUs.
    _attached: (Namespace, Link),
    cpu: CpuClock,
    pub(crate) pins: Pins,
    /// Measurements that lost too many packets and were repeated.
    pub(crate) repeated: u32,
}

impl Generator {
    pub(crate) fn new(bpffs: &Path) -> Self {
        let object = ObjectBuilder::default().open_memory(&compile()).unwrap().load().unwrap();
        let idle = Namespace::new();
        let link =
            idle.within(|| object.progs_mut().find(|it| it.name() == "generate").unwrap().attach_xdp(1).unwrap());
        let [receive, discard, empty, store, receive_early, discard_early, begin_early] =
            ["receive", "discard", "empty", "store", "receive_early", "discard_early", "begin_early"]
                .map(|name| bpffs.join(name));
        let pins = Pins { receive, discard, empty, store, receive_early, discard_early, begin_early };
        for mut program in object.progs_mut() {
            let pin = match program.name().to_str().unwrap() {
                "receive" => &pins.receive,
                "discard" => &pins.discard,
                "empty" => &pins.empty,
                "store" => &pins.store,
                "receive_early" => &pins.receive_early,
                "discard_early" => &pins.discard_early,
                "begin_early" => &pins.begin_early,
                _ => continue,
            };
            program.pin(pin).unwrap();
        }
        Self { object, _attached: (idle, link), cpu: CpuClock::new(), pins, repeated: 0 }
    }

    /// The clock of this thread's CPU time.
    pub(crate) fn cpu(&self) -> &CpuClock {
        &self.cpu
    }

    /// Runs the program that does nothing this many times on a packet.
    pub(crate) fn run_empty(&self, packet: &[u8], times: u32) {
        let program = self.object.progs_mut().find(|program| program.name() == "empty").unwrap();
        let input = ProgramInput { data_in: Some(packet), repeat: times, ..ProgramInput::default() };
        program.test_run(input).unwrap();
    }

    /// Sends `count` packets; returns the number of those that arrived at a backend.
    pub(crate) fn send(&self, site: &Site, to: Targets, flows: Flows, count: u32) -> u64 {
        self.run(site, to, (flows, false), count)
    }

    /// Sends two packets in each flow, to backends that answer, so that the flows are established.
    pub(crate) fn establish(&self, site: &Site, to: Targets, flows: Flows) {
        let end = flows.first + flows.count;
        for first in (flows.first..end).step_by(ESTABLISHED_AT_ONCE as usize) {
            let part = Flows { first, count: ESTABLISHED_AT_ONCE.min(end - first) };
            let arrived = self.run(site, to, (part, true), 3 * part.count);
            assert!(arrived >= u64::from(part.count), "{arrived} of {part:?} arrived");
        }
    }

    /// Sends `count` packets; returns the CPU time of one in nanoseconds. Repeats a measurement in
    /// which packets were lost.
    pub(crate) fn measure(&mut self, site: &Site, to: Targets, flows: Flows, count: u32) -> f64 {
        for _ in 0..5 {
            let begun = self.cpu.nanos();
            let arrived = self.send(site, to, flows, count);
            let taken = self.cpu.nanos() - begun;
            if f64::from(count) - arrived as f64 <= MOST_LOST * f64::from(count) {
                return taken as f64 / f64::from(count);
            }
            self.repeated += 1;
        }
        panic!("packets are lost on the way to {to:?}, {flows:?}");
    }

    /// The same for packets that are dropped where they arrive at the node.
    pub(crate) fn measure_dropped(&self, site: &Site, to: Targets, flows: Flows, count: u32) -> f64 {
        let begun = self.cpu.nanos();
        assert_eq!(self.send(site, to, flows, count), 0, "packets pass where they must be dropped");
        (self.cpu.nanos() - begun) as f64 / f64::from(count)
    }

    fn run(&self, site: &Site, to: Targets, (flows, answers): (Flows, bool), count: u32) -> u64 {
        let words =
            [site.client_device, flows.count, flows.first, to.first.to_bits(), to.count, to.step, to.port.into()];
        let mut plan: Vec<u8> = words.into_iter().chain([answers.into()]).flat_map(u32::to_ne_bytes).collect();
        plan.resize(plan.len() + 16, 0);
        let plans = self.object.maps().find(|map| map.name() == "plans").unwrap();
        plans.update(&[0; 4], &plan, MapFlags::ANY).unwrap();
        let program = self.object.progs_mut().find(|program| program.name() == "generate").unwrap();
        // Struct xdp_md: data, data_end and the rest.
        let mut context = [0_u8; 24];
        context[4..8].copy_from_slice(&u32::try_from(FRAME).unwrap().to_ne_bytes());
        let input = ProgramInput {
            context_in: Some(&mut context),
            data_in: Some(&[0; FRAME]),
            flags: LIVE_FRAMES,
            repeat: count,
            ..ProgramInput::default()
        };
        site.client.within(|| program.test_run(input).unwrap());
        let plan = plans.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        u64::from_ne_bytes(plan[40..48].try_into().unwrap())
    }
}

fn compile() -> Vec<u8> {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let mut compile = Command::new(clang)
        .args(["-target", "bpf", "-O2", "-g", "-mcpu=v3", "-I/usr/include/x86_64-linux-gnu"])
        .args(["-Wno-address-of-packed-member", "-x", "c", "-", "-c", "-o", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    compile.stdin.take().unwrap().write_all(SOURCE.as_bytes()).unwrap();
    let output = compile.wait_with_output().unwrap();
    assert!(output.status.success(), "clang");
    output.stdout
}

/// Lets the process inside the sandbox, which has a `/proc` of its own, find the kernel's threads:
/// it inherits this descriptor of the machine's `/proc`.
pub(crate) fn share_proc() {
    let proc = File::open("/proc").unwrap();
    fcntl(&proc, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    _ = proc.into_raw_fd();
}

/// Binds the calling thread to a CPU.
pub(crate) fn bind_to_cpu(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu).unwrap();
    sched_setaffinity(Pid::from_raw(0), &only).unwrap();
}

/// The CPU time of this thread, including the kernel's ksoftirqd thread of its CPU.
pub(crate) struct CpuClock {
    /// `schedstat` of the thread; its first number is the CPU time in nanoseconds.
    ksoftirqd: PathBuf,
}

impl CpuClock {
    /// Binds this thread to the last CPU.
    fn new() -> Self {
        let cpu = std::thread::available_parallelism().unwrap().get() - 1;
        bind_to_cpu(cpu);
        let name = format!("ksoftirqd/{cpu}\n");
        let shared = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
        let ksoftirqd = shared.filter_map(|path| fs::read_dir(path).ok()).flatten().find_map(|entry| {
            let path = entry.ok()?.path();
            (fs::read_to_string(path.join("comm")).ok()? == name).then(|| path.join("schedstat"))
        });
        Self { ksoftirqd: ksoftirqd.unwrap_or_else(|| panic!("no thread ksoftirqd/{cpu}")) }
    }

    /// Nanoseconds.
    pub(crate) fn nanos(&self) -> u64 {
        let softirqs = fs::read_to_string(&self.ksoftirqd).unwrap();
        let softirqs: u64 = softirqs.split(' ').next().unwrap().parse().unwrap();
        let own = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
        let own = u64::try_from(own.tv_sec() * 1_000_000_000 + own.tv_nsec()).unwrap();
        softirqs + own
    }
}
