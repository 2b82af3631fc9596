//! Packets as text: `198.51.100.7:40000 > 203.0.113.10:80 tcp SYN seq 7 ttl 3 data 20`. `fixtures/README.md` lists the
//! words. The text becomes a frame with correct lengths and checksums, except where it requests others.

use nodelb_core::model::addr::{Addr, Family};
use nodelb_programs::checksum;
use nodelb_programs::node::Summed;

use crate::world::{SENDER_MAC, Words, words};

/// A packet as text describes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Described {
    pub(crate) source: (Option<Addr>, u16),
    pub(crate) target: (Option<Addr>, u16),
    pub(crate) protocol: u8,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) ttl: Option<u8>,
    pub(crate) tos: u8,
    pub(crate) id: u32,
    pub(crate) df: bool,
    pub(crate) more: bool,
    pub(crate) offset: u16,
    pub(crate) is_fragment: bool,
    pub(crate) options: usize,
    pub(crate) tcp_options: usize,
    pub(crate) extensions: Vec<String>,
    pub(crate) data: usize,
    pub(crate) icmp: (u8, u8),
    pub(crate) mtu: u32,
    pub(crate) about: Option<Box<Described>>,
    /// The packet in a tunnel.
    pub(crate) inside: Option<Box<Described>>,
    pub(crate) quote: Option<usize>,
    pub(crate) sum: Option<String>,
    pub(crate) header_sum: bool,
    pub(crate) cut: Option<usize>,
    pub(crate) states: Option<u16>,
    pub(crate) udp_length: Option<u16>,
    pub(crate) tcp_length: Option<u8>,
    pub(crate) version: Option<u8>,
    pub(crate) padding: usize,
    pub(crate) raw: Option<Vec<u8>>,
    pub(crate) is_for_others: bool,
    pub(crate) vlan_tag: Option<u16>,
    pub(crate) is_gso: bool,
    pub(crate) is_tracked_request: bool,
    pub(crate) linear: Option<usize>,
    pub(crate) summed: Summed,
}

/// The names of TCP flags, in the order of their bits.
pub(crate) const FLAGS: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];

/// The byte of test data at the position.
pub(crate) fn data_byte(at: usize) -> u8 {
    b'a' + u8::try_from(at % 26).unwrap()
}

fn end(text: &str) -> (Option<Addr>, u16) {
    if let Ok(socket) = text.parse::<std::net::SocketAddr>() {
        return (Some(socket.ip().into()), socket.port());
    }
    (Some(text.parse().unwrap_or_else(|_| panic!("`{text}` is no address"))), 0)
}

/// Reads the text of a packet.
pub(crate) fn described(text: &str) -> Described {
    if let Some(hex) = text.strip_prefix("frame ") {
        let bytes: Vec<u8> = hex
            .split_whitespace()
            .flat_map(|hex| (0..hex.len() / 2).map(|at| byte(&hex[at * 2..at * 2 + 2])))
            .collect();
        return Described { raw: Some(bytes), ..Described::default() };
    }
    let (text, inside) = bracketed(text, "tunnel [");
    let (text, about) = bracketed(&text, "about [");
    let mut words = words(&text);
    let mut packet = Described { about, inside, ..Described::default() };
    packet.source = end(words.next().unwrap());
    assert_eq!(words.next(), Some(">"), "{text}");
    packet.target = end(words.next().unwrap());
    packet.read_protocol(&mut words);
    while let Some(word) = words.next() {
        packet.read_property(word, &mut words);
    }
    packet
}

/// The text without the packet that is in brackets after the word, and that packet.
fn bracketed(text: &str, word: &str) -> (String, Option<Box<Described>>) {
    match text.split_once(word) {
        Some((before, rest)) => {
            let (inner, after) = rest.rsplit_once(']').expect("]");
            let inner = described(inner.trim());
            let number = match inner.family() {
                _ if !word.starts_with("tunnel") => "",
                Family::Ipv4 => "4",
                Family::Ipv6 => "41",
            };
            (format!("{before}{number} {after}"), Some(Box::new(inner)))
        }
        None => (text.to_owned(), None),
    }
}

fn byte(hex: &str) -> u8 {
    u8::from_str_radix(hex, 16).unwrap()
}

fn number<T: std::str::FromStr>(words: &mut Words<'_>) -> T {
    let word = words.next().expect("a number is missing");
    word.parse().unwrap_or_else(|_| panic!("`{word}` is no number"))
}

impl Described {
    fn read_protocol(&mut self, words: &mut Words<'_>) {
        self.protocol = match words.next().expect("a protocol") {
            "tcp" => {
                let names = words.next().expect("flags");
                let bit = |name: &str| 1 << FLAGS.iter().position(|flag| *flag == name).expect("a flag");
                self.flags = if names == "none" { 0 } else { names.split(',').map(bit).sum() };
                6
            }
            "udp" => 17,
            "icmp" => {
                let (kind, code) = words.next().and_then(|word| word.split_once('/')).expect("TYPE/CODE");
                self.icmp = (kind.parse().unwrap(), code.parse().unwrap());
                if self.family() == Family::Ipv4 { 1 } else { 58 }
            }
            "sctp" => 132,
            number => number.parse().unwrap_or_else(|_| panic!("`{number}` is no protocol")),
        };
    }

    fn read_property(&mut self, word: &str, words: &mut Words<'_>) {
        match word {
            "seq" => self.seq = number(words),
            "ack" => self.ack = number(words),
            "ttl" => self.ttl = Some(number(words)),
            "tos" => self.tos = number(words),
            "id" => self.id = number(words),
            "df" => self.df = true,
            "more" => (self.more, self.is_fragment) = (true, true),
            "offset" => (self.offset, self.is_fragment) = (number(words), true),
            "options" => self.options = number(words),
            "tcp-options" => self.tcp_options = number(words),
            "ext" => self.extensions = words.next().unwrap().split(',').map(str::to_owned).collect(),
            "data" => self.data = number(words),
            "mtu" => self.mtu = number(words),
            "quote" => self.quote = Some(number(words)),
            "sum" => self.sum = words.next().map(str::to_owned),
            "header-sum-wrong" => self.header_sum = true,
            "cut" => self.cut = Some(number(words)),
            "states" => self.states = Some(number(words)),
            "udp-length" => self.udp_length = Some(number(words)),
            "tcp-length" => self.tcp_length = Some(number(words)),
            "version" => self.version = Some(number(words)),
            "padding" => self.padding = number(words),
            "other-host" => self.is_for_others = true,
            "vlan" => self.vlan_tag = Some(number(words)),
            "gso" => self.is_gso = true,
            "tracked" => self.is_tracked_request = true,
            "linear" => self.linear = Some(number(words)),
            "summed-by-device" => self.summed = Summed::Complete,
            "to-be-summed" => self.summed = Summed::Partial,
            _ => panic!("unknown property of a packet: {word}"),
        }
    }

    pub(crate) fn family(&self) -> Family {
        self.target.0.expect("an address").family()
    }

    /// The frame for a device with this Ethernet address, or without a link-layer header.
    pub(crate) fn frame(&self, ethernet: Option<[u8; 6]>) -> Vec<u8> {
        if let Some(raw) = &self.raw {
            return raw.clone();
        }
        let mut frame = Vec::new();
        if let Some(mac) = ethernet {
            frame.extend(mac);
            frame.extend(SENDER_MAC);
            frame.extend(if self.family() == Family::Ipv4 { [8, 0] } else { [0x86, 0xdd] });
        }
        frame.extend(self.ip_packet());
        frame.extend(std::iter::repeat_n(0, self.padding));
        frame.truncate(self.cut.map_or(usize::MAX, |cut| cut + if ethernet.is_some() { 14 } else { 0 }));
        frame
    }

    fn ip_packet(&self) -> Vec<u8> {
        let content = self.content();
        match self.family() {
            Family::Ipv4 => self.v4(&content),
            Family::Ipv6 => self.v6(&content),
        }
    }

    fn addresses(&self) -> Vec<u8> {
        let wire = |addr: Option<Addr>| {
            let octets = addr.unwrap().octets();
            if self.family() == Family::Ipv4 { octets[12..].to_vec() } else { octets.to_vec() }
        };
        [wire(self.source.0), wire(self.target.0)].concat()
    }

    fn v4(&self, content: &[u8]) -> Vec<u8> {
        let header = 20 + self.options;
        let mut packet = vec![0; 12];
        packet[0] = self.version.unwrap_or(4) << 4 | u8::try_from(header / 4).unwrap();
        packet[1] = self.tos;
        let total = self.states.unwrap_or_else(|| u16::try_from(header + content.len()).unwrap());
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[4..6].copy_from_slice(&u16::try_from(self.id).unwrap().to_be_bytes());
        let fragment = (self.offset / 8) | (u16::from(self.more) << 13) | (u16::from(self.df) << 14);
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        (packet[8], packet[9]) = (self.ttl.unwrap_or(64), self.protocol);
        packet.extend(self.addresses());
        // Options: no operation.
        packet.extend(std::iter::repeat_n(1, self.options));
        let sum = checksum::of(&packet) ^ if self.header_sum { 0x0101 } else { 0 };
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        [&packet[..], content].concat()
    }

    fn v6(&self, content: &[u8]) -> Vec<u8> {
        let (first, extensions) = self.extension_headers();
        let mut packet = vec![0; 8];
        packet[0] = self.version.unwrap_or(6) << 4 | self.tos >> 4;
        packet[1] = self.tos << 4;
        let length = self.states.unwrap_or_else(|| u16::try_from(extensions.len() + content.len()).unwrap());
        packet[4..6].copy_from_slice(&length.to_be_bytes());
        (packet[6], packet[7]) = (first, self.ttl.unwrap_or(64));
        packet.extend(self.addresses());
        [&packet[..], &extensions, content].concat()
    }

    /// The number of the first header after the IPv6 header, and the extension headers.
    fn extension_headers(&self) -> (u8, Vec<u8>) {
        let mut names = self.extensions.clone();
        if self.is_fragment && !names.iter().any(|name| name == "frag") {
            names.push("frag".to_owned());
        }
        let kind = |name: &str| match name.split('=').next().unwrap() {
            "hop" => 0,
            "routing" => 43,
            "frag" => 44,
            "esp" => 50,
            "ah" => 51,
            "dst" => 60,
            "none" => 59,
            other => panic!("unknown extension header: {other}"),
        };
        let mut bytes = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let next = names.get(at + 1).map_or(self.protocol, |next| kind(next));
            let value: u8 = name.split_once('=').map_or(0, |(_, value)| value.parse().unwrap());
            match kind(name) {
                44 => {
                    let offset = self.offset | u16::from(self.more);
                    bytes.extend([next, 0]);
                    bytes.extend(offset.to_be_bytes());
                    bytes.extend(self.id.to_be_bytes());
                }
                // The value is the number of segments left.
                43 => bytes.extend([next, 0, 4, value, 0, 0, 0, 0]),
                51 => bytes.extend([next, 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]),
                // The value is the length in units of 8 bytes after the first; padding.
                _ => {
                    let more = usize::from(value) * 8;
                    bytes.extend([next, value, 1, u8::try_from(4 + more).unwrap()]);
                    bytes.extend(std::iter::repeat_n(0, 4 + more));
                }
            }
        }
        (names.first().map_or(self.protocol, |name| kind(name)), bytes)
    }

    /// What follows the IP header.
    fn content(&self) -> Vec<u8> {
        let data: Vec<u8> = (0..self.data).map(|at| data_byte(at + usize::from(self.offset))).collect();
        if self.offset != 0 {
            return data;
        }
        let mut bytes = Vec::new();
        let at = match self.protocol {
            6 => {
                bytes.extend(self.tcp_header());
                Some(16)
            }
            17 => {
                bytes.extend([self.source.1.to_be_bytes(), self.target.1.to_be_bytes()].concat());
                let length = self.udp_length.unwrap_or_else(|| u16::try_from(8 + self.data).unwrap());
                bytes.extend([length.to_be_bytes(), [0, 0]].concat());
                Some(6)
            }
            1 | 58 => {
                bytes.extend([self.icmp.0, self.icmp.1, 0, 0]);
                bytes.extend(self.mtu.to_be_bytes());
                let quoted = self.about.as_ref().map(|about| about.ip_packet()).unwrap_or_default();
                bytes.extend(&quoted[..quoted.len().min(self.quote.unwrap_or(usize::MAX))]);
                Some(2)
            }
            _ => {
                match &self.inside {
                    Some(inside) => bytes.extend(inside.ip_packet()),
                    None => {
                        bytes.extend([self.source.1.to_be_bytes(), self.target.1.to_be_bytes()].concat());
                        bytes.extend([0; 8]);
                    }
                }
                None
            }
        };
        bytes.extend(data);
        if let Some(at) = at {
            self.put_sum(&mut bytes, at);
        }
        bytes
    }

    fn tcp_header(&self) -> Vec<u8> {
        let mut header = [self.source.1.to_be_bytes(), self.target.1.to_be_bytes()].concat();
        header.extend(self.seq.to_be_bytes());
        header.extend(self.ack.to_be_bytes());
        let length = self.tcp_length.unwrap_or_else(|| u8::try_from((20 + self.tcp_options) / 4).unwrap());
        header.extend([length << 4, self.flags, 0x10, 0, 0, 0, 0, 0]);
        header.extend(std::iter::repeat_n(1, self.tcp_options));
        header
    }

    fn put_sum(&self, bytes: &mut [u8], at: usize) {
        let mut sum = match self.summed {
            Summed::Partial => pseudo_sum(&self.addresses(), self.protocol, bytes.len()),
            _ => correct_sum(&self.addresses(), self.protocol, bytes),
        };
        match self.sum.as_deref() {
            None | Some("ok") => {}
            Some("none") => sum = 0,
            Some("wrong") => sum ^= 0x0101,
            Some(number) => sum = u16::from_str_radix(number, 16).expect("ok, none, wrong, or a hexadecimal number"),
        }
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// The checksum that a transport header between these addresses should have. Its field in the bytes is 0.
pub(crate) fn correct_sum(addresses: &[u8], protocol: u8, bytes: &[u8]) -> u16 {
    let pseudo = pseudo_sum(addresses, protocol, bytes.len());
    match (protocol, checksum::add(pseudo, checksum::sum(bytes))) {
        (1, _) => checksum::of(bytes),
        (17, u16::MAX) => u16::MAX,
        (_, sum) => !sum,
    }
}

/// What the field has if the device that sends the packet is to add the rest.
pub(crate) fn pseudo_sum(addresses: &[u8], protocol: u8, length: usize) -> u16 {
    let length = u32::try_from(length).unwrap().to_be_bytes();
    checksum::sum(&[addresses, &length[..], &[0, 0, 0, protocol]].concat())
}
