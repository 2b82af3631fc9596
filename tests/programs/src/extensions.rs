//! The extension headers of IPv6 (RFC 8200 section 4).

use crate::bytes::{be16, be32};

/// The maximum number of extension headers that are read.
const MOST: usize = 6;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION: u8 = 60;

/// The position of a fragment in its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The identification of the datagram; 16 bits with IPv4.
    pub id: u32,
    /// Whether the fragment has the header with the ports.
    pub is_first: bool,
    /// Where the id is in the frame.
    pub at: usize,
}

/// The result of [`walk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walked {
    /// The header after the extensions: its position and its IANA number. Behind the header of a later fragment there
    /// is no other header.
    To { at: usize, protocol: u8, fragment: Option<Fragment> },
    /// An extension header that prevents translation of the packet.
    Foreign,
    /// A header is cut short.
    Short,
}

/// Follows the extension headers of a packet. The first one has this number and begins at this position.
pub(crate) fn walk(packet: &[u8], mut at: usize, mut protocol: u8) -> Walked {
    let mut fragment = None;
    for read in 0..=MOST {
        if !matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION) {
            return Walked::To { at, protocol, fragment };
        }
        if read == MOST {
            break;
        }
        let Some(header) = packet.get(at..at + 8) else { return Walked::Short };
        let next = header[0];
        match protocol {
            ROUTING if header[3] != 0 => return Walked::Foreign,
            AUTHENTICATION => at += (usize::from(header[1]) + 2) * 4,
            FRAGMENT => {
                let id_at = at + 4;
                at += 8;
                let (is_first, has_more) = (be16(header, 2) >> 3 == 0, header[3] & 1 != 0);
                // A datagram that is one fragment is whole (RFC 6946).
                if !is_first || has_more {
                    fragment = Some(Fragment { id: be32(header, 4), is_first, at: id_at });
                }
                if !is_first {
                    return Walked::To { at, protocol: next, fragment };
                }
            }
            _ => at += (usize::from(header[1]) + 1) * 8,
        }
        if at > packet.len() {
            return Walked::Short;
        }
        protocol = next;
    }
    Walked::Foreign
}
