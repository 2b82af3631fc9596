//! The status report of each source: one row for each location that it reads.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{Display, VariantNames};

use crate::model::moment::Moment;
use crate::model::service::Source;

/// A row of `/sources`: one place that a source reads, and the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceReport {
    pub source: Source,
    /// A file, or the directory as a whole.
    pub path: String,
    /// The kind of the place: `directory`, or the kind of objects that is watched; `None` for a single file.
    pub kind: Option<&'static str>,
    /// Whether nodelb serves the current content of the place.
    pub state: SourceState,
    pub services: usize,
    pub slices: usize,
    /// The hash of the valid versions and names of the files, the same on every host with the same files; `None` for what is
    /// no file or directory, and without a valid version.
    pub content: Option<u64>,
    /// The content that was ignored on purpose, such as `3 objects of other kinds`, and what the source waits for.
    pub notices: Vec<String>,
    /// The problems, each with line and remedy.
    pub problems: Vec<String>,
    /// The time since which it has been in this state with these problems, in seconds since 1970.
    pub since: u64,
    /// When the directory was last read, or when any response about the kind was last received; `None` before that, and for
    /// a single file.
    pub last_received: Option<Moment>,
}

impl SourceReport {
    /// [`Self::content`] as tables and metrics show it.
    pub fn content_text(&self) -> Option<String> {
        self.content.map(|hash| format!("{hash:016x}"))
    }
}

/// The state of a [`SourceReport`].
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, Display, VariantNames,
)]
pub enum SourceState {
    /// The current content is served. Any problems concern single objects in it.
    Ok,
    /// There are problems, or the place is not read yet, and the earlier content is still served.
    LastGood,
    /// There are problems, or the place is not read yet, and nothing from it is served.
    Error,
}
