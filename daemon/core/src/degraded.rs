//! Service ports without a healthy backend: since when, and which change caused it.

use std::sync::Arc;

use imbl::OrdMap;

use crate::model::cause::Cause;
use crate::model::moment::Moment;
use crate::state::entries::ServiceId;
use crate::state::status::Status;

/// A service port without a healthy backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// [`Status::NoBackends`] or [`Status::LastResort`].
    pub status: Status,
    pub since: Moment,
    pub cause: Cause,
    pub had_backends: bool,
}

/// The service ports without a healthy backend, by id. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct DegradedPorts {
    ports: OrdMap<ServiceId, Arc<Degraded>>,
    /// The other ports that were degraded, with the time when that ended.
    recovered: OrdMap<ServiceId, Moment>,
}

impl DegradedPorts {
    /// Whether the ports are the same and in the same states. This costs what differs.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.ports.diff(&other.ports).next().is_none()
    }

    /// Records the state of a port that was compiled; `None` if it has a healthy backend. A port that stays in the same
    /// state keeps its time and cause. Returns the state before.
    pub(crate) fn note(
        &mut self,
        id: ServiceId,
        status: Option<Status>,
        now: Moment,
        new: impl FnOnce(Status) -> Degraded,
    ) -> Option<Status> {
        let before = self.ports.get(&id).map(|degraded| degraded.status);
        match status {
            Some(status) if before != Some(status) => drop(self.ports.insert(id, Arc::new(new(status)))),
            None if before.is_some() => {
                self.ports.remove(&id);
                self.recovered.insert(id, now);
            }
            Some(_) | None => {}
        }
        before
    }

    /// The port has been as it is since this time at least.
    pub(crate) fn date(&mut self, id: ServiceId, since: Moment) {
        if let Some(degraded) = self.ports.get_mut(&id).filter(|degraded| degraded.since > since) {
            Arc::make_mut(degraded).since = since;
        }
        if self.recovered.get(&id).is_some_and(|recovered| *recovered > since) {
            self.recovered.remove(&id);
        }
    }

    /// Forgets a port that no longer exists. Does not copy what is shared with readers without need.
    pub(crate) fn forget(&mut self, id: ServiceId) {
        if self.ports.contains_key(&id) {
            self.ports.remove(&id);
        }
        if self.recovered.contains_key(&id) {
            self.recovered.remove(&id);
        }
    }

    pub fn get(&self, id: ServiceId) -> Option<&Arc<Degraded>> {
        self.ports.get(&id)
    }

    /// Since when the port with this id has had a healthy backend, if it once had none.
    pub fn recovered(&self, id: ServiceId) -> Option<Moment> {
        self.recovered.get(&id).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (ServiceId, &Arc<Degraded>)> {
        self.ports.iter().map(|(id, degraded)| (*id, degraded))
    }
}
