//! What a write that did not finish leaves, when the disk is full or the writer was killed: the beginning of a file. TOML
//! and YAML have no end, so it may be valid, without the services that were still to come. Pure.

use std::collections::BTreeSet;

use super::content::FileContent;
use super::parse::Valid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfinished {
    /// It was written in place, and ends in the middle of a line, unlike the version before.
    MidLine,
    /// It was written in place, and is the beginning of the version before.
    Beginning,
}

impl Unfinished {
    /// Whether `new` takes something away and looks as if its writer had not finished. A file that was written elsewhere and
    /// then renamed is another file, and complete.
    pub(super) fn find(before: &Valid, new: &Valid) -> Option<Self> {
        let (old, text) = (&before.version, &new.version);
        let found = if old.inode.is_some_and(|inode| text.inode != Some(inode)) {
            return None;
        } else if !text.text.ends_with('\n') && old.text.ends_with('\n') {
            Self::MidLine
        } else if text.text.len() < old.text.len() && old.text.starts_with(&*text.text) {
            Self::Beginning
        } else {
            return None;
        };
        (!described(&before.content).is_subset(&described(&new.content))).then_some(found)
    }

    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::MidLine => {
                "ends in the middle of a line and takes something away, as after a write that did not finish; write it \
                 again, with a newline at its end"
            }
            Self::Beginning => {
                "is only the beginning of the version before, as after a write that did not finish; if it is complete, \
                 save it again"
            }
        }
    }
}

/// Every service, frontend and backend of a file.
fn described(content: &FileContent) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for service in content.services.iter().map(|found| &found.value) {
        all.insert(service.name.to_string());
        let frontends =
            service.ports.iter().flat_map(|port| port.frontends.iter().map(|it| it.l4(port.protocol).to_string()));
        all.extend(frontends.map(|frontend| format!("{} {frontend}", service.name)));
    }
    for slice in content.slices.iter().map(|found| &found.value) {
        let backends = slice.ports.iter().flat_map(|port| &port.backends);
        all.extend(backends.map(|backend| format!("{:?} {} {}", slice.name, backend.addr, backend.port)));
    }
    all.extend(content.named.iter().map(|named| format!("{:?}", named.slice)));
    all
}

#[cfg(test)]
#[path = "tests/unfinished.rs"]
mod tests;
