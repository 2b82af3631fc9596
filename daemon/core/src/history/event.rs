//! One thing that happened, as an operator wants to read it: to which service port, what, by which object and writer, and
//! whether the kernel has it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::addr::{Addr, L4Addr};
use crate::model::cause::Cause;
use crate::model::service::{PortKey, Source};

/// The most addresses a list of an event names.
pub const MAX_SHOWN: usize = 32;

/// The most bytes of a text that is believed of a file.
const MAX_TEXT: usize = 2_048;

/// What happened. A word for each, the same in text, JSON and the state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum What {
    /// nodelb started.
    Started,
    /// A source has told everything for the first time since the start: one record in place of one for each service.
    Synced,
    /// The service port is new.
    Added,
    /// Its backend list, or how a backend is chosen from it, is another.
    Changed,
    /// It lost its last usable backend: connections are refused.
    Emptied,
    /// Its source emptied it; its last known backends stay in use.
    Held,
    /// It is not held any more.
    Released,
    /// It is gone.
    Removed,
    /// Another service owns an address it claims.
    Conflict,
    /// An address it claimed, and another service owned, is its own now.
    TakenOver,
    /// nodelb will not serve an address it claims.
    Refused,
    /// An address that was refused is served.
    Admitted,
    /// The kernel would not take it.
    Failed,
    /// The kernel has what it would not take, or what had to wait, before.
    Healed,
    /// The kernel held something else than nodelb had put there, and holds the right thing again.
    Repaired,
    /// What the kernel held at the start, and no source asks for, is removed.
    Pruned,
    /// More happened at once than is recorded one by one.
    More,
}

impl What {
    /// In the order of the variants.
    pub const NAMES: [&'static str; 17] = [
        "Started",
        "Synced",
        "Added",
        "Changed",
        "Emptied",
        "Held",
        "Released",
        "Removed",
        "Conflict",
        "TakenOver",
        "Refused",
        "Admitted",
        "Failed",
        "Healed",
        "Repaired",
        "Pruned",
        "More",
    ];
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

/// Whether the kernel has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kernel {
    /// There was nothing to do for it.
    #[default]
    Untouched,
    /// It has.
    Done,
    /// It waits: nothing that the kernel held at the start is taken away before the sources have told everything.
    Deferred,
    /// It would not take it, for this reason. It is tried again; a later record says when it took it.
    Failed(Arc<str>),
}

/// Some addresses of a list, and how many more there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// At most [`MAX_SHOWN`].
    pub shown: Vec<L4Addr>,
    /// How many are not shown.
    pub more: usize,
}

impl Addresses {
    /// Notes one more.
    pub fn push(&mut self, address: L4Addr) {
        if self.shown.len() < MAX_SHOWN {
            self.shown.push(address);
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    /// Whether there are none at all.
    pub fn is_empty(&self) -> bool {
        self.shown.is_empty() && self.more == 0
    }
}

impl FromIterator<L4Addr> for Addresses {
    fn from_iter<I: IntoIterator<Item = L4Addr>>(addresses: I) -> Self {
        let mut list = Self::default();
        addresses.into_iter().for_each(|address| list.push(address));
        list
    }
}

/// What happened to one service port, or to nodelb itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// To which; `None` where it is about no service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<Arc<PortKey>>,
    /// Whose word it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// What.
    pub what: What,
    /// Which object brought it about, and who wrote that.
    #[serde(default)]
    pub cause: Cause,
    /// Backends that can be chosen now and could not before.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub added: Addresses,
    /// Backends that cannot be chosen any more.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub removed: Addresses,
    /// Backends that stay in use although the source took them away.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub held: Addresses,
    /// Backends that the source names and nodelb will not use, whoever asks for them.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub refused: Addresses,
    /// Addresses clients dial, where the event is about those.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub frontends: Addresses,
    /// Whether the kernel has it.
    #[serde(default)]
    pub kernel: Kernel,
    /// Anything else there is to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Arc<str>>,
}

impl Event {
    /// Something that happened to nodelb itself.
    pub fn of_daemon(what: What, detail: impl Into<Arc<str>>) -> Self {
        Self {
            port: None,
            source: None,
            what,
            cause: Cause::default(),
            added: Addresses::default(),
            removed: Addresses::default(),
            held: Addresses::default(),
            refused: Addresses::default(),
            frontends: Addresses::default(),
            kernel: Kernel::Untouched,
            detail: Some(detail.into()),
        }
    }

    /// Something that happened to a service port; there is nothing to say of it yet.
    pub fn of_port(port: &Arc<PortKey>, source: Option<Source>, what: What, cause: Cause) -> Self {
        let event = Self::of_daemon(what, "");
        Self { port: Some(Arc::clone(port)), source, cause, detail: None, ..event }
    }

    /// Whether the address is among those it names, whatever the port.
    pub fn names(&self, addr: Addr) -> bool {
        let lists = [&self.added, &self.removed, &self.held, &self.refused, &self.frontends];
        lists.iter().any(|list| list.shown.iter().any(|address| address.addr == addr))
    }

    /// Whether it can have been written by a nodelb: it was read from a file.
    pub(super) fn is_plausible(&self) -> bool {
        let Self { port, source: _, what: _, cause, added, removed, held, refused, frontends, kernel, detail } = self;
        let origin = &cause.origin;
        let error = match kernel {
            Kernel::Failed(error) => Some(error),
            Kernel::Untouched | Kernel::Done | Kernel::Deferred => None,
        };
        let texts = [&origin.object, &origin.resource_version, &origin.writer];
        let name = port.as_ref().map(|key| &key.port);
        let mut texts = texts.into_iter().chain(detail).chain(error).chain(name);
        let lists = [added, removed, held, refused, frontends];
        texts.all(|text| text.len() <= MAX_TEXT) && lists.iter().all(|list| list.shown.len() <= MAX_SHOWN)
    }
}

/// An event with its number and its times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Counts up by one, over restarts too; the first is 1.
    pub sequence: u64,
    /// When nodelb took notice, in milliseconds since 1970.
    pub at: u64,
    /// From when it happened, as its object says ([`crate::model::service::Origin::triggered`]), until `at`, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_owner: Option<u64>,
    /// From `at` until the kernel had it, in microseconds; of [`What::Healed`] from when it was first tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_kernel: Option<u64>,
    /// Whether an earlier run of nodelb wrote it.
    #[serde(skip)]
    pub is_from_before: bool,
    /// What happened.
    pub event: Event,
}

impl Record {
    /// Whether it can have been written by a nodelb: it was read from a file.
    pub fn is_plausible(&self) -> bool {
        self.sequence > 0 && self.sequence < u64::MAX / 2 && self.event.is_plausible()
    }
}
