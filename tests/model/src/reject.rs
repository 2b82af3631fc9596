//! The answers to packets that are not forwarded: TCP RST, and ICMP errors. Such an answer is made of the packet itself,
//! with its headers turned round.

use nodelb_core::model::addr::{Family, Protocol};
use nodelb_core::state::entries::ServiceId;

use crate::bytes::{be32, put16, wire};
use crate::checksum;
use crate::connections::Tables;
use crate::extensions::Fragment;
use crate::headers::tcp_flags::{ACK, FIN, RST, SYN};
use crate::headers::{Content, ETHERNET, Headers, ICMP, ICMP_NUMBER, ICMPV6_NUMBER, IPV4, IPV6, TCP, UDP};
use crate::node::Reason;
use crate::rule::Rule;

/// The maximum number of answers per second to packets of a service, for a reason.
const MOST_PER_SECOND: u32 = 1_000;

/// The maximum length of an IP header with its options or extensions that an answer quotes, in bytes.
const MOST_QUOTED: usize = 256;

/// Time to live and hop limit of an answer.
const TTL: u8 = 64;

/// The ICMP errors that the programs answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IcmpError {
    PortUnreachable,
    /// The time to live or hop limit has ended.
    TimeExceeded,
    /// The packet is larger than this MTU.
    TooBig(u32),
}

/// Whether one more packet of the service may be answered in this second, which then counts.
pub(crate) fn may_answer(tables: &mut Tables, now: u32, of: (ServiceId, Reason)) -> bool {
    let of = if tables.keeps(Rule::AnswersByService) { of } else { (ServiceId(0), Reason::AnswerRate) };
    let count = match tables.answered.get(&of) {
        Some((second, count)) if *second == now => count.saturating_add(1),
        _ => 1,
    };
    tables.answered.insert(of, (now, count));
    count <= MOST_PER_SECOND
}

/// Whether the packet is larger than what its way allows.
pub(crate) const fn is_too_large(reason: Reason) -> bool {
    matches!(reason, Reason::Mtu | Reason::MtuNoDf)
}

/// The frame that resets the sender's connection (RFC 9293 section 3.10.7.1); `None` if the packet has itself the RST
/// flag or is not TCP.
pub(crate) fn reset(bytes: &[u8], headers: &Headers) -> Option<Vec<u8>> {
    let Content::Transport(Protocol::Tcp, ports) = headers.content else { return None };
    if ports.tcp_flags & RST != 0 {
        return None;
    }
    let at = headers.transport;
    let mut tcp = vec![0; TCP];
    put16(&mut tcp, 0, ports.target);
    put16(&mut tcp, 2, ports.source);
    tcp[12] = 5 << 4;
    if ports.tcp_flags & ACK != 0 {
        tcp[4..8].copy_from_slice(&bytes[at + 8..at + 12]);
        tcp[13] = RST;
    } else {
        let header = usize::from(bytes[at + 12] >> 4) * 4;
        let data = u32::try_from((headers.end - at).saturating_sub(header)).unwrap_or(0);
        let control = u32::from(ports.tcp_flags & SYN != 0) + u32::from(ports.tcp_flags & FIN != 0);
        let next = be32(bytes, at + 4).wrapping_add(data).wrapping_add(control);
        tcp[8..12].copy_from_slice(&next.to_be_bytes());
        tcp[13] = RST | ACK;
    }
    let sum = pseudo_header(headers, Protocol::Tcp.number(), TCP);
    let checksum = checksum::of(&[&sum[..], &tcp[..]].concat());
    put16(&mut tcp, 16, checksum);
    Some(answer(bytes, headers, Protocol::Tcp.number(), &tcp))
}

/// Whether the packet may be answered: nothing is between its IP header and its transport header, and it is no
/// fragment. A packet that is too large is answered in any case, unless it has no transport header.
pub(crate) fn is_answerable(headers: &Headers, reason: Reason) -> bool {
    let header = if headers.family == Family::Ipv4 { IPV4 } else { IPV6 };
    let is_answered = |fragment: Fragment| fragment.is_first && is_too_large(reason);
    let length = headers.transport - headers.ip;
    headers.fragment.is_none_or(is_answered) && (length == header || (is_too_large(reason) && length <= MOST_QUOTED))
}

/// The frame with an ICMP error about the packet, with its headers; `None` if the packet is no TCP or UDP packet with
/// its header: no error is sent about others.
pub(crate) fn icmp_error(bytes: &[u8], headers: &Headers, error: IcmpError) -> Option<Vec<u8>> {
    let Content::Transport(content, _) = headers.content else { return None };
    let is_v4 = headers.family == Family::Ipv4;
    let (kind, code, word) = match (error, is_v4) {
        (IcmpError::PortUnreachable, true) => (3, 3, 0),
        (IcmpError::PortUnreachable, false) => (1, 4, 0),
        (IcmpError::TimeExceeded, true) => (11, 0, 0),
        (IcmpError::TimeExceeded, false) => (3, 0, 0),
        (IcmpError::TooBig(mtu), true) => (3, 4, mtu & 0xffff),
        (IcmpError::TooBig(mtu), false) => (2, 0, mtu),
    };
    let protocol = if is_v4 { ICMP_NUMBER } else { ICMPV6_NUMBER };
    let mut icmp = vec![0; ICMP];
    (icmp[0], icmp[1]) = (kind, code);
    icmp[4..8].copy_from_slice(&word.to_be_bytes());
    let quoted = if content == Protocol::Tcp { TCP } else { UDP };
    icmp.extend_from_slice(&bytes[headers.ip..headers.transport + quoted]);
    let sum = if is_v4 { Vec::new() } else { pseudo_header(headers, protocol, icmp.len()) };
    let checksum = checksum::of(&[&sum[..], &icmp[..]].concat());
    put16(&mut icmp, 2, checksum);
    Some(answer(bytes, headers, protocol, &icmp))
}

/// The pseudo header of an answer with `length` bytes after its IP header.
fn pseudo_header(headers: &Headers, protocol: u8, length: usize) -> Vec<u8> {
    let addresses = [wire(headers.target, headers.family), wire(headers.source, headers.family)].concat();
    let length = u32::try_from(length).unwrap_or(0).to_be_bytes();
    [&addresses[..], &length[..], &[0, 0, 0, protocol]].concat()
}

/// The frame to the sender with this content after the IP header.
fn answer(bytes: &[u8], headers: &Headers, protocol: u8, content: &[u8]) -> Vec<u8> {
    let mut frame = bytes[..headers.ip].to_vec();
    if headers.ip == ETHERNET {
        let (to, from) = (bytes[..6].to_vec(), bytes[6..12].to_vec());
        frame[..6].copy_from_slice(&from);
        frame[6..12].copy_from_slice(&to);
    }
    frame.extend(ip_header(headers, protocol, content.len()));
    frame.extend_from_slice(content);
    frame
}

fn ip_header(headers: &Headers, protocol: u8, length: usize) -> Vec<u8> {
    let addresses = [wire(headers.target, headers.family), wire(headers.source, headers.family)].concat();
    if headers.family == Family::Ipv6 {
        let mut header = vec![0; IPV6 - addresses.len()];
        header[0] = 6 << 4;
        put16(&mut header, 4, u16::try_from(length).unwrap_or(0));
        (header[6], header[7]) = (protocol, TTL);
        return [header, addresses].concat();
    }
    let mut header = vec![0; IPV4 - addresses.len()];
    header[0] = 4 << 4 | 5;
    put16(&mut header, 2, u16::try_from(IPV4 + length).unwrap_or(0));
    // Don't fragment.
    header[6] = 0x40;
    (header[8], header[9]) = (TTL, protocol);
    let mut header = [header, addresses].concat();
    let checksum = checksum::of(&header);
    put16(&mut header, 10, checksum);
    header
}
