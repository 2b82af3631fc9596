//! `?watch`: an answer that continues with every change, as lines for people and as events for programs. Owns the pace:
//! it looks for changes after the reader has taken the previous ones, at most once per [`PACE`]. A slow reader
//! therefore skips to the newest state, and nothing queues up for it. A [`ChangeStream`] finds the
//! changes and holds no rows: it compares the last written snapshot with the newest, at a cost that depends only on what
//! has changed.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use nodelb_core::history::{History, Record};
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::calendar::utc;
use nodelb_core::model::service::{FrontendKind, ServiceName};
use nodelb_core::snapshot::Snapshot;
use nodelb_report::explain::changed::{ChangedServices, changed_services};
use nodelb_report::explain::reports;
use nodelb_report::explain::rows::FrontendReport;
use nodelb_report::filter::Filter;
use nodelb_report::output::table::{Lines, Style, Table};
use nodelb_report::rows::{self, FrontendRow, HistoryRow, PacketRow};
use nodelb_report::time::Clocks;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until};

use super::changes::{AnyRow, Change, Mark};
use super::history;
use super::packets::Packets;
use super::query::{Output, Query};
use super::response::with_room;
use super::state::AdminState;

/// Minimum time between two looks for changes.
const PACE: Duration = Duration::from_millis(100);
/// After this time without a change, a comment shows that the stream is alive, if the format has comments.
const HEARTBEAT: Duration = Duration::from_secs(15);

const STYLE: Style = Style { width: None, wide: false, is_stream: true, colour: false, zone: None };

pub(super) struct OutputFormat {
    pub(super) output: Output,
    /// The last event that the reader has seen, from its `Last-Event-ID` header.
    pub(super) resumed: Option<u64>,
    pub(super) clock: Arc<dyn Fn() -> Clocks + Send + Sync>,
}

/// The limits that one stream shares with others, and its own slot.
pub(super) struct StreamLimits {
    /// One stream looks for changes at a time.
    pub(super) turn: Arc<Semaphore>,
    pub(super) unread: Arc<Semaphore>,
    pub(super) _place: OwnedSemaphorePermit,
}

/// Returns the body of an answer that continues until the reader leaves or `stop` becomes true.
pub(super) fn body(
    mut feed: ChangeStream,
    output_format: OutputFormat,
    limits: StreamLimits,
    stop: watch::Receiver<bool>,
) -> Body {
    let lines = match output_format.resumed {
        // Only the history can be resumed.
        Some(last) if feed.resume(last) => {
            let now = (output_format.clock)();
            Some(List::History(Vec::new()).table(now).write_lines(&mut String::new()))
        }
        _ => None,
    };
    let writer = StreamWriter { feed, output_format, lines, reported: 0 };
    let stream = Following { writer: Some(writer), limits, stop, last: Instant::now() };
    Body::from_stream(stream::unfold(stream, Following::next))
}

struct Following {
    /// `None` while it looks for changes.
    writer: Option<StreamWriter>,
    limits: StreamLimits,
    stop: watch::Receiver<bool>,
    /// The time of the last write.
    last: Instant,
}

impl Following {
    /// Returns the next piece; `None` at the end.
    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        loop {
            if self.writer.as_ref()?.lines.is_some() && !self.wait_until_due().await? {
                self.last = Instant::now();
                return Some((Ok(Bytes::from_static(b":\n\n")), self));
            }
            let text = self.render().await?;
            if !text.is_empty() {
                self.last = Instant::now();
                // If other readers leave too much unread, the stream ends; its reader reconnects and starts again.
                let piece = with_room(text, &self.limits.unread)?;
                return Some((Ok(piece), self));
            }
        }
    }

    /// Waits. Returns `true` for possible changes, `false` if a sign of life is due, and `None` at the end.
    async fn wait_until_due(&mut self) -> Option<bool> {
        let earliest = self.last + PACE;
        let writer = self.writer.as_mut()?;
        let beats = writer.output_format.output == Output::Sse;
        let stopped = async {
            // An error: the server has ended.
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
            let list = self.feed.list(now);
            let mut text = String::new();
            self.lines = Some(list.table(now).write_lines(&mut text));
            match self.output_format.output {
                Output::Text => out = text,
                Output::Json | Output::Sse => {
                    let (id, json) = (self.feed.number(), serde_json::to_string(&list)?);
                    self.push_event("table", id, &json, &mut out);
                }
            }
            return Ok(out);
        }
        for change in self.feed.changes(now) {
            match self.output_format.output {
                Output::Text => self.push_line(&change, now, &mut out),
                Output::Json | Output::Sse => {
                    let row = serde_json::to_string(&change.row)?;
                    self.push_event(change.mark.into(), change.number, &row, &mut out);
                }
            }
        }
        Ok(out)
    }

    fn push_line(&self, change: &Change, now: Clocks, out: &mut String) {
        let Some(lines) = &self.lines else { return };
        if let AnyRow::Lost(lost) = &change.row {
            out.push_str(&lost.line());
            return;
        }
        out.push(change.mark.sign());
        out.push(' ');
        out.push_str(&utc(now.time.seconds()).unwrap_or_default());
        out.push_str("  ");
        lines.push_row(&change.row.cells(now), out);
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

/// All rows of a stream.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum List {
    Frontends(Vec<FrontendRow>),
    History(Vec<HistoryRow>),
    /// Always empty: no packet is known before it passes.
    Packets(Vec<PacketRow>),
}

impl List {
    fn table(&self, now: Clocks) -> Table {
        match self {
            Self::Frontends(rows) => rows::table(rows, now.time, &STYLE),
            Self::History(rows) => HistoryRow::table(rows, now.time, &STYLE),
            Self::Packets(rows) => rows::table(rows, now.time, &STYLE),
        }
    }
}

/// The rows or records that a stream follows.
pub(super) enum ChangeStream {
    Frontends(Frontends),
    History(Records),
    Packets(Packets),
}

impl ChangeStream {
    pub(super) fn frontends(state: &AdminState, query: &Query) -> Self {
        let snapshots = state.owner.snapshot.clone();
        let reported = Arc::clone(&snapshots.borrow());
        Self::Frontends(Frontends { snapshots, reported, filter: query.filter.clone() })
    }

    pub(super) fn history(state: &AdminState, query: &Query) -> Self {
        let (histories, snapshots) = (state.recorder.history.clone(), state.owner.snapshot.clone());
        Self::History(Records { histories, snapshots, reported: 0, filter: query.filter.clone() })
    }

    pub(super) fn packets(state: &AdminState, query: &Query) -> Self {
        Self::Packets(Packets::new(state, query))
    }

    /// Continues after the change with this number, without the changes up to it. Returns `false` where changes have no
    /// number, or if no change has this number yet: it then comes from another history.
    pub(super) fn resume(&mut self, after: u64) -> bool {
        let Self::History(records) = self else { return false };
        if after > records.histories.borrow().last() {
            return false;
        }
        records.reported = after;
        // There may already be new records.
        records.histories.mark_changed();
        true
    }

    /// Waits until there may be changes; `false` if there will be none.
    pub(super) async fn changed(&mut self) -> bool {
        match self {
            Self::Frontends(frontends) => frontends.snapshots.changed().await.is_ok(),
            Self::History(records) => records.histories.changed().await.is_ok(),
            Self::Packets(packets) => packets.changed().await,
        }
    }

    pub(super) fn list(&mut self, now: Clocks) -> List {
        match self {
            Self::Frontends(frontends) => List::Frontends(frontends.list(now)),
            Self::History(records) => List::History(history::rows(&records.unsent())),
            Self::Packets(_) => List::Packets(Vec::new()),
        }
    }

    /// Returns the changes since the last call of this function or of [`Self::list`].
    pub(super) fn changes(&mut self, now: Clocks) -> Vec<Change> {
        match self {
            Self::Frontends(frontends) => frontends.changes(now),
            Self::History(records) => records.changes(),
            Self::Packets(packets) => packets.changes(),
        }
    }

    /// Returns the number of the last change that [`Self::list`] includes, where changes have numbers.
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Frontends(_) | Self::Packets(_) => None,
            Self::History(records) => Some(records.reported),
        }
    }
}

/// Follows the rows of `/frontends`.
pub(super) struct Frontends {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    reported: Arc<Snapshot>,
    filter: Filter,
}

type Key = (L4Addr, ServiceName, Arc<str>, FrontendKind);

impl Frontends {
    fn list(&mut self, now: Clocks) -> Vec<FrontendRow> {
        self.reported = Arc::clone(&self.snapshots.borrow_and_update());
        let rows = reports::frontends(&self.reported, &self.filter).into_iter();
        rows.map(|row| FrontendRow::new(row, now)).collect()
    }

    fn changes(&mut self, now: Clocks) -> Vec<Change> {
        let newest = Arc::clone(&self.snapshots.borrow_and_update());
        let before = std::mem::replace(&mut self.reported, newest);
        let differs = changed_services(&before, &self.reported);
        let mut old = self.rows(&before, &differs);
        let mut changes = Vec::new();
        for (key, row) in self.rows(&self.reported, &differs) {
            let mark = match old.remove(&key) {
                None => Mark::Added,
                Some(was) if reads_the_same(&was, &row) => continue,
                Some(_) => Mark::Changed,
            };
            changes.push((key, mark, row));
        }
        changes.extend(old.into_iter().map(|(key, row)| (key, Mark::Removed, row)));
        changes.sort_by(|(left, ..), (right, ..)| left.cmp(right));
        let row = |report| AnyRow::Frontend(FrontendRow::new(report, now).into());
        changes.into_iter().map(|(_, mark, report)| Change { mark, number: None, row: row(report) }).collect()
    }

    /// Returns the rows that may have changed, by their key.
    fn rows(&self, snapshot: &Snapshot, differs: &ChangedServices) -> BTreeMap<Key, FrontendReport> {
        let rows = match differs {
            ChangedServices::All => reports::frontends(snapshot, &self.filter),
            ChangedServices::Services(names) => {
                let meant = |name: &&ServiceName| self.filter.service.as_ref().is_none_or(|wanted| wanted == *name);
                let filters = names.iter().filter(meant).map(|name| {
                    let service = Some(name.clone());
                    Filter { service, ..self.filter.clone() }
                });
                filters.flat_map(|filter| reports::frontends(snapshot, &filter)).collect()
            }
        };
        rows.into_iter().map(|row| ((row.address, row.service.clone(), Arc::clone(&row.port), row.kind), row)).collect()
    }
}

/// Follows the records of `/history`.
pub(super) struct Records {
    histories: watch::Receiver<Arc<History>>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    reported: u64,
    filter: Filter,
}

impl Records {
    /// Returns the records since the last call.
    fn unsent(&mut self) -> Vec<Arc<Record>> {
        let histories = Arc::clone(&self.histories.borrow_and_update());
        let snapshot = Arc::clone(&self.snapshots.borrow());
        let mut records = history::select(&histories, &snapshot, &self.filter);
        records.retain(|record| record.sequence > self.reported);
        self.reported = self.reported.max(histories.last());
        records
    }

    fn changes(&mut self) -> Vec<Change> {
        let change = |record: Arc<Record>| Change {
            mark: Mark::Added,
            number: Some(record.sequence),
            row: AnyRow::History(HistoryRow::from(&*record).into()),
        };
        self.unsent().into_iter().map(change).collect()
    }
}

/// Compares without the age, which changes in every row.
fn reads_the_same(was: &FrontendReport, is: &FrontendReport) -> bool {
    FrontendReport { since: is.since, ..was.clone() } == *is
}

#[cfg(test)]
#[path = "tests/follow.rs"]
mod tests;
