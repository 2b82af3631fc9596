//! Ranges of client addresses, in the form that the packet programs look up.

use std::fmt;

use ipnet::IpNet;

use crate::model::addr::{Addr, Family};

/// The length of the prefix `::ffff:0:0` of stored IPv4 addresses.
const V4_PREFIX: u8 = 96;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRange {
    /// The first address of the range.
    pub addr: Addr,
    /// The number of leading bits that all addresses of the range share, from 0 to 128: IPv4 addresses count in their
    /// 16-byte form.
    pub prefix: u8,
}

impl SourceRange {
    pub(crate) const FIRST: Self = Self { addr: Addr::from_octets([0; 16]), prefix: 0 };
    pub(crate) const LAST: Self = Self { addr: Addr::from_octets([0xff; 16]), prefix: u8::MAX };

    /// The range with this prefix length, at most 128, that contains the address.
    pub fn new(addr: Addr, prefix: u8) -> Self {
        Self { addr: masked(addr, prefix), prefix }
    }

    pub fn family(self) -> Family {
        if self.prefix >= V4_PREFIX { self.addr.family() } else { Family::Ipv6 }
    }

    /// Whether the range contains every address of its family.
    pub fn is_everything(self) -> bool {
        match self.family() {
            Family::Ipv4 => self.prefix == V4_PREFIX,
            Family::Ipv6 => self.prefix == 0,
        }
    }

    /// The bits that all addresses of the range share.
    pub fn mask(self) -> Addr {
        masked(Addr::from_octets([0xff; 16]), self.prefix)
    }

    pub fn contains(self, addr: Addr) -> bool {
        masked(addr, self.prefix) == self.addr
    }
}

/// The address with all bits after the prefix cleared.
fn masked(addr: Addr, prefix: u8) -> Addr {
    let kept = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
    Addr::from_octets((u128::from_be_bytes(addr.octets()) & kept).to_be_bytes())
}

impl From<IpNet> for SourceRange {
    fn from(net: IpNet) -> Self {
        let before = if matches!(net, IpNet::V4(_)) { V4_PREFIX } else { 0 };
        // In this order: a network that covers IPv4-mapped addresses keeps its length in the 16-byte form.
        let addr = match net {
            IpNet::V4(net) => Addr::from_octets(net.network().to_ipv6_mapped().octets()),
            IpNet::V6(net) => Addr::from_octets(net.network().octets()),
        };
        Self::new(addr, before + net.prefix_len())
    }
}

impl fmt::Display for SourceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family() {
            Family::Ipv4 => write!(f, "{}/{}", self.addr, self.prefix - V4_PREFIX),
            Family::Ipv6 => write!(f, "{}/{}", std::net::Ipv6Addr::from(self.addr.octets()), self.prefix),
        }
    }
}

#[cfg(test)]
#[path = "tests/source_range.rs"]
mod tests;
