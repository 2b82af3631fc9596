//! Records that preserve held backends over a reboot.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::model::addr::L4Addr;
use crate::model::cause::Cause;
use crate::model::service::PortKey;
use crate::state::entries::{MAX_VIEW_SLOTS, ServiceEntry, Slot, View, backends_of};

/// The maximum number of records accepted at a start: many times the number of protected service ports in any cluster.
pub const MAX_REMEMBERED: usize = 1_024;

/// The backends of a protected service port, preserved over a reboot, which deletes the maps. Only a fallback: the
/// reports of a source always take precedence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    pub port: PortKey,
    /// The cluster view: each backend once with its number of slots, in address order; not empty.
    pub cluster: Vec<(L4Addr, u16)>,
    /// The local view, in the same form.
    pub local: Vec<(L4Addr, u16)>,
    /// The object that emptied the port, if these backends were held.
    pub cause: Option<Cause>,
}

impl Remembered {
    pub(crate) fn new(key: &PortKey, entry: &ServiceEntry, cause: Option<Cause>) -> Self {
        let Views { cluster, local } = Views::new(entry);
        Self { port: key.clone(), cluster: cluster.into_vec(), local: local.into_vec(), cause }
    }

    /// Whether the record is valid for its port. Records are read from a file, which may be damaged.
    pub(crate) fn is_plausible(&self) -> bool {
        let fits = |view: &[(L4Addr, u16)]| {
            let is_of_port = |(addr, count): &(L4Addr, u16)| {
                *count > 0 && addr.protocol == self.port.protocol && addr.addr.family() == self.port.family
            };
            let is_in_order = view.is_sorted_by(|a, b| a.0 < b.0);
            let slots: usize = view.iter().map(|(_, count)| usize::from(*count)).sum();
            is_in_order && slots <= MAX_VIEW_SLOTS && view.iter().all(is_of_port)
        };
        !self.cluster.is_empty() && fits(&self.cluster) && fits(&self.local)
    }

    pub(crate) fn views(&self) -> Views {
        Views { cluster: View::from_slice(&self.cluster), local: View::from_slice(&self.local) }
    }
}

/// The two views that an entry has or had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Views {
    pub(crate) cluster: View,
    pub(crate) local: View,
}

impl Views {
    pub(crate) fn new(entry: &ServiceEntry) -> Self {
        Self { cluster: view(&entry.cluster), local: view(&entry.local) }
    }

    /// The views without the backends that may get no connection; `None` if no backend is left.
    pub(crate) fn admitted(mut self, admits: impl Fn(L4Addr) -> bool) -> Option<Self> {
        self.cluster.retain(|(addr, _)| admits(*addr));
        self.local.retain(|(addr, _)| admits(*addr));
        (!self.cluster.is_empty()).then_some(self)
    }
}

fn view(slots: &[Slot]) -> View {
    let narrow = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    backends_of(slots).map(|(addr, count)| (addr, narrow(count))).collect::<SmallVec<_>>()
}

#[cfg(test)]
#[path = "tests/remembered.rs"]
mod tests;
