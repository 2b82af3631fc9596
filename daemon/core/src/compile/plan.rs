//! The result of compiling a service port, before ids are assigned.

use crate::compile::guard::Refusal;
use crate::model::addr::L4Addr;
use crate::model::forward::Forward;
use crate::model::service::{FrontendKind, PortKey};
use crate::model::source_range::SourceRange;
use crate::state::entries::View;

/// A compiled service port of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    pub key: PortKey,
    pub cluster: View,
    pub local: View,
    pub has_backends: bool,
    pub is_last_resort: bool,
    pub is_local_last_resort: bool,
    /// Whether the guard refuses a backend in the port's slices.
    pub has_refused: bool,
    /// The session affinity timeout in seconds; 0 without affinity.
    pub affinity_seconds: u32,
    pub may_be_bound: bool,
    /// See [`super::outside::source_ranges`]; `None` also if they apply to no frontend of the port.
    pub source_ranges: Option<Vec<SourceRange>>,
    pub forward: Forward,
    pub frontends: Vec<FrontendPlan>,
}

impl PortPlan {
    /// Whether clients on this node get the backends on this node alone, at any address.
    pub(crate) fn has_inside_local(&self) -> bool {
        self.frontends.iter().any(|frontend| frontend.inside_local)
    }

    /// Whether clients outside the node may connect to any frontend of the port.
    pub fn has_outside(&self) -> bool {
        self.frontends.iter().any(|frontend| frontend.is_outside && frontend.refusal.is_none())
    }
}

/// One frontend address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendPlan {
    pub address: L4Addr,
    pub kind: FrontendKind,
    /// See [`super::select::is_inside_local`].
    pub inside_local: bool,
    /// See [`super::select::is_outside_local`].
    pub outside_local: bool,
    /// See [`super::outside::is_outside`].
    pub is_outside: bool,
    /// Whether only the outside clients in [`PortPlan::source_ranges`] may connect.
    pub has_ranges: bool,
    /// The reason why the address is not translated; `None` if it is.
    pub refusal: Option<Refusal>,
}
