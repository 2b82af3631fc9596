use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nodelb_core::addr::{Addr, L4Addr, Protocol};
use nodelb_core::compare::Content;
use nodelb_core::datapath::{Limits, Moment};
use nodelb_core::engine::Snapshot;
use nodelb_core::state::{FrontendEntry, MapState, ServiceId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::{Bounds, serve};
use crate::admin::{AdminState, Check, Health, Now, Reality, answer};

/// A server on a free port, with its clock standing at one minute. Stops when dropped.
struct Served {
    address: SocketAddr,
    health: watch::Sender<Arc<Health>>,
    maps: watch::Sender<Result<MapState, String>>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

const NOW: Moment = Moment(60_000);

async fn served(bounds: Bounds) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let healthy = Health { beat: NOW, checks: vec![Check::passed("canary", "refused at once")] };
    let (health, health_seen) = watch::channel(Arc::new(healthy));
    let (maps, held) = watch::channel(Ok(MapState::default()));
    let state = AdminState {
        snapshot: watch::channel(Arc::new(Snapshot::default())).1,
        sources: vec![watch::channel(Arc::new(Vec::new())).1],
        apiservers: watch::channel(Arc::default()).1,
        checks: watch::channel(Arc::default()).1,
        moves: None,
        history: watch::channel(Arc::default()).1,
        latencies: None,
        health: health_seen,
        maps: Arc::new(move || held.borrow().clone().map(|state| Content { state, broken: Vec::new() })),
        reality: Reality::default(),
        limits: Limits { frontends: 1, services: 2, slots: 3, affinity: 4 },
        clock: Arc::new(|| Now { moment: NOW, unix: 1_700_000_000 }),
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move {
        let _ = stopped.await;
    };
    let task = tokio::spawn(serve(vec![listener], answer::router(state), bounds, shutdown));
    Served { address, health, maps, stop: Some(stop), task }
}

impl Served {
    /// Sends the bytes and returns everything that comes back until the server closes.
    async fn raw(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    async fn get(&self, target: &str) -> String {
        self.with(target, "").await
    }

    async fn with(&self, target: &str, headers: &str) -> String {
        self.raw(&format!("GET {target} HTTP/1.1\r\nHost: localhost:9890\r\n{headers}\r\n")).await
    }

    async fn stop(mut self) {
        self.stop.take().map(|stop| stop.send(()));
        self.task.await.unwrap();
    }
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("none")
}

#[tokio::test]
async fn the_list_names_every_route_and_each_answers_in_both_forms() {
    let server = served(Bounds::default()).await;
    let list = server.get("/?output=json").await;
    let body: serde_json::Value = serde_json::from_str(list.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let routes: Vec<&str> =
        body["routes"].as_array().unwrap().iter().map(|row| row["route"].as_str().unwrap()).collect();
    let expected = [
        "/",
        "/services",
        "/frontends",
        "/backends",
        "/maps",
        "/diff",
        "/history",
        "/sources",
        "/apiservers",
        "/openapi.json",
        "/healthz",
        "/readyz",
        "/metrics",
    ];
    assert_eq!(routes, expected);
    for route in routes.into_iter().filter(|route| !["/metrics", "/openapi.json"].contains(route)) {
        let text = server.get(route).await;
        assert_eq!(status(&text), "200", "{text}");
        assert!(text.contains("content-type: text/plain; charset=utf-8"), "{text}");
        assert!(text.contains("x-content-type-options: nosniff"), "{text}");
        let json = server.with(route, "Accept: application/json\r\n").await;
        assert!(json.contains("content-type: application/json"), "{json}");
        let body: serde_json::Value = serde_json::from_str(json.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert!(body.is_object(), "{json}");
        let forced = server.with(&format!("{route}?output=text"), "Accept: application/json\r\n").await;
        assert!(forced.contains("content-type: text/plain"), "{forced}");
    }
    server.stop().await;
}

#[tokio::test]
async fn metrics_have_their_own_form_and_no_parameters() {
    let server = served(Bounds::default()).await;
    let answer = server.with("/metrics", "Accept: application/json\r\n").await;
    assert_eq!(status(&answer), "200", "{answer}");
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{answer}");
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    let filter = server.get("/metrics?output=json").await;
    assert!(filter.contains("unknown parameter `output`: /metrics takes none"), "{filter}");
    server.stop().await;
}

#[tokio::test]
async fn frontends_have_exactly_their_columns() {
    let server = served(Bounds::default()).await;
    let answer = server.get("/frontends").await;
    let heading = answer.lines().last().unwrap();
    assert_eq!(heading, "Address  Type  Service  Port  Backends  Flags  Status  Since  Error");
    server.stop().await;
}

#[tokio::test]
async fn wrong_questions_get_words_that_help() {
    let server = served(Bounds::default()).await;
    let unknown = server.get("/frontend").await;
    assert_eq!(status(&unknown), "404");
    assert!(unknown.contains("no route `/frontend`: there are / /services /frontends"), "{unknown}");
    let post = server.raw("POST /frontends HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(status(&post), "405");
    assert!(post.to_ascii_lowercase().contains("allow: get,head"), "{post}");
    assert!(post.contains("POST is not answered: the API only reads, use GET"), "{post}");
    let filter = server.get("/frontends?servce=shop/web").await;
    assert_eq!(status(&filter), "400");
    assert!(filter.contains("unknown parameter `servce`"), "{filter}");
    let json = server.with("/frontends?x=1", "Accept: application/json\r\n").await;
    assert!(json.contains("output=text|json"), "{json}");
    server.stop().await;
}

#[tokio::test]
async fn strangers_are_refused() {
    let server = served(Bounds::default()).await;
    let rebound = server.raw("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").await;
    assert_eq!(status(&rebound), "403");
    assert!(rebound.contains("nosniff"), "{rebound}");
    assert_eq!(status(&server.raw("GET / HTTP/1.1\r\n\r\n").await), "400");
    assert_eq!(status(&server.raw("GET / HTTP/1.0\r\n\r\n").await), "200");
    assert_eq!(status(&server.with("/", "Origin: http://localhost:9890\r\n").await), "403");
    assert_eq!(status(&server.with("/nowhere", "Sec-Fetch-Site: cross-site\r\n").await), "403");
    assert_eq!(status(&server.raw("CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n").await), "403");
    assert_eq!(status(&server.raw("\x16\x03\x01nonsense\r\n\r\n").await), "400");
    server.stop().await;
}

#[tokio::test]
async fn health_and_readiness_say_why_not() {
    let server = served(Bounds::default()).await;
    assert_eq!(status(&server.get("/readyz").await), "200");
    server.health.send_replace(Arc::new(Health { beat: NOW, checks: Vec::new() }));
    assert_eq!(status(&server.get("/healthz").await), "200");
    let starting = server.get("/readyz").await;
    assert_eq!(status(&starting), "503");
    assert!(starting.contains("the first full reconcile has not been done yet"), "{starting}");
    server.health.send_replace(Arc::new(Health { beat: Moment(0), checks: vec![Check::failed("links", "link gone")] }));
    let stuck = server.get("/healthz").await;
    assert_eq!(status(&stuck), "503");
    assert!(stuck.contains("has not gone round for 60 s"), "{stuck}");
    let unready = server.get("/readyz").await;
    assert!(unready.contains("link gone") && unready.contains("for 60 s"), "{unready}");
    server.stop().await;
}

#[tokio::test]
async fn unreadable_maps_are_an_answer() {
    let server = served(Bounds::default()).await;
    let _ = server.maps.send_replace(Err("map services: no such file".into()));
    let answer = server.get("/maps").await;
    assert_eq!(status(&answer), "503");
    assert!(answer.contains("the kernel maps cannot be read: map services: no such file"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn a_header_too_large_is_refused() {
    let server = served(Bounds::default()).await;
    let huge = server.with("/", &format!("X-Large: {}\r\n", "a".repeat(64 * 1024))).await;
    assert!(["431", "none"].contains(&status(&huge)), "{huge}");
    let many = (0..100).map(|n| format!("X-{n}: a\r\n")).collect::<String>();
    assert_eq!(status(&server.with("/", &many).await), "431");
    assert_eq!(status(&server.get(&format!("/{}", "a".repeat(64 * 1024))).await), "431");
    assert_eq!(status(&server.get("/").await), "200");
    server.stop().await;
}

#[tokio::test]
async fn slow_and_silent_clients_lose_their_place_and_others_get_it() {
    let header_time = Duration::from_millis(300);
    let server = served(Bounds { connections: 4, header_time, ..Bounds::default() }).await;
    let mut held = Vec::new();
    for n in 0..8 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        if n % 2 == 0 {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: loc").await.unwrap();
        }
        held.push(stream);
    }
    let start = Instant::now();
    assert_eq!(status(&server.get("/healthz").await), "200");
    assert!(start.elapsed() < 10 * header_time, "{:?}", start.elapsed());
    drop(held);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_drips_its_header_is_cut_in_time() {
    let header_time = Duration::from_millis(300);
    let server = served(Bounds { header_time, ..Bounds::default() }).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let start = Instant::now();
    while stream.write_all(b"G").await.is_ok() && start.elapsed() < 20 * header_time {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(start.elapsed() < 10 * header_time, "{:?}", start.elapsed());
    server.stop().await;
}

#[tokio::test]
async fn many_clients_at_once_are_all_answered() {
    let server = Arc::new(served(Bounds { connections: 8, ..Bounds::default() }).await);
    let clients: Vec<_> = (0..200)
        .map(|_| {
            let server = Arc::clone(&server);
            tokio::spawn(async move { status(&server.get("/frontends").await).to_owned() })
        })
        .collect();
    for client in clients {
        assert_eq!(client.await.unwrap(), "200");
    }
    Arc::into_inner(server).unwrap().stop().await;
}

/// 4 MB of answer each, asked for and never read.
#[tokio::test]
async fn readers_that_do_not_read_stall_nobody() {
    let server = served(Bounds::default()).await;
    let entry = FrontendEntry { service: ServiceId(0), inside_local: false, outside_local: false };
    let address = |n: u32| L4Addr::new(Addr::from(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + n))), 80, Protocol::Tcp);
    let frontends = (0..80_000).map(|n| (address(n), entry)).collect();
    let _ = server.maps.send_replace(Ok(MapState { frontends, ..Default::default() }));
    let mut held = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"GET /maps HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        held.push(stream);
    }
    let start = Instant::now();
    assert_eq!(status(&server.get("/healthz").await), "200");
    let narrow = server.get("/maps?address=10.0.0.7").await;
    assert!(narrow.contains("10.0.0.7:80/TCP"), "{narrow}");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    drop(held);
    server.stop().await;
}

#[tokio::test]
async fn stop_does_not_wait_for_a_silent_client() {
    let server = served(Bounds { stop_time: Duration::from_millis(200), ..Bounds::default() }).await;
    let silent = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(status(&server.get("/").await), "200");
    let start = Instant::now();
    server.stop().await;
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    drop(silent);
}
