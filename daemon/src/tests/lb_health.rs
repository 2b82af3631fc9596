//! A simulated node for the tests of both servers: an engine with maps in memory, its published state, and clients.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Addr, Family, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::{NodeFacts, NodeObject, NodePortAddress};
use nodelb_core::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName,
    SlicePort, Source, TrafficPolicy,
};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::Realised;
use nodelb_host::clock::Clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::inputs::STUCK_AFTER;
use super::*;
use crate::status::Health;

const LIMITS: Limits = Limits { frontends: 64, services: 64, slots: 256, affinity: 16, outside: 0, source_ranges: 0 };
const TIMEOUT: Duration = Duration::from_secs(20);

pub(super) const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

pub(super) struct World {
    engine: Engine,
    maps: MemoryDatapath,
    snapshot: watch::Sender<Arc<Snapshot>>,
    pub(super) health: watch::Sender<Arc<Health>>,
    pub(super) reported: mpsc::Receiver<Vec<Change>>,
    pub(super) entry: LbHealth,
}

impl World {
    /// A node with the name n1 that has received nothing from Kubernetes.
    pub(super) fn new() -> Self {
        let sources = BTreeSet::from([Source::Kubernetes]);
        let config = EngineConfig { sources, max_services: LIMITS.services, ..EngineConfig::default() };
        let engine = Engine::new(config, Realised::default());
        let clock = Clock::start();
        let (snapshot_in, snapshot) = watch::channel(Arc::new(engine.snapshot(Moment(0))));
        let (health_in, health) = watch::channel(Arc::new(Health::unchecked(Moment(0))));
        let (changes, reported) = mpsc::channel(64);
        let bounds = Bounds { per_listener: 8, overall: 12, listeners: 8, idle: Duration::from_secs(20) };
        let retry = Duration::from_millis(50);
        let view = View { snapshot, health, clock };
        let entry =
            LbHealth { view, changes, healthz_addresses: Vec::new(), bounds, retry, register: Arc::new(|_| Ok(())) };
        let maps = MemoryDatapath::new(LIMITS);
        let mut world = Self { engine, maps, snapshot: snapshot_in, health: health_in, reported, entry };
        world.apply([Change::Node(NodeFacts {
            name: "n1".into(),
            addresses: BTreeSet::from([HERE.into()]),
            nodeport_addresses: vec![NodePortAddress::Loopback],
            ..NodeFacts::default()
        })]);
        world
    }

    /// This node, synced.
    pub(super) fn synced() -> Self {
        let mut world = Self::new();
        world.apply([Change::Synced { source: Source::Kubernetes, incomplete: None }]);
        world
    }

    /// Applies changes as the owner does.
    pub(super) fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.engine.change(change));
        let now = self.entry.view.clock.now();
        self.engine.reconcile(&mut self.maps, now);
        self.snapshot.send_replace(Arc::new(self.engine.snapshot(now)));
        self.health.send_replace(Arc::new(Health::unchecked(now)));
    }

    /// The next change for the owner.
    pub(super) async fn next(&mut self) -> Change {
        let mut batch = timeout(TIMEOUT, self.reported.recv()).await.expect("in time").expect("a report");
        assert_eq!(batch.len(), 1, "{batch:?}");
        batch.remove(0)
    }
}

/// A service with a ClusterIP and this health-check port.
pub(super) fn service(name: &str, number: u8, port: u16) -> Service {
    let frontend = FrontendSpec {
        addr: Addr::from(IpAddr::from([198, 51, 100, number])),
        port: 80,
        kind: FrontendKind::ClusterIP,
    };
    Service {
        created: Some(number.into()),
        ports: vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, frontends: vec![frontend] }],
        external_policy: TrafficPolicy::Local,
        health_check_port: Some(port),
        ..Service::new(name.parse().expect("a name"), Source::Kubernetes)
    }
}

/// The backends of the service on this node.
pub(super) fn slice(name: &str, backends: &[(u8, BackendState)]) -> Slice {
    let service: ServiceName = name.parse().expect("a name");
    let backend = |(number, state): &(u8, BackendState)| Backend {
        state: *state,
        node: Some("n1".into()),
        ..Backend::new(Addr::from(IpAddr::from([192, 0, 2, *number])), 8080)
    };
    let ports = vec![SlicePort {
        name: "http".into(),
        protocol: Protocol::Tcp,
        backends: backends.iter().map(backend).collect(),
    }];
    let name = SliceName::new(&service.namespace, &service.name);
    Slice { name, service, source: Source::Kubernetes, origin: Origin::default(), ports, problem: None }
}

/// An address without a listener.
pub(super) async fn free() -> SocketAddr {
    TcpListener::bind((HERE, 0)).await.expect("a port").local_addr().expect("an address")
}

/// Sends the bytes, and returns everything received until the server closes the connection.
pub(super) async fn raw(at: SocketAddr, request: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(at).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    timeout(TIMEOUT, stream.read_to_string(&mut answer)).await.map_err(io::Error::other)??;
    Ok(answer)
}

/// Sends a request of a load balancer, with the date removed from the answer.
pub(super) async fn ask(at: SocketAddr, path: &str) -> io::Result<String> {
    let answer = raw(at, &format!("GET {path} HTTP/1.1\r\nHost: lb\r\nConnection: close\r\n\r\n")).await?;
    let (before, rest) = answer.split_once("Date: ").expect("a date");
    let (date, after) = rest.split_once("\r\n").expect("a whole line");
    assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
    Ok(format!("{before}Date: D\r\n{after}"))
}

/// Repeats the request until the condition holds.
pub(super) async fn until(at: SocketAddr, is_so: impl Fn(&io::Result<String>) -> bool) {
    let asking = async {
        while !is_so(&ask(at, "/").await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, asking).await.expect("in time");
}

#[tokio::test]
async fn a_node_serves_when_it_knows_everything_or_has_something_from_before() {
    let status = |world: &World| {
        let view = &world.entry.view;
        view.status(&view.snapshot()).is_healthy
    };
    let mut fresh = World::new();
    assert!(!status(&fresh), "nothing received, nothing served");
    fresh.apply([Change::UpsertService(service("shop/web", 1, 0))]);
    assert!(!status(&fresh), "a service without its backends is not served yet");
    fresh.apply([Change::UpsertSlice(slice("shop/web", &[(1, BackendState::Active)]))]);
    assert!(status(&fresh), "remembered, or adopted from the kernel: no apiserver is needed");
    assert!(status(&World::synced()), "an empty cluster");
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_silent_for_a_minute_is_stuck() {
    let world = World::synced();
    let view = &world.entry.view;
    tokio::time::advance(Duration::from_millis(STUCK_AFTER - 1)).await;
    assert!(view.status(&view.snapshot()).is_healthy);
    tokio::time::advance(Duration::from_millis(1)).await;
    let status = view.status(&view.snapshot());
    assert!(!status.is_healthy);
    assert_eq!(status.now.duration_since(status.updated).expect("before"), Duration::from_millis(STUCK_AFTER));
}

#[tokio::test]
async fn a_service_that_cannot_be_programmed_harms_the_node_in_no_way() {
    let mut world = World::synced();
    world.maps = MemoryDatapath::new(LIMITS).with_fault(Box::new(|_| true));
    world.apply([
        Change::UpsertService(service("shop/web", 1, 0)),
        Change::UpsertSlice(slice("shop/web", &[(1, BackendState::Active)])),
    ]);
    let view = &world.entry.view;
    assert!(view.status(&view.snapshot()).is_healthy);
    assert_eq!(view.snapshot().local_ready(&ServiceName::new("shop", "web"), Family::Ipv4), 1);
}

#[tokio::test]
async fn the_thread_ends_on_request() {
    let at = free().await;
    let mut world = World::synced();
    world.entry.healthz_addresses = vec![at];
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    start(world.entry.clone(), async { drop(stopped.await) }).expect("a thread");
    until(at, |answer| answer.as_ref().is_ok_and(|answer| answer.starts_with("HTTP/1.1 404"))).await;
    drop(stop);
    until(at, Result::is_err).await;
    drop(world.reported);
}

/// The Node object, optionally with a sign that the node is about to be removed.
pub(super) fn node_object(leaving: Option<&str>) -> Change {
    Change::NodeObject(Some(NodeObject { leaving: leaving.map(Into::into), ..NodeObject::default() }))
}
