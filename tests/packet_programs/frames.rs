//! Builds packets and reads them again, with checksums computed from the whole packet: independent of the programs,
//! which only change them by differences.

use std::net::{IpAddr, SocketAddr};

pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP: u8 = 1;
pub(super) const ICMPV6: u8 = 58;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

/// Link-layer address of each device of the node.
pub(super) const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Link-layer address of each machine that the node reaches.
pub(super) const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A packet to build.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) source: SocketAddr,
    pub(super) target: SocketAddr,
    pub(super) protocol: u8,
    pub(super) tcp_flags: u8,
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) ttl: u8,
    pub(super) payload: Vec<u8>,
    /// IPv4 options; a multiple of 4 bytes.
    pub(super) options: Vec<u8>,
    /// IPv6 extension headers: type, and bytes with a first byte that is replaced by the next type.
    pub(super) extensions: Vec<(u8, Vec<u8>)>,
    pub(super) target_mac: [u8; 6],
    /// Whether the device has an Ethernet header.
    pub(super) has_ethernet: bool,
    /// UDP without a checksum.
    pub(super) without_sum: bool,
}

pub(super) fn frame(protocol: u8, source: &str, target: &str) -> Frame {
    Frame {
        source: source.parse().unwrap_or_else(|error| panic!("{source}: {error}")),
        target: target.parse().unwrap_or_else(|error| panic!("{target}: {error}")),
        protocol,
        tcp_flags: ACK,
        sequence: 1000,
        acknowledged: 7000,
        ttl: 64,
        payload: b"a payload of an odd length.".to_vec(),
        options: Vec::new(),
        extensions: Vec::new(),
        target_mac: NODE_MAC,
        has_ethernet: true,
        without_sum: false,
    }
}

/// The first packet of a connection.
pub(super) fn first(protocol: u8, source: &str, target: &str) -> Frame {
    let frame = frame(protocol, source, target);
    if protocol == TCP { Frame { tcp_flags: SYN, acknowledged: 0, payload: Vec::new(), ..frame } } else { frame }
}

impl Frame {
    pub(super) fn flags(self, tcp_flags: u8) -> Self {
        Self { tcp_flags, ..self }
    }

    pub(super) fn ttl(self, ttl: u8) -> Self {
        Self { ttl, ..self }
    }

    pub(super) fn payload(self, bytes: usize) -> Self {
        Self { payload: (0..bytes).map(|i| u8::try_from(i % 251).unwrap()).collect(), ..self }
    }

    /// The transport header and the payload.
    fn transport(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.source.port().to_be_bytes());
        bytes.extend(self.target.port().to_be_bytes());
        if self.protocol == TCP {
            bytes.extend(self.sequence.to_be_bytes());
            bytes.extend(self.acknowledged.to_be_bytes());
            bytes.extend([5 << 4, self.tcp_flags, 0xfa, 0xf0, 0, 0, 0, 0]);
        } else {
            bytes.extend(u16::try_from(8 + self.payload.len()).unwrap().to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend(&self.payload);
        let at = if self.protocol == TCP { 16 } else { 6 };
        if !self.without_sum {
            let sum = transport_sum(self.source.ip(), self.target.ip(), self.protocol, &bytes);
            bytes[at..at + 2].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
        }
        bytes
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.packet(&self.transport(), None)
    }

    /// The packet in fragments with this payload, a multiple of 8.
    pub(super) fn fragments(&self, id: u32, size: usize) -> Vec<Vec<u8>> {
        let transport = self.transport();
        let count = transport.len().div_ceil(size);
        let part = |(index, bytes): (usize, &[u8])| {
            let offset = u16::try_from(index * size).unwrap();
            self.packet(bytes, Some((id, offset, index + 1 < count)))
        };
        transport.chunks(size).enumerate().map(part).collect()
    }

    /// An IP packet with this content; a fragment has an id, an offset in bytes, and another one after it.
    pub(super) fn packet(&self, content: &[u8], fragment: Option<(u32, u16, bool)>) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.has_ethernet {
            bytes.extend(self.target_mac);
            bytes.extend(PEER_MAC);
            bytes.extend(if self.source.is_ipv4() { [8, 0] } else { [0x86, 0xdd] });
        }
        match (self.source.ip(), self.target.ip()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                let length = 20 + self.options.len();
                let total = u16::try_from(length + content.len()).unwrap();
                let (id, offset, more) = fragment.unwrap_or((77, 0, false));
                let flags = (offset / 8) | if more { 0x2000 } else { 0 };
                let mut header = vec![0x40 | u8::try_from(length / 4).unwrap(), 0];
                header.extend(total.to_be_bytes());
                header.extend(u16::try_from(id).unwrap().to_be_bytes());
                header.extend(flags.to_be_bytes());
                header.extend([self.ttl, self.protocol, 0, 0]);
                header.extend(source.octets());
                header.extend(target.octets());
                header.extend(&self.options);
                let sum = !ones_sum(&header);
                header[10..12].copy_from_slice(&sum.to_be_bytes());
                bytes.extend(header);
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                let mut chain = self.extensions.clone();
                if let Some((id, offset, more)) = fragment {
                    let mut header = vec![0, 0];
                    header.extend((offset | u16::from(more)).to_be_bytes());
                    header.extend(id.to_be_bytes());
                    chain.push((44, header));
                }
                let mut types: Vec<u8> = chain.iter().map(|(kind, _)| *kind).collect();
                types.push(self.protocol);
                let extensions: Vec<u8> = chain
                    .into_iter()
                    .zip(&types[1..])
                    .flat_map(|((_, mut header), next)| {
                        header[0] = *next;
                        header
                    })
                    .collect();
                bytes.extend([0x60, 0, 0, 0]);
                bytes.extend(u16::try_from(extensions.len() + content.len()).unwrap().to_be_bytes());
                bytes.extend([types[0], self.ttl]);
                bytes.extend(source.octets());
                bytes.extend(target.octets());
                bytes.extend(extensions);
            }
            _ => panic!("two families: {self:?}"),
        }
        bytes.extend(content);
        bytes
    }
}

/// The sum of 16-bit words in ones' complement.
pub(super) fn ones_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// The checksum of a transport header; 0 if the bytes contain the right one.
pub(super) fn transport_sum(source: IpAddr, target: IpAddr, protocol: u8, bytes: &[u8]) -> u16 {
    let mut all = octets(source);
    all.extend(octets(target));
    all.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    all.extend([0, 0, 0, protocol]);
    all.extend(bytes);
    !ones_sum(&all)
}

/// A packet that was read. Reading panics if a checksum is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) source: SocketAddr,
    pub(super) target: SocketAddr,
    pub(super) protocol: u8,
    pub(super) tcp_flags: u8,
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) ttl: u8,
    pub(super) payload: Vec<u8>,
    pub(super) target_mac: [u8; 6],
    pub(super) source_mac: [u8; 6],
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

pub(super) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// The addresses, the protocol, the TTL and the content of an IP packet.
pub(super) fn read_ip(ip: &[u8]) -> (IpAddr, IpAddr, u8, u8, &[u8]) {
    if ip[0] >> 4 == 4 {
        let length = usize::from(ip[0] & 15) * 4;
        assert_eq!(ones_sum(&ip[..length]), 0xffff, "the checksum of the IPv4 header");
        let [source, target] = [12, 16].map(|at| IpAddr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap()));
        return (source, target, ip[9], ip[8], &ip[length..usize::from(be16(ip, 2))]);
    }
    assert_eq!(ip[0] >> 4, 6);
    let [source, target] = [8, 24].map(|at| IpAddr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap()));
    let (mut next, mut at, end) = (ip[6], 40, 40 + usize::from(be16(ip, 4)));
    while [0, 43, 44, 51, 60].contains(&next) {
        let length = match next {
            44 => 8,
            51 => (usize::from(ip[at + 1]) + 2) * 4,
            _ => (usize::from(ip[at + 1]) + 1) * 8,
        };
        next = ip[at];
        at += length;
    }
    (source, target, next, ip[7], &ip[at..end])
}

/// Reads a packet with an Ethernet header.
pub(super) fn read(bytes: &[u8]) -> Seen {
    let mut seen = read_l3(&bytes[14..]);
    seen.target_mac = bytes[..6].try_into().unwrap();
    seen.source_mac = bytes[6..12].try_into().unwrap();
    seen
}

/// Reads a packet without one.
pub(super) fn read_l3(bytes: &[u8]) -> Seen {
    let (source, target, protocol, ttl, content) = read_ip(bytes);
    let has_sum = protocol == TCP || be16(content, 6) != 0;
    if has_sum {
        assert_eq!(transport_sum(source, target, protocol, content), 0, "the checksum of the transport header");
    }
    let is_tcp = protocol == TCP;
    Seen {
        source: SocketAddr::new(source, be16(content, 0)),
        target: SocketAddr::new(target, be16(content, 2)),
        protocol,
        tcp_flags: if is_tcp { content[13] } else { ACK },
        sequence: if is_tcp { be32(content, 4) } else { 1000 },
        acknowledged: if is_tcp { be32(content, 8) } else { 7000 },
        ttl,
        payload: content[if is_tcp { 20 } else { 8 }..].to_vec(),
        target_mac: [0; 6],
        source_mac: [0; 6],
    }
}
