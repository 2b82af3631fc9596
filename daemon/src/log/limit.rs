//! Limits repeated lines: of lines with the same message id, and of failures with the same text, a limited number is
//! written per minute. The others are counted, and their number is logged at the end of the minute. Code may therefore
//! log each event as it happens. Code must still decide which events are new: this limit is a last resort and no reason
//! to repeat messages.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nodelb_host::messages::{self, MessageId};
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, error, info, warn};
use tracing_subscriber::layer::{Context, Filter};

pub const ID_FIELD: &str = "message_id";

/// The field with the number of lines that were left out. A line with this field is always written.
const MORE_FIELD: &str = "more";

/// The maximum number of lines with one id and level in a window.
pub const BURST: u32 = 100;

/// The maximum number of them with the same text, for warnings and errors: a repeated failure is no news.
pub const SAME: u32 = 10;

/// The length of a window, which begins with its first line.
pub const WINDOW: Duration = Duration::from_secs(60);

/// The key of similar lines.
type Alike = (MessageId, Level);

#[derive(Debug)]
struct Window {
    began: Duration,
    logged: u32,
    /// Number of written lines by the hash of their text; at most as many entries as written lines.
    same: HashMap<u64, u32>,
    left_out: u64,
}

/// Counts similar lines. Pure: `now` is on the caller's clock.
#[derive(Debug, Default)]
pub struct Limiter {
    windows: BTreeMap<Alike, Window>,
}

impl Limiter {
    /// Counts the line; returns whether to write it. `words` is the hash of its text.
    pub fn admit(&mut self, alike: (MessageId, Level), words: u64, now: Duration) -> bool {
        let fresh = || Window { began: now, logged: 0, same: HashMap::new(), left_out: 0 };
        let window = self.windows.entry(alike).or_insert_with(fresh);
        if now >= window.began + WINDOW && window.left_out == 0 {
            *window = fresh();
        }
        let (_, level) = alike;
        let may_repeat = may_repeat(level) || window.same.get(&words).is_none_or(|logged| *logged < SAME);
        if window.logged >= BURST || !may_repeat {
            window.left_out += 1;
            return false;
        }
        window.logged += 1;
        *window.same.entry(words).or_default() += 1;
        true
    }

    /// The number of lines that were left out in the windows that have ended, which start again.
    pub fn due(&mut self, now: Duration) -> Vec<((MessageId, Level), u64)> {
        let is_over = |window: &Window| now >= window.began + WINDOW;
        let over = |(alike, window): (&Alike, &Window)| {
            (is_over(window) && window.left_out > 0).then_some((*alike, window.left_out))
        };
        let due = self.windows.iter().filter_map(over).collect();
        self.windows.retain(|_, window| !is_over(window));
        due
    }
}

/// The limiter between the program and its log. All clones share it.
#[derive(Clone, Debug)]
pub struct Limit {
    limiter: Arc<Mutex<Limiter>>,
    start: Instant,
}

impl Default for Limit {
    fn default() -> Self {
        Self { limiter: Arc::default(), start: Instant::now() }
    }
}

impl Limit {
    /// Reports the lines that were left out in the windows that have ended.
    pub(super) fn report_due(&self) {
        let due = self.with(Limiter::due);
        for ((id, level), more) in due {
            let what = messages::MESSAGES.iter().find(|message| message.id == id).map_or("", |message| message.subject);
            match level {
                Level::ERROR => error!(message_id = %id, more, "{more} more like this in the last minute: {what}"),
                Level::WARN => warn!(message_id = %id, more, "{more} more like this in the last minute: {what}"),
                _ => info!(message_id = %id, more, "{more} more like this in the last minute: {what}"),
            }
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Limiter, Duration) -> T) -> T {
        // A panic cannot leave the counters in an inconsistent state.
        act(&mut self.limiter.lock().unwrap_or_else(PoisonError::into_inner), self.start.elapsed())
    }
}

impl<S> Filter<S> for Limit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let level = *event.metadata().level();
        let mut seen = Seen { has_text: !may_repeat(level), ..Seen::default() };
        event.record(&mut seen);
        match seen.id {
            Some(id) if !seen.is_count => {
                let alike = (id, level);
                self.with(|limiter, now| limiter.admit(alike, seen.words.finish(), now))
            }
            _ => true,
        }
    }
}

/// Whether lines of the level with the same text are not limited.
fn may_repeat(level: Level) -> bool {
    level > Level::WARN
}

/// The parts of a line that the limiter uses.
#[derive(Default)]
struct Seen {
    /// Whether the text is one of them. To format it costs more than everything else.
    has_text: bool,
    id: Option<MessageId>,
    is_count: bool,
    words: DefaultHasher,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            ID_FIELD => self.id = u128::from_str_radix(&format!("{value:?}"), 16).ok().map(MessageId),
            MORE_FIELD => self.is_count = true,
            _ if self.has_text => self.words.write(format!("{value:?}").as_bytes()),
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "tests/limit.rs"]
mod tests;
