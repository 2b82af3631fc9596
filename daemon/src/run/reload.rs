//! Signals: SIGHUP takes a new configuration over, SIGTERM and SIGINT end the daemon.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tracing::{error, info, warn};

use crate::config::Config;
use crate::log::{Control, messages};
use crate::node::Identity;
use crate::notify::Notifier;

/// The signals the daemon answers.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// From here on no signal is lost or kills the process: to be called before anybody is told that it is ready.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

/// What SIGHUP needs.
pub(super) struct Reload {
    /// What is in effect.
    pub(super) config: watch::Sender<Arc<Config>>,
    pub(super) config_path: Option<PathBuf>,
    pub(super) level: Control,
    pub(super) identity: watch::Sender<Arc<Identity>>,
    pub(super) directory: watch::Sender<PathBuf>,
    /// Has the maps compared with what they should hold.
    pub(super) check: Arc<Notify>,
    pub(super) notifier: Arc<Notifier>,
}

impl Reload {
    /// Answers SIGHUP until SIGTERM or SIGINT.
    pub(super) async fn until_told_to_end(mut self, signals: Signals) {
        self.answer(signals).await;
        self.notifier.stopping("stopping; connections go on");
        info!(message_id = %messages::STOPPED, "told to end: maps and programs stay in place, connections go on");
    }

    async fn answer(&mut self, mut signals: Signals) {
        loop {
            tokio::select! {
                _ = signals.terminate.recv() => return,
                _ = signals.interrupt.recv() => return,
                _ = signals.hangup.recv() => {
                    self.notifier.reloading("reloading the configuration");
                    let outcome = self.reload().await;
                    self.notifier.ready(&outcome);
                }
            }
        }
    }

    /// Takes the configuration over if it has no problem; refuses it whole if it has one. Says which.
    async fn reload(&mut self) -> String {
        let path = self.config_path.clone();
        let loaded = tokio::task::spawn_blocking(move || {
            let config = Config::load(path.as_deref()).map_err(|error| error.to_string())?;
            let identity = Identity::of(&config.node).map_err(|error| format!("the node's name: {error}"))?;
            Ok((config, identity))
        });
        let (config, identity) = match loaded.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(loaded) => loaded,
            Err(problems) => {
                for problem in problems.lines() {
                    error!(message_id = %messages::CONFIG_REFUSED, "{problem}");
                }
                error!(
                    message_id = %messages::CONFIG_REFUSED,
                    "the configuration has problems: it is refused whole, the old one stays in force"
                );
                return "reload refused, see the journal; the old configuration stays in force".into();
            }
        };
        let old = Arc::clone(&self.config.borrow());
        let restart = old.restart_keys(&config);
        if !restart.is_empty() {
            warn!(
                message_id = %messages::CONFIG_NEEDS_RESTART,
                "changed, but takes effect only after a restart: {}", restart.join(", ")
            );
        }
        self.level.set(config.log.level);
        // Also where it is the same: a reload reads every file again.
        self.directory.send_replace(config.files.directory.clone());
        self.identity.send_replace(Arc::new(identity));
        self.check.notify_one();
        // What needs a restart stays in force as it was, so that the next reload compares with that.
        let Config { kubernetes, state, admin, datapath, .. } = Config::clone(&old);
        self.config.send_replace(Arc::new(Config { kubernetes, state, admin, datapath, ..config }));
        info!(message_id = %messages::CONFIG_APPLIED, "the configuration is reloaded");
        "configuration reloaded".into()
    }
}
