//! What a service port is compiled to, before ids are given out.

use crate::compile::guard::Refusal;
use crate::model::addr::L4Addr;
use crate::model::service::{FrontendKind, PortKey};
use crate::state::entries::View;

/// A service port in one family, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// What it is.
    pub key: PortKey,
    /// The cluster view.
    pub cluster: View,
    /// The local view.
    pub local: View,
    /// See [`super::select::Selection::has_backends`].
    pub has_backends: bool,
    /// 0 without affinity.
    pub affinity_seconds: u32,
    /// See [`crate::state::entries::ServiceEntry::may_be_bound`].
    pub may_be_bound: bool,
    /// The addresses the port is dialled at.
    pub frontends: Vec<FrontendPlan>,
}

/// One address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendPlan {
    /// What a client dials.
    pub address: L4Addr,
    /// Which kind of address.
    pub kind: FrontendKind,
    /// See [`super::select::is_inside_local`].
    pub inside_local: bool,
    /// See [`super::select::is_outside_local`].
    pub outside_local: bool,
    /// Why it is not translated.
    pub refusal: Option<Refusal>,
}
