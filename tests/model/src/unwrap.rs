//! Direct return, at the backend's node: takes packets out of the tunnel in which another node has sent them.

use nodelb_core::model::addr::{Family, L4Addr, Protocol};
use nodelb_core::model::forward::Forward;

use crate::connections::{Connection, Tables, is_plain_syn};
use crate::headers::{Content, Headers, IPV4, IPV6, Parsed, parse, parse_inner, write_type};
use crate::icmp;
use crate::key::{FragmentKey, Hook, PacketKey, Side};
use crate::node::{Node, Packet, Route, RouteQuery};
use crate::rule::Rule;

/// The packet in the tunnel with its headers, if the tunnel ends at this node and is another nodelb's. From then on it is a
/// packet of a client outside; one of another family than the tunnel is for the network stack.
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
    if inner.end > outer.end {
        return None;
    }
    let key = client_key(node, tables, packet, &inner)?;
    if tables.keeps(Rule::OnlyOwnTunnels) && !is_own((node, tables, packet), &key, (&inner, outer)) {
        return None;
    }
    let mut bytes = [&packet.bytes[..outer.ip], &packet.bytes[outer.transport..]].concat();
    if family != outer.family {
        if !node.stays_here(packet.ifindex, key.tuple.target.addr) {
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

/// Whether the tunnel is another nodelb's: it leads to a backend of a service with packets in tunnels, or to that of a
/// connection that this node translates; the service may have changed since it began.
fn is_own(
    (node, tables, packet): (&Node<'_>, &Tables, &Packet),
    key: &PacketKey,
    (inner, outer): (&Headers, &Headers),
) -> bool {
    let is_translated = |entry: &Connection| {
        !entry.flags.is_reverse && !entry.flags.is_forwarded && entry.to.target.addr == outer.target
    };
    let is_syn = matches!(inner.content, Content::Transport(_, ports) if is_plain_syn(ports.tcp_flags));
    let is_in_the_middle = key.protocol == Protocol::Tcp && !is_syn;
    let is_established = tables.connections.get(key).is_some_and(is_translated);
    let is_known = is_established || tables.half_open.get(key).is_some_and(is_translated);
    let to = L4Addr::new(key.tuple.target.addr, key.tuple.target.port, key.protocol);
    let frontend = node.frontend(packet.hook, to);
    let service = frontend.and_then(|frontend| node.state.services.get(&frontend.service));
    let is_of_backend = || service.is_some_and(|it| it.cluster.iter().any(|slot| slot.addr.addr == outer.target));
    match node.forward(packet.hook, to) {
        _ if is_established && is_in_the_middle => true,
        Forward::Tunnel => is_known || is_of_backend(),
        // Without the service, the network stack would get the packet.
        Forward::Translate | Forward::Direct => is_known && is_in_the_middle && frontend.is_some(),
    }
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
