//! The statuses of a snapshot from those of an earlier one: most changes of a service change no status.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;

use crate::before::{Before, Lasting, Statuses};
use crate::claims::Row;
use crate::degraded::DegradedPorts;
use crate::map_diff::{key_of, sides};
use crate::model::addr::L4Addr;
use crate::model::service::PortKey;
use crate::snapshot::Snapshot;
use crate::state::entries::{FrontendEntry, ServiceId};
use crate::state::owner::IdOwner;

/// Statuses, and what they follow from. It shares with a snapshot what has not changed since.
#[derive(Clone, Debug, Default)]
pub struct KnownStatuses {
    pub statuses: Statuses,
    rows: OrdMap<L4Addr, Arc<Row>>,
    frontends: OrdMap<L4Addr, FrontendEntry>,
    degraded: [DegradedPorts; 2],
    before: Before,
    owners: OrdMap<ServiceId, IdOwner>,
    /// Whether the statuses follow from these alone: every source had reported everything.
    is_complete: bool,
}

impl KnownStatuses {
    /// The statuses of the snapshot. This costs what has changed, if every source has reported everything.
    #[must_use]
    pub fn of(&self, snapshot: &Snapshot) -> Self {
        let degraded = [&snapshot.degraded, &snapshot.degraded_here].map(DegradedPorts::clone);
        let is_complete = snapshot.is_complete();
        let (before, owners) = (snapshot.before.clone(), snapshot.owners.clone());
        let is_same_elsewhere = self.is_complete
            && is_complete
            && self.degraded.iter().zip(&degraded).all(|(before, now)| before.is_same(now))
            && self.before.statuses.diff(&before.statuses).next().is_none();
        let statuses = if is_same_elsewhere { self.changed(snapshot) } else { snapshot.statuses() };
        let (rows, frontends) = (snapshot.rows.clone(), snapshot.realised.frontends.clone());
        Self { statuses, rows, frontends, degraded, before, owners, is_complete }
    }

    /// The statuses that differ later, with the address and the hash of the service; `None` for those that have ended.
    pub fn changes<'a>(&'a self, later: &'a Self) -> impl Iterator<Item = ((L4Addr, u32), Option<Lasting>)> {
        self.statuses.diff(&later.statuses).map(|item| {
            let [_, lasting] = sides(&item);
            (*key_of(&item), lasting.copied())
        })
    }

    /// The names of the service ports that are known only later.
    pub fn new_ports<'a>(&'a self, later: &'a Self) -> impl Iterator<Item = &'a PortKey> {
        let owners = self.owners.diff(&later.owners).filter_map(|item| sides(&item)[1]);
        let former = self.before.ports.diff(&later.before.ports).filter_map(|item| sides(&item)[1]);
        owners.map(|owner| &*owner.key).chain(former.map(|key| &**key))
    }

    /// The statuses, if only rows and frontends may have changed.
    fn changed(&self, snapshot: &Snapshot) -> Statuses {
        let rows = self.rows.diff(&snapshot.rows).map(|item| *key_of(&item));
        let frontends = self.frontends.diff(&snapshot.realised.frontends).map(|item| *key_of(&item));
        let mut statuses = self.statuses.clone();
        for address in rows.chain(frontends).collect::<BTreeSet<L4Addr>>() {
            let range = (address, 0)..=(address, u32::MAX);
            let former: Vec<_> = statuses.range(range.clone()).map(|(key, _)| *key).collect();
            for key in &former {
                statuses.remove(key);
            }
            snapshot.add_statuses(address, &mut statuses);
            statuses.extend(snapshot.before.statuses.range(range).map(|(key, before)| (*key, *before)));
        }
        statuses
    }
}
