//! Signals: SIGHUP loads a new configuration, SIGTERM and SIGINT end the daemon. A separate thread reads the file:
//! while its file system does not answer, every signal still works.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as Number};
use nodelb_host::clock::unix_millis;
use nodelb_host::messages;
use nodelb_host::threads::Threads;
use nodelb_kube::source::selecting::{Accept, By};
use nodelb_report::problems::Reloads;
use nodelb_report::time::Time;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::config::Config;
use crate::log::Control;
use crate::node::Identity;
use crate::notify::Notifier;

/// How long reading the configuration may take before the delay is reported.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of reads in progress: one, and those of earlier reloads that hang.
const READINGS: usize = 8;

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

fn hangups() -> SigSet {
    SigSet::from_iter([Number::SIGHUP])
}

impl Signals {
    /// Lets SIGHUP, which would end the process, wait for [`Self::listen`]. Must be called before there are threads, which
    /// inherit this: then only the first thread receives the signal.
    pub(super) fn defer_hangups() -> io::Result<()> {
        Ok(hangups().thread_block()?)
    }

    /// Installs the handlers, in the first thread: from now on no signal is lost or kills the process. Must be called
    /// before the daemon is reported as ready.
    pub(super) fn listen() -> io::Result<Self> {
        let signals = Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        };
        hangups().thread_unblock()?;
        Ok(signals)
    }
}

pub(super) struct Reload {
    pub(super) config: watch::Sender<Arc<Config>>,
    pub(super) reloads: watch::Sender<Arc<Reloads>>,
    pub(super) config_path: Option<PathBuf>,
    pub(super) level: Control,
    pub(super) identity: watch::Sender<Arc<Identity>>,
    pub(super) directory: watch::Sender<PathBuf>,
    /// Requests a comparison of the maps with their intended content.
    pub(super) check: Arc<Notify>,
    /// Gets what a reload accepts.
    pub(super) accepts: Option<mpsc::Sender<Accept>>,
    pub(super) notifier: Arc<Notifier>,
}

type Loaded = Result<(Config, Identity), String>;

struct Reading {
    loaded: oneshot::Receiver<Loaded>,
    is_late: bool,
}

impl Reload {
    /// Handles SIGHUP until SIGTERM or SIGINT.
    pub(super) async fn until_shutdown(mut self, signals: Signals) {
        self.answer(signals).await;
        self.notifier.stopping("stopping; traffic continues");
        info!(message_id = %messages::STOPPED, "shutting down; BPF maps and programs stay in place, traffic continues");
    }

    async fn answer(&mut self, mut signals: Signals) {
        let (threads, mut reading) = (Threads::new("reload", READINGS), None);
        loop {
            tokio::select! {
                _ = signals.terminate.recv() => return,
                _ = signals.interrupt.recv() => return,
                _ = signals.hangup.recv() => {
                    self.notifier.reloading("reloading the configuration");
                    // The latest SIGHUP counts: the result of an earlier read is dropped.
                    reading = self.begin(&threads);
                }
                loaded = loaded(&mut reading) => match loaded {
                    Some(loaded) => {
                        reading = None;
                        self.notifier.reloaded(&self.conclude(loaded));
                    }
                    // systemd waits for this message; the read continues.
                    None => self.notifier.reloaded(&self.report_late()),
                }
            }
        }
    }

    /// Starts to read the configuration; `None` if that is impossible, which is reported.
    fn begin(&self, threads: &Threads) -> Option<Reading> {
        let (path, active) = (self.config_path.clone(), Arc::clone(&self.config.borrow()));
        let load = move || {
            let config = load(path.as_deref(), &active)?;
            let identity = Identity::new(&config).map_err(|error| format!("the node's name: {error}"))?;
            Ok((config, identity))
        };
        match threads.begin(load) {
            Ok(loaded) => Some(Reading { loaded, is_late: false }),
            Err(error) => {
                self.notifier.reloaded(&self.refuse(&format!("the configuration cannot be read: {error}")));
                None
            }
        }
    }

    fn report_late(&self) -> String {
        let path =
            self.config_path.as_deref().map_or_else(|| "the configuration".into(), |it| it.display().to_string());
        warn!(
            message_id = %messages::CONFIG_UNREAD,
            "reading {path} timed out after {} s: check its file system. The previous configuration stays active; the \
             new one takes effect once it is read", TIMEOUT.as_secs()
        );
        "reload is waiting for the file system; the previous configuration stays active".into()
    }

    /// Applies the configuration if it has no problem, and rejects it as a whole otherwise. Returns a description of
    /// the result.
    fn conclude(&self, loaded: Loaded) -> String {
        let (config, identity) = match loaded {
            Ok(loaded) => loaded,
            Err(problems) => return self.refuse(&problems),
        };
        let old = Arc::clone(&self.config.borrow());
        let restart = old.restart_keys(&config);
        if !restart.is_empty() {
            warn!(
                message_id = %messages::CONFIG_NEEDS_RESTART,
                "restart needed for: {}", restart.join(", ")
            );
        }
        self.reloads.send_modify(|it| *it = Arc::new(it.applied(Time(unix_millis()), restart)));
        self.level.set(config.log.level);
        // Also if the directory is the same: a reload reads every file again.
        self.directory.send_replace(config.files.directory.clone());
        let named = identity.name.clone();
        let previous = self.identity.send_replace(Arc::new(identity));
        if previous.name != named {
            info!(
                message_id = %messages::NODE_NAMED,
                "the reload has read the node's name: this node is now {named}, previously {}; the backends of {named} count \
                 as those on this node", previous.name
            );
        }
        self.check.notify_one();
        if let Some(accepts) = &self.accepts {
            // The answer is not read, and a command may have filled the queue.
            _ = accepts.try_send(Accept { by: By::Reload, reply: oneshot::channel().0 });
        }
        // Keys that need a restart keep their old values, so that the next reload compares with those.
        let Config { dns, kubernetes, state, admin, datapath, .. } = Config::clone(&old);
        let packets = old.packets.reloaded(&config.packets);
        self.config.send_replace(Arc::new(Config { dns, kubernetes, state, admin, datapath, packets, ..config }));
        info!(message_id = %messages::CONFIG_APPLIED, "configuration reloaded");
        "configuration reloaded".into()
    }

    /// Reports every problem of a rejected configuration.
    fn refuse(&self, problems: &str) -> String {
        for problem in problems.lines() {
            error!(message_id = %messages::CONFIG_REFUSED, "{problem}");
        }
        error!(
            message_id = %messages::CONFIG_REFUSED,
            "configuration not reloaded because of errors; the previous one stays active"
        );
        let why = match problems.lines().count() {
            0 | 1 => problems.to_owned(),
            number => format!("{} (and {} more)", problems.lines().next().unwrap_or_default(), number - 1),
        };
        self.reloads.send_modify(|it| *it = Arc::new(it.refused(Time(unix_millis()), why)));
        "reload failed, see the journal; the previous configuration stays active".into()
    }
}

/// Reads the configuration. No configuration is not the default one: a full disk or a lost file leaves none.
fn load(path: Option<&Path>, active: &Config) -> Result<Config, String> {
    let (config, absence) = Config::load_with_absence(path).map_err(|error| error.to_string())?;
    match absence {
        Some(absence) if *active != config => Err(format!(
            "{absence}, which would reset every key to its default; write the file again, or write a comment into it if \
             you want the defaults"
        )),
        _ => Ok(config),
    }
}

/// Waits for the result of the current read; `None` as soon as it is late. Waits forever if there is none.
async fn loaded(reading: &mut Option<Reading>) -> Option<Loaded> {
    let Some(reading) = reading else { return std::future::pending().await };
    tokio::select! {
        loaded = &mut reading.loaded => Some(loaded.unwrap_or_else(|error| Err(error.to_string()))),
        () = sleep(TIMEOUT), if !reading.is_late => {
            reading.is_late = true;
            None
        }
    }
}

#[cfg(test)]
#[path = "tests/reload.rs"]
mod tests;
