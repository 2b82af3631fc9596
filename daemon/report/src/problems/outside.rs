//! Problems of clients outside the node: backends that their packets do not reach, which follows from the configuration
//! before any client has tried, and backends that do not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::problem::{Firewall, NotForwarding, Observed, Problem, Shared, SharedCause, Ways};
use super::reason::{Reason, Severity};
use crate::explain::outside::{self, Forwarded};
use crate::explain::reports;
use crate::filter::Filter;
use nodelb_core::model::addr::{Family, L4Addr, Protocol};
use nodelb_core::model::service::ServiceName;
use nodelb_core::model::uplink::Uplink;
use nodelb_core::packets::outcomes::{Answered, SilentPort};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::ServiceId;
use nodelb_core::text::{counted, listed};

/// The maximum number of names in one line.
const SHOWN: usize = 3;

/// What follows from settings or a firewall that may keep the kernel from forwarding packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unforwarded {
    pub severity: Severity,
    /// What is so, for which services.
    pub cause: String,
    /// The services that need it.
    pub services: BTreeSet<ServiceName>,
}

impl Unforwarded {
    fn problem(self, reason: Reason, more: &str) -> Problem {
        let Self { severity, cause, services } = self;
        let problem = Problem::new(reason, "packets", cause + more).severity(severity);
        problem.of_services(&services)
    }
}

/// What follows from these settings; `None` if no service needs packets to be forwarded.
pub fn unforwarded(snapshot: &Snapshot, not_forwarding: &[NotForwarding]) -> Option<Unforwarded> {
    let (mut causes, mut services) = (Vec::new(), BTreeSet::new());
    let mut severity = Severity::Warning;
    for NotForwarding { family, settings, is_everywhere } in not_forwarding {
        let has_address =
            |uplink: &Uplink| [uplink.entry.v4, uplink.entry.v6].iter().flatten().any(|it| it.family() == *family);
        if settings.is_empty() || !snapshot.facts.uplinks.iter().any(has_address) {
            continue;
        }
        let Forwarded { mut all, mut some } = outside::forwarded(snapshot, *family);
        let effect = match is_everywhere {
            true if !all.is_empty() => {
                severity = Severity::Critical;
                "clients outside the node reach no backend of"
            }
            true => "clients outside the node reach only the backends on this node of",
            false => {
                some.append(&mut all);
                "clients that arrive there reach only the backends on this node of"
            }
        };
        services.extend(all.iter().chain(&some).cloned());
        let names = if all.is_empty() { some } else { all };
        if !names.is_empty() {
            causes.push(format!("{}: {effect} {}", listed(settings, SHOWN), listed(names, SHOWN)));
        }
    }
    let cause = format!("{}; set it to 1", causes.join("; "));
    (!causes.is_empty()).then_some(Unforwarded { severity, cause, services })
}

/// The kernel does not forward packets of clients outside the node, and services need that.
pub(super) fn not_forwarded(observed: &Observed) -> Option<Problem> {
    let not_forwarding = observed.not_forwarding.as_deref().unwrap_or_default();
    let unforwarded = unforwarded(&observed.snapshot, not_forwarding)?;
    let lost: u64 = observed.drops.iter().filter(|it| it.reason == "no-forwarding").map(|it| it.packets).sum();
    let lost = match usize::try_from(lost).unwrap_or(usize::MAX) {
        0 => String::new(),
        lost => format!(" ({} of clients lost)", counted(lost, "packet")),
    };
    Some(unforwarded.problem(Reason::NotForwarding, &lost))
}

/// A firewall drops forwarded packets, and no backend of some services behind it has answered yet.
pub(super) fn firewalled(observed: &Observed) -> Option<Problem> {
    let behind = behind_firewall(&observed.snapshot, &observed.ways.firewall, &observed.answered)?;
    Some(behind.problem(Reason::ForwardPolicy, ""))
}

/// Which services have backends that packets reach only if a firewall accepts them, and of which none has answered yet.
pub fn behind_firewall(snapshot: &Snapshot, firewall: &Firewall, answered: &Answered) -> Option<Unforwarded> {
    // Where one port of a service has answered, the rules admit its clients.
    let mut has_answered: BTreeMap<&ServiceName, bool> = BTreeMap::new();
    for (id, backends) in &firewall.behind {
        let Some(owner) = snapshot.owners.get(id) else { continue };
        let answers = answered.get(id).is_some_and(|answered| !answered.is_disjoint(backends));
        *has_answered.entry(&owner.key.service).or_default() |= answers;
    }
    let services: BTreeSet<ServiceName> =
        has_answered.into_iter().filter(|(_, answers)| !answers).map(|(name, _)| name.clone()).collect();
    let chains: Vec<&str> = firewall.chains.iter().map(|chain| &*chain.name).collect();
    let verb = if chains.len() == 1 { "drops" } else { "drop" };
    let cause = format!(
        "{} {verb} forwarded packets that no rule accepts, and clients outside the node have had no answer yet from the \
         backends behind it of {}",
        listed(chains, SHOWN),
        listed(&services, SHOWN)
    );
    (!services.is_empty()).then_some(Unforwarded { severity: Severity::Notice, cause, services })
}

/// A device without programs that leads to a router, with backends behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    pub device: Arc<str>,
    pub cause: String,
    /// The services with such backends.
    pub services: BTreeSet<ServiceName>,
}

/// The devices without programs by which packets leave to a router and to backends behind it.
pub fn gateways(snapshot: &Snapshot, ways: &Ways) -> Vec<Gateway> {
    let gateway = |(device, ids): (&Arc<str>, &BTreeSet<ServiceId>)| {
        let services: BTreeSet<ServiceName> =
            ids.iter().filter_map(|id| snapshot.owners.get(id)).map(|owner| owner.key.service.clone()).collect();
        let cause = format!(
            "{device} leads to a router, and nodelb's programs are not there: clients outside the node get no answer from the \
             backends behind it of {}; add it to packets.devices",
            listed(&services, SHOWN)
        );
        (!services.is_empty()).then(|| Gateway { device: Arc::clone(device), cause, services })
    };
    ways.gateways.iter().filter_map(gateway).collect()
}

pub(super) fn without_programs(observed: &Observed, found: &mut Vec<Problem>) {
    for Gateway { device, cause, services } in gateways(&observed.snapshot, &observed.ways) {
        let problem = Problem::new(Reason::GatewayWithoutPrograms, format!("device {device}"), cause);
        found.push(problem.of_services(&services));
    }
}

/// Clients must arrive by the device that leads back to them, and the node has several ways out.
pub(super) fn strict_devices(observed: &Observed) -> Option<Problem> {
    needed_strict(&observed.snapshot).map(|cause| Problem::new(Reason::StrictReversePath, "packets", cause))
}

/// [`strict`], if clients of IPv4 are served.
pub fn needed_strict(snapshot: &Snapshot) -> Option<String> {
    let has_clients = snapshot.realised.outside.keys().any(|address| address.addr.family() == Family::Ipv4);
    if has_clients { strict(&snapshot.facts.uplinks) } else { None }
}

/// At which of several uplinks packets are dropped that do not arrive by the way back.
pub fn strict(uplinks: &[Uplink]) -> Option<String> {
    let uplinks: Vec<&Uplink> = uplinks.iter().filter(|uplink| uplink.entry.v4.is_some()).collect();
    let strict: Vec<&str> = uplinks.iter().filter(|it| it.entry.is_strict).map(|it| &*it.name).collect();
    (uplinks.len() > 1 && !strict.is_empty()).then(|| {
        format!(
            "rp_filter is 1 on {}: packets of a client that arrive there are dropped unless the route to the client leads back \
             by the same device",
            listed(strict, SHOWN)
        )
    })
}

/// Services of files with clients outside the node that reach no backend, or not all of them.
pub(super) fn unserved(observed: &Observed, found: &mut Vec<Problem>) {
    for name in &observed.summary.outside_files {
        found.extend(loopback(observed, name));
        found.extend(without_local(observed, name));
    }
}

/// Services with backends that do not answer or refuse clients outside the node, one problem for each, however many ports
/// have it.
pub(super) fn unanswered(observed: &Observed, found: &mut Vec<Problem>) {
    let mut by_service: BTreeMap<&ServiceName, Vec<&SilentPort>> = BTreeMap::new();
    for port in observed.silent.values() {
        by_service.entry(&port.key.service).or_default().push(port);
    }
    for (name, mut ports) in by_service {
        ports.sort_by_key(|port| (port.key.protocol, !port.is_whole, port.since));
        let Some(first) = ports.first() else { continue };
        let more = match ports.len() - 1 {
            0 => String::new(),
            more => format!(" (and {})", counted(more, "more port")),
        };
        let cause = format!("{}: {}{more}", reports::port_text(&first.key), first.text());
        // Strangers can send datagrams that nothing answers.
        let is_critical = ports.iter().any(|port| port.is_whole && port.key.protocol == Protocol::Tcp);
        let severity = if is_critical { Severity::Critical } else { Severity::Warning };
        let since = ports.iter().map(|port| observed.clocks.time_of(port.since)).min();
        let others = if first.is_whole { "" } else { "; other backends answer" };
        let shared = SharedCause {
            of: Shared::Hosts(ports.iter().flat_map(|port| &port.backends).map(|backend| backend.addr).collect()),
            what: format!("the last connections of clients outside the node {}{others}", first.what()),
            command: "nodelb connections --address",
        };
        let problem = Problem::new(Reason::Unanswered, name.to_string(), cause).severity(severity);
        found.push(problem.since(since).shared(Some(shared)));
    }
}

/// A service with loopback backends, which only processes of the node reach.
fn loopback(observed: &Observed, name: &ServiceName) -> Option<Problem> {
    let rows = reports::backends(&observed.snapshot, &Filter::for_service(name));
    let loopback: Vec<_> = rows.iter().map(|row| row.address).filter(|it| it.addr.is_loopback()).collect();
    let (first, all) = (loopback.first()?, rows.len() == loopback.len());
    let effect = match all {
        true => "clients outside the node are not served".to_owned(),
        false => format!("clients outside the node get no answer from {} of {} backends", loopback.len(), rows.len()),
    };
    let cause = format!(
        "{effect}: {first} is a loopback address, which only processes of this node reach; give the backend an address of \
         this node"
    );
    let severity = if all { Severity::Critical } else { Severity::Warning };
    Some(Problem::new(Reason::NoOutsideBackend, name.to_string(), cause).severity(severity))
}

/// A service with the policy Local and without a backend on this node. Load balancers do not ask nodelb about services of
/// files.
fn without_local(observed: &Observed, name: &ServiceName) -> Option<Problem> {
    let snapshot = &observed.snapshot;
    let lacks = |address: &L4Addr| {
        let claim = snapshot.rows.get(address).and_then(|row| row.owner());
        claim.is_some_and(|(claim, _)| {
            claim.key.service == *name && claim.is_outside && outside::lacks_local_backend(snapshot, claim)
        })
    };
    let address = snapshot.addresses_of(name).into_iter().find(lacks)?;
    let cause = format!(
        "{address}: packets of clients outside the node are dropped, because no usable backend is on this node \
         (external-traffic-policy local)"
    );
    Some(Problem::new(Reason::NoOutsideBackend, name.to_string(), cause).severity(Severity::Warning))
}

#[cfg(test)]
#[path = "../tests/outside.rs"]
mod tests;
