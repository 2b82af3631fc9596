//! Reads the main routing tables and the addresses of this host, which any user may do. Other tables, such as those that
//! rules select by the source address, are not read.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, SockaddrLike};

use crate::diagnose::facts::Route;

/// Flags of routes: `RTF_GATEWAY`, and `RTF_REJECT` or `RTF_LOCAL`, which lead to no device.
const GATEWAY: u32 = 0x2;
const NOWHERE: u32 = 0x200 | 0x8000_0000;

/// The addresses of the host's devices, each with the name of its device.
pub(super) fn addresses() -> Vec<(String, IpAddr)> {
    let all = getifaddrs().into_iter().flatten();
    let found = all.filter_map(|entry| {
        let address = entry.address?;
        let ip = match address.family()? {
            AddressFamily::Inet => IpAddr::V4(address.as_sockaddr_in()?.ip()),
            AddressFamily::Inet6 => IpAddr::V6(address.as_sockaddr_in6()?.ip()),
            _ => return None,
        };
        Some((entry.interface_name, ip))
    });
    found.collect()
}

/// Reads the routes. `net` is like `/proc/net`, `devices` like `/sys/class/net`.
pub(super) fn routes_in(net: &Path, devices: &Path) -> Vec<Route> {
    let lines = |file: &str, line: fn(&str) -> Option<Route>| {
        let text = fs::read_to_string(net.join(file)).unwrap_or_default();
        text.lines().filter_map(line).collect::<Vec<Route>>()
    };
    let mut routes = lines("route", v4);
    routes.append(&mut lines("ipv6_route", v6));
    for route in routes.iter_mut().filter(|route| route.mtu == 0) {
        let mtu = fs::read_to_string(devices.join(&route.device).join("mtu"));
        route.mtu = mtu.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    }
    routes
}

/// Reads `eth0 00000000 0100000A 0003 0 0 100 00000000 0 0 0`, the device, destination, gateway, flags, metric, mask and MTU.
fn v4(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [device, to, _, flags, _, _, metric, mask, mtu, ..] = fields[..] else { return None };
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    // The numbers are printed as they are in memory.
    let address = |text: &str| Some(Ipv4Addr::from(hex(text)?.to_ne_bytes()));
    let flags = hex(flags)?;
    (flags & NOWHERE == 0).then_some(Route {
        to: address(to)?.into(),
        length: u8::try_from(hex(mask)?.count_ones()).ok()?,
        device: device.into(),
        has_gateway: flags & GATEWAY != 0,
        metric: metric.parse().ok()?,
        mtu: mtu.parse().ok()?,
    })
}

/// Reads the destination with its length, the source with its length, the gateway, metric, two counts, flags and the device.
fn v6(line: &str) -> Option<Route> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [to, length, _, _, _, metric, _, _, flags, device] = fields[..] else { return None };
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let flags = hex(flags)?;
    (flags & NOWHERE == 0).then_some(Route {
        to: Ipv6Addr::from(u128::from_str_radix(to, 16).ok()?).into(),
        length: u8::from_str_radix(length, 16).ok()?,
        device: device.into(),
        has_gateway: flags & GATEWAY != 0,
        metric: hex(metric)?,
        mtu: 0,
    })
}

#[cfg(test)]
#[path = "../tests/gather_routes.rs"]
mod tests;
