//! Addresses, the keys of most maps and tables: their order, text form and validation.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};

/// An IPv4 or IPv6 address in one 16-byte form. IPv4 is stored as `::ffff:a.b.c.d` (RFC 4291 section 2.5.5.2), exactly
/// as in the kernel maps. Displayed in canonical form (`10.0.0.1`, `2001:db8::1`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "IpAddr", into = "IpAddr")]
pub struct Addr([u8; 16]);

impl Ord for Addr {
    /// Compares the bytes in network order as a single number, because addresses are the keys of the largest maps.
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        work::count();
        u128::from_be_bytes(self.0).cmp(&u128::from_be_bytes(other.0))
    }
}

impl PartialOrd for Addr {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, strum::Display)]
pub enum Family {
    /// IPv4, including IPv4 in IPv4-mapped IPv6 form.
    #[strum(serialize = "IPv4")]
    Ipv4,
    #[strum(serialize = "IPv6")]
    Ipv6,
}

impl Addr {
    /// The unspecified IPv4 address: the address part of an IPv4 NodePort frontend.
    pub const UNSPECIFIED_V4: Self = Self::from_v4(Ipv4Addr::UNSPECIFIED);
    /// The unspecified IPv6 address: the address part of an IPv6 NodePort frontend.
    pub const UNSPECIFIED_V6: Self = Self([0; 16]);
    pub const LOOPBACK_V4: Self = Self::from_v4(Ipv4Addr::LOCALHOST);
    pub const LOOPBACK_V6: Self = Self(Ipv6Addr::LOCALHOST.octets());

    /// The address with these 16 bytes, in network order.
    pub const fn from_octets(octets: [u8; 16]) -> Self {
        Self(octets)
    }

    const fn from_v4(v4: Ipv4Addr) -> Self {
        Self(v4.to_ipv6_mapped().octets())
    }

    /// The 16 bytes in network order, as in the kernel maps.
    pub const fn octets(self) -> [u8; 16] {
        self.0
    }

    /// The address in the type of the standard library, IPv4 as IPv4.
    pub fn ip(self) -> IpAddr {
        self.v4().map_or_else(|| IpAddr::V6(self.0.into()), IpAddr::V4)
    }

    /// The IPv4 address; `None` for IPv6. A comparison of numbers takes a fifth of the instructions of a comparison of
    /// bytes, and each backend of a list is examined.
    fn v4(self) -> Option<Ipv4Addr> {
        let [.., a, b, c, d] = self.0;
        (u128::from_be_bytes(self.0) >> 32 == 0xffff).then(|| Ipv4Addr::new(a, b, c, d))
    }

    pub fn family(self) -> Family {
        if self.v4().is_some() { Family::Ipv4 } else { Family::Ipv6 }
    }

    pub const fn unspecified(family: Family) -> Self {
        match family {
            Family::Ipv4 => Self::UNSPECIFIED_V4,
            Family::Ipv6 => Self::UNSPECIFIED_V6,
        }
    }

    pub fn is_unspecified(self) -> bool {
        self == Self::UNSPECIFIED_V4 || self == Self::UNSPECIFIED_V6
    }

    /// Whether the address is in 127.0.0.0/8 or is `::1`.
    pub fn is_loopback(self) -> bool {
        self.v4().map_or(self == Self::LOOPBACK_V6, |v4| v4.is_loopback())
    }

    /// Whether the address is in 224.0.0.0/4 or ff00::/8, or is the IPv4 limited broadcast address.
    pub fn is_multicast(self) -> bool {
        self.v4().map_or(self.0[0] == 0xff, |v4| v4.is_multicast() || v4.is_broadcast())
    }

    /// Whether the address is in 169.254.0.0/16 (RFC 3927) or fe80::/10 (RFC 4291).
    pub fn is_link_local(self) -> bool {
        match self.ip() {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        }
    }

    /// Whether it is a link-local address of IPv6: the kernel forwards no packet from there (RFC 4291, section 2.5.6).
    pub fn is_never_forwarded(self) -> bool {
        self.family() == Family::Ipv6 && self.is_link_local()
    }

    /// Whether it is known at a glance that the address is none of the above: unspecified, loopback, multicast or
    /// link-local. May return false for others, and does for IPv6 addresses outside 2000::/3.
    pub fn is_ordinary(self) -> bool {
        match self.v4() {
            Some(v4) => matches!(v4.octets()[0], 1..=126 | 128..=168 | 170..=223),
            None => self.0[0] >> 5 == 0b001,
        }
    }
}

impl From<IpAddr> for Addr {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Self::from_v4(v4),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl From<Addr> for IpAddr {
    fn from(addr: Addr) -> Self {
        addr.ip()
    }
}

impl FromStr for Addr {
    type Err = AddrError;

    /// Accepts the same texts as `std::net`: leading zeros and zone ids (`fe80::1%eth0`) are refused.
    fn from_str(text: &str) -> Result<Self, AddrError> {
        let parsed = text.parse::<IpAddr>().map(Self::from);
        parsed
            .map_err(|_not_an_address| leading_zeros::<IpAddr>(text).unwrap_or_else(|| AddrError::Address(text.into())))
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A transport protocol of a frontend. The value is the IANA protocol number.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::FromRepr,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "UPPERCASE")]
#[strum(serialize_all = "UPPERCASE", ascii_case_insensitive, parse_err_fn = no_such_protocol, parse_err_ty = AddrError)]
#[repr(u8)]
pub enum Protocol {
    Tcp = 6,
    Udp = 17,
    /// RFC 9260. The table contains it, but the socket path does not translate it.
    Sctp = 132,
}

impl Protocol {
    pub const fn number(self) -> u8 {
        self as u8
    }
}

fn no_such_protocol(text: &str) -> AddrError {
    AddrError::Protocol(text.into())
}

/// A transport address: the address of a frontend or a backend. Written as `10.96.7.7:80/TCP` or
/// `[2001:db8::7]:80/TCP`. Ordered by address, port, protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct L4Addr {
    pub addr: Addr,
    /// The port in host byte order. A source never reports port 0.
    pub port: u16,
    pub protocol: Protocol,
}

impl JsonSchema for L4Addr {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "TransportAddress".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^.+:[0-9]+/(TCP|UDP|SCTP)$" })
    }
}

impl L4Addr {
    pub const fn new(addr: Addr, port: u16, protocol: Protocol) -> Self {
        Self { addr, port, protocol }
    }

    pub(crate) const FIRST: Self = Self::new(Addr([0; 16]), 0, Protocol::Tcp);
    pub(crate) const LAST: Self = Self::new(Addr([0xff; 16]), u16::MAX, Protocol::Sctp);

    /// The range of all transport addresses with this address, at any port and protocol.
    pub const fn all_at(addr: Addr) -> RangeInclusive<Self> {
        Self::new(addr, 0, Protocol::Tcp)..=Self::new(addr, u16::MAX, Protocol::Sctp)
    }

    /// The key of the NodePort frontend with this number.
    #[must_use]
    pub fn wildcard(self) -> Self {
        Self { addr: Addr::unspecified(self.addr.family()), ..self }
    }

    /// Appends the displayed form.
    pub fn push_to(self, out: &mut String) {
        self.with_text(|text| out.push_str(text));
    }

    /// Calls the closure with the displayed form.
    fn with_text<T>(self, then: impl FnOnce(&str) -> T) -> T {
        match self.addr.ip() {
            // Answers contain hundreds of thousands of addresses, and the standard library takes several times as long.
            IpAddr::V4(v4) => then(V4Text::new(v4.octets(), self.port, self.protocol).as_str()),
            IpAddr::V6(v6) => then(&format!("{}/{}", SocketAddr::from((v6, self.port)), self.protocol)),
        }
    }
}

impl FromStr for L4Addr {
    type Err = AddrError;

    fn from_str(text: &str) -> Result<Self, AddrError> {
        let (socket, protocol) = text.rsplit_once('/').unwrap_or((text, "TCP"));
        let socket: SocketAddr = socket.parse().map_err(|_not_a_socket_address| {
            leading_zeros::<SocketAddr>(socket).unwrap_or_else(|| AddrError::Socket(text.into()))
        })?;
        if socket.port() == 0 {
            return Err(AddrError::PortZero(text.into()));
        }
        // A zone, also 0.
        if text.contains('%') {
            return Err(AddrError::Socket(text.into()));
        }
        Ok(Self::new(socket.ip().into(), socket.port(), protocol.parse()?))
    }
}

impl TryFrom<String> for L4Addr {
    type Error = AddrError;

    fn try_from(text: String) -> Result<Self, AddrError> {
        text.parse()
    }
}

impl Serialize for L4Addr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.with_text(|text| serializer.serialize_str(text))
    }
}

impl fmt::Display for L4Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| f.pad(text))
    }
}

/// The digits of each number from 0 to 255, and how many there are.
const OCTETS: [[u8; 4]; 256] = {
    let mut octets = [[0; 4]; 256];
    let mut number: u8 = 0;
    loop {
        let [hundreds, tens, ones] = [b'0' + number / 100, b'0' + number / 10 % 10, b'0' + number % 10];
        octets[number as usize] = match number {
            0..10 => [ones, 0, 0, 1],
            10..100 => [tens, ones, 0, 2],
            100.. => [hundreds, tens, ones, 3],
        };
        if number == u8::MAX {
            break octets;
        }
        number += 1;
    }
};

struct V4Text {
    bytes: [u8; Self::MAX],
    length: usize,
}

impl V4Text {
    /// The length of `255.255.255.255:65535/SCTP`.
    const MAX: usize = 26;

    fn new(octets: [u8; 4], port: u16, protocol: Protocol) -> Self {
        let mut text = Self { bytes: [0; Self::MAX], length: 0 };
        for (octet, end) in octets.into_iter().zip(b"...:") {
            let [a, b, c, length] = OCTETS[usize::from(octet)];
            text.bytes[text.length..text.length + 3].copy_from_slice(&[a, b, c]);
            text.length += usize::from(length);
            text.push(&[*end]);
        }
        text.push_number(port);
        text.push(b"/");
        text.push(<&str>::from(protocol).as_bytes());
        text
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn push_number(&mut self, mut number: u16) {
        let mut digits = [b'0'; 5];
        let mut first = digits.len();
        while first == digits.len() || number > 0 {
            first -= 1;
            digits[first] += u8::try_from(number % 10).unwrap_or_default();
            number /= 10;
        }
        self.push(&digits[first..]);
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).expect("invariant: the bytes are ASCII")
    }
}

impl fmt::Debug for L4Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Parses a network, or an address as the network that contains only this address. Bits set beyond the prefix length are
/// refused, because they are usually a mistake.
pub fn parse_net(text: &str) -> Result<IpNet, AddrError> {
    if let Ok(addr) = text.parse::<IpAddr>() {
        return Ok(addr.to_canonical().into());
    }
    let net: IpNet = text
        .parse()
        .map_err(|_not_a_net| leading_zeros::<IpAddr>(text).unwrap_or_else(|| AddrError::Net(text.into())))?;
    if net == net.trunc() { Ok(net) } else { Err(AddrError::HostBits(text.into(), net.trunc())) }
}

/// The error for a text with an IPv4 address that is valid only without its leading zeros, alone or with a port or
/// prefix length.
fn leading_zeros<T: FromStr>(text: &str) -> Option<AddrError> {
    let (octets, rest) = text.split_at(text.find([':', '/']).unwrap_or(text.len()));
    let plain = |octet: &str| match octet.trim_start_matches('0') {
        "" if !octet.is_empty() => "0".to_owned(),
        number => number.to_owned(),
    };
    let plain: Vec<String> = octets.split('.').map(plain).collect();
    let plain = format!("{}{rest}", plain.join("."));
    (plain != text && plain.parse::<T>().is_ok()).then(|| AddrError::LeadingZeros(text.into(), plain))
}

/// Why a text is not an address. Each message quotes the text and shows the expected form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddrError {
    #[error("`{0}` is not an IP address (expected like 192.0.2.7 or 2001:db8::7)")]
    Address(String),
    #[error("`{0}` has leading zeros, which some programs read as octal: write {1} if decimal numbers are meant")]
    LeadingZeros(String, String),
    #[error("`{0}` is not an address with a port (expected like 192.0.2.7:80 or [2001:db8::7]:80)")]
    Socket(String),
    #[error("`{0}` has port 0, to which no client can connect")]
    PortZero(String),
    #[error("`{0}` is not an address or CIDR (expected like 192.0.2.7 or 192.0.2.0/24)")]
    Net(String),
    #[error("`{0}` has bits set beyond its prefix length; write {1}")]
    HostBits(String, IpNet),
    #[error("`{0}` is not a protocol (expected TCP, UDP or SCTP)")]
    Protocol(String),
}

#[cfg(test)]
#[path = "tests/addr.rs"]
mod tests;
#[cfg(test)]
#[path = "tests/work.rs"]
pub(crate) mod work;
