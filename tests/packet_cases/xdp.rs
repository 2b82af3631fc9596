//! The XDP program in the kernel and on the host. `packet_xdp.rs` compares it with the programs at tc.

use std::fmt::Write as _;

use libbpf_rs::MapCore as _;
use nix::time::{ClockId, clock_gettime};
use nodelb_datapath::packets::{self, XdpDevice};
use nodelb_programs::key::Hook;
use nodelb_programs::node::{Node, Packet, Verdict};

use crate::kernel::{Entries, Kernel, TABLES, Tables, sorted};
use crate::print;
use crate::world::World;

/// `XDP_PASS` and `XDP_REDIRECT`.
const PASS: i32 = 2;
const REDIRECT: i32 = 4;

/// ENOSPC.
const NO_ROOM: i32 = 28;

/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;

impl Kernel {
    /// Tells the program what the devices are.
    pub(crate) fn describe_devices(&mut self, world: &World) {
        for device in world.devices.values().filter(|device| device.l2_length == ETHERNET) {
            self.xdp.set_device(device.ifindex, Some(XdpDevice { mac: device.mac, sends: true })).unwrap();
            self.host.describe_device(device.ifindex, device.mac);
        }
    }

    /// Makes the maps what they were before the program ran.
    fn undo(&self, before: &Tables, cursors: &Entries) {
        for (map, before) in TABLES.iter().zip(before) {
            let after = sorted(self.entries(map));
            for (key, _) in after.iter().filter(|(key, _)| !before.iter().any(|(other, _)| other == key)) {
                self.map(map).delete(key).unwrap();
            }
            self.put_entries(map, before);
        }
        self.put_first("snat_cursors", &cursors.iter().flat_map(|(_, port)| port.clone()).collect::<Vec<_>>());
    }

    /// Runs the XDP program in the kernel on the packet. Returns the verdict and the frame; no frame if it has become
    /// longer, for which the kernel had no room.
    fn run_xdp(&mut self, packet: &Packet) -> (i32, Option<Vec<u8>>) {
        let input = packets::Packet { bytes: packet.bytes.clone(), ifindex: packet.ifindex, came_by: 0, gso_size: 0 };
        match self.xdp.run(&input, 1) {
            Ok(ran) => (ran.code, Some(ran.bytes)),
            Err(error) if error.raw_os_error() == Some(NO_ROOM) => (REDIRECT, None),
            Err(error) => panic!("the kernel does not run the XDP program on the packet: {error}"),
        }
    }

    /// Runs the XDP program in both on the packet, and undoes what it did. Returns what differs.
    pub(crate) fn compare_xdp(&mut self, world: &World, packet: &Packet) -> String {
        let mut text = String::new();
        if packet.hook != Hook::In || packet.l2_length != ETHERNET || packet.is_gso || packet.bytes.len() < ETHERNET {
            return text;
        }
        let before = self.known.take().unwrap_or_else(|| {
            let both = self.tables();
            self.follow(&both);
            let [before, _] = both;
            before
        });
        let cursors = self.cursors().collect::<Entries>();
        self.follow_cursors();
        self.host.save();
        let now = || clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
        let (started, now_ns) = (now().tv_sec(), u64::try_from(now().tv_sec() * 1_000_000_000).unwrap());
        // On each processor, the first packet to a neighbour in each second is passed on, and the kernel may have passed
        // one on.
        let mut ran = self.run_xdp(packet);
        for _ in 0..libbpf_rs::num_possible_cpus().unwrap() {
            if ran.0 != PASS {
                break;
            }
            ran = self.run_xdp(packet);
        }
        let node = Node { now_ns, ..world.node() };
        let mut outcome = self.host.run_xdp(&node, packet);
        if outcome.verdict == Verdict::Next {
            outcome = self.host.run_xdp(&node, packet);
        }
        let (code, frame) = ran;
        self.translated_early += usize::from(code != PASS);
        if (code == PASS) != (outcome.verdict == Verdict::Next) {
            let _ = writeln!(text, "  XDP: kernel {code}, host {:?}", outcome.verdict);
        }
        if let Some(frame) = frame.filter(|frame| *frame != outcome.bytes) {
            let _ =
                writeln!(text, "  XDP: kernel {}\n       host   {}", print::hex(&frame), print::hex(&outcome.bytes));
        }
        if now().tv_sec() != started {
            text.clear();
        }
        self.undo(&before, &cursors);
        self.host.restore();
        self.known = Some(before);
        text
    }
}
