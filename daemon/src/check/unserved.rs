//! What the service files describe and nodelb would not serve, or not to every client.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_indextoname;
use nix::sys::socket::SockaddrStorage;
use nodelb_core::compile::outside::is_outside;
use nodelb_core::model::addr::{Addr, Family, L4Addr};
use nodelb_core::model::forward::Forward;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{Service, ServiceName, Slice};
use nodelb_core::model::uplink::Uplink;
use nodelb_core::text::listed;
use nodelb_datapath::is_open_for_writing;
use nodelb_report::problems::{self, DroppingChain};
use nodelb_sources::files;

use crate::config::Config;
use crate::devices::{self, SYSCTLS, forwarding};
use crate::node::netlink::{self, Way};

/// The maximum number of services in one line.
const SHOWN: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Unserved {
    /// What is never served, whatever the host.
    pub(super) problems: Vec<String>,
    /// What is not served on this host, or by its present settings.
    pub(super) notices: Vec<String>,
}

/// What the network stack of a host would do with packets.
#[derive(Debug, Default)]
struct Host {
    addresses: BTreeSet<Addr>,
    /// The directory with the network settings of the kernel.
    sysctls: PathBuf,
    uplinks: Vec<Uplink>,
    /// The chains that drop forwarded packets; none if this process may not read them.
    dropping: Vec<DroppingChain>,
}

/// Finds what nodelb would refuse with this configuration.
pub(super) fn unserved(config: &Config) -> Unserved {
    let host = Host {
        addresses: own_addresses(),
        sysctls: PathBuf::from(SYSCTLS),
        uplinks: devices::uplinks_now(config).unwrap_or_default(),
        dropping: devices::dropping_chains().unwrap_or_default(),
    };
    unserved_on(config, &host, |addresses| netlink::ways_out(addresses).unwrap_or_default())
}

/// [`unserved`] on this host; `ways_out` asks for the devices by which packets to addresses leave.
fn unserved_on(config: &Config, host: &Host, ways_out: impl Fn(BTreeSet<Addr>) -> BTreeMap<Addr, Way>) -> Unserved {
    let own = &host.addresses;
    let (services, slices) = files::described(&config.files.directory, is_open_for_writing).unwrap_or_default();
    let mut found = Unserved::default();
    refused(config, own, &services, &mut found);
    found.problems.extend(services.iter().filter_map(|service| loopback(config, service, &slices)));
    found.notices.extend(undirected(config, &services));
    for family in [Family::Ipv4, Family::Ipv6] {
        let needing: BTreeSet<&ServiceName> =
            services.iter().filter(|it| is_forwarded(config, it, &slices, own, family)).map(|it| &it.name).collect();
        let setting = forwarding::everywhere(&host.sysctls, family, &[]).flatten().filter(|_| !needing.is_empty());
        found.notices.extend(setting.map(|setting| {
            format!(
                "note: {setting} on this host: clients outside the node will not reach backends of {} on other machines \
                 and in pods; set it to 1",
                listed(needing, SHOWN)
            )
        }));
    }
    let outside: Vec<(&ServiceName, L4Addr)> = services
        .iter()
        .flat_map(|service| {
            outside_backends(config, service, &slices).into_iter().map(|backend| (&service.name, backend))
        })
        .collect();
    let mut ways =
        ways_out(outside.iter().map(|(_, backend)| backend.addr).filter(|addr| !own.contains(addr)).collect());
    ways.retain(|_, way| host.uplinks.iter().all(|uplink| uplink.ifindex != way.device));
    found.notices.extend(host.dropping.iter().filter_map(|chain| behind(chain, &outside, &ways)));
    found.notices.extend(gateways(&outside, &ways));
    let strict =
        problems::strict(&host.uplinks).filter(|_| outside.iter().any(|(_, it)| it.addr.family() == Family::Ipv4));
    found.notices.extend(strict.map(|strict| format!("note: {strict}")));
    found
}

/// Returns a line if packets of clients outside the node to some backends pass this chain. `ways`: those by other devices than
/// uplinks.
fn behind(chain: &DroppingChain, outside: &[(&ServiceName, L4Addr)], ways: &BTreeMap<Addr, Way>) -> Option<String> {
    let passes = |backend: &L4Addr| chain.drops(backend.addr.family()) && ways.contains_key(&backend.addr);
    let names: BTreeSet<&ServiceName> = outside.iter().filter(|(_, it)| passes(it)).map(|(name, _)| *name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "note: {} drops forwarded packets that no rule accepts: clients outside the node reach the backends of {} in \
             pods and networks behind this host only if a rule accepts packets to them",
            chain.name,
            listed(names, SHOWN)
        )
    })
}

/// Returns a line for each device without programs that leads to a router, if some backends are behind it.
fn gateways(outside: &[(&ServiceName, L4Addr)], ways: &BTreeMap<Addr, Way>) -> impl Iterator<Item = String> {
    let mut behind: BTreeMap<u32, BTreeSet<&ServiceName>> = BTreeMap::new();
    for (name, backend) in outside {
        if let Some(way) = ways.get(&backend.addr).filter(|way| way.has_gateway) {
            behind.entry(way.device).or_default().insert(name);
        }
    }
    behind.into_iter().map(|(device, names)| {
        let name = if_indextoname(device).map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_else(|_| format!("with the number {device}"));
        format!(
            "note: the device {name} leads to a router, and nodelb would have no programs there: clients outside the node get \
             no answer from the backends behind it of {}; add it to packets.devices",
            listed(names, SHOWN)
        )
    })
}

/// Addresses that are refused: some on every host, others only on one that has the address.
fn refused(config: &Config, own: &BTreeSet<Addr>, services: &[Arc<Service>], found: &mut Unserved) {
    let guard = config.guard();
    let (here, anywhere) = (NodeFacts { addresses: own.clone(), ..NodeFacts::default() }, NodeFacts::default());
    for service in services {
        for port in &service.ports {
            for frontend in &port.frontends {
                let Err(refusal) = guard.check_frontend(frontend, port.protocol, &here) else { continue };
                let (object, name) = (&service.origin.object, &service.name);
                let address = frontend.l4(port.protocol);
                let line = format!("{object}: service {name}: {address} will not be served: {refusal}");
                match guard.check_frontend(frontend, port.protocol, &anywhere) {
                    Err(_) => found.problems.push(line),
                    Ok(()) => found.notices.push(format!("note: {line}")),
                }
            }
        }
    }
}

/// Returns a line if clients outside the node are to be served, and a backend has a loopback address.
fn loopback(config: &Config, service: &Service, slices: &[Arc<Slice>]) -> Option<String> {
    let backend = outside_backends(config, service, slices).into_iter().find(|it| it.addr.is_loopback())?;
    Some(format!(
        "{}: service {}: clients outside the node cannot reach the backend {backend}, a loopback address: give it an \
         address of the host, or remove outside = true",
        service.origin.object, service.name
    ))
}

/// Returns a line for each way of direct return that some services ask for and the configuration does not allow.
fn undirected(config: &Config, services: &[Arc<Service>]) -> impl Iterator<Item = String> {
    let packets = config.packets.engine();
    [Forward::Direct, Forward::Tunnel].into_iter().filter_map(move |forward| {
        let asks = |service: &&Arc<Service>| {
            service.forward == forward && packets.forward_of(service) != forward && has_outside(config, service)
        };
        let names: BTreeSet<&ServiceName> = services.iter().filter(asks).map(|service| &service.name).collect();
        (!names.is_empty()).then(|| {
            format!(
                "note: forward = \"{forward}\" has no effect, because packets.direct-return is not true: packets of \
                 clients outside the node to {} are translated; set it to true and restart nodelb, or remove forward",
                listed(names, SHOWN)
            )
        })
    })
}

/// Whether clients outside the node are to be served, and packets to a backend of this family have to be forwarded.
fn is_forwarded(
    config: &Config,
    service: &Service,
    slices: &[Arc<Slice>],
    own: &BTreeSet<Addr>,
    family: Family,
) -> bool {
    let backends = outside_backends(config, service, slices);
    backends.iter().any(|it| it.addr.family() == family && !it.addr.is_loopback() && !own.contains(&it.addr))
}

/// The backends of the service, if clients outside the node are to be served.
fn outside_backends(config: &Config, service: &Service, slices: &[Arc<Slice>]) -> Vec<L4Addr> {
    if !has_outside(config, service) {
        return Vec::new();
    }
    let ports = slices.iter().filter(|slice| slice.service == service.name).flat_map(|slice| &slice.ports);
    ports.flat_map(|port| port.backends.iter().map(|it| L4Addr::new(it.addr, it.port, port.protocol))).collect()
}

/// Whether clients outside the node are to be served.
fn has_outside(config: &Config, service: &Service) -> bool {
    let packets = config.packets.engine();
    let mut frontends = service.ports.iter().flat_map(|port| &port.frontends);
    frontends.any(|frontend| is_outside(service, frontend.kind, packets))
}

/// The addresses of all devices of this host.
pub(crate) fn own_addresses() -> BTreeSet<Addr> {
    let own = getifaddrs().into_iter().flatten();
    own.filter_map(|it| it.address.and_then(|it| ip_of(&it))).map(Addr::from).collect()
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|it| it.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|it| it.ip().into()))
}

#[cfg(test)]
#[path = "tests/unserved.rs"]
mod tests;
