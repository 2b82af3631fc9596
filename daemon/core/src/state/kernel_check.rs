//! What the maps really hold beside what they should: which entries differ, and how. Reads nothing itself, repairs
//! nothing itself: [`crate::engine::Engine::found`] takes over what is true, and the next round does the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::model::addr::{Addr, L4Addr};
use crate::model::service::PortKey;
use crate::state::entries::{FrontendEntry, MapState, ServiceEntry, ServiceId};

/// Names one entry of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKey {
    /// Of `services`, with its slots.
    Service(ServiceId),
    /// Of `frontends`.
    Frontend(L4Addr),
    /// Of `node_addrs`.
    NodeAddress(Addr),
}

/// What the maps hold, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Everything that could have been written by nodelb.
    pub state: MapState,
    /// Everything else.
    pub broken: Broken,
}

/// Entries that nodelb cannot have written, with what is wrong with each, the entry named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    /// By where they are.
    pub entries: BTreeMap<EntryKey, String>,
    /// Those whose key means nothing.
    pub nameless: Vec<String>,
}

impl Broken {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.nameless.is_empty()
    }

    /// What is wrong with all of them.
    pub fn into_texts(self) -> impl Iterator<Item = String> {
        self.entries.into_values().chain(self.nameless)
    }
}

/// What somebody else did to the maps, by the kind of entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DriftKind {
    /// An entry of `frontends`.
    Frontend,
    /// An entry of `services`.
    Service,
    /// Backends in `slots` under an entry of `services` that is as it was.
    Slots,
    /// An entry of `node_addrs`.
    NodeAddress,
}

impl DriftKind {
    /// All, in the order they are told.
    pub const ALL: [Self; 4] = [Self::Frontend, Self::Service, Self::Slots, Self::NodeAddress];

    /// As the metric's label has it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Frontend => "frontend",
            Self::Service => "service",
            Self::Slots => "slots",
            Self::NodeAddress => "node_address",
        }
    }
}

/// How an entry differs from what nodelb left there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// It is gone.
    Missing,
    /// It says something else.
    Changed,
    /// nodelb never put it there.
    Foreign,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Missing => "deleted",
            Self::Changed => "overwritten",
            Self::Foreign => "added",
        })
    }
}

/// One entry that somebody else deleted, overwrote or added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// Which.
    pub key: EntryKey,
    /// In which map.
    pub kind: DriftKind,
    /// What was done to it.
    pub fault: Fault,
    /// Whose it is, if any service's.
    pub owner: Option<Arc<PortKey>>,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.key, &self.owner) {
            (EntryKey::Frontend(address), _) => write!(f, "frontend {address} {}", self.fault),
            (EntryKey::Service(_), Some(owner)) => write!(f, "{} of {owner} {}", self.kind.label(), self.fault),
            (EntryKey::Service(id), None) => write!(f, "{} of id {id} {}", self.kind.label(), self.fault),
            (EntryKey::NodeAddress(addr), _) => write!(f, "node address {addr} {}", self.fault),
        }
    }
}

/// The entries in which the maps differ from the state, in order: services, frontends, node addresses.
pub fn differing(content: &Content, state: &MapState) -> Vec<EntryKey> {
    let held = &content.state;
    let mut keys = BTreeSet::new();
    keys.extend(missing_or_changed(&state.services, &held.services).map(|id| EntryKey::Service(*id)));
    keys.extend(surplus(&held.services, &state.services).map(|id| EntryKey::Service(*id)));
    keys.extend(missing_or_changed(&state.frontends, &held.frontends).map(|a| EntryKey::Frontend(*a)));
    keys.extend(surplus(&held.frontends, &state.frontends).map(|a| EntryKey::Frontend(*a)));
    let either_way = |a: &imbl::OrdSet<Addr>, b: &imbl::OrdSet<Addr>| {
        a.iter().filter(|addr| !b.contains(*addr)).map(|addr| EntryKey::NodeAddress(*addr)).collect::<Vec<_>>()
    };
    keys.extend(either_way(&state.node_addrs, &held.node_addrs));
    keys.extend(either_way(&held.node_addrs, &state.node_addrs));
    keys.extend(content.broken.entries.keys());
    keys.into_iter().collect()
}

fn missing_or_changed<'a, K: Ord, V: PartialEq>(
    wanted: &'a imbl::OrdMap<K, V>,
    held: &'a imbl::OrdMap<K, V>,
) -> impl Iterator<Item = &'a K> {
    wanted.iter().filter(|(key, value)| held.get(*key) != Some(*value)).map(|(key, _)| key)
}

fn surplus<'a, K: Ord, V>(held: &'a imbl::OrdMap<K, V>, wanted: &'a imbl::OrdMap<K, V>) -> impl Iterator<Item = &'a K> {
    held.keys().filter(|key| !wanted.contains_key(*key))
}

/// What was done to the entry, if the maps and what nodelb left there differ in it. The kind and the fault alone.
pub(crate) fn judge(content: &Content, left: &MapState, key: EntryKey) -> Option<(DriftKind, Fault)> {
    let is_broken = content.broken.entries.contains_key(&key);
    let held = &content.state;
    match key {
        EntryKey::Frontend(address) => {
            let (before, now) = (left.frontends.get(&address), held.frontends.get(&address));
            Some((DriftKind::Frontend, fault(before, now, is_broken)?))
        }
        EntryKey::Service(id) => {
            let (before, now) = (left.services.get(&id), held.services.get(&id));
            let kind = match (before, now) {
                (Some(before), Some(now)) if is_same_shape(before, now) => DriftKind::Slots,
                _ => DriftKind::Service,
            };
            Some((kind, fault(before, now, is_broken)?))
        }
        EntryKey::NodeAddress(addr) => {
            let present = |state: &MapState| state.node_addrs.contains(&addr).then_some(());
            Some((DriftKind::NodeAddress, fault(present(left), present(held), is_broken)?))
        }
    }
}

fn fault<T: PartialEq>(before: Option<T>, now: Option<T>, is_broken: bool) -> Option<Fault> {
    match (before, now) {
        (Some(_), _) if is_broken => Some(Fault::Changed),
        (None, _) if is_broken => Some(Fault::Foreign),
        (Some(_), None) => Some(Fault::Missing),
        (None, Some(_)) => Some(Fault::Foreign),
        (Some(before), Some(now)) => (before != now).then_some(Fault::Changed),
        (None, None) => None,
    }
}

/// Whether nothing but the backends themselves differs: then the slots were written over, not the entry.
fn is_same_shape(a: &ServiceEntry, b: &ServiceEntry) -> bool {
    (a.cluster.len(), a.local.len()) == (b.cluster.len(), b.local.len())
        && (a.has_backends, a.affinity_seconds, a.may_be_bound, a.tag)
            == (b.has_backends, b.affinity_seconds, b.may_be_bound, b.tag)
}

/// What to believe of a broken frontend that nobody wants, so that it is deleted.
pub(crate) const NOBODYS: FrontendEntry =
    FrontendEntry { service: ServiceId::CANARY, inside_local: false, outside_local: false };

#[cfg(test)]
mod tests;
