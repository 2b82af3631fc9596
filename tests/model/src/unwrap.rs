//! Direct return, at the backend's node: takes packets out of the tunnel in which another node has sent them.

use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;

use crate::connections::{Connection, Tables, is_plain_syn};
use crate::headers::{Content, Headers, IPV4, IPV6, Parsed, parse, parse_inner, write_type};
use crate::icmp;
use crate::key::{Endpoint, FragmentKey, Hook, PacketKey, Side};
use crate::node::{Node, Packet, Route, RouteQuery};
use crate::rule::Rule;

/// The packet in the tunnel with its headers, if the tunnel ends at this node, and the packet is for a service with
/// packets in tunnels. From then on it is a packet of a client outside; one of another family than the tunnel is for the
/// network stack.
pub(crate) fn unwrapped(
    node: &Node<'_>,
    tables: &Tables,
    packet: &Packet,
    outer: &Headers,
) -> Option<(Packet, Headers)> {
    let Content::Tunnel(family) = outer.content else { return None };
    let header = if outer.family == Family::Ipv4 { IPV4 } else { IPV6 };
    let is_plain = outer.transport - outer.ip == header;
    if packet.hook != Hook::In || !is_plain || !ends_here(node, packet.ifindex, outer) {
        return None;
    }
    let Parsed::Packet(inner) = parse_inner(&packet.bytes, outer, family, packet.is_gso) else { return None };
    let key = client_key(node, tables, packet, &inner)?;
    let (to, protocol) = (key.tuple.target, key.protocol);
    let forward = node.forward(packet.hook, L4Addr::new(to.addr, to.port, protocol));
    if forward != Forward::Tunnel
        && !is_translated(tables, &key, (&inner, outer.target))
        && tables.keeps(Rule::OnlyTunnelledServices)
    {
        return None;
    }
    let mut bytes = [&packet.bytes[..outer.ip], &packet.bytes[outer.transport..]].concat();
    if family != outer.family {
        if !is_of_backend(node, packet, outer, (to, protocol)) || !node.stays_here(packet.ifindex, to.addr) {
            return None;
        }
        write_type(&mut bytes, packet.l2_length, family);
    }
    match parse(&bytes, packet.l2_length, packet.is_gso) {
        Parsed::Packet(headers) => Some((Packet { bytes, ..packet.clone() }, headers)),
        Parsed::Foreign | Parsed::Short => None,
    }
}

/// Whether the tunnel ends at a backend on this node, or at the node itself.
fn ends_here(node: &Node<'_>, ifindex: u32, outer: &Headers) -> bool {
    let query = RouteQuery { ifindex, source: outer.source, target: outer.target };
    let is_inside = || match node.routes.route(&query) {
        Route::Device { ifindex, .. } => !node.state.uplinks.contains_key(&ifindex),
        Route::NotForwarded | Route::NoForwarding | Route::Unreachable => false,
    };
    node.state.node_addrs.contains(&outer.target) || is_inside()
}

/// Whether the tunnel leads to the address of a backend of the service.
fn is_of_backend(node: &Node<'_>, packet: &Packet, outer: &Headers, (to, protocol): (Endpoint, Protocol)) -> bool {
    let frontend = node.frontend(packet.hook, L4Addr::new(to.addr, to.port, protocol));
    let service = frontend.and_then(|frontend| node.state.services.get(&frontend.service));
    service.is_some_and(|service| service.cluster.iter().any(|slot| slot.addr.addr == outer.target))
}

/// Whether the packet belongs to an established connection with the backend where its tunnel ends. The service may have
/// changed since.
fn is_translated(tables: &Tables, key: &PacketKey, (inner, end): (&Headers, Addr)) -> bool {
    let is_syn = matches!(inner.content, Content::Transport(_, ports) if is_plain_syn(ports.tcp_flags));
    let is_of_backend = |entry: &Connection| !entry.flags.is_reverse && entry.to.target.addr == end;
    key.protocol == Protocol::Tcp && !is_syn && tables.connections.get(key).is_some_and(is_of_backend)
}

/// The key of the packet, or of the client's packets of the connection that the error is about.
fn client_key(node: &Node<'_>, tables: &Tables, packet: &Packet, inner: &Headers) -> Option<PacketKey> {
    let side = Side::Arriving;
    let (tuple, protocol) = match inner.content {
        Content::Transport(protocol, ports) => (inner.tuple(ports.source, ports.target), protocol),
        Content::LaterFragment(protocol) => {
            let (source, id) = (inner.source, inner.fragment?.id);
            let ports =
                tables.fragment(&FragmentKey { source, target: inner.target, id, protocol, side }, node.now())?;
            (inner.tuple(ports.source, ports.target), protocol)
        }
        Content::IcmpError => {
            let (_, protocol, tuple) = icmp::quoted(&packet.bytes, inner)?;
            let is_to_sender = tuple.source.addr == inner.target;
            (is_to_sender.then(|| tuple.turned())?, protocol)
        }
        Content::Tunnel(_) => return None,
    };
    Some(PacketKey { tuple, protocol, side })
}
