//! The way of a packet that does not pass the network stack of this node.

use nodelb_core::model::addr::{Family, Protocol};

use crate::bytes::{put16, wire};
use crate::checksum;
use crate::connections::{Connection, NEAR, is_plain_syn, is_within};
use crate::headers::tcp_flags::{FIN, RST};
use crate::headers::{Content, Headers, IPV4, IPV6, Ports, tunnel_number, write_type};
use crate::hook_state::{Decision, HookState};
use crate::key::PacketKey;
use crate::node::{Reason, Route, RouteQuery, Verdict};
use crate::reject::IcmpError;
use crate::rewrite;
use crate::rule::Rule;

/// Sends the translated frame by the device of the route. The packet of `state` is the frame before the translation; an
/// error about it goes to the sender if it cannot be forwarded.
pub(crate) fn redirect(state: &mut HookState<'_>, entry: &Connection, mut bytes: Vec<u8>) -> Decision {
    state.service = entry.service;
    if state.headers.ttl <= 1 {
        return state.answer_icmp(IcmpError::TimeExceeded, Reason::Ttl);
    }
    // The best route, wherever the client's packets come from.
    let (source, target) = (entry.to.source.addr, entry.to.target.addr);
    let query = RouteQuery { ifindex: state.packet.ifindex, source, target };
    let (ifindex, mtu) = match state.node.routes.route(&query) {
        Route::Device { ifindex, mtu, .. } => (ifindex, mtu),
        Route::NoForwarding => return state.discard(Reason::NoForwarding),
        Route::NotForwarded | Route::Unreachable => return state.discard(Reason::NoRoute),
    };
    if state.headers.length() > mtu as usize && !state.packet.is_gso {
        let reason = if state.headers.may_be_split { Reason::MtuNoDf } else { Reason::Mtu };
        return state.answer_icmp(IcmpError::TooBig(mtu), reason);
    }
    if let Some(id) = state.new_id {
        rewrite::write_id(&mut bytes, &state.headers, id);
    }
    rewrite::write_ttl(&mut bytes, &state.headers, state.headers.ttl - 1);
    Decision { verdict: Verdict::Redirect { ifindex }, bytes, reason: None }
}

/// Time to live and hop limit of a tunnel.
const TUNNEL_TTL: u8 = 64;

/// The same of what is sent on unchanged. What arrives with so short a time to live may come from another node, and is not
/// sent on.
pub(crate) const DIRECT_TTL: u8 = 4;

/// Whether another node may have sent the packet of the entry here unchanged.
pub(crate) const fn has_short_ttl(headers: &Headers, entry: &Connection) -> bool {
    entry.flags.is_forwarded && !entry.flags.is_tunnelled && headers.ttl <= DIRECT_TTL
}

/// Sends the packet as it is to a backend that answers the client itself, or in a tunnel. A packet that has come in a tunnel
/// is never sent on: the two nodes might disagree.
pub(crate) fn unchanged(state: &mut HookState<'_>, entry: &Connection) -> Decision {
    state.service = entry.service;
    let is_error = state.headers.content == Content::IcmpError;
    if state.headers.ttl <= 1 || has_short_ttl(&state.headers, entry) {
        // An error is never answered.
        return match is_error {
            true => state.discard(Reason::NoRoute),
            false => state.answer_icmp(IcmpError::TimeExceeded, Reason::Ttl),
        };
    }
    if state.tunnel_end.is_some() && state.tables.keeps(Rule::UnwrappedStays) {
        let is_syn = matches!(state.headers.content, Content::Transport(_, ports) if is_plain_syn(ports.tcp_flags));
        // The client begins again with another port.
        return if is_syn { state.answer_reset(Reason::NoRoute) } else { state.discard(Reason::NoRoute) };
    }
    let (source, target) = (entry.to.source.addr, entry.to.target.addr);
    let query = RouteQuery { ifindex: state.packet.ifindex, source, target };
    let (ifindex, mtu, is_neighbor) = match state.node.routes.route(&query) {
        Route::Device { ifindex, mtu, is_neighbor, .. } => (ifindex, mtu, is_neighbor),
        Route::NoForwarding if !is_error => return state.discard(Reason::NoForwarding),
        Route::NoForwarding | Route::NotForwarded | Route::Unreachable => return state.discard(Reason::NoRoute),
    };
    let outer = if entry.flags.is_tunnelled { header_length(target.family()) } else { 0 };
    if state.headers.length() + outer > mtu as usize && !state.packet.is_gso {
        if is_error {
            return state.discard(Reason::NoRoute);
        }
        let reason = if state.headers.may_be_split { Reason::MtuNoDf } else { Reason::Mtu };
        let room = mtu.saturating_sub(u32::try_from(outer).unwrap_or(0));
        return state.answer_icmp(IcmpError::TooBig(room), reason);
    }
    let has_ethernet = state.node.state.uplinks.get(&ifindex).is_some_and(|uplink| uplink.l2_length != 0);
    let is_reached = entry.flags.is_tunnelled || (is_neighbor && has_ethernet);
    if !is_reached {
        return state.discard(Reason::NoRoute);
    }
    let mut bytes = state.packet.bytes.clone();
    let ttl = if entry.flags.is_tunnelled { state.headers.ttl - 1 } else { DIRECT_TTL };
    rewrite::write_ttl(&mut bytes, &state.headers, ttl);
    if entry.flags.is_tunnelled {
        let header = tunnel_header(&bytes, &state.headers, entry);
        bytes.splice(state.headers.ip..state.headers.ip, header);
        write_type(&mut bytes, state.packet.l2_length, target.family());
    }
    state.next_hop = Some(target);
    Decision { verdict: Verdict::Redirect { ifindex }, bytes, reason: None }
}

/// Whether another node may have sent the packet here, although the connection of the entry has begun here with another
/// backend.
pub(crate) fn is_sent_on(state: &HookState<'_>, entry: &Connection) -> bool {
    state.tunnel_end.is_some() || has_short_ttl(&state.headers, entry)
}

/// Records in the entry that it forwards the packet, unless another node has sent it here. Anyone can send a SYN,
/// which is only noted if nothing else has come.
pub(crate) fn touch(state: &mut HookState<'_>, key: &PacketKey, ports: &Ports) {
    if state.tables.half_open.get(key).is_some_and(|entry| is_sent_on(state, entry)) {
        return;
    }
    let (now, length) = (state.node.now(), state.headers.length());
    let rules = (state.tables.keeps(Rule::FinInWindow), state.tables.keeps(Rule::FarNumberIsDoubted));
    if let Some(entry) = state.tables.half_open.get_mut(key) {
        entry.bytes += length as u64;
        let is_syn = is_plain_syn(ports.tcp_flags);
        if !is_syn || !entry.flags.is_assured {
            entry.last_used = now;
        }
        if !is_syn {
            entry.flags.is_assured = true;
            if key.protocol == Protocol::Tcp {
                note_sequence(entry, ports, rules);
            }
        }
    }
}

/// How far a number may be from the last one: nothing else is known of the connection, and packets may be joined or lost.
const FORWARDED_NEAR: u32 = 4 * NEAR;

/// How far behind the last number the client may repeat what was lost.
const MOST_REPEATED: u32 = 4 << 20;

/// Notes the number of a client's packet, and whether the connection ends, as its numbers show. If data follows a FIN or a
/// RST after all, that was a stranger's. If a number is far from the last one, a stranger may have begun the entry: then no
/// number is known any more, and no FIN counts.
fn note_sequence(entry: &mut Connection, ports: &Ports, (is_guarded, may_doubt): (bool, bool)) {
    let last = entry.acknowledgment;
    let is_next = ports.sequence.wrapping_sub(last).wrapping_sub(1) < FORWARDED_NEAR;
    let ends = ports.tcp_flags & (FIN | RST) != 0;
    let is_known = last != 0 || !may_doubt;
    if !is_known || !is_within(ports.sequence, last, FORWARDED_NEAR) {
        if is_known && may_doubt && last.wrapping_sub(ports.sequence) > MOST_REPEATED {
            (entry.acknowledgment, entry.flags.has_fin) = (0, false);
        }
        entry.flags.has_fin |= ends && !is_guarded;
        return;
    }
    if is_next {
        entry.acknowledgment = ports.sequence;
    }
    entry.flags.has_fin = ends || (entry.flags.has_fin && !(ports.has_data && is_next));
}

const fn header_length(family: Family) -> usize {
    match family {
        Family::Ipv4 => IPV4,
        Family::Ipv6 => IPV6,
    }
}

/// The bits of the traffic class that routers change (RFC 3168).
const ECN: u8 = 3;

/// The header in front of the packet: with its traffic class but for ECN, and never split.
fn tunnel_header(bytes: &[u8], headers: &Headers, entry: &Connection) -> Vec<u8> {
    let (family, ip, inner) = (entry.to.target.addr.family(), headers.ip, headers.family);
    let addresses = [wire(entry.to.source.addr, family), wire(entry.to.target.addr, family)].concat();
    let mut header = vec![0; header_length(family) - addresses.len()];
    let length = |more: usize| u16::try_from(headers.length() + more).unwrap_or(0);
    match family {
        Family::Ipv4 => {
            (header[0], header[1]) = (4 << 4 | 5, bytes[ip + 1] & !ECN);
            put16(&mut header, 2, length(IPV4));
            // Don't fragment.
            header[6] = 0x40;
            (header[8], header[9]) = (TUNNEL_TTL, tunnel_number(inner));
        }
        Family::Ipv6 => {
            match inner {
                Family::Ipv6 => header[..4].copy_from_slice(&bytes[ip..ip + 4]),
                Family::Ipv4 => (header[0], header[1]) = (6 << 4 | bytes[ip + 1] >> 4, bytes[ip + 1] << 4),
            }
            header[1] &= !(ECN << 4);
            put16(&mut header, 4, length(0));
            (header[6], header[7]) = (tunnel_number(inner), TUNNEL_TTL);
        }
    }
    let mut header = [header, addresses].concat();
    if family == Family::Ipv4 {
        let checksum = checksum::of(&header);
        put16(&mut header, 10, checksum);
    }
    header
}
