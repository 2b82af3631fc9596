//! Backends that stay in use although their source emptied the service port: what is held and why, and what of it
//! outlives a reboot. The rule is the engine's (`engine/hold.rs`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::addr::L4Addr;
use crate::cause::Cause;
use crate::compile::View;
use crate::datapath::Moment;
use crate::service::PortKey;
use crate::state::{MAX_VIEW_SLOTS, ServiceEntry, Slot, backends_of};

/// The most records a start takes in: many times the protected service ports of any cluster.
pub const MAX_REMEMBERED: usize = 1_024;

/// A service port whose last known backends are held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldPort {
    /// Which.
    pub key: Arc<PortKey>,
    /// What is held, each backend once, in address order.
    pub backends: Vec<L4Addr>,
    /// What emptied the port.
    pub cause: Cause,
    /// Since when.
    pub since: Moment,
    /// All of it as `/frontends` says it.
    pub text: Arc<str>,
}

impl HeldPort {
    pub(crate) fn new(key: &Arc<PortKey>, known: &Known, cause: Cause, since: Moment) -> Self {
        const SHOWN: usize = 5;
        let backends: Vec<L4Addr> = known.cluster.iter().map(|(addr, _)| *addr).collect();
        let mut list = backends.iter().take(SHOWN).map(L4Addr::to_string).collect::<Vec<_>>().join(", ");
        if backends.len() > SHOWN {
            list.push_str(&format!(" and {} more", backends.len() - SHOWN));
        }
        let stay = if backends.len() == 1 { "stays" } else { "stay" };
        let text = format!("held: {cause} left it without backends; {list} {stay} in use").into();
        Self { key: Arc::clone(key), backends, cause, since, text }
    }
}

/// A hold that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// What was held.
    pub port: Arc<HeldPort>,
    /// What gave it backends again; nothing in particular if it was deleted.
    pub cause: Cause,
    /// Whether the service or the port was deleted; otherwise it has backends again.
    pub is_deleted: bool,
}

/// A service port that lost its last usable backend and is not held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emptied {
    /// Which.
    pub key: Arc<PortKey>,
    /// What emptied it.
    pub cause: Cause,
}

/// The backends of a protected service port, for the time after a reboot, when the maps are gone. A fallback: what a
/// source tells always wins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Which port.
    pub port: PortKey,
    /// The cluster view: each backend once with its number of slots, in address order; not empty.
    pub cluster: Vec<(L4Addr, u16)>,
    /// The local view.
    pub local: Vec<(L4Addr, u16)>,
    /// What emptied the port, if these backends were held.
    pub cause: Option<Cause>,
}

impl Remembered {
    pub(crate) fn new(key: &PortKey, entry: &ServiceEntry, cause: Option<Cause>) -> Self {
        let Known { cluster, local } = Known::of(entry);
        Self { port: key.clone(), cluster: cluster.into_vec(), local: local.into_vec(), cause }
    }

    /// Whether the record can be true of its port: it was read from a file.
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

    pub(crate) fn known(&self) -> Known {
        Known { cluster: View::from_slice(&self.cluster), local: View::from_slice(&self.local) }
    }
}

/// Two views that some entry has or had.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) cluster: View,
    pub(crate) local: View,
}

impl Known {
    pub(crate) fn of(entry: &ServiceEntry) -> Self {
        Self { cluster: view(&entry.cluster), local: view(&entry.local) }
    }

    /// Without the backends that no connection may be sent to; `None` if that leaves nothing.
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
mod tests;
