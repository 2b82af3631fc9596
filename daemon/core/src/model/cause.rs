//! The reason why a service was compiled again: the object that changed, and its author. This information is for
//! display only; no decision depends on it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::addr::{Addr, L4Addr};
use crate::model::calendar::utc;
use crate::model::drain::{DrainCause, Drained};
use crate::model::service::{Backend, Origin, PortKey, Service, Slice, SlicePort};

/// The change that made a service dirty. It costs one reference count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The slice is new, its content changed, or it moved to or from the service.
    Slice(Arc<Slice>),
    /// The slice was removed; this is its last content.
    SliceRemoved(Arc<Slice>),
    /// The service is new or its description changed.
    Service(Arc<Service>),
    /// A description of the service was removed; this is its last content.
    ServiceRemoved(Arc<Service>),
    /// The operator's selection leaves the service out, which the text says.
    Unselected(Arc<str>),
    /// nodelb's own health checks reported a different set of unhealthy backends.
    Checks(Checked),
    /// The operator drained these backends, or the drain of these ended.
    Drain(DrainCause, Arc<[Drained]>),
    /// A reason outside the service's own objects: the node, the known apiservers, a retry.
    Other,
}

/// A backend with another result of its health checks than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    Failed((Addr, u16), Arc<str>),
    Recovered((Addr, u16)),
}

impl Checked {
    fn backend(&self) -> (Addr, u16) {
        let (Self::Failed(backend, _) | Self::Recovered(backend)) = self;
        *backend
    }
}

impl Trigger {
    /// Whether this change explains a change of the service's backends better than the earlier one in the same round.
    fn outranks(&self, before: &Self) -> bool {
        let rank = |trigger: &Self| match trigger {
            Self::Slice(_) | Self::SliceRemoved(_) => 2,
            Self::Service(_) | Self::ServiceRemoved(_) | Self::Unselected(_) | Self::Checks(_) | Self::Drain(..) => 1,
            Self::Other => 0,
        };
        rank(self) >= rank(before)
    }

    /// This information in a form that can be stored and displayed.
    pub fn cause(&self) -> Cause {
        let (origin, is_removed) = match self {
            Self::Slice(slice) => (&slice.origin, false),
            Self::SliceRemoved(slice) => (&slice.origin, true),
            Self::Service(service) => (&service.origin, false),
            Self::ServiceRemoved(service) => (&service.origin, true),
            Self::Unselected(why) => return Cause::of_object(Arc::clone(why)),
            Self::Checks(checked) => return Cause::from_checks(checked),
            Self::Drain(cause, _) => return Cause::of_object(Arc::clone(cause.text())),
            Self::Other => return Cause::default(),
        };
        let mut origin = origin.clone();
        if is_removed {
            // The last author is not necessarily the one who removed the object, and the source does not report the
            // latter.
            (origin.writer, origin.written, origin.triggered) = (Arc::default(), None, None);
        }
        Cause { origin, is_removed }
    }

    pub(crate) fn is_slice(&self) -> bool {
        matches!(self, Self::Slice(_) | Self::SliceRemoved(_))
    }

    fn is_of_service(&self) -> bool {
        matches!(self, Self::Service(_) | Self::ServiceRemoved(_) | Self::Unselected(_))
    }

    /// How likely the change explains that the port gained and lost these backends: 2 for a slice with backends of this
    /// port, 1 for a slice without any backends, or for a drain or check of one of these; 0 for anything else.
    fn concern(&self, key: &PortKey, changed: &[L4Addr]) -> u8 {
        let is_of = |is_meant: &dyn Fn((Addr, u16)) -> bool| changed.iter().any(|at| is_meant((at.addr, at.port)));
        let slice = match self {
            Self::Slice(slice) | Self::SliceRemoved(slice) => slice,
            Self::Drain(_, drained) => return u8::from(is_of(&|at| drained.iter().any(|it| it.includes(at)))),
            Self::Checks(checked) => return u8::from(is_of(&|at| at == checked.backend())),
            Self::Service(_) | Self::ServiceRemoved(_) | Self::Unselected(_) | Self::Other => return 0,
        };
        let mut backends = slice.ports.iter().flat_map(|port| port.backends.iter().map(move |backend| (port, backend)));
        let mut is_empty = true;
        let is_of_port = |(port, backend): (&SlicePort, &Backend)| {
            is_empty = false;
            (&*port.name, port.protocol, backend.addr.family()) == (&*key.port, key.protocol, key.family)
        };
        match backends.any(is_of_port) {
            true => 2,
            false => u8::from(is_empty),
        }
    }
}

/// The maximum number of earlier changes that are distinguished in one round.
const MAX_EARLIER: usize = 16;

/// All changes of a service since it was last compiled.
#[derive(Clone, Debug)]
pub(crate) struct DirtyReason {
    /// The change that most likely affected the backends: the last slice; without a slice, the last change of any kind.
    pub(crate) trigger: Trigger,
    /// The slices, drains and checks that changed before it, at most the latest [`MAX_EARLIER`].
    earlier: Vec<Trigger>,
    /// The last change of the service's description.
    description: Option<Trigger>,
    /// The change that removed the last description of the service. A later one describes a new service of the same name.
    pub(crate) deleted_by: Option<Trigger>,
}

impl DirtyReason {
    pub(crate) fn new(trigger: Trigger) -> Self {
        let description = trigger.is_of_service().then(|| trigger.clone());
        Self { trigger, earlier: Vec::new(), description, deleted_by: None }
    }

    /// Whether all descriptions of the service were removed in between.
    pub(crate) fn is_deleted(&self) -> bool {
        self.deleted_by.is_some()
    }

    /// The change that most likely affected who may connect.
    pub(crate) fn trigger_of_access(&self) -> &Trigger {
        self.description.as_ref().unwrap_or(&self.trigger)
    }

    pub(crate) fn add(&mut self, trigger: Trigger) {
        if trigger.is_of_service() {
            self.description = Some(trigger.clone());
        }
        if !trigger.outranks(&self.trigger) {
            return;
        }
        let before = std::mem::replace(&mut self.trigger, trigger);
        if before.is_slice() || matches!(before, Trigger::Drain(..) | Trigger::Checks(_)) {
            if self.earlier.len() == MAX_EARLIER {
                self.earlier.remove(0);
            }
            self.earlier.push(before);
        }
    }

    /// The change that most likely affected the backends of this port: the last one that concerns it.
    pub(crate) fn trigger_of(&self, key: &PortKey) -> &Trigger {
        self.trigger_of_change(key, Vec::new)
    }

    /// [`Self::trigger_of`], if the port gained and lost these backends.
    pub(crate) fn trigger_of_change(&self, key: &PortKey, changed: impl FnOnce() -> Vec<L4Addr>) -> &Trigger {
        if self.earlier.is_empty() {
            return &self.trigger;
        }
        let (changed, triggers) = (changed(), self.earlier.iter().chain([&self.trigger]));
        triggers.max_by_key(|trigger| trigger.concern(key, &changed)).unwrap_or(&self.trigger)
    }
}

/// How the object of a cause begins if health checks have changed something.
const CHECKS: &str = "health checks";

/// How the object of a cause begins if nothing has changed, but the source has kept backends for as long as it may.
pub const HOLD_ENDED: &str = "the end of dns.hold";

/// The object that caused an effect, and its author.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The object. An empty one stands for no particular cause, as for the state found at a start.
    pub origin: Origin,
    /// Whether the object was removed. Then the origin is its last content, without the author.
    pub is_removed: bool,
}

impl Cause {
    /// The cause of a change by health checks, such as `health checks (192.0.2.11:8080: connection refused)`.
    fn from_checks(checked: &Checked) -> Self {
        let (addr, port) = checked.backend();
        let backend = SocketAddr::new(addr.ip(), port);
        Self::of_object(match checked {
            Checked::Failed(_, error) => format!("{CHECKS} ({backend}: {error})").into(),
            Checked::Recovered(_) => format!("{CHECKS} ({backend} is healthy again)").into(),
        })
    }

    pub(crate) fn of_object(object: Arc<str>) -> Self {
        Self { origin: Origin { object, ..Origin::default() }, is_removed: false }
    }

    pub fn is_of_checks(&self) -> bool {
        self.origin.object.starts_with(CHECKS)
    }

    pub fn is_end_of_hold(&self) -> bool {
        self.origin.object.starts_with(HOLD_ENDED)
    }
}

impl fmt::Display for Cause {
    /// Formats as `EndpointSlice default/kubernetes at resourceVersion 7, written by kube-apiserver
    /// 2026-11-20T12:03:04Z,`. The text is to be followed by the effect.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Origin { object, resource_version, writer, written, .. } = &self.origin;
        if object.is_empty() {
            return f.write_str("its source");
        }
        match (self.is_removed, resource_version.is_empty()) {
            (true, true) => return write!(f, "the removal of {object}"),
            (true, false) => return write!(f, "the removal of {object}, last at resourceVersion {resource_version},"),
            (false, true) => f.write_str(object)?,
            (false, false) => write!(f, "{object} at resourceVersion {resource_version}")?,
        }
        let time = written.and_then(utc);
        match (writer.is_empty(), time) {
            (false, Some(time)) => write!(f, ", written by {writer} {time},"),
            (false, None) => write!(f, ", written by {writer},"),
            (true, Some(time)) => write!(f, ", written {time},"),
            (true, None) => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "tests/cause.rs"]
mod tests;
