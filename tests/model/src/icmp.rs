//! ICMP errors about packets that were translated. The packet that the error quotes is looked up in the opposite
//! direction, and both are translated, so that the error reaches the end that it concerns.

use nodelb_core::model::addr::{Family, Protocol};

use crate::begin;
use crate::bytes::{be16, put16, v4_at, v6_at};
use crate::checksum;
use crate::extensions::{self, Walked};
use crate::forward;
use crate::headers::{Content, Headers, ICMP, IPV4, IPV6, Ports};
use crate::hook_state::{Decision, HookState};
use crate::key::{PacketKey, Side, Tuple};
use crate::node::{Reason, Verdict};
use crate::rewrite;

/// The bytes that an error must quote after the IP header (RFC 792).
const LEAST_QUOTED: usize = 8;

/// Translates the error if it is about a packet of a known connection, or of one with direct return, which has no entry
/// where its answers pass. Connections do not change: an error does not prove that an end is alive.
pub(crate) fn translate(state: &mut HookState<'_>) -> Decision {
    let outer = state.headers.clone();
    let Some((quoted, protocol, tuple)) = quoted(&state.packet.bytes, &outer) else { return state.next() };
    // An error is sent to the source of the packet that it quotes.
    if tuple.source.addr != outer.target {
        return state.next();
    }
    let side = state.packet.hook.side();
    let key = state.tables.key_of_arrival(PacketKey { tuple: tuple.turned(), protocol, side });
    let known = state.tables.find(&key).copied();
    let Some(entry) = known.or_else(|| begin::forwarded_by_error(state, &key)) else {
        // The stack would send one that came in a tunnel back to the node that has sent it here.
        return if state.tunnel_end.is_some() { state.discard(Reason::Unknown) } else { state.next() };
    };
    if entry.flags.is_forwarded {
        return forward::unchanged(state, &entry);
    }
    let is_from_end = side == Side::Leaving && outer.source == tuple.target.addr;
    let mut to = Tuple { target: entry.to.target, ..outer.tuple(0, 0) };
    if entry.flags.is_redirected || is_from_end {
        to.source = entry.to.source;
    }
    let bytes = written(&state.packet.bytes, (&outer, &to), (&quoted, &entry.to.turned()));
    if entry.flags.is_redirected {
        return forward::redirect(state, &entry, bytes);
    }
    Decision { verdict: Verdict::Next, bytes, reason: None }
}

/// The packet that the error quotes: its headers (the transport header may be cut short), and its ends.
pub(crate) fn quoted(bytes: &[u8], outer: &Headers) -> Option<(Headers, Protocol, Tuple)> {
    let ip = outer.transport + ICMP;
    let packet = &bytes[..outer.end];
    let least = if outer.family == Family::Ipv4 { IPV4 } else { IPV6 };
    let version = if outer.family == Family::Ipv4 { 4 } else { 6 };
    if packet.len() < ip + least || packet[ip] >> 4 != version {
        return None;
    }
    let (source, target, transport, protocol) = match outer.family {
        Family::Ipv4 => {
            let header = usize::from(packet[ip] & 0xf) * 4;
            if header < IPV4 || be16(packet, ip + 6) & 0x1fff != 0 {
                return None;
            }
            (v4_at(packet, ip + 12), v4_at(packet, ip + 16), ip + header, packet[ip + 9])
        }
        Family::Ipv6 => match extensions::walk(packet, ip + IPV6, packet[ip + 6]) {
            Walked::To { at, protocol, fragment } if fragment.is_none_or(|fragment| fragment.is_first) => {
                (v6_at(packet, ip + 8), v6_at(packet, ip + 24), at, protocol)
            }
            _ => return None,
        },
    };
    let protocol = Protocol::from_repr(protocol).filter(|protocol| *protocol != Protocol::Sctp)?;
    if packet.len() < transport + LEAST_QUOTED {
        return None;
    }
    let ports = Ports { source: be16(packet, transport), target: be16(packet, transport + 2), ..Ports::default() };
    let content = Content::Transport(protocol, ports);
    let headers = Headers { ip, transport, source, target, content, fragment: None, ..outer.clone() };
    let tuple = headers.tuple(ports.source, ports.target);
    Some((headers, protocol, tuple))
}

/// The error with other addresses, and other ends of the quoted packet.
fn written(bytes: &[u8], (outer, to): (&Headers, &Tuple), (quoted, quoted_to): (&Headers, &Tuple)) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let before = summed(&bytes, outer);
    rewrite::write_addresses(&mut bytes, outer, to);
    rewrite::write(&mut bytes, quoted, quoted_to);
    let at = outer.transport + 2;
    let checksum = checksum::updated(be16(&bytes, at), &before, &summed(&bytes, outer));
    put16(&mut bytes, at, checksum);
    bytes
}

/// What the checksum of the error covers, without the field of the checksum itself: the addresses with ICMPv6, and the
/// message.
fn summed(bytes: &[u8], outer: &Headers) -> Vec<u8> {
    let addresses = if outer.family == Family::Ipv6 { rewrite::addresses(bytes, outer) } else { Vec::new() };
    let message = &bytes[outer.transport..outer.end];
    [&addresses[..], &message[..2], &message[4..]].concat()
}
