//! A service before and during its compilation.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::degraded::Degraded;
use crate::model::addr::L4Addr;
use crate::model::cause::DirtyReason;
use crate::model::drain::Drains;
use crate::model::moment::Moment;
use crate::model::service::{PortKey, Service};
use crate::state::entries::ServiceId;
use crate::state::status::Status;

/// A compiled service: the ids of its ports and the addresses it claims.
#[derive(Clone, Debug, Default)]
pub(super) struct Compiled {
    /// In the order of their keys.
    pub(super) ports: SmallVec<[CompiledPort; 1]>,
}

impl Compiled {
    pub(super) fn port(&self, key: &PortKey) -> Option<&CompiledPort> {
        self.ports.binary_search_by(|port| (*port.key).cmp(key)).ok().map(|place| &self.ports[place])
    }
}

#[derive(Clone, Debug)]
pub(super) struct CompiledPort {
    pub(super) key: Arc<PortKey>,
    pub(super) id: Option<ServiceId>,
    pub(super) frontends: SmallVec<[L4Addr; 1]>,
}

/// The service that is being compiled, and the reason.
pub(super) struct Subject<'a> {
    pub(super) service: &'a Service,
    pub(super) old: &'a Compiled,
    /// Whether it has more ports than had ids: otherwise new ports replace others, and need no share.
    pub(super) has_grown: bool,
    /// Whether the service reaches an apiserver according to its name, its addresses or the current content of its
    /// slices.
    pub(super) is_protected: bool,
    /// Whether the source confirms all its slices.
    pub(super) is_confirmed: bool,
    pub(super) drains: Option<&'a Drains>,
    pub(super) reason: &'a DirtyReason,
    pub(super) now: Moment,
}

impl Subject<'_> {
    pub(super) fn degraded(&self, key: &PortKey, status: Status, had_backends: bool) -> Degraded {
        Degraded { status, since: self.now, cause: self.reason.trigger_of(key).cause(), had_backends }
    }
}
