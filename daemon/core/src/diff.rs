//! From what the kernel has to what it should have, as operations in an order that leaves no gap: first the lists, then
//! what points at them; first what stops pointing, then what it pointed at. A prefix of the operations, followed by a
//! crash, leaves every service that stays with a live backend.

use std::sync::Arc;

use crate::addr::{Addr, L4Addr};
use crate::state::{Desired, MapOp, Realised, ServiceId};

/// The entries in which desired and realised may differ. Gathered in any order and any number of times;
/// [`Touched::settle`] makes sets of them, which is what every function here expects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Entries of `services`.
    pub services: Vec<ServiceId>,
    /// Entries of `frontends`.
    pub frontends: Vec<L4Addr>,
    /// Entries of `node_addrs`.
    pub node_addrs: Vec<Addr>,
}

impl Touched {
    /// Every entry of either state: for a full reconcile.
    pub fn all(desired: &Desired, realised: &Realised) -> Self {
        let mut all = Self {
            services: desired.services.keys().chain(realised.services.keys()).copied().collect(),
            frontends: desired.frontends.keys().chain(realised.frontends.keys()).copied().collect(),
            node_addrs: desired.node_addrs.iter().chain(realised.node_addrs.iter()).copied().collect(),
        };
        all.settle();
        all
    }

    /// Brings the entries in order, each once.
    pub fn settle(&mut self) {
        settle(&mut self.services);
        settle(&mut self.frontends);
        settle(&mut self.node_addrs);
    }
}

fn settle<T: Ord>(entries: &mut Vec<T>) {
    entries.sort_unstable();
    entries.dedup();
}

/// The four steps of a reconcile, in order. Each looks at what the one before really achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// New and changed service entries, and node addresses.
    PutServices,
    /// New and changed frontends, of services the kernel has.
    PutFrontends,
    /// Frontends and node addresses nobody wants.
    DeleteFrontends,
    /// Service entries nobody wants and nothing points at.
    DeleteServices,
}

impl Step {
    /// In order.
    pub const ALL: [Self; 4] = [Self::PutServices, Self::PutFrontends, Self::DeleteFrontends, Self::DeleteServices];
}

/// The operations of one step. `is_referenced` tells whether a realised frontend still points at a service entry.
pub fn diff(
    step: Step,
    desired: &Desired,
    realised: &Realised,
    touched: &Touched,
    is_referenced: impl Fn(ServiceId) -> bool,
) -> Vec<MapOp> {
    match step {
        Step::PutServices => put_services(desired, realised, touched),
        Step::PutFrontends => put_frontends(desired, realised, touched),
        Step::DeleteFrontends => delete_frontends(desired, realised, touched),
        Step::DeleteServices => touched
            .services
            .iter()
            .filter(|id| !desired.services.contains_key(*id) && realised.services.contains_key(*id))
            .filter(|id| !is_referenced(**id))
            .map(|id| MapOp::DeleteService(*id))
            .collect(),
    }
}

fn put_services(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<MapOp> {
    let services = touched.services.iter().filter_map(|id| {
        let wanted = desired.services.get(id)?;
        (realised.services.get(id) != Some(wanted)).then(|| MapOp::PutService(*id, Arc::clone(wanted)))
    });
    let node_addrs = touched
        .node_addrs
        .iter()
        .filter(|addr| desired.node_addrs.contains(*addr) && !realised.node_addrs.contains(*addr))
        .map(|addr| MapOp::PutNodeAddr(*addr));
    services.chain(node_addrs).collect()
}

fn put_frontends(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<MapOp> {
    let put = |address: &L4Addr| {
        let wanted = desired.frontends.get(address)?;
        let is_servable = realised.services.contains_key(&wanted.service);
        let differs = realised.frontends.get(address) != Some(wanted);
        (is_servable && differs).then_some(MapOp::PutFrontend(*address, *wanted))
    };
    touched.frontends.iter().filter_map(put).collect()
}

fn delete_frontends(desired: &Desired, realised: &Realised, touched: &Touched) -> Vec<MapOp> {
    let frontends = touched
        .frontends
        .iter()
        .filter(|address| !desired.frontends.contains_key(*address) && realised.frontends.contains_key(*address))
        .map(|address| MapOp::DeleteFrontend(*address));
    let node_addrs = touched
        .node_addrs
        .iter()
        .filter(|addr| !desired.node_addrs.contains(*addr) && realised.node_addrs.contains(*addr))
        .map(|addr| MapOp::DeleteNodeAddr(*addr));
    frontends.chain(node_addrs).collect()
}

#[cfg(test)]
mod tests;
