//! The backends that are in use for each name, which are not those of its last answer: an answer that is refused or not
//! usable replaces nothing. They are stored, so that a restart does not lose what the running daemon held. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nodelb_core::durations;
use nodelb_core::model::addr::{Addr, Protocol};
use nodelb_core::model::cause::HOLD_ENDED;
use nodelb_core::model::service::{Backend, Origin, Slice, SliceName, SlicePort, Source};
use serde::{Deserialize, Serialize};

use super::entry::Entry;
use super::names::Names;
use super::slices::{IsFrontend, Resolved, origin, resolve};
use crate::files::merge::Names as Wanted;
use crate::files::named::{Named, RecordType};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UsedBackend {
    pub(super) addr: Addr,
    pub(super) port: u16,
    /// The share of connections; of use for SRV records only.
    pub(super) weight: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Used {
    /// The backends, at least one.
    pub(super) backends: Vec<UsedBackend>,
    pub(super) server: Arc<str>,
    /// The time since which its answer is the same, in seconds since 1970.
    pub(super) since: u64,
}

pub(super) type UsedBySlice = BTreeMap<SliceName, Used>;

#[derive(Debug, Default)]
pub(super) struct InUse {
    used: UsedBySlice,
    /// Those of an earlier run, of slices that no file describes yet.
    recalled: UsedBySlice,
    /// The slices from before the first complete report of the files that have had no usable answer since. The maps may
    /// have their backends.
    unknown: BTreeSet<SliceName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reported {
    Before,
    /// It has not, and waits for it.
    NotYet,
    /// It has not, and takes that for no backends, because the files have been read completely.
    Overdue,
}

#[derive(Debug)]
pub(super) struct Settled {
    pub(super) slice: Slice,
    /// Why addresses of the answer are left out.
    pub(super) refused: Option<String>,
    pub(super) has_changed: bool,
}

impl InUse {
    /// `recalled` are the backends of an earlier run.
    pub(super) fn new(recalled: UsedBySlice) -> Self {
        Self { recalled, ..Self::default() }
    }

    /// These are the names from now on. `is_start` says whether the files have not been read completely before.
    pub(super) fn follow(&mut self, wanted: &Wanted, is_start: bool) {
        self.used.retain(|slice, _| wanted.contains_key(slice));
        self.unknown.retain(|slice| wanted.contains_key(slice));
        for slice in wanted.keys() {
            match self.recalled.remove(slice) {
                Some(used) => drop(self.used.entry(slice.clone()).or_insert(used)),
                None if is_start && !self.used.contains_key(slice) => drop(self.unknown.insert(slice.clone())),
                None => {}
            }
        }
    }

    /// Forgets the backends of an earlier run that are not needed, because every source has been read.
    pub(super) fn forget_recalled(&mut self) {
        self.recalled.clear();
    }

    /// Whether the owner task has the slice: whether it was reported, and whether it knows that the files were read completely.
    pub(super) fn reported(&self, slice: &SliceName, is_reported: bool, is_complete: bool) -> Reported {
        match is_reported {
            true => Reported::Before,
            false if is_complete && self.unknown.contains(slice) => Reported::Overdue,
            false => Reported::NotYet,
        }
    }

    pub(super) fn saved(&self) -> UsedBySlice {
        self.recalled.iter().chain(&self.used).map(|(slice, used)| (slice.clone(), used.clone())).collect()
    }

    /// The slice that follows from the answers; `None` while there is nothing to tell, because a target of a new answer has
    /// not been asked for yet.
    pub(super) fn settle(
        &mut self,
        named: &Named,
        names: &Names,
        is_frontend: IsFrontend<'_>,
        reported: Reported,
    ) -> Option<Settled> {
        let entry = names.entry(&named.question)?;
        let resolved = resolve(named, names, is_frontend);
        if entry.is_gone {
            let has_changed = self.used.remove(&named.slice).is_some();
            self.unknown.remove(&named.slice);
            let Settled { mut slice, refused, .. } = without_backends(named, entry, resolved?, Vec::new());
            let hold = names.hold().map(|hold| format!(" ({})", durations::exact(hold))).unwrap_or_default();
            slice.origin.object = format!("{HOLD_ENDED}{hold} of {}", slice.origin.object).into();
            return Some(Settled { slice, refused, has_changed });
        }
        // At a start, the frontends that would refuse an address may be unknown.
        let is_used = self.used.contains_key(&named.slice);
        let is_new = |it: &&Resolved| !(it.backends.is_empty() || it.is_recalled && is_used);
        if let Some(resolved) = resolved.as_ref().filter(is_new) {
            return Some(self.take(named, entry, resolved));
        }
        let is_due = match reported {
            Reported::Before => false,
            Reported::NotYet => self.used.contains_key(&named.slice),
            Reported::Overdue => true,
        };
        if resolved.is_none() && !is_due {
            return None;
        }
        let resolved = resolved.unwrap_or_else(|| Resolved { problem: entry.problem.clone(), ..Resolved::default() });
        if let Some(used) = self.used.get(&named.slice) {
            let problem = resolved.problem;
            let origin = origin(&named.question, Some((&used.server, used.since)));
            let slice = slice_of(named, origin, ports(named, &used.backends(named)), problem);
            return Some(Settled { slice, refused: resolved.refused, has_changed: false });
        }
        let is_unknown = self.unknown.contains(&named.slice);
        let ports = if is_unknown { ports(named, &[]) } else { Vec::new() };
        Some(without_backends(named, entry, resolved, ports))
    }

    fn take(&mut self, named: &Named, entry: &Entry, resolved: &Resolved) -> Settled {
        let known = entry.known.as_ref();
        let of = |it: &Backend| UsedBackend { addr: it.addr, port: it.port, weight: it.weight };
        let used = Used {
            backends: resolved.backends.iter().map(of).collect(),
            server: known.map(|known| Arc::clone(&known.server)).unwrap_or_default(),
            since: known.map_or(0, |known| known.since),
        };
        let origin = origin(&named.question, known.map(|known| (&known.server, known.since)));
        let slice = slice_of(named, origin, ports(named, &used.backends(named)), resolved.problem.clone());
        let has_changed = self.used.get(&named.slice) != Some(&used);
        if has_changed {
            self.used.insert(named.slice.clone(), used);
        }
        self.unknown.remove(&named.slice);
        Settled { slice, refused: resolved.refused.clone(), has_changed }
    }
}

/// A slice without backends. One that has the port says that the backends are not known, one that lacks it that there are
/// none.
fn without_backends(named: &Named, entry: &Entry, resolved: Resolved, ports: Vec<SlicePort>) -> Settled {
    let known = entry.known.as_ref().map(|known| (&known.server, known.since));
    let unanswered = || Arc::from("no server has answered yet");
    let problem = Some(resolved.problem.unwrap_or_else(unanswered));
    let slice = slice_of(named, origin(&named.question, known), ports, problem);
    Settled { slice, refused: resolved.refused, has_changed: false }
}

fn slice_of(named: &Named, origin: Origin, ports: Vec<SlicePort>, problem: Option<Arc<str>>) -> Slice {
    let (name, service) = (named.slice.clone(), named.service.clone());
    Slice { name, service, source: Source::Files, origin, ports, problem }
}

impl Used {
    /// The backends as the file describes them: of the families of its frontends and, except for SRV records, with its
    /// weight.
    fn backends(&self, named: &Named) -> Vec<Backend> {
        let is_wanted = |it: &&UsedBackend| named.families.contains(&it.addr.family());
        let is_srv = named.question.record == RecordType::Srv;
        let backend = |it: &UsedBackend| {
            let weight = if is_srv { it.weight } else { named.backend.weight };
            Backend { addr: it.addr, port: it.port, weight, ..named.backend.clone() }
        };
        self.backends.iter().filter(is_wanted).map(backend).collect()
    }
}

fn ports(named: &Named, backends: &[Backend]) -> Vec<SlicePort> {
    let port = |protocol: &Protocol| SlicePort {
        name: Arc::clone(&named.port),
        protocol: *protocol,
        backends: backends.to_vec(),
    };
    named.protocols.iter().map(port).collect()
}

#[cfg(test)]
#[path = "tests/in_use.rs"]
mod tests;
