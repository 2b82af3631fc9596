//! What a protected service port goes on with when its source leaves it without a backend: promise 3. Owns the holds and
//! what is remembered; the decision is made where a port is compiled, so that it cannot depend on the way there.

use std::sync::Arc;

use super::desire::Subject;
use super::{CompiledPort, Engine};
use crate::compile::guard::Refusal;
use crate::compile::plan::PortPlan;
use crate::holds::{HeldPort, Release};
use crate::model::addr::L4Addr;
use crate::model::cause::{Cause, Dirt};
use crate::model::moment::Moment;
use crate::model::service::{FrontendKind, PortKey};
use crate::state::entries::{ServiceEntry, ServiceId};
use crate::state::remembered::Known;

impl Engine {
    /// Fills in the plan what a port without a usable backend goes on with, if its service is protected.
    pub(super) fn keep_last_known(
        &mut self,
        id: ServiceId,
        key: &Arc<PortKey>,
        subject: &Subject<'_>,
        plan: &mut PortPlan,
    ) {
        if plan.has_backends {
            if self.holds.is_empty() && !subject.is_protected {
                return;
            }
            self.end_hold(id, Some(subject.dirt));
            self.holds.forget(key);
            self.set_protected(id, subject.is_protected);
            return;
        }
        let known = if subject.dirt.is_deleted { None } else { self.last_known(id, key, subject, plan) };
        let is_apiserver = |(addr, _): &(L4Addr, u16)| self.table.apiservers().has(*addr);
        let is_protected = subject.is_protected
            || self.is_held(id)
            || known.as_ref().is_some_and(|known| known.cluster.iter().any(is_apiserver))
            || self.shared_with_apiserver(subject);
        self.set_protected(id, is_protected);
        if is_protected {
            spare_cluster_ips(plan);
        }
        match known {
            _ if !is_protected => {}
            Some(known) => {
                self.begin_hold(id, key, subject, &known);
                plan.cluster = known.cluster;
                plan.local = known.local;
                plan.has_backends = true;
            }
            None => pass_through(plan),
        }
    }

    /// What the port had: as desired; else, right after a start, as the kernel has it; else as it was remembered.
    fn last_known(&self, id: ServiceId, key: &PortKey, subject: &Subject<'_>, plan: &PortPlan) -> Option<Known> {
        let admits = |addr| self.config.guard.admits_backend(addr, subject.service.source, self.table.apiservers());
        // The kernel was given no backend on this link but an apiserver's: one that nobody has told of since the start.
        let was_admitted = |addr: L4Addr| {
            admits(addr) || subject.is_protected && addr.addr.is_link_local() && self.config.guard.is_dialable(addr)
        };
        let had = |entry: &ServiceEntry| entry.has_backends.then(|| Known::of(entry));
        let usable = |entry: &ServiceEntry| had(entry)?.admitted(admits);
        let desired = self.desired.services.get(&id).and_then(|entry| usable(entry));
        let realised = || self.realised.services.get(&id).and_then(|entry| had(entry)?.admitted(was_admitted));
        let elsewhere = || self.known_elsewhere(plan, &usable);
        let remembered = || self.holds.remembered.get(key)?.known().admitted(admits);
        desired.or_else(realised).or_else(elsewhere).or_else(remembered)
    }

    /// The apiservers' backends to which the kernel led one of the port's addresses at start, under an id that could not
    /// be taken over because other addresses point at it too.
    fn known_elsewhere(&self, plan: &PortPlan, usable: &impl Fn(&ServiceEntry) -> Option<Known>) -> Option<Known> {
        let is_apiserver = |(addr, _): &(L4Addr, u16)| self.table.apiservers().has(*addr);
        let at_start = |address: &L4Addr| {
            let entry = self.at_start.frontends.get(address)?;
            usable(self.at_start.services.get(&entry.service)?)
        };
        let frontends = plan.frontends.iter().filter(|frontend| frontend.refusal.is_none());
        frontends
            .filter_map(|frontend| at_start(&frontend.address))
            .find(|known| known.cluster.iter().any(is_apiserver))
    }

    /// Whether any port of the service had an apiserver among its backends when it was last compiled, or before the
    /// start.
    fn shared_with_apiserver(&self, subject: &Subject<'_>) -> bool {
        if subject.dirt.is_deleted {
            return false;
        }
        let leads = |entry: &Arc<ServiceEntry>| entry.cluster.iter().any(|slot| self.table.apiservers().has(slot.addr));
        let is_apiserver = |(addr, _): &(L4Addr, u16)| self.table.apiservers().has(*addr);
        let at_start = |address: L4Addr| {
            let entry = self.at_start.frontends.get(&address)?;
            self.at_start.services.get(&entry.service)
        };
        let ports = &subject.service.ports;
        let mut addresses = ports.iter().flat_map(|port| port.frontends.iter().map(|spec| spec.l4(port.protocol)));
        let mut records = self.holds.remembered.values().filter(|record| record.port.service == subject.service.name);
        let mut compiled = subject.old.ports.iter().filter_map(|port| self.desired.services.get(&port.id?));
        compiled.any(leads)
            || addresses.any(|address| at_start(address).is_some_and(leads))
            || records.any(|record| record.cluster.iter().any(is_apiserver))
    }

    fn begin_hold(&mut self, id: ServiceId, key: &Arc<PortKey>, subject: &Subject<'_>, known: &Known) {
        if self.is_held(id) && !self.is_to_be_said_again(id, subject) {
            return;
        }
        let is_slice = subject.dirt.trigger.is_slice();
        let was_in_use = self.desired.services.get(&id).is_some_and(|entry| entry.has_backends);
        let before = self.holds.remembered.get(key).and_then(|record| record.cause.clone());
        let was_held = before.is_some();
        let cause = match before {
            // Held before the start, and still without a backend: the first cause is the cause.
            Some(cause) => cause,
            None if is_slice || was_in_use => subject.dirt.trigger_of(key).cause(),
            None => Cause::default(),
        };
        let port = Arc::new(HeldPort::new(key, known, cause, subject.now));
        self.holds.held.insert(id, Arc::clone(&port));
        if was_held {
            // It does not matter whether its source has told everything: this is no news of its.
            self.round.held.push(port);
        } else {
            self.holds.unannounced.insert(id);
        }
    }

    /// Whether nobody has been told of the hold yet, and more is known of its cause now.
    fn is_to_be_said_again(&self, id: ServiceId, subject: &Subject<'_>) -> bool {
        let is_unknown = self.holds.held.get(&id).is_some_and(|port| port.cause == Cause::default());
        is_unknown && subject.dirt.trigger.is_slice() && self.holds.unannounced.contains(&id)
    }

    /// The hold is over, if there is one: the port has backends since this happened, or is gone.
    pub(super) fn end_hold(&mut self, id: ServiceId, has_backends: Option<&Dirt>) {
        if self.is_held(id)
            && let Some(port) = self.holds.held.remove(&id)
            && self.holds.unannounced.remove(&id).is_none()
        {
            let cause = has_backends.map(|dirt| dirt.trigger_of(&port.key).cause()).unwrap_or_default();
            self.round.released.push(Release { port, cause, is_deleted: has_backends.is_none() });
        }
    }

    /// Nothing of the port is to be kept: it is gone, or what has its name now is another.
    pub(super) fn forget_port(&mut self, port: &CompiledPort) {
        self.holds.forget(&port.key);
        if let Some(id) = port.id {
            self.end_hold(id, None);
            self.set_protected(id, false);
        }
    }

    pub(super) fn is_held(&self, id: ServiceId) -> bool {
        !self.holds.held.is_empty() && self.holds.held.contains_key(&id)
    }

    fn set_protected(&mut self, id: ServiceId, is_protected: bool) {
        if is_protected {
            self.holds.protected.insert(id);
        } else if self.holds.protected.contains(&id) {
            self.holds.protected.remove(&id);
        }
    }

    /// Everything has been told: what was remembered of services that do not exist is of no use.
    pub(super) fn forget_unheard(&mut self) {
        if !self.holds.remembered.is_empty() {
            let is_known = |key: &PortKey| self.compiled.contains_key(&key.service);
            Arc::make_mut(&mut self.holds.remembered).retain(|key, _| is_known(key));
        }
    }

    /// Tells of the holds whose source has told everything. Before that, an empty port may only not have been told yet.
    pub(super) fn announce_holds(&mut self, now: Moment) {
        if self.holds.unannounced.is_empty() {
            return;
        }
        let is_told = |id: &ServiceId| self.owners.get(id).is_some_and(|owner| self.table.is_synced(owner.source));
        let told: Vec<ServiceId> = self.holds.unannounced.iter().copied().filter(is_told).collect();
        for id in told {
            self.holds.unannounced.remove(&id);
            if let Some(port) = self.holds.held.get_mut(&id) {
                Arc::make_mut(port).since = now;
                self.round.held.push(Arc::clone(port));
            }
        }
    }
}

/// Whoever dials a ClusterIP has nobody behind it but the service: it is served even if the node has the address, so that
/// one wrong line in its network configuration cannot take the apiserver from it. A load balancer's or external address
/// may be on the node for good reason, and leads on.
pub(super) fn spare_cluster_ips(plan: &mut PortPlan) {
    for frontend in &mut plan.frontends {
        if frontend.kind == FrontendKind::ClusterIP && matches!(frontend.refusal, Some(Refusal::OwnAddress(_))) {
            frontend.refusal = None;
        }
    }
}

/// Where nothing is known at all, an address that may lead to an apiserver without nodelb is left alone.
fn pass_through(plan: &mut PortPlan) {
    for frontend in &mut plan.frontends {
        let is_external = matches!(frontend.kind, FrontendKind::LoadBalancer | FrontendKind::ExternalIP);
        if is_external && frontend.refusal.is_none() {
            frontend.refusal = Some(Refusal::NoBackendKnown);
        }
    }
}

#[cfg(test)]
mod tests;
