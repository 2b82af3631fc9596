//! `?watch`: an answer that goes on with every change, as lines for people and as events for programs. Owns the pace: news
//! is looked for when the reader has taken what there was, and not more often than every [`PACE`]. So a slow reader skips
//! to the newest state, and nothing queues up for it. What the news is, a [`Feed`] tells.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use nodelb_core::model::calendar::utc;
use nodelb_core::output::table::{Cell, Lines, Page, Style, row_to_json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until};

use super::query::Output;
use super::response::with_room;
use super::state::Now;

mod feed;

use feed::Change;
pub(super) use feed::Feed;

/// The least time between two looks for news.
const PACE: Duration = Duration::from_millis(100);
/// After so much silence a comment shows that the stream is alive, where there are comments.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How the reader wants it.
pub(super) struct Manner {
    pub(super) output: Output,
    pub(super) style: Style,
    /// The last event it has seen, by its `Last-Event-ID` header.
    pub(super) resumed: Option<u64>,
    pub(super) clock: Arc<dyn Fn() -> Now + Send + Sync>,
}

/// What one stream shares with others, and its own place among them.
pub(super) struct Limits {
    /// One stream looks for news at a time.
    pub(super) turn: Arc<Semaphore>,
    pub(super) unread: Arc<Semaphore>,
    pub(super) _place: OwnedSemaphorePermit,
}

/// The body of an answer that goes on until the reader leaves, or `stop`.
pub(super) fn body(mut feed: Feed, manner: Manner, limits: Limits, stop: watch::Receiver<bool>) -> Body {
    let lines = match manner.resumed {
        Some(last) if feed.resume(last) => Some(feed.nothing().write_lines(&manner.style, &mut String::new())),
        _ => None,
    };
    let teller = Teller { feed, manner, lines, told: 0 };
    let stream = Following { teller: Some(teller), limits, stop, last: Instant::now() };
    Body::from_stream(stream::unfold(stream, Following::next))
}

struct Following {
    /// Is away while it looks for news.
    teller: Option<Teller>,
    limits: Limits,
    stop: watch::Receiver<bool>,
    /// When something was last written.
    last: Instant,
}

impl Following {
    /// The next piece; `None` at the end.
    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        loop {
            if self.teller.as_ref()?.lines.is_some() && !self.is_due().await? {
                self.last = Instant::now();
                return Some((Ok(Bytes::from_static(b":\n\n")), self));
            }
            let text = self.tell().await?;
            if !text.is_empty() {
                self.last = Instant::now();
                // A reader that others leave no room for comes back, and begins anew.
                let piece = with_room(text, &self.limits.unread)?;
                return Some((Ok(piece), self));
            }
        }
    }

    /// Waits for news, which is `true`, or for the time to show that nothing has happened; `None` at the end.
    async fn is_due(&mut self) -> Option<bool> {
        let earliest = self.last + PACE;
        let teller = self.teller.as_mut()?;
        let beats = teller.manner.output == Output::Sse;
        let stopped = async {
            // An error means that the server is gone.
            let _ = self.stop.wait_for(|stop| *stop).await;
        };
        let is_due = tokio::select! {
            () = stopped => None,
            there_is = teller.feed.news() => there_is.then_some(true),
            () = sleep_until(self.last + HEARTBEAT), if beats => Some(false),
        };
        if is_due == Some(true) {
            sleep_until(earliest).await;
        }
        is_due
    }

    /// Looks for news beside the workers: there may be much.
    async fn tell(&mut self) -> Option<String> {
        let turn = Arc::clone(&self.limits.turn).acquire_owned().await.ok()?;
        let mut teller = self.teller.take()?;
        let telling = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let text = teller.tell();
            (teller, text)
        });
        let (teller, text) = telling.await.ok()?;
        self.teller = Some(teller);
        text.ok()
    }
}

/// Puts into words what a feed tells.
struct Teller {
    feed: Feed,
    manner: Manner,
    /// How further lines are aligned; `None` until the table has been told.
    lines: Option<Lines>,
    /// How many events.
    told: u64,
}

impl Teller {
    /// First everything, then what is new.
    fn tell(&mut self) -> serde_json::Result<String> {
        let now = (self.manner.clock)();
        let mut out = String::new();
        if self.lines.is_none() {
            let table = self.feed.table(now);
            let mut text = String::new();
            self.lines = Some(table.write_lines(&self.manner.style, &mut text));
            match self.manner.output {
                Output::Text => out = text,
                Output::Json | Output::Sse => {
                    let id = self.feed.number();
                    let page = Page::from(table).to_json()?;
                    self.push_event("table", id, page.trim_end(), &mut out);
                }
            }
            return Ok(out);
        }
        for change in self.feed.changes(now) {
            self.push(&change, now, &mut out)?;
        }
        Ok(out)
    }

    fn push(&mut self, change: &Change, now: Now, out: &mut String) -> serde_json::Result<()> {
        match self.manner.output {
            Output::Text => {
                self.push_line(change, now, out);
                Ok(())
            }
            Output::Json | Output::Sse => {
                let row = row_to_json(self.feed.shape(), &change.row)?;
                self.push_event(change.mark.name(), change.number, &row, out);
                Ok(())
            }
        }
    }

    fn push_line(&self, change: &Change, now: Now, out: &mut String) {
        let Some(lines) = &self.lines else { return };
        out.push(change.mark.sign());
        out.push(' ');
        out.push_str(&utc(now.unix).unwrap_or_default());
        out.push_str("  ");
        lines.push_row(&change.row, out);
    }

    /// `number` is the feed's own; a feed without gets the stream's.
    fn push_event(&mut self, name: &str, number: Option<u64>, data: &str, out: &mut String) {
        let id = number.unwrap_or(self.told);
        self.told += 1;
        let event = match self.manner.output {
            Output::Sse => format!("id: {id}\nevent: {name}\ndata: {data}\n\n"),
            _ => format!("{{\"id\":{id},\"event\":\"{name}\",\"data\":{data}}}\n"),
        };
        out.push_str(&event);
    }
}

/// What a change's row is made of.
pub(super) type Cells = Vec<Cell>;
