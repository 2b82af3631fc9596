//! Starts the tasks that read Kubernetes: the supervisor of the apiserver addresses, and the source.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nodelb_cli::exit::{Code, Failure};
use nodelb_core::change::Change;
use nodelb_core::explain::rows::{Between, Difference};
use nodelb_core::explain::trace;
use nodelb_core::explain::trace::Verdict;
use nodelb_core::messages;
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::SourceReport;
use nodelb_kube::apiserver::connection::connect;
use nodelb_kube::apiserver::connection::connect::Register;
use nodelb_kube::apiserver::credentials::Credentials;
use nodelb_kube::apiserver::endpoints::pool::PoolReport;
use nodelb_kube::apiserver::endpoints::timeouts::PoolTimeouts;
use nodelb_kube::apiserver::session::Settings;
use nodelb_kube::apiserver::{Parts, credentials};
use nodelb_kube::clock::Clock;
use nodelb_kube::source::live::{Live, LiveTimeouts};
use nodelb_kube::source::watch::WatchTimeouts;
use nodelb_kube::source::{KubernetesSource, StateSettings, state_file};
use nodelb_kube::threads::run_within;
use nodelb_kube::{apiserver, source};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use super::{stopped, unix_seconds};
use crate::admin::AskLive;
use crate::config::Config;
use crate::events;

/// The minimum time between two writes to the state directory.
pub(super) const SAVE_EVERY: Duration = Duration::from_secs(30);

/// How long access to the state directory may take; less than the daemon's time limit for its end.
pub(super) const STATE_TIMEOUT: Duration = Duration::from_secs(4);

/// The parts of the daemon that the source uses.
pub(super) struct Connections {
    /// To the owner.
    pub(super) changes: mpsc::Sender<Vec<Change>>,
    /// The owner's snapshots.
    pub(super) snapshot: watch::Receiver<Arc<Snapshot>>,
    /// Marks a socket as nodelb's own.
    pub(super) register: Register,
    pub(super) clock: Clock,
    /// Name of this node.
    pub(super) node: String,
    /// Number of service ports in the kernel.
    pub(super) expected: usize,
    /// Whether Kubernetes Events are written.
    pub(super) events: bool,
}

/// Its reports, and the task to wait for at the end.
pub(super) struct Kubernetes {
    pub(super) sources: watch::Receiver<Arc<Vec<SourceReport>>>,
    pub(super) pool: watch::Receiver<Arc<PoolReport>>,
    pub(super) task: JoinHandle<()>,
    /// Queries the current objects of an apiserver.
    pub(super) live: AskLive,
}

/// The report about the apiservers; empty if there are none.
pub(super) fn pool_of(kubernetes: Option<&Kubernetes>) -> watch::Receiver<Arc<PoolReport>> {
    kubernetes.map_or_else(|| watch::channel(Arc::default()).1, |kubernetes| kubernetes.pool.clone())
}

/// The function that queries the current objects of an apiserver, if one is configured.
pub(super) fn live_of(kubernetes: Option<&Kubernetes>) -> Option<AskLive> {
    kubernetes.map(|kubernetes| Arc::clone(&kubernetes.live))
}

fn config_failure(error: impl Into<anyhow::Error>) -> Failure {
    Failure::new(Code::Config, error)
}

/// Starts both tasks, if a cluster is configured; they run until `stop`.
///
/// # Errors
/// If the settings name no credentials.
pub(super) async fn start(
    settings: Option<Settings>,
    connections: Connections,
    stop: watch::Receiver<bool>,
) -> Result<Option<Kubernetes>, Failure> {
    let Some(settings) = settings else { return Ok(None) };
    let Connections { changes, snapshot, register, clock, node, expected, events } = connections;
    // If the credentials cannot be read yet, the supervisor logs the reason.
    let credentials =
        Credentials::new(&settings, credentials::CredentialTimeouts::default()).map_err(config_failure)?;
    let (cluster, ()) = tokio::join!(credentials.authority(), make_directory(settings.state_directory.clone()));
    let cluster = cluster.ok();
    let directory = settings.state_directory.clone();
    let state = StateSettings { directory, cluster, save_every: SAVE_EVERY, timeout: STATE_TIMEOUT };
    let parts = Parts {
        settings,
        register,
        changes: changes.clone(),
        is_frontend: is_frontend(snapshot.clone()),
        clock,
        unix: unix_seconds,
        seed: std::process::id().into(),
        timeouts: PoolTimeouts::default(),
        connect: connect::ConnectTimeouts::default(),
        credentials: credentials::CredentialTimeouts::default(),
    };
    let (apiservers, pool) = apiserver::start(parts, stopped(stop.clone())).map_err(config_failure)?;
    if events {
        let session = apiservers.session.clone();
        let reads = events::Reads { snapshot: snapshot.clone(), session, node: node.clone(), clock };
        tokio::spawn(events::run(reads, stopped(stop.clone())));
    }
    let (reports, sources) = watch::channel(Arc::new(Vec::new()));
    let timeouts = WatchTimeouts::default();
    let live = ask_live(Live::new(apiservers.clone(), snapshot.clone(), LiveTimeouts::default()));
    let source = KubernetesSource { apiservers, changes, reports, snapshot, state, node, expected, timeouts };
    let task = tokio::spawn(source::run(source, stopped(stop)));
    Ok(Some(Kubernetes { sources, pool, task, live }))
}

/// Must be called from a thread that may block. It only waits for the answer: a task of the runtime sends the query,
/// because its timers must not be used after the runtime has ended.
fn ask_live(live: Live) -> AskLive {
    let (runtime, live) = (Handle::current(), Arc::new(live));
    Arc::new(move |service| {
        let (reported, telling) = oneshot::channel();
        let (live, service) = (Arc::clone(&live), service.cloned());
        runtime.spawn(async move {
            // Fails only if the caller no longer waits.
            let _ = reported.send(live.differences(service.as_ref()).await);
        });
        telling.blocking_recv().unwrap_or_else(|_stopped| vec![not_asked()])
    })
}

/// The daemon ended before there was an answer.
fn not_asked() -> Difference {
    Difference {
        between: Between::SourceMemory,
        what: "apiserver".into(),
        service: None,
        source: Some("not asked".into()),
        memory: Some("as last reported".into()),
        kernel: None,
        cause: "nodelb is stopping".into(),
        action: "try again after it has started".into(),
    }
}

/// Creates the state directory. A directory that blocks does not delay the start.
async fn make_directory(directory: PathBuf) {
    let shown = directory.display().to_string();
    if let Err(problem) = run_within(STATE_TIMEOUT, move || std::fs::create_dir_all(directory)).await {
        warn!(
            message_id = %messages::STATE_UNWRITTEN,
            "state.directory {shown} cannot be created: {problem}; nothing is stored for the next start"
        );
    }
}

/// Whether connections to the address are translated.
fn is_frontend(snapshot: watch::Receiver<Arc<Snapshot>>) -> apiserver::endpoints::supervisor::IsFrontend {
    Arc::new(move |at| {
        let to = L4Addr::new(Addr::from(at.ip()), at.port(), Protocol::Tcp);
        !matches!(trace::verdict(&snapshot.borrow(), to), Verdict::PassedThrough)
    })
}

/// The sources that were in use before according to the state directory. If it does not answer in time, all count as in
/// use: nothing is removed for that reason.
pub(super) async fn previous_sources(config: &Config, timeout: Duration) -> BTreeSet<Source> {
    let mut was_there = config.is_kubernetes_unsaid();
    if was_there {
        let path = state_file::path(&config.state.directory);
        was_there = is_there(timeout, move || path.try_exists()).await;
    }
    was_there.then_some(Source::Kubernetes).into_iter().collect()
}

/// Whether the file exists; if that cannot be found out in time, true.
async fn is_there(timeout: Duration, ask: impl FnOnce() -> io::Result<bool> + Send + 'static) -> bool {
    run_within(timeout, ask).await.unwrap_or(true)
}

/// The sources that the administrator has disabled.
pub(super) fn disabled_sources(config: &Config) -> BTreeSet<Source> {
    (!config.kubernetes.enabled).then_some(Source::Kubernetes).into_iter().collect()
}

/// Sends the stored state of Kubernetes if the configuration does not say whether it is a source: its services stay as
/// last known, as they do when no apiserver is reachable. If it is disabled, removes that state.
pub(super) async fn recall(
    config: &Config,
    previous_sources: &BTreeSet<Source>,
    node: &str,
    changes: &mpsc::Sender<Vec<Change>>,
) {
    let directory = config.state.directory.clone();
    if !config.kubernetes.enabled {
        let forgotten = directory.clone();
        match run_within(STATE_TIMEOUT, move || state_file::forget(&forgotten)).await {
            Ok(false) => {}
            Ok(true) => info!(
                message_id = %messages::CLUSTER_CHANGED,
                "kubernetes.enabled is false: removed the saved Kubernetes state"
            ),
            Err(error) => warn!(
                message_id = %messages::STATE_UNWRITTEN,
                "kubernetes.enabled is false, but {} cannot be removed: {error}; remove it, otherwise a later start \
                 without that key serves its content",
                state_file::path(&directory).display()
            ),
        }
    }
    if previous_sources.is_empty() {
        return;
    }
    let state = StateSettings { directory, cluster: None, save_every: SAVE_EVERY, timeout: STATE_TIMEOUT };
    let recalled = state.load(node).await;
    if !recalled.is_empty() {
        // Fails only if the owner has ended, and with it the daemon.
        let _ = changes.send(recalled).await;
    }
}

#[cfg(test)]
#[path = "tests/kubernetes.rs"]
mod tests;
