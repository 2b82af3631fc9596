use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Mutex;
use std::thread;

use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::{Datapath as _, Limits};
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Family, L4Addr};
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Origin, Service, ServicePort, Slice, SliceName, SlicePort,
    Source,
};
use nodelb_core::stale::Socket;

use super::*;
use crate::reconcile::Marker;
use crate::sockets::reaper::wire::{HEADER, encode_outcomes};

const DNS: &str = "198.51.100.1:53/UDP";
const OTHER: &str = "198.51.100.2:53/UDP";
const ONE: &str = "192.0.2.1:53/UDP";
const TWO: &str = "192.0.2.2:53/UDP";

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

fn serve(name: &str, frontend: &str, backends: &[&str]) -> [Change; 2] {
    let (name, at): (nodelb_core::model::service::ServiceName, _) = (name.parse().unwrap(), l4(frontend));
    let frontends = vec![FrontendSpec { addr: at.addr, port: at.port, kind: FrontendKind::ClusterIP }];
    let backends = backends.iter().map(|text| Backend::new(l4(text).addr, l4(text).port)).collect();
    let service = Service {
        ports: vec![ServicePort { name: "".into(), protocol: at.protocol, frontends }],
        ..Service::new(name.clone(), Source::Files)
    };
    let slice = Slice {
        name: SliceName::new(&name.namespace, &name.name),
        service: name,
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "".into(), protocol: at.protocol, backends }],
        problem: None,
    };
    [Change::UpsertService(service), Change::UpsertSlice(slice)]
}

/// An owner that publishes on request.
struct Owner {
    engine: Engine,
    maps: MemoryDatapath,
    snapshot: watch::Sender<Arc<Snapshot>>,
    marker: Marker,
    changes: mpsc::Receiver<Vec<Change>>,
}

impl Owner {
    fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.engine.reconcile(&mut self.maps, nodelb_core::model::moment::Moment(1));
    }

    fn publish(&self) {
        self.snapshot.send_replace(Arc::new(self.engine.snapshot(nodelb_core::model::moment::Moment(1))));
        self.marker.publish(&self.snapshot.borrow());
    }
}

/// A task that reads its sockets from these lists in turn, the last one repeatedly, with an owner that answers with a
/// round. Returns the orders that reach its reaper.
struct Rig {
    stale_sockets: StaleSockets,
    owner: Owner,
    deps: Deps,
    memory: PassState,
    orders: Arc<Mutex<Vec<Order>>>,
}

impl Rig {
    fn new(readings: Vec<Vec<Flow>>) -> Self {
        let maps = MemoryDatapath::new(Limits {
            frontends: 64,
            services: 32,
            slots: 128,
            affinity: 16,
            outside: 0,
            source_ranges: 0,
        });
        let config = EngineConfig { sources: BTreeSet::from([Source::Files]), max_services: 32, ..Default::default() };
        let mut engine = Engine::new(config, maps.dump().unwrap());
        engine.change(Change::Node(NodeFacts { name: "n".into(), ..NodeFacts::default() }));
        let (snapshot_in, snapshot) = watch::channel(Arc::new(Snapshot::default()));
        let (changes_in, changes) = mpsc::channel(4);
        let marker = Marker::default();
        let handle = OwnerHandle { changes: changes_in, snapshot, clock: Clock::start() };
        let scope = (Disconnect::Udp, None);
        let stale_sockets = StaleSockets::new((&handle, &marker.marks()), scope, Path::new("/proc/nowhere"));
        let readings = Mutex::new(VecDeque::from(readings));
        let flows: ReadFlows = Arc::new(move |protocol, see| {
            let mut readings = readings.lock().unwrap();
            let reading = if readings.len() > 1 { readings.pop_front().unwrap() } else { readings[0].clone() };
            reading.into_iter().filter(|flow| flow.frontend.protocol == protocol).for_each(see);
            Ok(())
        });
        let (line, theirs) = UnixStream::pair().unwrap();
        let orders = Arc::default();
        let taken = Arc::clone(&orders);
        thread::spawn(move || reap(theirs, &taken));
        let deps = Deps { flows, line: ReaperLine::over(line).unwrap() };
        let owner = Owner { engine, maps, snapshot: snapshot_in, marker, changes };
        Self { stale_sockets, owner, deps, memory: PassState::default(), orders }
    }

    fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        self.owner.apply(changes);
        self.owner.publish();
    }

    /// One pass. The owner runs a round for each batch that it receives.
    async fn pass(&mut self) -> u64 {
        let Self { stale_sockets, owner, deps, memory, .. } = self;
        tokio::select! {
            ended = stale_sockets.pass(memory, deps) => ended.unwrap(),
            () = async {
                while let Some(batch) = owner.changes.recv().await {
                    owner.apply(batch);
                    owner.publish();
                }
            } => panic!("the stale_sockets holds a sender"),
        }
    }

    fn orders(&self) -> Vec<Order> {
        std::mem::take(&mut *self.orders.lock().unwrap())
    }
}

/// Reports every requested socket as ended.
fn reap(mut line: UnixStream, orders: &Mutex<Vec<Order>>) {
    let mut header = [0; HEADER];
    while line.read_exact(&mut header).is_ok() {
        let mut body = vec![0; Order::length(header).unwrap()];
        line.read_exact(&mut body).unwrap();
        let order = Order::decode(header, &body).unwrap();
        let count = order.outcomes();
        if !matches!(order, Order::Spare(_)) {
            orders.lock().unwrap().push(order);
        }
        line.write_all(&encode_outcomes(&vec![Outcome { destroyed: 1, errno: 0 }; count])).unwrap();
    }
}

fn flow(cookie: u64, frontend: &str, backend: &str) -> Flow {
    let source = l4("192.0.2.200:40000/UDP");
    let socket = Socket { netns: 1, cookie, family: Family::Ipv4, ifindex: 0, source };
    Flow { socket, frontend: l4(frontend), backend: l4(backend) }
}

fn ended(flow: &Flow) -> Order {
    Order::Sockets(vec![(flow.socket, flow.backend)])
}

fn synced() -> Change {
    Change::Synced { source: Source::Files, incomplete: None }
}

#[tokio::test]
async fn only_the_sockets_of_the_service_that_lost_the_backend_are_ended() {
    let flows = [flow(1, DNS, ONE), flow(2, DNS, TWO), flow(3, OTHER, ONE)];
    let mut rig = Rig::new(vec![flows.to_vec()]);
    rig.apply(serve("shop/dns", DNS, &[ONE, TWO]).into_iter().chain(serve("shop/other", OTHER, &[ONE])));
    assert_eq!(rig.pass().await, 0, "not synced");
    rig.apply([synced()]);
    assert_eq!(rig.pass().await, 0);
    assert_eq!(rig.orders(), []);
    rig.apply(serve("shop/dns", DNS, &[TWO]));
    assert_eq!(rig.pass().await, 1);
    assert_eq!(rig.orders(), [ended(&flows[0])]);
    assert_eq!((rig.memory.report.udp, rig.memory.report.errors), (1, 0));
}

/// The change of a slice that makes the first backend not ready.
fn unready(changes: [Change; 2]) -> [Change; 2] {
    changes.map(|change| match change {
        Change::UpsertSlice(mut slice) => {
            slice.ports[0].backends[0].state = BackendState::NotReady;
            Change::UpsertSlice(slice)
        }
        change => change,
    })
}

#[tokio::test]
async fn the_sockets_of_a_backend_that_is_not_ready_wait_for_some_seconds() {
    let mut rig = Rig::new(vec![vec![flow(1, DNS, ONE)]]);
    rig.apply(serve("shop/dns", DNS, &[ONE, TWO]).into_iter().chain([synced()]));
    rig.apply(unready(serve("shop/dns", DNS, &[ONE, TWO])));
    assert_eq!((rig.pass().await, rig.memory.unready.pause().is_some()), (0, true), "it may be ready again soon");
    for step in 1..=4 {
        tokio::time::pause();
        tokio::time::advance(unready::UNREADY_FOR / 4).await;
        tokio::time::resume();
        assert_eq!(rig.pass().await, u64::from(step == 4), "it has not been for some seconds");
    }
}

/// The machine of a backend lost its power, and connections to it hung for as long as their programs waited.
#[tokio::test]
async fn tcp_connections_to_a_backend_that_is_not_ready_end_after_the_configured_time() {
    const AFTER: Duration = Duration::from_secs(60);
    let [dns, one, two] = [DNS, ONE, TWO].map(|text| text.replace("UDP", "TCP"));
    for (after, expected) in [(None, 0), (Some(AFTER), 1)] {
        let mut rig = Rig::new(vec![vec![flow(1, &dns, &one)]]);
        rig.stale_sockets.scope = Disconnect::All;
        rig.memory.unready = Unready::new(after);
        rig.apply(serve("shop/dns", &dns, &[&one, &two]).into_iter().chain([synced()]));
        rig.apply(unready(serve("shop/dns", &dns, &[&one, &two])));
        assert_eq!((rig.pass().await, rig.memory.unready.pause()), (0, after.map(|after| after / 5)));
        for step in 1..=4 {
            tokio::time::pause();
            tokio::time::advance(AFTER / 4).await;
            tokio::time::resume();
            assert_eq!(rig.pass().await, if step == 4 { expected } else { 0 }, "{after:?}");
        }
        assert_eq!(rig.memory.report.tcp, expected);
    }
}

#[tokio::test]
async fn a_socket_of_two_services_goes_on_while_one_has_the_backend() {
    let flows = [flow(1, DNS, ONE), flow(1, OTHER, ONE)];
    let mut rig = Rig::new(vec![flows.to_vec()]);
    let both = serve("shop/dns", DNS, &[ONE, TWO]).into_iter().chain(serve("shop/other", OTHER, &[ONE, TWO]));
    rig.apply(both.chain([synced()]));
    rig.apply(serve("shop/dns", DNS, &[TWO]));
    assert_eq!(rig.pass().await, 0);
    rig.apply(serve("shop/other", OTHER, &[TWO]));
    assert_eq!(rig.pass().await, 1);
}

/// The promise, with a reserve for the reads themselves. A backend that is removed right after a pass has read the sockets waits for the end of this pass,
/// for the pause after it, and for the two reads of the next one.
#[test]
fn a_socket_is_ended_within_a_second() {
    assert!(LAST_ANSWER + PASS_EVERY + LAST_ANSWER <= Duration::from_millis(800));
}

#[tokio::test]
async fn what_is_read_only_once_is_not_believed() {
    let (torn, right) = (flow(1, OTHER, ONE), flow(1, DNS, ONE));
    let mut rig = Rig::new(vec![vec![torn], vec![right]]);
    let both = serve("shop/dns", DNS, &[ONE]).into_iter().chain(serve("shop/other", OTHER, &[TWO]));
    rig.apply(both.chain([synced()]));
    assert_eq!(rig.pass().await, 0);
    assert_eq!(rig.orders(), []);
}

/// If the backend leaves the service while a client connects, sends a request and closes, the client still gets its
/// answer.
#[tokio::test]
async fn an_exchange_under_way_is_not_cut_off() {
    let mut rig = Rig::new(vec![vec![flow(1, DNS, ONE)]]);
    rig.apply(serve("shop/dns", DNS, &[TWO]).into_iter().chain([synced()]));
    let began = Instant::now();
    assert_eq!(rig.pass().await, 1);
    assert!(began.elapsed() >= LAST_ANSWER, "{:?}", began.elapsed());
}

/// The kernel has a new backend and a socket that is connected to it, but the snapshot with that backend is not
/// published yet.
#[tokio::test]
async fn a_snapshot_that_is_older_than_the_sockets_ends_no_socket() {
    let mut rig = Rig::new(vec![vec![flow(1, DNS, TWO)]]);
    rig.apply(serve("shop/dns", DNS, &[ONE]).into_iter().chain([synced()]));
    rig.owner.apply(serve("shop/dns", DNS, &[TWO]));
    assert_eq!(rig.pass().await, 0);
    assert_eq!(rig.orders(), []);
}

#[tokio::test]
async fn addresses_are_looked_for_when_they_get_a_backend_and_once_more() {
    let mut rig = Rig::new(vec![Vec::new()]);
    rig.apply(serve("shop/dns", DNS, &[ONE]).into_iter().chain([synced()]));
    assert_eq!(rig.pass().await, 0, "nothing counts as new at the start");
    rig.apply(serve("shop/other", OTHER, &[]));
    assert_eq!(rig.pass().await, 0, "refused is not answered");
    rig.apply(serve("shop/other", OTHER, &[ONE]));
    let looked_for = Order::ConnectedTo(vec![l4(OTHER)]);
    assert_eq!(rig.pass().await, 1);
    assert_eq!(rig.orders(), std::slice::from_ref(&looked_for));
    assert_eq!(rig.pass().await, 1);
    assert_eq!(rig.orders(), [looked_for], "a connect may have been under way");
    assert_eq!(rig.pass().await, 0);
    assert_eq!(rig.orders(), []);
}

/// After a reboot every address with a backend is new, even before an apiserver has answered; but no backend counts as
/// removed before its source reports it.
#[tokio::test]
async fn after_a_reboot_what_is_answered_first_is_new() {
    let mut rig = Rig::new(vec![vec![flow(1, OTHER, ONE)]]);
    rig.memory.begin_with_nothing();
    rig.apply(serve("shop/dns", DNS, &[ONE]).into_iter().chain(serve("shop/other", OTHER, &[TWO])));
    assert!(!rig.owner.snapshot.borrow().is_ready, "only remembered so far");
    let looked_for = Order::ConnectedTo(vec![l4(DNS), l4(OTHER)]);
    assert_eq!(rig.pass().await, 2);
    assert_eq!(rig.orders(), std::slice::from_ref(&looked_for));
    assert_eq!(rig.pass().await, 2);
    assert_eq!(rig.orders(), [looked_for], "a connect may have been under way");
    assert_eq!(rig.pass().await, 0);
    rig.apply([synced()]);
    assert_eq!(rig.pass().await, 1);
    assert_eq!(rig.orders(), [ended(&flow(1, OTHER, ONE))]);
}

/// At a first start the addresses that are answered at READY are not new, and every later one is, also the first. The
/// only pass before was made before READY.
#[tokio::test]
async fn the_first_address_after_ready_is_new() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let Rig { stale_sockets, mut owner, deps, .. } = Rig::new(vec![Vec::new()]);
    let handles = Handles { flows: Arc::clone(&deps.flows), reaper: Reaper::Behind(path), cgroup: None };
    let mut report = stale_sockets.start(handles, std::future::pending());
    thread::spawn(move || accept(&listener, usize::MAX));
    report.wait_for(|report| report.is_working).await.unwrap();
    let_the_task_run().await;
    owner.apply(serve("shop/dns", DNS, &[ONE]).into_iter().chain([synced()]));
    owner.publish();
    let_the_task_run().await;
    assert_eq!(report.borrow().passes, 0, "made before READY, or the test shows nothing");
    owner.apply(serve("shop/other", OTHER, &[ONE]));
    owner.publish();
    let ended = timeout(Duration::from_secs(20), report.wait_for(|report| report.udp > 0)).await;
    assert!(ended.is_ok(), "no socket that connected earlier is looked for");
}

/// The runtime of a test has one thread.
async fn let_the_task_run() {
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
}

/// Lets the owner run one round during a pass that must fail.
async fn fail(rig: &mut Rig) -> PassError {
    let Rig { stale_sockets, owner, deps, memory, .. } = rig;
    let round = async {
        while let Some(batch) = owner.changes.recv().await {
            owner.apply(batch);
            owner.publish();
        }
    };
    tokio::select! {
        ended = stale_sockets.pass(memory, deps) => ended.unwrap_err(),
        () = round => unreachable!("it never ends"),
    }
}

/// A connection without a peer.
fn dead() -> ReaperLine {
    ReaperLine::over(UnixStream::pair().unwrap().0).unwrap()
}

#[tokio::test]
async fn a_reaper_that_ends_is_distinguished_from_other_errors() {
    let mut rig = Rig::new(vec![vec![flow(1, DNS, ONE)]]);
    rig.deps.line = dead();
    rig.apply(serve("shop/dns", DNS, &[TWO]).into_iter().chain([synced()]));
    let error = fail(&mut rig).await;
    assert!(rig.memory.note(Err(error)).is_some());
    assert!(rig.memory.note(Err(PassError::Owner)).is_none(), "the next pass may do better");
    let of_child = Reaper::Started(None).lost(io::ErrorKind::BrokenPipe.into());
    assert!(of_child.is_final() && of_child.to_string().contains("lacks the capabilities"), "{of_child}");
    assert!(!Reaper::Behind("/run/s".into()).lost(io::ErrorKind::BrokenPipe.into()).is_final());
}

#[tokio::test]
async fn what_a_reaper_left_undone_is_the_next_ones() {
    let mut rig = Rig::new(vec![Vec::new()]);
    rig.apply(serve("shop/dns", DNS, &[ONE]).into_iter().chain([synced()]));
    assert_eq!(rig.pass().await, 0);
    rig.apply(serve("shop/other", OTHER, &[ONE]));
    let working = std::mem::replace(&mut rig.deps.line, dead());
    assert!(matches!(fail(&mut rig).await, PassError::Reaper(_)));
    rig.deps.line = working;
    assert_eq!(rig.pass().await, 1);
    assert_eq!(rig.orders(), [Order::ConnectedTo(vec![l4(OTHER)])]);
}

/// The daemon's view of systemd with `Accept=yes`: each connection gets its own reaper. This one sends its first
/// message, answers `orders` orders as executed, and ends.
fn accept(listener: &UnixListener, orders: usize) {
    accept_saying(listener, orders, Outcome { destroyed: 1, errno: 0 });
}

/// As [`accept`], with this outcome for each entry.
fn accept_saying(listener: &UnixListener, orders: usize, outcome: Outcome) {
    let mut line = listener.accept().unwrap().0;
    line.write_all(&Hello { everywhere: true }.encode()).unwrap();
    let mut header = [0; HEADER];
    let mut left = orders;
    while left > 0 && line.read_exact(&mut header).is_ok() {
        let mut body = vec![0; Order::length(header).unwrap()];
        line.read_exact(&mut body).unwrap();
        let count = Order::decode(header, &body).unwrap().outcomes();
        left -= usize::from(count > 0);
        line.write_all(&encode_outcomes(&vec![outcome; count])).unwrap();
    }
}

#[tokio::test]
async fn another_reaper_is_called_until_one_works() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("socket");
    let Rig { mut stale_sockets, mut owner, deps, .. } = Rig::new(vec![vec![flow(1, DNS, ONE)]]);
    owner.apply(serve("shop/dns", DNS, &[TWO]).into_iter().chain([synced()]));
    owner.publish();
    stale_sockets.call_again = [Duration::from_millis(10), Duration::from_millis(100)];
    let handles = Handles { flows: Arc::clone(&deps.flows), reaper: Reaper::Behind(path.clone()), cgroup: None };
    let mut report = stale_sockets.start(handles, std::future::pending());
    tokio::spawn(async move {
        while let Some(batch) = owner.changes.recv().await {
            owner.apply(batch);
            owner.publish();
        }
    });
    report.wait_for(|report| report.errors >= 2).await.unwrap();
    assert!(!report.borrow().is_working, "no process listens");

    let listener = UnixListener::bind(&path).unwrap();
    let serving = thread::spawn(move || {
        // It is tested; it is tested and ends a socket; and so on.
        accept(&listener, 1);
        accept(&listener, 2);
        accept(&listener, usize::MAX);
    });
    report.wait_for(|report| report.udp >= 3).await.unwrap();
    assert!(report.borrow().is_working);
    assert!(!serving.is_finished());
}

#[tokio::test]
async fn one_that_can_end_nothing_is_called_again_at_the_longest_pause() {
    const LONGEST: Duration = Duration::from_millis(700);
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let Rig { mut stale_sockets, owner: _owner, deps, .. } = Rig::new(vec![Vec::new()]);
    stale_sockets.call_again = [Duration::from_millis(1), LONGEST];
    let handles = Handles { flows: Arc::clone(&deps.flows), reaper: Reaper::Behind(path), cgroup: None };
    let mut report = stale_sockets.start(handles, std::future::pending());
    let refusing = move || {
        accept_saying(&listener, 1, Outcome { destroyed: 0, errno: nix::libc::EPERM });
        (listener, std::time::Instant::now())
    };
    let (listener, refused) = tokio::task::spawn_blocking(refusing).await.unwrap();
    report.wait_for(|report| report.errors == 1).await.unwrap();
    assert!(!report.borrow().is_working);
    let _serving = thread::spawn(move || accept(&listener, usize::MAX));
    report.wait_for(|report| report.is_working).await.unwrap();
    let waited = refused.elapsed();
    assert!(waited + Duration::from_millis(100) >= LONGEST, "{waited:?}");
}
