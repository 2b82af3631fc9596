//! Tests over TLS on loopback, with a proxy that gives each server a documentation address.

#[path = "supervisor/world.rs"]
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use self::world::{Way, World, at};
use super::*;
use crate::apiserver::address::Address;
use crate::apiserver::connection::error::LinkError;
use crate::apiserver::credentials::login::tests::token_login;
use crate::apiserver::endpoints::pool::{Origin, RememberedServer, Row, ServerStatus};
use crate::apiserver::endpoints::state_file::EndpointsState;
use crate::apiserver::endpoints::state_file::tests::{load, save};
use crate::apiserver::endpoints::supervisor::state::Current;
use crate::apiserver::session::Session;

/// Intervals are short. What limits a step that succeeds is longer than any takes on a busy machine.
const TIMEOUTS: PoolTimeouts = PoolTimeouts {
    resolve: LIMIT,
    open: LIMIT,
    hedge: LIMIT,
    probe_every: 150,
    probe_timeout: LIMIT,
    probe_again: 50,
    min_uptime: 400,
    stable_after: 60_000,
    short_lived: 20,
    debounce: 100,
    retry_first: 20,
    retry_most: 100,
    slow_retry: 200,
    starting: 300,
    credentials_every: 50,
    load: LIMIT,
    lost: 200,
};

/// Milliseconds.
const LIMIT: u64 = 60_000;

/// Much more than any step needs.
const TIMEOUT: Duration = Duration::from_millis(2 * LIMIT);

const CONNECT: connect::ConnectTimeouts = connect::ConnectTimeouts {
    connect: Duration::from_millis(LIMIT),
    handshake: Duration::from_millis(LIMIT),
    keepalive_idle: Duration::from_millis(LIMIT),
    keepalive_interval: Duration::from_millis(LIMIT),
    keepalive_probes: 3,
    user_timeout: Duration::from_millis(LIMIT),
    ping_after: Duration::from_millis(LIMIT),
    ping_answer: Duration::from_millis(LIMIT),
    refusal: Duration::from_millis(LIMIT),
};

const NOW: u64 = 1_700_000_000;

struct Running {
    apiservers: Apiservers,
    report: watch::Receiver<Arc<PoolReport>>,
    changes: mpsc::Receiver<Vec<Change>>,
    clock: Clock,
    _stop: oneshot::Sender<()>,
}

fn configured(n: u8) -> Server {
    Server { address: at(n).into(), tls_server_name: Some("kubernetes".into()) }
}

impl World {
    fn settings(&self, servers: &[u8]) -> Settings {
        Settings {
            servers: servers.iter().copied().map(configured).collect(),
            token_file: Some(self.path().join("token")),
            ca_file: Some(self.path().join("ca.pem")),
            proxy: Some(format!("http://{}", self.proxy)),
            service_cidrs: vec!["10.96.0.0/12".parse().unwrap()],
            state_directory: self.path().to_owned(),
            ..Settings::default()
        }
    }

    fn start(&self, servers: &[u8]) -> Running {
        self.start_with(self.settings(servers))
    }

    fn start_with(&self, settings: Settings) -> Running {
        let (parts, changes) = self.parts(settings);
        Self::run(parts, changes)
    }

    fn run(parts: Parts, changes: mpsc::Receiver<Vec<Change>>) -> Running {
        let clock = parts.clock;
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async {
            let _ = stopped.await;
        };
        let (apiservers, report, _task) = start(parts, shutdown).unwrap();
        Running { apiservers, report, changes, clock, _stop: stop }
    }

    fn parts(&self, settings: Settings) -> (Parts, mpsc::Receiver<Vec<Change>>) {
        let (changes_in, changes) = mpsc::channel(8);
        let clock = Clock::start();
        let parts = Parts {
            settings,
            register: Arc::new(|_| Ok(())),
            changes: changes_in,
            is_frontend: self.is_frontend(),
            in_maps: Vec::new(),
            clock,
            unix: || NOW,
            seed: 7,
            timeouts: TIMEOUTS,
            connect: CONNECT,
            credentials: credentials::CredentialTimeouts {
                plugin_pause: Duration::from_millis(100),
                ..Default::default()
            },
        };
        (parts, changes)
    }

    fn remembers(&self, cluster: &str, servers: &[u8]) {
        let authorities = token_login(self.authority(), "good").authority.names();
        let remembered = |n: &u8| RememberedServer { server: configured(*n), worked: NOW - 60 };
        let apiservers = servers.iter().map(remembered).collect();
        save(self.path(), EndpointsState { authorities, cluster: Some(cluster.into()), apiservers }).unwrap();
    }
}

impl Running {
    /// Waits for a session with this address, and returns it with the waiting time.
    async fn session_at(&mut self, n: u8) -> (Arc<Session>, Duration) {
        let start = Instant::now();
        let is_there = |session: &Option<Arc<Session>>| session.as_ref().is_some_and(|s| s.link.at() == at(n));
        let waiting = tokio::time::timeout(TIMEOUT, self.apiservers.session.wait_for(is_there));
        let Ok(session) = waiting.await else { panic!("no session at {n}: {:#?}", self.rows()) };
        let session = Arc::clone(session.unwrap().as_ref().unwrap());
        (session, start.elapsed())
    }

    async fn until(&mut self, what: &str, holds: impl Fn(&PoolReport, Moment) -> bool) {
        let clock = self.clock;
        let waiting = tokio::time::timeout(TIMEOUT, self.report.wait_for(|report| holds(report, clock.now())));
        assert!(waiting.await.is_ok(), "never {what}: {:#?}", self.rows());
    }

    fn rows(&self) -> Vec<Row> {
        self.report.borrow().rows(self.clock.now(), NOW)
    }

    fn row(&self, n: u8) -> Row {
        self.rows().into_iter().find(|row| row.address == at(n).into()).unwrap()
    }

    async fn send(&self, report: Report) {
        self.apiservers.reports.send(report).await.unwrap();
    }

    /// The last set of addresses that was sent to the owner task.
    fn announced(&mut self) -> BTreeSet<SocketAddr> {
        let mut last = BTreeSet::new();
        while let Ok(batch) = self.changes.try_recv() {
            for change in batch {
                let Change::Apiservers(known) = change else { panic!("{change:?}") };
                last = known.into_iter().map(|(addr, port)| SocketAddr::new(addr.ip(), port)).collect();
            }
        }
        last
    }
}

fn status(report: &PoolReport, n: u8, now: Moment) -> ServerStatus {
    report.rows(now, NOW).into_iter().find(|row| row.address == at(n).into()).unwrap().status
}

fn is_in_use(report: &PoolReport, n: u8) -> bool {
    report.in_use() == Some(&at(n).into())
}

#[tokio::test]
async fn the_preferred_address_is_used_and_all_are_reported_to_the_owner() {
    let world = World::with(&[1, 2]).await;
    let mut running = world.start(&[1, 2]);
    let (session, _) = running.session_at(1).await;
    assert_eq!((session.revision, session.number), (4711, 1));
    assert_eq!(running.announced(), [at(1), at(2)].into());
    assert_eq!(running.row(1).why, "it is the preferred one");
}

#[tokio::test]
async fn a_server_that_goes_is_left_at_once_and_returned_to_when_it_has_worked_for_a_while() {
    let world = World::with(&[1, 2]).await;
    let (mut parts, changes) = world.parts(world.settings(&[1, 2]));
    // No probe of the address in use notices it.
    parts.timeouts.probe_every = LIMIT;
    let mut running = World::run(parts, changes);
    let (session, _) = running.session_at(1).await;
    // The end of a very short session would count as a failure.
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.way(1, Way::Down);
    let (second, took) = running.session_at(2).await;
    assert!(took < Duration::from_millis(LIMIT), "{took:?}");
    assert!(session.link.get("/", TIMEOUT).await.is_err());
    let why = running.row(2).why;
    assert!(why.starts_with("192.0.2.1:6443, which is preferred, failed ") && why.ends_with("see Error"), "{why}");
    let (_, error) = running.row(1).error.unwrap();
    assert!(error.contains("502"), "{error}");

    world.way(1, Way::Open);
    let (third, took) = running.session_at(1).await;
    assert!(took > Duration::from_millis(TIMEOUTS.min_uptime), "{took:?}");
    assert_eq!((second.number, third.number), (2, 3));
    assert!(second.link.get("/", TIMEOUT).await.is_err(), "the session that was left is cut");
    assert_eq!(running.report.borrow().switches(), 2);
}

#[tokio::test]
async fn a_server_that_answers_nothing_more_is_left() {
    let world = World::with(&[1, 2]).await;
    let (mut parts, changes) = world.parts(world.settings(&[1, 2]));
    // On a busy machine, a ping may also fail earlier, or the other address be tried. Then the session returns to the
    // preferred one.
    let soon = Duration::from_millis(200);
    (parts.connect.ping_after, parts.connect.ping_answer, parts.timeouts.hedge) = (soon, soon, 100);
    let mut running = World::run(parts, changes);
    running.session_at(1).await;
    world.way(1, Way::Hole);
    let (_, took) = running.session_at(2).await;
    assert!(took < Duration::from_millis(LIMIT), "only the pings notice it so soon: {took:?}");
}

#[tokio::test]
async fn a_server_that_says_it_is_not_ready_is_left_for_one_that_is_and_kept_without() {
    let world = World::with(&[1, 2]).await;
    let mut running = world.start(&[1, 2]);
    running.session_at(1).await;
    for n in [1, 2] {
        world.behaviour(n, |behaviour| behaviour.readyz = 503);
    }
    running.until("NotReady", |report, now| status(report, 1, now) == ServerStatus::NotReady).await;
    let error = running.row(1).error.unwrap().1;
    assert_eq!(error, "503: [-]etcd failed: reason withheld");
    running
        .until("both NotReady", |report, now| (1..3).all(|n| status(report, n, now) == ServerStatus::NotReady))
        .await;
    let number = running.apiservers.session.borrow().as_ref().unwrap().number;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(running.apiservers.session.borrow().as_ref().unwrap().number, number, "no better one, no switch");

    world.behaviour(2, |behaviour| behaviour.readyz = 200);
    running.session_at(2).await;
}

#[tokio::test]
async fn all_down_and_up_again() {
    let world = World::with(&[1, 2]).await;
    let mut running = world.start(&[1, 2]);
    running.session_at(1).await;
    world.way(1, Way::Down);
    world.way(2, Way::Down);
    running.until("all failed", |report, now| (1..3).all(|n| status(report, n, now) == ServerStatus::Failed)).await;
    assert!(running.apiservers.session.borrow().is_none());
    assert_eq!(running.report.borrow().in_use(), None);
    tokio::time::sleep(Duration::from_millis(500)).await;
    world.way(2, Way::Open);
    running.session_at(2).await;
}

#[tokio::test]
async fn learned_addresses_take_over_when_every_configured_one_is_gone() {
    let world = World::with(&[1, 2]).await;
    let mut running = world.start(&[1]);
    running.session_at(1).await;
    let service: SocketAddr = "10.96.0.1:443".parse().unwrap();
    let listed = [at(2), at(80), service, "127.0.0.1:6443".parse().unwrap()];
    running.send(Report::Endpoints(listed.into())).await;
    running.send(Report::Endpoints(BTreeSet::new())).await;
    running.until("learned", |report, _| report.rows(Moment(0), 0).len() == 2).await;
    assert_eq!(running.row(2).origin, Origin::Learned);
    assert_eq!(running.announced(), [at(1), at(2)].into());
    world.way(1, Way::Down);
    running.session_at(2).await;

    // The cluster's service CIDRs apply from now on, but not to the address in use.
    running.send(Report::Endpoints([at(3)].into())).await;
    running.until("learned", |report, _| report.rows(Moment(0), 0).len() == 3).await;
    running.send(Report::ServiceCidrs(vec!["192.0.2.0/24".parse().unwrap()])).await;
    running.until("forgotten", |report, _| report.rows(Moment(0), 0).len() == 2).await;
    assert!(is_in_use(&running.report.borrow(), 2));
}

/// A Service has the addresses of the apiservers as externalIPs, and is deleted later.
#[tokio::test]
async fn a_service_that_takes_the_addresses_of_apiservers_does_not_keep_them() {
    let world = World::with(&[1, 2]).await;
    let mut running = world.start(&[1]);
    running.session_at(1).await;
    running.send(Report::Endpoints([at(2), at(3)].into())).await;
    running.until("both known", |report, _| report.rows(Moment(0), 0).len() == 3).await;
    running.until("one healthy", |report, now| status(report, 2, now) == ServerStatus::Healthy).await;
    world.balances(&[at(2), at(3), at(80)]);
    running.until("the one that never worked goes", |report, _| report.rows(Moment(0), 0).len() == 2).await;
    assert_eq!(running.row(2).status, ServerStatus::Healthy);
    world.balances(&[at(80)]);
    running.until("it comes again", |report, _| report.rows(Moment(0), 0).len() == 3).await;
    assert_eq!(running.row(3).origin, Origin::Learned);
}

#[tokio::test]
async fn what_worked_is_remembered_and_used_after_a_restart() {
    let world = World::with(&[1, 2]).await;
    let mut running = world.start(&[1]);
    running.session_at(1).await;
    running.send(Report::Endpoints([at(2)].into())).await;
    let remembered = async {
        loop {
            if let Ok(Some(state)) = load(world.path())
                && state.apiservers.len() == 2
            {
                return state;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let state = tokio::time::timeout(TIMEOUT, remembered).await.expect("both are remembered");
    assert_eq!(state.cluster.as_deref(), Some("cluster-1"));
    assert!(state.apiservers.iter().all(|remembered| remembered.worked.abs_diff(NOW) < 10));
    drop(running);
    world.way(1, Way::Down);
    let mut again = world.start(&[1]);
    again.session_at(2).await;
    assert_eq!(again.row(2).origin, Origin::Remembered);
    assert_eq!(again.announced(), [at(1), at(2)].into());
}

/// A disk that hangs at the start: what it had was never used, and was replaced.
#[tokio::test]
async fn addresses_that_the_disk_has_late_are_used_then_and_kept_until_then() {
    let world = World::with(&[1, 2, 3]).await;
    world.remembers("cluster-1", &[2, 3]);
    let before = load(world.path()).unwrap();
    let (answer, answers) = std::sync::mpsc::channel();
    let answers = std::sync::Mutex::new(answers);
    let (mut parts, changes) = world.parts(world.settings(&[1]));
    parts.timeouts.load = 10;
    let (mut supervisor, reports, apiservers, report) = make(parts).unwrap();
    let read = move |_: &std::path::Path| answers.lock().unwrap().recv().map_err(std::io::Error::other);
    supervisor.saver.unread = Some(Reading::begin(world.path().join("late"), "nothing follows", read));
    let (clock, (stop, stopped)) = (supervisor.clock, oneshot::channel::<()>());
    let task = tokio::spawn(supervisor.run(reports, async { drop(stopped.await) }));
    let mut running = Running { apiservers, report, changes, clock, _stop: stop };
    running.session_at(1).await;
    world.way(1, Way::Down);
    running.until("lost", |report, _| report.in_use().is_none()).await;
    world.way(3, Way::Down);
    assert_eq!(load(world.path()).unwrap(), before, "nothing replaces what is unread");
    answer.send(before).unwrap();
    running.session_at(2).await;
    assert_eq!(running.row(2).origin, Origin::Remembered);
    drop(running);
    task.await.unwrap();
    let servers = load(world.path()).unwrap().unwrap().apiservers.into_iter().map(|it| it.server);
    assert_eq!(servers.collect::<BTreeSet<_>>(), [1, 2, 3].map(configured).into());
}

/// `default/kubernetes` was recreated while nodelb did not run.
#[tokio::test]
async fn a_uid_that_the_disk_has_late_does_not_replace_that_of_the_session() {
    let world = World::with(&[1]).await;
    let directory = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(directory.path(), TIMEOUTS);
    let login = token_login(world.authority(), "good");
    saver.cluster = Some("cluster-2".into());
    let stored = EndpointsState {
        authorities: login.authority.names(),
        cluster: Some("cluster-1".into()),
        ..EndpointsState::default()
    };
    saver.loaded(stored, &login.authority);
    assert_eq!(saver.cluster.as_deref(), Some("cluster-2"));
}

#[tokio::test]
async fn another_cluster_behind_a_remembered_address_is_refused() {
    let world = World::with(&[1, 2, 3]).await;
    world.remembers("cluster-1", &[2]);
    world.way(1, Way::Down);
    world.behaviour(2, |behaviour| behaviour.cluster = "cluster-2");
    let mut running = world.start(&[1]);
    running
        .until("refused", |report, now| {
            report.rows(now, NOW).len() == 2 && status(report, 2, now) == ServerStatus::Refused
        })
        .await;
    let error = running.row(2).error.unwrap().1;
    assert!(error.starts_with("another cluster answers there: ") && error.contains("cluster-2"), "{error}");
    assert!(running.apiservers.session.borrow().is_none());

    // The configuration takes precedence over remembered facts.
    world.behaviour(1, |behaviour| behaviour.cluster = "cluster-2");
    world.way(1, Way::Open);
    running.session_at(1).await;
    // The authority is the same, so that it may be the same cluster with a recreated Service. A server with the new uid
    // belongs to it.
    world.way(1, Way::Down);
    running.session_at(2).await;
}

/// The state directory also contains the endpoints of the cluster, which are no more reliable than the other remembered
/// facts.
#[tokio::test]
async fn another_cluster_behind_an_address_learned_before_the_start_is_refused() {
    let world = World::with(&[1, 2]).await;
    world.remembers("cluster-1", &[2]);
    world.way(1, Way::Down);
    world.behaviour(2, |behaviour| behaviour.cluster = "cluster-2");
    let mut running = world.start(&[1]);
    running.send(Report::Endpoints([at(2)].into())).await;
    running
        .until("refused", |report, now| {
            report.rows(now, NOW).len() == 2 && status(report, 2, now) == ServerStatus::Refused
        })
        .await;
    assert!(running.apiservers.session.borrow().is_none());
    world.behaviour(1, |behaviour| behaviour.cluster = "cluster-2");
    world.way(1, Way::Open);
    world.behaviour(2, |behaviour| behaviour.cluster = "cluster-3");
    running.session_at(1).await;
    world.way(1, Way::Down);
    running.until("lost", |report, _| report.in_use().is_none()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(running.apiservers.session.borrow().is_none());
    assert_eq!(running.row(2).status, ServerStatus::Refused);
}

/// `default/kubernetes` is recreated while nodelb runs; then the node reboots, and the configured server is
/// unavailable.
#[tokio::test]
async fn the_uid_that_the_session_in_use_tells_is_the_one_remembered() {
    let world = World::with(&[1, 2]).await;
    world.remembers("cluster-1", &[2]);
    let mut running = world.start(&[1]);
    running.session_at(1).await;
    running.send(Report::Cluster("cluster-2".into())).await;
    let saved = async {
        while !matches!(load(world.path()), Ok(Some(state)) if state.cluster.as_deref() == Some("cluster-2")) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, saved).await.expect("it is saved");
    drop(running);
    world.way(1, Way::Down);
    world.behaviour(2, |behaviour| behaviour.cluster = "cluster-2");
    world.start(&[1]).session_at(2).await;
}

#[tokio::test]
async fn what_is_remembered_of_another_authority_is_not_used() {
    let world = World::with(&[1, 2]).await;
    world.remembers("cluster-1", &[2]);
    let other = World::with(&[]).await;
    world.write("ca.pem", &other.authority().pem());
    let mut running = world.start(&[1]);
    running.until("refused", |report, now| status(report, 1, now) == ServerStatus::Refused).await;
    assert_eq!(running.rows().len(), 1);
    let error = running.row(1).error.unwrap().1;
    assert!(error.contains("another cluster's apiserver"), "{error}");
}

#[tokio::test]
async fn a_missing_permission_is_named_and_the_next_address_is_tried() {
    let world = World::with(&[1, 2]).await;
    world.behaviour(1, |behaviour| behaviour.list = 403);
    let mut running = world.start(&[1, 2]);
    running.session_at(2).await;
    let row = running.row(1);
    assert_eq!(row.status, ServerStatus::Refused);
    let error = row.error.unwrap().1;
    let asked = "kubectl auth can-i list services --namespace default";
    assert!(error.contains("192.0.2.1:6443 denies the token") && error.contains(asked), "{error}");
}

#[tokio::test]
async fn a_rotated_token_is_taken_over_without_another_session() {
    let world = World::with(&[1]).await;
    let mut running = world.start(&[1]);
    let (session, _) = running.session_at(1).await;
    world.write("token", "better");
    world.behaviour(1, |behaviour| behaviour.token = "better");
    running.send(Report::Failed { session: 1, error: LinkError::Unauthorized("expired".into()) }).await;
    let probes = world.probes(1);
    let probed = async {
        while world.probes(1) < probes + 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, probed).await.unwrap();
    session.link.get("/api", TIMEOUT).await.unwrap();
    assert_eq!(running.apiservers.session.borrow().as_ref().unwrap().number, 1);
}

/// The server rejects the second token of the plugin, because it may learn its key slightly later than the plugin.
#[tokio::test]
async fn an_exec_plugin_whose_new_token_is_refused_runs_again_soon() {
    let world = World::with(&[1]).await;
    let plugin = "echo run >>runs\n[ $(wc -l <runs) = 2 ] && token=bad || token=good\necho '{\"kind\": \
                  \"ExecCredential\", \"apiVersion\": \"client.authentication.k8s.io/v1\", \"status\": {\"token\": \
                  \"'$token'\"}}'\n";
    world.write("plugin", &format!("cd {:?}\n{plugin}", world.path()));
    let exec = "{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [plugin], interactiveMode: Never}";
    let exec = exec.replace("plugin", &world.path().join("plugin").display().to_string());
    world.write(
        "kubeconfig",
        &format!(
            "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: k, user: \
             u}}}}], clusters: [{{name: k, cluster: {{server: 'https://{}', tls-server-name: kubernetes, \
             certificate-authority: ca.pem}}}}], users: [{{name: u, user: {{exec: {exec}}}}}]}}",
            at(1)
        ),
    );
    let kubeconfig = Some(world.path().join("kubeconfig"));
    let settings = Settings { kubeconfig, token_file: None, ca_file: None, ..world.settings(&[1]) };
    let mut running = world.start_with(settings);
    running.session_at(1).await;
    // A single failed request is a reason to run the plugin again, which now prints the bad token.
    running.send(Report::Failed { session: 1, error: LinkError::Unauthorized("webhook".into()) }).await;
    let runs = || std::fs::read_to_string(world.path().join("runs")).unwrap_or_default().lines().count();
    let ran = async {
        while runs() < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(TIMEOUT, ran).await.is_ok(), "{} runs: {:#?}", runs(), running.rows());
    // On a busy machine, it may run once more before the third token has been tried.
    let accepted = async {
        let mut before = 0;
        while before != runs() {
            before = runs();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    assert!(tokio::time::timeout(TIMEOUT, accepted).await.is_ok(), "its third token is accepted: {} runs", runs());
    assert_eq!(running.apiservers.session.borrow().as_ref().unwrap().number, 1);
}

/// Another server may not know the token yet.
#[tokio::test]
async fn a_token_that_the_previous_server_accepts_is_not_used_over_the_next_session() {
    let world = World::with(&[1]).await;
    let mut running = world.start(&[1]);
    let (session, _) = running.session_at(1).await;
    let good = session.link.login();
    let better = Arc::new(Login::clone(&good));
    let (mut supervisor, ..) = make(world.parts(world.settings(&[1])).0).unwrap();
    let (server, login) = (configured(1), Arc::clone(&good));
    let current = Current { session, server, login, complaints: 0, objections: (0, Moment(0)), unauthorized: None };
    let number = current.session.number;
    supervisor.current = Some(current);
    for (asked, used) in [(number - 1, &good), (number, &better)] {
        supervisor.done(Done::Verified(asked, Arc::clone(&better), Ok(())));
        assert!(Arc::ptr_eq(&supervisor.current.as_ref().unwrap().login, used), "session {asked} was asked");
    }
}

#[tokio::test]
async fn a_token_that_is_refused_everywhere_is_tried_again_as_soon_as_there_is_another() {
    let world = World::with(&[1]).await;
    world.write("token", "bad");
    let mut running = world.start(&[1]);
    running.until("refused", |report, now| status(report, 1, now) == ServerStatus::Refused).await;
    world.write("token", "good");
    running.session_at(1).await;
}

/// A certificate is refused before the clock is right; here, a missing permission stands for that.
#[tokio::test]
async fn a_server_that_was_refused_is_tried_again_at_once_when_the_clock_is_set() {
    static UNIX: AtomicU64 = AtomicU64::new(1);
    let world = World::with(&[1]).await;
    world.behaviour(1, |behaviour| behaviour.list = 403);
    let (mut parts, changes) = world.parts(world.settings(&[1]));
    parts.unix = || UNIX.load(Ordering::Relaxed);
    // The next attempt without the clock comes after the end of the test.
    (parts.timeouts.retry_most, parts.timeouts.slow_retry) = (10 * LIMIT, 10 * LIMIT);
    let mut running = World::run(parts, changes);
    running.until("refused", |report, now| status(report, 1, now) == ServerStatus::Refused).await;
    world.behaviour(1, |behaviour| behaviour.list = 200);
    UNIX.store(NOW, Ordering::Relaxed);
    running.session_at(1).await;
}

#[tokio::test]
async fn a_backend_of_default_kubernetes_in_the_maps_is_a_remembered_apiserver() {
    let world = World::with(&[1, 2]).await;
    world.way(1, Way::Down);
    let (mut parts, changes) = world.parts(world.settings(&[1]));
    parts.in_maps = vec![at(2), at(1)];
    let mut running = World::run(parts, changes);
    running.session_at(2).await;
    let origins: Vec<_> = running.rows().into_iter().map(|row| (row.address, row.origin)).collect();
    assert_eq!(origins, [(at(1).into(), Origin::Configured), (at(2).into(), Origin::Remembered)]);
}

#[tokio::test]
async fn credentials_that_cannot_be_read_are_a_problem_that_goes_away() {
    let world = World::with(&[1]).await;
    std::fs::remove_file(world.path().join("token")).unwrap();
    let mut running = world.start(&[1]);
    running.until("a problem", |report, _| report.problem.is_some()).await;
    assert_eq!(running.announced(), [at(1)].into(), "what is configured is known without credentials");
    world.write("token", "good");
    running.session_at(1).await;
    assert_eq!(running.report.borrow().problem, None);
}

#[tokio::test]
async fn readers_whose_requests_fail_move_the_session() {
    let world = World::with(&[1, 2]).await;
    let mut running = world.start(&[1, 2]);
    running.session_at(1).await;
    let busy = |session| Report::Failed {
        session,
        error: LinkError::Busy { code: 500, message: "etcd".into(), retry_after: None },
    };
    for _ in 0..2 {
        running.send(busy(1)).await;
    }
    running.send(Report::Progress { session: 1 }).await;
    for _ in 0..2 {
        running.send(busy(1)).await;
        // Reports about a previous session are ignored.
        running.send(busy(0)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(is_in_use(&running.report.borrow(), 1));
    running.send(busy(1)).await;
    running.session_at(2).await;
}

#[tokio::test]
async fn requests_that_a_server_keeps_finding_wrong_are_tried_elsewhere_once() {
    let world = World::with(&[1, 2]).await;
    let mut running = world.start(&[1, 2]);
    running.session_at(1).await;
    let wrong = |session| Report::Failed {
        session,
        error: LinkError::Status { code: 404, message: "the server could not find the requested resource".into() },
    };
    for _ in 0..3 {
        running.send(wrong(1)).await;
        running.send(Report::Progress { session: 1 }).await;
    }
    running.session_at(2).await;
    for _ in 0..6 {
        running.send(wrong(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(is_in_use(&running.report.borrow(), 2));
}

#[tokio::test]
async fn a_permission_that_is_missing_everywhere_does_not_keep_sessions_moving() {
    let world = World::with(&[1, 2]).await;
    let mut running = world.start(&[1, 2]);
    let forbidden = |session| Report::Failed { session, error: LinkError::Forbidden("may not list".into()) };
    let (first, _) = running.session_at(1).await;
    running.send(forbidden(first.number)).await;
    let (second, _) = running.session_at(2).await;
    running.send(forbidden(second.number)).await;
    let (third, _) = running.session_at(1).await;
    for _ in 0..3 {
        running.send(forbidden(third.number)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(running.apiservers.session.borrow().as_ref().unwrap().number, third.number);
}

#[tokio::test]
async fn a_refusal_of_a_server_that_is_not_ready_is_no_verdict() {
    let world = World::with(&[1]).await;
    for (readyz, list) in [(500, 403), (403, 403), (404, 404), (401, 401)] {
        world.behaviour(1, |behaviour| (behaviour.readyz, behaviour.list) = (readyz, list));
        let (mut parts, changes) = world.parts(world.settings(&[1]));
        parts.timeouts.starting = 2 * LIMIT;
        let mut running = World::run(parts, changes);
        running.until("not ready", |report, now| status(report, 1, now) == ServerStatus::NotReady).await;
        world.behaviour(1, |behaviour| (behaviour.readyz, behaviour.list) = (200, 200));
        running.session_at(1).await;
    }
}

/// The permission is missing permanently, even for `/readyz`.
#[tokio::test]
async fn a_server_that_refuses_everything_for_long_refuses() {
    let world = World::with(&[1]).await;
    world.behaviour(1, |behaviour| (behaviour.readyz, behaviour.list) = (403, 403));
    let mut running = world.start(&[1]);
    running.until("refused", |report, now| status(report, 1, now) == ServerStatus::Refused).await;
    let error = running.row(1).error.unwrap().1;
    assert!(error.contains("403 Forbidden") && error.contains("it also refuses GET /readyz"), "{error}");
}

#[tokio::test]
async fn the_retry_after_of_a_first_answer_is_honoured() {
    let world = World::with(&[1]).await;
    world.behaviour(1, |behaviour| (behaviour.list, behaviour.retry_after) = (429, Some(2)));
    let begun = Instant::now();
    let mut running = world.start(&[1]);
    running.until("not ready", |report, now| status(report, 1, now) == ServerStatus::NotReady).await;
    world.behaviour(1, |behaviour| behaviour.list = 200);
    running.session_at(1).await;
    assert!(begun.elapsed() >= Duration::from_secs(2), "left alone for only {:?}", begun.elapsed());
}

/// A load balancer responds like this while all its apiservers are unavailable; the number is part of its
/// configuration.
#[tokio::test]
async fn the_retry_after_of_a_server_error_keeps_nodelb_away_no_longer_than_any_failure() {
    let world = World::with(&[1]).await;
    world.behaviour(1, |behaviour| (behaviour.list, behaviour.retry_after) = (503, Some(60)));
    let mut running = world.start(&[1]);
    running.until("not ready", |report, now| status(report, 1, now) == ServerStatus::NotReady).await;
    world.behaviour(1, |behaviour| behaviour.list = 200);
    running.session_at(1).await;
}

#[tokio::test]
async fn one_401_does_not_end_a_session() {
    let world = World::with(&[1]).await;
    let mut running = world.start(&[1]);
    let (session, _) = running.session_at(1).await;
    running.send(Report::Failed { session: 1, error: LinkError::Unauthorized("webhook".into()) }).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(running.row(1).status, ServerStatus::Healthy);
    assert_eq!(running.apiservers.session.borrow().as_ref().unwrap().number, session.number);
    session.link.get("/api", TIMEOUT).await.unwrap();
}

#[tokio::test]
async fn a_server_that_answers_401_to_everything_is_left_for_another_one() {
    let world = World::with(&[1, 2]).await;
    let mut running = world.start(&[1, 2]);
    running.session_at(1).await;
    world.behaviour(1, |behaviour| behaviour.token = "another");
    running.session_at(2).await;
}

#[tokio::test]
async fn new_credentials_that_are_readable_and_wrong_do_not_end_a_session() {
    let world = World::with(&[1]).await;
    let other = World::with(&[]).await;
    let mut running = world.start(&[1]);
    running.session_at(1).await;
    // Certificate authorities that were read again require new connections, so that a new session may follow: they are last.
    for (file, wrong) in [("token", "bad".to_owned()), ("ca.pem", other.authority().pem())] {
        let right = std::fs::read_to_string(world.path().join(file)).unwrap();
        let session = running.apiservers.session.borrow().clone().unwrap();
        world.write(file, &wrong);
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert_eq!(running.row(1).status, ServerStatus::Healthy, "{file}: {:?}", running.row(1));
        session.link.get("/api", TIMEOUT).await.unwrap_or_else(|error| panic!("{file}: {error}"));
        world.write(file, &right);
    }
    running.session_at(1).await;
}

#[tokio::test]
async fn new_credentials_that_are_refused_are_reported_as_long_as_the_session_keeps_the_previous_ones() {
    let world = World::with(&[1]).await;
    let other = World::with(&[]).await;
    let mut running = world.start(&[1]);
    running.session_at(1).await;
    let authority = other.authority().pem();
    keeps_previous(
        &world,
        &mut running,
        [("token", "bad", "does not accept the token"), ("ca.pem", &*authority, "certificate")],
    )
    .await;
}

#[tokio::test]
async fn credentials_that_cannot_be_read_again_are_reported_as_long_as_the_session_keeps_the_previous_ones() {
    let world = World::with(&[1]).await;
    let mut running = world.start(&[1]);
    running.session_at(1).await;
    let wrong = [("token", "", "token"), ("ca.pem", "nonsense", "ca.pem")];
    keeps_previous(&world, &mut running, wrong).await;
}

/// Writes wrong credentials into each file in turn, and expects that they are reported with a reason, and no longer when
/// the file is as before.
async fn keeps_previous(world: &World, running: &mut Running, wrong: [(&str, &str, &str); 2]) {
    let mut began = Moment(0);
    for (file, wrong, why) in wrong {
        let right = std::fs::read_to_string(world.path().join(file)).unwrap();
        world.write(file, wrong);
        running.until("reported", |report, _| report.not_renewed.is_some()).await;
        let (since, reported) = running.report.borrow().not_renewed.clone().unwrap();
        assert!(reported.contains(why) && began < since, "{reported}");
        began = since;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let row = running.row(1);
        assert_eq!((row.status, row.error.unwrap()), (ServerStatus::Healthy, (since, reported)), "{file}");
        world.write(file, &right);
        running.until("accepted", |report, _| report.not_renewed.is_none()).await;
    }
    running.session_at(1).await;
    assert_eq!(running.row(1).error, None);
}

#[tokio::test]
async fn a_reason_not_to_use_new_credentials_is_logged_once_although_the_address_works() {
    let world = World::with(&[1]).await;
    let (mut supervisor, ..) = make(world.parts(world.settings(&[1])).0).unwrap();
    let address = Address::from(at(1));
    for (error, is_new) in [("401", true), ("401", false), ("403", true), ("401", false)] {
        assert_eq!(supervisor.journal.is_new_of_renewal(error), is_new, "{error}");
        supervisor.journal.works(&address);
    }
    supervisor.renewed();
    assert!(supervisor.journal.is_new_of_renewal("401"));
}
