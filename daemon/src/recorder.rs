//! Keeps the flight recorder's records: gives each event of the owner its number, publishes all of them for readers, and
//! keeps them in the state directory, so that they are there after a restart. A task of its own: the owner hands events
//! on and never waits, not for a disk either.

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

/// How many batches of events may wait for the recorder, which is away only while it looks for what earlier runs wrote.
const QUEUE: usize = 1_024;

/// How many numbers a run leaves out after what earlier ones have written: a run that was killed had given some of them to
/// records that were told, and not written yet.
const LEFT_OUT: u64 = 1_000;

/// What happened at one time.
#[derive(Debug)]
struct Batch {
    events: Vec<Event>,
    stamp: Stamp,
}

/// The owner's end: where it reports what rounds did.
#[derive(Debug)]
pub struct Reporter {
    to: mpsc::Sender<Batch>,
    latencies: Latencies,
    /// Events that found no room.
    lost: usize,
}

impl Reporter {
    /// Takes note of a round over changes that were taken then. Never waits.
    pub fn report(&mut self, round: &mut Round, taken: Taken, took: Duration) {
        self.latencies.observe(round, took);
        self.latencies.observe_triggers(round, taken);
        self.tell(std::mem::take(&mut round.events), taken);
    }

    /// A round is due only because of one before it.
    pub fn count_retry(&self) {
        self.latencies.retries.inc();
    }

    /// Records what has happened since then, and the kernel has by now. Never waits.
    pub fn tell(&mut self, mut events: Vec<Event>, taken: Taken) {
        let count = events.len();
        if self.lost > 0 {
            let detail = format!("{} more changes are not recorded: there was no room for them", self.lost);
            events.push(Event::of_daemon(What::More, detail));
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

/// How long files may take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// From one write to the next, at least; the first is made at once.
    pub every: Duration,
    /// The same after one that failed.
    pub retry: Duration,
    /// For reading them at the start, and for writing at the end.
    pub patience: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let (every, retry) = (Duration::from_secs(1), Duration::from_secs(30));
        Self { every, retry, patience: Duration::from_secs(4) }
    }
}

/// What there is of a recorder that was started.
pub struct Started {
    /// For the owner. The recorder ends when it is gone.
    pub reporter: Reporter,
    /// For readers.
    pub history: watch::Receiver<Arc<History>>,
    /// For readers; as it was given.
    pub latencies: Latencies,
    /// For whoever ends the daemon: done when everything is written, or cannot be.
    pub task: JoinHandle<()>,
}

/// Starts it. `start` is what is recorded first.
pub fn start(directory: PathBuf, latencies: Latencies, start: Event, timing: Timing) -> Started {
    let (to, from) = mpsc::channel(QUEUE);
    let (publish, history) = watch::channel(Arc::default());
    let mut reporter = Reporter { to, latencies: latencies.clone(), lost: 0 };
    reporter.tell(vec![start], Taken::now());
    let recorder = Recorder {
        from,
        publish,
        latencies: latencies.clone(),
        history: History::default(),
        directory,
        timing,
        keeps: false,
        written: 0,
        writing: None,
        next_write: None,
        has_failed: false,
    };
    Started { reporter, history, latencies, task: tokio::spawn(recorder.run()) }
}

/// See the module.
struct Recorder {
    from: mpsc::Receiver<Batch>,
    publish: watch::Sender<Arc<History>>,
    latencies: Latencies,
    history: History,
    directory: PathBuf,
    timing: Timing,
    /// Whether records are written: not where those of earlier runs could not be read, for what is written goes after them.
    keeps: bool,
    /// The number of the last record that is in the file, as far as is known.
    written: u64,
    writing: Option<Writing>,
    /// When writing may begin again.
    next_write: Option<Instant>,
    has_failed: bool,
}

#[derive(Debug)]
struct Writing {
    done: oneshot::Receiver<io::Result<()>>,
    /// What the file ends with then.
    last: u64,
}

/// What the loop waits for.
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

    /// Reads what earlier runs have written. Events wait meanwhile.
    async fn restore(&mut self) {
        let (directory, patience) = (self.directory.clone(), self.timing.patience);
        let shown = file::path(&directory).display().to_string();
        let reading = state::aside(move || file::read(&directory));
        match timeout(patience, reading).await {
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
                    "{shown} is not read within {patience:?}; /history begins with this start, and ends with it"
                );
            }
        }
    }

    /// The batch, and whatever else is waiting already.
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

    /// Begins to write if there is something to write and it is time. Never waits.
    fn write(&mut self) {
        if !self.is_behind() || self.next_write.is_some() {
            return;
        }
        let records: Vec<Arc<Record>> = self.history.after(self.written).cloned().collect();
        let (directory, last) = (self.directory.clone(), self.history.last());
        match state::begin(move || file::append(&directory, &records)) {
            Ok(done) => {
                self.writing = Some(Writing { done, last });
                self.next_write = Some(Instant::now() + self.timing.every);
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
                self.next_write = Some(Instant::now() + self.timing.retry);
                if !std::mem::replace(&mut self.has_failed, true) {
                    warn!(
                        message_id = %messages::STATE_UNWRITTEN,
                        "{} cannot be written: {error}; /history is lost when nodelb ends", path.display()
                    );
                }
            }
        }
    }

    /// Writes the rest, as far as there is time.
    async fn end(mut self) {
        let deadline = Instant::now() + self.timing.patience;
        self.next_write = None;
        while self.writing.is_some() || (self.is_behind() && !self.has_failed) {
            self.write();
            match timeout_at(deadline, finished(&mut self.writing)).await {
                Ok(result) => self.conclude(result),
                Err(_elapsed) => {
                    let (path, patience) = (file::path(&self.directory), self.timing.patience);
                    warn!(
                        message_id = %messages::STATE_UNWRITTEN,
                        "{} is not written: not done within {patience:?}", path.display()
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

/// Waits until what is being written is; for ever if nothing is.
async fn finished(writing: &mut Option<Writing>) -> io::Result<()> {
    match writing {
        Some(writing) => (&mut writing.done).await.map_err(io::Error::other).flatten(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "tests/recorder.rs"]
mod tests;
