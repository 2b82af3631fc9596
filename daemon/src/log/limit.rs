//! Storms: of messages with one id, so many are told in a minute; the others are counted, and their number is told when the
//! minute is over. Whoever logs may therefore say each thing as it happens. What counts as news is still for them to say:
//! this is the last resort, not a reason to repeat oneself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, error, info, warn};
use tracing_subscriber::layer::{Context, Filter};

use super::messages::{self, MessageId};

/// The field that says which message it is.
pub const ID_FIELD: &str = "message_id";

/// The field that says how many lines were left out. A line that has it is told whatever there was before.
const MORE_FIELD: &str = "more";

/// So many lines of one id and level are told in a window.
pub const BURST: u32 = 100;

/// From the first line on.
pub const WINDOW: Duration = Duration::from_secs(60);

/// How often it is seen to that what was left out is told.
const BEAT: Duration = Duration::from_secs(1);

/// Which lines are alike.
type Alike = (MessageId, Level);

#[derive(Clone, Copy, Debug)]
struct Window {
    began: Duration,
    told: u32,
    left_out: u64,
}

/// Counts lines that are alike. Pure: `now` is on whichever clock the caller has.
#[derive(Debug, Default)]
pub struct Limiter {
    windows: BTreeMap<Alike, Window>,
}

impl Limiter {
    /// Whether the line is to be told; counts it.
    pub fn admit(&mut self, alike: (MessageId, Level), now: Duration) -> bool {
        let fresh = Window { began: now, told: 0, left_out: 0 };
        let window = self.windows.entry(alike).or_insert(fresh);
        if now >= window.began + WINDOW && window.left_out == 0 {
            *window = fresh;
        }
        let is_told = window.told < BURST;
        window.told += u32::from(is_told);
        window.left_out += u64::from(!is_told);
        is_told
    }

    /// What was left out in the windows that are over, and begins these anew.
    pub fn due(&mut self, now: Duration) -> Vec<((MessageId, Level), u64)> {
        let (over, open) = std::mem::take(&mut self.windows).into_iter().partition(|(_, it)| now >= it.began + WINDOW);
        self.windows = open;
        let over: BTreeMap<Alike, Window> = over;
        over.into_iter().filter(|(_, it)| it.left_out > 0).map(|(alike, it)| (alike, it.left_out)).collect()
    }
}

/// The limiter as it stands between the program and its log. Clones are one.
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
    pub(super) async fn tell(self, shutdown: impl Future<Output = ()>) {
        let mut beat = interval(BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                _ = beat.tick() => self.tell_due(),
            }
        }
    }

    fn tell_due(&self) {
        let due = self.with(|limiter, now| limiter.due(now));
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
        // Counting cannot leave it half done.
        act(&mut self.limiter.lock().unwrap_or_else(PoisonError::into_inner), self.start.elapsed())
    }
}

impl<S> Filter<S> for Limit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn callsite_enabled(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::always()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let mut seen = Seen::default();
        event.record(&mut seen);
        match seen.id {
            Some(id) if !seen.is_count => self.with(|limiter, now| limiter.admit((id, *event.metadata().level()), now)),
            _ => true,
        }
    }
}

/// What of a line matters here.
#[derive(Default)]
struct Seen {
    id: Option<MessageId>,
    is_count: bool,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            ID_FIELD => self.id = u128::from_str_radix(&format!("{value:?}"), 16).ok().map(MessageId),
            MORE_FIELD => self.is_count = true,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
