//! The address of a DNS server, as the configuration and resolv.conf(5) have it. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use nodelb_core::text;

/// The maximum length of the name of a network interface, in bytes.
const MAX_INTERFACE: usize = 15;

/// The port of a server that is written without one.
pub(super) const PORT: u16 = 53;

/// The number of the network interface of this name.
pub(super) type ZoneOf<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// The address of a DNS server, written `192.0.2.53`, `127.0.0.1:8600` or, with a network interface, `fe80::1%eth0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DnsServer {
    address: SocketAddr,
    /// The name or the number of the network interface by which a link-local address is reached.
    zone: Option<Box<str>>,
}

impl DnsServer {
    /// Reads `[ADDRESS%ZONE]:PORT` and an address without a port. `None` for what cannot be the address of a server.
    pub fn parse(text: &str) -> Option<Self> {
        let parsed = if let Some((host, port)) = text.strip_prefix('[').and_then(|rest| rest.rsplit_once("]:")) {
            let (ip, zone) = host.split_once('%').map_or((host, None), |(ip, zone)| (ip, Some(zone)));
            let ip: Ipv6Addr = ip.parse().ok()?;
            Self::new(SocketAddr::new(ip.into(), port.parse().ok()?), zone)
        } else {
            match text.parse() {
                Ok(address) => Self::new(address, None),
                Err(_no_port) => Self::of_system(text),
            }
        };
        let is_usable = |ip: IpAddr| !ip.is_unspecified() && !ip.is_multicast();
        parsed.filter(|it| it.address.port() > 0 && is_usable(it.address.ip()))
    }

    /// The address of a server in resolv.conf(5), which has no port.
    pub(super) fn of_system(text: &str) -> Option<Self> {
        let (ip, zone) = text.split_once('%').map_or((text, None), |(ip, zone)| (ip, Some(zone)));
        Self::new(SocketAddr::new(ip.parse().ok()?, PORT), zone)
    }

    fn new(address: SocketAddr, zone: Option<&str>) -> Option<Self> {
        let is_zone = zone.is_none_or(|zone| address.is_ipv6() && !zone.is_empty() && zone.len() <= MAX_INTERFACE);
        is_zone.then(|| Self { address, zone: zone.map(Into::into) })
    }

    pub(super) fn resolve(&self, zone_of: ZoneOf<'_>) -> Result<SocketAddr, String> {
        let Some(zone) = &self.zone else { return Ok(self.address) };
        let index = zone.parse().ok().or_else(|| zone_of(zone));
        let index = index.ok_or_else(|| format!("names `{}`, which is no network interface", text::name(zone)))?;
        Ok(match self.address {
            SocketAddr::V6(it) => SocketAddrV6::new(*it.ip(), it.port(), it.flowinfo(), index).into(),
            of_ipv4 @ SocketAddr::V4(_) => of_ipv4,
        })
    }
}

impl fmt::Display for DnsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.zone {
            Some(zone) => write!(f, "[{}%{zone}]:{}", self.address.ip(), self.address.port()),
            None => fmt::Display::fmt(&self.address, f),
        }
    }
}
