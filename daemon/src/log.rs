//! Where log lines go: to the journal with fields (`SERVICE=`, `FRONTEND=`, `MESSAGE_ID=`) when stderr leads there, as
//! plain lines to stderr otherwise. Owns the subscriber, its level, and how many lines of a kind there may be in a minute
//! ([`limit`]); what is worth a line is for others to say, what it means is said in [`nodelb_core::messages`].
//!
//! A statement that logs never waits: its line goes through a bounded [`queue`] to a thread of its own, which alone waits for
//! journald or for what reads stderr. That thread starts after the capabilities are dropped ([`begin_writing`]), since they
//! belong to threads; lines wait until then.
//!
//! A field of an event, such as `tracing::info!(service = %name, "...")`, becomes the journal field of the same name
//! in capitals.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use nodelb_core::messages;
use nodelb_kube::clock::ticking;
use tracing::{Event, Level, Subscriber, subscriber, warn};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::filter::{FilterExt, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, reload};

use fields::WithoutId;
use limit::Limit;
use owned::Owned;
use queue::Queue;

mod fields;
pub mod limit;
mod owned;
mod queue;

/// Where journald reads messages with fields.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// How long a process that ends waits for its last lines, and then for its last words.
const LAST_LINES: Duration = Duration::from_secs(1);

/// How often dropped lines are looked for.
const BEAT: Duration = Duration::from_secs(1);

/// A line on its way to the thread that writes it.
enum Line {
    Plain(Vec<u8>),
    Journal(Owned),
}

/// Writes a line; may block.
type WriteLine = Box<dyn FnMut(Line) + Send>;

/// The way out of all lines of the process.
struct Out {
    queue: Queue<Line>,
    /// What the thread does with each line; taken when it starts.
    write: Mutex<Option<WriteLine>>,
    /// How many of the dropped lines were reported.
    reported: AtomicU64,
}

static OUT: OnceLock<Out> = OnceLock::new();

/// Steers the log of the running program.
#[derive(Clone, Debug)]
pub struct Control {
    level: reload::Handle<Targets, Registry>,
    limit: Limit,
}

impl Control {
    /// From now on lines of this level and graver ones are logged.
    pub fn set(&self, level: Level) {
        // Fails only when the subscriber is gone, and then there is nothing left to log with.
        let _ = self.level.reload(targets(level));
    }

    /// Says how many lines were left out because there were too many like them, and how many because no process read them,
    /// until `shutdown`.
    pub async fn tell_left_out(self, shutdown: impl Future<Output = ()>) {
        tokio::select! {
            () = self.limit.tell(shutdown) => {}
            () = report_dropped_lines() => {}
        }
    }
}

async fn report_dropped_lines() {
    let mut beat = ticking(BEAT);
    loop {
        beat.tick().await;
        if let Some(out) = OUT.get().filter(|out| out.queue.has_room()) {
            out.report_dropped();
        }
    }
}

/// How many lines were dropped because journald or the reader of stderr did not take them.
pub fn dropped_lines() -> u64 {
    OUT.get().map_or(0, |out| out.queue.dropped())
}

impl Out {
    fn new(write: impl FnMut(Line) + Send + 'static) -> Self {
        Self { queue: Queue::default(), write: Mutex::new(Some(Box::new(write))), reported: AtomicU64::new(0) }
    }

    fn begin_writing(&self) -> io::Result<()> {
        let write = self.write.lock().unwrap_or_else(PoisonError::into_inner).take();
        write.map_or(Ok(()), |write| self.queue.start(write))
    }

    fn report_dropped(&self) {
        let dropped = self.queue.dropped();
        let lines = dropped - self.reported.swap(dropped, Ordering::Relaxed).min(dropped);
        if lines > 0 {
            warn!(
                message_id = %messages::LINES_DROPPED,
                lines, "{lines} log lines were dropped: journald, or what reads stderr, did not take them in time"
            );
        }
    }
}

/// Starts the thread that writes lines. Only after the capabilities are dropped: a thread keeps those it starts with.
///
/// # Errors
/// When there can be no thread.
pub fn begin_writing() -> io::Result<()> {
    OUT.get().map_or(Ok(()), Out::begin_writing)
}

/// Waits for the lines that are on their way, but not for long: for a process that ends.
pub fn finish() {
    if let Some(out) = OUT.get() {
        // Without a thread the lines are lost, and there is no other way to report that.
        let _ = out.begin_writing();
        out.report_dropped();
        out.queue.flush(LAST_LINES);
    }
}

/// Starts logging for the whole process, once.
///
/// # Errors
/// When logging has already been started.
pub fn start(level: Level) -> anyhow::Result<Control> {
    let stderr = io::stderr();
    let to_journal = std::env::var("JOURNAL_STREAM").is_ok_and(|stream| leads_to(stderr.as_fd(), &stream));
    let (filter, level) = reload::Layer::new(targets(level));
    let limit = Limit::default();
    let (layer, out) = match to_journal && has_journal() {
        true => (ToJournal.boxed(), Out::new(journal_writer())),
        false => {
            let colour = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            // Not through `io::stderr()`: its lock would be held while a write blocks, and a panic could not be printed.
            let file = stderr.as_fd().try_clone_to_owned().map(File::from).ok();
            (plain(|| PlainLine, colour), Out::new(plain_writer(file)))
        }
    };
    subscriber::set_global_default(Registry::default().with(layer.with_filter(filter.and(limit.clone()))))?;
    // Fails only if logging was started before, and then the line above did.
    let _ = OUT.set(out);
    Ok(Control { level, limit })
}

/// Whether journald listens. Connecting a datagram socket never waits for the process at the other end.
fn has_journal() -> bool {
    UnixDatagram::unbound().and_then(|socket| socket.connect(JOURNAL)).is_ok()
}

/// Sends lines to journald. The library sends when it is started, too, so that happens in the thread as well; until it
/// succeeds there is no journald that could take a line.
fn journal_writer() -> impl FnMut(Line) + Send {
    let mut journal = None;
    move |line| {
        if journal.is_none() {
            journal = tracing_journald::layer().ok().map(|layer| Registry::default().with(as_fields(layer)));
        }
        if let (Some(journal), Line::Journal(event)) = (&journal, line) {
            event.replay(journal);
        }
    }
}

fn plain_writer(mut stderr: Option<File>) -> impl FnMut(Line) + Send {
    move |line| {
        if let (Some(stderr), Line::Plain(text)) = (&mut stderr, line) {
            // A reader that is gone has seen enough.
            let _ = stderr.write_all(&text);
        }
    }
}

fn push(line: Line, bytes: usize) {
    if let Some(out) = OUT.get() {
        out.queue.push(line, bytes);
    }
}

/// Puts events into the queue, with their fields.
struct ToJournal;

impl<S: Subscriber> Layer<S> for ToJournal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let event = Owned::of(event);
        let bytes = event.bytes();
        push(Line::Journal(event), bytes);
    }
}

/// Puts a line into the queue. It is written to once for a line.
struct PlainLine;

impl Write for PlainLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        push(Line::Plain(line.to_vec()), line.len());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// nodelb's own lines at the level asked for, of all its packages: a target begins with this word. Of the libraries
/// underneath only what went wrong.
fn targets(level: Level) -> Targets {
    Targets::new().with_default(level.min(Level::WARN)).with_target("nodelb", level)
}

/// Whether the file is the one systemd says it connected to the journal: `JOURNAL_STREAM` is its device and inode, and
/// is inherited by programs whose output was redirected since.
fn leads_to(file: impl AsFd, journal_stream: &str) -> bool {
    let Ok(stat) = nix::sys::stat::fstat(file) else { return false };
    journal_stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}

/// Field names without a prefix; priorities as the journal's readers expect them (the library's default makes every
/// information a notice).
fn as_fields(journal: tracing_journald::Layer) -> tracing_journald::Layer {
    journal.with_field_prefix(None).with_syslog_identifier("nodelb".into()).with_priority_mappings(PriorityMappings {
        info: Priority::Informational,
        debug: Priority::Debug,
        trace: Priority::Debug,
        ..PriorityMappings::new()
    })
}

/// `TIME LEVEL message field=value`, one line each. Without the id, which is for programs.
fn plain<S, W>(writer: W, colour: bool) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer()
        .fmt_fields(WithoutId)
        .with_writer(writer)
        .with_ansi(colour)
        .with_target(false)
        .boxed()
}

/// How long a process that panics may take to say so.
const LAST_WORDS: Duration = Duration::from_secs(3);

/// From now on a panic in any thread ends the process. A task that was gone and nobody missed would be worse: systemd starts
/// another daemon, and connections go on meanwhile. A stderr that no process reads does not delay it for long.
pub fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let end = || {
            thread::sleep(LAST_WORDS);
            std::process::abort();
        };
        // Without this thread the process ends as soon as stderr takes the message.
        let _ = thread::Builder::new().spawn(end);
        finish();
        tell(panic);
        std::process::abort();
    }));
}

#[cfg(test)]
#[path = "tests/log.rs"]
mod tests;
