//! The headers of a packet with only its beginning known, in one line.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Length of an Ethernet header in bytes.
pub(super) const ETHERNET: usize = 14;

/// The names of TCP flags with their bits, as tcpdump orders them.
const FLAGS: [(u8, char); 5] = [(2, 'S'), (1, 'F'), (8, 'P'), (4, 'R'), (16, '.')];

const TCP: u8 = 6;
const UDP: u8 = 17;

/// What identifies a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    source: IpAddr,
    target: IpAddr,
    /// IANA number of the protocol.
    protocol: u8,
    /// Source port, target port, and with TCP the flags; `None` in later fragments and for other protocols.
    ports: Option<(u16, u16, Option<u8>)>,
}

impl Headers {
    /// Reads an IP packet; `None` if it is none, or its header is cut short.
    pub(super) fn read(ip: &[u8]) -> Option<Self> {
        let v4 = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<4>()?));
        let v6 = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<16>()?));
        let (source, target, protocol, transport): (IpAddr, IpAddr, u8, &[u8]) = match ip.first()? >> 4 {
            4 => {
                let header = ip.get(..20)?;
                let is_first = u16::from_be_bytes([header[6], header[7]]) & 0x1fff == 0;
                let length = usize::from(header[0] & 0xf) * 4;
                let transport = ip.get(length..).filter(|_| is_first).unwrap_or_default();
                (v4(12)?, v4(16)?, header[9], transport)
            }
            6 => {
                let header = ip.get(..40)?;
                (v6(8)?, v6(24)?, header[6], &ip[40..])
            }
            _ => return None,
        };
        let has_ports = matches!(protocol, TCP | UDP);
        let port = |at: usize| Some(u16::from_be_bytes(transport.get(at..at + 2)?.try_into().ok()?));
        let flags = transport.get(13).copied().filter(|_| protocol == TCP);
        let ports = port(0).zip(port(2)).filter(|_| has_ports).map(|(source, target)| (source, target, flags));
        Some(Self { source, target, protocol, ports })
    }
}

impl fmt::Display for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol {
            TCP => f.write_str("TCP ")?,
            UDP => f.write_str("UDP ")?,
            1 | 58 => f.write_str("ICMP ")?,
            other => write!(f, "protocol {other} ")?,
        }
        let Some((source, target, flags)) = self.ports else {
            return write!(f, "{} > {}", self.source, self.target);
        };
        write!(f, "{} > {}", SocketAddr::new(self.source, source), SocketAddr::new(self.target, target))?;
        let Some(flags) = flags else { return Ok(()) };
        let names: String = FLAGS.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
        write!(f, " [{names}]")
    }
}
