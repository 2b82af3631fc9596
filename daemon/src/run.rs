//! The parts of `nodelb run` and the order of their start. All errors in the configuration are found before the kernel
//! is changed; the capabilities are dropped before there are threads; the runtime starts last.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use nodelb_cli::exit::{Code, Failure};
use nodelb_cli::{DatapathChoice, RunOptions};
use nodelb_core::compile::guard::Guard;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Datapath;
use nodelb_core::engine::Engine;
use nodelb_core::history::{Event, What};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::Family;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::text::counted;
use nodelb_datapath::{is_open_for_writing, memory};
use nodelb_host::clock::{Clock, ticking, until};
use nodelb_host::messages;
use nodelb_host::register::Register;
use nodelb_report::problems::Earlier;
use nodelb_sources::{OwnerHandle, checks, dns, drains, files};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::admin::{self, AdminState};
use crate::config::Config;
use crate::datapath::{DatapathReader, MemoryReader};
use crate::devices::{Open, PacketPath};
use crate::lb_health::{self, LbHealth, View};
use crate::notify::{Environment, Notifier};
use crate::reconcile::{Owner, Probe, ProbeResult, service_ports};
use crate::since::Past;
use crate::sockets::bound::{BoundPorts, Overlap};
use crate::sockets::stale::{Handles, StaleSockets};
use crate::status::Health;
use crate::{devices, http, kubernetes, log, node, recorder, since};

mod admin_sockets;
mod kernel;
mod reload;

use admin_sockets::{AdminSockets, Listeners};
pub(crate) use kernel::{crash_after, refused, under_way};
use reload::{Reload, Signals};

/// How long the sources, the checker and the owner may take together to store their state at the end of the daemon, and
/// then the recorder again: a stop takes at most twice this time.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(4);

/// Free memory is returned to the kernel at this interval.
const RELEASE_MEMORY_EVERY: Duration = Duration::from_secs(30);

/// Everything that does not depend on the datapath, before the runtime starts.
struct Setup {
    config: Config,
    config_path: Option<PathBuf>,
    level: log::Control,
    identity: node::Identity,
    notifier: Arc<Notifier>,
}

/// The open datapath, with what depends on its kind.
struct OpenDatapath<D> {
    datapath: D,
    probe: Probe<D>,
    register: Register,
    /// `None` for maps in memory, which the snapshots contain.
    reader: Option<Arc<dyn DatapathReader>>,
    /// The handles to end stale sockets, if configured and available.
    stale_sockets: Option<Handles>,
    packets: PacketPath,
}

/// Runs the daemon until it is stopped.
///
/// # Errors
/// If it cannot start. Later errors degrade the service and do not end the daemon.
pub fn run(options: &RunOptions) -> Result<(), Failure> {
    Signals::defer_hangups().map_err(system("deferring SIGHUP"))?;
    memory::share_heap();
    log::end_on_panic();
    let result = start(options);
    log::finish();
    result
}

fn start(options: &RunOptions) -> Result<(), Failure> {
    let loaded = Config::load_with_absence(options.config.as_deref());
    let (config, absence) = loaded.map_err(|error| Failure::new(Code::Config, error))?;
    let level = log::start(config.log.level)?;
    let notifier = Notifier::connect(&Environment::of_process()).map_err(system("connecting to systemd"))?.into();
    let identity = node::Identity::new(&config).map_err(system("asking for the node's name"))?;
    let mode = options.datapath.unwrap_or(config.datapath.mode);
    info!(message_id = %messages::STARTED, version = env!("CARGO_PKG_VERSION"), node = %identity.name, "starting \
         nodelb");
    if let Some(absence) = absence {
        info!(message_id = %messages::CONFIG_ABSENT, "{absence}: every key has its default");
    }
    let setup = Setup { config, config_path: options.config.clone(), level, identity, notifier };
    match mode {
        DatapathChoice::Kernel => run_kernel(setup, options.reaper.clone()),
        DatapathChoice::Memory => run_memory(setup),
    }
}

/// Runs with the maps and programs in the kernel. `reaper` is the socket of a reaper that another process starts.
fn run_kernel(setup: Setup, reaper: Option<PathBuf>) -> Result<(), Failure> {
    let config = &setup.config;
    // Reapers keep capabilities that the daemon drops next.
    let packet_reaper = kernel::packet_reaper(config, reaper.clone());
    let reaper = kernel::reaper(config, reaper);
    let proxies = devices::find_proxies(&config.packets);
    let policy_events = devices::listen_to_policies(&config.packets);
    let kernel::Opened { mut datapath, findings, packet_failure, has_ended_packets } = kernel::open(config, &proxies)?;
    let register = kernel::register(&datapath);
    // Ports below 1024 need a capability.
    let admin_sockets = AdminSockets::open(&config.admin, &register);
    let features = kernel::drop_capabilities(config, &datapath, findings)?;
    let stale_sockets = kernel::handles(config, &datapath, reaper);
    let reader = kernel::Reader::new(&datapath, features);
    let (probe, reader) = (Box::new(kernel::probe), Some(Arc::new(reader) as _));
    let packets = match datapath.take_packets() {
        Some(packets) => {
            let findings = proxies;
            PacketPath::Open(Box::new(Open { packets, reaper: packet_reaper, findings, policy_events }))
        }
        None => packet_failure.map_or(PacketPath::Off { is_news: has_ended_packets }, PacketPath::Failed),
    };
    let open = OpenDatapath { datapath, probe, register, reader, stale_sockets, packets };
    start_runtime(|| serve(setup, open, admin_sockets))
}

fn run_memory(setup: Setup) -> Result<(), Failure> {
    warn!(
        message_id = %messages::MEMORY_ONLY,
        "the datapath is memory: connections are not translated"
    );
    let register: Register = Arc::new(|_| Ok(()));
    let admin_sockets = AdminSockets::open(&setup.config.admin, &register);
    let datapath = MemoryDatapath::new(setup.config.limits());
    let probe = Box::new(|_: &mut _| ProbeResult::default());
    let packets = PacketPath::Off { is_news: false };
    let open = OpenDatapath { datapath, probe, register, reader: None, stale_sockets: None, packets };
    start_runtime(|| serve(setup, open, admin_sockets))
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

/// Builds the daemon and runs it until a signal ends it. The owner task exists first, so that all others have its
/// handle, and runs last: until then, changes wait in its queue.
async fn serve<D: Datapath + Send + 'static>(
    setup: Setup,
    open: OpenDatapath<D>,
    mut admin_sockets: AdminSockets,
) -> Result<(), Failure> {
    let Setup { config, config_path, level, identity, notifier } = setup;
    let OpenDatapath { datapath, probe, register, reader, stale_sockets, packets } = open;
    let signals = Signals::listen().map_err(system("listening for signals"))?;
    let Listeners { open, unopened } = admin_sockets.listeners().map_err(system("listening for the admin API"))?;
    let (clock, limits, shutdown) = (Clock::since_boot(), datapath.limits(), CancellationToken::new());
    let stop = || shutdown.clone().cancelled_owned();

    // The state of the previous run.
    let realised = datapath.dump().map_err(|error| Failure::new(Code::Internal, error))?;
    let (since_file, stored_drains) = (since::path(&config.state.directory), drains::begin(&config.state.directory));
    let (previous_sources, past, stored_checks, stored_names) = stored(&config, &since_file).await;
    let mut recorder = start_recorder(&config, service_ports(&realised));
    let mut engine_config = engine_config(&config, previous_sources.clone(), limits.services);
    packets.adjust(&mut engine_config.packets);
    let mut engine = Engine::new(engine_config, realised);
    let problems = past.recall(&mut engine, &mut recorder.reporter, clock.now());
    let (mut owner, handle, published) =
        Owner::new(engine, (datapath, probe), recorder.reporter, Arc::clone(&notifier), clock);

    // The observers of the node. Stale sockets count from the first snapshot, and the first change has the node's facts.
    let (marks, directory, scope) = (owner.marks(), config.state.directory.clone(), config.datapath.disconnects());
    let stale_sockets =
        stale_sockets.map(|it| StaleSockets::new((&handle, &marks), scope, &directory).start(it, stop()));
    tokio::spawn(level.clone().report_suppressed(stop()));
    let (name, identity) = (Arc::clone(&identity.name), watch::Sender::new(Arc::new(identity)));
    follow_node(identity.subscribe(), &handle, stop()).await?;
    watch_ports(&config, handle.clone(), stop());

    // The sources. No connection goes to a backend that was drained or unhealthy before the start, or to others than then.
    let (drains, (checks, checker), (dns, resolver)) = tokio::join!(
        drains::start((stored_drains, &directory), &handle, stop()),
        checks::start(&handle, kubernetes_guard(&config), stored_checks, packets.prepare_checks(&register), stop()),
        dns::start(config.dns.settings(), &handle, stored_names, Arc::clone(&register), stop())
    );
    // What is not known of Kubernetes stays as the maps have it, so that nothing waits for this.
    tokio::spawn(kubernetes::recall(config.clone(), previous_sources, Arc::clone(&name), handle.changes.clone()));
    let files = files::start((config.files.directory.clone(), directory), &handle, is_open_for_writing, stop());
    let kubernetes = kubernetes::start(&config, (&handle, &marks), &name, Arc::clone(&register), &shutdown).await?;
    let (kubernetes, from_kubernetes) = kubernetes.unzip();

    // The readers: servers, and the comparison of the maps with the snapshot.
    answer_load_balancers(&config, &handle, published.health.clone(), register, stop());
    let reader = reader.unwrap_or_else(|| Arc::new(MemoryReader { limits, snapshot: handle.snapshot.clone() }));
    let check = owner.start_drift_checker(Arc::clone(&reader), stop());
    let (config, reloads) = (watch::Sender::new(Arc::new(config)), watch::Sender::default());
    let packets = devices::start(packets, (&handle, &marks), &config.subscribe(), stop);
    let (accepts, directory) = (kubernetes.as_ref().map(|it| it.accepts.clone()), files.directory);
    let state = AdminState {
        owner: published,
        datapath: reader,
        files: files.reports,
        dns,
        drains,
        checks,
        kubernetes,
        recorder: recorder.published,
        stale_sockets,
        packets,
        config: config.subscribe(),
        reloads: reloads.subscribe(),
        unopened,
        summaries: Arc::default(),
        nearly_full: Arc::default(),
        earlier: Arc::new(Mutex::new(Earlier::new(problems.clone(), admin::now(clock).time))),
        clock: Arc::new(move || admin::now(clock)),
        started: clock.started(),
    };
    let (since, beginnings) = since::start(since_file, handle.snapshot.clone(), problems, shutdown.clone());
    tokio::spawn(admin::watch_problems(state.clone(), beginnings, stop()));
    tokio::spawn(admin::serve(open, state, stop()));
    tokio::spawn(until(stop(), release_free_memory(handle.snapshot.clone())));

    let owner = tokio::spawn(owner.run(stop()));
    let reload = Reload { config, reloads, config_path, level, identity, directory, check, accepts, notifier };
    reload.until_shutdown(signals).await;
    shutdown.cancel();
    end(from_kubernetes.into_iter().flatten().chain([files.task, resolver, checker]), owner, [recorder.task, since])
        .await
}

/// Returns memory to the kernel when the start is complete, and regularly after that: bursts of events, large answers and
/// the state file need memory for moments only.
async fn release_free_memory(mut snapshot: watch::Receiver<Arc<Snapshot>>) {
    _ = snapshot.wait_for(|snapshot| snapshot.is_ready).await;
    let mut due = ticking(RELEASE_MEMORY_EVERY);
    loop {
        due.tick().await;
        _ = tokio::task::spawn_blocking(memory::release_free_memory).await;
    }
}

/// What the previous run has stored, all of it read at once, because a file system that does not answer delays the start.
async fn stored(config: &Config, since_file: &Path) -> (BTreeSet<Source>, Past, checks::Stored, dns::Stored) {
    let directory = &config.state.directory;
    tokio::join!(
        kubernetes::previous_sources(config),
        since::load(since_file),
        checks::load(directory),
        dns::load(directory)
    )
}

/// Waits for the tasks that store their state: the Kubernetes source stores the owner's last snapshot, and `records`
/// receive all events and the last snapshot of the owner.
async fn end(
    tasks: impl Iterator<Item = JoinHandle<()>>,
    owner: JoinHandle<()>,
    records: [JoinHandle<()>; 2],
) -> Result<(), Failure> {
    let by = Instant::now() + SHUTDOWN_TIMEOUT;
    join_until(tasks, by).await;
    let owner = timeout_at(by, owner).await;
    join_until(records.into_iter(), Instant::now() + SHUTDOWN_TIMEOUT).await;
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

/// The addresses that Kubernetes services must not make this host connect to; `None` if these are not checked.
fn kubernetes_guard(config: &Config) -> Option<Guard> {
    config.kubernetes.health_checks.then(|| config.guard())
}

/// Starts the recorder, with the start of this run as its first event.
fn start_recorder(config: &Config, expected: usize) -> recorder::StartedRecorder {
    let found = counted(expected, "service port");
    let detail = format!("nodelb {} started; the kernel held {found}", env!("CARGO_PKG_VERSION"));
    let started = Event::for_daemon(What::Started, detail);
    recorder::start(config.state.directory.clone(), started, recorder::LIMITS)
}

/// Starts the task that looks for NodePorts that a process of the node has bound.
fn watch_ports(config: &Config, owner: OwnerHandle, stop: impl Future<Output = ()> + Send + 'static) {
    let overlap = config.datapath.protect_nodeports.then(|| Overlap::new(config.datapath.nodeport_range.clone()));
    tokio::spawn(BoundPorts::new(owner).with_overlap(overlap).run(stop));
}

/// Starts the task that answers load balancers. Without it, services continue but load balancers consider the node
/// unhealthy.
fn answer_load_balancers(
    config: &Config,
    owner: &OwnerHandle,
    health: watch::Receiver<Arc<Health>>,
    register: Register,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    // If the limit cannot be read, the usual one is assumed.
    let files =
        getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX));
    let entry = LbHealth {
        view: View { snapshot: owner.snapshot.clone(), health, clock: owner.clock },
        changes: owner.changes.clone(),
        healthz_addresses: config.healthz_addresses(),
        bounds: lb_health::Bounds::within(files),
        retry: http::LISTEN_AGAIN,
        register,
    };
    if let Err(error) = lb_health::start(entry, stop) {
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
    identity: watch::Receiver<Arc<node::Identity>>,
    owner: &OwnerHandle,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    // Of several addresses where an earlier nodelb has served NodePorts, none is known to have been the primary one.
    let served = owner.snapshot.borrow().realised.node_addrs.clone();
    let of = |family| served.iter().copied().filter(move |addr| addr.family() == family);
    let only = |family| of(family).next().filter(|_| of(family).count() == 1);
    let former = [Family::Ipv4, Family::Ipv6].into_iter().filter_map(only).collect();
    let started = node::watch::start(identity, former, owner.changes.clone(), stop).await;
    started.map_err(system("asking for the node's addresses"))
}

pub(crate) fn engine_config(config: &Config, previous_sources: BTreeSet<Source>, max_services: u32) -> EngineConfig {
    let guard = config.guard();
    let kubernetes = config.kubernetes_settings().map(|_| Source::Kubernetes);
    let sources: BTreeSet<Source> = std::iter::once(Source::Files).chain(kubernetes).collect();
    let disabled_sources = kubernetes::disabled_sources(config);
    let packets = config.packets.engine();
    let is_unchecked = !config.kubernetes.health_checks;
    let unchecked_sources = is_unchecked.then_some(Source::Kubernetes).into_iter().collect();
    EngineConfig { guard, sources, previous_sources, disabled_sources, unchecked_sources, max_services, packets }
}

fn system<E: Display>(what: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::message(Code::System, format!("{what}: {error}"))
}

#[cfg(test)]
#[path = "tests/run.rs"]
mod tests;
