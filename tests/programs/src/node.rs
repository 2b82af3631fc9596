//! The inputs of the packet path: the content of the maps, the settings, the routes, the time, and the packet.

use std::fmt;
use std::ops::RangeInclusive;

use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::source_range::SourceRange;
use nodelb_core::state::entries::{Lead, MapState};
use nodelb_core::trace::{lookup_frontend, lookup_outside};

use crate::key::Hook;

/// The node as the packet programs see it.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    /// The content of the maps that the daemon writes.
    pub state: &'a MapState,
    pub settings: &'a Settings,
    /// The routes and neighbours of the kernel.
    pub routes: &'a dyn Routes,
    /// Nanoseconds of the coarse monotonic clock.
    pub now_ns: u64,
}

impl Node<'_> {
    /// Whether a packet to the address does not leave the node, if the network stack gets it.
    pub fn stays_here(&self, ifindex: u32, target: Addr) -> bool {
        match self.routes.route(&RouteQuery { ifindex, source: target, target }) {
            Route::Device { ifindex, .. } => !self.state.uplinks.contains_key(&ifindex),
            Route::NotForwarded | Route::NoForwarding => true,
            Route::Unreachable => false,
        }
    }

    /// The frontend at this address for clients at this hook. Pods are clients inside the node.
    pub fn frontend(&self, hook: Hook, to: L4Addr) -> Option<Lead> {
        let range = &self.settings.nodeport_range;
        match hook.is_pod() {
            // Only sockets reach the loopback address by it.
            true if to.addr.is_unspecified() => None,
            true => {
                let has_ranges = self.state.outside.get(&to).is_some_and(|entry| entry.has_ranges);
                lookup_frontend(self.state, range, to).map(|(_, entry)| Lead { has_ranges, ..entry.lead() })
            }
            false => lookup_outside(self.state, range, to).map(|(_, entry)| *entry),
        }
    }
}

impl fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("settings", self.settings).field("now_ns", &self.now_ns).finish_non_exhaustive()
    }
}

/// The constants of the packet programs, and `struct packet_settings` of `bpf/shared.h`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub nodeport_range: RangeInclusive<u16>,
    /// The ports of the node that connections to backends on other nodes use.
    pub source_ports: RangeInclusive<u16>,
    /// Which services leave new connections to the network stack.
    pub draining: Draining,
    /// What is done with TCP packets of unknown connections.
    pub unknown: Unknown,
    /// Whether packets that cannot be served are answered.
    pub answers: bool,
    /// Whether backends on this node see an address of the node, too.
    pub always_masquerades: bool,
    /// The network of the hosts that may send packets in tunnels; `None` if all may.
    pub tunnel_source: Option<SourceRange>,
}

/// The services to which no new connection is translated: `enum draining` of `bpf/shared.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draining {
    None,
    All,
    /// Those of Kubernetes, which another proxy serves.
    Kubernetes,
}

/// What is done with TCP packets of connections that no table contains: `enum unknown_packets` of `bpf/shared.h`. The
/// function knows no other proxies; the programs pass on their packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// They are passed on.
    Pass,
    /// They are answered with RST.
    Reset,
    /// They continue at a backend of this node that is certain, or are answered with RST.
    Auto,
    /// The same, and the daemon has seen another proxy.
    AutoWithProxy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// The device where the packet arrives.
    pub ifindex: u32,
    /// The source address of the packet.
    pub source: Addr,
    /// The destination address of the packet.
    pub target: Addr,
}

/// The result of a lookup in the kernel's routes, as bpf_fib_lookup() returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The packet leaves by a device.
    Device {
        /// The index of the device.
        ifindex: u32,
        /// The maximum size of a packet on the route, in bytes from the IP header.
        mtu: u32,
        /// The source address that the route prefers; `None` if the kernel does not report it.
        preferred: Option<Addr>,
        /// Whether the next hop is the destination itself.
        is_neighbor: bool,
        /// The link-layer addresses of the next hop and of the device, if the kernel knows the first one.
        macs: Option<([u8; 6], [u8; 6])>,
    },
    /// The address belongs to this node, or there is no route.
    NotForwarded,
    /// The device where the packet arrives does not forward packets.
    NoForwarding,
    /// A route discards such packets, or sends them with an encapsulation that the lookup does not support.
    Unreachable,
}

/// The routes and neighbours of the kernel.
pub trait Routes {
    fn route(&self, query: &RouteQuery) -> Route;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The frame, from the link-layer header.
    pub bytes: Vec<u8>,
    /// The index of the device.
    pub ifindex: u32,
    /// The index of the device where a packet that leaves has arrived; 0 if a process of the node has sent it.
    pub came_by: u32,
    /// The program that runs.
    pub hook: Hook,
    /// The length of the device's link-layer header in bytes, 14 or 0.
    pub l2_length: usize,
    /// Whether the kernel considers the packet to be sent to this host, as opposed to another host or to several.
    pub is_for_host: bool,
    /// The VLAN tag that the kernel has removed and keeps next to the packet.
    pub vlan_tag: Option<u16>,
    /// Whether a device or the kernel divides the packet later.
    pub is_gso: bool,
    /// Whether connection tracking sees the packet in the direction in which its connection has begun; otherwise it sees
    /// an answer.
    pub is_tracked_request: bool,
    /// Bytes that a program reads without a call; `None`: all of them.
    pub linear: Option<usize>,
    /// How the kernel knows the checksum.
    pub summed: Summed,
}

/// How the kernel knows the checksum of a packet: `enum summed` of `bpf/frame.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Summed {
    /// The sum is in the transport header.
    #[default]
    None = 0,
    /// A device has computed the sum of the whole packet.
    Complete = 2,
    /// The field is the sum of the addresses; a device adds the rest.
    Partial = 3,
}

/// What is done with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet continues to the network stack and to other programs.
    Next,
    /// The packet is discarded.
    Drop,
    /// The packet leaves by the device and does not pass the network stack. The kernel finds the neighbour.
    Redirect {
        /// The index of the device.
        ifindex: u32,
    },
    /// The packet has become an answer, which leaves by the device where the packet arrived.
    Reply,
}

/// Why a packet was not translated or not forwarded: `enum packet_reason` of `bpf/packet_reports.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A header is cut short, or cannot be read or written.
    Short,
    /// The time to live or the hop limit ended at this node.
    Ttl,
    /// The packet is larger than the MTU of the device that it would leave by.
    Mtu,
    /// A fragment of a service's datagram arrived before the first one.
    Fragment,
    /// The service has no usable backend.
    NoBackend,
    /// The service has usable backends, but none on this node.
    NoLocalBackend,
    /// The client is not in the service's source ranges.
    SourceRange,
    /// No source port is free for a connection to the backend.
    NoPort,
    /// The node has no route to the backend or to the client.
    NoRoute,
    /// The device does not forward packets.
    NoForwarding,
    /// The connection does not fit into the tables.
    NoRoom,
    /// A TCP packet of a connection that no table contains.
    Unknown,
    /// More packets would be answered per second than is allowed.
    AnswerRate,
    /// The way back to the client is not the one that it came by.
    ReversePath,
    /// As [`Self::Mtu`], and the sender allows fragments.
    MtuNoDf,
    /// More datagrams in fragments go to one address than there are ids.
    FragmentRate,
    /// The source of the packet is the address and port of a service.
    ServedSource,
    /// No service has the port or the protocol of the packet, and nothing else its address.
    NotServed,
    /// An echo request to an address that nothing else than nodelb has.
    Echo,
    /// An ICMP error about a datagram that anyone may have made up.
    FalseError,
    /// A policy of IPsec protects what would be sent.
    Ipsec,
    /// The route has an encapsulation.
    Encapsulation,
    /// A tunnel to a backend here, of a host that may send none.
    TunnelSource,
}

/// All reasons, in the order of `enum packet_reason`.
pub const REASONS: [Reason; 23] = [
    Reason::Short,
    Reason::Ttl,
    Reason::Mtu,
    Reason::Fragment,
    Reason::NoBackend,
    Reason::NoLocalBackend,
    Reason::SourceRange,
    Reason::NoPort,
    Reason::NoRoute,
    Reason::NoForwarding,
    Reason::NoRoom,
    Reason::Unknown,
    Reason::AnswerRate,
    Reason::ReversePath,
    Reason::MtuNoDf,
    Reason::FragmentRate,
    Reason::ServedSource,
    Reason::NotServed,
    Reason::Echo,
    Reason::FalseError,
    Reason::Ipsec,
    Reason::Encapsulation,
    Reason::TunnelSource,
];

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "short",
            Self::Ttl => "ttl",
            Self::Mtu => "mtu",
            Self::Fragment => "fragment",
            Self::NoBackend => "no-backend",
            Self::NoLocalBackend => "no-local-backend",
            Self::SourceRange => "source-range",
            Self::NoPort => "no-port",
            Self::NoRoute => "no-route",
            Self::NoForwarding => "no-forwarding",
            Self::NoRoom => "no-room",
            Self::Unknown => "unknown",
            Self::AnswerRate => "answer-rate",
            Self::ReversePath => "reverse-path",
            Self::MtuNoDf => "mtu-no-df",
            Self::FragmentRate => "fragment-rate",
            Self::ServedSource => "served-source",
            Self::NotServed => "not-served",
            Self::Echo => "echo",
            Self::FalseError => "false-error",
            Self::Ipsec => "ipsec",
            Self::Encapsulation => "encapsulation",
            Self::TunnelSource => "tunnel-source",
        })
    }
}
