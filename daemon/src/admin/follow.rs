//! `?watch`: an answer that continues with every change, as lines for people and as events for programs. Owns the pace:
//! it looks for changes after the reader has taken the previous ones, at most once per [`PACE`]. A slow reader
//! therefore skips to the newest state, and nothing queues up for it. A [`ChangeStream`] finds the changes.

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

mod change_stream;

use change_stream::Change;
pub(super) use change_stream::ChangeStream;

/// Minimum time between two looks for changes.
const PACE: Duration = Duration::from_millis(100);
/// Time without a change after which a comment shows that the stream is alive, if the format has comments.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The format that the reader wants.
pub(super) struct OutputFormat {
    pub(super) output: Output,
    pub(super) style: Style,
    /// The last event that the reader has seen, from its `Last-Event-ID` header.
    pub(super) resumed: Option<u64>,
    pub(super) clock: Arc<dyn Fn() -> Now + Send + Sync>,
}

/// The limits that one stream shares with others, and its own place.
pub(super) struct Limits {
    /// One stream looks for changes at a time.
    pub(super) turn: Arc<Semaphore>,
    pub(super) unread: Arc<Semaphore>,
    pub(super) _place: OwnedSemaphorePermit,
}

/// Returns the body of an answer that continues until the reader leaves or `stop` becomes true.
pub(super) fn body(
    mut feed: ChangeStream,
    output_format: OutputFormat,
    limits: Limits,
    stop: watch::Receiver<bool>,
) -> Body {
    let lines = match output_format.resumed {
        Some(last) if feed.resume(last) => Some(feed.nothing().write_lines(&output_format.style, &mut String::new())),
        _ => None,
    };
    let writer = StreamWriter { feed, output_format, lines, reported: 0 };
    let stream = Following { writer: Some(writer), limits, stop, last: Instant::now() };
    Body::from_stream(stream::unfold(stream, Following::next))
}

struct Following {
    /// `None` while it looks for changes.
    writer: Option<StreamWriter>,
    limits: Limits,
    stop: watch::Receiver<bool>,
    /// The time of the last write.
    last: Instant,
}

impl Following {
    /// Returns the next piece; `None` at the end.
    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        loop {
            if self.writer.as_ref()?.lines.is_some() && !self.is_due().await? {
                self.last = Instant::now();
                return Some((Ok(Bytes::from_static(b":\n\n")), self));
            }
            let text = self.render().await?;
            if !text.is_empty() {
                self.last = Instant::now();
                // If other readers leave no room, the stream ends; its reader reconnects and starts again.
                let piece = with_room(text, &self.limits.unread)?;
                return Some((Ok(piece), self));
            }
        }
    }

    /// Waits. Returns `true` for possible changes, `false` if a sign of life is due, and `None` at the end.
    async fn is_due(&mut self) -> Option<bool> {
        let earliest = self.last + PACE;
        let writer = self.writer.as_mut()?;
        let beats = writer.output_format.output == Output::Sse;
        let stopped = async {
            // An error means that the server is gone.
            let _ = self.stop.wait_for(|stop| *stop).await;
        };
        let is_due = tokio::select! {
            () = stopped => None,
            there_is = writer.feed.changed() => there_is.then_some(true),
            () = sleep_until(self.last + HEARTBEAT), if beats => Some(false),
        };
        if is_due == Some(true) {
            sleep_until(earliest).await;
        }
        is_due
    }

    /// Looks for changes outside the runtime's workers, because there may be many.
    async fn render(&mut self) -> Option<String> {
        let turn = Arc::clone(&self.limits.turn).acquire_owned().await.ok()?;
        let mut writer = self.writer.take()?;
        let telling = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let text = writer.render();
            (writer, text)
        });
        let (writer, text) = telling.await.ok()?;
        self.writer = Some(writer);
        text.ok()
    }
}

/// Writes the output of a feed as text or events.
struct StreamWriter {
    feed: ChangeStream,
    output_format: OutputFormat,
    /// The alignment of further lines; `None` until the table has been written.
    lines: Option<Lines>,
    /// The number of events so far.
    reported: u64,
}

impl StreamWriter {
    /// Returns all rows at first, and then the changes.
    fn render(&mut self) -> serde_json::Result<String> {
        let now = (self.output_format.clock)();
        let mut out = String::new();
        if self.lines.is_none() {
            let table = self.feed.table(now);
            let mut text = String::new();
            self.lines = Some(table.write_lines(&self.output_format.style, &mut text));
            match self.output_format.output {
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
        match self.output_format.output {
            Output::Text => {
                self.push_line(change, now, out);
                Ok(())
            }
            Output::Json | Output::Sse => {
                let row = row_to_json(self.feed.schema(), &change.row)?;
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

    /// `number` is the feed's own number; without one, the event gets the stream's.
    fn push_event(&mut self, name: &str, number: Option<u64>, data: &str, out: &mut String) {
        let id = number.unwrap_or(self.reported);
        self.reported += 1;
        let event = match self.output_format.output {
            Output::Sse => format!("id: {id}\nevent: {name}\ndata: {data}\n\n"),
            _ => format!("{{\"id\":{id},\"event\":\"{name}\",\"data\":{data}}}\n"),
        };
        out.push_str(&event);
    }
}

/// The cells of a changed row.
pub(super) type Cells = Vec<Cell>;
