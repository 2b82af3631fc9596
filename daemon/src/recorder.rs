//! Keeps the records of the flight recorder: assigns a number to each event of the owner, publishes all records for
//! readers, and stores them in the state directory, so that they survive a restart. It is a separate task: the owner
//! passes events on and never waits, not even for a disk.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::engine::Round;
use nodelb_core::history::{Event, History, Record, Stamp, What};
use nodelb_core::messages;
use nodelb_kube::clock::{Taken, at};
use nodelb_kube::state;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use crate::latency::Latencies;

mod file;

/// How many batches of events may wait for the recorder, which delays them only while it reads the records of earlier
/// runs.
const QUEUE: usize = 1_024;

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
            let detail = format!("{} more changes are not recorded: there was no room for them", self.lost);
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

/// The intervals and limits for files.
#[derive(Clone, Copy, Debug)]
pub struct RecorderTimeouts {
    /// The minimum time between two writes; the first is immediate.
    pub every: Duration,
    /// The same after a failed write.
    pub retry: Duration,
    /// The maximum duration of the read at the start, and of the write at the end.
    pub timeout: Duration,
}

impl Default for RecorderTimeouts {
    fn default() -> Self {
        let (every, retry) = (Duration::from_secs(1), Duration::from_secs(30));
        Self { every, retry, timeout: Duration::from_secs(4) }
    }
}

/// The parts of a started recorder.
pub struct Started {
    /// The owner's side. The recorder ends when it is dropped.
    pub reporter: Reporter,
    /// The published records, for readers.
    pub history: watch::Receiver<Arc<History>>,
    /// The given figures, for readers.
    pub latencies: Latencies,
    /// The task. It is done when everything is stored, or cannot be stored.
    pub task: JoinHandle<()>,
}

/// Starts the recorder. `start` is the first recorded event.
pub fn start(directory: PathBuf, latencies: Latencies, start: Event, timeouts: RecorderTimeouts) -> Started {
    let (to, from) = mpsc::channel(QUEUE);
    let (publish, history) = watch::channel(Arc::default());
    let mut reporter = Reporter { to, latencies: latencies.clone(), lost: 0 };
    reporter.record(vec![start], Taken::now());
    let recorder = Recorder {
        from,
        publish,
        latencies: latencies.clone(),
        history: History::default(),
        directory,
        timeouts,
        keeps: false,
        written: 0,
        writing: None,
        next_write: None,
        has_failed: false,
    };
    Started { reporter, history, latencies, task: tokio::spawn(recorder.run()) }
}

/// The task's state; see the module.
struct Recorder {
    from: mpsc::Receiver<Batch>,
    publish: watch::Sender<Arc<History>>,
    latencies: Latencies,
    history: History,
    directory: PathBuf,
    timeouts: RecorderTimeouts,
    /// Whether records are stored. Not if the records of earlier runs could not be read, because new ones are appended
    /// to them.
    keeps: bool,
    /// Number of the last stored record, as far as is known.
    written: u64,
    writing: Option<Writing>,
    /// The earliest time of the next write.
    next_write: Option<Instant>,
    has_failed: bool,
}

#[derive(Debug)]
struct Writing {
    done: oneshot::Receiver<io::Result<()>>,
    /// Number of the last record in the file after the write.
    last: u64,
}

/// An event in the loop.
enum Woken {
    Batch(Option<Batch>),
    Written(io::Result<()>),
    Due,
}

impl Recorder {
    async fn run(mut self) {
        self.restore().await;
        loop {
            let due = self.next_write.filter(|_| self.is_behind());
            let woken = tokio::select! {
                batch = self.from.recv() => Woken::Batch(batch),
                result = finished(&mut self.writing) => Woken::Written(result),
                () = at(due) => Woken::Due,
            };
            match woken {
                Woken::Batch(Some(batch)) => self.take(batch),
                Woken::Batch(None) => break,
                Woken::Written(result) => self.conclude(result),
                Woken::Due => self.next_write = None,
            }
            self.write();
        }
        self.end().await;
    }

    /// Reads the records of earlier runs. Events wait meanwhile.
    async fn restore(&mut self) {
        let (directory, limit) = (self.directory.clone(), self.timeouts.timeout);
        let shown = file::path(&directory).display().to_string();
        let reading = state::aside(move || file::read(&directory));
        match timeout(limit, reading).await {
            Ok(Ok(found)) => {
                if found.unreadable > 0 {
                    info!(
                        message_id = %messages::STATE_UNREADABLE,
                        "{shown}: {} lines make no sense and are not used", found.unreadable
                    );
                }
                found.records.into_iter().for_each(|record| self.history.restore(record));
                if !self.history.is_empty() {
                    self.history.skip(LEFT_OUT);
                }
                self.written = self.history.last();
                self.keeps = true;
            }
            Ok(Err(error)) => {
                warn!(
                    message_id = %messages::STATE_UNREADABLE,
                    "{shown} cannot be read: {error}; /history begins with this start, and ends with it"
                );
            }
            Err(_elapsed) => {
                warn!(
                    message_id = %messages::STATE_UNREADABLE,
                    "{shown} is not read within {limit:?}; /history begins with this start, and ends with it"
                );
            }
        }
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

    fn is_behind(&self) -> bool {
        self.keeps && self.writing.is_none() && self.written < self.history.last()
    }

    /// Starts a write if there are new records and it is time. Never waits.
    fn write(&mut self) {
        if !self.is_behind() || self.next_write.is_some() {
            return;
        }
        let records: Vec<Arc<Record>> = self.history.after(self.written).cloned().collect();
        let (directory, last) = (self.directory.clone(), self.history.last());
        match state::begin(move || file::append(&directory, &records)) {
            Ok(done) => {
                self.writing = Some(Writing { done, last });
                self.next_write = Some(Instant::now() + self.timeouts.every);
            }
            Err(error) => self.conclude(Err(error)),
        }
    }

    fn conclude(&mut self, result: io::Result<()>) {
        let last = self.writing.take().map(|writing| writing.last);
        let path = file::path(&self.directory);
        match result {
            Ok(()) => {
                self.written = last.unwrap_or(self.written);
                if std::mem::take(&mut self.has_failed) {
                    info!(message_id = %messages::STATE_WRITTEN, "{} is written again", path.display());
                }
            }
            Err(error) => {
                self.next_write = Some(Instant::now() + self.timeouts.retry);
                if !std::mem::replace(&mut self.has_failed, true) {
                    warn!(
                        message_id = %messages::STATE_UNWRITTEN,
                        "{} cannot be written: {error}; /history is lost when nodelb ends", path.display()
                    );
                }
            }
        }
    }

    /// Writes the remaining records, within the time limit.
    async fn end(mut self) {
        let deadline = Instant::now() + self.timeouts.timeout;
        self.next_write = None;
        while self.writing.is_some() || (self.is_behind() && !self.has_failed) {
            self.write();
            match timeout_at(deadline, finished(&mut self.writing)).await {
                Ok(result) => self.conclude(result),
                Err(_elapsed) => {
                    let (path, limit) = (file::path(&self.directory), self.timeouts.timeout);
                    warn!(
                        message_id = %messages::STATE_UNWRITTEN,
                        "{} is not written: not done within {limit:?}", path.display()
                    );
                    return;
                }
            }
            if self.has_failed {
                return;
            }
            self.next_write = None;
        }
    }
}

/// Waits until the current write has ended; forever if there is none.
async fn finished(writing: &mut Option<Writing>) -> io::Result<()> {
    match writing {
        Some(writing) => (&mut writing.done).await.map_err(io::Error::other).flatten(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "tests/recorder.rs"]
mod tests;
