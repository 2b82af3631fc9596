//! The result of compiling a service port, before ids are assigned.

use crate::compile::guard::Refusal;
use crate::model::addr::L4Addr;
use crate::model::drain::{self, Drains};
use crate::model::forward::Forward;
use crate::model::service::{FrontendKind, PortKey};
use crate::model::source_range::SourceRange;
use crate::state::entries::View;
use crate::state::remembered::Views;

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
    /// Whether every backend that may get connections has a loopback address, which no client outside the node reaches.
    pub is_loopback_only: bool,
    /// The session affinity timeout in seconds; 0 without affinity.
    pub affinity_seconds: u32,
    pub may_be_bound: bool,
    /// See [`super::outside::source_ranges`]; `None` also if they apply to no frontend of the port.
    pub source_ranges: Option<Vec<SourceRange>>,
    pub forward: Forward,
    pub frontends: Vec<FrontendPlan>,
    /// The plan with every backend that its source reports as ready, if drains and checks leave none.
    pub undrained: Option<Box<PortPlan>>,
}

/// What a port without a usable backend uses instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Nothing,
    /// Last known backends.
    Held,
    /// Backends that its source reports as ready, and that are drained or have failed their health checks.
    Undrained,
}

impl PortPlan {
    /// Decides what the port uses if it has no usable backend. A protected port has a backend that its source reports as
    /// ready, if there is one: drains and holds give way. Otherwise it has the last known ones, if they are held.
    pub(crate) fn fill(&mut self, is_protected: bool, held: Option<&Views>, drains: Option<&Drains>) -> Rest {
        if is_protected && let Some(undrained) = self.undrained.take() {
            *self = *undrained;
            return Rest::Undrained;
        }
        let left = held.and_then(|held| held.clone().admitted(|at| !is_drained(drains, at)));
        let Some(left) = left.or_else(|| held.filter(|_| is_protected).cloned()) else { return Rest::Nothing };
        (self.cluster, self.local, self.has_backends) = (left.cluster, left.local, true);
        Rest::Held
    }

    /// Whether drains give way: the port uses drained backends, because it has no other one.
    pub fn uses_drained(&self, drains: Option<&Drains>) -> bool {
        self.cluster.iter().any(|(at, _)| is_drained(drains, *at))
    }

    /// Whether clients on this node get the backends on this node alone, at any address.
    pub(crate) fn has_inside_local(&self) -> bool {
        self.frontends.iter().any(|frontend| frontend.inside_local)
    }

    /// Whether clients outside the node may connect to any frontend of the port.
    pub fn has_outside(&self) -> bool {
        self.frontends.iter().any(|frontend| frontend.is_outside && frontend.refusal.is_none())
    }
}

fn is_drained(drains: Option<&Drains>, at: L4Addr) -> bool {
    drains.is_some_and(|drains| drain::find(drains, (at.addr, at.port)).is_some())
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
    /// See [`super::outside::is_outside`]; false as well if [`PortPlan::is_loopback_only`].
    pub is_outside: bool,
    /// Whether only the outside clients in [`PortPlan::source_ranges`] may connect.
    pub has_ranges: bool,
    /// The reason why the address is not translated; `None` if it is.
    pub refusal: Option<Refusal>,
}
