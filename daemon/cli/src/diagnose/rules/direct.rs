//! Direct return: what this machine can tell about the way to backends that answer clients outside themselves, and about
//! its own role as the machine of such a backend. The answers do not pass it. The catalogue has the texts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::context::Context;
use crate::diagnose::catalogue;
use crate::diagnose::facts::{BackendRow, Daemon, FrontendRow, KernelSettings, Packets, Route};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::text::counted;
use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding};

/// The smallest MTU of IPv6.
const SMALLEST_MTU: u32 = 1_280;

/// How the failure of a health check begins if the machine of the backend does not take packets to the address of the
/// service, or sends them on.
const NOT_TAKEN: [&str; 2] = ["no connection to ", "no route to host"];

/// How packets of clients reach backends unchanged, `direct` or `tunnel`; `None` if they are translated.
pub(super) fn way(daemon: &Daemon) -> Option<&'static str> {
    ["direct", "tunnel"].into_iter().find(|how| daemon.frontends.iter().any(|row| row.is_forwarded(how)))
}

/// Returns the finding that backends failed their health checks. The checks go the way of the packets, and may fail for
/// the same reason.
pub(super) fn failed_checks(context: &Context<'_>, kind: Kind, what: impl Into<String>) -> Finding {
    let is_not_taken =
        |row: &BackendRow| row.reason.iter().any(|why| NOT_TAKEN.iter().any(|text| why.starts_with(text)));
    let daemon = context.daemon.filter(|daemon| daemon.backends.iter().any(is_not_taken));
    match daemon.and_then(way).and_then(|way| catalogue::finding(Kind::Unanswered).remedies.get(way)) {
        Some(way) => context.finding_in(kind, what, "forwarded", &[("way", way)]),
        None => context.finding(kind, what),
    }
}

/// The problems, by their names in the catalogue, each with its evidence.
pub(super) fn problems<'p>(context: &Context<'_>, packets: &Packets) -> Vec<(&'p str, Vec<String>)> {
    let Some(daemon) = context.daemon else { return Vec::new() };
    let kernel = &context.facts.kernel;
    let has = |how: &str| daemon.frontends.iter().any(|row| row.is_forwarded(how));
    let mut found = Vec::new();
    if has("direct") {
        found.push(("direct-gateway", through_routers(daemon, kernel)));
    }
    if has("tunnel") {
        let (low, smaller) = tunnels(daemon, kernel);
        found.push(("tunnel-mtu-low", low));
        found.push(("tunnel-mtu", smaller));
    }
    found.push(("direct-unseen", unseen(packets)));
    found
}

/// The same for a machine with a backend, which may be no node of entry.
pub(super) fn of_backend<'p>(context: &Context<'_>) -> Vec<(&'p str, Vec<String>)> {
    let kernel = &context.facts.kernel;
    let Some(daemon) = context.daemon.filter(|daemon| daemon.services.iter().any(|row| row.forward == "direct")) else {
        return Vec::new();
    };
    if !backends(daemon).any(|(_, ip)| kernel.has(ip)) {
        return Vec::new();
    }
    let is_for_clients = |row: &&FrontendRow| matches!(&*row.kind, "ExternalIP" | "LoadBalancer" | "Static");
    let rows = daemon.frontends.iter().filter(is_for_clients);
    let rows = rows.filter_map(|row| Some((row, ip_of(&row.address)?)));
    let (here, missing): (Vec<_>, Vec<_>) = rows.partition(|(_, ip)| kernel.has(*ip));
    // Otherwise nodelb translates the packets for the backend.
    let missing = missing.into_iter().filter(|(row, _)| row.outside != "Served");
    let missing = missing.map(|(row, _)| format!("no device has the address of {}", row.address));
    let is_on_loopback = |ip: IpAddr| kernel.addresses.iter().any(|(device, own)| device == "lo" && *own == ip);
    let answers = here.iter().any(|(_, ip)| ip.is_ipv4() && is_on_loopback(*ip));
    let devices = kernel.arp_devices.iter().filter(|_| answers);
    let answered = devices.map(|device| format!("arp_ignore is less than 1, or arp_announce less than 2, on {device}"));
    vec![("direct-address", missing.collect()), ("direct-arp", answered.collect())]
}

/// The backends in use, with their addresses.
fn backends(daemon: &Daemon) -> impl Iterator<Item = (&str, IpAddr)> {
    let used = daemon.backends.iter().filter(|row| row.is_used());
    used.filter_map(|row| Some((&*row.address, ip_of(&row.address)?)))
}

pub(super) fn ip_of(address: &str) -> Option<IpAddr> {
    Some(address.parse::<L4Addr>().ok()?.addr.ip())
}

/// The backends on other machines, with the routes to them.
fn routed<'f>(daemon: &'f Daemon, kernel: &'f KernelSettings) -> impl Iterator<Item = (&'f str, &'f Route)> {
    let others = backends(daemon).filter(|(_, ip)| !kernel.has(*ip));
    others.filter_map(|(backend, ip)| Some((backend, kernel.route_to(ip)?)))
}

fn through_routers(daemon: &Daemon, kernel: &KernelSettings) -> Vec<String> {
    let behind = routed(daemon, kernel).filter(|(_, route)| route.has_gateway);
    behind.map(|(backend, route)| format!("the route to {backend} leads to a router on {}", route.device)).collect()
}

/// The backends to which the tunnel leaves less than the smallest MTU, and less than the MTU towards clients.
fn tunnels(daemon: &Daemon, kernel: &KernelSettings) -> (Vec<String>, Vec<String>) {
    let (mut low, mut smaller) = (Vec::new(), Vec::new());
    for (backend, route) in routed(daemon, kernel).filter(|(_, route)| route.mtu > 0) {
        let header = if route.to.is_ipv6() { 40 } else { 20 };
        let left = route.mtu.saturating_sub(header);
        let device = &route.device;
        let line = format!("{backend}: the MTU on {device} is {}, which leaves {left} in the tunnel", route.mtu);
        let outwards = kernel.routes.iter().find(|it| it.length == 0 && it.to.is_ipv6() == route.to.is_ipv6());
        if left < SMALLEST_MTU {
            low.push(line);
        } else if outwards.is_some_and(|outwards| left < outwards.mtu) {
            smaller.push(line);
        }
    }
    (low, smaller)
}

/// The backends to which datagrams are forwarded. Whether TCP is answered, the client's packets show.
fn unseen(packets: &Packets) -> Vec<String> {
    let mut by_backend: BTreeMap<&str, usize> = BTreeMap::new();
    for row in packets.connections.iter().filter(|row| row.state == "forwarded" && row.backend.ends_with("/UDP")) {
        *by_backend.entry(&row.backend).or_default() += 1;
    }
    by_backend.iter().map(|(backend, count)| format!("{backend} has {}", counted(*count, "connection"))).collect()
}

#[cfg(test)]
#[path = "../tests/direct.rs"]
mod tests;
