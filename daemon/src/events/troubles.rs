//! Finds the problems in a snapshot that deserve an Event. Pure.

use std::collections::BTreeSet;
use std::fmt;

use nodelb_core::explain::rows::FrontendReport;
use nodelb_core::model::service::ServiceName;
use nodelb_core::state::status::Status;

use super::ByTrouble;

/// The reason of an Event; each has an entry in the catalogue of `diagnose`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Reason {
    BackendsHeld,
    AddressRefused,
    AddressConflict,
    NoBackends,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::BackendsHeld => "BackendsHeld",
            Self::AddressRefused => "AddressRefused",
            Self::AddressConflict => "AddressConflict",
            Self::NoBackends => "NoBackends",
        })
    }
}

/// The result of one check.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// A text for each service and reason: that of the first occurrence.
    pub(super) troubles: ByTrouble<String>,
    /// Services with an available backend, on this node or on another.
    pub(super) with_backends: BTreeSet<ServiceName>,
}

/// Finds the problems. `rows` are those of `/frontends`: by address, the owner's first. `is_empty`: whether the port
/// behind a row has no backend on any node; a `Local` policy may well have none on this node.
pub(super) fn seen(
    rows: &[FrontendReport],
    of_kubernetes: impl Fn(&ServiceName) -> bool,
    is_empty: impl Fn(&FrontendReport) -> bool,
) -> Seen {
    let mut seen = Seen::default();
    let mut without = Vec::new();
    let mut owner: Option<&FrontendReport> = None;
    for row in rows {
        let is_taken = owner.is_some_and(|owner| owner.address == row.address && owner.service != row.service);
        if owner.is_none_or(|owner| owner.address != row.address) {
            owner = Some(row).filter(|row| row.status != Status::Error);
        }
        if !of_kubernetes(&row.service) {
            continue;
        }
        let why = || row.error.as_deref().unwrap_or("no reason is known");
        let (reason, message) = match row.status {
            Status::Held => (Reason::BackendsHeld, format!("{}: {}", row.address, why())),
            Status::Error if is_taken => (Reason::AddressConflict, format!("{}: {}", row.address, why())),
            Status::Error => (Reason::AddressRefused, format!("{}: {}", row.address, why())),
            Status::Done if is_empty(row) => {
                without.push(row);
                continue;
            }
            Status::Done | Status::Pending => {
                seen.with_backends.insert(row.service.clone());
                continue;
            }
        };
        if row.status == Status::Held {
            seen.with_backends.insert(row.service.clone());
        }
        seen.troubles.entry((row.service.clone(), reason)).or_insert(message);
    }
    for row in without.into_iter().filter(|row| !seen.with_backends.contains(&row.service)) {
        let message = format!("{} and every other address of the service has no backend any more", row.address);
        seen.troubles.entry((row.service.clone(), Reason::NoBackends)).or_insert(message);
    }
    seen
}

#[cfg(test)]
#[path = "tests/troubles.rs"]
mod tests;
