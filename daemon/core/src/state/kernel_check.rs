//! Compares the actual content of the maps with the expected one: the entries that differ, and how. This module neither
//! reads the maps nor repairs them: after [`crate::engine::Engine::accept_actual`], the next round repairs them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::model::service::PortKey;
pub use crate::state::entries::EntryKey;
use crate::state::entries::{EntryValue, FrontendEntry, MapState, OutsideEntry, ServiceEntry, ServiceId};

/// The content of the maps, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The entries that nodelb can have written.
    pub state: MapState,
    pub broken: Broken,
}

/// Entries that nodelb cannot have written, each with a description that includes the entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Broken {
    pub entries: BTreeMap<EntryKey, String>,
    /// The descriptions of entries with an invalid key.
    pub with_invalid_key: Vec<String>,
}

impl Broken {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.with_invalid_key.is_empty()
    }

    pub fn into_texts(self) -> impl Iterator<Item = String> {
        self.entries.into_values().chain(self.with_invalid_key)
    }
}

/// The kind of an entry that another program changed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, strum::EnumIter, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
pub enum DriftKind {
    Frontend,
    Service,
    /// Backends in `slots`, while their entry of `services` is unchanged.
    Slots,
    NodeAddress,
    Outside,
    SourceRange,
    Uplink,
}

/// How an entry differs from what nodelb wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display)]
pub enum Fault {
    #[strum(to_string = "deleted")]
    Missing,
    #[strum(to_string = "overwritten")]
    Changed,
    /// nodelb did not write the entry.
    #[strum(to_string = "added")]
    Foreign,
}

/// One entry that another program deleted, overwrote or added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    pub key: EntryKey,
    pub kind: DriftKind,
    pub fault: Fault,
    pub owner: Option<Arc<PortKey>>,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.key, &self.owner) {
            (EntryKey::Frontend(address), _) => write!(f, "frontend {address}"),
            (EntryKey::Service(_), Some(owner)) => write!(f, "{} of {owner}", self.kind),
            (EntryKey::Service(id), None) => write!(f, "{} of id {id}", self.kind),
            (EntryKey::NodeAddress(addr), _) => write!(f, "node address {addr}"),
            (EntryKey::Outside(address), _) => write!(f, "outside frontend {address}"),
            (EntryKey::SourceRange(_, range), Some(owner)) => write!(f, "source range {range} of {owner}"),
            (EntryKey::SourceRange(id, range), None) => write!(f, "source range {range} of id {id}"),
            (EntryKey::Uplink(index), _) => write!(f, "uplink {index}"),
        }?;
        write!(f, " {}", self.fault)
    }
}

/// The entries that differ between the maps and the state, in this order: services, frontends, node addresses, outside
/// frontends, source ranges, uplinks.
pub fn differing_entries(content: &Content, state: &MapState) -> Vec<EntryKey> {
    let actual = &content.state;
    let mut keys = BTreeSet::new();
    keys.extend(differing(&state.services, &actual.services).map(|id| EntryKey::Service(*id)));
    keys.extend(differing(&state.frontends, &actual.frontends).map(|a| EntryKey::Frontend(*a)));
    keys.extend(in_one(&state.node_addrs, &actual.node_addrs).map(|addr| EntryKey::NodeAddress(*addr)));
    keys.extend(differing(&state.outside, &actual.outside).map(|a| EntryKey::Outside(*a)));
    keys.extend(in_one(&state.source_ranges, &actual.source_ranges).map(|(id, r)| EntryKey::SourceRange(*id, *r)));
    keys.extend(differing(&state.uplinks, &actual.uplinks).map(|index| EntryKey::Uplink(*index)));
    keys.extend(content.broken.entries.keys());
    keys.into_iter().collect()
}

/// The elements that only one of the sets contains.
fn in_one<'a, T: Ord>(a: &'a imbl::OrdSet<T>, b: &'a imbl::OrdSet<T>) -> impl Iterator<Item = &'a T> {
    a.iter().filter(|it| !b.contains(*it)).chain(b.iter().filter(|it| !a.contains(*it)))
}

/// The keys with a value that only one of the maps has, or that differs.
fn differing<'a, K: Ord, V: PartialEq>(
    a: &'a imbl::OrdMap<K, V>,
    b: &'a imbl::OrdMap<K, V>,
) -> impl Iterator<Item = &'a K> {
    let missing_or_changed = a.iter().filter(|(key, value)| b.get(*key) != Some(*value)).map(|(key, _)| key);
    missing_or_changed.chain(b.keys().filter(|key| !a.contains_key(*key)))
}

/// The kind and the fault of the entry, if the maps differ from what nodelb wrote there.
pub fn detect(content: &Content, left: &MapState, key: EntryKey) -> Option<(DriftKind, Fault)> {
    let is_broken = content.broken.entries.contains_key(&key);
    let (before, now) = (left.get(key), content.state.get(key));
    let fault = match (before, now) {
        _ if before == now && !is_broken => return None,
        (None, _) => Fault::Foreign,
        (Some(_), None) if !is_broken => Fault::Missing,
        (Some(_), _) => Fault::Changed,
    };
    let kind = match (key, before, now) {
        (EntryKey::Service(_), Some(EntryValue::Service(before)), Some(EntryValue::Service(now)))
            if has_same_sizes(before, now) =>
        {
            DriftKind::Slots
        }
        (EntryKey::Service(_), ..) => DriftKind::Service,
        (EntryKey::Frontend(_), ..) => DriftKind::Frontend,
        (EntryKey::NodeAddress(_), ..) => DriftKind::NodeAddress,
        (EntryKey::Outside(_), ..) => DriftKind::Outside,
        (EntryKey::SourceRange(..), ..) => DriftKind::SourceRange,
        (EntryKey::Uplink(_), ..) => DriftKind::Uplink,
    };
    Some((kind, fault))
}

/// Whether only the backends can differ: the slots were overwritten and not the entry.
fn has_same_sizes(a: &ServiceEntry, b: &ServiceEntry) -> bool {
    (a.cluster.len(), a.local.len()) == (b.cluster.len(), b.local.len())
        && ServiceEntry { cluster: Arc::clone(&b.cluster), local: Arc::clone(&b.local), ..a.clone() } == *b
}

/// The assumed value of a broken frontend that is not desired, so that it is deleted.
pub const UNWANTED_FRONTEND: FrontendEntry =
    FrontendEntry { service: ServiceId::CANARY, inside_local: false, outside_local: false };
/// [`UNWANTED_FRONTEND`] for an outside frontend.
pub const UNWANTED_OUTSIDE: OutsideEntry = OutsideEntry { service: ServiceId::CANARY, local: false, has_ranges: true };

#[cfg(test)]
#[path = "tests/kernel_check.rs"]
mod tests;
