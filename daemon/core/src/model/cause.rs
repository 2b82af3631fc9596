//! Why a service was compiled again: which object said something else than before, and who wrote it. For people; no
//! decision hangs on it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::addr::Addr;
use crate::model::calendar::utc;
use crate::model::service::{Backend, Origin, PortKey, Service, Slice, SlicePort};

/// What made a service dirty. Costs a reference count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The slice is new, says something else, or moved to or from the service.
    Slice(Arc<Slice>),
    /// The slice is gone; this is what it last said.
    SliceRemoved(Arc<Slice>),
    /// The service is new or described differently.
    Service(Arc<Service>),
    /// A description of the service is gone; this is what it last said.
    ServiceRemoved(Arc<Service>),
    /// nodelb's own checks found other backends unhealthy than before; one of the failures, if there are any.
    Checks(Option<((Addr, u16), Arc<str>)>),
    /// Nothing that was said of the service: the node, the known apiservers, a retry.
    Other,
}

impl Trigger {
    /// Whether this says more about a change of the service's backends than what was noted in the same round before.
    fn outranks(&self, before: &Self) -> bool {
        let rank = |trigger: &Self| match trigger {
            Self::Slice(_) | Self::SliceRemoved(_) => 2,
            Self::Service(_) | Self::ServiceRemoved(_) | Self::Checks(_) => 1,
            Self::Other => 0,
        };
        rank(self) >= rank(before)
    }

    /// The same in words that can be kept, shown and stored.
    pub fn cause(&self) -> Cause {
        let (origin, is_removed) = match self {
            Self::Slice(slice) => (&slice.origin, false),
            Self::SliceRemoved(slice) => (&slice.origin, true),
            Self::Service(service) => (&service.origin, false),
            Self::ServiceRemoved(service) => (&service.origin, true),
            Self::Checks(failure) => return Cause::of_checks(failure.as_ref()),
            Self::Other => return Cause::default(),
        };
        let mut origin = origin.clone();
        if is_removed {
            // Who wrote it last need not be who removed it; that is not told.
            (origin.writer, origin.written, origin.triggered) = (Arc::default(), None, None);
        }
        Cause { origin, is_removed }
    }

    /// Whether a slice of the service is what changed.
    pub(crate) fn is_slice(&self) -> bool {
        self.slice().is_some()
    }

    fn slice(&self) -> Option<&Slice> {
        match self {
            Self::Slice(slice) | Self::SliceRemoved(slice) => Some(slice),
            _ => None,
        }
    }

    /// How likely it is that this changed the backends of the port: a slice has some for it, has none at all (any more), or
    /// has only others'.
    fn concern(&self, key: &PortKey) -> u8 {
        let Some(slice) = self.slice() else { return 0 };
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

/// How many slices that change in one round are told apart.
const MAX_SLICES: usize = 16;

/// All that happened to a service since it was last compiled.
#[derive(Clone, Debug)]
pub(crate) struct Dirt {
    /// What most likely changed its backends: the last slice, else the last of anything.
    pub(crate) trigger: Trigger,
    /// The slices that changed before it; the latest [`MAX_SLICES`].
    slices: Vec<Trigger>,
    /// Whether every description of it was gone for a moment. What comes after is another service of the same name.
    pub(crate) is_deleted: bool,
}

impl Dirt {
    pub(crate) fn new(trigger: Trigger) -> Self {
        Self { trigger, slices: Vec::new(), is_deleted: false }
    }

    /// And then this happened too.
    pub(crate) fn add(&mut self, trigger: Trigger) {
        if !trigger.outranks(&self.trigger) {
            return;
        }
        let before = std::mem::replace(&mut self.trigger, trigger);
        if before.is_slice() {
            if self.slices.len() == MAX_SLICES {
                self.slices.remove(0);
            }
            self.slices.push(before);
        }
    }

    /// What most likely changed the backends of this port: of several slices the last that is about it.
    pub(crate) fn trigger_of(&self, key: &PortKey) -> &Trigger {
        let triggers = self.slices.iter().chain([&self.trigger]);
        triggers.max_by_key(|trigger| trigger.concern(key)).unwrap_or(&self.trigger)
    }
}

/// The object whose change had an effect, and who wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Which object; an empty one stands for nothing in particular, such as the state found at a start.
    pub origin: Origin,
    /// Whether the object was removed. The origin is then what it last said of itself, without its writer.
    pub is_removed: bool,
}

impl Cause {
    /// `health checks (192.0.2.11:8080: connection refused)`
    fn of_checks(failure: Option<&((Addr, u16), Arc<str>)>) -> Self {
        let object = match failure {
            Some(((addr, port), error)) => format!("health checks ({}: {error})", SocketAddr::new(addr.ip(), *port)),
            None => "health checks".into(),
        };
        Self { origin: Origin { object: object.into(), ..Origin::default() }, is_removed: false }
    }
}

impl fmt::Display for Cause {
    /// `EndpointSlice default/kubernetes at resourceVersion 7, written by kube-apiserver 2026-11-20T12:03:04Z,`: made to
    /// be followed by what it did.
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
mod tests;
