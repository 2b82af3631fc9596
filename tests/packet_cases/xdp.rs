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
const HALF_OPEN: usize = 1;
const AFFINITY: usize = 3;

/// Where the time of the last use is in an entry of each map; a fragment's does not change.
const LAST_USED: [std::ops::Range<usize>; MAPS.len()] = [52..56, 52..56, 0..0, 0..8];

/// Everything that a packet may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Everything {
    maps: [Vec<Entry>; MAPS.len()],
    counts: Vec<u64>,
}

impl Everything {
    fn without_times(&self) -> [Vec<Entry>; MAPS.len()] {
        let mut maps = self.maps.clone();
        for (entries, last_used) in maps.iter_mut().zip(LAST_USED) {
            entries.iter_mut().for_each(|(_, value)| value[last_used.clone()].fill(0));
            entries.sort();
        }
        maps
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

impl Translated {
    /// Whether the packet has begun a connection.
    pub(crate) fn has_begun(&self) -> bool {
        self.after.maps[HALF_OPEN].len() > self.before.maps[HALF_OPEN].len()
    }
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

    /// Makes the maps what they were before the program ran.
    fn undo(&self, before: &Everything, after: &Everything, cursors: &[(u32, u32)]) {
        for (map, (before, after)) in MAPS.iter().zip(before.maps.iter().zip(&after.maps)) {
            for (key, _) in after.iter().filter(|(key, _)| !before.iter().any(|(other, _)| other == key)) {
                self.map(map).delete(key).unwrap();
            }
            self.put_entries(map, before);
        }
        self.put_first("snat_cursors", &cursors.iter().flat_map(|(_, port)| port.to_ne_bytes()).collect::<Vec<_>>());
    }

    /// Runs the XDP program on the packet, and undoes what it did. The error is what it must not do.
    pub(crate) fn run_xdp(&mut self, packet: &Packet) -> Result<Option<Translated>, String> {
        if packet.hook != Hook::In || packet.l2_length != ETHERNET || packet.is_gso {
            return Ok(None);
        }
        let input = packets::Packet { bytes: packet.bytes.clone(), ifindex: packet.ifindex, came_by: 0, gso_size: 0 };
        let (before, cursors) = (self.everything(), self.cursors().collect::<Vec<_>>());
        // The first packet to a neighbour in each second is passed on.
        for _ in 0..2 {
            let left = match self.xdp.run(&input, 1) {
                Ok(ran) => Some((ran.code, ran.bytes)),
                Err(error) if error.raw_os_error() == Some(NO_ROOM) => None,
                Err(error) => return Err(format!("  XDP: {error}\n")),
            };
            let after = self.everything();
            if left.as_ref().is_none_or(|(code, _)| *code != PASS) {
                self.undo(&before, &after, &cursors);
                return Ok(Some(Translated { left, before, after }));
            }
            // The program at tc makes the same choice by session affinity again.
            if left.is_some_and(|(_, bytes)| bytes != packet.bytes)
                || after.maps[..AFFINITY] != before.maps[..AFFINITY]
                || after.counts != before.counts
            {
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
        let (early, late) = (after.without_times(), now.without_times());
        if early != late {
            for (map, (xdp, tc)) in MAPS.iter().zip(early.iter().zip(&late)) {
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
