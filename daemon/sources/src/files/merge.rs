//! Merges the contents of all files into one set of services and slices, and computes the changes from one such set to
//! the next. Pure.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use imbl::OrdMap;
use nodelb_core::change::Change;
use nodelb_core::map_diff::{key_of, sides};
use nodelb_core::model::named::Named;
use nodelb_core::model::service::{Service, ServiceName, Slice, SliceName, Source};

use super::content::{FileContent, Found, is_inline};
use crate::document::Problem;

/// What each file contributes. Copies share what is equal, so that a change of one file costs that file.
pub type Contents = OrdMap<PathBuf, Arc<FileContent>>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    files: Contents,
    pub(super) services: OrdMap<ServiceName, Arc<Service>>,
    pub(super) slices: OrdMap<SliceName, Arc<Slice>>,
    /// The backends that have names, by the slice that the answers become.
    pub(super) named: OrdMap<SliceName, Arc<Named>>,
    /// The objects that an earlier file also defines, by the file that loses them.
    pub(super) problems: OrdMap<PathBuf, Vec<Problem>>,
    /// The files that lose a service or a slice.
    service_losers: OrdMap<ServiceName, BTreeSet<PathBuf>>,
    slice_losers: OrdMap<SliceName, BTreeSet<PathBuf>>,
}

/// Merges the files. If two define the same object, the first by path wins. If a file loses a service this way, the
/// backends that the file lists inline for it are ignored too.
pub fn merge(files: &Contents) -> Merged {
    let mut merged = Merged { files: files.clone(), ..Merged::default() };
    let mut services: BTreeMap<&ServiceName, (&Path, &Arc<Service>)> = BTreeMap::new();
    let mut slices: BTreeMap<&SliceName, (&Path, &Arc<Slice>)> = BTreeMap::new();
    for (path, content) in files {
        let mut lost = BTreeSet::new();
        for Found { line, value } in &content.services {
            match services.entry(&value.name) {
                Entry::Occupied(owner) => {
                    merged.lose(path, *line, &format!("service {}", value.name), owner.get().0);
                    merged.service_losers.entry(value.name.clone()).or_default().insert(path.clone());
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
                    merged.slice_losers.entry(value.name.clone()).or_default().insert(path.clone());
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
    /// What [`merge`] makes of these files, at the cost of those that differ and of those that define the same objects.
    pub fn with(&self, files: &Contents) -> Self {
        if self.files.is_empty() {
            return merge(files);
        }
        let Some(group) = self.group(files) else { return merge(files) };
        let of_group = |files: &Contents| {
            let with_content = |path: &PathBuf| Some((path.clone(), Arc::clone(files.get(path)?)));
            merge(&group.iter().filter_map(with_content).collect())
        };
        let (old, new) = (of_group(&self.files), of_group(files));
        let mut merged = Self { files: files.clone(), ..self.clone() };
        replace(&mut merged.services, &old.services, new.services);
        replace(&mut merged.slices, &old.slices, new.slices);
        replace(&mut merged.named, &old.named, new.named);
        replace(&mut merged.problems, &old.problems, new.problems);
        replace(&mut merged.service_losers, &old.service_losers, new.service_losers);
        replace(&mut merged.slice_losers, &old.slice_losers, new.slice_losers);
        merged
    }

    /// The files that differ, and those that define an object of one of the group, now or then; `None` if that is not known,
    /// because the path of a file is not UTF-8.
    fn group(&self, files: &Contents) -> Option<BTreeSet<PathBuf>> {
        let mut open: Vec<&PathBuf> = self.files.diff(files).map(|item| key_of(&item)).collect();
        let mut group: BTreeSet<&PathBuf> = open.iter().copied().collect();
        while let Some(path) = open.pop() {
            for content in [self.files.get(path), files.get(path)].into_iter().flatten() {
                let services = content.services.iter().map(|found| &found.value.name);
                let services = services.map(|name| {
                    (self.services.get(name).map(|service| &service.origin), self.service_losers.get(name))
                });
                let slices = content.slices.iter().map(|found| &found.value.name);
                let slices =
                    slices.map(|name| (self.slices.get(name).map(|slice| &slice.origin), self.slice_losers.get(name)));
                for (owner, losers) in services.chain(slices) {
                    if let Some(owner) = owner {
                        let (owner, _) = self.files.get_key_value(Path::new(&*owner.object))?;
                        open.extend(group.insert(owner).then_some(owner));
                    }
                    open.extend(losers.into_iter().flatten().filter(|loser| group.insert(loser)));
                }
            }
        }
        Some(group.into_iter().cloned().collect())
    }

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

/// The entries of `new` that are missing or different in `old`, and the keys that only `old` has.
fn differences<'m, K: Ord, V: PartialEq>(
    old: &'m OrdMap<K, Arc<V>>,
    new: &'m OrdMap<K, Arc<V>>,
) -> (Vec<&'m V>, Vec<&'m K>) {
    let (mut changed, mut gone) = (Vec::new(), Vec::new());
    for item in old.diff(new) {
        match sides(&item)[1] {
            Some(value) => changed.push(value.as_ref()),
            None => gone.push(key_of(&item)),
        }
    }
    (changed, gone)
}

/// Replaces the entries that `old` has by those of `new`.
fn replace<K: Ord + Clone, V: Clone>(all: &mut OrdMap<K, V>, old: &OrdMap<K, V>, new: OrdMap<K, V>) {
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        all.remove(key);
    }
    all.extend(new);
}

#[cfg(test)]
#[path = "tests/merge.rs"]
mod tests;
