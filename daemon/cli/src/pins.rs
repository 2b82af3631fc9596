//! What is pinned in the kernel, and what that means for connections while no daemon answers.

use std::path::PathBuf;

/// What is pinned: what connections do without the daemon depends on it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pins {
    /// Maps of nodelb are pinned.
    Present,
    /// This directory has none.
    Absent(PathBuf),
    /// The maps cannot be read, for this reason.
    Unknown(String),
}

impl Pins {
    /// Returns what happens to connections, as sentences.
    pub fn effect(&self) -> String {
        match self {
            Self::Present => "Existing and new connections continue with the last known backends, even with backends \
                              that have failed since: nodelb diagnose NAMESPACE/NAME tests them."
                .into(),
            Self::Absent(directory) => {
                format!("No BPF maps of nodelb are pinned in {}: service addresses do not work", directory.display())
            }
            Self::Unknown(why) => format!("Whether service addresses work is not known: {why}"),
        }
    }
}
