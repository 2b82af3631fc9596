//! The source ports that connection tracking has given to connections of other proxies and network plugins. The packet
//! programs can query connection tracking themselves if it is built into the kernel; if it is a module, that takes
//! CAP_SYS_ADMIN at their load, which the daemon does not have. The ports are listed instead.

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;

use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_datapath::packets::ForeignConnections;

use super::netfilter::{Netfilter, attribute};

/// The directory exists if connection tracking is built in or loaded, the file only if it is a module.
const DIRECTORY: &str = "/sys/module/nf_conntrack";
const MODULE: &str = "/sys/module/nf_conntrack/initstate";

/// `NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET`, and attributes of `linux/netfilter/nfnetlink_conntrack.h`.
const GET: u16 = 1 << 8 | 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const V4_SOURCE: u16 = 1;
const V4_TARGET: u16 = 2;
const V6_SOURCE: u16 = 3;
const V6_TARGET: u16 = 4;
const PROTO_NUMBER: u16 = 1;
const PROTO_SOURCE_PORT: u16 = 2;
const PROTO_TARGET_PORT: u16 = 3;

const PROTOINFO: u16 = 4;
const PROTOINFO_TCP: u16 = 1;
const PROTOINFO_TCP_STATE: u16 = 1;

/// `TCP_CONNTRACK_TIME_WAIT` and `TCP_CONNTRACK_CLOSE`: both ends have closed the connection, or one has reset it.
const OVER: [u8; 2] = [7, 8];

/// `IPS_SRC_NAT`: the source was replaced.
const SOURCE_NAT: u32 = 1 << 4;

/// Whether connection tracking is built into the kernel, so that programs can query it.
pub(crate) fn is_built_in() -> bool {
    is_there() && !Path::new(MODULE).exists()
}

/// Whether the kernel has connection tracking at the moment. A request would load the module.
fn is_there() -> bool {
    Path::new(DIRECTORY).exists()
}

/// The connections of this network namespace with a replaced source, which has one of these ports; without those that have
/// ended, which conntrack keeps for two minutes. nodelb makes none:
/// connection tracking does not see its packets to other nodes.
///
/// # Errors
/// If this process lacks CAP_NET_ADMIN, or the kernel does not answer.
pub(crate) fn masqueraded(ports: &RangeInclusive<u16>) -> io::Result<ForeignConnections> {
    let mut found = ForeignConnections::new();
    let Some(socket) = is_there().then(Netfilter::open).transpose()?.flatten() else { return Ok(found) };
    // The kernel lists only connections with this status, since 5.16.
    let status = [&8_u16.to_ne_bytes()[..], &STATUS.to_ne_bytes(), &SOURCE_NAT.to_be_bytes()].concat();
    socket.list(GET, &status, |_, attributes| {
        found.extend(ends(attributes).filter(|(_, source)| ports.contains(&source.port)));
    })?;
    Ok(found)
}

/// The ends of a connection with a replaced source that has not ended, as its answers have them.
fn ends(attributes: &[u8]) -> Option<(L4Addr, L4Addr)> {
    let status = u32::from_be_bytes(*attribute(attributes, STATUS)?.first_chunk()?);
    let reply = attribute(attributes, TUPLE_REPLY).filter(|_| status & SOURCE_NAT != 0)?;
    let state = attribute(attributes, PROTOINFO)
        .and_then(|info| attribute(info, PROTOINFO_TCP))
        .and_then(|tcp| attribute(tcp, PROTOINFO_TCP_STATE)?.first());
    if state.is_some_and(|state| OVER.contains(state)) {
        return None;
    }
    let (ip, proto) = (attribute(reply, TUPLE_IP)?, attribute(reply, TUPLE_PROTO)?);
    let protocol = Protocol::from_repr(*attribute(proto, PROTO_NUMBER)?.first()?)?;
    let end = |v4, v6, port| {
        let addr = match attribute(ip, v4) {
            Some(octets) => IpAddr::from(*octets.first_chunk::<4>()?),
            None => IpAddr::from(*attribute(ip, v6)?.first_chunk::<16>()?),
        };
        Some(L4Addr::new(Addr::from(addr), u16::from_be_bytes(*attribute(proto, port)?.first_chunk()?), protocol))
    };
    Some((end(V4_SOURCE, V6_SOURCE, PROTO_SOURCE_PORT)?, end(V4_TARGET, V6_TARGET, PROTO_TARGET_PORT)?))
}

#[cfg(test)]
#[path = "tests/conntrack.rs"]
mod tests;
