//! The result of compiling a service port, before ids are assigned.

use crate::compile::guard::Refusal;
use crate::model::addr::L4Addr;
use crate::model::service::{FrontendKind, PortKey};
use crate::state::entries::View;

/// A compiled service port of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// The service port.
    pub key: PortKey,
    /// The cluster view.
    pub cluster: View,
    /// The local view.
    pub local: View,
    /// See [`super::select::Selection::has_backends`].
    pub has_backends: bool,
    /// The session affinity timeout in seconds; 0 without affinity.
    pub affinity_seconds: u32,
    /// See [`crate::state::entries::ServiceEntry::may_be_bound`].
    pub may_be_bound: bool,
    /// The frontend addresses of the port.
    pub frontends: Vec<FrontendPlan>,
}

/// One frontend address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendPlan {
    /// The address that clients connect to.
    pub address: L4Addr,
    /// The kind of the address.
    pub kind: FrontendKind,
    /// See [`super::select::is_inside_local`].
    pub inside_local: bool,
    /// See [`super::select::is_outside_local`].
    pub outside_local: bool,
    /// The reason why the address is not translated; `None` if it is.
    pub refusal: Option<Refusal>,
}
