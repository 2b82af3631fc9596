//! Files that `nodelb.service` may open. The unit runs as root without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, so
//! owner, group and mode apply to it as to any other user: it may be unable to open a file that root opens in a shell.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How a file or a directory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// A file is read.
    Read,
    /// A program is started.
    Run,
    /// A directory's entries are read.
    List,
}

impl Use {
    /// Returns the permission bits that the use requires.
    fn bits(self) -> u32 {
        match self {
            Self::Read => 0o4,
            Self::Run => 0o1,
            Self::List => 0o5,
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::List => "list",
        }
    }
}

/// A description, a path and its use.
pub(super) type Named = (&'static str, PathBuf, Use);

/// Returns a line for each path that is closed to the unit. A missing file is reported by the code that opens it.
pub(super) fn closed(named: &[Named]) -> Vec<String> {
    let mut reported = BTreeSet::new();
    let closed = named.iter().filter_map(|(what, path, wanted)| {
        let (at, metadata, bits) = first_closed(path, *wanted)?;
        // Many files may lie below the same directory.
        if !reported.insert(at.clone()) {
            return None;
        }
        let (how, remedy) = if bits == 0o1 && at != *path && metadata.is_dir() {
            ("search", "o+x")
        } else if metadata.is_dir() {
            (wanted.in_words(), "o+rx")
        } else {
            (wanted.in_words(), if *wanted == Use::Run { "o+x" } else { "o+r" })
        };
        let (at, owner, group, mode) =
            (at.display(), metadata.uid(), metadata.gid(), metadata.permissions().mode() & 0o7777);
        Some(format!(
            "{what} ({}): nodelb.service may not {how} {at} (owner {owner}, group {group}, mode {mode:04o}), because \
             its root user has no capability to override modes; run `chown root {at}` (or `chmod {remedy} {at}` if it \
             contains no secret)",
            path.display()
        ))
    });
    closed.collect()
}

/// Returns the first closed directory or file on the way to a path, and the permission bits that it requires.
fn first_closed(path: &Path, wanted: Use) -> Option<(PathBuf, Metadata, u32)> {
    // The directories of a symbolic link count as well as those of its target.
    let target = fs::canonicalize(path).ok()?;
    let ways = [path, &target].map(|end| end.ancestors().skip(1).map(Path::to_path_buf).collect::<Vec<_>>());
    let directories = ways.into_iter().flat_map(|way| way.into_iter().rev()).filter(|it| !it.as_os_str().is_empty());
    let all = directories.map(|directory| (directory, 0o1)).chain(std::iter::once((target, wanted.bits())));
    all.filter_map(|(at, bits)| fs::metadata(&at).ok().map(|metadata| (at, metadata, bits)))
        .find(|(_, metadata, bits)| !grants(metadata.uid(), metadata.gid(), metadata.permissions().mode(), *bits))
}

/// Whether user 0 with group 0 has these bits. As in the kernel, only the first matching class decides.
fn grants(owner: u32, group: u32, mode: u32, bits: u32) -> bool {
    let granted = match (owner, group) {
        (0, _) => mode >> 6,
        (_, 0) => mode >> 3,
        _ => mode,
    };
    granted & bits == bits
}

#[cfg(test)]
#[path = "tests/access.rs"]
mod tests;
