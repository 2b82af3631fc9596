//! What is read from a file: its objects, or its problems.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use nodelb_core::model::service::{Service, ServiceName, Slice, SliceName};

use crate::document::Problem;
use nodelb_core::model::named::Named;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileContent {
    /// The services; each name occurs once.
    pub services: Vec<Found<Service>>,
    /// The slices; each name occurs once.
    pub slices: Vec<Found<Slice>>,
    /// The backends that have names. They belong to services of the file.
    pub named: Vec<Arc<Named>>,
    /// Messages about parts that are ignored deliberately.
    pub notices: Vec<String>,
}

/// The names that some files define.
#[derive(Default)]
pub(super) struct Defined<'c> {
    services: BTreeSet<&'c ServiceName>,
    slices: BTreeSet<&'c SliceName>,
}

impl<'c> Defined<'c> {
    pub(super) fn by(contents: impl Iterator<Item = &'c FileContent>) -> Self {
        let mut defined = Self::default();
        for content in contents {
            defined.services.extend(content.services.iter().map(|found| &found.value.name));
            defined.slices.extend(content.slices.iter().map(|found| &found.value.name));
        }
        defined
    }
}

impl FileContent {
    /// What is not defined otherwise; `None` if that is nothing.
    pub(super) fn without(&self, defined: &Defined<'_>) -> Option<Self> {
        let Defined { services, slices } = defined;
        let is_own =
            |slice: &Slice| !(slices.contains(&slice.name) || is_inline(slice) && services.contains(&slice.service));
        let mut rest = self.clone();
        rest.services.retain(|found| !services.contains(&found.value.name));
        rest.slices.retain(|found| is_own(&found.value));
        rest.named.retain(|named| !services.contains(&named.service));
        (!rest.services.is_empty() || !rest.slices.is_empty()).then_some(rest)
    }
}

/// Whether the slice contains backends that are listed inline with the service: names in Kubernetes have no `:`.
pub(super) fn is_inline(slice: &Slice) -> bool {
    slice.name.name.contains(':')
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<T> {
    /// Line, counted from 1; `None` where unknown.
    pub line: Option<usize>,
    /// The object. Shared because the merged content of the directory contains it too.
    pub value: Arc<T>,
}

/// A problem of the services directory or of a file in it. Prints as `PATH:LINE: problem`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    pub path: PathBuf,
    pub problem: Problem,
}

impl std::fmt::Display for FileProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.problem.of(&self.path))
    }
}
