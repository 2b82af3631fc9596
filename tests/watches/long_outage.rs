//! A day without any apiserver, on a simulated clock, with the timeouts of the daemon instead of
//! those of a test.

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nodelb_apiserver::{Cluster, ServeOptions};
use nodelb_core::change::Change;
use nodelb_core::snapshot::Snapshot;
use nodelb_host::clock::Clock;
use nodelb_kube::api::scope::Selection;
use nodelb_kube::apiserver::address::{Address, Server};
use nodelb_kube::apiserver::credentials::CredentialTimeouts;
use nodelb_kube::apiserver::endpoints::timeouts::PoolTimeouts;
use nodelb_kube::apiserver::settings::Settings;
use nodelb_kube::source::store::InMaps;
use nodelb_kube::source::watch::WatchTimeouts;
use nodelb_kube::source::{self, Followed, KubernetesSource, StateSettings};
use tokio::sync::{mpsc, watch};

use crate::rig::connect_to;

const HOUR: Duration = Duration::from_secs(3600);

/// The changes that the node has received.
type Received = Arc<Mutex<Vec<Change>>>;

#[test]
fn a_day_without_an_apiserver_changes_nothing_and_costs_one_line() {
    let journal = Journal::default();
    let writer = journal.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let _journal = tracing::subscriber::set_default(subscriber);
    let cluster = Cluster::new().expect("a cluster");
    ["stays", "goes"].iter().for_each(|name| apply(&cluster, name));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = listener.local_addr().expect("bound");
    let replica = cluster.serve(listener, ServeOptions::default()).expect("served");
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = directory.path().join("kubeconfig");
    std::fs::write(&kubeconfig, cluster.kubeconfig(&[&replica.url()]).expect("a kubeconfig")).expect("written");
    let settings = Settings {
        servers: vec![Server { address: Address::from(at), tls_server_name: None }],
        kubeconfig: Some(kubeconfig),
        state_directory: directory.path().to_path_buf(),
        ..Settings::default()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let received = node(settings);
        until(&received, "synced", |received| received.iter().any(|change| matches!(change, Change::Synced { .. })))
            .await;
        received.lock().expect("not poisoned").clear();
        journal.take();
        replica.stop();
        cluster.delete("services", "ns", "goes").expect("was there");
        apply(&cluster, "comes");

        tokio::time::pause();
        // One more minute: the loss is noticed in one of the first steps.
        pass(24 * HOUR + Duration::from_secs(60)).await;
        tokio::time::resume();
        let changes = std::mem::take(&mut *received.lock().expect("not poisoned"));
        assert!(changes.iter().all(|change| matches!(change, Change::Apiservers(_))), "{changes:?}");
        let lines = journal.take();
        // The broken connection may be logged, too, and once a time limit that the clock skipped; retries must not be.
        let lost = lines.lines().filter(|line| line.contains("no apiserver is reachable")).count();
        assert!(lost == 1 && lines.lines().count() <= 4, "{lines}");

        let _replica = cluster.serve(bind_again(at), ServeOptions::default()).expect("served");
        until(&received, "caught up", |received| {
            let is_gone = |change: &Change| matches!(change, Change::RemoveService(name, _) if &*name.name == "goes");
            let is_there = |change: &Change| matches!(change, Change::UpsertService(s) if &*s.name.name == "comes");
            received.iter().any(is_gone) && received.iter().any(is_there)
        })
        .await;
        let lines = journal.take();
        assert!(lines.contains("connected to apiserver") && lines.contains("after 24 h without one"), "{lines}");
    });
}

/// A paused clock jumps ahead as soon as only threads are active. This one advances in steps, and gives the threads
/// that read credentials time to return at each.
async fn pass(time: Duration) {
    const STEP: Duration = Duration::from_secs(10);
    for _ in 0..time.as_secs() / STEP.as_secs() {
        tokio::time::advance(STEP).await;
        for _ in 0..5 {
            std::thread::sleep(Duration::from_micros(100));
            tokio::task::yield_now().await;
        }
    }
}

/// Starts the supervisor and the source as the daemon does.
fn node(settings: Settings) -> Received {
    let (changes_in, mut changes) = mpsc::channel::<Vec<Change>>(64);
    // Longer than the day, and so are the other time limits of threads: see `pass`.
    let timeouts = PoolTimeouts { load: 48 * 3_600_000, ..PoolTimeouts::default() };
    let credentials = CredentialTimeouts { files: 48 * HOUR, ..CredentialTimeouts::default() };
    let apiservers = connect_to(settings.clone(), changes_in.clone(), timeouts, credentials);
    let state = StateSettings {
        directory: settings.state_directory,
        cluster: None,
        save_every: Duration::from_secs(30),
        save_soon: Duration::from_secs(5),
        timeout: 48 * HOUR,
    };
    let source = KubernetesSource {
        apiservers,
        changes: changes_in,
        reports: watch::channel(Arc::new(Vec::new())).0,
        snapshot: watch::channel(Arc::new(Snapshot::default())).1,
        followed: watch::channel(Followed::default()).1,
        state,
        selection: Selection::default(),
        forward: Arc::default(),
        node: "n1".into(),
        clock: Clock::start(),
        has_node_object: true,
        in_maps: InMaps::default(),
        accepts: mpsc::channel(1).1,
        timeouts: WatchTimeouts::default(),
    };
    tokio::spawn(source::run(source, std::future::pending()));
    let received = Received::default();
    let sink = Arc::clone(&received);
    tokio::spawn(async move {
        while let Some(batch) = changes.recv().await {
            sink.lock().expect("not poisoned").extend(batch);
        }
    });
    received
}

async fn until(received: &Received, what: &str, is_so: impl Fn(&[Change]) -> bool) {
    let begun = Instant::now();
    while !is_so(&received.lock().expect("not poisoned")) {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "never {what}: {:?}",
            received.lock().expect("not poisoned")
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn apply(cluster: &Cluster, name: &str) {
    let service = format!(
        "kind: Service\napiVersion: v1\nmetadata: {{name: {name}, namespace: ns}}\nspec: {{ports: [{{port: 80}}]}}\n"
    );
    cluster.apply(&service).expect("valid");
}

/// Binds the server's previous port, where closed connections may linger.
fn bind_again(at: std::net::SocketAddr) -> TcpListener {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(at) {
            Ok(listener) => return listener,
            Err(error) => assert!(begun.elapsed() < Duration::from_secs(30), "{at}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The log of the daemon.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<u8>>>);

impl Journal {
    fn take(&self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut *self.0.lock().expect("not poisoned"))).into_owned()
    }
}

impl io::Write for Journal {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
