//! Writes packets as pcapng (draft-ietf-opsawg-pcapng), the format of Wireshark, where a packet may have a comment.
//! Numbers are in the byte order of this machine, which the file states.

use std::io::{self, Write};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

/// By this number, a reader finds out the byte order.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Types of links (LINKTYPE_ETHERNET, LINKTYPE_RAW).
const ETHERNET: u16 = 1;
const RAW: u16 = 101;

/// Options of blocks: the end of the list, a comment, the name of an interface. Times are in microseconds by default.
const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const INTERFACE_NAME: u16 = 2;

pub(super) struct Packet<'a> {
    pub(super) device: &'a str,
    /// Whether the bytes begin with an Ethernet header, and not with an IP header.
    pub(super) has_ethernet: bool,
    /// Microseconds since 1970.
    pub(super) time: u64,
    /// Length of the whole packet in bytes.
    pub(super) length: u64,
    /// Its first bytes.
    pub(super) bytes: &'a [u8],
    /// A text of at most 65,535 bytes.
    pub(super) comment: &'a str,
}

pub(super) struct PcapWriter<W> {
    out: W,
    /// The devices so far, in the order of their numbers, with the kind of link.
    interfaces: Vec<(String, bool)>,
}

impl<W: Write> PcapWriter<W> {
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        let mut body = BYTE_ORDER.to_ne_bytes().to_vec();
        body.extend(1_u16.to_ne_bytes());
        body.extend(0_u16.to_ne_bytes());
        // The length of the section is not known.
        body.extend(u64::MAX.to_ne_bytes());
        write_block(&mut out, SECTION_HEADER, &body)?;
        Ok(Self { out, interfaces: Vec::new() })
    }

    pub(super) fn packet(&mut self, packet: &Packet<'_>) -> io::Result<()> {
        let interface = self.interface(packet.device, packet.has_ethernet)?;
        let captured = u32::try_from(packet.bytes.len()).map_err(io::Error::other)?;
        let [high, low] = [packet.time >> 32, packet.time & u64::from(u32::MAX)];
        let mut body = Vec::new();
        for number in [u64::from(interface), high, low, captured.into(), packet.length.max(captured.into())] {
            body.extend(u32::try_from(number).map_err(io::Error::other)?.to_ne_bytes());
        }
        body.extend(packet.bytes);
        pad(&mut body);
        push_option(&mut body, COMMENT, packet.comment);
        push_option(&mut body, END_OF_OPTIONS, "");
        write_block(&mut self.out, ENHANCED_PACKET, &body)
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// The number of a device, which is described before its first packet.
    fn interface(&mut self, device: &str, has_ethernet: bool) -> io::Result<u32> {
        let is_it = |(name, link): &(String, bool)| name == device && *link == has_ethernet;
        if let Some(number) = self.interfaces.iter().position(is_it) {
            return u32::try_from(number).map_err(io::Error::other);
        }
        let link = if has_ethernet { ETHERNET } else { RAW };
        let mut body = [link.to_ne_bytes(), [0; 2]].concat();
        // No limit of the captured bytes is stated.
        body.extend(0_u32.to_ne_bytes());
        push_option(&mut body, INTERFACE_NAME, device);
        push_option(&mut body, END_OF_OPTIONS, "");
        write_block(&mut self.out, INTERFACE_DESCRIPTION, &body)?;
        self.interfaces.push((device.to_owned(), has_ethernet));
        u32::try_from(self.interfaces.len() - 1).map_err(io::Error::other)
    }
}

/// Blocks and options have lengths that are multiples of 4.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

fn push_option(body: &mut Vec<u8>, code: u16, text: &str) {
    let mut length = text.len().min(usize::from(u16::MAX));
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    body.extend(code.to_ne_bytes());
    body.extend(u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes());
    body.extend(&text.as_bytes()[..length]);
    pad(body);
}

/// A block states its length before and after its content.
fn write_block(out: &mut impl Write, kind: u32, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len() + 12).map_err(io::Error::other)?.to_ne_bytes();
    let block = [&kind.to_ne_bytes()[..], &length, body, &length].concat();
    out.write_all(&block)
}
