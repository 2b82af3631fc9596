//! A service before and while it is compiled.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::model::addr::L4Addr;
use crate::model::cause::Dirt;
use crate::model::moment::Moment;
use crate::model::service::{PortKey, Service};
use crate::state::entries::ServiceId;

/// A service as the kernel knows it: its ports' ids and the addresses it claims.
#[derive(Clone, Debug, Default)]
pub(super) struct Compiled {
    pub(super) ports: SmallVec<[CompiledPort; 1]>,
}

#[derive(Clone, Debug)]
pub(super) struct CompiledPort {
    pub(super) key: Arc<PortKey>,
    pub(super) id: Option<ServiceId>,
    pub(super) frontends: SmallVec<[L4Addr; 2]>,
}

/// What is being compiled, and why.
pub(super) struct Subject<'a> {
    pub(super) service: &'a Service,
    /// As it was compiled before.
    pub(super) old: &'a Compiled,
    /// Whether the service leads to an apiserver by its name, its addresses or what its slices say now.
    pub(super) is_protected: bool,
    pub(super) dirt: &'a Dirt,
    pub(super) now: Moment,
}
