//! All reports under one service name.

use std::sync::Arc;

use imbl::OrdMap;
use smallvec::{SmallVec, smallvec};

use super::sameness::same_service;
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
    /// The record of a service that is otherwise unknown.
    pub(super) fn described_by(service: Arc<Service>) -> Self {
        Self { claims: smallvec![service], slices: SmallVec::new() }
    }

    /// Replaces the description of the service by this source. Returns whether both are equal in everything that affects
    /// connections.
    pub(super) fn describe(&mut self, service: &Arc<Service>) -> bool {
        let old = self.claims.iter().position(|claim| claim.source == service.source);
        let old = old.map(|place| self.claims.remove(place));
        self.claims.push(Arc::clone(service));
        self.claims.sort_by_key(|claim| (claim.created.unwrap_or(0), claim.source));
        old.is_some_and(|old| same_service(&old, service))
    }

    /// Whether exactly this description is known. It then stays where it is in memory.
    pub(super) fn has_claim(&self, service: &Service) -> bool {
        self.claims.iter().any(|claim| **claim == *service)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.slices.is_empty()
    }

    /// The description that takes precedence, and the slices of the same source in name order.
    pub(super) fn owner(&self) -> Option<Owner<'_>> {
        let owner = self.claims.first()?;
        let first = self.slices.partition_point(|slice| slice.source < owner.source);
        let end = self.slices.partition_point(|slice| slice.source <= owner.source);
        Some((owner, &self.slices[first..end]))
    }

    pub(super) fn find_slice(&self, source: Source, name: &SliceName) -> Result<usize, usize> {
        self.slices.binary_search_by(|slice| (slice.source, &slice.name).cmp(&(source, name)))
    }
}

/// The description of a service that takes precedence, and the slices of the same source in name order.
pub(crate) type Owner<'a> = (&'a Arc<Service>, &'a [Arc<Slice>]);

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
