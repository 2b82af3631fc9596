//! Frames as text, in the words of `frame.rs`, with what is wrong in them.

use std::fmt::Write as _;

use nodelb_core::model::addr::Addr;
use nodelb_programs::checksum::add;

use crate::frame::{FLAGS, correct_sum, data_byte, pseudo_sum};

/// The IP packet as text.
pub(crate) fn packet(bytes: &[u8]) -> String {
    match bytes.first().map(|first| first >> 4) {
        Some(4) if bytes.len() >= 20 => v4(bytes),
        Some(6) if bytes.len() >= 40 => v6(bytes),
        _ => hex(bytes),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

/// The position in a datagram.
#[derive(Clone, Copy, Default)]
struct Place {
    is_fragment: bool,
    offset: u16,
    more: bool,
}

impl Place {
    fn text(self) -> String {
        let mut text = String::new();
        if self.is_fragment && self.offset > 0 {
            let _ = write!(text, " offset {}", self.offset);
        }
        if self.more {
            text.push_str(" more");
        }
        text
    }
}

/// More bytes than a header has room for in its length, which is then 0.
const MOST: usize = 65_535;

fn states_none(stated: u16, bytes: &[u8]) -> &'static str {
    if stated == 0 && bytes.len() > MOST { " states 0" } else { "" }
}

fn v4(bytes: &[u8]) -> String {
    let header = usize::from(bytes[0] & 0xf) * 4;
    let total = match usize::from(be16(bytes, 2)) {
        0 if bytes.len() > MOST => bytes.len(),
        total => total,
    };
    if header < 20 || total < header || total > bytes.len() {
        return format!("unreadable {}", hex(bytes));
    }
    let octets =
        |at: usize| Addr::from(std::net::IpAddr::from([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
    let fragment = be16(bytes, 6);
    let (offset, more) = ((fragment & 0x1fff) * 8, fragment & 0x2000 != 0);
    let place = Place { is_fragment: offset > 0 || more, offset, more };
    let mut notes = format!(" ttl {}", bytes[8]) + states_none(be16(bytes, 2), bytes);
    let add = |notes: &mut String, name: &str, value: usize| {
        if value > 0 {
            let _ = write!(notes, " {name} {value}");
        }
    };
    add(&mut notes, "tos", usize::from(bytes[1]));
    add(&mut notes, "id", usize::from(be16(bytes, 4)));
    add(&mut notes, "options", header - 20);
    if fragment & 0x4000 != 0 {
        notes.push_str(" df");
    }
    notes += &place.text();
    if nodelb_programs::checksum::sum(&bytes[..header]) != u16::MAX {
        notes.push_str(" header-sum-wrong");
    }
    let pair = (octets(12), octets(16));
    content(&bytes[header..total], pair, (bytes[9], place), (&bytes[12..20], &notes))
}

fn v6(bytes: &[u8]) -> String {
    let end = match usize::from(be16(bytes, 4)) {
        0 if bytes.len() > MOST => bytes.len(),
        length => 40 + length,
    };
    if end > bytes.len() {
        return format!("unreadable {}", hex(bytes));
    }
    let octets = |at: usize| Addr::from_octets(bytes[at..at + 16].try_into().unwrap());
    let (mut at, mut next, mut names, mut place, mut id) = (40, bytes[6], Vec::new(), Place::default(), 0);
    while let Some(name) = [(0, "hop"), (43, "routing"), (44, "frag"), (51, "ah"), (60, "dst")]
        .iter()
        .find(|(number, _)| *number == next)
        .map(|(_, name)| *name)
        .filter(|_| at + 8 <= end && place.offset == 0)
    {
        names.push(name);
        let length = usize::from(bytes[at + 1]);
        if name == "frag" {
            let (offset, more) = (be16(bytes, at + 2) & 0xfff8, bytes[at + 3] & 1 != 0);
            place = Place { is_fragment: offset > 0 || more, offset, more };
            id = be32(bytes, at + 4);
        }
        next = bytes[at];
        at += match name {
            "frag" => 8,
            "ah" => (length + 2) * 4,
            _ => (length + 1) * 8,
        };
        if at > end {
            return format!("unreadable {}", hex(bytes));
        }
    }
    let mut notes = format!(" ttl {}", bytes[7]) + states_none(be16(bytes, 4), bytes);
    let class = bytes[0] << 4 | bytes[1] >> 4;
    if class > 0 {
        let _ = write!(notes, " tos {class}");
    }
    if !names.is_empty() {
        let _ = write!(notes, " ext {}", names.join(","));
    }
    if place.is_fragment {
        let _ = write!(notes, " id {id}");
    }
    notes += &place.text();
    content(&bytes[at..end], (octets(8), octets(24)), (next, place), (&bytes[8..40], &notes))
}

/// The text of the header after the IP header, with the notes about the IP header.
fn content(
    rest: &[u8],
    pair: (Addr, Addr),
    (protocol, place): (u8, Place),
    (addresses, notes): (&[u8], &str),
) -> String {
    let ports = || {
        let end = |addr: Addr, at: usize| std::net::SocketAddr::new(addr.ip(), be16(rest, at));
        format!("{} > {}", end(pair.0, 0), end(pair.1, 2))
    };
    let plain = || format!("{} > {}", pair.0, pair.1);
    let name = match protocol {
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        1 | 58 => "icmp".to_owned(),
        132 => "sctp".to_owned(),
        number => number.to_string(),
    };
    if place.offset > 0 {
        return format!("{} {name}{notes} data {}{}", plain(), rest.len(), altered(rest, usize::from(place.offset)));
    }
    match protocol {
        6 if rest.len() >= 20 => {
            let header = (usize::from(rest[12] >> 4) * 4).clamp(20, rest.len());
            let mut text = format!("{} tcp {}", ports(), flags(rest[13]));
            for (name, at) in [("seq", 4), ("ack", 8)] {
                if be32(rest, at) > 0 {
                    let _ = write!(text, " {name} {}", be32(rest, at));
                }
            }
            if header > 20 {
                let _ = write!(text, " tcp-options {}", header - 20);
            }
            let sum = sum(rest, 16, addresses, protocol);
            format!("{text}{notes} data {}{} sum {sum}", rest.len() - header, altered(&rest[header..], 0))
        }
        17 if rest.len() >= 8 => {
            let sum = if be16(rest, 6) == 0 { "none".to_owned() } else { sum(rest, 6, addresses, protocol) };
            format!("{} udp{notes} data {}{} sum {sum}", ports(), rest.len() - 8, altered(&rest[8..], 0))
        }
        1 | 58 if rest.len() >= 8 => {
            let mut text = format!("{} icmp {}/{}{notes}", plain(), rest[0], rest[1]);
            if be32(rest, 4) > 0 {
                let _ = write!(text, " mtu {}", be32(rest, 4));
            }
            let sum = sum(rest, 2, addresses, protocol);
            format!("{text} sum {sum} about [{}]", quoted(&rest[8..]))
        }
        4 | 41 if rest.len() >= 20 => format!("{} tunnel [{}]{notes}", plain(), packet(rest)),
        6 | 17 if rest.len() >= 4 => format!("{} {name}{notes} {} bytes", ports(), rest.len()),
        _ => format!("{} {name}{notes} {} bytes", plain(), rest.len()),
    }
}

/// A packet that an ICMP error quotes: its lengths and its checksum are those of the whole packet.
fn quoted(bytes: &[u8]) -> String {
    let mut whole = bytes.to_vec();
    let stated = match bytes.first().map(|first| first >> 4) {
        Some(4) if bytes.len() >= 20 => usize::from(be16(bytes, 2)),
        Some(6) if bytes.len() >= 40 => usize::from(be16(bytes, 4)) + 40,
        _ => return hex(bytes),
    };
    if bytes.len() >= stated {
        return packet(bytes);
    }
    // What is missing is test data, and its position follows from the length of the header.
    let header = if bytes[0] >> 4 == 4 { usize::from(bytes[0] & 0xf) * 4 } else { 40 };
    let protocol = if bytes[0] >> 4 == 4 { bytes[9] } else { bytes[6] };
    let fixed = match protocol {
        6 if bytes.len() >= header + 20 => header + usize::from(bytes[header + 12] >> 4) * 4,
        17 => header + 8,
        _ => usize::MAX,
    };
    if bytes.len() < fixed {
        let ports = (bytes.len() >= header + 4).then(|| (be16(bytes, header), be16(bytes, header + 2)));
        let text = packet(&[bytes, &vec![0; stated - bytes.len()]].concat());
        let ends = text.split(' ').take(3).collect::<Vec<_>>().join(" ");
        let header_sum = if text.contains("header-sum-wrong") { " header-sum-wrong" } else { "" };
        return format!(
            "{ends}{header_sum} cut to {} bytes{}",
            bytes.len(),
            if ports.is_some() { "" } else { " no ports" }
        );
    }
    whole.extend((bytes.len()..stated).map(|at| data_byte(at - fixed)));
    format!("{} cut to {} bytes", packet(&whole), bytes.len())
}

fn flags(bits: u8) -> String {
    let names: Vec<&str> =
        FLAGS.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(|(_, name)| *name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(",") }
}

/// Whether the checksum is right or that of the addresses, or by how much it is wrong in one's complement arithmetic.
fn sum(rest: &[u8], at: usize, addresses: &[u8], protocol: u8) -> String {
    let mut zeroed = rest.to_vec();
    zeroed[at..at + 2].fill(0);
    let correct = correct_sum(addresses, protocol, &zeroed);
    let actual = be16(rest, at);
    match actual {
        _ if actual == correct => "ok".to_owned(),
        _ if actual == pseudo_sum(addresses, protocol, rest.len()) => "of-addresses".to_owned(),
        _ => format!("wrong-by {:04x}", add(actual, !correct)),
    }
}

fn altered(data: &[u8], offset: usize) -> &'static str {
    let is_test_data = data.iter().enumerate().all(|(at, byte)| *byte == data_byte(at + offset));
    if is_test_data { "" } else { " altered" }
}
