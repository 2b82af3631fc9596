//! A server with an engine behind it, which the test drives.

use nodelb_report::time::{Clocks, Time};
use std::net::SocketAddr;
use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::moment::Moment;
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::MapState;
use nodelb_core::state::kernel_check::Content;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::admin::AdminState;
use crate::admin::fixture::{owner, unsynced};
use crate::admin::server::{self, STREAMS, serve};
use crate::datapath::fake::FakeDatapath;
use crate::http::{self, Listener};
use crate::reconcile::OwnerOutputs;
use crate::status::{Check, Health};

/// The server's clock does not advance.
pub(super) const NOW: Moment = Moment(60_000);
/// Time stands still here, so that slots are never free again.
const LIMITS: Limits =
    Limits { frontends: 100_000, services: 100_000, slots: 4_000_000, affinity: 4, outside: 0, source_ranges: 0 };

/// A server on a free port and on a Unix socket.
pub(super) struct Served {
    pub(super) address: SocketAddr,
    socket: tempfile::TempDir,
    pub(super) health: watch::Sender<Arc<Health>>,
    pub(super) maps: watch::Sender<Result<MapState, String>>,
    snapshot: watch::Sender<Arc<Snapshot>>,
    engine: Engine,
    datapath: MemoryDatapath,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

pub(super) async fn served() -> Served {
    limited(server::LIMITS, STREAMS).await
}

/// A server with these limits, and with this number of streams.
pub(super) async fn limited(limits: http::ServerLimits, streams: usize) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let socket = tempfile::tempdir().unwrap();
    let unix = UnixListener::bind(socket.path().join("nodelb.sock")).unwrap();
    let healthy = Health { heartbeat: NOW, checks: vec![Check::passed("canary", "refused at once")] };
    let (health, health_seen) = watch::channel(Arc::new(healthy));
    let (maps, held) = watch::channel(Ok(MapState::default()));
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 100_000, ..EngineConfig::default() };
    let engine = Engine::new(config, MapState::default());
    let (snapshot, shown) = watch::channel(Arc::new(engine.snapshot(NOW)));
    let content = move || held.borrow().clone().map(|state| Content { state, ..Content::default() });
    let state = AdminState {
        owner: OwnerOutputs { health: health_seen, ..owner(shown) },
        datapath: Arc::new(FakeDatapath { limits: LIMITS, content: Box::new(content), ..FakeDatapath::default() }),
        clock: Arc::new(|| Clocks { moment: NOW, time: Time::from_seconds(1_700_000_000) }),
        ..unsynced()
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move {
        let _ = stopped.await;
    };
    let (open, listeners) = mpsc::channel(2);
    open.try_send(Listener::Tcp(listener)).map_err(drop).unwrap();
    open.try_send(Listener::Unix(unix)).map_err(drop).unwrap();
    let task = tokio::spawn(serve(listeners, state, (limits, streams), shutdown));
    let datapath = MemoryDatapath::new(LIMITS);
    Served { address, socket, health, maps, snapshot, engine, datapath, stop: Some(stop), task }
}

impl Served {
    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    pub(super) async fn connect_unix(&self) -> UnixStream {
        UnixStream::connect(self.socket.path().join("nodelb.sock")).await.unwrap()
    }

    /// Sends the bytes, and returns all bytes until the server closes the connection.
    pub(super) async fn raw(&self, request: &str) -> String {
        whole(self.connect().await, request).await
    }

    pub(super) async fn get(&self, target: &str) -> String {
        self.with(target, "").await
    }

    pub(super) async fn with(&self, target: &str, headers: &str) -> String {
        self.raw(&format!("GET {target} HTTP/1.1\r\nHost: localhost:9890\r\n{headers}\r\n")).await
    }

    /// [`Self::get`] over the Unix socket.
    pub(super) async fn get_unix(&self, target: &str) -> String {
        let request = format!("GET {target} HTTP/1.1\r\nHost: whatever\r\n\r\n");
        whole(self.connect_unix().await, &request).await
    }

    /// Runs a round as the owner task does.
    pub(super) fn apply(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.engine.reconcile(&mut self.datapath, NOW);
        self.snapshot.send_replace(Arc::new(self.engine.snapshot(NOW)));
    }

    pub(super) async fn stop(mut self) {
        self.stop.take().map(|stop| stop.send(()));
        self.task.await.unwrap();
    }
}

async fn whole(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> String {
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

pub(super) fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

/// Returns a service with one address.
pub(super) fn service(name: &str, address: &str, kind: FrontendKind) -> Change {
    let name: ServiceName = name.parse().unwrap();
    let address: nodelb_core::model::addr::L4Addr = address.parse().unwrap();
    let frontends = vec![FrontendSpec { addr: address.addr, port: address.port, kind }];
    let port = ServicePort { name: "http".into(), protocol: address.protocol, frontends };
    Change::UpsertService(Service { ports: vec![port], ..Service::new(name, Source::Files) })
}

/// Returns the service's backends.
pub(super) fn backends(name: &str, backends: &[&str]) -> Change {
    let service: ServiceName = name.parse().unwrap();
    let backend = |text: &&str| {
        let address: nodelb_core::model::addr::L4Addr = text.parse().unwrap();
        Backend::new(address.addr, address.port)
    };
    Change::UpsertSlice(Slice {
        name: SliceName::new(&service.namespace, &service.name),
        service,
        source: Source::Files,
        origin: Origin::default(),
        ports: vec![SlicePort {
            name: "http".into(),
            protocol: nodelb_core::model::addr::Protocol::Tcp,
            backends: backends.iter().map(backend).collect(),
        }],
        problem: None,
    })
}

pub(super) fn synced() -> Change {
    Change::Synced { source: Source::Files, incomplete: None }
}
