//! The events of the web page: what `/services`, `/status`, `/history` and other routes show, all at first and then only
//! what changes. The hub computes each event once and sends the same bytes to every page, so that 50 open pages cost
//! about as much as one. It does nothing while no page is open.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::stream;
use nodelb_core::model::service::ServiceName;
use nodelb_core::snapshot::Snapshot;
use nodelb_host::clock::until;
use nodelb_report::explain::changed::{ChangedServices, changed_services};
use nodelb_report::explain::reports;
use nodelb_report::filter::Filter;
use nodelb_report::rows::{Counters, HistoryRow, RateRow, Rates, ServiceRow, described};
use nodelb_report::status_report::StatusReport;
use nodelb_report::time::{Clocks, Time};
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, OwnedSemaphorePermit, broadcast, watch};
use tokio::time::{Instant, sleep_until};

use super::super::state::AdminState;
use super::super::{counters, history, maps, status, tables};

/// Minimum time between two looks for changes.
const PACE: Duration = Duration::from_millis(250);
/// Time between two looks at what nothing announces, such as problems and the usage of maps. A page that receives
/// nothing for longer knows that the daemon does not respond.
const BEAT: Duration = Duration::from_secs(2);
/// Minimum time between two counts of connections: a rate over less is that of a moment.
const COUNT: Duration = Duration::from_secs(1);
/// The number of messages that a page may be behind. One that is further behind gets everything again.
const BACKLOG: usize = 64;
/// The maximum number of bytes that a page is sent at once: the server keeps them until the client has read them.
const PIECE: usize = 64 * 1024;
/// The maximum number of records in one message.
const RECORDS: usize = 200;

/// Computes the messages for all pages.
pub(in crate::admin) struct Hub {
    state: Arc<AdminState>,
    sent: Mutex<Sent>,
    messages: broadcast::Sender<Bytes>,
    joined: Notify,
    started: Time,
}

/// What the pages know.
#[derive(Default)]
struct Sent {
    snapshot: Arc<Snapshot>,
    /// The sequence number of the last record.
    record: u64,
    /// The last event of each kind that has no parts.
    wholes: BTreeMap<&'static str, String>,
    /// The number of connections by service port, and when they were counted.
    counts: Counters,
    counted: Option<Instant>,
    /// The message with everything, for new pages; `None` after a change.
    all: Option<Bytes>,
}

/// The event `services`.
#[derive(Serialize)]
struct Services {
    /// Whether these are all services.
    all: bool,
    /// The names of those that differ. One without a row was removed.
    changed: Vec<String>,
    rows: Vec<PageRow>,
}

/// A row of `/services`, with what the page shows and searches in addition.
#[derive(Serialize)]
struct PageRow {
    #[serde(flatten)]
    service: ServiceRow,
    addresses: Vec<String>,
    backend_addresses: BTreeSet<String>,
}

/// The event `rates`.
#[derive(Serialize)]
struct PageRates {
    /// Whether connections are counted.
    is_counting: bool,
    /// The services with new connections, and how many per second.
    rates: Vec<RateRow>,
}

/// The event `history`: the newest record last.
#[derive(Serialize)]
struct Records {
    /// Whether the page is to forget earlier ones.
    all: bool,
    rows: Vec<HistoryRow>,
}

impl Hub {
    /// A hub without pages. The caller runs it.
    pub(in crate::admin) fn new(state: Arc<AdminState>) -> Self {
        let messages = broadcast::Sender::new(BACKLOG);
        let started = (state.clock)().time_of(state.started);
        Self { state, sent: Mutex::default(), messages, joined: Notify::new(), started }
    }

    /// Looks for changes while pages are open, until `stop` becomes true.
    pub(in crate::admin) async fn run(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        let stopped = async { _ = stop.wait_for(|stop| *stop).await };
        until(stopped, self.follow()).await;
    }

    async fn follow(self: &Arc<Self>) {
        let (mut snapshots, mut histories) = (self.state.owner.snapshot.clone(), self.state.recorder.history.clone());
        let mut last = Instant::now();
        let mut beat = Instant::now();
        loop {
            if self.messages.receiver_count() == 0 {
                self.joined.notified().await;
            }
            let announced = tokio::select! {
                Ok(()) = snapshots.changed() => true,
                Ok(()) = histories.changed() => true,
                () = sleep_until(beat + BEAT) => false,
            };
            if announced {
                sleep_until(last + PACE).await;
            }
            last = Instant::now();
            let is_beat = last >= beat + BEAT;
            if is_beat {
                beat = last;
            }
            let hub = Arc::clone(self);
            // If it fails, nothing is lost: the next look compares with what was sent.
            let _ = tokio::task::spawn_blocking(move || hub.send(is_beat)).await;
        }
    }

    /// The body for one page: everything, and then each message. `place` is the page's slot.
    pub(in crate::admin) fn body(self: &Arc<Self>, place: OwnedSemaphorePermit, stop: watch::Receiver<bool>) -> Body {
        let page = Page { hub: Arc::clone(self), messages: None, unsent: Bytes::new(), stop, _place: place };
        Body::from_stream(stream::unfold(page, Page::next))
    }

    /// Everything, and the messages after it. May take long.
    fn join(&self) -> (Bytes, broadcast::Receiver<Bytes>) {
        let mut sent = self.sent();
        if self.messages.receiver_count() == 0 {
            // No page received what has changed since the last one left.
            *sent = Sent::default();
        }
        if sent.all.is_none() {
            self.update(&mut sent, true);
            sent.all = Some(self.everything(&sent).into());
        }
        let all = sent.all.clone().unwrap_or_default();
        let messages = self.messages.subscribe();
        self.joined.notify_one();
        (all, messages)
    }

    fn send(&self, is_beat: bool) {
        let mut sent = self.sent();
        let mut message = self.update(&mut sent, is_beat);
        if message.is_empty() && is_beat {
            push(&mut message, "beat", &());
        }
        if !message.is_empty() {
            // An error: no page is open.
            let _ = self.messages.send(message.into());
        }
    }

    /// The events for what has changed since the last call, which `sent` then includes.
    fn update(&self, sent: &mut Sent, is_beat: bool) -> String {
        let now = (self.state.clock)();
        let mut message = String::new();
        self.update_services(sent, &mut message);
        self.update_history(sent, &mut message);
        if is_beat {
            self.update_rates(sent, now, &mut message);
            self.update_wholes(sent, now, &mut message);
        }
        if !message.is_empty() {
            sent.all = None;
        }
        message
    }

    fn update_services(&self, sent: &mut Sent, message: &mut String) {
        let snapshot = self.state.snapshot();
        let before = std::mem::replace(&mut sent.snapshot, Arc::clone(&snapshot));
        match changed_services(&before, &snapshot) {
            ChangedServices::All => push(message, "services", &all_services(&snapshot)),
            ChangedServices::Services(names) if names.is_empty() => {}
            ChangedServices::Services(names) => {
                let rows = names.iter().flat_map(|name| service_rows(&snapshot, Some(name))).collect();
                let changed = names.iter().map(ToString::to_string).collect();
                push(message, "services", &Services { all: false, changed, rows });
            }
        }
    }

    fn update_history(&self, sent: &mut Sent, message: &mut String) {
        let all = self.state.history();
        let mut rows: Vec<_> = all.after(sent.record).cloned().collect();
        if rows.is_empty() {
            return;
        }
        rows.drain(..rows.len().saturating_sub(RECORDS));
        sent.record = all.last();
        push(message, "history", &Records { all: false, rows: history::rows(&rows) });
    }

    /// Connections per second by service, since the last count.
    fn update_rates(&self, sent: &mut Sent, now: Clocks, message: &mut String) {
        let counted = Instant::now();
        let elapsed = sent.counted.map(|then| counted - then);
        if elapsed.is_some_and(|elapsed| elapsed < COUNT) {
            return;
        }
        let counts = counters::counters(&self.state, &Filter::default());
        let before = std::mem::replace(&mut sent.counts, counts);
        sent.counted = Some(counted);
        let Some(elapsed) = elapsed else { return };
        let Rates { mut rates, .. } = Rates::between(&before, &sent.counts, (now.time, elapsed.as_secs_f64()), false);
        rates.retain(|row| row.per_second > 0.0 || row.refused > 0.0);
        let is_counting = sent.counts.is_counting;
        replace(sent, message, "rates", &PageRates { is_counting, rates });
    }

    fn update_wholes(&self, sent: &mut Sent, now: Clocks, message: &mut String) {
        let state = &*self.state;
        // The time of the start instead of the present: the page counts the time itself.
        let status = StatusReport { time: self.started, uptime_seconds: 0, ..status::status(state, now) };
        replace(sent, message, "status", &status);
        replace(sent, message, "apiservers", &tables::apiservers(&state.apiservers(), now).apiservers);
        replace(sent, message, "sources", &tables::sources(&state.shown_sources(now)).sources);
        let usage = maps::usage(&sent.snapshot.realised, state, now.moment);
        replace(sent, message, "limits", &maps::limits(&usage));
    }

    /// The message for a new page.
    fn everything(&self, sent: &Sent) -> String {
        let mut message = String::new();
        push(&mut message, "services", &all_services(&sent.snapshot));
        let history = self.state.history();
        let mut rows: Vec<_> = history.after(0).filter(|record| record.sequence <= sent.record).cloned().collect();
        rows.drain(..rows.len().saturating_sub(RECORDS));
        push(&mut message, "history", &Records { all: true, rows: history::rows(&rows) });
        message.extend(sent.wholes.values().map(String::as_str));
        message
    }

    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Page {
    hub: Arc<Hub>,
    /// `None` before everything was sent.
    messages: Option<broadcast::Receiver<Bytes>>,
    /// The rest of the last message.
    unsent: Bytes,
    stop: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

impl Page {
    /// The next piece of a message; `None` at the end.
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        while self.unsent.is_empty() {
            self.unsent = self.message().await?;
        }
        let piece = self.unsent.split_to(self.unsent.len().min(PIECE));
        Some((Ok(piece), self))
    }

    /// The next message; `None` at the end.
    async fn message(&mut self) -> Option<Bytes> {
        loop {
            let Some(messages) = &mut self.messages else {
                let hub = Arc::clone(&self.hub);
                let (all, messages) = tokio::task::spawn_blocking(move || hub.join()).await.ok()?;
                self.messages = Some(messages);
                return Some(all);
            };
            let message = tokio::select! {
                _ = self.stop.wait_for(|stop| *stop) => return None,
                message = messages.recv() => message,
            };
            match message {
                Ok(message) => return Some(message),
                Err(RecvError::Lagged(_)) => self.messages = None,
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

fn all_services(snapshot: &Snapshot) -> Services {
    Services { all: true, changed: Vec::new(), rows: service_rows(snapshot, None) }
}

/// The rows of one service, or of all: one for each description.
fn service_rows(snapshot: &Snapshot, name: Option<&ServiceName>) -> Vec<PageRow> {
    let filter = Filter { service: name.cloned(), ..Filter::default() };
    let mut places: BTreeMap<String, (Vec<String>, BTreeSet<String>)> = BTreeMap::new();
    for frontend in reports::frontends(snapshot, &filter) {
        let (addresses, backends) = places.entry(frontend.service.to_string()).or_default();
        addresses.push(frontend.address.to_string());
        backends.extend(frontend.backends.iter().map(ToString::to_string));
    }
    let rows = described::services(snapshot, &filter).map(|service| {
        let places = service.service.as_ref().and_then(|name| places.get(name));
        let (addresses, backend_addresses) = places.cloned().unwrap_or_default();
        PageRow { service, addresses, backend_addresses }
    });
    rows.collect()
}

/// Appends an event if it differs from the last one of its kind.
fn replace(sent: &mut Sent, message: &mut String, name: &'static str, data: &impl Serialize) {
    let mut event = String::new();
    push(&mut event, name, data);
    if sent.wholes.get(name) != Some(&event) {
        message.push_str(&event);
        sent.wholes.insert(name, event);
    }
}

/// Appends an event. Data that cannot be serialized is left out: no type here has such values.
fn push(message: &mut String, name: &str, data: &impl Serialize) {
    if let Ok(data) = serde_json::to_string(data) {
        message.push_str(&format!("event: {name}\ndata: {data}\n\n"));
    }
}

#[cfg(test)]
#[path = "../tests/page_events.rs"]
mod tests;
