//! From one snapshot to a later one: which services' rows of `/frontends` may read differently. Costs what has changed, not
//! what there is: snapshots share what they have in common.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::ordmap::DiffItem;

use crate::service::ServiceName;
use crate::snapshot::Snapshot;
use crate::table::key_of;

/// Whose rows of `/frontends` may differ between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Differs {
    /// Something changed that every row may depend on.
    All,
    /// These services' rows and nobody else's.
    Services(BTreeSet<ServiceName>),
}

impl Snapshot {
    /// Whose rows may read differently now than they did in `before`. May name services whose rows are the same, never
    /// leaves one out whose rows are not.
    pub fn differs_since(&self, before: &Self) -> Differs {
        let is_everybodys = !Arc::ptr_eq(&self.config, &before.config)
            || self.desired.node_addrs != before.desired.node_addrs
            || self.facts.differs_for_all(&before.facts);
        if is_everybodys {
            return Differs::All;
        }
        let mut named = BTreeSet::new();
        for item in before.rows.diff(&self.rows) {
            let rows = sides(&item).into_iter().flatten();
            named.extend(rows.flat_map(|row| row.claims()).map(|claim| claim.key.service.clone()));
        }
        for item in before.desired.services.diff(&self.desired.services) {
            let id = key_of(&item);
            let owners = [before.owners.get(id), self.owners.get(id)].into_iter().flatten();
            named.extend(owners.map(|owner| owner.key.service.clone()));
        }
        named.extend(self.facts.names_that_differ(&before.facts));
        Differs::Services(named)
    }
}

fn sides<'a, K, V>(item: &DiffItem<'a, 'a, K, V>) -> [Option<&'a V>; 2] {
    match item {
        DiffItem::Add(_, new) => [None, Some(*new)],
        DiffItem::Remove(_, old) => [Some(*old), None],
        DiffItem::Update { old: (_, old), new: (_, new) } => [Some(*old), Some(*new)],
    }
}

#[cfg(test)]
mod tests;
