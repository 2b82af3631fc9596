//! One event in the form that an operator reads: the service port, the change, the object and the author that caused
//! it, and whether the maps contain it.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::addr::{Addr, L4Addr};
use crate::model::cause::Cause;
use crate::model::service::{PortKey, Source};

/// The maximum number of addresses in one list of an event.
pub const MAX_SHOWN: usize = 32;

/// The maximum length of a text from a file, in bytes.
const MAX_TEXT: usize = 2_048;

/// The kind of an event. The same word is used in text, JSON and the state file.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::Display, strum::VariantNames,
)]
pub enum What {
    /// nodelb started.
    Started,
    /// A signal stopped nodelb. Without it before a start, nodelb has ended unexpectedly.
    Stopped,
    /// A source has reported everything for the first time since the start. This one record replaces a record for each
    /// service.
    Synced,
    /// The service port is new.
    Added,
    /// Its backend list changed, or the way a backend is chosen from it, or who may connect.
    Changed,
    /// It lost its last usable backend, so connections are refused.
    Emptied,
    /// All its backends fail their health checks, so all of them are used.
    LastResort,
    /// One of them is healthy again, so only healthy ones are used.
    Recovered,
    /// The operator drained a backend: no new connection reaches it.
    Drained,
    /// A drain ended.
    Undrained,
    /// Its source emptied it; its last known backends stay in use.
    Held,
    /// It is no longer held, or in use only because it was in the maps at the start.
    Released,
    /// It was removed.
    Removed,
    /// The last connections of clients outside the node to its backends, or to one of them, got no answer or were refused.
    Unanswered,
    /// Clients outside the node are answered again, or none has tried for a while.
    Answered,
    /// Another service owns an address that it claims.
    Conflict,
    /// It now owns an address that another service owned.
    TakenOver,
    /// nodelb refuses to serve an address that it claims.
    Refused,
    /// An address that was refused is now served.
    Admitted,
    /// The maps did not accept it.
    Failed,
    /// The maps now contain an entry that had failed or had been deferred.
    Healed,
    /// The maps contained something other than what nodelb had written, and are correct again.
    Repaired,
    /// Entries that were in the maps at the start and that no source asks for were removed.
    Pruned,
    /// More events happened at once than are recorded individually.
    More,
}

/// Whether the maps contain the change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kernel {
    /// The maps did not have to change.
    #[default]
    Untouched,
    Done,
    /// The change waits: nothing that was in the maps at the start is removed before the sources have reported
    /// everything.
    Deferred,
    /// The maps did not accept the change, for this reason. It is retried, and a later record reports success.
    Failed(Arc<str>),
}

/// A list of addresses, shortened to a maximum length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// The first addresses, at most [`MAX_SHOWN`].
    pub shown: Vec<L4Addr>,
    pub more: usize,
}

impl Addresses {
    pub fn push(&mut self, address: L4Addr) {
        if self.shown.len() < MAX_SHOWN {
            self.shown.push(address);
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    pub fn count(&self) -> usize {
        self.shown.len() + self.more
    }

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

/// An event about one service port, or about nodelb itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The service port; `None` if the event is not about a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<Arc<PortKey>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    pub what: What,
    #[serde(default)]
    pub cause: Cause,
    /// The backends that can be selected now and could not before.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub added: Addresses,
    /// The backends that can no longer be selected.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub removed: Addresses,
    /// The backends that stay in use although the source removed them.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub held: Addresses,
    /// The backends that the source reports and nodelb always refuses to use.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub refused: Addresses,
    /// The frontend addresses that the event is about; of a service port, those that it has only since the event.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub frontends: Addresses,
    /// The frontend addresses that the service port owned until the event.
    #[serde(default, skip_serializing_if = "Addresses::is_empty")]
    pub withdrawn: Addresses,
    #[serde(default)]
    pub kernel: Kernel,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Arc<str>>,
}

impl Event {
    /// An event about nodelb itself.
    pub fn for_daemon(what: What, detail: impl Into<Arc<str>>) -> Self {
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
            withdrawn: Addresses::default(),
            kernel: Kernel::Untouched,
            detail: Some(detail.into()),
        }
    }

    /// Whether problems of the node are derived from it: it is about no service, or a repair.
    pub fn is_of_node(&self) -> bool {
        self.port.is_none() || self.what == What::Repaired
    }

    /// An event about a service port, without details yet.
    pub fn for_port(port: &Arc<PortKey>, source: Option<Source>, what: What, cause: Cause) -> Self {
        let event = Self::for_daemon(what, "");
        Self { port: Some(Arc::clone(port)), source, cause, detail: None, ..event }
    }

    /// Adds the frontend address to those that the event is about, unless it is one.
    pub(crate) fn about_frontend(&mut self, address: L4Addr) {
        if !self.frontends.shown.contains(&address) {
            self.frontends.push(address);
        }
    }

    /// Whether the event contains the address, at any port.
    pub fn names(&self, addr: Addr) -> bool {
        let lists = [&self.added, &self.removed, &self.held, &self.refused, &self.frontends, &self.withdrawn];
        lists.iter().any(|list| list.shown.iter().any(|address| address.addr == addr))
    }

    /// Whether a nodelb can have written the event. Events are read from a file, which may be damaged.
    pub(super) fn is_plausible(&self) -> bool {
        let Self {
            port,
            source: _,
            what: _,
            cause,
            added,
            removed,
            held,
            refused,
            frontends,
            withdrawn,
            kernel,
            detail,
        } = self;
        let origin = &cause.origin;
        let error = match kernel {
            Kernel::Failed(error) => Some(error),
            Kernel::Untouched | Kernel::Done | Kernel::Deferred => None,
        };
        let texts = [&origin.object, &origin.resource_version, &origin.writer];
        let name = port.as_ref().map(|key| &key.port);
        let mut texts = texts.into_iter().chain(detail).chain(error).chain(name);
        let lists = [added, removed, held, refused, frontends, withdrawn];
        texts.all(|text| text.len() <= MAX_TEXT) && lists.iter().all(|list| list.shown.len() <= MAX_SHOWN)
    }
}

/// An event with its number and times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The sequence number. It increases by one, also over restarts; the first is 1.
    pub sequence: u64,
    /// The time when nodelb received the change, in milliseconds since 1970.
    pub at: u64,
    /// The time from the change, according to its object ([`crate::model::service::Origin::triggered`]), to `at`, in
    /// milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_owner: Option<u64>,
    /// The time from `at` until the maps contained the change, in microseconds; for [`What::Healed`] from the first
    /// attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_kernel: Option<u64>,
    /// Whether an earlier run of nodelb wrote the record.
    #[serde(skip)]
    pub is_from_before: bool,
    pub event: Event,
}

impl Record {
    /// Whether a nodelb can have written the record. Records are read from a file, which may be damaged.
    pub fn is_plausible(&self) -> bool {
        self.sequence > 0 && self.sequence < u64::MAX / 2 && self.event.is_plausible()
    }
}
