//! What every source says of itself: one row for each place that it reads.

use serde::Serialize;

use crate::model::service::Source;

/// A row of `/sources`: one place a source reads, and what it made of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceReport {
    /// Which source.
    pub source: Source,
    /// A file, or the directory as a whole.
    pub path: String,
    /// What it stands for as a whole: `directory`, or the kind of objects that is watched; `None` for a single file.
    #[serde(skip)]
    pub kind: Option<&'static str>,
    /// Whether what is served from it is what it says.
    pub state: SourceState,
    /// How many services it contributes.
    pub services: usize,
    /// How many slices it contributes.
    pub slices: usize,
    /// What was left out on purpose, such as `3 objects of other kinds`.
    pub notices: Vec<String>,
    /// What is wrong, with line and remedy.
    pub problems: Vec<String>,
    /// Since when it is in this state with these problems, in seconds since 1970.
    pub since: u64,
    /// When the directory was last looked at, or anything was last heard of the kind, in seconds since 1970; `None` before,
    /// and for a single file.
    #[serde(skip)]
    pub heard: Option<u64>,
}

/// The states of a [`SourceReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum SourceState {
    /// What it says is what is served. Problems that remain concern single objects in it.
    Ok,
    /// It has problems; what it said before is still served.
    LastGood,
    /// It has problems, and nothing of it is served.
    Error,
}

impl std::fmt::Display for SourceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Ok => "Ok",
            Self::LastGood => "LastGood",
            Self::Error => "Error",
        })
    }
}
