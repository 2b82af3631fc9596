//! Merges the contents of all files into one set of services and slices, and computes the changes from one such set to
//! the next. Pure.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::model::named::Named;
use nodelb_core::model::service::{Service, ServiceName, Slice, SliceName, Source};

use super::content::{FileContent, Found, is_inline};
use crate::document::Problem;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    pub(super) services: BTreeMap<ServiceName, Arc<Service>>,
    pub(super) slices: BTreeMap<SliceName, Arc<Slice>>,
    /// The backends that have names, by the slice that the answers become.
    pub(super) named: BTreeMap<SliceName, Arc<Named>>,
    /// The objects that an earlier file also defines, by the file that loses them.
    pub(super) problems: BTreeMap<PathBuf, Vec<Problem>>,
}

/// Merges the files. If two define the same object, the first by path wins. If a file loses a service this way, the
/// backends that the file lists inline for it are ignored too.
pub fn merge(files: &BTreeMap<PathBuf, Arc<FileContent>>) -> Merged {
    let mut merged = Merged::default();
    let mut services: BTreeMap<&ServiceName, (&Path, &Arc<Service>)> = BTreeMap::new();
    let mut slices: BTreeMap<&SliceName, (&Path, &Arc<Slice>)> = BTreeMap::new();
    for (path, content) in files {
        let mut lost = BTreeSet::new();
        for Found { line, value } in &content.services {
            match services.entry(&value.name) {
                Entry::Occupied(owner) => {
                    merged.lose(path, *line, &format!("service {}", value.name), owner.get().0);
                    lost.insert(&value.name);
                }
                Entry::Vacant(place) => drop(place.insert((path, value))),
            }
        }
        for Found { line, value } in &content.slices {
            if is_inline(value) && lost.contains(&value.service) {
                continue;
            }
            match slices.entry(&value.name) {
                Entry::Occupied(owner) => {
                    merged.lose(path, *line, &format!("slice {}", value.name), owner.get().0);
                }
                Entry::Vacant(place) => drop(place.insert((path, value))),
            }
        }
        let kept = content.named.iter().filter(|named| !lost.contains(&named.service));
        merged.named.extend(kept.map(|named| (named.slice.clone(), Arc::clone(named))));
    }
    merged.services = services.into_iter().map(|(name, (_, service))| (name.clone(), Arc::clone(service))).collect();
    merged.slices = slices.into_iter().map(|(name, (_, slice))| (name.clone(), Arc::clone(slice))).collect();
    merged
}

/// The beginning of the name of the slice with the addresses that a service entry lists. Kubernetes does not permit such
/// a name, so it cannot be equal to that of an EndpointSlice in another file.
pub(super) const INLINE: &str = "file:";

impl Merged {
    fn lose(&mut self, path: &Path, line: Option<usize>, object: &str, owner: &Path) {
        let message = format!("{object} is already defined by {}, which is served; keep one of them", owner.display());
        self.problems.entry(path.to_path_buf()).or_default().push(Problem { line, message });
    }

    /// The changes from this set to `new`: as few as possible, in an order that never leaves a service without the
    /// backends that it has before and after. Slices are added before services and removed after them.
    pub fn changes_to(&self, new: &Self) -> Vec<Change> {
        let (slices, gone_slices) = differences(&self.slices, &new.slices);
        let (services, gone_services) = differences(&self.services, &new.services);
        let (named, gone_names) = differences(&self.named, &new.named);
        let slices = slices.into_iter().map(|slice| Change::UpsertSlice(slice.clone()));
        let named = named.into_iter().map(|named| Change::UpsertNamed(named.clone()));
        let services = services.into_iter().map(|service| Change::UpsertService(service.clone()));
        let gone_services = gone_services.into_iter().map(|name| Change::RemoveService(name.clone(), Source::Files));
        let gone_slices = gone_slices.into_iter().chain(gone_names);
        let gone_slices = gone_slices.map(|name| Change::RemoveSlice(name.clone(), Source::Files));
        slices.chain(named).chain(services).chain(gone_services).chain(gone_slices).collect()
    }
}

/// The entries of `new` that are missing or different in `old`, and the keys that only `old` has. Goes through both
/// once, because most of the entries are equal.
fn differences<'m, K: Ord, V: PartialEq>(
    old: &'m BTreeMap<K, Arc<V>>,
    new: &'m BTreeMap<K, Arc<V>>,
) -> (Vec<&'m V>, Vec<&'m K>) {
    let (mut changed, mut gone) = (Vec::new(), Vec::new());
    let mut old = old.iter().peekable();
    for (key, value) in new {
        while let Some((before, _)) = old.next_if(|(before, _)| *before < key) {
            gone.push(before);
        }
        let before = old.next_if(|(before, _)| *before == key);
        if before.is_none_or(|(_, before)| !Arc::ptr_eq(before, value) && before != value) {
            changed.push(value.as_ref());
        }
    }
    gone.extend(old.map(|(before, _)| before));
    (changed, gone)
}

#[cfg(test)]
#[path = "tests/merge.rs"]
mod tests;
