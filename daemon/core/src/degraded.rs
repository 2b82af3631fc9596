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
    /// The time since which this is so.
    pub since: Moment,
    /// The change that caused it.
    pub cause: Cause,
    /// Whether the port had a backend before.
    pub had_backends: bool,
}

/// The service ports without a healthy backend, by id. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct DegradedPorts(OrdMap<ServiceId, Arc<Degraded>>);

impl DegradedPorts {
    /// Records the state of a port that was compiled; `None` if it has a healthy backend. A port that stays in the same
    /// state keeps its time and cause.
    pub(crate) fn note(&mut self, id: ServiceId, status: Option<Status>, new: impl FnOnce(Status) -> Degraded) {
        let before = self.0.get(&id).map(|degraded| degraded.status);
        match status {
            Some(status) if before != Some(status) => drop(self.0.insert(id, Arc::new(new(status)))),
            None => self.forget(id),
            Some(_) => {}
        }
    }

    /// Forgets a port that is gone or has a healthy backend. Does not copy what is shared with readers without need.
    pub(crate) fn forget(&mut self, id: ServiceId) {
        if self.0.contains_key(&id) {
            self.0.remove(&id);
        }
    }

    /// The state of the port with this id, if it is degraded.
    pub fn get(&self, id: ServiceId) -> Option<&Arc<Degraded>> {
        self.0.get(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ServiceId, &Arc<Degraded>)> {
        self.0.iter().map(|(id, degraded)| (*id, degraded))
    }
}
