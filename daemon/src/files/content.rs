//! What is read from a file: its objects, or its problems.

use std::path::PathBuf;
use std::sync::Arc;

use nodelb_core::model::service::{Service, Slice};

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
