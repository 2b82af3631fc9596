//! What `nodelb run` is made of, and in which order. Everything that can be refused is refused before the kernel is
//! touched; capabilities are dropped before there are threads; only then is there a runtime.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use nodelb_core::addr::Addr;
use nodelb_core::change::{Change, NodeFacts};
use nodelb_core::compile::Guard;
use nodelb_core::datapath::Datapath;
use nodelb_core::engine::{Engine, EngineConfig, Snapshot};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::service::Source;
use nodelb_datapath::{KernelDatapath, Options, Origin, OwnSockets, drop_privileges};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use crate::admin::{self, AdminState, Check, Health, Now, ReadMaps};
use crate::canary;
use crate::cli::{DatapathChoice, RunOptions};
use crate::clock::Clock;
use crate::config::{Config, Mode};
use crate::exit::{Code, Failure};
use crate::log::{self, LevelControl};
use crate::node;
use crate::notify::{Environment, Notifier};
use crate::reconcile::{Owner, Probe, QUEUE};
use crate::source::file;

/// The environment variable that makes the daemon kill itself after so many operations on maps, pins and links: how
/// the tests try out a crash at every step.
const CRASH_AFTER: &str = "NODELB_CRASH_AFTER";

/// Everything that is ready before the runtime starts.
struct Ground {
    config: Config,
    config_path: Option<PathBuf>,
    level: LevelControl,
    listeners: Vec<TcpListener>,
    facts: NodeFacts,
    notifier: Arc<Notifier>,
}

/// Runs the daemon until it is told to end.
///
/// # Errors
/// When it cannot start. Afterwards it degrades instead of ending.
pub fn run(options: &RunOptions) -> Result<(), Failure> {
    let config = Config::load(options.config.as_deref()).map_err(|error| Failure::new(Code::Config, error))?;
    let level = log::start(config.log.level)?;
    let notifier = Notifier::connect(&Environment::of_process()).map_err(system("connecting to systemd"))?.into();
    let listeners = config.admin.listen.iter().map(bind).collect::<Result<_, _>>()?;
    let facts = node::facts(&config.node).map_err(system("asking for the node's name and addresses"))?;
    let mode = match options.datapath {
        Some(DatapathChoice::Kernel) => Mode::Kernel,
        Some(DatapathChoice::Memory) => Mode::Memory,
        None => config.datapath.mode,
    };
    info!(version = env!("CARGO_PKG_VERSION"), node = %facts.name, "nodelb starts");
    let ground = Ground { config, config_path: options.config.clone(), level, listeners, facts, notifier };
    match mode {
        Mode::Kernel => run_kernel(ground),
        Mode::Memory => run_memory(ground),
    }
}

fn run_kernel(ground: Ground) -> Result<(), Failure> {
    let datapath = open_kernel(&ground.config)?;
    let (reader, own) = (datapath.reader(), datapath.own_sockets());
    let maps: ReadMaps = Arc::new(move || reader.dump().map_err(|error| error.to_string()));
    let probe: Probe<KernelDatapath> = Box::new(move |datapath| vec![probe_links(datapath), probe_canary(&own)]);
    start_runtime(|| serve(ground, datapath, |_| maps, probe))
}

fn run_memory(ground: Ground) -> Result<(), Failure> {
    warn!("the datapath is memory: everything works but the translation of connections");
    let datapath = MemoryDatapath::new(ground.config.datapath.limits());
    // What the memory holds is what the engine knows to be realised.
    let maps = |snapshot: watch::Receiver<Arc<Snapshot>>| -> ReadMaps {
        Arc::new(move || Ok(snapshot.borrow().realised.clone()))
    };
    start_runtime(|| serve(ground, datapath, maps, Box::new(|_| Vec::new())))
}

/// Opens the kernel datapath and gives up the capabilities that took.
fn open_kernel(config: &Config) -> Result<KernelDatapath, Failure> {
    let options = Options {
        pin_directory: config.datapath.pin_directory.clone(),
        cgroup: config.datapath.cgroup().map(ToOwned::to_owned),
        limits: config.datapath.limits(),
        nodeport_range: config.datapath.nodeport_range.into(),
        crash_after: crash_after()?,
    };
    let (datapath, report) = KernelDatapath::open(&options).map_err(|error| Failure::new(Code::Permission, error))?;
    let maps = match report.origin {
        Origin::Created => "new maps".to_owned(),
        Origin::Reused => "the maps of before".to_owned(),
        Origin::Rebuilt { .. } => "larger or smaller maps with the content of before".to_owned(),
    };
    info!(generation = report.generation, cgroup = %report.cgroup.display(), "attached, with {maps}");
    for what in &report.corrupt {
        warn!("left out of the new maps, since nodelb cannot have written it: {what}");
    }
    for lack in report.features.missing() {
        warn!("{lack}");
    }
    let kept = drop_privileges(&datapath).map_err(|error| Failure::new(Code::Permission, error))?;
    match kept.capabilities.as_slice() {
        [] => info!("every capability is dropped"),
        kept => info!("every capability is dropped but {}, which this kernel asks for", kept.join(", ")),
    }
    Ok(datapath)
}

/// How many operations the daemon survives, if a test says so.
pub(crate) fn crash_after() -> Result<Option<u64>, Failure> {
    let Some(value) = std::env::var_os(CRASH_AFTER) else { return Ok(None) };
    let number = value.to_str().and_then(|text| text.parse().ok());
    let refused = || Failure::message(Code::Config, format!("{CRASH_AFTER}={}: not a number", value.display()));
    number.map(Some).ok_or_else(refused)
}

/// Links that are gone are put back; saying so once is the loop's business.
fn probe_links(datapath: &mut KernelDatapath) -> Check {
    match datapath.ensure_attached() {
        Ok(faults) if faults.is_empty() => Check::passed("links", "every program is attached"),
        Ok(faults) => {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            warn!("links were not as they should be and are attached again: {}", faults.join("; "));
            Check::passed("links", "every program is attached again")
        }
        Err(error) => Check::failed("links", error.to_string()),
    }
}

fn probe_canary(own: &OwnSockets) -> Check {
    match canary::check(|socket| own.register(socket)) {
        Ok(alive) if alive.notes.is_empty() => Check::passed("canary", "the hooks are in effect"),
        Ok(alive) => Check::passed("canary", format!("the hooks are in effect; {}", alive.notes.join("; "))),
        Err(error) => Check::failed("canary", error.to_string()),
    }
}

fn bind(address: &SocketAddr) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    match listener {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(Failure::message(
            Code::Unavailable,
            format!("{address} is in use: another nodelb runs, or something else has the port; see admin.listen"),
        )),
        other => other.map_err(|error| {
            Failure::message(Code::Unavailable, format!("listening on {address} of admin.listen: {error}"))
        }),
    }
}

fn start_runtime<F: Future<Output = Result<(), Failure>>>(main: impl FnOnce() -> F) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(system("starting the runtime"))?;
    let result = runtime.block_on(main());
    // A file read that hangs in the kernel must not keep the process from ending.
    runtime.shutdown_background();
    result
}

async fn serve<D: Datapath + Send + 'static>(
    ground: Ground,
    datapath: D,
    maps: impl FnOnce(watch::Receiver<Arc<Snapshot>>) -> ReadMaps,
    probe: Probe<D>,
) -> Result<(), Failure> {
    let Ground { config, config_path, level, listeners, facts, notifier } = ground;
    let clock = Clock::start();
    let limits = datapath.limits();
    let realised = datapath.dump().map_err(|error| Failure::new(Code::Internal, error))?;
    let engine = Engine::new(engine_config(&config, limits.services), realised);

    let (changes_in, changes) = mpsc::channel(QUEUE);
    let (snapshot_in, snapshot) = watch::channel(Arc::new(engine.snapshot(clock.now())));
    let (health_in, health) = watch::channel(Arc::new(Health::default()));
    let (sources_in, sources) = watch::channel(Arc::new(Vec::new()));
    let (directory_in, directory) = watch::channel(config.files.directory.clone());
    let (stop_in, stop) = watch::channel(false);

    let now = move || Now { moment: clock.now(), unix: unix_seconds() };
    let state =
        AdminState { snapshot: snapshot.clone(), sources, health, maps: maps(snapshot), limits, clock: Arc::new(now) };
    let listeners = listeners
        .into_iter()
        .map(tokio::net::TcpListener::from_std)
        .collect::<Result<_, _>>()
        .map_err(system("listening for the admin API"))?;
    tokio::spawn(admin::serve(listeners, state, stopped(stop.clone())));
    // The first change of all: nothing is selected before the node knows its name. The owner holds the receiver.
    let _ = changes_in.send(vec![Change::Node(facts)]).await;
    let files = file::FileSource { directory, changes: changes_in.clone(), reports: sources_in };
    tokio::spawn(file::run(files, stopped(stop.clone())));
    let owner = Owner {
        engine,
        datapath,
        changes,
        snapshot: snapshot_in,
        health: health_in,
        notifier: Arc::clone(&notifier),
        probe,
        clock,
    };
    let owner = tokio::spawn(owner.run(stopped(stop)));

    let reload = Reload {
        config,
        config_path,
        level,
        changes: changes_in,
        directory: directory_in,
        notifier: Arc::clone(&notifier),
    };
    reload.until_told_to_end().await.map_err(system("waiting for signals"))?;
    notifier.stopping("stopping; connections go on");
    info!("told to end: maps and programs stay in place, connections go on");
    stop_in.send_replace(true);
    owner.await.map_err(|error| Failure::message(Code::Internal, format!("the reconcile loop ended badly: {error}")))
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the sender is gone, and so is the daemon.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn engine_config(config: &Config, max_services: u32) -> EngineConfig {
    let admin = config.admin.listen.iter().map(|address| (Addr::from(address.ip()), address.port())).collect();
    let guard =
        Guard { admin, bypass: config.datapath.bypass.clone(), nodeport_range: config.datapath.nodeport_range.into() };
    EngineConfig { guard, sources: BTreeSet::from([Source::Files]), max_services }
}

fn system<E: Display>(what: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::message(Code::System, format!("{what}: {error}"))
}

/// What SIGHUP needs.
struct Reload {
    config: Config,
    config_path: Option<PathBuf>,
    level: LevelControl,
    changes: mpsc::Sender<Vec<Change>>,
    directory: watch::Sender<PathBuf>,
    notifier: Arc<Notifier>,
}

impl Reload {
    /// Answers SIGHUP until SIGTERM or SIGINT.
    async fn until_told_to_end(mut self) -> io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                _ = terminate.recv() => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                _ = hangup.recv() => {
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
            let facts = node::facts(&config.node).map_err(|error| format!("the node's own facts: {error}"))?;
            Ok((config, facts))
        });
        let (config, facts) = match loaded.await.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(loaded) => loaded,
            Err(problems) => {
                for problem in problems.lines() {
                    error!("{problem}");
                }
                error!("the configuration has problems: it is refused whole, the old one stays in force");
                return "reload refused, see the journal; the old configuration stays in force".into();
            }
        };
        let restart = self.config.restart_keys(&config);
        if !restart.is_empty() {
            warn!("changed, but takes effect only after a restart: {}", restart.join(", "));
        }
        self.level.set(config.log.level);
        // Also where it is the same: a reload reads every file again.
        self.directory.send_replace(config.files.directory.clone());
        if self.changes.send(vec![Change::Node(facts)]).await.is_err() {
            warn!("the reconcile loop is gone: the node's facts cannot be taken over");
        }
        // What needs a restart stays in force as it was, so that the next reload compares with that.
        self.config = Config { admin: self.config.admin.clone(), datapath: self.config.datapath.clone(), ..config };
        info!("the configuration is reloaded");
        "configuration reloaded".into()
    }
}
