//! The XDP program on the same packets: it leaves everything as it is, or does the same as the program at tc.

use std::fmt::Write as _;

use libbpf_rs::{MapCore as _, MapFlags};
use nodelb_datapath::packets::{self, XdpDevice, XdpProgram};
use nodelb_model::key::Hook;
use nodelb_model::node::Packet;

use crate::kernel::{Entry, Kernel, Ran};
use crate::print;
use crate::world::World;

const PASS: i32 = 2;
const REDIRECT: i32 = 4;

/// ENOSPC.
const NO_ROOM: i32 = 28;

/// Length of an Ethernet header in bytes.
const ETHERNET: usize = 14;

/// The maps that the program at tc may change, apart from counts.
const MAPS: [&str; 4] = ["connections", "half_open", "fragments", "affinity"];

/// Where `last_used` is in an entry of `connections` or `half_open`.
const LAST_USED: std::ops::Range<usize> = 52..56;

/// Everything that a packet may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Everything {
    maps: [Vec<Entry>; MAPS.len()],
    counts: Vec<u64>,
}

impl Everything {
    /// The entries of `connections` or `half_open`.
    fn without_times(&self, map: usize) -> Vec<Entry> {
        let mut entries = self.maps[map].clone();
        entries.iter_mut().for_each(|(_, value)| value[LAST_USED].fill(0));
        entries.sort();
        entries
    }

    /// What was counted since.
    fn counted_since(&self, before: &Self) -> Vec<u64> {
        self.counts.iter().zip(&before.counts).map(|(now, then)| now.wrapping_sub(*then)).collect()
    }
}

/// What the program did with a packet that it translated.
#[derive(Debug)]
pub(crate) struct Translated {
    /// The verdict and the frame; `None` if the frame has become longer, for which the kernel had no room.
    left: Option<(i32, Vec<u8>)>,
    before: Everything,
    after: Everything,
}

impl Kernel {
    /// Tells the program what the devices are.
    pub(crate) fn describe_devices(xdp: &XdpProgram, world: &World) {
        for device in world.devices.values().filter(|device| device.l2_length == ETHERNET) {
            xdp.set_device(device.ifindex, Some(XdpDevice { mac: device.mac, sends: true })).unwrap();
        }
    }

    fn everything(&self) -> Everything {
        let cpus = self.map("packet_counts").lookup_percpu(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        let words = |cpu: &Vec<u8>| -> Vec<u64> {
            cpu.chunks_exact(8).take(5 + 33).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
        };
        let sum = |sum: Vec<u64>, cpu: Vec<u64>| sum.iter().zip(cpu).map(|(a, b)| a.wrapping_add(b)).collect();
        let counts = cpus.iter().map(words).reduce(sum).unwrap();
        Everything { maps: MAPS.map(|map| self.entries(map)), counts }
    }

    /// Runs the XDP program on the packet, and undoes what it did. The error is what it must not do.
    pub(crate) fn run_xdp(&mut self, packet: &Packet) -> Result<Option<Translated>, String> {
        if packet.hook != Hook::In || packet.l2_length != ETHERNET || packet.is_gso {
            return Ok(None);
        }
        let input = packets::Packet { bytes: packet.bytes.clone(), ifindex: packet.ifindex, came_by: 0, gso_size: 0 };
        let before = self.everything();
        // The first packet to a neighbour in each second is passed on.
        for _ in 0..2 {
            let left = match self.xdp.run(&input, 1) {
                Ok(ran) => Some((ran.code, ran.bytes)),
                Err(error) if error.raw_os_error() == Some(NO_ROOM) => None,
                Err(error) => return Err(format!("  XDP: {error}\n")),
            };
            let after = self.everything();
            if left.as_ref().is_none_or(|(code, _)| *code != PASS) {
                self.put_entries("connections", &before.maps[0]);
                self.put_entries("half_open", &before.maps[1]);
                return Ok(Some(Translated { left, before, after }));
            }
            if left.is_some_and(|(_, bytes)| bytes != packet.bytes) || after != before {
                return Err("  XDP has passed the packet on with a change\n".into());
            }
        }
        Ok(None)
    }

    /// What differs from what the program at tc has now done with the same packet.
    pub(crate) fn compare_xdp(&mut self, translated: &Translated, world: &World, ran: &Ran) -> String {
        let Translated { left, before, after } = translated;
        let mut text = match left {
            Some(left) => compare_frames(left, world, ran),
            None if ran.code == 7 => String::new(),
            None => format!("  XDP has put the packet into a tunnel, tc has returned {}\n", ran.code),
        };
        let now = self.everything();
        let differs = |map: usize| after.without_times(map) != now.without_times(map);
        if differs(0) || differs(1) || after.maps[2..] != now.maps[2..] {
            for (map, (xdp, tc)) in MAPS.iter().zip(after.maps.iter().zip(&now.maps)) {
                let only = |one: &[Entry], other: &[Entry]| -> Vec<Entry> {
                    one.iter().filter(|entry| !other.contains(entry)).cloned().collect()
                };
                let _ = writeln!(text, "  {map} after XDP {:?}\n  after tc {:?}", only(xdp, tc), only(tc, xdp));
            }
        }
        let (xdp, tc) = (after.counted_since(before), now.counted_since(after));
        if xdp != tc {
            let _ = writeln!(text, "  XDP has counted {xdp:?}, tc {tc:?}");
        }
        text
    }
}

/// What differs between the frames, which the kernel links to the neighbour of the route only for XDP.
fn compare_frames((code, bytes): &(i32, Vec<u8>), world: &World, ran: &Ran) -> String {
    let mut text = String::new();
    if *code != REDIRECT || ran.code != 7 {
        let _ = writeln!(text, "  XDP has returned {code}, tc {}", ran.code);
    }
    let Some((link, ip)) = bytes.split_at_checked(ETHERNET).filter(|_| ran.bytes.len() == bytes.len()) else {
        return format!("{text}  XDP has returned {} bytes, tc {}\n", bytes.len(), ran.bytes.len());
    };
    if *ip != ran.bytes[ETHERNET..] {
        let (xdp, tc) = (print::hex(ip), print::hex(&ran.bytes[ETHERNET..]));
        let _ = writeln!(text, "  XDP {xdp}\n  tc  {tc}");
    }
    let is_neighbor =
        world.routes.iter().any(|route| route.neighbor.or(route.host).is_some_and(|mac| mac == link[..6]));
    let is_own = world.devices.values().any(|device| device.mac == link[6..12]);
    if !is_neighbor || !is_own || link[12..] != ran.bytes[12..ETHERNET] {
        let _ = writeln!(text, "  XDP has written the link-layer header {}", print::hex(link));
    }
    text
}
