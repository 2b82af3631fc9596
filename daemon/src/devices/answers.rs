//! Which backends answer clients outside the node: counts each connection once, some seconds after it has begun, and reports
//! what changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::history::{Event, What};
use nodelb_core::model::cause::Cause;
use nodelb_core::model::moment::Moment;
use nodelb_core::packets::outcomes::{Accepted, Answered, Answers, Outcome, Outcomes, SilentPort};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::ServiceId;
use nodelb_datapath::packets::{Interval, seconds};
use nodelb_host::clock::Clock;
use nodelb_host::messages;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

/// A connection counts so many seconds after it has begun: clients have then repeated their SYN.
const ANSWERED_WITHIN: u32 = 3;

/// The connections that began so many seconds before the first sweep of a start count, too: handshakes are kept for so long.
const BEFORE_START: u32 = 30;

pub(crate) struct Answering {
    snapshot: watch::Receiver<Arc<Snapshot>>,
    changes: mpsc::Sender<Vec<Change>>,
    clock: Clock,
    /// The last second of the connections that were counted.
    until: Option<u32>,
    /// The last second up to which a look has found that no client waited.
    quiet_until: Option<u32>,
    answers: Answers,
    pub(super) silent: Arc<BTreeMap<ServiceId, SilentPort>>,
    pub(super) accepted: Arc<Accepted>,
}

impl Answering {
    /// `clock` is that of the owner task.
    pub(crate) fn new(
        snapshot: watch::Receiver<Arc<Snapshot>>,
        changes: mpsc::Sender<Vec<Change>>,
        clock: Clock,
    ) -> Self {
        Self {
            snapshot,
            changes,
            clock,
            until: None,
            quiet_until: None,
            answers: Answers::default(),
            silent: Arc::default(),
            accepted: Arc::default(),
        }
    }

    pub(super) fn answered(&self) -> Arc<Answered> {
        self.answers.answered()
    }

    pub(super) fn total(&self) -> Outcomes {
        self.answers.total()
    }

    /// The interval after the one that was taken last, until now.
    pub(super) fn next(&self) -> Interval {
        // It never fails.
        let until = seconds().unwrap_or_default().saturating_sub(ANSWERED_WITHIN);
        Interval { after: self.until.unwrap_or(until.saturating_sub(BEFORE_START)).min(until), until }
    }

    /// The part of [`Self::next`] up to the last look, if no client waited in it. A backend that answered in this part counts as
    /// silent if it does not answer in the rest.
    pub(super) fn next_quiet(&self) -> Option<Interval> {
        let Interval { after, until } = self.next();
        let part = Interval { after, until: self.quiet_until?.min(until) };
        (part.until > after).then_some(part)
    }

    /// Takes what a look at the handshakes of an interval has found. Returns whether a client waits for an answer, or was
    /// refused. Nothing counts yet.
    pub(super) fn look(&mut self, outcomes: &[Outcome], interval: Interval) -> bool {
        let is_quiet = outcomes.iter().all(|(.., it)| it.unanswered + it.refused == 0);
        if is_quiet {
            self.quiet_until = Some(interval.until);
        }
        !is_quiet
    }

    /// Takes the outcomes of the connections that began in the interval.
    pub(super) async fn take(&mut self, outcomes: &[Outcome], interval: Interval) {
        self.until = Some(interval.until);
        let snapshot = Arc::clone(&self.snapshot.borrow());
        let services = &snapshot.realised.services;
        let entry = |id| services.get(&id).filter(|_| snapshot.owners.contains_key(&id)).map(Arc::as_ref);
        let now: Moment = self.clock.now();
        // It never fails.
        let ago = u64::from(seconds().unwrap_or(u32::MAX).saturating_sub(interval.after)) * 1_000;
        self.answers.take(outcomes, Moment(now.0.saturating_sub(ago)), now, entry);
        self.accepted = Arc::new(self.answers.accepted(entry));
        let silent = self.answers.silent_ports(&snapshot);
        let begun = silent.iter().filter(|(id, now)| self.silent.get(*id).is_none_or(|it| it.is_whole != now.is_whole));
        let ended = self.silent.iter().filter(|(id, _)| !silent.contains_key(*id));
        let begun = begun.map(|(_, now)| event(What::Unanswered, now, now.text()));
        let ended = ended.map(|(id, was)| {
            let text = match self.answers.answers(*id) {
                true => "clients outside the node get answers again",
                false => "no client outside the node waits for an answer any more",
            };
            event(What::Answered, was, text.to_owned())
        });
        let events: Vec<Event> = begun.chain(ended).collect();
        self.silent = Arc::new(silent);
        if events.is_empty() {
            return;
        }
        events.iter().for_each(log);
        let changes = events.into_iter().map(|event| Change::Happened(event.into())).collect();
        // Fails only when the daemon ends.
        let _ = self.changes.send(changes).await;
    }
}

fn event(what: What, port: &SilentPort, text: String) -> Event {
    Event { detail: Some(text.into()), ..Event::for_port(&port.key, None, what, Cause::default()) }
}

fn log(event: &Event) {
    let (Some(key), Some(text)) = (&event.port, &event.detail) else { return };
    let service = key.service.to_string();
    match event.what {
        What::Unanswered => warn!(message_id = %messages::SERVICE_UNANSWERED, service, "{key}: {text}"),
        _ => info!(message_id = %messages::SERVICE_ANSWERED, service, "{key}: {text}"),
    }
}

#[cfg(test)]
#[path = "tests/answers.rs"]
mod tests;
