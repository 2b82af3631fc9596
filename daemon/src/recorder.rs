//! Keeps the records of the flight recorder: assigns a number to each event of the owner, publishes all records for
//! readers, and stores them in the state directory, so that they survive a restart. It is a separate task: the owner
//! passes events on and never waits, not even for a disk.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fs, io};

use nodelb_core::engine::Round;
use nodelb_core::history::{Event, History, Record, Stamp, What};
use nodelb_core::text::counted;
use nodelb_host::clock::Taken;
use nodelb_host::state_file::{self, Limits, Reading, StateFile};
use nodelb_host::{lines, messages};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tracing::info;

use crate::latency::Latencies;

/// How many batches of events may wait for the recorder: while it reads the records of earlier runs, or for [`COLLECT`].
const QUEUE: usize = 4_096;

/// How long events are collected after a batch. For each batch that does not wait, the owner task has to wake another thread.
const COLLECT: Duration = Duration::from_millis(250);

/// How many numbers a run skips after the stored records of earlier runs: a run that was killed may have shown records
/// to readers before they were stored.
const LEFT_OUT: u64 = 1_000;

/// The events of one time.
#[derive(Debug)]
struct Batch {
    events: Vec<Event>,
    stamp: Stamp,
}

/// The owner's side, which reports the results of rounds.
#[derive(Debug)]
pub struct Reporter {
    to: mpsc::Sender<Batch>,
    latencies: Latencies,
    /// Number of events that did not fit into the queue.
    lost: usize,
}

impl Reporter {
    /// Records a round and its changes, which the owner received at `taken`. Never waits.
    pub fn report(&mut self, round: &mut Round, taken: Taken, took: Duration) {
        self.latencies.observe(round, took);
        self.latencies.observe_triggers(round, taken);
        self.record(std::mem::take(&mut round.events), taken);
    }

    /// Counts a round that an earlier round made necessary.
    pub fn count_retry(&self) {
        self.latencies.retries.inc();
    }

    /// Records events that happened at `taken` and are in the kernel by now. Never waits.
    pub fn record(&mut self, mut events: Vec<Event>, taken: Taken) {
        let count = events.len();
        if self.lost > 0 {
            let detail = format!("the queue is full: {} not recorded", counted(self.lost, "more change"));
            events.push(Event::for_daemon(What::More, detail));
        }
        if events.is_empty() {
            return;
        }
        let to_kernel = u64::try_from(taken.elapsed().as_micros()).unwrap_or(u64::MAX);
        let batch = Batch { events, stamp: Stamp { at: taken.unix_millis, to_kernel } };
        self.lost = match self.to.try_send(batch) {
            Ok(()) => 0,
            Err(_no_room) => self.lost + count,
        };
    }
}

pub const LIMITS: Limits =
    Limits { every: Duration::ZERO, retry: Duration::from_secs(30), timeout: Duration::from_secs(4) };

pub struct StartedRecorder {
    /// The owner's side. The recorder ends when it is dropped.
    pub reporter: Reporter,
    pub published: RecorderOutputs,
    /// The task. It is done when everything is stored, or cannot be stored.
    pub task: JoinHandle<()>,
}

#[derive(Clone, Debug)]
pub struct RecorderOutputs {
    pub history: watch::Receiver<Arc<History>>,
    pub latencies: Latencies,
}

/// Starts the recorder. `start` is the first recorded event.
pub fn start(directory: PathBuf, start: Event, limits: Limits) -> StartedRecorder {
    let (latencies, (to, from)) = (Latencies::default(), mpsc::channel(QUEUE));
    let (publish, history) = watch::channel(Arc::default());
    let mut reporter = Reporter { to, latencies: latencies.clone(), lost: 0 };
    reporter.record(vec![start], Taken::now());
    let recorder =
        Recorder { from, publish, latencies: latencies.clone(), history: History::default(), directory, limits };
    StartedRecorder { reporter, published: RecorderOutputs { history, latencies }, task: tokio::spawn(recorder.run()) }
}

struct Recorder {
    from: mpsc::Receiver<Batch>,
    publish: watch::Sender<Arc<History>>,
    latencies: Latencies,
    history: History,
    directory: PathBuf,
    limits: Limits,
}

impl Recorder {
    async fn run(mut self) {
        let (directory, consequence) = (self.directory.clone(), "`nodelb history` shows and stores only this run");
        let mut reading = Reading::begin(file_path(&directory), consequence, move |_| read_files(&directory));
        // Events wait meanwhile.
        let found = reading.within(self.limits.timeout).await;
        let mut file = found.map(|found| self.restore(found));
        loop {
            tokio::select! {
                found = reading.wait(), if file.is_none() => file = Some(self.restore(found)),
                batch = self.from.recv() => match batch {
                    Some(batch) => self.take(batch),
                    None => break,
                }
            }
            if let Some(file) = &file {
                file.save(self.publish.borrow().clone());
            }
            if !self.from.is_closed() {
                tokio::time::sleep(COLLECT).await;
            }
        }
        if let Some(file) = file {
            file.close().await;
        }
    }

    /// Puts the records of earlier runs before those of this run, if it has any, which get new numbers. Returns the file that
    /// new records are appended to.
    fn restore(&mut self, found: Found) -> StateFile<Arc<History>> {
        let path = file_path(&self.directory);
        if found.unreadable > 0 {
            info!(
                message_id = %messages::STATE_UNREADABLE,
                "ignored {} lines of {} that cannot be decoded", found.unreadable, path.display()
            );
        }
        let of_this_run = std::mem::take(&mut self.history);
        found.records.into_iter().for_each(|record| self.history.restore(record));
        if !self.history.is_empty() {
            self.history.skip(LEFT_OUT);
        }
        let (directory, written) = (self.directory.clone(), AtomicU64::new(self.history.last()));
        let append = move |_: &Path, history: Arc<History>| {
            let records: Vec<Arc<Record>> = history.after(written.load(Ordering::Relaxed)).cloned().collect();
            append(&directory, &records, &history)?;
            written.store(history.last(), Ordering::Relaxed);
            Ok(())
        };
        for Record { event, at, to_kernel, .. } in of_this_run.after(0).map(|record| Record::clone(record)) {
            self.history.add(event, Stamp { at, to_kernel: to_kernel.unwrap_or_default() });
        }
        self.publish.send_replace(Arc::new(self.history.clone()));
        StateFile::start(path, "`nodelb history` loses these changes when nodelb ends", self.limits, append)
    }

    /// Records the batch and all other waiting batches.
    fn take(&mut self, batch: Batch) {
        let mut next = Some(batch);
        while let Some(Batch { events, stamp }) = next {
            for event in events {
                let record = self.history.add(event, stamp);
                self.observe(&record);
            }
            next = self.from.try_recv().ok();
        }
        self.publish.send_replace(Arc::new(self.history.clone()));
    }

    fn observe(&self, record: &Record) {
        if let Some(micros) = record.to_kernel.filter(|_| record.event.port.is_some()) {
            self.latencies.event_to_kernel.observe(Duration::from_micros(micros).as_secs_f64());
        }
    }
}

/// A file of more bytes is replaced by a new one.
const MAX_FILE: u64 = 4 << 20;

/// The maximum number of bytes that are read from the end of a file: more than one batch beyond [`MAX_FILE`].
const MAX_READ: u64 = 16 << 20;

/// The maximum length of a line in bytes; ten times the longest record.
const MAX_LINE: usize = 128 << 10;

/// Path of the file with the latest records.
pub fn file_path(state_directory: &Path) -> PathBuf {
    state_directory.join("history.jsonl")
}

fn old_path(state_directory: &Path) -> PathBuf {
    state_directory.join("history.old.jsonl")
}

#[derive(Debug, Default)]
struct Found {
    /// The records in the order of their numbers, each once.
    records: Vec<Record>,
    /// Number of invalid lines.
    unreadable: usize,
}

/// How many bytes of the file the latest records occupy at most.
const MAX_LATEST: u64 = 256 << 10;

/// Reads the records of the last seconds before a daemon was killed, and earlier ones. May block.
pub fn latest(directory: &Path) -> io::Result<Vec<Record>> {
    let mut found = Found::default();
    read_file(&file_path(directory), MAX_LATEST, &mut found)?;
    found.records.retain(Record::is_plausible);
    Ok(found.records)
}

/// Reads the records, and creates the directory. May block.
fn read_files(directory: &Path) -> io::Result<Found> {
    fs::create_dir_all(directory)?;
    find(directory)
}

/// Reads the stored records without changing anything, for a command that works without the daemon. May block.
pub fn stored(directory: &Path) -> io::Result<History> {
    let mut history = History::default();
    find(directory)?.records.into_iter().for_each(|record| history.restore(record));
    Ok(history)
}

fn find(directory: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    for path in [old_path(directory), file_path(directory)] {
        read_file(&path, MAX_READ, &mut found)?;
    }
    found.records.sort_by_key(|record| record.sequence);
    found.records.dedup_by_key(|record| record.sequence);
    Ok(found)
}

/// Reads at most this number of bytes at the end of the file, if it exists.
fn read_file(path: &Path, most: u64, found: &mut Found) -> io::Result<()> {
    let mut file = match state_file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let skipped = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(skipped))?;
    let mut reader = BufReader::new(file.take(most));
    let mut line = Vec::new();
    // If the beginning of the file is skipped, the first line may be partial.
    let mut is_whole = skipped == 0;
    while reader.read_until(b'\n', &mut line)? > 0 {
        let record = (line.len() <= MAX_LINE).then(|| serde_json::from_slice(&line).ok()).flatten();
        match record {
            Some(record) => found.records.push(record),
            None if is_whole && !line.trim_ascii().is_empty() => found.unreadable += 1,
            None => {}
        }
        is_whole = true;
        line.clear();
    }
    Ok(())
}

/// The maximum number of bytes that a new file begins with.
const MAX_REPEATED: usize = 2 << 20;

/// Appends the latest records of the history. A new file begins with those before, since the changes of one tenant may have
/// filled the old ones. May block.
///
/// # Errors
/// If the records cannot be written. Some may have been, the last one in part: the caller may write them again.
fn append(directory: &Path, records: &[Arc<Record>], history: &History) -> io::Result<()> {
    let path = file_path(directory);
    let mut file = state_file::append(&path)?;
    let mut length = file.metadata()?.len();
    let mut bytes = Vec::new();
    if length > MAX_FILE {
        fs::rename(&path, old_path(directory))?;
        file = state_file::append(&path)?;
        length = 0;
        bytes = repeated(history, records.first().map_or(u64::MAX, |first| first.sequence))?;
    }
    for record in records {
        lines::push(&mut bytes, &**record)?;
    }
    let mut last = [b'\n'];
    if length > 0 {
        file.read_exact_at(&mut last, length - 1)?;
    }
    if last != *b"\n" {
        bytes.insert(0, b'\n');
    }
    file.write_all(&bytes)?;
    file.sync_data()
}

/// The latest records before this one, as far as there is room for them: first those of the node.
fn repeated(history: &History, next: u64) -> io::Result<Vec<u8>> {
    let of_services = history.latest_first().filter(|record| !record.event.is_of_node());
    let mut all = BTreeMap::new();
    let mut size = 0;
    for record in history.of_node().chain(of_services).filter(|record| record.sequence < next) {
        let mut line = Vec::new();
        lines::push(&mut line, &**record)?;
        size += line.len();
        if size > MAX_REPEATED {
            break;
        }
        all.insert(record.sequence, line);
    }
    Ok(all.into_values().flatten().collect())
}

#[cfg(test)]
#[path = "tests/recorder.rs"]
mod tests;
