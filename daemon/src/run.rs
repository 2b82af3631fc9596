//! The parts of `nodelb run` and the order of their start. All errors in the configuration are found before the kernel
//! is changed; the capabilities are dropped before there are threads; the runtime starts last.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use nix::sys::resource::{Resource, getrlimit};
use nodelb_cli::exit::{Code, Failure};
use nodelb_cli::{DatapathChoice, RunOptions};
use nodelb_core::change::Change;
use nodelb_core::compile::guard::Guard;
use nodelb_core::config::{EngineConfig, PacketsConfig};
use nodelb_core::datapath::Datapath;
use nodelb_core::engine::Engine;
use nodelb_core::history::{Event, What};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::messages;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::Realised;
use nodelb_core::state::kernel_check::Content;
use nodelb_datapath::KernelDatapath;
use nodelb_kube::apiserver::connect::Register;
use nodelb_kube::clock::{self, Clock};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

use crate::admin::{self, AdminState, Now, ReadClients, ReadLinks, ReadSlots, Reality};
use crate::config::{Config, Disconnect, Mode};
use crate::connections::Connections;
use crate::latency::Latencies;
use crate::lb_health::{self, LbHealth, View};
use crate::notify::{Environment, Notifier};
use crate::reconcile::drift::{Checker, ReadMaps, Reports};
use crate::reconcile::rounds::Rounds;
use crate::reconcile::{Owner, Probe, QUEUE};
use crate::sockets::bound::BoundPorts;
use crate::sockets::bound::Overlap;
use crate::sockets::stale::{Handles, StaleSockets};
use crate::status::Health;
use crate::{log, node, recorder};

mod admin_sockets;
mod files;
mod kernel;
mod kubernetes;
mod reload;

use admin_sockets::{AdminSockets, Listeners};
pub(crate) use kernel::{crash_after, refused};
use reload::{Reload, Signals};

/// How long the sources, the checker and the owner may take together to store their state at the end of the daemon, and
/// then the recorder again: a stop takes at most twice this time.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);

/// The delay before an address that could not be bound is retried: of the admin API and of the health checks for load
/// balancers.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);

/// Everything that is ready before the runtime starts.
struct Setup {
    config: Config,
    config_path: Option<PathBuf>,
    /// Path of the socket of a reaper that another process starts.
    reaper: Option<PathBuf>,
    level: log::Control,
    identity: node::Identity,
    notifier: Arc<Notifier>,
}

/// Runs the daemon until it is stopped.
///
/// # Errors
/// If it cannot start. Later errors degrade the service and do not end the daemon.
pub fn run(options: &RunOptions) -> Result<(), Failure> {
    log::end_on_panic();
    let result = start(options);
    log::finish();
    result
}

fn start(options: &RunOptions) -> Result<(), Failure> {
    let config = Config::load(options.config.as_deref()).map_err(|error| Failure::new(Code::Config, error))?;
    let level = log::start(config.log.level)?;
    let notifier = Notifier::connect(&Environment::of_process()).map_err(system("connecting to systemd"))?.into();
    let identity = node::Identity::new(&config.node).map_err(system("asking for the node's name"))?;
    let mode = match options.datapath {
        Some(DatapathChoice::Kernel) => Mode::Kernel,
        Some(DatapathChoice::Memory) => Mode::Memory,
        None => config.datapath.mode,
    };
    info!(message_id = %messages::STARTED, version = env!("CARGO_PKG_VERSION"), node = %identity.name, "starting \
         nodelb");
    let (config_path, reaper) = (options.config.clone(), options.reaper.clone());
    let setup = Setup { config, config_path, reaper, level, identity, notifier };
    match mode {
        Mode::Kernel => run_kernel(setup),
        Mode::Memory => run_memory(setup),
    }
}

fn run_kernel(setup: Setup) -> Result<(), Failure> {
    // The reaper keeps capabilities that the daemon drops next.
    let reaper = kernel::reaper(&setup.config, setup.reaper.clone());
    let (datapath, findings) = kernel::open(&setup.config)?;
    let sockets = datapath.own_sockets();
    let register: Register = Arc::new(move |socket| sockets.register(socket));
    // Ports below 1024 need a capability.
    let admin_sockets = AdminSockets::open(&setup.config.admin, &register);
    let findings = kernel::drop_capabilities(&setup.config, &datapath, findings)?;
    let handles = kernel::handles(&setup.config, &datapath, reaper);
    let (reader, own) = (datapath.reader(), datapath.own_sockets());
    let maps: ReadMaps = Arc::new(move || reader.content().map_err(|error| error.to_string()));
    let attached = datapath.links();
    let tried = attached.clone();
    let clients = kernel::clients(datapath.reader());
    let counted = datapath.reader();
    let slots: ReadSlots = Arc::new(move |now| Some(counted.slots_taken(now)));
    let connections = datapath.counters().map(kernel::connections);
    let links: ReadLinks = Arc::new(move || attached.faults().iter().map(ToString::to_string).collect());
    let drift = Reports::default();
    let reports = drift.clone();
    let probe: Probe<KernelDatapath> =
        Box::new(move |datapath| vec![kernel::probe_links(datapath, &reports), kernel::probe_canary(&own, &tried)]);
    start_runtime(|| {
        let kernel = Some(findings);
        serve(
            setup,
            datapath,
            |_| maps,
            DatapathHandles {
                probe,
                register,
                admin_sockets,
                handles,
                links,
                drift,
                connections,
                clients,
                slots,
                kernel,
            },
        )
    })
}

fn run_memory(setup: Setup) -> Result<(), Failure> {
    warn!(
        message_id = %messages::MEMORY_ONLY,
        "the datapath is memory: connections are not translated"
    );
    let datapath = MemoryDatapath::new(setup.config.datapath.limits());
    // The engine's realised state is the content of the memory datapath.
    let maps = |snapshot: watch::Receiver<Arc<Snapshot>>| -> ReadMaps {
        Arc::new(move || Ok(Content { state: snapshot.borrow().realised.clone(), ..Content::default() }))
    };
    let register: Register = Arc::new(|_| Ok(()));
    let own = DatapathHandles {
        probe: Box::new(|_| Vec::new()),
        admin_sockets: AdminSockets::open(&setup.config.admin, &register),
        register,
        handles: None,
        links: Arc::new(Vec::new),
        drift: Reports::default(),
        connections: None,
        clients: Arc::new(|| None),
        slots: Arc::new(|_| None),
        kernel: None,
    };
    start_runtime(|| serve(setup, datapath, maps, own))
}

fn start_runtime<F: Future<Output = Result<(), Failure>>>(main: impl FnOnce() -> F) -> Result<(), Failure> {
    log::begin_writing().map_err(system("starting the thread that writes the log"))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(system("starting the runtime"))?;
    let result = runtime.block_on(main());
    // A blocked read of a file must not prevent the process from ending.
    runtime.shutdown_background();
    result
}

/// The daemon's handles that depend on the datapath.
struct DatapathHandles<D> {
    /// Tests whether the datapath is in effect.
    probe: Probe<D>,
    /// Exempts a socket from the datapath.
    register: Register,
    /// The sockets of the admin API, which are exempted.
    admin_sockets: AdminSockets,
    /// The handles to end stale sockets, if configured and available.
    handles: Option<Handles>,
    /// Reads the faults of the hooks.
    links: ReadLinks,
    /// Publishes what other programs have changed.
    drift: Reports,
    /// The numbers of connections, if they are counted.
    connections: Option<Connections>,
    /// Reads the number of remembered clients.
    clients: ReadClients,
    /// Reads the number of slots that are not free.
    slots: ReadSlots,
    /// The kernel features that nodelb uses, in one line.
    kernel: Option<String>,
}

async fn serve<D: Datapath + Send + 'static>(
    setup: Setup,
    datapath: D,
    maps: impl FnOnce(watch::Receiver<Arc<Snapshot>>) -> ReadMaps,
    DatapathHandles { probe, register, mut admin_sockets, handles, links, drift, connections, clients, slots, kernel }: DatapathHandles<D>,
) -> Result<(), Failure> {
    let Setup { config, config_path, level, identity, notifier, .. } = setup;
    let signals = Signals::listen().map_err(system("listening for signals"))?;
    let (clock, limits, node) = (Clock::start(), datapath.limits(), identity.name.to_string());
    let realised = datapath.dump().map_err(|error| Failure::new(Code::Internal, error))?;
    let expected = realised.services.len().saturating_sub(1);
    let (engine, previous_sources) = make_engine(&config, limits.services, realised).await;
    let recorder = start_recorder(&config, expected);
    let Listeners { open, unopened } = admin_sockets.listeners().map_err(system("listening for the admin API"))?;

    let (changes_in, changes) = mpsc::channel(QUEUE);
    let (snapshot_in, snapshot) = watch::channel(Arc::new(engine.snapshot(clock.now())));
    let (health_in, health) = watch::channel(Arc::new(Health::default()));
    let (stop_in, stop) = watch::channel(false);
    let stale_sockets = StaleSockets::new(snapshot.clone(), changes_in.clone(), moved(&config), clock);
    let stale_sockets = handles.map(|handles| stale_sockets.start(handles, stopped(stop.clone())));
    tokio::spawn(level.clone().report_suppressed(stopped(stop.clone())));
    let identity = follow_node(identity, changes_in.clone(), stop.clone()).await?;
    let (to_owner, own, shown) = (changes_in.clone(), Arc::clone(&register), snapshot.clone());
    let to_files = files::Connections { changes: to_owner, register: own, snapshot: shown, clock, expected };
    kubernetes::recall(&config, &previous_sources, &node, &changes_in).await;
    let files = files::start(&config, to_files, stop.clone());
    let (view, own) = (View { snapshot: snapshot.clone(), health: health.clone(), clock }, Arc::clone(&register));
    let (to_owner, shown, events) = (changes_in.clone(), snapshot.clone(), config.kubernetes.events);
    let ends = kubernetes::Connections { changes: to_owner, snapshot: shown, register, clock, node, expected, events };
    let kubernetes = kubernetes::start(config.kubernetes_settings(), ends, stop.clone()).await?;

    start_watchers(view, (changes_in.clone(), own), &config, stop.clone());

    let (read, asked) = (maps(snapshot.clone()), Arc::new(Notify::new()));
    let checker = Checker { read: Arc::clone(&read), snapshot: snapshot.clone(), reports: drift, asked, clock };
    let (rounds, drift_seen, check) = (Rounds::default(), checker.reports.subscribe(), Arc::clone(&checker.asked));
    let live = kubernetes::live_of(kubernetes.as_ref());
    let reality = Reality {
        links,
        drift: drift_seen,
        rounds: rounds.clone(),
        live,
        connections,
        clients,
        slots,
        ..Reality::default()
    };
    let (drift, config_in) = (checker.start(stopped(stop.clone())), watch::Sender::new(Arc::new(config)));
    let state = AdminState {
        snapshot: snapshot.clone(),
        sources: [files.sources].into_iter().chain(kubernetes.iter().map(|it| it.sources.clone())).collect(),
        apiservers: kubernetes::pool_of(kubernetes.as_ref()),
        checks: files.checks,
        health,
        stale_sockets,
        history: recorder.history,
        latencies: Some(recorder.latencies),
        maps: read,
        reality,
        kernel,
        limits,
        config: config_in.subscribe(),
        unopened,
        clock: Arc::new(move || Now { moment: clock.now(), unix: unix_seconds() }),
    };
    tokio::spawn(admin::serve(open, state, stopped(stop.clone())));
    let owner = Owner {
        engine,
        datapath,
        changes,
        drift,
        snapshot: snapshot_in,
        rounds,
        health: health_in,
        reporter: recorder.reporter,
        notifier: Arc::clone(&notifier),
        probe,
        clock,
    };
    let owner = tokio::spawn(owner.run(stopped(stop)));

    let reload =
        Reload { config: config_in, config_path, level, identity, directory: files.directory, check, notifier };
    reload.until_shutdown(signals).await;
    stop_in.send_replace(true);
    end(kubernetes.into_iter().map(|started| started.task).chain([files.checker]), owner, recorder.task).await
}

/// The engine, and the sources that were in use before according to the state directory.
async fn make_engine(config: &Config, max_services: u32, realised: Realised) -> (Engine, BTreeSet<Source>) {
    let previous_sources = kubernetes::previous_sources(config, kubernetes::STATE_TIMEOUT).await;
    (Engine::new(engine_config(config, previous_sources.clone(), max_services), realised), previous_sources)
}

/// Which sockets are ended, and the directory in which the id of the boot is stored.
fn moved(config: &Config) -> (Disconnect, PathBuf) {
    (config.datapath.disconnect, config.state.directory.clone())
}

/// Waits for the tasks that store their state; the recorder receives all events of the owner.
async fn end(
    tasks: impl Iterator<Item = JoinHandle<()>>,
    owner: JoinHandle<()>,
    recorder: JoinHandle<()>,
) -> Result<(), Failure> {
    let by = Instant::now() + SHUTDOWN_TIMEOUT;
    join_until(tasks, by).await;
    let owner = timeout_at(by, owner).await;
    join_until(std::iter::once(recorder), Instant::now() + SHUTDOWN_TIMEOUT).await;
    match owner {
        Ok(ended) => {
            ended.map_err(|error| Failure::message(Code::Internal, format!("the reconcile loop failed: {error}")))
        }
        Err(_elapsed) => Err(Failure::message(
            Code::Internal,
            format!(
                "the reconcile loop did not end within {} s; the next start continues from the kernel state",
                SHUTDOWN_TIMEOUT.as_secs()
            ),
        )),
    }
}

/// Starts the recorder, with the start of this run as its first event.
fn start_recorder(config: &Config, expected: usize) -> recorder::Started {
    let found = if expected == 1 { "1 service port".into() } else { format!("{expected} service ports") };
    let detail = format!("nodelb {} started; the kernel held {found}", env!("CARGO_PKG_VERSION"));
    let started = Event::for_daemon(What::Started, detail);
    recorder::start(config.state.directory.clone(), Latencies::default(), started, recorder::LIMITS)
}

/// Starts the task that watches other uses of the node's ports, and the one that answers load balancers. Without the
/// latter, services continue but load balancers consider the node unhealthy.
fn start_watchers(
    view: View,
    (changes, register): (mpsc::Sender<Vec<Change>>, Register),
    config: &Config,
    stop: watch::Receiver<bool>,
) {
    let overlap = config.datapath.protect_nodeports.then(|| Overlap::new(config.datapath.nodeport_range.into()));
    let bound_ports = BoundPorts::new(view.snapshot.clone(), changes.clone()).with_overlap(overlap);
    tokio::spawn(bound_ports.run(stopped(stop.clone())));
    // If the limit cannot be read, the usual one is assumed.
    let files =
        getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX));
    let (healthz_addresses, bounds) = (config.healthz_addresses(), lb_health::Bounds::within(files));
    let entry = LbHealth { view, changes, healthz_addresses, bounds, retry: LISTEN_AGAIN, register };
    if let Err(error) = lb_health::start(entry, stopped(stop)) {
        warn!(
            message_id = %messages::HEALTH_CHECK_PORT_FAILED,
            "cannot answer health checks of load balancers: {error}; restart nodelb"
        );
    }
}

/// Waits until the tasks have stored their state, until `by` for all of them: a disk that hangs must not prevent the
/// process from ending.
async fn join_until(tasks: impl Iterator<Item = JoinHandle<()>>, by: Instant) {
    for task in tasks {
        _ = timeout_at(by, task).await;
    }
}

/// Sends the first change: no backend is selected before the node knows its name and addresses. The identity of the
/// node may change later.
async fn follow_node(
    identity: node::Identity,
    changes: mpsc::Sender<Vec<Change>>,
    stop: watch::Receiver<bool>,
) -> Result<watch::Sender<Arc<node::Identity>>, Failure> {
    let (identity_in, identity) = watch::channel(Arc::new(identity));
    let connections = node::watch::Connections { identity, changes };
    let started = node::watch::start(connections, node::watch::NodeWatchTimeouts::default(), stopped(stop)).await;
    started.map_err(system("asking for the node's addresses"))?;
    Ok(identity_in)
}

fn unix_seconds() -> u64 {
    clock::unix_seconds(SystemTime::now())
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // Fails only if the sender has ended, and with it the daemon.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn engine_config(config: &Config, previous_sources: BTreeSet<Source>, max_services: u32) -> EngineConfig {
    let admin = config.admin.listen.iter().map(|address| (Addr::from(address.ip()), address.port())).collect();
    let listen = config.admin.listen.iter().map(|address| (address.port(), "admin.listen"));
    let healthz = config.healthz_addresses().into_iter();
    let healthz = healthz.map(|address| (address.port(), "kubernetes.healthz-addresses"));
    let guard = Guard {
        admin,
        own_ports: listen.chain(healthz).filter(|(port, _)| *port != 0).collect(),
        bypass: config.datapath.bypass.clone(),
        nodeport_range: config.datapath.nodeport_range.into(),
        external_ips: config.datapath.external_ips.clone(),
    };
    let kubernetes = config.kubernetes_settings().map(|_| Source::Kubernetes);
    let sources: BTreeSet<Source> = std::iter::once(Source::Files).chain(kubernetes).collect();
    let disabled_sources = kubernetes::disabled_sources(config);
    EngineConfig { guard, sources, previous_sources, disabled_sources, max_services, packets: PacketsConfig::default() }
}

fn system<E: Display>(what: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::message(Code::System, format!("{what}: {error}"))
}

#[cfg(test)]
#[path = "tests/run.rs"]
mod tests;
