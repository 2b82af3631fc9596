//! Writes log lines: to the journal with fields (`SERVICE=`, `FRONTEND=`, `MESSAGE_ID=`) if stderr is connected to it,
//! otherwise as plain lines to stderr. Owns the subscriber, its level, and the limit of similar lines per minute
//! ([`limit`]). Other modules decide what to log; [`nodelb_host::messages`] documents what the messages mean.
//!
//! Logging never waits: a line goes through a bounded [`queue`] to a separate thread, which alone waits for journald or
//! for the reader of stderr. That thread starts after the capabilities are dropped ([`begin_writing`]), because
//! capabilities belong to threads; lines wait until then.
//!
//! A field of an event, such as `tracing::info!(service = %name, "...")`, becomes the journal field of the same name
//! in capitals.

use std::error::Error;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{fmt, io, thread};

use limit::{ID_FIELD, Limit};
use nodelb_host::clock::{ticking, until};
use nodelb_host::messages;
use nodelb_report::output::wrap::printable;
use owned::Owned;
use queue::Queue;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, subscriber, warn};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::field::{MakeVisitor, VisitFmt, VisitOutput};
use tracing_subscriber::filter::{FilterExt, LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, reload};

pub mod limit;
mod owned;
mod queue;

/// The socket where journald receives messages with fields.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// How long a process that ends waits for its last lines to be written, and then for its last message.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The interval of the check for lines that were left out or dropped.
const TICK: Duration = Duration::from_secs(1);

enum LogLine {
    Plain(Vec<u8>),
    Journal(Owned),
}

/// Writes a line; may block.
type WriteLine = Box<dyn FnMut(LogLine) + Send>;

/// The output of all lines of the process.
struct Out {
    queue: Queue<LogLine>,
    /// The function that writes a line; the thread takes it when it starts.
    write: Mutex<Option<WriteLine>>,
    /// Number of dropped lines that were reported.
    reported: AtomicU64,
}

static OUT: OnceLock<Out> = OnceLock::new();

#[derive(Clone, Debug)]
pub struct Control {
    level: reload::Handle<Targets, Registry>,
    limit: Limit,
}

impl Control {
    /// From now on logs lines of this level and more severe ones.
    pub fn set(&self, level: Level) {
        // Fails only if the subscriber no longer exists; then nothing can be logged.
        let _ = self.level.reload(targets(level));
    }

    /// Until `shutdown`, reports how many lines were left out because there were too many similar ones, and how many
    /// because no process read them.
    pub async fn report_suppressed(self, shutdown: impl Future<Output = ()>) {
        let mut tick = ticking(TICK);
        let reporting = async {
            loop {
                tick.tick().await;
                self.limit.report_due();
                if let Some(out) = OUT.get().filter(|out| out.queue.has_room()) {
                    out.report_dropped();
                }
            }
        };
        until(shutdown, reporting).await;
    }
}

/// The number of lines that were dropped because journald or the reader of stderr did not read them.
pub fn dropped_lines() -> u64 {
    OUT.get().map_or(0, |out| out.queue.dropped())
}

impl Out {
    fn new(write: impl FnMut(LogLine) + Send + 'static) -> Self {
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
                lines, "dropped {lines} log lines: journald, or the reader of stderr, was too slow"
            );
        }
    }
}

/// Starts the thread that writes lines. Must be called after the capabilities are dropped: a thread keeps those that it
/// starts with.
pub fn begin_writing() -> io::Result<()> {
    OUT.get().map_or(Ok(()), Out::begin_writing)
}

/// Waits for pending lines for a short time. For a process that ends.
pub fn finish() {
    if let Some(out) = OUT.get() {
        // Without a thread the lines are lost, and nothing else can report that.
        let _ = out.begin_writing();
        out.report_dropped();
        out.queue.flush(LAST_LINES);
    }
}

/// Starts logging for the whole process, once.
///
/// # Errors
/// If logging has been started before.
pub fn start(level: Level) -> anyhow::Result<Control> {
    let stderr = io::stderr();
    let to_journal = std::env::var("JOURNAL_STREAM").is_ok_and(|stream| leads_to(stderr.as_fd(), &stream));
    let (filter, level) = reload::Layer::new(targets(level));
    let limit = Limit::default();
    let (layer, out) = match to_journal && has_journal() {
        true => (ToJournal.boxed(), Out::new(journal_writer())),
        false => {
            let colour = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            // Not `io::stderr()`: a blocked write would hold its lock, and a panic could not be printed.
            let file = stderr.as_fd().try_clone_to_owned().map(File::from).ok();
            (plain(|| PlainLine, colour), Out::new(plain_writer(file)))
        }
    };
    subscriber::set_global_default(Registry::default().with(layer.with_filter(filter.and(limit.clone()))))?;
    // Fails only if logging was started before; then the line above has failed too.
    let _ = OUT.set(out);
    Ok(Control { level, limit })
}

/// Whether journald listens. Connecting a datagram socket never waits for the receiving process.
fn has_journal() -> bool {
    listens(Path::new(JOURNAL))
}

fn listens(path: &Path) -> bool {
    UnixDatagram::unbound().and_then(|socket| socket.connect(path)).is_ok()
}

fn wait_for(path: &Path) {
    while !listens(path) {
        thread::sleep(JOURNAL_AGAIN);
    }
}

/// How long the thread of the lines waits before it looks for journald again.
const JOURNAL_AGAIN: Duration = Duration::from_millis(100);

/// Sends lines to journald. Starting the library sends a message too, so the thread does that as well. While there is no
/// journald, lines wait in the queue, which counts those that it has no room for: the library drops them without a word.
fn journal_writer() -> impl FnMut(LogLine) + Send {
    let mut journal = None;
    move |line| {
        wait_for(Path::new(JOURNAL));
        if journal.is_none() {
            journal = tracing_journald::layer().ok().map(|layer| Registry::default().with(as_fields(layer)));
        }
        if let (Some(journal), LogLine::Journal(event)) = (&journal, line) {
            event.replay(journal);
        }
    }
}

fn plain_writer(mut stderr: Option<File>) -> impl FnMut(LogLine) + Send {
    move |line| {
        if let (Some(stderr), LogLine::Plain(text)) = (&mut stderr, line) {
            // The reader has closed the pipe; nothing can be reported.
            let _ = stderr.write_all(&text);
        }
    }
}

fn push(line: LogLine, bytes: usize) {
    if let Some(out) = OUT.get() {
        out.queue.push(line, bytes);
    }
}

/// Puts events with their fields into the queue.
struct ToJournal;

impl<S: Subscriber> Layer<S> for ToJournal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let event = Owned::new(event);
        let bytes = event.bytes;
        push(LogLine::Journal(event), bytes);
    }
}

/// Puts a line into the queue. Each line is one write.
struct PlainLine;

impl Write for PlainLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        push(LogLine::Plain(line.to_vec()), line.len());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The filter: lines of all nodelb's packages at the given level, by the first word of their target. Of other libraries
/// only warnings and errors; nothing of kube, which logs responses that it cannot decode.
fn targets(level: Level) -> Targets {
    let targets = Targets::new().with_default(level.min(Level::WARN)).with_target("nodelb", level);
    targets.with_target("kube_client", LevelFilter::OFF)
}

/// Whether the file is the one that systemd connected to the journal: `JOURNAL_STREAM` contains its device and inode.
/// Programs inherit the variable even if their output was redirected later.
fn leads_to(file: impl AsFd, journal_stream: &str) -> bool {
    let Ok(stat) = nix::sys::stat::fstat(file) else { return false };
    journal_stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}

/// Fields without a prefix, and the usual priorities of the journal (the library's default maps info to notice).
fn as_fields(journal: tracing_journald::Layer) -> tracing_journald::Layer {
    journal.with_field_prefix(None).with_syslog_identifier("nodelb".into()).with_priority_mappings(PriorityMappings {
        info: Priority::Informational,
        debug: Priority::Debug,
        trace: Priority::Debug,
        ..PriorityMappings::new()
    })
}

/// `TIME LEVEL message field=value`, one line each, without the message id, which is for programs.
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

/// How long the message of a panic may take to be written.
const STDERR_TIMEOUT: Duration = Duration::from_secs(3);

/// Makes a panic in any thread end the process. A missing task that no other task notices would be worse: systemd
/// starts another daemon, and connections continue meanwhile. If no process reads stderr, the end is delayed only for a
/// short time.
pub fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let end = || {
            thread::sleep(STDERR_TIMEOUT);
            std::process::abort();
        };
        // Without this thread the process ends as soon as stderr accepts the message.
        let _ = thread::Builder::new().spawn(end);
        finish();
        report(panic);
        std::process::abort();
    }));
}

/// Formats fields as usual, but omits the message id, and escapes what would forge a line or control a terminal: names of
/// files and texts of other programs are in the fields.
#[derive(Clone, Copy, Debug)]
struct WithoutId;

impl<'w> MakeVisitor<Writer<'w>> for WithoutId {
    type Visitor = Visible<'w>;

    fn make_visitor(&self, target: Writer<'w>) -> Visible<'w> {
        Visible(DefaultVisitor::new(target, true))
    }
}

/// See [`WithoutId`].
#[derive(Debug)]
struct Visible<'w>(DefaultVisitor<'w>);

impl Visit for Visible<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() != ID_FIELD && !text.is_empty() {
            self.0.record_debug(field, &format_args!("{}", printable(&text)));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if !value.is_empty() {
            self.0.record_str(field, &printable(value));
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.0.record_debug(field, &format_args!("{}", printable(&value.to_string())));
    }
}

impl VisitOutput<fmt::Result> for Visible<'_> {
    fn finish(self) -> fmt::Result {
        self.0.finish()
    }
}

impl VisitFmt for Visible<'_> {
    fn writer(&mut self) -> &mut dyn fmt::Write {
        self.0.writer()
    }
}

#[cfg(test)]
#[path = "tests/log.rs"]
mod tests;
