//! The records of the history that a filter or a question is about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodelb_core::history::{History, Record};
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::service::ServiceName;

use crate::filter::Filter;

/// The latest record about a service port that gave up one of these addresses.
pub fn last_withdrawal<'a>(history: &'a History, addresses: &[L4Addr]) -> Option<&'a Arc<Record>> {
    let is_one = |address: &L4Addr| addresses.contains(address);
    history.latest_first().find(|record| record.event.withdrawn.shown.iter().any(is_one))
}

/// The services that gave up the address at any port, each with the number of the latest such record.
fn former_owners(history: &History, addr: Addr) -> BTreeMap<&ServiceName, u64> {
    let gave_up = |record: &&Arc<Record>| record.event.withdrawn.shown.iter().any(|it| it.addr == addr);
    let records = history.after(0).filter(gave_up);
    records.filter_map(|record| Some((&record.event.port.as_ref()?.service, record.sequence))).collect()
}

/// The records that the filter accepts, oldest first. A filter with an address accepts records that contain the
/// address, the records of the services in `behind`, which are reachable at the address, and those of services that
/// were, until they gave up the address.
pub fn select(history: &History, filter: &Filter, behind: &BTreeSet<ServiceName>) -> Vec<Arc<Record>> {
    let former = filter.address.map(|addr| former_owners(history, addr)).unwrap_or_default();
    let is_meant = |record: &&Arc<Record>| {
        let service = record.event.port.as_ref().map(|port| &port.service);
        (filter.service.is_none() && filter.namespace.is_none() || service.is_some_and(|it| filter.accepts(it)))
            && filter.address.is_none_or(|addr| {
                let was_there = |name| former.get(name).is_some_and(|last| record.sequence <= *last);
                record.event.names(addr) || service.is_some_and(|name| behind.contains(name) || was_there(name))
            })
    };
    match &filter.service {
        Some(name) => history.of_service(name).filter(is_meant).cloned().collect(),
        None => history.after(0).filter(is_meant).cloned().collect(),
    }
}

#[cfg(test)]
#[path = "tests/history.rs"]
mod tests;
