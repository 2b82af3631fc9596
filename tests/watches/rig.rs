//! A simulated node that watches a simulated cluster: the supervisor and the Kubernetes source of
//! the daemon, an engine with maps in memory, and an observer that checks every batch of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nodelb_apiserver::{Cluster, Credentials as Shown, Faults, Replica, Role, ServeOptions};
use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Addr, L4Addr};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{Service, Slice, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_core::state::entries::Realised;
use nodelb_core::trace::{self, Verdict};
use nodelb_host::clock::Clock;
use nodelb_kube::api::decode::{Decode, Decoder, Kind, ListWatchEvent};
use nodelb_kube::api::scope::Selection;
use nodelb_kube::api::translate::ForwardByClass;
use nodelb_kube::apiserver;
use nodelb_kube::apiserver::address::{Address, Server};
use nodelb_kube::apiserver::connection::connect;
use nodelb_kube::apiserver::credentials::{self, Credentials};
use nodelb_kube::apiserver::endpoints::timeouts::PoolTimeouts;
use nodelb_kube::apiserver::session::Apiservers;
use nodelb_kube::apiserver::settings::Settings;
use nodelb_kube::source::selecting::{Accept, By};
use nodelb_kube::source::store::InMaps;
use nodelb_kube::source::watch::WatchTimeouts;
use nodelb_kube::source::{self, Followed, KubernetesSource, StateSettings};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};

use crate::objects;

/// Large enough for every test.
const ROOMY: Limits =
    Limits { frontends: 1_000, services: 1_000, slots: 100_000, affinity: 1_000, outside: 0, source_ranges: 0 };

/// Time limit of every condition.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A cluster and a node; see the module.
pub(crate) struct Rig {
    pub(crate) cluster: Cluster,
    pub(crate) replica: Replica,
    pub(crate) node: Node,
    state: tempfile::TempDir,
    reads: Reads,
}

/// What the configuration of the node says about services, and how late its owner task is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reads {
    pub(crate) selection: Selection,
    pub(crate) forward: Arc<ForwardByClass>,
    /// How long each batch of changes waits for its round.
    pub(crate) round_after: Duration,
}

impl From<Selection> for Reads {
    fn from(selection: Selection) -> Self {
        Self { selection, ..Self::default() }
    }
}

/// The components of nodelb. Dropping it has the effect of a kill.
pub(crate) struct Node {
    /// Its tasks end with it.
    runtime: Option<Runtime>,
    observer: Arc<Mutex<Observer>>,
    pub(crate) sources: watch::Receiver<Arc<Vec<SourceReport>>>,
    journal: Journal,
    kubeconfig: PathBuf,
    accepts: mpsc::Sender<Accept>,
}

/// The log of the node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal(Arc<Mutex<String>>);

/// The state of the owner.
pub(crate) struct Observer {
    engine: Engine,
    maps: MemoryDatapath,
    now: Moment,
    is_synced: bool,
    /// The addresses of apiservers that the supervisor knows.
    pub(crate) apiservers: BTreeSet<(Addr, u16)>,
    /// Frontends that must always have a backend once they have one.
    watched: BTreeMap<L4Addr, Option<L4Addr>>,
    lost: Vec<String>,
}

impl Rig {
    /// A cluster with this content, and a new node.
    pub(crate) fn start(objects: impl IntoIterator<Item = Value>) -> Self {
        let cluster = Cluster::new().expect("a cluster");
        objects.into_iter().for_each(|object| cluster.apply_value(object).expect("a valid object"));
        Self::of(cluster, ServeOptions::default(), |_| {})
    }

    /// An empty cluster that offers these ALPN protocols.
    pub(crate) fn over(alpn: &[&'static str]) -> Self {
        let options = ServeOptions { alpn: alpn.to_vec(), ..ServeOptions::default() };
        Self::of(Cluster::new().expect("a cluster"), options, |_| {})
    }

    /// A cluster whose server is configured before the node starts.
    pub(crate) fn of(cluster: Cluster, options: ServeOptions, prepare: impl FnOnce(&Faults)) -> Self {
        let replica = serve(&cluster, options);
        prepare(replica.faults());
        let state = tempfile::tempdir().expect("a directory");
        let node = Node::start(&cluster, replica.address(), state.path());
        Self { cluster, replica, node, state, reads: Reads::default() }
    }

    /// A cluster with this content, a user who may do this, and a new node that reads these services.
    pub(crate) fn of_selection(objects: impl IntoIterator<Item = Value>, role: Role, reads: impl Into<Reads>) -> Self {
        let reads = reads.into();
        let cluster = Cluster::new().expect("a cluster");
        objects.into_iter().for_each(|object| cluster.apply_value(object).expect("a valid object"));
        cluster.allow("nodelb", role);
        let replica = serve(&cluster, ServeOptions::default());
        let state = tempfile::tempdir().expect("a directory");
        let node = Node::start_with(&cluster, replica.address(), state.path(), None, (timeouts(), &reads));
        Self { cluster, replica, node, state, reads }
    }

    /// Kills the node and starts another one instead that reads these services.
    pub(crate) fn restart_node_with(&mut self, reads: impl Into<Reads>) {
        self.reads = reads.into();
        self.restart_node();
    }

    /// [`Self::shop`], with watches whose silence timeout is longer than any test: a new watch cannot hide what a test
    /// shows.
    pub(crate) fn patient_shop(services: u64) -> Self {
        let cluster = Cluster::new().expect("a cluster");
        (0..services).flat_map(objects::pair).for_each(|object| cluster.apply_value(object).expect("a valid object"));
        let replica = serve(&cluster, ServeOptions::default());
        let state = tempfile::tempdir().expect("a directory");
        let patient = WatchTimeouts { watch_silence: 10 * TIMEOUT, ..timeouts() };
        let reads = Reads::default();
        let node = Node::start_with(&cluster, replica.address(), state.path(), None, (patient, &reads));
        let rig = Self { cluster, replica, node, state, reads };
        rig.converge("the beginning");
        rig
    }

    /// This number of services with one backend each, watched and served.
    pub(crate) fn shop(services: u64) -> Self {
        let rig = Self::start((0..services).flat_map(objects::pair));
        (0..services).for_each(|number| rig.watch(&objects::frontend(number), Some(&objects::backend(number))));
        rig.converge("the beginning");
        rig
    }

    /// From now on the frontend must always reach a backend: this one, or any.
    pub(crate) fn watch(&self, frontend: &str, backend: Option<&str>) {
        self.node.observer().watch(frontend, backend);
    }

    /// The requests for a resource since the last call.
    pub(crate) fn requests(&self, kind: Kind) -> Vec<String> {
        let mut requests = self.replica.faults().take_requests();
        requests.retain(|line| line.starts_with(&format!("GET {}?", kind.path())));
        requests
    }

    /// Makes a change while the node is disconnected.
    pub(crate) fn away(&self, change: impl FnOnce(&Cluster)) {
        self.replica.faults().refuse(true);
        self.replica.faults().reset_connections();
        change(&self.cluster);
        self.replica.faults().refuse(false);
    }

    /// Waits until the row of `/sources` for a kind has a problem that contains `words`, or no
    /// problem.
    pub(crate) fn wait_for_problem(&self, kind: Kind, words: Option<&str>) {
        self.wait_for_problem_of(kind, words, || {});
    }

    /// The same; `again` injects the fault once more, which is lost if the watch ends that gets its event.
    pub(crate) fn wait_for_problem_of(&self, kind: Kind, words: Option<&str>, again: impl Fn()) {
        let mut polls = 0;
        self.node.wait("/sources", |_| {
            polls += 1;
            if polls % 50 == 0 {
                again();
                // A fault for the next event may affect a bookmark instead.
                self.cluster.advance(1);
            }
            let rows = self.node.sources.borrow();
            let row = rows.iter().find(|row| row.path == kind.resource()).ok_or("no row")?;
            let is_so = match words {
                Some(words) => row.problems.iter().any(|problem| problem.contains(words)),
                None => row.problems.iter().all(|problem| problem.contains("skipped since the start")),
            };
            if is_so { Ok(()) } else { Err(format!("not {words:?} but {:?}", row.problems)) }
        });
    }

    /// Creates or replaces an object.
    pub(crate) fn apply(&self, object: Value) {
        self.cluster.apply_value(object).expect("a valid object");
    }

    /// The state directory of the node.
    pub(crate) fn state(&self) -> &Path {
        self.state.path()
    }

    /// Kills the node. A thread that was writing the state when the node was killed writes to another directory than the
    /// next node: in a process that is killed, no thread goes on.
    fn kill_node(&mut self) {
        self.node.stop();
        let next = tempfile::tempdir().expect("a directory");
        for entry in std::fs::read_dir(self.state.path()).expect("a directory").flatten() {
            // A file with another name may be replaced at this moment.
            let _ = std::fs::copy(entry.path(), next.path().join(entry.file_name()));
        }
        self.state = next;
    }

    /// Kills the node and starts another one instead.
    pub(crate) fn restart_node(&mut self) {
        let watched = self.node.observer().watched.clone();
        self.kill_node();
        let (at, state) = (self.replica.address(), self.state.path());
        self.node = Node::start_with(&self.cluster, at, state, None, (timeouts(), &self.reads));
        self.node.observer().watched = watched;
    }

    /// [`Self::restart_node`] with an additional certificate authority in the kubeconfig, before the cluster's.
    pub(crate) fn restart_node_with_another_authority(&mut self) {
        let watched = self.node.observer().watched.clone();
        self.kill_node();
        let other = Cluster::new().expect("a cluster");
        let bundle = format!("{}{}", other.ca_pem(), self.cluster.ca_pem());
        let encode = |pem: &str| STANDARD.encode(pem);
        let own = self.cluster.kubeconfig(&[&self.replica.url()]).expect("a kubeconfig");
        let kubeconfig = own.replace(&encode(self.cluster.ca_pem()), &encode(&bundle));
        assert_ne!(own, kubeconfig);
        let (at, state) = (self.replica.address(), self.state.path());
        self.node = Node::start_with(&self.cluster, at, state, Some(&kubeconfig), (timeouts(), &self.reads));
        self.node.observer().watched = watched;
    }

    /// Renews the client certificate of the node, which requires a new connection.
    pub(crate) fn renew_certificate(&self) {
        let certificate = self.cluster.certificate("nodelb", &[]).expect("a certificate");
        let url = self.replica.url();
        let kubeconfig = self.cluster.kubeconfig_for(&Shown::Certificate(certificate), &[&url]);
        let new = self.node.kubeconfig.with_extension("new");
        std::fs::write(&new, kubeconfig).expect("written");
        std::fs::rename(new, &self.node.kubeconfig).expect("renamed");
    }

    /// The log of the node since the last call.
    pub(crate) fn take_journal(&self) -> String {
        std::mem::take(&mut *self.node.journal.0.lock().expect("not poisoned"))
    }

    /// Resets every connection, and waits until Services and EndpointSlices are requested over new
    /// ones.
    pub(crate) fn reconnect(&self) {
        self.replica.faults().reset_connections();
        self.replica.faults().take_requests();
        let mut seen = Vec::new();
        self.node.wait("the next connection", |_| {
            seen.extend(self.replica.faults().take_requests());
            let asked = |path: &str| {
                let start = format!("GET {path}?");
                seen.iter().any(|line| line.starts_with(&start) && line.contains("labelSelector"))
            };
            let is_asked = asked(Kind::Service.path()) && asked(Kind::EndpointSlice.path());
            if is_asked { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }

    /// Waits until the table equals the content of the server.
    pub(crate) fn converge(&self, what: &str) {
        let wanted = objects(&self.cluster);
        self.node.wait(what, |observer| {
            if !observer.is_synced {
                return Err("not synced".into());
            }
            let actual = observer.objects();
            if actual == wanted { Ok(()) } else { Err(difference(&actual, &wanted)) }
        });
        let lost = std::mem::take(&mut self.node.observer().lost);
        assert!(lost.is_empty(), "{what}: {}", lost.join("; "));
    }
}

/// A replica of the cluster with bookmarks often enough for [`timeouts`].
fn serve(cluster: &Cluster, mut options: ServeOptions) -> Replica {
    options.behaviour.bookmarks = Some(Duration::from_millis(25));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    cluster.serve(listener, options).expect("served")
}

/// The timeouts of the source, divided by a thousand.
pub(crate) fn timeouts() -> WatchTimeouts {
    WatchTimeouts {
        timeout: Duration::from_millis(300),
        watch_timeout: Duration::from_millis(300),
        watch_shown: Duration::from_millis(100),
        list_silence: Duration::from_millis(150),
        watch_silence: Duration::from_millis(100),
        watch: Duration::from_secs(300),
        backoff: (Duration::from_millis(1), Duration::from_millis(10)),
        confirm: Duration::from_millis(2),
        resume_within: Duration::from_secs(300),
        page: 3,
    }
}

impl Node {
    /// A node with this address, and the state directory of a previous one.
    pub(crate) fn start(cluster: &Cluster, at: SocketAddr, state: &Path) -> Self {
        Self::start_with(cluster, at, state, None, (timeouts(), &Reads::default()))
    }

    /// [`Self::start`] with this kubeconfig, these time constants of the source, and these services.
    fn start_with(
        cluster: &Cluster,
        at: SocketAddr,
        state: &Path,
        text: Option<&str>,
        (timeouts, reads): (WatchTimeouts, &Reads),
    ) -> Self {
        let journal = Journal::default();
        let written = journal.clone();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(move || written.begin())
            .enable_all()
            .build()
            .expect("a runtime");
        let directory = tempfile::tempdir().expect("a directory");
        let kubeconfig = directory.path().join("kubeconfig");
        let url = format!("https://{at}");
        std::fs::write(
            &kubeconfig,
            text.map_or_else(|| cluster.kubeconfig(&[&url]).expect("a kubeconfig"), str::to_owned),
        )
        .expect("written");
        let settings = Settings {
            servers: vec![Server { address: Address::from(at), tls_server_name: Some("kubernetes".into()) }],
            kubeconfig: Some(kubeconfig.clone()),
            state_directory: state.to_path_buf(),
            ..Settings::default()
        };
        let known = Credentials::new(&settings, credentials::CredentialTimeouts::default()).expect("usable settings");
        let cluster = runtime.block_on(known.authority()).expect("an authority");
        let sources = BTreeSet::from([Source::Kubernetes]);
        let config = EngineConfig { sources, max_services: ROOMY.services, ..EngineConfig::default() };
        let engine = Engine::new(config, Realised::default());
        let (snapshot_in, snapshot) = watch::channel(Arc::new(engine.snapshot(Moment(0))));
        let maps = MemoryDatapath::new(ROOMY);
        let observer = Observer {
            engine,
            maps,
            now: Moment(0),
            is_synced: false,
            apiservers: BTreeSet::new(),
            watched: BTreeMap::new(),
            lost: Vec::new(),
        };
        let observer = Arc::new(Mutex::new(observer));
        let (followed_in, followed) = watch::channel(Followed::default());
        let ((changes_in, changes), (accepts, accepted)) = (mpsc::channel(64), mpsc::channel(1));
        let (reports, sources) = watch::channel(Arc::new(Vec::new()));
        let entered = runtime.enter();
        let apiservers = connect_to(settings.clone(), changes_in.clone(), quick(), Default::default());
        drop(entered);
        let source = KubernetesSource {
            apiservers,
            changes: changes_in,
            reports,
            snapshot,
            followed,
            state: StateSettings {
                directory: settings.state_directory,
                cluster: Some(cluster),
                save_every: Duration::from_millis(50),
                save_soon: Duration::from_millis(50),
                timeout: Duration::from_secs(5),
            },
            selection: reads.selection.clone(),
            forward: Arc::clone(&reads.forward),
            node: "n1".into(),
            clock: Clock::start(),
            has_node_object: true,
            in_maps: InMaps::default(),
            accepts: accepted,
            timeouts,
        };
        runtime.spawn(source::run(source, std::future::pending()));
        runtime.spawn(own(changes, (Arc::clone(&observer), directory), (snapshot_in, followed_in), reads.round_after));
        Self { runtime: Some(runtime), observer, sources, journal, kubeconfig, accepts }
    }

    /// Stops it like a kill.
    fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(TIMEOUT);
        }
    }

    /// As `nodelb accept`; returns the problem that this ended.
    pub(crate) fn accept(&self) -> Option<Arc<str>> {
        let (reply, answer) = oneshot::channel();
        self.accepts.blocking_send(Accept { by: By::Command, reply }).expect("the source runs");
        answer.blocking_recv().expect("the source answers")
    }

    /// Whether the rows of `/sources` show that everything is up to date.
    pub(crate) fn is_watching(&self) -> Result<(), String> {
        let rows = self.sources.borrow();
        let is_ok = rows.len() == Kind::ALL.len() && rows.iter().all(|row| row.state == SourceState::Ok);
        if is_ok { Ok(()) } else { Err(format!("{rows:?}")) }
    }

    /// The state of its owner.
    pub(crate) fn observer(&self) -> MutexGuard<'_, Observer> {
        self.observer.lock().expect("not poisoned")
    }

    /// Waits until the condition holds; fails with its last error.
    pub(crate) fn wait(&self, what: &str, mut is_so: impl FnMut(&Observer) -> Result<(), String>) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let answer = is_so(&self.observer());
            match answer {
                Ok(()) => return,
                Err(why) if Instant::now() > deadline => panic!("{what}: {why}; sources: {:#?}", self.sources.borrow()),
                Err(_) => std::thread::sleep(Duration::from_micros(300)),
            }
        }
    }
}

/// Starts the supervisor of the connection to an apiserver, as the daemon does.
pub(crate) fn connect_to(
    settings: Settings,
    changes: mpsc::Sender<Vec<Change>>,
    timeouts: PoolTimeouts,
    credentials: credentials::CredentialTimeouts,
) -> Apiservers {
    let parts = apiserver::Parts {
        settings,
        register: Arc::new(|_| Ok(())),
        changes,
        is_frontend: Arc::new(|_| false),
        in_maps: Vec::new(),
        clock: Clock::start(),
        unix: || 0,
        seed: 1,
        timeouts,
        connect: connect::ConnectTimeouts::default(),
        credentials,
    };
    let (apiservers, _report, _task) = apiserver::start(parts, std::future::pending()).expect("usable settings");
    apiservers
}

/// The timeouts of the supervisor, shortened.
pub(crate) fn quick() -> PoolTimeouts {
    PoolTimeouts {
        probe_every: 60,
        probe_timeout: 4_000,
        probe_again: 10,
        min_uptime: 100,
        stable_after: 500,
        short_lived: 2,
        debounce: 50,
        credentials_every: 30,
        retry_first: 1,
        retry_most: 20,
        slow_retry: 50,
        ..PoolTimeouts::default()
    }
}

/// The owner task.
async fn own(
    mut changes: mpsc::Receiver<Vec<Change>>,
    (observer, _directory): (Arc<Mutex<Observer>>, tempfile::TempDir),
    (snapshots, followed): (watch::Sender<Arc<Snapshot>>, watch::Sender<Followed>),
    round_after: Duration,
) {
    while let Some(batch) = changes.recv().await {
        if !round_after.is_zero() {
            tokio::time::sleep(round_after).await;
        }
        let snapshot = observer.lock().expect("not poisoned").take(batch);
        Followed::publish(&snapshot, &followed);
        snapshots.send_replace(Arc::new(snapshot));
    }
}

impl Observer {
    /// From now on, the frontend must always reach a backend once it has one.
    pub(crate) fn watch(&mut self, frontend: &str, backend: Option<&str>) {
        let parse = |text: &str| text.parse().expect("an address");
        self.watched.insert(parse(frontend), backend.map(parse));
    }

    /// Ends the checks of the frontend.
    pub(crate) fn unwatch(&mut self, frontend: &str) {
        self.watched.remove(&frontend.parse().expect("an address"));
    }

    fn take(&mut self, batch: Vec<Change>) -> Snapshot {
        self.is_synced |= batch.iter().any(|change| matches!(change, Change::Synced { .. }));
        let shown = batch.clone();
        for change in &batch {
            if let Change::Apiservers(known) = change {
                self.apiservers.clone_from(known);
            }
        }
        batch.into_iter().for_each(|change| self.engine.change(change));
        self.now = self.now.plus(2_000);
        self.engine.reconcile(&mut self.maps, self.now);
        let snapshot = self.snapshot();
        for (frontend, backend) in self.watched.iter().filter(|_| self.is_synced) {
            let leads = match trace::verdict(&snapshot, *frontend) {
                Verdict::Forwarded(_, slots) => backend.is_none_or(|b| slots.iter().any(|slot| slot.addr == b)),
                _ => false,
            };
            if !leads {
                let shown = format!("{shown:?}");
                self.lost.push(format!("{frontend} lost its backend in {shown:.2000}"));
            }
        }
        snapshot
    }

    /// What Kubernetes could not report, as of its latest change.
    pub(crate) fn incomplete(&self) -> Option<String> {
        self.snapshot().facts.incomplete(Source::Kubernetes).map(ToString::to_string)
    }

    /// The objects that the sources have sent.
    pub(crate) fn objects(&self) -> Objects {
        let snapshot = self.snapshot();
        let services = snapshot.facts.services_of(Source::Kubernetes);
        let slices = snapshot.facts.slices_of(Source::Kubernetes);
        Objects {
            services: services.map(|service| (service.name.to_string(), service.clone())).collect(),
            slices: slices.map(|slice| (format!("{:?}", slice.name), slice.clone())).collect(),
        }
    }

    /// The backends of a frontend.
    pub(crate) fn backends(&self, frontend: &str) -> Vec<String> {
        match trace::verdict(&self.snapshot(), frontend.parse().expect("an address")) {
            Verdict::Forwarded(_, slots) => slots.iter().map(|slot| slot.addr.to_string()).collect(),
            _ => Vec::new(),
        }
    }

    /// The snapshot of readers.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.engine.snapshot(self.now)
    }
}

impl Journal {
    /// Starts to collect warnings, and messages about clusters, of this thread.
    fn begin(&self) {
        let writer = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .finish();
        // For as long as the thread lives.
        std::mem::forget(tracing::subscriber::set_default(subscriber));
    }
}

impl io::Write for Journal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// All served objects by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    pub(crate) services: BTreeMap<String, Service>,
    pub(crate) slices: BTreeMap<String, Slice>,
}

/// The content of the server as nodelb's objects.
pub(crate) fn objects(cluster: &Cluster) -> Objects {
    let mut objects = Objects::default();
    for kind in Kind::SERVED {
        let mut decoder = Decoder::new(kind);
        for object in cluster.list(kind.resource()) {
            // Invalid objects are not served.
            let ListWatchEvent::Upsert(object) = decoder.item(object.to_string().as_bytes()) else { continue };
            match object.change {
                Some(Change::UpsertService(service)) => {
                    objects.services.insert(service.name.to_string(), service);
                }
                Some(Change::UpsertSlice(slice)) => {
                    objects.slices.insert(format!("{:?}", slice.name), slice);
                }
                _ => {}
            }
        }
    }
    objects
}

fn difference(actual: &Objects, wanted: &Objects) -> String {
    let services = wanted.services.iter().find(|(name, service)| actual.services.get(*name) != Some(service));
    let slices = wanted.slices.iter().find(|(name, slice)| actual.slices.get(*name) != Some(slice));
    let extra = actual.slices.keys().find(|name| !wanted.slices.contains_key(*name));
    let extra = extra.or_else(|| actual.services.keys().find(|name| !wanted.services.contains_key(*name)));
    format!("missing: {services:?} {slices:?}; unexpected: {extra:?}")
}

/// Whether a request continues a watch at a known version.
pub(crate) fn is_resumed(line: &str) -> bool {
    line.contains("&resourceVersion=") && !line.contains("sendInitialEvents")
}
