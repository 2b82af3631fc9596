//! All reports under one service name.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hashbrown::Equivalent;
use imbl::OrdMap;
use smallvec::SmallVec;

use crate::model::service::{Service, ServiceName, Slice, SliceName, Source};

/// All reports of the sources under one service name. It may contain slices of a service that no source describes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// One description per source, in order of precedence.
    pub(super) claims: SmallVec<[Arc<Service>; 1]>,
    /// The slices by source, then name.
    pub(super) slices: SmallVec<[Arc<Slice>; 1]>,
}

impl Record {
    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.slices.is_empty()
    }

    /// The description that takes precedence, and the slices of the same source in name order.
    pub(super) fn owner(&self) -> Option<(&Arc<Service>, &[Arc<Slice>])> {
        let owner = self.claims.first()?;
        let first = self.slices.partition_point(|slice| slice.source < owner.source);
        let end = self.slices.partition_point(|slice| slice.source <= owner.source);
        Some((owner, &self.slices[first..end]))
    }

    pub(super) fn find_slice(&self, source: Source, name: &SliceName) -> Result<usize, usize> {
        self.slices.binary_search_by(|slice| (slice.source, &slice.name).cmp(&(source, name)))
    }
}

/// Changes the record of the service, or a new one. [`OrdMap::entry`] would search for it once more.
pub(super) fn change_record<T>(
    records: &mut OrdMap<ServiceName, Arc<Record>>,
    name: &ServiceName,
    change: impl FnOnce(&mut Record) -> T,
) -> T {
    if let Some(record) = records.get_mut(name) {
        return change(Arc::make_mut(record));
    }
    let mut record = Record::default();
    let result = change(&mut record);
    records.insert(name.clone(), Arc::new(record));
    result
}

/// Records whether the current description of the service asks for health checks; `None` if there is no service of this
/// name.
pub(super) fn note_checked(
    checked: &mut OrdMap<ServiceName, Arc<Service>>,
    name: &ServiceName,
    service: Option<&Arc<Service>>,
) {
    match service.filter(|service| service.health_check.is_some()) {
        Some(service) => drop(checked.insert(name.clone(), Arc::clone(service))),
        None if checked.contains_key(name) => drop(checked.remove(name)),
        None => {}
    }
}

/// Lets the slice share the strings of names that the record already contains. On a large cluster, names are a
/// considerable part of a service's memory.
pub(super) fn share_names(record: &Record, slice: &mut Slice) {
    if let Some(claim) = record.claims.first() {
        slice.service = claim.name.clone();
    }
    if slice.name.namespace == slice.service.namespace {
        slice.name.namespace = Arc::clone(&slice.service.namespace);
    }
}

/// A slice, by source and name.
#[derive(Debug)]
pub(super) struct ByName(pub(super) Arc<Slice>);

impl ByName {
    fn key(&self) -> (Source, &SliceName) {
        (self.0.source, &self.0.name)
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for ByName {}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl Equivalent<ByName> for (Source, &SliceName) {
    fn equivalent(&self, slice: &ByName) -> bool {
        *self == slice.key()
    }
}
