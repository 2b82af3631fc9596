//! The task that deletes connections which have ended, every few seconds, counts them, and notes which backends answer.
//! Packets never wait for it; if it does not run, the maps fill, and further connections stay among those that can be
//! evicted.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nodelb_core::packets::outcomes::{Accepted, Answered, Outcome, Outcomes, SilentPort};
use nodelb_core::state::entries::ServiceId;
use nodelb_datapath::packets::{ConnectionCount, Interval, Sweep, SweepReason, SweepTimeouts, Swept};
use nodelb_host::clock::until;
use nodelb_host::messages;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::warn;

use super::answers::Answering;
use crate::config::{Config, Packets};

/// The longest pause between sweeps, and the shortest one.
const EVERY: Duration = Duration::from_secs(10);
const AT_MOST_EVERY: Duration = Duration::from_secs(2);

/// Sweeps take at most one in so many parts of the time of a processor, but for the longest pause.
const SHARE: u32 = 1_000;

/// How often connections are counted: counting reads each of them.
const COUNT_EVERY: Duration = Duration::from_secs(30);

/// One in this number of intervals has a sweep while there are no connections and none can begin: a sweep of empty maps
/// looks at each of their buckets, which takes milliseconds.
const EMPTY_EVERY: u64 = 30;

const WARN_EVERY: Duration = Duration::from_secs(3600);

/// Seconds without a packet, for states without a configured timeout.
const HANDSHAKE: u32 = 30;
const CLOSED: u32 = 60;
const RESET: u32 = 10;

/// Percentages of `packets.max-connections` between which the timeout of open TCP connections shrinks, and the timeout
/// at the upper one, in seconds.
const CROWDED: u64 = 80;
const FULL: u64 = 95;
const SHORTEST: u32 = 3600;

/// Deletes what is due with these timeouts, and passes each deleted connection on. Returns the outcomes of the connections
/// that began in the interval.
pub type RunSweep = Box<dyn FnMut(&SweepTimeouts, Interval, &mut dyn FnMut(Swept)) -> io::Result<Vec<Outcome>> + Send>;

pub type CountConnections = Arc<dyn Fn() -> io::Result<ConnectionCount> + Send + Sync>;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SweepReport {
    pub swept: BTreeMap<SweepReason, u64>,
    pub failures: u64,
    pub duration: Duration,
    /// The last count of connections; `None` before the first one.
    pub count: Option<ConnectionCount>,
    /// Maximum number of connections.
    pub limit: u32,
    /// What became of all connections since the start.
    pub outcomes: Outcomes,
    /// The service ports with backends that do not answer clients outside the node.
    pub silent: Arc<BTreeMap<ServiceId, SilentPort>>,
    /// The backends that have answered since the start.
    pub answered: Arc<Answered>,
    /// The service ports with a backend that accepts connections of clients outside the node.
    pub accepted: Arc<Accepted>,
}

impl SweepReport {
    /// The used percentages of the room for connections, and of that for handshakes.
    fn used(&self, max_handshakes: u32) -> [u64; 2] {
        let count = self.count.unwrap_or_default();
        let share = |count: u64, limit: u32| count * 100 / u64::from(limit.max(1));
        [share(count.connections, self.limit), share(count.half_open(), max_handshakes)]
    }
}

pub(crate) fn in_kernel(mut sweep: Sweep) -> RunSweep {
    Box::new(move |timeouts, counted, report| sweep.run(timeouts, counted, report))
}

/// Starts the task; it ends with `shutdown`. `limit` is the maximum number of connections, and `is_served` whether clients
/// outside can connect to an address. Returns its reports.
pub(crate) fn start(
    (run, limit): (RunSweep, u32),
    (count, answering): (CountConnections, Answering),
    is_served: watch::Receiver<bool>,
    config: watch::Receiver<Arc<Config>>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> watch::Receiver<Arc<SweepReport>> {
    let report = SweepReport { limit, ..SweepReport::default() };
    let (published, reports) = watch::channel(Arc::new(report.clone()));
    let task = Task {
        run: Some(run),
        count,
        is_served,
        config,
        published,
        report,
        answering,
        is_empty: false,
        skipped: 0,
        counted: None,
        warned: None,
        warned_of_handshakes: None,
    };
    tokio::spawn(until(shutdown, task.run()));
    reports
}

struct Task {
    /// `None` while a sweep runs, and for ever if it has panicked.
    run: Option<RunSweep>,
    count: CountConnections,
    is_served: watch::Receiver<bool>,
    config: watch::Receiver<Arc<Config>>,
    published: watch::Sender<Arc<SweepReport>>,
    report: SweepReport,
    answering: Answering,
    /// Whether there were no connections when they were counted last, and none can have begun since then.
    is_empty: bool,
    /// The number of intervals since the last sweep that had none because of that.
    skipped: u64,
    /// When the connections were counted last.
    counted: Option<tokio::time::Instant>,
    warned: Option<Instant>,
    warned_of_handshakes: Option<Instant>,
}

impl Task {
    async fn run(mut self) {
        loop {
            if self.may_have_begun() {
                self.is_empty = false;
            }
            self.skipped += 1;
            if !self.is_empty || self.skipped >= EMPTY_EVERY {
                self.skipped = 0;
                let Some(run) = self.run.take() else { return };
                let timeouts = timeouts(&self.config.borrow().packets, &self.report);
                let is_due = self.counted.is_none_or(|at| at.elapsed() >= COUNT_EVERY);
                let count = (self.is_empty || is_due).then(|| Arc::clone(&self.count));
                let interval = self.answering.next();
                let swept = tokio::task::spawn_blocking(move || sweep(run, (&timeouts, interval), count));
                let Ok((run, swept)) = swept.await else { return };
                self.run = Some(run);
                self.take(swept, interval).await;
                self.published.send_replace(Arc::new(self.report.clone()));
            }
            sleep(self.pause()).await;
        }
    }

    /// The time until the next sweep. Where backends do not answer, it is soon known whether others do.
    fn pause(&self) -> Duration {
        match (self.is_empty, self.answering.has_unanswered) {
            (true, _) => EVERY,
            (false, true) => AT_MOST_EVERY,
            (false, false) => (self.report.duration * SHARE).clamp(AT_MOST_EVERY, EVERY),
        }
    }

    /// Whether a connection may have begun since the last call.
    fn may_have_begun(&mut self) -> bool {
        // An address may have been served in between.
        let has_changed = self.is_served.has_changed().unwrap_or(true);
        let is_served = *self.is_served.borrow_and_update();
        has_changed || self.config.borrow().packets.may_have_clients(is_served)
    }

    async fn take(&mut self, swept: Result<Done, io::Error>, interval: Interval) {
        match swept {
            Ok(Done { swept, outcomes, duration, count }) => {
                for (reason, number) in swept {
                    *self.report.swept.entry(reason).or_default() += number;
                }
                self.report.duration = duration;
                self.answering.take(&outcomes, interval).await;
                self.report.outcomes = self.answering.total();
                self.report.silent = Arc::clone(&self.answering.silent);
                self.report.answered = self.answering.answered();
                self.report.accepted = Arc::clone(&self.answering.accepted);
                if let Some(count) = count {
                    self.counted = Some(tokio::time::Instant::now());
                    self.is_empty = count == ConnectionCount::default();
                    self.report.count = Some(count);
                }
                self.report_full();
            }
            Err(error) => {
                self.is_empty = false;
                self.report.failures += 1;
                if self.report.failures == 1 {
                    warn!(
                        message_id = %messages::SWEEP_FAILED,
                        "connections of clients outside the node that have ended cannot be deleted ({error}); they \
                         occupy room until the map is full. nodelb retries at least every {} seconds", EVERY.as_secs()
                    );
                }
            }
        }
    }

    /// Warns about full maps, about each once an hour.
    fn report_full(&mut self) {
        let limit = self.config.borrow().packets.max_handshakes;
        let [used, used_by_handshakes] = self.report.used(limit);
        if is_due(&mut self.warned, used) {
            warn!(
                message_id = %messages::CONNECTIONS_FULL,
                "{used} % of the room for connections of clients outside the node is used; idle TCP connections are \
                 forgotten earlier. Raise packets.max-connections ({})", self.report.limit
            );
        }
        if is_due(&mut self.warned_of_handshakes, used_by_handshakes) {
            warn!(
                message_id = %messages::HANDSHAKES_FULL,
                "{used_by_handshakes} % of the room for handshakes of clients outside the node is used, also by connections with \
                 direct return; idle ones are forgotten earlier. Raise packets.max-handshakes ({limit}), unless it is a flood"
            );
        }
    }
}

struct Done {
    swept: BTreeMap<SweepReason, u64>,
    outcomes: Vec<Outcome>,
    duration: Duration,
    /// The number of connections after it, if they were counted.
    count: Option<ConnectionCount>,
}

fn sweep(
    mut run: RunSweep,
    (timeouts, interval): (&SweepTimeouts, Interval),
    count: Option<CountConnections>,
) -> (RunSweep, Result<Done, io::Error>) {
    let (started, mut swept) = (Instant::now(), BTreeMap::new());
    let result = run(timeouts, interval, &mut |connection| *swept.entry(connection.reason).or_default() += 1);
    let duration = started.elapsed();
    let done = result.map(|outcomes| Done { swept, outcomes, duration, count: count.and_then(|count| count().ok()) });
    (run, done)
}

/// The timeouts with this configuration, by the number of connections at the last count. Those with direct return are
/// among the handshakes.
fn timeouts(packets: &Packets, report: &SweepReport) -> SweepTimeouts {
    let [used, used_by_handshakes] = report.used(packets.max_handshakes);
    SweepTimeouts {
        handshake: HANDSHAKE,
        closed: CLOSED,
        reset: RESET,
        tcp_idle: tcp_timeout(packets.tcp_timeout.0, used),
        udp_idle: packets.udp_timeout.0,
        forwarded_idle: tcp_timeout(packets.tcp_timeout.0, used_by_handshakes),
    }
}

/// The timeout of open TCP connections: it shrinks linearly between [`CROWDED`] and [`FULL`].
fn tcp_timeout(configured: u32, percent: u64) -> u32 {
    let shortest = SHORTEST.min(configured);
    let above = percent.clamp(CROWDED, FULL) - CROWDED;
    let less = u64::from(configured - shortest) * above / (FULL - CROWDED);
    configured - u32::try_from(less).unwrap_or(configured - shortest)
}

/// Whether a warning about a map is due, of which this percentage is used. Then it has been given.
fn is_due(warned: &mut Option<Instant>, used: u64) -> bool {
    let is_due = used >= CROWDED && warned.is_none_or(|at| at.elapsed() >= WARN_EVERY);
    if is_due {
        *warned = Some(Instant::now());
    }
    is_due
}

#[cfg(test)]
#[path = "tests/sweep.rs"]
mod tests;
