//! When to look at the services directory, and at what: at the names that events report; at the whole directory now and
//! then, and when names may be missing; at what may not be final. Pure.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::{Duration, Instant};

use super::known::{CONFIRM, Files, POLL};
use super::scan::{Extent, Hints};

/// How long events must pause before a scan, since editors cause several, and a service may move from one file to another.
const SETTLE: Duration = Duration::from_millis(20);
const SETTLE_AT_MOST: Duration = Duration::from_millis(200);
/// A file with an event in this time before another one changes often: scans of other files do not wait for its next
/// event.
const OFTEN: Duration = Duration::from_secs(1);

/// The interval of scans without an event: for links that lead out of the directory, and for network file systems.
const LOOK_ANYWAY: Duration = Duration::from_secs(10);
/// `LOOK_ANYWAY` while there is a problem that may end without an event, or no event at all.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What the events since the last scan say.
#[derive(Debug, Default)]
pub(super) struct Notes {
    hints: Hints,
    /// Whether an event was not about a name in the directory.
    is_whole: bool,
    /// The times of the first event, and of the last one that is not about a file that changes often.
    first: Option<Instant>,
    rare: Option<Instant>,
    /// The last event of each name, if that was not long ago.
    latest: BTreeMap<OsString, Instant>,
}

impl Notes {
    /// Notes an event about a name in the directory, or about the directory itself.
    pub(super) fn take(&mut self, name: Option<OsString>, now: Instant) {
        self.first.get_or_insert(now);
        let Some(name) = name else {
            self.is_whole = true;
            self.rare = Some(now);
            return;
        };
        let before = self.latest.insert(name.clone(), now);
        if before.is_none_or(|before| now >= before + OFTEN) {
            self.rare = Some(now);
        }
        self.hints.touched.insert(name);
    }

    /// Notes that events are lost.
    pub(super) fn lose(&mut self, now: Instant) {
        self.hints.everything = true;
        self.take(None, now);
    }

    /// When the scan for the events is due, if there are any: when the files that rarely change have paused, or one of
    /// those that often do.
    pub(super) fn due(&self) -> Option<Instant> {
        let first = self.first?;
        let latest = || self.hints.touched.iter().filter_map(|name| self.latest.get(name)).min();
        let paused = self.rare.as_ref().or_else(latest).unwrap_or(&first);
        Some((*paused + SETTLE).min(first + SETTLE_AT_MOST))
    }
}

#[derive(Debug)]
pub(super) struct Looks {
    /// When the whole directory is due, and when the files that may not be final are.
    whole: Instant,
    unsettled: Option<Instant>,
}

impl Looks {
    pub(super) const fn new(now: Instant) -> Self {
        Self { whole: now, unsettled: None }
    }

    /// When the next scan is due.
    pub(super) fn next(&self, notes: Option<&Notes>) -> Instant {
        let due = notes.and_then(Notes::due).into_iter().chain(self.unsettled);
        due.fold(self.whole, Instant::min)
    }

    /// What the scan that begins now looks at, which the notes then do not say again. `reread` asks for everything.
    pub(super) fn begin(&self, notes: Option<&mut Notes>, files: &Files, reread: bool, now: Instant) -> Hints {
        let mut hints = Hints { everything: reread, ..Hints::default() };
        let mut is_whole = reread || now >= self.whole || notes.is_none();
        if let Some(notes) = notes {
            let Notes { hints: noted, is_whole: is_noted, mut latest, .. } = std::mem::take(notes);
            latest.retain(|_, last| now < *last + OFTEN);
            notes.latest = latest;
            is_whole |= is_noted;
            hints.everything |= noted.everything;
            hints.touched = noted.touched;
        }
        if self.unsettled.is_some_and(|due| now >= due) {
            hints.touched.extend(files.unsettled());
        }
        hints.only_in = files.directory_with_events().filter(|_| !is_whole);
        hints
    }

    /// Takes note of a scan that has ended; `None` if it has failed.
    pub(super) fn end(&mut self, extent: Option<&Extent>, files: &Files, has_events: bool, now: Instant) {
        match extent {
            None => self.whole = now + LOOK_AGAIN,
            Some(Extent::Whole) => self.whole = now + if has_events { LOOK_ANYWAY } else { LOOK_AGAIN },
            Some(Extent::Names(_)) => {}
        }
        if extent.is_some() && files.must_list() {
            self.whole = self.whole.min(now + CONFIRM);
        }
        let has_all = match extent {
            Some(Extent::Names(names)) => files.unsettled().all(|name| names.contains(&name)),
            _ => true,
        };
        let before = self.unsettled.filter(|_| !has_all);
        self.unsettled = files.unsettled().next().map(|_| before.unwrap_or(now + POLL));
    }
}

#[cfg(test)]
#[path = "tests/looks.rs"]
mod tests;
