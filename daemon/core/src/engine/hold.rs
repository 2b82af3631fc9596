//! Promise 3: a protected service port keeps its last known backends when its source leaves it without any. The
//! decision is made where the port is compiled, so that it cannot depend on the sequence of changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Engine;
use super::compiled::Subject;
use crate::compile::guard::Refusal;
use crate::compile::plan::PortPlan;
use crate::holds::{HeldPort, ReleaseReason};
use crate::model::addr::L4Addr;
use crate::model::cause::Cause;
use crate::model::service::{FrontendKind, PortKey, Slice, SlicePort};
use crate::state::entries::{ServiceEntry, ServiceId};
use crate::state::remembered::Views;

impl Engine {
    /// Adds the last known backends to the plan of a port without a usable backend, if its service is protected.
    pub(super) fn keep_last_known(
        &mut self,
        id: ServiceId,
        key: &Arc<PortKey>,
        subject: &Subject<'_>,
        plan: &mut PortPlan,
    ) {
        if plan.has_backends {
            if self.hold_unconfirmed(id, key, subject, plan) || self.holds.is_empty() && !subject.is_protected {
                return;
            }
            self.round.released.extend(self.holds.end(id, Some((ReleaseReason::Filled, subject.reason))));
            self.holds.forget(key);
            self.holds.set_protected(id, subject.is_protected);
            return;
        }
        if self.hold_from_start(id, key, subject, plan) {
            return;
        }
        // The source knows again, and that there are no backends, or has not known for too long.
        let is_over = self.holds.last_known(id).is_some();
        let release = is_over.then(|| self.holds.end(id, Some((ReleaseReason::Emptied, subject.reason)))).flatten();
        let known = if subject.reason.is_deleted() { None } else { self.last_known(id, key, subject, plan) };
        let is_apiserver = |(addr, _): &(L4Addr, u16)| self.table.apiservers().has(*addr);
        let is_protected = subject.is_protected
            || self.holds.is_held(id)
            || known.as_ref().is_some_and(|known| known.cluster.iter().any(is_apiserver))
            || self.shared_with_apiserver(subject);
        self.holds.set_protected(id, is_protected);
        if is_protected {
            spare_cluster_ips(plan);
        }
        match known {
            _ if !is_protected => self.round.released.extend(release),
            Some(known) => {
                self.begin_hold(id, key, subject, &known);
                plan.cluster = known.cluster;
                plan.local = known.local;
                plan.has_backends = true;
            }
            None => pass_through(plan),
        }
    }

    /// Holds the backends of a port that their source cannot confirm now. Returns whether there are any.
    fn hold_unconfirmed(&mut self, id: ServiceId, key: &Arc<PortKey>, subject: &Subject<'_>, plan: &PortPlan) -> bool {
        if subject.is_confirmed {
            return false;
        }
        let Some((_, slices)) = self.table.owner(&key.service) else { return false };
        let Some((slice, backends)) = unconfirmed(slices, key, plan) else { return false };
        let Some(port) = HeldPort::last_known(key, backends, slice, subject.now) else { return false };
        self.round.held.extend(self.holds.hold_last_known(id, port));
        self.holds.forget(key);
        self.holds.set_protected(id, subject.is_protected);
        true
    }

    /// Holds the backends that the maps had at the start for a port without others, while its source does not know them.
    /// Returns whether there are any.
    fn hold_from_start(
        &mut self,
        id: ServiceId,
        key: &Arc<PortKey>,
        subject: &Subject<'_>,
        plan: &mut PortPlan,
    ) -> bool {
        if subject.is_confirmed || subject.reason.is_deleted() {
            return false;
        }
        let slices = self.table.owner(&key.service).map_or(&[][..], |(_, slices)| slices);
        let Some(slice) = slices.iter().find(|slice| is_unknown(slice, key)) else { return false };
        let desired = self.desired.services.get(&id);
        let is_held = self.holds.from_start.contains(&id);
        let entry = match desired {
            Some(desired) if is_held || desired.has_backends => Some(desired).filter(|_| is_held),
            _ => self.realised.services.get(&id),
        };
        let admits = |addr| self.config.guard.admits_backend(addr, subject.service.source, self.table.apiservers());
        let known = entry.filter(|entry| entry.has_backends).and_then(|entry| Views::new(entry).admitted(admits));
        let Some(known) = known else { return false };
        let backends: Vec<L4Addr> = known.cluster.iter().map(|(addr, _)| *addr).collect();
        let Some(port) = HeldPort::last_known(key, backends, slice, subject.now) else { return false };
        self.round.held.extend(self.holds.hold_last_known(id, port));
        self.holds.from_start.insert(id);
        self.holds.set_protected(id, subject.is_protected);
        plan.cluster = known.cluster;
        plan.local = known.local;
        plan.has_backends = true;
        true
    }

    /// The last known backends of the port: the desired ones; otherwise, right after a start, those in the maps;
    /// otherwise the remembered ones.
    fn last_known(&self, id: ServiceId, key: &PortKey, subject: &Subject<'_>, plan: &PortPlan) -> Option<Views> {
        let admits = |addr| self.config.guard.admits_backend(addr, subject.service.source, self.table.apiservers());
        // The maps contain no link-local backends except for apiservers. No source has reported this one as an
        // apiserver since the start.
        let was_admitted = |addr: L4Addr| {
            let is_connectable = || self.config.guard.check_connectable(addr).is_ok();
            admits(addr) || subject.is_protected && addr.addr.is_link_local() && is_connectable()
        };
        let had = |entry: &ServiceEntry| entry.has_backends.then(|| Views::new(entry));
        let usable = |entry: &ServiceEntry| had(entry)?.admitted(admits);
        let desired = self.desired.services.get(&id).and_then(|entry| usable(entry));
        let realised = || self.realised.services.get(&id).and_then(|entry| had(entry)?.admitted(was_admitted));
        let elsewhere = || self.known_at_start(plan, &usable);
        let remembered = || self.holds.record(key)?.views().admitted(admits);
        desired.or_else(realised).or_else(elsewhere).or_else(remembered)
    }

    /// The backends that one of the port's addresses had at the start, if an apiserver is among them and their id could
    /// not be taken over because other addresses point at it too.
    fn known_at_start(&self, plan: &PortPlan, usable: &impl Fn(&ServiceEntry) -> Option<Views>) -> Option<Views> {
        let is_apiserver = |(addr, _): &(L4Addr, u16)| self.table.apiservers().has(*addr);
        let at_start = |address: &L4Addr| usable(self.at_start.realised.service_at(*address)?);
        let frontends = plan.frontends.iter().filter(|frontend| frontend.refusal.is_none());
        frontends
            .filter_map(|frontend| at_start(&frontend.address))
            .find(|known| known.cluster.iter().any(is_apiserver))
    }

    /// Whether any port of the service had an apiserver among its backends when it was last compiled, or before the
    /// start.
    fn shared_with_apiserver(&self, subject: &Subject<'_>) -> bool {
        if subject.reason.is_deleted() {
            return false;
        }
        let leads = |entry: &Arc<ServiceEntry>| entry.cluster.iter().any(|slot| self.table.apiservers().has(slot.addr));
        let is_apiserver = |(addr, _): &(L4Addr, u16)| self.table.apiservers().has(*addr);
        let ports = &subject.service.ports;
        let mut addresses = ports.iter().flat_map(|port| port.frontends.iter().map(|spec| spec.l4(port.protocol)));
        let mut records = self.holds.records_of(&subject.service.name);
        let mut compiled = subject.old.ports.iter().filter_map(|port| self.desired.services.get(&port.id?));
        compiled.any(leads)
            || addresses.any(|address| self.at_start.realised.service_at(address).is_some_and(leads))
            || records.any(|record| record.cluster.iter().any(is_apiserver))
    }

    fn begin_hold(&mut self, id: ServiceId, key: &Arc<PortKey>, subject: &Subject<'_>, known: &Views) {
        let is_slice = subject.reason.trigger.is_slice();
        if self.holds.is_held(id) && !(is_slice && self.holds.lacks_cause(id)) {
            return;
        }
        let was_in_use = self.desired.services.get(&id).is_some_and(|entry| entry.has_backends);
        let cause = match self.holds.record(key).and_then(|record| record.cause.clone()) {
            // The port was held before the start and still has no backend, so the first cause remains the cause.
            Some(cause) => cause,
            None if is_slice || was_in_use => subject.reason.trigger_of(key).cause(),
            None => Cause::default(),
        };
        let announced = self.holds.begin(id, HeldPort::new(key, known, cause, subject.now));
        self.round.held.extend(announced);
    }
}

/// Whether the slice states that its source does not know the backends of the port. A slice with a problem that lacks
/// the port states that there are none.
fn is_unknown(slice: &Slice, key: &PortKey) -> bool {
    let is_of = |port: &&SlicePort| *port.name == *key.port && port.protocol == key.protocol;
    slice.problem.is_some() && slice.ports.iter().find(is_of).is_some_and(|port| port.backends.is_empty())
}

/// The selected backends of the port that come from slices with a problem, with the first such slice; `None` if there
/// are none.
fn unconfirmed<'s>(slices: &'s [Arc<Slice>], key: &PortKey, plan: &PortPlan) -> Option<(&'s Slice, Vec<L4Addr>)> {
    let doubtful = || slices.iter().filter(|slice| slice.problem.is_some());
    doubtful().next()?;
    let of_slice = |slice: &Slice| -> BTreeSet<L4Addr> {
        let ports = slice.ports.iter().filter(|port| *port.name == *key.port && port.protocol == key.protocol);
        let backends = ports.flat_map(|port| &port.backends);
        backends.map(|backend| L4Addr { addr: backend.addr, port: backend.port, protocol: key.protocol }).collect()
    };
    let selected: BTreeSet<L4Addr> = plan.cluster.iter().map(|(addr, _)| *addr).collect();
    let confirmed: BTreeSet<L4Addr> =
        slices.iter().filter(|slice| slice.problem.is_none()).flat_map(|slice| of_slice(slice)).collect();
    let held =
        |slice: &Slice| of_slice(slice).into_iter().filter(|it| selected.contains(it) && !confirmed.contains(it));
    let first = doubtful().find(|slice| held(slice).next().is_some())?;
    let backends: BTreeSet<L4Addr> = doubtful().flat_map(|slice| held(slice)).collect();
    Some((first, backends.into_iter().collect()))
}

/// Serves ClusterIPs even if the node has the same address. Only the service answers at a ClusterIP, so this protects
/// the access to the apiserver from a mistake in the node's network configuration. The node may have a load balancer's
/// or external address for a good reason, so these stay untranslated.
pub(super) fn spare_cluster_ips(plan: &mut PortPlan) {
    for frontend in &mut plan.frontends {
        if frontend.kind == FrontendKind::ClusterIP && matches!(frontend.refusal, Some(Refusal::OwnAddress(_))) {
            frontend.refusal = None;
        }
    }
}

/// Stops the translation of an address that may reach an apiserver without nodelb. Used if no backends are known at
/// all.
fn pass_through(plan: &mut PortPlan) {
    for frontend in &mut plan.frontends {
        let is_external = matches!(frontend.kind, FrontendKind::LoadBalancer | FrontendKind::ExternalIP);
        if is_external && frontend.refusal.is_none() {
            frontend.refusal = Some(Refusal::NoBackendKnown);
        }
    }
}

#[cfg(test)]
#[path = "tests/hold.rs"]
mod tests;
