//! The rows of `/services` that sources describe.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::services::{ServiceRow, direct_return};
use crate::explain::reports::{self, Used};
use crate::explain::rows::{BackendReport, OutsideAccess};
use crate::filter::Filter;
use nodelb_core::compile::select::Choice;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::{FrontendSpec, Service};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::status::Status;
use nodelb_core::text::filled;

/// The rows, by name, then source. Each is computed when it is needed.
pub fn services<'a>(snapshot: &'a Snapshot, filter: &'a Filter) -> impl Iterator<Item = ServiceRow> + 'a {
    reports::described(snapshot, filter)
        .flat_map(|(descriptions, slices)| {
            descriptions.iter().map(move |service| (service, (&descriptions[0], slices)))
        })
        .filter(|(service, _)| filter.address.is_none_or(|addr| claims(service, |frontend| frontend.addr == addr)))
        .filter(|(service, _)| filter.kind.is_none_or(|kind| claims(service, |frontend| frontend.kind == kind)))
        .map(|(described, used)| service(snapshot, described, used))
        .filter(|row| filter.status.is_none_or(|status| row.status == status))
}

fn service(snapshot: &Snapshot, service: &Arc<Service>, used: Used<'_>) -> ServiceRow {
    let mut row = ServiceRow {
        service: Some(String::from(&service.name)),
        source: service.source.to_string(),
        ports: port_texts(service),
        internal_policy: service.internal_policy.to_string(),
        external_policy: service.external_policy.to_string(),
        affinity: service.affinity_seconds.map(u64::from),
        forward: direct_return(service.forward),
        frontends: 0,
        outside: OutsideAccess::Off.to_string(),
        backends: 0,
        selectable: 0,
        status: Status::Ok,
        origin: filled(&service.origin.object),
        error: None,
    };
    if Arc::ptr_eq(used.0, service) {
        add_use(snapshot, used, &mut row);
    } else {
        (row.status, row.error) = (Status::Conflict, reports::shadowed(snapshot, service));
    }
    row
}

fn add_use(snapshot: &Snapshot, used: Used<'_>, row: &mut ServiceRow) {
    let name = &used.0.name;
    let frontends = reports::frontends(snapshot, &Filter::for_service(name));
    row.frontends = frontends.len() as u64;
    row.outside = frontends.iter().map(|f| f.outside).min().unwrap_or(OutsideAccess::Off).to_string();
    row.status = frontends.iter().map(|f| f.status).max_by_key(|s| s.badness()).unwrap_or(Status::Ok);
    let mut failed = frontends.into_iter().filter(|f| f.status == Status::Held || f.status.is_denied());
    row.error = failed.find_map(|f| f.error.map(|error| format!("{}: {error}", f.address)));
    let backends = reports::backends_of_service(snapshot, used);
    if row.error.is_none() {
        row.error = reports::text_of_unused(&backends);
    }
    let entry = || snapshot.facts.health_check_port_error(Some(name)).map(ToString::to_string);
    let unchecked = || unchecked_text(snapshot, used.0);
    row.error = row.error.take().or_else(entry).or_else(unchecked);
    let count = |is_meant: fn(&&BackendReport) -> bool| {
        let mut addresses: Vec<L4Addr> = backends.iter().filter(is_meant).map(|backend| backend.address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.len() as u64
    };
    row.backends = count(|_| true);
    row.selectable = count(|backend| matches!(backend.choice, Choice::Selected | Choice::Held));
}

/// Why the health checks that the service requests are not made; `None` if it requests none, or if they are made.
fn unchecked_text(snapshot: &Snapshot, service: &Service) -> Option<String> {
    let error = service.health_check_error.as_deref().cloned();
    if reports::makes_checks(snapshot, service.source) {
        return error;
    }
    (service.health_check.is_some() || error.is_some()).then(|| {
        "it asks for health checks, and its backends are not checked: kubernetes.health-checks is false; set it to true \
         and restart nodelb, or remove the annotations"
            .into()
    })
}

fn claims(service: &Service, is_meant: impl Fn(&FrontendSpec) -> bool) -> bool {
    service.ports.iter().flat_map(|port| &port.frontends).any(is_meant)
}

/// Formats each port as `http=80/TCP` for each port number, without the name if the port has none.
fn port_texts(service: &Service) -> Vec<String> {
    let mut texts = BTreeSet::new();
    for port in &service.ports {
        for frontend in &port.frontends {
            let number = format!("{}/{}", frontend.port, port.protocol);
            texts.insert(if port.name.is_empty() { number } else { format!("{}={number}", port.name) });
        }
    }
    texts.into_iter().collect()
}
