//! The task that keeps nodelb connected to an apiserver. Owns the pool and the session in use. The pool decides, and
//! [`Tasks`] runs everything that has to wait. The supervisor never waits for a server, the resolver, a disk or the
//! owner task.

mod events;
mod journal;
mod state;
mod tasks;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::moment::Moment;
use nodelb_host::messages;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use self::journal::Journal;
pub use self::state::IsFrontend;
use self::state::Supervisor;
use self::tasks::{Done, Task, Tasks};
use super::pool::{Pool, PoolReport};
use super::preflight::{self, Attempt};
use super::state_file::Saver;
use super::timeouts::PoolTimeouts;
use crate::apiserver::address::{Server, reason_not_to_learn};
use crate::apiserver::connection::connect::{self, Connector};
use crate::apiserver::credentials::login::Login;
use crate::apiserver::credentials::{self, Credentials};
use crate::apiserver::session::{Apiservers, Report};
use crate::apiserver::settings::Settings;
use nodelb_host::clock::{self, Clock};
use nodelb_host::register::Register;
use nodelb_host::state_file::Reading;

/// The capacity of the queue for reports. A full queue blocks the readers.
const QUEUE: usize = 256;

/// The time in milliseconds between two attempts to send a change to the owner task if its queue is full.
const ANNOUNCE_AGAIN: u64 = 100;

/// How often in milliseconds this is examined while there is no session.
const CLOCK_EVERY: u64 = 1_000;

pub struct Parts {
    pub settings: Settings,
    pub register: Register,
    /// The queue to the owner task, which needs all addresses that an apiserver may have.
    pub changes: mpsc::Sender<Vec<Change>>,
    /// Returns whether an address is a frontend; frontends are never learned.
    pub is_frontend: IsFrontend,
    /// The backends of `default/kubernetes` in the maps at the start.
    pub in_maps: Vec<SocketAddr>,
    /// The clock for all times in reports.
    pub clock: Clock,
    /// Returns the current time in seconds since 1970.
    pub unix: fn() -> u64,
    /// A number that differs between nodes.
    pub seed: u64,
    pub timeouts: PoolTimeouts,
    pub connect: connect::ConnectTimeouts,
    pub credentials: credentials::CredentialTimeouts,
}

/// Starts the supervisor, which runs until `shutdown` is ready. Returns the interface for readers, the report, and the
/// task, which ends when the addresses that worked are stored. Waits for no file, and opens no connection before it returns.
pub fn start(
    parts: Parts,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<(Apiservers, watch::Receiver<Arc<PoolReport>>, JoinHandle<()>)> {
    let (supervisor, reports, apiservers, report) = make(parts)?;
    let task = tokio::spawn(supervisor.run(reports, shutdown));
    Ok((apiservers, report, task))
}

/// A supervisor that does not run yet, and the other ends of its channels.
type Made = (Supervisor, mpsc::Receiver<Report>, Apiservers, watch::Receiver<Arc<PoolReport>>);

fn make(parts: Parts) -> anyhow::Result<Made> {
    let Parts { settings, register, changes, is_frontend, in_maps, clock, unix, seed, timeouts, .. } = parts;
    let (connect, credentials) = (parts.connect, parts.credentials);
    let connector = Connector::new(register, connect, settings.proxy.as_deref())?;
    let credentials = Arc::new(Credentials::new(&settings, credentials)?);
    let now = clock.now();
    let pool = Pool::new(&settings.servers, timeouts, seed, now);
    let (session_in, session) = watch::channel(None);
    let (report_in, report) =
        watch::channel(Arc::new(PoolReport { pool: Some(pool.clone()), ..PoolReport::default() }));
    let (reports_in, reports) = mpsc::channel(QUEUE);
    let supervisor = Supervisor {
        timeouts,
        clock,
        unix,
        seed,
        connector,
        credentials,
        changes,
        is_frontend,
        in_maps,
        set: unix_of_zero(unix, now),
        cidrs: settings.service_cidrs.clone(),
        saver: Saver::new(&settings.state_directory, timeouts),
        settings,
        pool,
        login: None,
        look_at: now,
        current: None,
        sessions: 0,
        resolved: BTreeMap::new(),
        listed: BTreeSet::new(),
        excluded: BTreeSet::new(),
        left_out: BTreeSet::new(),
        tasks: Tasks::default(),
        journal: Journal::new(timeouts, now),
        announced: None,
        announce_at: None,
        last_response: None,
        problem: None,
        not_renewed: None,
        session_in,
        report_in,
    };
    Ok((supervisor, reports, Apiservers { session, reports: reports_in }, report))
}

/// The wall-clock time, in seconds, at the zero of the monotonic clock: it changes when the wall clock is set.
fn unix_of_zero(unix: fn() -> u64, now: Moment) -> i64 {
    unix().cast_signed() - (now.0 / 1_000).cast_signed()
}

impl Supervisor {
    async fn run(mut self, mut reports: mpsc::Receiver<Report>, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            self.act();
            let session = self.current.as_ref().map(|current| Arc::clone(&current.session));
            let ended = async {
                match &session {
                    Some(session) => session.link.ended().await,
                    None => std::future::pending().await,
                }
            };
            let wake = self.wake().map(|wake| self.clock.instant_of(wake));
            tokio::select! {
                () = &mut shutdown => break,
                error = ended => self.ended(&error),
                done = self.tasks.next() => self.done(done),
                stored = Reading::late(&mut self.saver.unread), if self.login.is_some() => self.remember(stored),
                Some(report) = reports.recv() => {
                    self.report(report);
                    while let Ok(report) = reports.try_recv() {
                        self.report(report);
                    }
                }
                () = clock::at(wake) => {}
            }
        }
        if let Some(current) = self.current.take() {
            current.session.link.cut();
        }
        self.session_in.send_replace(None);
        let now = self.clock.now();
        self.saver.due = Some(now);
        self.save(now);
        self.saver.close().await;
    }

    fn act(&mut self) {
        let now = self.clock.now();
        self.note_clock(now);
        // A service may have received a learned address, or lost it.
        self.revalidate(now);
        if self.look_at <= now && !self.tasks.is_out(&Task::Login) {
            self.look_at = now.plus(self.timeouts.credentials_every);
            self.read_credentials();
        }
        if let Some(error) = self.pool.lost() {
            self.close(now, &error);
        }
        while self.login.is_some()
            && let Some(choice) = self.pool.next(now)
        {
            self.open(now, choice.server, choice.why);
        }
        for server in self.pool.probes(now) {
            self.probe(server);
        }
        for address in self.pool.forget_stale(now) {
            tracing::info!(
                message_id = %messages::APISERVER_KNOWN,
                apiserver = %address, "removed apiserver {address}: it failed for a long time and is not listed"
            );
        }
        self.journal.lost(now, self.first_error().as_deref());
        self.announce(now);
        self.save(now);
        self.publish();
    }

    /// Tries refused servers again after the clock was set: a certificate that was not valid yet may be valid now.
    fn note_clock(&mut self, now: Moment) {
        let set = unix_of_zero(self.unix, now);
        if clock::was_set(self.set, set) {
            self.set = set;
            self.pool.retry_refused(now);
        }
    }

    /// Reads the credentials and, before the first login, the remembered addresses.
    fn read_credentials(&mut self) {
        let credentials = Arc::clone(&self.credentials);
        let mut unread = if self.login.is_none() { self.saver.unread.take() } else { None };
        let timeout = Duration::from_millis(self.timeouts.load);
        self.tasks.send(Task::Login, async move {
            let login = credentials.login().await;
            let trouble = credentials.trouble().await;
            let mut stored = None;
            if let Some(reading) = unread.as_mut().filter(|_| login.is_ok())
                && let Some(read) = reading.within(timeout).await
            {
                (stored, unread) = (read, None);
            }
            Done::Login { login, trouble, stored, unread }
        });
    }

    fn wake(&self) -> Option<Moment> {
        let now = self.clock.now();
        let looking = Some(self.look_at).filter(|_| !self.tasks.is_out(&Task::Login));
        let pool = self.login.as_ref().and_then(|_| self.pool.wake(now));
        let clock = self.current.is_none().then(|| now.plus(CLOCK_EVERY));
        [looking, self.saver.due, pool, self.announce_at, self.journal.loss_is_due(), clock].into_iter().flatten().min()
    }

    fn attempt(&self, server: Server, login: &Arc<Login>) -> Attempt {
        Attempt {
            cluster: self.saver.cluster.clone(),
            last: self.resolved.get(&server.address).cloned().unwrap_or_default(),
            server,
            connector: self.connector.clone(),
            login: Arc::clone(login),
            credentials: Arc::clone(&self.credentials),
            timeouts: self.timeouts,
        }
    }

    /// Starts an attempt to connect. `why` is the reason for the choice of this server.
    fn open(&mut self, now: Moment, server: Server, why: String) {
        let address = server.address.clone();
        let Some(login) = &self.login else { return };
        let attempt = self.attempt(server, login);
        self.pool.connecting(now, &address);
        let task = Task::Open(address.clone());
        self.tasks.send(task, async move {
            let (opened, resolved) = attempt.open().await;
            Done::Opened(address, Box::new(opened.map(|opened| (opened, why))), resolved)
        });
    }

    fn probe(&mut self, server: Server) {
        let address = server.address.clone();
        // A new login is used after a link was opened with it; until then, the login of the session in use.
        let Some(login) = self.current.as_ref().map(|current| &current.login).or(self.login.as_ref()) else { return };
        let mut attempt = self.attempt(server, login);
        if let Some(current) = self.current.as_ref().filter(|current| current.server.address == address) {
            attempt = attempt.pinned(current.session.link.at());
        }
        let factor = if self.pool.is_doubted(&address) { 2 } else { 1 };
        let timeout = Duration::from_millis(self.timeouts.probe_timeout / factor);
        let task = Task::Probe(address.clone());
        self.tasks.give_up(|known| *known == task);
        self.tasks.send(task, async move {
            let (answer, resolved) = preflight::probe(attempt, timeout).await;
            Done::Probed(address, answer.map(drop), resolved)
        });
    }

    /// Closes the session in use after a failure. All requests over it end now.
    fn close(&mut self, now: Moment, error: &str) {
        if let Some(current) = self.current.take() {
            current.session.link.cut();
            self.session_in.send_replace(None);
        }
        self.renewed();
        self.pool.closed(now, error);
        self.journal.closed(now);
    }

    fn first_error(&self) -> Option<String> {
        self.problem.clone().or_else(|| {
            let candidate = self.pool.candidates().iter().find(|candidate| candidate.error.is_some())?;
            let (_, error) = candidate.error.as_ref()?;
            Some(format!("{}: {error}", candidate.server.address))
        })
    }

    /// Sends the addresses of apiservers to the owner task, if they have changed and its queue is not full.
    fn announce(&mut self, now: Moment) {
        let known = self.known();
        self.announce_at = None;
        if self.announced.as_ref() == Some(&known) {
            return;
        }
        match self.changes.try_send(vec![Change::Apiservers(known.clone())]) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => self.announced = Some(known),
            Err(mpsc::error::TrySendError::Full(_)) => self.announce_at = Some(now.plus(ANNOUNCE_AGAIN)),
        }
    }

    /// All addresses that an apiserver may have.
    fn known(&self) -> BTreeSet<(Addr, u16)> {
        let literal = self.pool.candidates().iter().filter_map(|candidate| candidate.server.address.socket());
        let all = literal.chain(self.resolved.values().flatten().copied());
        all.map(|at| (at.ip().into(), at.port())).collect()
    }

    fn save(&mut self, now: Moment) {
        let Some(login) = &self.login else { return };
        let (pool, resolved, unix) = (&self.pool, &self.resolved, (self.unix)());
        self.saver.save((now, unix), &login.authority, pool, resolved);
    }

    fn publish(&self) {
        self.report_in.send_replace(Arc::new(PoolReport {
            pool: Some(self.pool.clone()),
            last_response: self.last_response,
            problem: self.problem.clone(),
            not_renewed: self.not_renewed.clone(),
        }));
    }

    fn refusal(&self, at: SocketAddr) -> Option<&'static str> {
        reason_not_to_learn(at, &self.cidrs, &*self.is_frontend)
    }
}

#[cfg(test)]
#[path = "tests/supervisor.rs"]
mod tests;
