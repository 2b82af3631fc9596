//! Promise 3: a protected service port keeps its last known backends when its source leaves it without any. The
//! decision is made where the port is compiled, so that it cannot depend on the sequence of changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Engine;
use super::compiled::Subject;
use crate::compile::guard::Refusal;
use crate::compile::plan::{PortPlan, Rest};
use crate::holds::{HeldPort, ReleaseReason};
use crate::model::addr::L4Addr;
use crate::model::cause::Cause;
use crate::model::service::{FrontendKind, PortKey, Slice};
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
            self.note_filled(id, key, subject, subject.is_protected);
            return;
        }
        if let Some((known, port)) = self.unknown_backends(id, key, subject) {
            return self.hold_unknown(id, (known, port), subject, plan);
        }
        // The source knows again, and that there are no backends, or has not known for too long.
        let is_over = self.holds.last_known(id).is_some();
        let release = is_over.then(|| self.holds.end(id, Some((ReleaseReason::Emptied, subject.reason)))).flatten();
        let known = if subject.reason.is_deleted() { None } else { self.last_known(id, key, subject, plan) };
        let is_protected = subject.is_protected
            || self.holds.is_held(id)
            || known.as_ref().is_some_and(|known| self.has_apiserver(known))
            || self.shared_with_apiserver(subject);
        self.holds.set_protected(id, is_protected);
        if is_protected {
            spare_cluster_ips(plan);
        }
        let held = known.filter(|_| is_protected);
        let rest = plan.fill(is_protected, held.as_ref(), subject.drains);
        let used = || plan.cluster.iter().map(|(addr, _)| *addr).collect();
        match (rest, held) {
            (Rest::Undrained, _) => {
                spare_cluster_ips(plan);
                self.note_filled(id, key, subject, true);
            }
            (_, Some(known)) => {
                self.begin_hold(id, key, subject, (known, used()));
            }
            (_, None) if is_protected => pass_through(plan),
            (_, None) => self.round.released.extend(release),
        }
    }

    /// Notes that the port has backends that its source reports.
    fn note_filled(&mut self, id: ServiceId, key: &PortKey, subject: &Subject<'_>, is_protected: bool) {
        self.round.released.extend(self.holds.end(id, Some((ReleaseReason::Filled, subject.reason))));
        self.holds.forget(key);
        self.holds.set_protected(id, is_protected);
    }

    fn has_apiserver(&self, known: &Views) -> bool {
        known.cluster.iter().any(|(addr, _)| self.table.apiservers().has(*addr))
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

    /// The backends that a port without others has, or that the maps had at the start, while its source does not know them,
    /// with the hold; `None` if there are none.
    fn unknown_backends(&self, id: ServiceId, key: &Arc<PortKey>, subject: &Subject<'_>) -> Option<(Views, HeldPort)> {
        if subject.is_confirmed || subject.reason.is_deleted() {
            return None;
        }
        let slices = self.table.owner(&key.service).map_or(&[][..], |(_, slices)| slices);
        let slice = slices.iter().find(|slice| is_unknown(slice, key))?;
        let is_used = |entry: &Arc<ServiceEntry>| entry.has_backends;
        let known = match self.holds.known(id).filter(|_| self.holds.from_start.contains(&id)) {
            Some(known) => known.clone(),
            None => {
                let (desired, realised) = (&self.desired.services, &self.realised.services);
                let mut entries = [desired, realised].into_iter().filter_map(|services| services.get(&id));
                Views::new(entries.find(|entry| is_used(entry))?)
            }
        };
        let admits = |addr| self.config.guard.admits_backend(addr, subject.service.source, self.table.apiservers());
        let known = known.admitted(admits)?;
        let port = HeldPort::last_known(key, Vec::new(), slice, subject.now)?;
        Some((known.clone(), HeldPort { known, ..port }))
    }

    /// Holds these backends, unless they are drained.
    fn hold_unknown(
        &mut self,
        id: ServiceId,
        (known, port): (Views, HeldPort),
        subject: &Subject<'_>,
        plan: &mut PortPlan,
    ) {
        let is_protected = subject.is_protected || self.has_apiserver(&known);
        self.holds.set_protected(id, is_protected);
        plan.fill(is_protected, Some(&known), subject.drains);
        let port = port.using(plan.cluster.iter().map(|(addr, _)| *addr).collect());
        self.round.held.extend(self.holds.hold_last_known(id, port));
        self.holds.from_start.insert(id);
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
        let held = self.holds.known(id).and_then(|known| known.clone().admitted(admits));
        let desired = || self.desired.services.get(&id).and_then(|entry| usable(entry));
        let realised = || self.realised.services.get(&id).and_then(|entry| had(entry)?.admitted(was_admitted));
        let elsewhere = || self.known_at_start(plan, &usable);
        let remembered = || self.holds.record(key)?.views().admitted(admits);
        held.or_else(desired).or_else(realised).or_else(elsewhere).or_else(remembered)
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
        let ports = &subject.service.ports;
        let addresses = ports.iter().flat_map(|port| port.frontends.iter().map(|spec| spec.l4(port.protocol)));
        let at_start = addresses.filter_map(|address| self.at_start.realised.service_at(address));
        let compiled = subject.old.ports.iter().filter_map(|port| self.desired.services.get(&port.id?));
        self.holds.has_apiserver(&subject.service.name, self.table.apiservers(), compiled.chain(at_start))
    }

    fn begin_hold(
        &mut self,
        id: ServiceId,
        key: &Arc<PortKey>,
        subject: &Subject<'_>,
        (known, used): (Views, Vec<L4Addr>),
    ) {
        let is_slice = subject.reason.trigger.is_slice();
        if self.holds.is_held(id) && !(is_slice && self.holds.lacks_cause(id)) {
            self.holds.set_in_use(id, used);
            return;
        }
        let was_in_use = self.desired.services.get(&id).is_some_and(|entry| entry.has_backends);
        let cause = match self.holds.record(key).and_then(|record| record.cause.clone()) {
            // The port was held before the start and still has no backend, so the first cause remains the cause.
            Some(cause) => cause,
            None if is_slice || was_in_use => subject.reason.trigger_of(key).cause(),
            None => Cause::default(),
        };
        let announced = self.holds.begin(id, HeldPort::new(key, known, cause, subject.now).using(used));
        self.round.held.extend(announced);
    }
}

/// Whether the slice states that its source does not know the backends of the port. A slice with a problem that lacks
/// the port states that there are none.
fn is_unknown(slice: &Slice, key: &PortKey) -> bool {
    slice.problem.is_some()
        && slice.ports_of(&key.port, key.protocol).first().is_some_and(|port| port.backends.is_empty())
}

/// The selected backends of the port that come from slices with a problem, with the first such slice; `None` if there
/// are none.
fn unconfirmed<'s>(slices: &'s [Arc<Slice>], key: &PortKey, plan: &PortPlan) -> Option<(&'s Slice, Vec<L4Addr>)> {
    let doubtful = || slices.iter().filter(|slice| slice.problem.is_some());
    doubtful().next()?;
    let of_slice = |slice: &Slice| -> BTreeSet<L4Addr> {
        let backends = slice.ports_of(&key.port, key.protocol).iter().flat_map(|port| &port.backends);
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
        if matches!(frontend.refusal, Some(Refusal::HeldClusterIp(_))) {
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
