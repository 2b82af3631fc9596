//! Apiservers at documentation addresses. A CONNECT proxy on loopback forwards to small TLS servers, and can refuse,
//! cut and silently drop connections.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::apiserver::credentials::login::tests::Authority;
use crate::apiserver::endpoints::supervisor::IsFrontend;

/// The state of the path to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Open,
    /// New connections are refused, and existing ones are cut.
    Down,
    /// No data arrives any more.
    Hole,
}

/// The responses of a server.
#[derive(Clone, Debug)]
pub(super) struct Behaviour {
    pub(super) readyz: u16,
    pub(super) list: u16,
    /// The `Retry-After` of a list response with another status than 200, in seconds.
    pub(super) retry_after: Option<u32>,
    pub(super) cluster: &'static str,
    /// The accepted token.
    pub(super) token: &'static str,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self { readyz: 200, list: 200, retry_after: None, cluster: "cluster-1", token: "good" }
    }
}

pub(super) fn at(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], 6443))
}

struct Place {
    way: watch::Sender<Way>,
    leads_to: SocketAddr,
    behaviour: Arc<Mutex<Behaviour>>,
    probes: Arc<AtomicUsize>,
}

type Places = Arc<Mutex<BTreeMap<SocketAddr, Place>>>;

pub(super) struct World {
    authority: Authority,
    places: Places,
    tasks: JoinSet<()>,
    pub(super) proxy: SocketAddr,
    pub(super) directory: tempfile::TempDir,
    /// The addresses that nodelb translates.
    frontends: Arc<Mutex<BTreeSet<SocketAddr>>>,
}

impl World {
    /// Servers with these numbers, and files with credentials for them.
    pub(super) async fn with(servers: &[u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        let places = Places::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(proxying(listener, Arc::clone(&places)));
        let directory = tempfile::tempdir().unwrap();
        let frontends = Arc::new(Mutex::new([at(80)].into()));
        let mut world = Self { authority: Authority::new(), places, tasks, proxy, directory, frontends };
        world.write("ca.pem", &world.authority.pem());
        world.write("token", "good");
        for n in servers {
            world.add(*n).await;
        }
        world
    }

    pub(super) fn authority(&self) -> &Authority {
        &self.authority
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path().join(name), content).unwrap();
    }

    /// Replaces the addresses of services.
    pub(super) fn balances(&self, frontends: &[SocketAddr]) {
        *self.frontends.lock().unwrap() = frontends.iter().copied().collect();
    }

    pub(super) fn is_frontend(&self) -> IsFrontend {
        let frontends = Arc::clone(&self.frontends);
        Arc::new(move |at| frontends.lock().unwrap().contains(&at))
    }

    async fn add(&mut self, n: u8) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let leads_to = listener.local_addr().unwrap();
        let behaviour = Arc::new(Mutex::new(Behaviour::default()));
        let probes = Arc::new(AtomicUsize::new(0));
        let config = self.authority.server(&Authority::params(&["kubernetes"]), &["h2", "http/1.1"]);
        self.tasks.spawn(serving(listener, config, Arc::clone(&behaviour), Arc::clone(&probes)));
        let place = Place { way: watch::channel(Way::Open).0, leads_to, behaviour, probes };
        self.places.lock().unwrap().insert(at(n), place);
    }

    fn place<T>(&self, n: u8, of: impl FnOnce(&Place) -> T) -> T {
        of(&self.places.lock().unwrap()[&at(n)])
    }

    pub(super) fn way(&self, n: u8, way: Way) {
        self.place(n, |place| place.way.send_replace(way));
    }

    pub(super) fn behaviour(&self, n: u8, change: impl FnOnce(&mut Behaviour)) {
        self.place(n, |place| change(&mut place.behaviour.lock().unwrap()));
    }

    /// The number of readiness checks that the server has received.
    pub(super) fn probes(&self, n: u8) -> usize {
        self.place(n, |place| place.probes.load(Ordering::SeqCst))
    }
}

async fn proxying(listener: TcpListener, places: Places) {
    let mut tunnels = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        tunnels.spawn(tunnel(stream, Arc::clone(&places)));
    }
}

async fn tunnel(mut stream: TcpStream, places: Places) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let head = String::from_utf8(head).unwrap();
    let target: SocketAddr = head.split(' ').nth(1).unwrap().parse().unwrap();
    let found = places.lock().unwrap().get(&target).map(|place| (place.way.subscribe(), place.leads_to));
    let Some((mut way, leads_to)) = found.filter(|(way, _)| *way.borrow() != Way::Down) else {
        let _ = stream.write_all(b"HTTP/1.1 502 connection refused\r\n\r\n").await;
        return;
    };
    if *way.borrow() == Way::Open {
        let mut server = TcpStream::connect(leads_to).await.unwrap();
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        tokio::select! {
            _ = copy_bidirectional(&mut stream, &mut server) => return,
            _ = way.wait_for(|way| *way != Way::Open) => {}
        }
    }
    let _ = way.wait_for(|way| *way != Way::Hole).await;
}

async fn serving(
    listener: TcpListener,
    config: rustls::ServerConfig,
    behaviour: Arc<Mutex<Behaviour>>,
    probes: Arc<AtomicUsize>,
) {
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, behaviour, probes) = (acceptor.clone(), Arc::clone(&behaviour), Arc::clone(&probes));
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(move |request| {
                if request.uri().path() == "/readyz" {
                    probes.fetch_add(1, Ordering::SeqCst);
                }
                let answer = answer(&request, &behaviour.lock().unwrap());
                async move { Ok::<_, Infallible>(answer) }
            });
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn answer(request: &Request<Incoming>, behaviour: &Behaviour) -> Response<Full<Bytes>> {
    let whole = |code: u16, body: String| Response::builder().status(code).body(Full::from(body)).unwrap();
    let status = |code: u16, message: &str| {
        whole(code, format!(r#"{{"kind": "Status", "message": "{message}", "code": {code}}}"#))
    };
    let shown = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
    if shown.as_deref() != Some(&format!("Bearer {}", behaviour.token)) {
        return status(401, "Unauthorized");
    }
    match (request.uri().path(), behaviour.readyz, behaviour.list) {
        ("/readyz", 200, _) => whole(200, "ok".into()),
        ("/readyz", code, _) => whole(code, "[+]ping ok\n[-]etcd failed: reason withheld\n".into()),
        (_, _, 200) => {
            let uid = behaviour.cluster;
            let metadata = r#"{"resourceVersion": "4711"}"#;
            whole(200, format!(r#"{{"metadata": {metadata}, "items": [{{"metadata": {{"uid": "{uid}"}}}}]}}"#))
        }
        (_, _, code) => {
            let mut answer = status(code, "services is forbidden");
            if let Some(seconds) = behaviour.retry_after {
                answer.headers_mut().insert("retry-after", seconds.into());
            }
            answer
        }
    }
}
