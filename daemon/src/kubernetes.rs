//! Kubernetes as a source: starts the tasks that read it, and decides what its stored state is used for at a start.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nodelb_cli::exit::{Code, Failure};
use nodelb_core::change::Change;
use nodelb_core::difference::Difference;
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::service::{ServiceName, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::SourceReport;
use nodelb_core::state::entries::{MapState, ServiceEntry, ServiceId};
use nodelb_core::state::owner::hash_of;
use nodelb_core::trace::{self, Verdict};
use nodelb_host::clock::{unix_seconds, until};
use nodelb_host::messages;
use nodelb_host::register::Register;
use nodelb_host::state_file::START;
use nodelb_host::threads::run_within;
use nodelb_kube::apiserver::connection::connect::ConnectTimeouts;
use nodelb_kube::apiserver::credentials::authorities::Authorities;
use nodelb_kube::apiserver::credentials::{CredentialTimeouts, Credentials};
use nodelb_kube::apiserver::endpoints::pool::PoolReport;
use nodelb_kube::apiserver::endpoints::timeouts::PoolTimeouts;
use nodelb_kube::apiserver::session::Apiservers;
use nodelb_kube::apiserver::settings::Settings;
use nodelb_kube::apiserver::{self, Parts};
use nodelb_kube::source::live::{Live, LiveTimeouts, NotCompared};
use nodelb_kube::source::selecting::Accept;
use nodelb_kube::source::store::InMaps;
use nodelb_kube::source::watch::WatchTimeouts;
use nodelb_kube::source::{self, KubernetesSource, StateSettings, state_file};
use nodelb_sources::OwnerHandle;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::Config;
use crate::events;
use crate::reconcile::Marks;

/// The mean time between two writes to the state directory while services change all the time and an apiserver is
/// connected. A write of 10,000 services takes 60 ms of CPU time and 20 MB of the disk.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// How soon a change is written, unless there were many writes: a node that loses power during or after a rollout, and
/// starts without an apiserver, knows the new pods.
const SAVE_SOON: Duration = Duration::from_secs(5);

/// How long access to the state directory may take; less than the daemon's time limit for its end.
const STATE_TIMEOUT: Duration = Duration::from_secs(4);

/// Queries an apiserver, and returns the differences between its objects and the table, for one service or for all. May
/// block for seconds.
pub type AskLive = Arc<dyn Fn(Option<&ServiceName>) -> Result<Vec<Difference>, NotCompared> + Send + Sync>;

/// The outputs, and the tasks of the supervisor and of the source, which end when their state is stored.
pub type StartedKubernetes = (KubernetesOutputs, [JoinHandle<()>; 2]);

#[derive(Clone)]
pub struct KubernetesOutputs {
    /// The rows of `/sources`.
    pub sources: watch::Receiver<Arc<Vec<SourceReport>>>,
    pub apiservers: watch::Receiver<Arc<PoolReport>>,
    pub live: AskLive,
    /// What the operator accepts.
    pub accepts: mpsc::Sender<Accept>,
}

/// Requests of an operator that may wait at the same time.
const ACCEPTS: usize = 8;

fn config_failure(error: impl Into<anyhow::Error>) -> Failure {
    Failure::new(Code::Config, error)
}

/// Starts the supervisor, the source and, if configured, the task that writes Kubernetes Events; they run until
/// `shutdown`. Returns `None` if Kubernetes is not configured. `node` is the name of this node.
///
/// # Errors
/// If the settings name no credentials.
pub async fn start(
    config: &Config,
    (owner, marks): (&OwnerHandle, &Marks),
    node: &str,
    register: Register,
    shutdown: &CancellationToken,
) -> Result<Option<StartedKubernetes>, Failure> {
    let Some(settings) = config.kubernetes_settings() else { return Ok(None) };
    // If the credentials cannot be read yet, the supervisor logs the reason.
    let credentials = Credentials::new(&settings, CredentialTimeouts::default()).map_err(config_failure)?;
    let directory = settings.state_directory.clone();
    tokio::spawn(make_directory(directory.clone()));
    let state = state_settings(directory, credentials.authority().await.ok());
    let (apiservers, report, supervisor) = start_supervisor(settings, owner, register, shutdown)?;
    let snapshot = &owner.snapshot;
    if config.kubernetes.events {
        let session = apiservers.session.clone();
        let reads = events::Reads { snapshot: snapshot.clone(), session, node: node.into(), clock: owner.clock };
        tokio::spawn(until(shutdown.clone().cancelled_owned(), events::run(reads)));
    }
    let selection = config.kubernetes.selection();
    let forward = Arc::new(config.kubernetes.forward.clone());
    let (by, of) = (selection.clone(), Arc::clone(&forward));
    let live = ask_live(Live::new(apiservers.clone(), snapshot.clone(), by, of, LiveTimeouts::default()));
    let (reports, sources) = watch::channel(Arc::default());
    let (accepts, accepted) = mpsc::channel(ACCEPTS);
    let source = KubernetesSource {
        apiservers,
        changes: owner.changes.clone(),
        reports,
        snapshot: snapshot.clone(),
        followed: marks.followed.clone(),
        state,
        selection,
        forward,
        node: node.into(),
        clock: owner.clock,
        has_node_object: config.kubernetes.node_object,
        in_maps: in_maps(&owner.snapshot.borrow().realised),
        accepts: accepted,
        timeouts: WatchTimeouts::default(),
    };
    let source = tokio::spawn(source::run(source, shutdown.clone().cancelled_owned()));
    let published = KubernetesOutputs { sources, apiservers: report, live, accepts };
    Ok(Some((published, [supervisor, source])))
}

/// A connection to an apiserver, its report, and the task of the supervisor, which keeps it.
type Supervised = (Apiservers, watch::Receiver<Arc<PoolReport>>, JoinHandle<()>);

fn start_supervisor(
    settings: Settings,
    owner: &OwnerHandle,
    register: Register,
    shutdown: &CancellationToken,
) -> Result<Supervised, Failure> {
    let parts = Parts {
        settings,
        register,
        changes: owner.changes.clone(),
        is_frontend: is_frontend(owner.snapshot.clone()),
        in_maps: apiservers_in_maps(&owner.snapshot.borrow().realised),
        clock: owner.clock,
        unix: || unix_seconds(SystemTime::now()),
        seed: std::process::id().into(),
        timeouts: PoolTimeouts::default(),
        connect: ConnectTimeouts::default(),
        credentials: CredentialTimeouts::default(),
    };
    apiserver::start(parts, shutdown.clone().cancelled_owned()).map_err(config_failure)
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
        telling.blocking_recv().unwrap_or_else(|_stopped| Err(NotCompared::unanswered("nodelb is stopping")))
    })
}

/// Creates the state directory.
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
pub async fn previous_sources(config: &Config) -> BTreeSet<Source> {
    let mut was_there = config.is_kubernetes_unset();
    if was_there {
        let path = state_file::path(&config.state.directory);
        was_there = is_there(START, move || path.try_exists()).await;
    }
    was_there.then_some(Source::Kubernetes).into_iter().collect()
}

/// Whether the file exists; if that cannot be found out in time, true.
async fn is_there(timeout: Duration, ask: impl FnOnce() -> io::Result<bool> + Send + 'static) -> bool {
    run_within(timeout, ask).await.unwrap_or(true)
}

/// The sources that the administrator has disabled.
pub fn disabled_sources(config: &Config) -> BTreeSet<Source> {
    (!config.kubernetes.enabled).then_some(Source::Kubernetes).into_iter().collect()
}

/// Sends the stored state of Kubernetes if the configuration does not define whether it is a source: its services stay
/// as last known, as they do when no apiserver is reachable. If it is disabled, removes that state.
pub async fn recall(
    config: Config,
    previous_sources: BTreeSet<Source>,
    node: Arc<str>,
    changes: mpsc::Sender<Vec<Change>>,
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
    let state = state_settings(directory, None);
    let mut reading = state.begin(&node);
    let loaded = match reading.within(state.timeout).await {
        Some(loaded) => loaded,
        None => reading.wait().await,
    };
    state.log(loaded.changes.len(), loaded.unreadable);
    let recalled = loaded.changes;
    if !recalled.is_empty() {
        // Fails only if the owner has ended, and with it the daemon.
        let _ = changes.send(recalled).await;
    }
}

fn state_settings(directory: PathBuf, cluster: Option<Authorities>) -> StateSettings {
    StateSettings { directory, cluster, save_every: SAVE_EVERY, save_soon: SAVE_SOON, timeout: STATE_TIMEOUT }
}

/// The backends that the maps have for `default/kubernetes`.
fn apiservers_in_maps(maps: &MapState) -> Vec<SocketAddr> {
    let name = hash_of(&ServiceName::new("default", "kubernetes"));
    let is_own = |entry: &&Arc<ServiceEntry>| {
        entry.tag.is_some_and(|tag| tag.source == Source::Kubernetes && tag.service == name)
    };
    let slots = maps.services.values().filter(is_own).flat_map(|entry| entry.cluster.iter());
    slots.map(|slot| SocketAddr::new(slot.addr.addr.ip(), slot.addr.port)).collect()
}

/// The service ports in the maps that Kubernetes describes. Those without an owner's tag count, too.
pub(crate) fn in_maps(maps: &MapState) -> InMaps {
    let services = maps.services.iter().filter(|(id, _)| **id != ServiceId::CANARY);
    let all = services.map(|(_, entry)| entry).filter(|it| it.tag.is_none_or(|tag| tag.source == Source::Kubernetes));
    let (ports, with_backends) = (all.clone().count(), all.filter(|entry| entry.has_backends).count());
    InMaps { ports, with_backends }
}

#[cfg(test)]
#[path = "tests/kubernetes.rs"]
mod tests;
