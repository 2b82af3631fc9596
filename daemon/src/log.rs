//! Where log lines go: to the journal with fields (`SERVICE=`, `FRONTEND=`, `MESSAGE_ID=`) when stderr leads there, as
//! plain lines to stderr otherwise. Owns the subscriber, its level, and how many lines of a kind there may be in a minute
//! ([`limit`]); what is worth a line is for others to say, what it means is said in [`messages`].
//!
//! A field of an event, such as `tracing::info!(service = %name, "...")`, becomes the journal field of the same name
//! in capitals.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use tracing::{Level, Subscriber, subscriber};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::filter::{FilterExt, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, reload};

use fields::WithoutId;
use limit::Limit;

mod fields;
pub mod limit;
pub mod messages;

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

    /// Says how many lines were left out because there were too many like them, until `shutdown`.
    pub async fn tell_left_out(self, shutdown: impl Future<Output = ()>) {
        self.limit.tell(shutdown).await;
    }
}

/// Starts logging for the whole process, once.
///
/// # Errors
/// When logging has already been started.
pub fn start(level: Level) -> anyhow::Result<Control> {
    let stderr = io::stderr();
    let to_journal = std::env::var("JOURNAL_STREAM").is_ok_and(|stream| leads_to(stderr.as_fd(), &stream));
    let journal = if to_journal { tracing_journald::layer().ok() } else { None };
    let (filter, level) = reload::Layer::new(targets(level));
    let limit = Limit::default();
    let layer = match journal {
        Some(journal) => as_fields(journal).boxed(),
        None => {
            let colour = stderr.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            plain(io::stderr, colour)
        }
    };
    subscriber::set_global_default(Registry::default().with(layer.with_filter(filter.and(limit.clone()))))?;
    Ok(Control { level, limit })
}

/// nodelb's own lines at the level asked for; of the libraries underneath only what went wrong.
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

/// Writes to stderr what cannot wait for a subscriber: why the program ends. The one place that does.
pub fn last_words(message: &str) {
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(io::stderr().lock(), "nodelb: {message}");
}

#[cfg(test)]
mod tests;
