//! Which rows of `/frontends` may differ between two snapshots.

use std::collections::BTreeSet;
use std::sync::Arc;

use nodelb_core::map_diff::{key_of, sides};
use nodelb_core::model::service::ServiceName;
use nodelb_core::snapshot::Snapshot;

/// The services with rows that may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedServices {
    /// Every service, because something changed that all rows may depend on.
    All,
    Services(BTreeSet<ServiceName>),
}

/// The services with rows that may differ from those in `before`. May include services with unchanged rows, but never
/// omits one with changed rows.
pub fn changed_services(before: &Snapshot, now: &Snapshot) -> ChangedServices {
    let is_everybodys = !Arc::ptr_eq(&now.config, &before.config)
        || now.desired.node_addrs != before.desired.node_addrs
        || now.facts.differs_for_all(&before.facts);
    if is_everybodys {
        return ChangedServices::All;
    }
    let mut named = BTreeSet::new();
    for item in before.rows.diff(&now.rows) {
        let rows = sides(&item).into_iter().flatten();
        named.extend(rows.flat_map(|row| row.claims()).map(|claim| claim.key.service.clone()));
    }
    for item in before.desired.services.diff(&now.desired.services) {
        let id = key_of(&item);
        let owners = [before.owners.get(id), now.owners.get(id)].into_iter().flatten();
        named.extend(owners.map(|owner| owner.key.service.clone()));
    }
    named.extend(now.facts.names_that_differ(&before.facts));
    ChangedServices::Services(named)
}
