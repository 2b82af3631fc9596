//! The task of the file source: looks at the directory when there is reason to, and tells the owner what differs.

use std::future::Future;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nodelb_core::change::Change;
use nodelb_core::service::Source;
use tokio::sync::{mpsc, watch};
use tokio::task;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, error, info, warn};

use super::merge::{self, Merged};
use super::scan::{self, Files, Hints, KnownFile};
use super::watch::Watch;
use crate::document::Problem;
use crate::source::{SourceReport, SourceState};

/// An editor's last event is followed by nothing for this long.
const SETTLE: Duration = Duration::from_millis(20);
/// Events without end delay a look by no more than this.
const SETTLE_AT_MOST: Duration = Duration::from_millis(200);
/// How often the directory is looked at without an event: for links that lead out of it, and for network file systems.
const LOOK_ANYWAY: Duration = Duration::from_secs(10);
/// The same while something is wrong that an event may not tell the end of.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The file source: what it is connected to.
#[derive(Debug)]
pub struct FileSource {
    /// The services directory. Each time a value is sent, also the same one, everything is read again, and an empty
    /// directory is believed: that is what a reload does.
    pub directory: watch::Receiver<PathBuf>,
    /// The owner. One batch is what one look at the directory found, and is to be applied as a whole.
    pub changes: mpsc::Sender<Vec<Change>>,
    /// The rows of `/sources`: first the directory, then its files.
    pub reports: watch::Sender<Arc<Vec<SourceReport>>>,
}

/// Runs the file source until `shutdown` is ready or the owner no longer listens. [`Change::Synced`] is sent once the
/// directory could be read, and again whenever what is incomplete changes. Nothing is removed for as long as the
/// directory cannot be read.
pub async fn run(source: FileSource, shutdown: impl Future<Output = ()>) {
    tokio::select! {
        () = shutdown => {}
        () = Running::new(source).look_for_ever() => {}
    }
}

struct Running {
    source: FileSource,
    watch: Option<Watch>,
    files: Files,
    merged: Merged,
    /// What the last [`Change::Synced`] said was incomplete.
    synced: Option<Option<Arc<str>>>,
    /// What is wrong with the directory, and since when it is so.
    trouble: Option<String>,
    since: SystemTime,
}

impl Running {
    fn new(source: FileSource) -> Self {
        let watch = Watch::new().map_err(|error| {
            let every = LOOK_AGAIN.as_secs();
            warn!(%error, "no inotify, so the services directory is looked at every {every} s; raise fs.inotify.max_user_instances");
        });
        Self {
            source,
            watch: watch.ok(),
            files: Files::default(),
            merged: Merged::default(),
            synced: None,
            trouble: None,
            since: SystemTime::now(),
        }
    }

    async fn look_for_ever(mut self) {
        let mut asked = Hints { everything: true, ..Hints::default() };
        while self.look(asked).await.is_continue() {
            let pause = self.pause();
            asked = tokio::select! {
                reload = self.source.directory.changed() => match reload {
                    Ok(()) => Hints { everything: true, believe_empty: true, ..Hints::default() },
                    Err(_owner_is_gone) => return,
                },
                () = wait_for_reason(self.watch.as_mut(), pause) => Hints::default(),
            };
        }
    }

    fn pause(&self) -> Duration {
        let is_unsettled = self.files.iter().any(|(_, file)| file.is_unsettled);
        if self.watch.is_none() || self.trouble.is_some() || is_unsettled { LOOK_AGAIN } else { LOOK_ANYWAY }
    }

    /// Looks at the directory once. Breaks when the owner no longer listens.
    async fn look(&mut self, asked: Hints) -> ControlFlow<()> {
        let directory = self.source.directory.borrow_and_update().clone();
        let hints = self.hints(&directory, asked);
        let seen = self.files.seen();
        let path = directory.clone();
        let listing = task::spawn_blocking(move || scan::read(&path, &seen, &hints)).await;
        let listing = listing.unwrap_or_else(|failed| Err(io::Error::other(failed)));
        let changes = match listing {
            Ok(listing) => {
                self.set_trouble(&directory, None);
                self.accept(listing)
            }
            Err(error) => {
                self.set_trouble(&directory, Some(error.to_string()));
                Vec::new()
            }
        };
        self.report(&directory);
        if !changes.is_empty() && self.source.changes.send(changes).await.is_err() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn hints(&mut self, directory: &Path, asked: Hints) -> Hints {
        let Some(watch) = &mut self.watch else { return asked };
        watch.follow(directory);
        let hints = watch.take_hints();
        Hints {
            // What was noted before the directory could not be read is lost, and was perhaps not all.
            everything: hints.everything || asked.everything || self.trouble.is_some(),
            believe_empty: asked.believe_empty,
            ..hints
        }
    }

    fn accept(&mut self, listing: scan::Listing) -> Vec<Change> {
        let nobody = std::collections::BTreeSet::new();
        let writing = match &mut self.watch {
            Some(watch) => {
                if let Err(error) = watch.drain() {
                    debug!(%error, "inotify cannot be read");
                }
                watch.writing()
            }
            None => &nobody,
        };
        for path in self.files.accept(listing, writing, SystemTime::now()) {
            if let Some(file) = self.files.get(&path) {
                log_file(&path, file);
            }
        }
        let merged = merge::merge(&self.files.contents());
        for (path, problems) in &merged.problems {
            if self.merged.problems.get(path) != Some(problems) {
                log_problems(path, problems, "the earlier file is served");
            }
        }
        let mut changes = self.merged.changes_to(&merged);
        self.merged = merged;
        let incomplete = self.files.incomplete();
        if self.synced.as_ref() != Some(&incomplete) {
            self.synced = Some(incomplete.clone());
            changes.push(Change::Synced { source: Source::Files, incomplete });
        }
        changes
    }

    fn set_trouble(&mut self, directory: &Path, trouble: Option<String>) {
        if self.trouble == trouble {
            return;
        }
        let directory = directory.display();
        match &trouble {
            Some(error) => error!(
                %directory, error,
                "the services directory cannot be read; what was read before stays served, and it is tried again every {} s",
                LOOK_AGAIN.as_secs()
            ),
            None => info!(%directory, "the services directory can be read again"),
        }
        self.trouble = trouble;
        self.since = SystemTime::now();
    }

    fn report(&self, directory: &Path) {
        let mut rows = vec![self.directory_row(directory)];
        rows.extend(self.files.iter().map(|(path, file)| {
            let merge_problems = self.merged.problems.get(path).map_or(&[][..], Vec::as_slice);
            file_row(path, file, merge_problems)
        }));
        self.source.reports.send_if_modified(|reports| {
            let is_new = **reports != rows;
            if is_new {
                *reports = Arc::new(rows);
            }
            is_new
        });
    }

    fn directory_row(&self, directory: &Path) -> SourceReport {
        let state = match (&self.trouble, self.synced.is_some()) {
            (None, _) => SourceState::Ok,
            (Some(_), true) => SourceState::LastGood,
            (Some(_), false) => SourceState::Error,
        };
        let mut notices = Vec::new();
        if !self.files.ignored.is_empty() {
            let names = self.files.ignored.iter().take(5).map(String::as_str).collect::<Vec<_>>().join(", ");
            let count = self.files.ignored.len();
            notices.push(format!("{count} ignored, for no name of a service file ends like that: {names}"));
        }
        let trouble = self.trouble.as_ref().map(|error| format!("cannot be read: {error}; what was read stays served"));
        SourceReport {
            source: Source::Files,
            path: directory.display().to_string(),
            state,
            services: self.merged.services.len(),
            slices: self.merged.slices.len(),
            notices,
            problems: trouble.into_iter().collect(),
            since: unix_seconds(self.since),
        }
    }
}

/// Waits for a reason to look at the directory, and then until things settle; at most `pause` if there is none.
async fn wait_for_reason(watch: Option<&mut Watch>, pause: Duration) {
    let Some(watch) = watch else { return sleep(pause).await };
    let changed = tokio::select! {
        changed = watch.changed() => changed,
        () = sleep(pause) => return,
    };
    if changed.is_err() {
        // Not expected of inotify. Not waiting here would spin.
        return sleep(LOOK_AGAIN).await;
    }
    let latest = Instant::now() + SETTLE_AT_MOST;
    loop {
        tokio::select! {
            again = watch.changed() => if again.is_err() { return },
            () = sleep(SETTLE) => return,
            () = sleep_until(latest) => return,
        }
    }
}

fn file_row(path: &Path, file: &KnownFile, merge_problems: &[Problem]) -> SourceReport {
    let content = file.content.as_deref();
    let mut notices = content.map_or_else(Vec::new, |content| content.notices.clone());
    if file.is_unsettled {
        notices.push("being written to; it is read when its writer has closed it".into());
    }
    SourceReport {
        source: Source::Files,
        path: path.display().to_string(),
        state: file.state(),
        services: content.map_or(0, |content| content.services.len()),
        slices: content.map_or(0, |content| content.slices.len()),
        notices,
        problems: file.problems.iter().chain(merge_problems).map(Problem::to_string).collect(),
        since: unix_seconds(file.since),
    }
}

fn log_file(path: &Path, file: &KnownFile) {
    if file.problems.is_empty() {
        info!(file = %path.display(), "the file has no problems any more and is served");
    } else if file.content.is_some() {
        log_problems(path, &file.problems, "its last good content stays served");
    } else {
        log_problems(path, &file.problems, "nothing of it is served");
    }
}

fn log_problems(path: &Path, problems: &[Problem], consequence: &str) {
    for problem in problems {
        warn!(file = %path.display(), line = problem.line, "{}:{problem}; {consequence}", path.display());
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
