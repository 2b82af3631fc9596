//! Clients of the healthCheckNodePort, and the part of nodelb that serves them, on sockets of the
//! sandbox.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use nodelb::lb_health::{Bounds, LbHealth, View, start};
use nodelb::status::Health;
use nodelb_core::change::Change;
use nodelb_core::snapshot::Snapshot;
use nodelb_host::clock::Clock;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

/// Serves until it is dropped.
pub(crate) struct HealthCheckServer {
    snapshot: watch::Sender<Arc<Snapshot>>,
    health: watch::Sender<Arc<Health>>,
    clock: Clock,
    _changes: mpsc::Receiver<Vec<Change>>,
    _running: oneshot::Sender<()>,
}

impl HealthCheckServer {
    pub(crate) fn start() -> Self {
        let clock = Clock::start();
        let (snapshot, snapshots) = watch::channel(Arc::default());
        let (health, healths) = watch::channel(Arc::new(Health::unchecked(clock.now())));
        let (changes, receiver) = mpsc::channel(64);
        let (running, stop) = oneshot::channel();
        let entry = LbHealth {
            view: View { snapshot: snapshots, health: healths, clock },
            changes,
            healthz_addresses: Vec::new(),
            bounds: Bounds::within(1024),
            retry: Duration::from_millis(100),
            register: Arc::new(|_| Ok(())),
        };
        start(entry, async { drop(stop.await) }).expect("a thread");
        Self { snapshot, health, clock, _changes: receiver, _running: running }
    }

    /// Publishes the current state of the owner.
    pub(crate) fn publish(&self, snapshot: Snapshot) {
        self.health.send_replace(Arc::new(Health::unchecked(self.clock.now())));
        self.snapshot.send_replace(Arc::new(snapshot));
    }
}

/// A summary of the response. Status, header and body must agree.
pub(crate) fn get(at: SocketAddr) -> String {
    match answer(at) {
        Ok(answer) => read(&answer).unwrap_or(answer),
        Err(_refused) => "nothing listens".into(),
    }
}

fn answer(at: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /whatever HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn read(answer: &str) -> Option<String> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.lines().next()?.strip_prefix("HTTP/1.1 ")?;
    let mut headers = head.lines().filter_map(|line| line.split_once(": "));
    let (_, weight) = headers.find(|(name, _)| name.eq_ignore_ascii_case("X-Load-Balancing-Endpoint-Weight"))?;
    let body: Value = serde_json::from_str(body).ok()?;
    let (namespace, name) = (body["service"]["namespace"].as_str()?, body["service"]["name"].as_str()?);
    let count = body["localEndpoints"].as_u64()?;
    (weight == count.to_string()).then(|| format!("{status}: {namespace}/{name} has {count} here"))
}
