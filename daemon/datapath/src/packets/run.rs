//! Runs a program of the packet path on a given packet (BPF_PROG_TEST_RUN), without any device that sends it.

use std::io;
use std::mem::offset_of;

use crate::packets::load::{PacketHook, PacketPrograms};
use crate::skeleton::packet::types::__sk_buff;
use crate::sys;

/// Space for what a program adds to a packet, in bytes: headers of an ICMP error.
const ROOM: usize = 256;

#[derive(Clone, Debug)]
pub struct Packet {
    /// The bytes, with the link-layer header if the device has one. The kernel requires 14 bytes at least, and reads
    /// the protocol from bytes 12 and 13.
    pub bytes: Vec<u8>,
    /// Index of the device, in the network namespace of the caller.
    pub ifindex: u32,
    /// Index of the device where a packet that leaves has arrived; 0 if a process of this node sends it.
    pub came_by: u32,
    /// Payload of each packet that the device makes of this one in bytes; 0: it is sent as it is.
    pub gso_size: u32,
}

/// What a program decided, and what it made of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The return value: -1 to pass the packet on, 2 to drop it, 7 to redirect it.
    pub code: i32,
    pub bytes: Vec<u8>,
}

impl PacketPrograms {
    pub fn run(&self, hook: PacketHook, packet: &Packet) -> io::Result<Verdict> {
        self.run_repeatedly(hook, packet, 1)
    }

    /// Runs it this many times, each time on what the last run has left of the packet. Returns the last verdict.
    pub fn run_repeatedly(&self, hook: PacketHook, packet: &Packet, times: u32) -> io::Result<Verdict> {
        let mut context = [0; size_of::<__sk_buff>()];
        let mut set = |at: usize, value: u32| context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        set(offset_of!(__sk_buff, ifindex), packet.ifindex);
        set(offset_of!(__sk_buff, ingress_ifindex), packet.came_by);
        set(offset_of!(__sk_buff, gso_size), packet.gso_size);
        let mut bytes = vec![0; packet.bytes.len() + ROOM];
        let (code, length) = sys::test_run(self.program(hook), &context, (&packet.bytes, times), &mut bytes)?;
        bytes.truncate(length);
        Ok(Verdict { code: code.cast_signed(), bytes })
    }
}
