//! How a packet is identified: the addresses and ports, the protocol, and the side of the device.

use std::fmt;
use std::net::SocketAddr;

use nodelb_core::model::addr::{Addr, Protocol};

/// Where a packet passes a device, as `enum packet_side` of `bpf/packet_entries.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    Arriving,
    Leaving,
    /// A client's packet at the device of a pod.
    FromPod,
}

/// A program of `bpf/packet.bpf.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// A packet arrives at an uplink.
    In,
    /// A packet leaves by an uplink.
    Out,
    /// A packet of a pod arrives at the pod's device.
    PodIn,
    /// A packet to a pod leaves by the pod's device.
    PodOut,
}

impl Hook {
    pub const fn side(self) -> Side {
        match self {
            Self::In => Side::Arriving,
            Self::PodIn => Side::FromPod,
            Self::Out | Self::PodOut => Side::Leaving,
        }
    }

    /// Whether the device is a pod's.
    pub const fn is_pod(self) -> bool {
        matches!(self, Self::PodIn | Self::PodOut)
    }
}

/// An address with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub addr: Addr,
    /// The port in host byte order.
    pub port: u16,
}

impl Endpoint {
    /// The endpoint of these two parts.
    pub const fn new(addr: Addr, port: u16) -> Self {
        Self { addr, port }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.addr.ip(), self.port).fmt(f)
    }
}

/// The two ends of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// The end that sends the packet.
    pub source: Endpoint,
    /// The end that receives the packet.
    pub target: Endpoint,
}

impl Tuple {
    /// The tuple of a packet in the opposite direction.
    #[must_use]
    pub const fn turned(self) -> Self {
        Self { source: self.target, target: self.source }
    }
}

impl fmt::Display for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.source, self.target)
    }
}

/// The key of a connection's entry, `struct packet_key` of `bpf/packet_entries.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketKey {
    /// The ends of the packet.
    pub tuple: Tuple,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Where the packet passes a device.
    pub side: Side,
}

/// The key of a datagram that was split, `struct fragment_key` of `bpf/packet_entries.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentKey {
    /// The address that sends the datagram.
    pub source: Addr,
    /// The address that receives the datagram.
    pub target: Addr,
    /// The identification that all fragments of the datagram have in common; 16 bits with IPv4.
    pub id: u32,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Where the fragment passes a device.
    pub side: Side,
}
