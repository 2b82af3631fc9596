use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};

use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::engine::Engine;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::health_check::{HealthCheck, Quarantine};
use nodelb_core::model::service::{Backend, Origin, Service, ServiceName, Slice, SliceName, SlicePort, Source};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::Realised;
use nodelb_host::clock::Clock;

use tokio::sync::mpsc;

use super::*;

/// A checker, with the owner task's table.
struct Rig {
    engine: Engine,
    snapshots: watch::Sender<Arc<Snapshot>>,
    owner: mpsc::Receiver<Vec<Change>>,
    reports: watch::Receiver<Arc<CheckReport>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Rig {
    async fn start(directory: &Path, sockets: usize) -> Self {
        let timeouts = CheckTimeouts { gather: Duration::from_millis(10), ..CheckTimeouts::default() };
        Self::start_with(directory, sockets, timeouts).await
    }

    async fn start_with(directory: &Path, sockets: usize, timeouts: CheckTimeouts) -> Self {
        let stored = state_file::load(directory, timeouts.of_file()).await;
        Self::with(stored, sockets, timeouts).await
    }

    async fn with(stored: Stored, sockets: usize, timeouts: CheckTimeouts) -> Self {
        let (changes, owner) = mpsc::channel(8);
        let (reports_in, reports) = watch::channel(Arc::default());
        let (stop, mut stopped) = watch::channel(false);
        // A node with one address, which no test checks.
        let mut engine = Engine::new(EngineConfig::default(), Realised::default());
        let addresses = ["192.0.2.1".parse().unwrap()].into();
        engine.change(Change::Node(NodeFacts { addresses, ..NodeFacts::default() }));
        let (snapshots, snapshot) = watch::channel(Arc::new(engine.snapshot(Moment(0))));
        let checker = Checker {
            owner: OwnerHandle { changes, snapshot, clock: Clock::start() },
            kubernetes: None,
            reports: reports_in,
            prepare: Arc::new(|_, _| Ok(())),
            seed: 1,
            sockets,
            timeouts,
        };
        let shutdown = async move { drop(stopped.wait_for(|stop| *stop).await) };
        let task = start_with(checker, stored, shutdown).await;
        Self { engine, snapshots, owner, reports, stop, task }
    }

    /// Takes changes of a source, as the owner task.
    fn take(&mut self, changes: Vec<Change>) {
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.snapshots.send_replace(Arc::new(self.engine.snapshot(Moment(0))));
    }

    /// Takes and returns the next changes of the checker.
    async fn received(&mut self) -> Vec<Change> {
        let changes = tokio::time::timeout(Duration::from_secs(20), self.owner.recv()).await.unwrap().unwrap();
        self.take(changes.clone());
        changes
    }

    /// Returns the ports of the backends that are unhealthy after the next change of these.
    async fn quarantined(&mut self) -> Vec<u16> {
        let unhealthy = |engine: &Engine| {
            let facts = engine.snapshot(Moment(0)).facts;
            let failed = facts.quarantine(&ServiceName::new("shop", "web")).cloned().unwrap_or_default();
            failed.into_keys().map(|(_, port)| port).collect::<Vec<_>>()
        };
        let before = unhealthy(&self.engine);
        while unhealthy(&self.engine) == before {
            self.received().await;
        }
        unhealthy(&self.engine)
    }

    async fn end(self) {
        self.stop.send_replace(true);
        self.task.await.unwrap();
    }
}

#[test]
fn the_node_s_own_addresses_and_loopback_ones_are_local() {
    let addr = |text: &str| text.parse::<Addr>().unwrap();
    let node = NodeFacts { addresses: [addr("192.0.2.1"), addr("2001:db8::1")].into(), ..NodeFacts::default() };
    for (text, expected) in [
        ("192.0.2.1", true),
        ("2001:db8::1", true),
        ("127.0.0.2", true),
        ("::1", true),
        ("192.0.2.2", false),
        ("2001:db8::2", false),
    ] {
        assert_eq!(is_local(&node, addr(text)), expected, "{text}");
        assert!(is_local(&NodeFacts::default(), addr(text)), "{text}, before the node's addresses are known");
    }
}

fn fast() -> HealthCheck {
    let (interval, timeout) = (Duration::from_millis(20), Duration::from_millis(20));
    HealthCheck { interval, timeout, ..HealthCheck::default() }
}

fn service(check: Option<HealthCheck>) -> Change {
    Change::UpsertService(Service {
        health_check: check.map(Arc::new),
        ..Service::new(ServiceName::new("shop", "web"), Source::Files)
    })
}

fn slice(backends: &[SocketAddr]) -> Change {
    let backends = backends.iter().map(|at| Backend::new(at.ip().into(), at.port())).collect();
    Change::UpsertSlice(Slice {
        name: SliceName::new("shop", "file:web"),
        service: ServiceName::new("shop", "web"),
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends }],
        problem: None,
    })
}

fn synced() -> Change {
    Change::Synced { source: Source::Files, incomplete: None }
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

#[tokio::test]
async fn a_backend_that_dies_is_quarantined_and_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(directory.path(), 64).await;
    let ((_one, one), (two_listening, two)) = (listen(), listen());
    rig.take(vec![slice(&[one, two]), service(Some(fast())), synced()]);
    drop(two_listening);
    assert_eq!(rig.quarantined().await, [two.port()]);
    let _two_listening = TcpListener::bind(two).unwrap();
    assert_eq!(rig.quarantined().await, [0; 0]);
    rig.take(vec![service(None)]);
    while !rig.received().await.contains(&Change::Passed(ServiceName::new("shop", "web"), BTreeSet::new())) {}
    rig.end().await;
}

/// The owner task has the remembered unhealthy backends before any source could report.
#[tokio::test]
async fn a_restart_does_not_put_back_what_is_dead() {
    let directory = tempfile::tempdir().unwrap();
    let (listening, at) = listen();
    drop(listening);
    let batch = vec![slice(&[at]), service(Some(fast())), synced()];
    let mut rig = Rig::start(directory.path(), 64).await;
    rig.take(batch);
    assert_eq!(rig.quarantined().await, [at.port()]);
    rig.end().await;

    let mut rig = Rig::start(directory.path(), 64).await;
    let key = (at.ip().into(), at.port());
    let failed = Quarantine::from([(key, "connection refused".into())]);
    let quarantine = Change::Quarantine(ServiceName::new("shop", "web"), failed);
    assert_eq!(rig.received().await, [quarantine]);
    rig.end().await;
}

/// A disk that hangs at the start.
#[tokio::test]
async fn what_was_unhealthy_is_known_when_the_disk_answers_late_and_is_kept_until_then() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("health.json");
    let (answer, answers) = std::sync::mpsc::channel();
    let answers = std::sync::Mutex::new(answers);
    let read = move |_: &Path| answers.lock().unwrap().recv().map_err(std::io::Error::other);
    let timeouts = CheckTimeouts::default();
    let stored = state_file::load_with(path.clone(), timeouts.of_file(), read).await;
    let mut rig = Rig::with(stored, 64, timeouts).await;
    let (_, dead) = listen();
    rig.take(vec![service(Some(fast())), slice(&[dead]), synced()]);
    assert_eq!(rig.quarantined().await, [dead.port()]);
    tokio::time::sleep(2 * timeouts.tick).await;
    assert!(!path.exists(), "nothing replaces what is unread");
    let before = |error: &str| Quarantine::from([((dead.ip().into(), dead.port()), error.into())]);
    let [web, gone] = ["web", "gone"].map(|name| ServiceName::new("shop", name));
    answer.send([(web, before("from before")), (gone, before("from before"))].into()).unwrap();
    for _ in 0..6_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if path.exists() {
            break;
        }
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("shop/web") && !text.contains("from before") && !text.contains("gone"), "{text}");
    rig.end().await;
}

/// As at `kill -9`: without an orderly end, and before the next tick.
#[tokio::test]
async fn what_a_check_has_found_is_stored_when_it_takes_effect() {
    let directory = tempfile::tempdir().unwrap();
    let timeouts = CheckTimeouts { tick: Duration::from_hours(1), ..CheckTimeouts::default() };
    let mut rig = Rig::start_with(directory.path(), 64, timeouts).await;
    let (_, dead) = listen();
    rig.take(vec![service(Some(fast())), slice(&[dead]), synced()]);
    assert_eq!(rig.quarantined().await, [dead.port()]);
    let stored = directory.path().join("health.json");
    while !std::fs::read_to_string(&stored).is_ok_and(|text| text.contains(&dead.to_string())) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    rig.end().await;
}

/// The first backends occupy 64 sockets and do not answer; the last one is checked nevertheless.
#[tokio::test]
async fn backends_that_do_not_answer_delay_no_other_backend() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(directory.path(), 8).await;
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let port = full.local_addr().unwrap().as_socket().unwrap().port();
    // Fills the queue of the listener, so that no other connection to it is established.
    let filling: Vec<_> = (0..4).map(|_| tokio::spawn(tokio::net::TcpStream::connect(("127.0.0.1", port)))).collect();
    let (_listening, alive) = listen();
    let mut backends: Vec<SocketAddr> = (1..=64).map(|last| SocketAddr::from(([127, 0, 0, last], port))).collect();
    backends.push(alive);
    let check = HealthCheck { starts_healthy: false, timeout: Duration::from_millis(200), ..fast() };
    let check = HealthCheck { interval: Duration::from_millis(200), ..check };
    let begun = Instant::now();
    rig.take(vec![slice(&backends), service(Some(check)), synced()]);
    while rig.quarantined().await.contains(&alive.port()) {}
    assert!(begun.elapsed() < Duration::from_secs(20));
    filling.iter().for_each(JoinHandle::abort);
    rig.end().await;
}

#[tokio::test]
async fn what_is_done_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(directory.path(), 64).await;
    let ((_one, one), (gone, two)) = (listen(), listen());
    drop(gone);
    rig.take(vec![slice(&[one, two]), service(Some(fast())), synced()]);
    let is_counted = |report: &Arc<CheckReport>| {
        let done = |outcome| report.done.get(&outcome).copied().unwrap_or_default();
        report.targets.len() == 2 && done(CheckOutcome::Passed) > 5 && done(CheckOutcome::Refused) > 5
    };
    let report = tokio::time::timeout(Duration::from_secs(20), rig.reports.wait_for(is_counted)).await.unwrap();
    let last = report.unwrap().last.clone();
    let of = |at: SocketAddr| last[&(ServiceName::new("shop", "web"), (at.ip().into(), at.port()))];
    assert_eq!((last.len(), of(one).outcome, of(two).outcome), (2, CheckOutcome::Passed, CheckOutcome::Refused));
    assert!(of(one).took < Duration::from_secs(20));
    rig.owner.close();
    tokio::time::timeout(Duration::from_secs(20), rig.task).await.unwrap().unwrap();
}

/// A multicast address has no route for TCP on any host; a backend on this host always has one, and shows nothing about
/// the network. A backend that has had no route for long is of no use, whatever the network is like.
#[tokio::test]
async fn a_missing_route_counts_only_after_a_while_if_only_this_host_answers() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(directory.path(), 64).await;
    let (_listening, here) = listen();
    let elsewhere = SocketAddr::from(([224, 0, 0, 1], 80));
    rig.take(vec![slice(&[here, elsewhere]), service(Some(fast())), synced()]);
    assert_eq!(rig.quarantined().await, [80]);
    let done = |report: &Arc<CheckReport>, outcome| report.done.get(&outcome).copied().unwrap_or_default();
    let is_counted = |report: &Arc<CheckReport>| done(report, CheckOutcome::Unreachable) > 2;
    let waiting = tokio::time::timeout(Duration::from_secs(20), rig.reports.wait_for(is_counted));
    let report = Arc::clone(&*waiting.await.unwrap().unwrap());
    // How many fit into that while depends on the machine.
    assert!(done(&report, CheckOutcome::Unasked) > 0, "{report:?}");
    rig.end().await;
}
