//! The task of the file source: scans the directory when something may have changed, and sends the differences to the
//! owner.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nodelb_core::change::Change;
use nodelb_core::map_diff::{key_of, sides};
use nodelb_core::model::service::Source;
use nodelb_host::clock::until;
use nodelb_host::messages;
use nodelb_host::state_file::{Reading, SavedState};
use nodelb_host::threads::Threads;
use tokio::sync::watch;
use tokio::task::{self, JoinHandle};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{error, info, warn};

use super::content::FileProblem;
use super::known::{Files, KnownFile};
use super::last_valid::{self, LastValid};
use super::looks::{LOOK_AGAIN, Looks};
use super::merge::Merged;
use super::report::{DirectoryState, FileReports};
use super::scan::{self, Extent, Hints, Listing, Seen};
use super::system::{IsOpenForWriting, System};
use super::watch::Watch;
use crate::OwnerHandle;
use crate::document::Problem;

/// How long a scan of the directory may take before that is reported.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a start with valid files waits for what the previous run has stored.
const RECALL: Duration = Duration::from_millis(500);
/// The maximum number of scans in progress: one, and those that reloads have abandoned.
const LOOKS: usize = 8;

#[derive(Debug)]
pub struct StartedFileSource {
    /// The services directory. Every value, even an equal one, makes the source read everything again: a reload sends one.
    /// Another directory may be empty.
    pub directory: watch::Sender<PathBuf>,
    pub reports: watch::Receiver<Arc<FileReports>>,
    /// Ends after `shutdown`, when the state is stored.
    pub task: JoinHandle<()>,
}

/// The inputs and outputs of the file source, as in [`StartedFileSource`].
#[derive(Debug)]
struct FileSource {
    directory: watch::Receiver<PathBuf>,
    owner: OwnerHandle,
    reports: watch::Sender<Arc<FileReports>>,
    is_open: IsOpenForWriting,
}

/// Starts the file source on the first directory; the second one is the state directory. It runs until `shutdown` is ready
/// or its changes are no longer received. Sends [`Change::Synced`] after the first successful read of the directory, or
/// when the state directory contains what the previous run knew of it, and again when the incomplete part changes. Removes
/// nothing while the directory cannot be read, or is changing.
pub fn start(
    (directory, state_directory): (PathBuf, PathBuf),
    owner: &OwnerHandle,
    is_open: IsOpenForWriting,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> StartedFileSource {
    let (directory, directories) = watch::channel(directory);
    let (reports_in, reports) = watch::channel(Arc::default());
    let source = FileSource { directory: directories, owner: owner.clone(), reports: reports_in, is_open };
    let unread = last_valid::begin(&state_directory);
    let task = tokio::spawn(RunningFileSource::new(source, &state_directory, unread).run(shutdown));
    StartedFileSource { directory, reports, task }
}

struct RunningFileSource {
    source: FileSource,
    watch: Option<Watch>,
    looks: Looks,
    files: Files,
    /// The files of which the rows are outdated.
    touched: BTreeSet<PathBuf>,
    merged: Merged,
    rows: FileReports,
    /// The directory of the last scan.
    directory: Option<PathBuf>,
    /// The incomplete part in the last [`Change::Synced`].
    synced: Option<Option<Arc<str>>>,
    /// The problem of the directory, if any; the next field has its time.
    trouble: Option<String>,
    since: SystemTime,
    threads: Threads,
    stored: SavedState<LastValid>,
    previous: Previous,
}

/// What the previous run has stored.
struct Previous {
    /// The file, until it has been read. Until then, nothing replaces it.
    unread: Option<Reading<Option<LastValid>>>,
    /// What was read after the first scan, for the next one.
    late: Option<LastValid>,
    is_first: bool,
    /// Whether the operator has chosen another directory since the start.
    is_outdated: bool,
}

impl RunningFileSource {
    fn new(source: FileSource, state_directory: &Path, unread: Reading<Option<LastValid>>) -> Self {
        let watch = Watch::new().map_err(|error| {
            let every = LOOK_AGAIN.as_secs();
            warn!(
                message_id = %messages::DIRECTORY_POLLED,
                %error,
                "inotify is not available, so the services directory is read every {every} s; raise \
                 fs.inotify.max_user_instances"
            );
        });
        Self {
            source,
            watch: watch.ok(),
            looks: Looks::new(Instant::now().into_std()),
            files: Files::default(),
            touched: BTreeSet::new(),
            merged: Merged::default(),
            rows: FileReports::default(),
            directory: None,
            synced: None,
            trouble: None,
            since: SystemTime::now(),
            threads: Threads::new("services", LOOKS),
            stored: last_valid::store(state_directory),
            previous: Previous { unread: Some(unread), late: None, is_first: true, is_outdated: false },
        }
    }

    async fn run(mut self, shutdown: impl Future<Output = ()>) {
        until(shutdown, self.poll_forever()).await;
        let last = self.stored.saved().clone();
        self.stored.close(last).await;
    }

    async fn poll_forever(&mut self) {
        let mut reread = true;
        while self.scan(reread).await {
            reread = tokio::select! {
                reload = self.source.directory.changed() => match reload {
                    Ok(()) => true,
                    Err(_owner_is_gone) => return,
                },
                last = Reading::late(&mut self.previous.unread) => {
                    self.previous.late = last.filter(|_| !self.previous.is_outdated);
                    true
                },
                () = wait_until_due(&self.looks, self.watch.as_mut()) => false,
            };
        }
    }

    /// Scans the directory once. Returns false if the owner has closed the queue.
    async fn scan(&mut self, reread: bool) -> bool {
        let directory = self.source.directory.borrow_and_update().clone();
        let hints = self.hints(reread);
        let (is_new, found) = self.look(&directory, hints).await;
        let merged = if is_new { self.merge().await } else { Ok(Vec::new()) };
        // The files are known from the directory, or from the previous run.
        let is_known = merged.is_ok() && (self.files.is_listed() || found.is_err() && is_new);
        let trouble = found.as_ref().map(drop).and(merged.as_ref().map(drop)).err().map(scan::explained);
        self.set_trouble(&directory, trouble);
        let extent = found.as_ref().ok().filter(|_| self.trouble.is_none());
        self.looks.end(extent, &self.files, self.watch.is_some(), Instant::now().into_std());
        let mut changes = merged.unwrap_or_default();
        if is_known {
            changes.extend(self.synced_change(&directory));
        }
        self.report(&directory);
        self.source.owner.send(changes).await
    }

    fn hints(&mut self, reread: bool) -> Hints {
        // The next wait for events fails, too.
        let _failed = self.watch.as_mut().map(Watch::note_all);
        // Hints from before the directory became unreadable are lost, and may have been incomplete.
        let reread = reread || self.trouble.is_some();
        let notes = self.watch.as_mut().map(|watch| &mut watch.notes);
        self.looks.begin(notes, &self.files, reread, Instant::now().into_std())
    }

    /// Reads what is new. Returns whether the served content may have changed, and what the scan has looked at, or the problem
    /// of the directory.
    async fn look(&mut self, directory: &Path, hints: Hints) -> (bool, io::Result<Extent>) {
        let before = self.directory.replace(directory.to_path_buf());
        let is_chosen = before.is_some_and(|before| before != directory);
        self.previous.is_outdated |= is_chosen;
        let listing = self.listing(directory.to_path_buf(), hints).await;
        let mut is_new = self.recall(listing.as_ref().ok()).await;
        let accepted = listing.and_then(|listing| {
            let extent = listing.extent.clone();
            Ok((extent, self.files.accept(listing, is_chosen, SystemTime::now())?))
        });
        let (extent, accepted) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => return (is_new, Err(error)),
        };
        self.touched.extend(accepted.touched);
        for path in accepted.altered {
            if let Some(file) = self.files.get(&path) {
                log_file(&path, file);
            }
        }
        is_new |= accepted.has_changed;
        if self.previous.unread.is_none() && (is_new || self.stored.saved().directory != directory) {
            self.stored.save(self.files.last_valid(directory));
        }
        (is_new, Ok(extent))
    }

    /// Takes the files as the previous run has stored them, before the first scan is accepted, or a later one if the disk is
    /// late. Returns whether it has stored any.
    async fn recall(&mut self, listing: Option<&Listing>) -> bool {
        let Previous { unread, late, is_first, .. } = &mut self.previous;
        if std::mem::take(is_first)
            && let Some(reading) = unread
        {
            // Valid files can be served without it, unless their writers have not finished.
            let limit = if listing.is_some_and(Listing::is_whole) { RECALL } else { last_valid::TIMEOUT };
            if let Some(last) = reading.within(limit).await {
                (*unread, *late) = (None, last);
            }
        }
        let Some(last) = late.take() else { return false };
        let last = listing.map_or_else(|| last.clone(), |listing| listing.missing_of(&last));
        let Ok(recalled) = blocking(move || Files::recalled(&last, SystemTime::now())).await else { return false };
        self.touched.extend(recalled.iter().map(|(path, _)| path.to_path_buf()));
        self.files.recall(recalled);
        true
    }

    async fn merge(&mut self) -> io::Result<Vec<Change>> {
        let (contents, before) = (self.files.contents(), self.merged.clone());
        let merging = blocking(move || {
            let merged = before.with(&contents);
            let changes = before.changes_to(&merged);
            (merged, changes)
        });
        let (merged, changes) = merging.await?;
        for item in self.merged.problems.diff(&merged.problems) {
            let path = key_of(&item);
            if let [_, Some(problems)] = sides(&item) {
                log_problems(path, problems, "the earlier file is served");
            }
            self.touched.insert(path.clone());
        }
        self.merged = merged;
        Ok(changes)
    }

    /// Lists the directory and reads what is new, in a thread, because its file system may not answer. In that case the
    /// delay is reported, and the source keeps waiting for an answer or a reload. A reload before that waits for this scan.
    async fn listing(&mut self, directory: PathBuf, hints: Hints) -> io::Result<Listing> {
        let seen = if hints.only_in.is_some() { Seen::default() } else { self.files.seen() };
        let follower = self.watch.as_ref().map(Watch::follower);
        let (looked_at, system) = (directory.clone(), System(self.source.is_open));
        let look = move || {
            let followed = follower.map(|follower| follower.follow(&looked_at));
            (followed, scan::read(&system, &looked_at, &seen, &hints))
        };
        let mut looking = self.threads.begin(look)?;
        let mut is_late = false;
        loop {
            tokio::select! {
                looked = &mut looking => {
                    let (followed, listing) = looked.map_err(io::Error::other)?;
                    if let (Some(watch), Some(followed)) = (&mut self.watch, followed) {
                        watch.followed(followed);
                    }
                    return listing;
                }
                _ = self.source.directory.changed(), if is_late => {
                    // The next scan is for the reload.
                    self.source.directory.mark_changed();
                    return Err(unanswered());
                }
                () = sleep(TIMEOUT), if !is_late => {
                    is_late = true;
                    self.set_trouble(&directory, Some(unanswered().to_string()));
                    self.report(&directory);
                }
            }
        }
    }

    /// The [`Change::Synced`] to send, if it differs from the last one.
    fn synced_change(&mut self, directory: &Path) -> Option<Change> {
        // What the previous run has stored may be older than the maps.
        let unread = |path: &Path| Some(format!("{} cannot be read", path.display()).into());
        let is_unread = self.previous.unread.is_some() && !self.previous.is_outdated;
        let incomplete = match self.files.is_listed() {
            false => unread(directory),
            // A file system that is not mounted looks like a directory that was emptied.
            true if is_unread && self.files.is_empty() => unread(self.stored.path()),
            true => self.files.incomplete(),
        };
        if self.synced.as_ref() == Some(&incomplete) {
            return None;
        }
        self.synced = Some(incomplete.clone());
        Some(Change::Synced { source: Source::Files, incomplete })
    }

    fn set_trouble(&mut self, directory: &Path, trouble: Option<String>) {
        if self.trouble == trouble {
            return;
        }
        let directory = directory.display();
        match &trouble {
            Some(error) => error!(
                message_id = %messages::DIRECTORY_UNREADABLE,
                %directory, error,
                "the services directory cannot be read; still serving the last known services, retrying every {} s",
                LOOK_AGAIN.as_secs()
            ),
            None => info!(message_id = %messages::FILE_SERVED, %directory, "the services directory can be read again"),
        }
        self.trouble = trouble;
        self.since = SystemTime::now();
    }

    fn report(&mut self, directory: &Path) {
        let reported = DirectoryState {
            path: directory,
            trouble: self.trouble.as_deref(),
            was_read: self.synced.is_some(),
            since: self.since,
            looked: self.source.owner.clock.now(),
        };
        self.rows.update(&reported, (&self.files, &std::mem::take(&mut self.touched)), &self.merged);
        if **self.source.reports.borrow() != self.rows {
            self.source.reports.send_replace(Arc::new(self.rows.clone()));
        }
    }
}

fn unanswered() -> io::Error {
    io::Error::other(format!("its file system does not respond within {} s", TIMEOUT.as_secs()))
}

/// Runs slow work on a thread where it delays no other task.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    task::spawn_blocking(work).await.map_err(io::Error::other)
}

/// Waits until a scan is due.
async fn wait_until_due(looks: &Looks, mut watch: Option<&mut Watch>) {
    loop {
        let due = sleep_until(Instant::from_std(looks.next(watch.as_deref().map(|watch| &watch.notes))));
        let Some(watch) = watch.as_deref_mut() else { return due.await };
        tokio::select! {
            changed = watch.changed() => if changed.is_err() {
                // inotify is not expected to fail. Without a pause here the loop would spin.
                return sleep(LOOK_AGAIN).await;
            },
            () = due => return,
        }
    }
}

fn log_file(path: &Path, file: &KnownFile) {
    if file.problems.is_empty() {
        info!(
            message_id = %messages::FILE_SERVED,
            file = %path.display(), "the file is valid again and served"
        );
    } else if file.valid.is_some() {
        log_problems(path, &file.problems, "still serving its last valid version");
    } else {
        log_problems(path, &file.problems, "none of its services are served");
    }
}

fn log_problems(path: &Path, problems: &[Problem], consequence: &str) {
    for problem in problems {
        let reported = FileProblem { path: path.to_path_buf(), problem: problem.clone() };
        warn!(
            message_id = %messages::FILE_PROBLEM,
            file = %path.display(), line = problem.line, "{reported}; {consequence}"
        );
    }
}

#[cfg(test)]
#[path = "tests/run.rs"]
mod tests;
