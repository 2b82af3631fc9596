use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Mutex;

use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::{Limits, MapError};
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Addr, Family, L4Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::PortKey;
use nodelb_core::state::entries::{CANARIES, FrontendEntry, MapOp, Realised, ServiceEntry, ServiceId};
use nodelb_core::state::owner::OwnerTag;

use super::*;
use crate::lb_health::View;
use crate::notify::Environment;
use crate::recorder;

#[path = "reconcile/kept.rs"]
mod kept;

const LIMITS: Limits = Limits { frontends: 16, services: 16, slots: 16, affinity: 16, outside: 0, source_ranges: 0 };

/// The messages to systemd and the check in `/readyz` of a daemon that has waited for this source for this long, with
/// these maps.
async fn received_after<D: Datapath + 'static>(source: Source, seconds: u64, maps: D) -> (String, Check) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let supervisor = UnixDatagram::bind(&path).unwrap();
    supervisor.set_nonblocking(true).unwrap();
    let environment = Environment { socket: Some(path.into()), ..Environment::default() };
    let (owner, _handle, published) = owner(source, maps, &environment, directory.path());
    owner.run(tokio::time::sleep(Duration::from_secs(seconds))).await;
    let mut buffer = [0; 1024];
    let length = supervisor.recv(&mut buffer).unwrap_or(0);
    let check = published.health.borrow().checks[0].clone();
    (String::from_utf8_lossy(&buffer[..length]).into_owned(), check)
}

/// An owner that waits for this source, with its state in the directory.
fn owner<D: Datapath>(
    source: Source,
    maps: D,
    environment: &Environment,
    directory: &Path,
) -> (Owner<D>, OwnerHandle, OwnerOutputs) {
    let sources = BTreeSet::from([source]);
    let config = EngineConfig { sources, max_services: LIMITS.services, ..EngineConfig::default() };
    let engine = Engine::new(config, maps.dump().unwrap());
    let notifier = Arc::new(Notifier::connect(environment).unwrap());
    let started = Event::for_daemon(What::Started, "");
    let recorder = recorder::start(directory.join("state"), started, recorder::LIMITS);
    let probe: Probe<D> = Box::new(|_| ProbeResult::default());
    Owner::new(engine, (maps, probe), recorder.reporter, notifier, Clock::since_boot())
}

fn with_a_service() -> MemoryDatapath {
    let mut maps = MemoryDatapath::new(LIMITS);
    let address: Addr = "198.51.100.1".parse().unwrap();
    let frontend = |address, service| {
        let entry = FrontendEntry { service, inside_local: false, outside_local: false };
        MapOp::PutFrontend(address, entry)
    };
    let services = [ServiceId::CANARY, ServiceId(1)].map(|id| MapOp::PutService(id, Arc::default()));
    let canaries = CANARIES.map(|address| frontend(address, ServiceId::CANARY));
    let ops = [&services[..], &canaries, &[frontend(L4Addr::new(address, 80, Protocol::Tcp), ServiceId(1))]].concat();
    assert!(maps.apply(&ops, Moment(0)).iter().all(Result::is_ok));
    maps
}

/// A host with services in files must not doubt its first list of Kubernetes because of them.
#[test]
fn ports_of_files_are_not_expected_from_kubernetes() {
    let key = |name: &str| PortKey {
        service: name.parse().unwrap(),
        port: "".into(),
        protocol: Protocol::Tcp,
        family: Family::Ipv4,
    };
    let entry = |source| ServiceEntry { tag: Some(OwnerTag::new(&key("shop/web"), source)), ..ServiceEntry::default() };
    let mut maps = with_a_service();
    let ops = [
        MapOp::PutService(ServiceId(2), Arc::new(entry(Source::Files))),
        MapOp::PutService(ServiceId(3), Arc::new(entry(Source::Files))),
        MapOp::PutService(ServiceId(4), Arc::new(entry(Source::Kubernetes))),
    ];
    assert!(maps.apply(&ops, Moment(0)).iter().all(Result::is_ok));
    let found = maps.dump().unwrap();
    assert_eq!((service_ports(&found), crate::kubernetes::in_maps(&found).ports), (4, 2), "one entry has no tag");
}

#[tokio::test(start_paused = true)]
async fn systemd_is_not_kept_waiting_for_an_apiserver() {
    let (reported, check) = received_after(Source::Kubernetes, 8, with_a_service()).await;
    assert_eq!((reported.as_str(), check.passed), ("", false));
    let (reported, check) = received_after(Source::Kubernetes, 12, with_a_service()).await;
    assert!(reported.starts_with("READY=1\nSTATUS=no apiserver has responded yet"), "{reported}");
    assert!(check.passed && check.detail.ends_with("kubernetes"), "{}", check.detail);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_knows_nothing_is_not_ready_but_lets_others_start() {
    let (reported, check) = received_after(Source::Kubernetes, 12, MemoryDatapath::new(LIMITS)).await;
    assert!(reported.starts_with("READY=1\n"), "{reported}");
    assert!(!check.passed, "{}", check.detail);
}

#[tokio::test(start_paused = true)]
async fn nor_for_a_directory_of_services_that_cannot_be_read() {
    let (reported, check) = received_after(Source::Files, 12, with_a_service()).await;
    assert!(reported.starts_with("READY=1\nSTATUS=the services directory has not been read yet"), "{reported}");
    assert!(!check.passed, "{}", check.detail);
}

/// Load balancers may ask before the first round ends, and must not leave a node that only restarts.
#[tokio::test]
async fn load_balancers_keep_a_node_that_has_restarted() {
    let directory = tempfile::tempdir().unwrap();
    let environment = Environment::default();
    let (_owner, handle, published) = owner(Source::Kubernetes, with_a_service(), &environment, directory.path());
    let view = View { snapshot: handle.snapshot.clone(), health: published.health.clone(), clock: handle.clock };
    assert!(view.status(&handle.snapshot.borrow()).is_healthy);
    let ready: Vec<bool> =
        published.health.borrow().ready(handle.clock.now()).iter().map(|check| check.passed).collect();
    assert_eq!(ready, [true, false], "its loop runs, and nothing is reconciled");
}

/// Slow maps that record the time when each round ends.
struct Slow(MemoryDatapath, Arc<Mutex<Vec<(Moment, Moment)>>>, Moment);

impl Datapath for Slow {
    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn apply(&mut self, ops: &[MapOp], now: Moment) -> Vec<Result<(), MapError>> {
        std::thread::sleep(Duration::from_millis(50));
        self.2 = now;
        self.0.apply(ops, now)
    }

    fn end_round(&mut self, ended: Moment) {
        self.1.lock().unwrap().push((self.2, ended));
        self.0.end_round(ended);
    }

    fn dump(&self) -> Result<Realised, MapError> {
        self.0.dump()
    }
}

/// `t_round`: entries that are unpublished at the end of a long round were in use until then.
#[tokio::test]
async fn the_rest_begins_when_the_round_is_over() {
    let rounds = Arc::default();
    received_after(Source::Files, 0, Slow(MemoryDatapath::new(LIMITS), Arc::clone(&rounds), Moment(0))).await;
    let (began, ended) = rounds.lock().unwrap()[0];
    assert!(ended >= began.plus(50), "{began:?} to {ended:?}");
}

/// The numbers of rounds after each of these batches of changes, which are sent every 200 ms.
async fn rounds_after(source: Source, batches: Vec<Vec<Change>>) -> Vec<usize> {
    let directory = tempfile::tempdir().unwrap();
    let rounds = Arc::<Mutex<Vec<_>>>::default();
    let maps = Slow(MemoryDatapath::new(LIMITS), Arc::clone(&rounds), Moment(0));
    let (owner, handle, _published) = owner(source, maps, &Environment::default(), directory.path());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(owner.run(async { drop(stopped.await) }));
    let mut counts = Vec::new();
    for batch in batches {
        handle.changes.send(batch).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        counts.push(rounds.lock().unwrap().len());
    }
    drop(stop);
    running.await.unwrap();
    counts
}

fn synced(source: Source) -> Change {
    Change::Synced { source, incomplete: None }
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_list_wait_for_each_other() {
    let removed = |source| vec![Change::RemoveService("shop/web".parse().unwrap(), source)];
    let batches = |source| {
        let object = || removed(source);
        vec![object(), object(), object(), object(), vec![synced(source)], object()]
    };
    // The first round is that of the start. While Kubernetes is not synced, the next one is 500 ms later.
    assert_eq!(rounds_after(Source::Kubernetes, batches(Source::Kubernetes)).await, [1, 1, 2, 2, 3, 4]);
    assert_eq!(rounds_after(Source::Files, batches(Source::Files)).await, [2, 3, 4, 5, 6, 7]);
}

#[tokio::test(start_paused = true)]
async fn nothing_else_waits_for_the_lists_of_kubernetes() {
    let file = Change::RemoveService("shop/web".parse().unwrap(), Source::Files);
    let object = Change::RemoveService("shop/web".parse().unwrap(), Source::Kubernetes);
    let batches =
        vec![vec![file.clone()], vec![], vec![object.clone()], vec![object, file], vec![synced(Source::Files)]];
    assert_eq!(rounds_after(Source::Kubernetes, batches).await, [2, 3, 3, 4, 5]);
}

#[test]
fn losses_beyond_twenty_a_second_are_a_number() {
    let mut losses = Losses::default();
    assert_eq!([60, 40, 1].map(|count| losses.admit(count)), [20, 0, 0]);
    assert_eq!(losses.turn_over(Moment(999)), 0);
    assert_eq!(losses.turn_over(Moment(1_000)), 81);
    assert_eq!((losses.admit(3), losses.turn_over(Moment(5_000))), (3, 0));
}
