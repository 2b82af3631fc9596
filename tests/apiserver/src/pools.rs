//! Allocation of cluster IPs and node ports, in a fixed order: the same writes allocate the same
//! values.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use serde_json::Value;

use crate::status::Status;

/// The ranges that services get their addresses and ports from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Service CIDRs, the primary one first; at most one per family.
    pub addresses: Vec<IpNet>,
    /// Node ports.
    pub ports: RangeInclusive<u16>,
}

impl Default for Ranges {
    /// The defaults of kubeadm: `10.96.0.0/16`, 30000 to 32767.
    fn default() -> Self {
        let range = IpNet::new_assert(IpAddr::from([10, 96, 0, 0]), 16);
        Self { addresses: vec![range], ports: 30000..=32767 }
    }
}

/// The allocated values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    pub(crate) ranges: Ranges,
    addresses: BTreeSet<IpAddr>,
    ports: BTreeSet<u16>,
}

/// Number of addresses at the start of a range that are assigned only on request, as apiservers do
/// (KEP-3070).
const RESERVED: usize = 16;

impl Pools {
    pub(crate) fn new(ranges: Ranges) -> Self {
        Self { ranges, ..Self::default() }
    }

    /// Marks the values of a service as allocated.
    pub(crate) fn claim(&mut self, service: &Value) {
        self.addresses.extend(addresses(service));
        self.ports.extend(ports(service));
    }

    /// Releases the values of a service.
    pub(crate) fn release(&mut self, service: &Value) {
        for address in addresses(service) {
            self.addresses.remove(&address);
        }
        for port in ports(service) {
            self.ports.remove(&port);
        }
    }

    /// Reports whether a service has this address.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// Reports whether a service has this node port.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ports.contains(&port)
    }

    /// Allocates an address of this family: the one after the greatest allocated address, as long
    /// as the range lasts.
    pub(crate) fn address(&mut self, v6: bool) -> Result<IpAddr, Status> {
        let range = self.ranges.addresses.iter().find(|range| range.addr().is_ipv6() == v6);
        let range = range.ok_or_else(|| Status::new(422, "this cluster is not configured for that IP family"))?;
        let taken = |address: &IpAddr| self.addresses.contains(address);
        // The common case, without a scan of all allocated addresses.
        let last = self.addresses.range(range.network()..range.broadcast()).next_back();
        let next = last.and_then(|last| range_after(range, *last)).filter(|it| !taken(it));
        let free = next.or_else(|| range.hosts().skip(RESERVED).find(|it| !taken(it)));
        let free = free.ok_or_else(|| Status::new(500, "failed to allocate IP: range is full"))?;
        self.addresses.insert(free);
        Ok(free)
    }

    /// Allocates the lowest free node port.
    pub(crate) fn port(&mut self) -> Result<u16, Status> {
        let free = self.ranges.ports.clone().find(|port| !self.ports.contains(port));
        let free = free.ok_or_else(|| Status::new(500, "failed to allocate a nodePort: range is full"))?;
        self.ports.insert(free);
        Ok(free)
    }
}

/// The next address that may be allocated.
fn range_after(range: &IpNet, address: IpAddr) -> Option<IpAddr> {
    let next: IpAddr = match address {
        IpAddr::V4(v4) => Ipv4Addr::from_bits(v4.to_bits().checked_add(1)?).into(),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits().checked_add(1)?).into(),
    };
    let first = range.hosts().nth(RESERVED)?;
    (next >= first && next < range.broadcast()).then_some(next)
}

/// The cluster IPs of a service without `None` and invalid ones.
pub(crate) fn addresses(service: &Value) -> Vec<IpAddr> {
    let list = service["spec"]["clusterIPs"].as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(|address| address.as_str()?.parse().ok()).collect()
}

/// The node ports of a service.
pub(crate) fn ports(service: &Value) -> Vec<u16> {
    let list = service["spec"]["ports"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ports = list.iter().map(|port| &port["nodePort"]).chain([&service["spec"]["healthCheckNodePort"]]);
    ports.filter_map(|port| u16::try_from(port.as_u64()?).ok()).filter(|port| *port != 0).collect()
}
