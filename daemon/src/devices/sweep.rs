//! The task that deletes connections which have ended, every few seconds, counts them, and notes which backends answer.
//! In between, it looks at handshakes, which are few, so that a client that waits for an answer is known soon. Packets never
//! wait for the task; if it does not run, the maps fill, and further connections stay among those that can be evicted.

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

/// The longest pause between sweeps or looks at handshakes, and the shortest one.
const EVERY: Duration = Duration::from_secs(10);
const AT_MOST_EVERY: Duration = Duration::from_secs(2);

/// Sweeps take at most one in so many parts of the time of a processor, but for the longest pause.
const SHARE: u32 = 1_000;

/// The same while clients wait for an answer: also strangers can do that.
const URGENT_SHARE: u32 = 20;

/// The same for looks at handshakes.
const LOOK_SHARE: u32 = 100;

/// How often connections are counted: counting reads each of them.
const COUNT_EVERY: Duration = Duration::from_secs(30);

/// The pause between sweeps while there are no connections and none can begin: a sweep of empty maps looks at each of their
/// buckets, which takes milliseconds.
const EMPTY_EVERY: Duration = Duration::from_secs(300);

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
/// that began in the interval. Without timeouts, it looks at handshakes only, and deletes none.
pub type RunSweep = Box<dyn FnMut(Option<&SweepTimeouts>, Interval, &mut dyn FnMut(Swept)) -> io::Result<Ran> + Send>;

/// What a [`RunSweep`] has found, and how long it took.
#[derive(Debug, Default)]
pub struct Ran {
    pub outcomes: Vec<Outcome>,
    pub duration: Duration,
}

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
    Box::new(move |timeouts, counted, report| {
        let started = Instant::now();
        let outcomes = match timeouts {
            Some(timeouts) => sweep.run(timeouts, counted, report),
            None => sweep.look(counted),
        }?;
        Ok(Ran { outcomes, duration: started.elapsed() })
    })
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
        swept: None,
        look_duration: Duration::ZERO,
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
    /// When the last sweep ended.
    swept: Option<tokio::time::Instant>,
    look_duration: Duration,
    /// When the connections were counted last.
    counted: Option<tokio::time::Instant>,
    warned: Option<Instant>,
    warned_of_handshakes: Option<Instant>,
}

impl Task {
    async fn run(mut self) {
        while self.search().await.is_some() {
            self.wait().await;
        }
    }

    /// Sweeps if it is time, which a look at the handshakes shows. `None` if one of them has panicked.
    async fn search(&mut self) -> Option<()> {
        if self.is_empty && !self.is_due(EMPTY_EVERY) {
            return Some(());
        }
        let interval = self.answering.next();
        let looked = self.call(move |run| run(None, interval, &mut |_| {})).await?;
        // If it fails, the sweep says why.
        let is_awaited = looked.map_or(true, |Ran { outcomes, duration }| {
            self.look_duration = duration;
            self.answering.look(&outcomes, interval)
        });
        let share = if is_awaited || !self.answering.silent.is_empty() { URGENT_SHARE } else { SHARE };
        if !self.is_due(pause(self.report.duration, share)) {
            return Some(());
        }
        if let Some(part) = self.answering.next_quiet().filter(|_| is_awaited) {
            self.sweep(part).await?;
        }
        self.sweep(self.answering.next()).await
    }

    /// Whether no sweep has ended within this time.
    fn is_due(&self, pause: Duration) -> bool {
        self.swept.is_none_or(|at| at.elapsed() >= pause)
    }

    async fn sweep(&mut self, interval: Interval) -> Option<()> {
        let timeouts = timeouts(&self.config.borrow().packets, &self.report);
        let is_due = self.counted.is_none_or(|at| at.elapsed() >= COUNT_EVERY);
        let count = (self.is_empty || is_due).then(|| Arc::clone(&self.count));
        let swept = self.call(move |run| sweep(run, (&timeouts, interval), count)).await?;
        self.swept = Some(tokio::time::Instant::now());
        self.take(swept, interval).await;
        self.published.send_replace(Arc::new(self.report.clone()));
        Some(())
    }

    /// Calls it on a thread of the pool. `None` if it panics.
    async fn call<T: Send + 'static>(&mut self, it: impl FnOnce(&mut RunSweep) -> T + Send + 'static) -> Option<T> {
        let mut run = self.run.take()?;
        let done = tokio::task::spawn_blocking(move || {
            let done = it(&mut run);
            (run, done)
        });
        let (run, done) = done.await.ok()?;
        self.run = Some(run);
        Some(done)
    }

    /// Waits until the next look.
    async fn wait(&mut self) {
        self.is_empty &= !self.may_have_begun();
        if !self.is_empty {
            return sleep(pause(self.look_duration, LOOK_SHARE)).await;
        }
        tokio::select! {
            () = sleep(EVERY) => self.is_empty = !self.may_have_begun(),
            Ok(()) = self.is_served.changed() => self.is_empty = false,
        }
    }

    /// Whether a connection may have begun since the last call.
    fn may_have_begun(&mut self) -> bool {
        // An address may have been served in between.
        let has_changed = self.is_served.has_changed().unwrap_or(true);
        let is_served = *self.is_served.borrow_and_update();
        has_changed || self.config.borrow().packets.may_have_clients(is_served)
    }

    async fn take(&mut self, swept: io::Result<Done>, interval: Interval) {
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
    run: &mut RunSweep,
    (timeouts, interval): (&SweepTimeouts, Interval),
    count: Option<CountConnections>,
) -> io::Result<Done> {
    let mut swept = BTreeMap::new();
    let mut count_swept = |connection: Swept| *swept.entry(connection.reason).or_default() += 1;
    let Ran { outcomes, duration } = run(Some(timeouts), interval, &mut count_swept)?;
    Ok(Done { swept, outcomes, duration, count: count.and_then(|count| count().ok()) })
}

/// The time after what took so long, until it may begin again.
fn pause(duration: Duration, share: u32) -> Duration {
    (duration * share).clamp(AT_MOST_EVERY, EVERY)
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
