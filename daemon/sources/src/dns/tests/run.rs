use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType::{A, SRV};
use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Datapath;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::SourceState;
use nodelb_core::state::entries::{CANARIES, Realised};
use nodelb_core::state::status::Status;
use nodelb_host::clock::Clock;
use nodelb_report::explain::reports;
use nodelb_report::filter::Filter;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::*;
use crate::dns::interference::LIMITS;
use crate::dns::report::NameState;
use crate::dns::server::{Script, Server, address, alias, srv};
use crate::files::{merge, parse};

#[path = "restart.rs"]
mod restart;

/// A resolver between a file and an engine, with maps in memory.
struct Rig {
    changes: mpsc::Receiver<Vec<Change>>,
    reports: watch::Receiver<Arc<DnsReport>>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    engine: Engine,
    datapath: MemoryDatapath,
    clock: Clock,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    /// The content of the directory.
    merged: merge::Merged,
}

/// The settings of a test: short times.
fn bounds() -> Bounds {
    Bounds { min_ttl: 50, max_ttl: 100, hold: Some(60_000) }
}

fn ask_timeouts() -> DnsTimeouts {
    let [udp, tcp, total] = [100, 5_000, 10_000].map(Duration::from_millis);
    let ask = AskTimeouts { udp, tcp, total };
    DnsTimeouts { ask, save_again: Duration::from_millis(10), timeout: Duration::from_secs(60) }
}

impl Rig {
    async fn start(server: &Server, directory: &Path, bounds: Bounds) -> Self {
        Self::with(&[server.address], directory, bounds, MemoryDatapath::new(LIMITS)).await
    }

    async fn with(servers: &[SocketAddr], directory: &Path, bounds: Bounds, datapath: MemoryDatapath) -> Self {
        let stored = state_file::load(directory, ask_timeouts().of_file()).await;
        Self::continuing(stored, servers, directory, bounds, datapath).await
    }

    async fn continuing(
        stored: Stored,
        servers: &[SocketAddr],
        directory: &Path,
        bounds: Bounds,
        datapath: MemoryDatapath,
    ) -> Self {
        let realised = if datapath.dump().is_ok() { datapath.dump().unwrap() } else { Realised::default() };
        let config = EngineConfig { sources: [Source::Files].into(), max_services: 2_000, ..EngineConfig::default() };
        let mut engine = Engine::new(config, realised);
        engine.change(Change::Node(NodeFacts::default()));
        let (outgoing, changes) = mpsc::channel(8);
        let (reports_in, reports) = watch::channel(Arc::default());
        let (snapshots, snapshot) = watch::channel(Arc::new(engine.snapshot(Moment(0))));
        let (stop, stopped) = oneshot::channel();
        let clock = Clock::start();
        let resolver = Resolver {
            owner: OwnerHandle { changes: outgoing, snapshot, clock },
            reports: reports_in,
            register: Arc::new(|_| Ok(())),
            servers: servers.iter().map(|server| DnsServer::parse(&server.to_string()).unwrap()).collect(),
            resolv_conf: directory.join("resolv.conf"),
            bounds,
            timeouts: ask_timeouts(),
        };
        let stopped = async {
            let _either: Result<(), _> = stopped.await;
        };
        let task = start_with(resolver, stored, stopped).await;
        let merged = merge::Merged::default();
        let mut rig = Self { changes, reports, snapshots, engine, datapath, clock, stop, task, merged };
        // The answers of the previous run.
        let recalled = rig.changes.try_recv().unwrap_or_default();
        recalled.into_iter().for_each(|change| rig.engine.change(change));
        rig
    }

    /// The directory now contains this file.
    fn file(&mut self, text: &str) {
        let path = PathBuf::from("web.toml");
        let content = parse(&path, text.as_bytes()).unwrap_or_else(|problems| panic!("{problems:?}"));
        let merged = merge::merge(&[(path, Arc::new(content))].into_iter().collect());
        let mut changes = self.merged.changes_to(&merged);
        changes.push(Change::Synced { source: Source::Files, incomplete: None });
        self.merged = merged;
        self.apply(changes);
    }

    /// Applies changes until the condition holds for the rows of the service's addresses and its selected backends.
    async fn until(&mut self, what: &str, is_met: impl Fn(&[(Status, Option<String>)], &BTreeSet<String>) -> bool) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let (status, backends) = (self.status(), self.backends());
            if is_met(&status, &backends) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{what}: still {status:?} with {backends:?}");
            // A freed entry rests for a while, so that some operations must be repeated.
            let received = timeout(Duration::from_millis(50), self.changes.recv()).await;
            self.apply(received.map(|changes| changes.expect("the resolver ended")).unwrap_or_default());
        }
    }

    /// Applies what arrives within a time.
    async fn settle(&mut self, millis: u64) {
        while let Ok(Some(changes)) = timeout(Duration::from_millis(millis), self.changes.recv()).await {
            self.apply(changes);
        }
    }

    /// Waits for such a report.
    async fn reported(&mut self, is_met: impl Fn(&DnsReport) -> bool) {
        for _ in 0..50 {
            if is_met(&self.reports.borrow()) {
                return;
            }
            self.settle(200).await;
        }
        panic!("{:?}", self.reports.borrow());
    }

    fn apply(&mut self, changes: Vec<Change>) {
        changes.into_iter().for_each(|change| self.engine.change(change));
        let now = self.clock.now();
        self.engine.reconcile(&mut self.datapath, now);
        self.snapshots.send_replace(Arc::new(self.engine.snapshot(now)));
    }

    fn status(&self) -> Vec<(Status, Option<String>)> {
        let snapshot = self.engine.snapshot(self.clock.now());
        let rows = reports::frontends(&snapshot, &Filter::default());
        rows.into_iter().map(|row| (row.status, row.error.map(|error| error.to_string()))).collect()
    }

    /// The backends that get connections, as `192.0.2.1:80 x1`.
    fn backends(&self) -> BTreeSet<String> {
        let dump = self.datapath.dump().unwrap();
        let slots = dump.services.values().flat_map(|entry| entry.cluster.iter());
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        slots.for_each(|slot| {
            *counts.entry(SocketAddr::new(slot.addr.addr.ip(), slot.addr.port).to_string()).or_default() += 1;
        });
        counts
            .into_iter()
            .map(|(backend, count)| if count == 1 { backend } else { format!("{backend} x{count}") })
            .collect()
    }

    async fn serves(&mut self, status: Status, backends: &[&str]) {
        let expected: BTreeSet<String> = backends.iter().map(|it| (*it).to_owned()).collect();
        let what = format!("{status} with {backends:?}");
        self.until(&what, |rows, backends| {
            !rows.is_empty() && rows.iter().all(|(it, _)| *it == status) && *backends == expected
        })
        .await;
    }

    /// The text of the first row.
    fn error(&self) -> String {
        self.status().into_iter().find_map(|(_, error)| error).unwrap_or_default()
    }

    async fn end(self) -> MemoryDatapath {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
        self.datapath
    }
}

fn service(backends: &str) -> String {
    format!("[[service]]\nname = \"shop/web\"\nfrontends = [\"198.51.100.10:80\"]\n{backends}\n")
}

const WEB: &str = "backends = [\"web.example:8080\"]";
const FROM: &str = "backends-from = \"srv:_http._tcp.web.example\"";

#[tokio::test]
async fn a_changed_answer_changes_the_backends_and_a_failure_or_an_empty_answer_does_not() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 1, &["192.0.2.1", "192.0.2.2"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.1:8080", "192.0.2.2:8080"]).await;
    // Change and shrink.
    server.set_addresses("web.example", 0, &["192.0.2.3"]);
    rig.serves(Status::Ok, &["192.0.2.3:8080"]).await;
    for (script, text) in [
        (Script::Records(Vec::new(), Vec::new()), "answers without records"),
        (Script::Code(ResponseCode::ServFail), "answers SERVFAIL"),
        (Script::Code(ResponseCode::Refused), "answers REFUSED"),
        (Script::Silence, "does not respond within 100ms"),
        (Script::NoSuchName(1), "answers that the name does not exist (NXDOMAIN)"),
        (
            Script::Records(vec![address("web.example", 1, "0.0.0.0")], Vec::new()),
            "answers only with addresses that name no host",
        ),
        (
            Script::Records(vec![alias("web.example", 1, "web.example")], Vec::new()),
            "answers with more than 16 aliases (CNAME), or with a loop of them",
        ),
    ] {
        server.set("web.example", A, script);
        rig.serves(Status::Held, &["192.0.2.3:8080"]).await;
        let expected = format!("{} {text}", server.address);
        rig.until(&expected, |rows, _| {
            rows.iter().any(|(_, error)| error.as_ref().is_some_and(|it| it.contains(&expected)))
        })
        .await;
        assert!(rig.error().ends_with("192.0.2.3:8080/TCP stays in use"), "{}", rig.error());
        server.set_addresses("web.example", 0, &["192.0.2.3"]);
        rig.serves(Status::Ok, &["192.0.2.3:8080"]).await;
    }
    rig.end().await;
}

#[tokio::test]
async fn a_name_that_does_not_exist_any_more_is_held_for_a_while_or_forever() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 1, &["192.0.2.1"]);
    let mut rig = Rig::start(&server, scratch.path(), Bounds { hold: Some(1_000), ..bounds() }).await;
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    server.set("web.example", A, Script::NoSuchName(1));
    rig.serves(Status::Held, &["192.0.2.1:8080"]).await;
    rig.serves(Status::NoBackends, &[]).await;
    assert!(rig.error().contains("DNS A record of web.example") && rig.error().contains("NXDOMAIN"), "{}", rig.error());
    server.set_addresses("web.example", 1, &["192.0.2.2"]);
    rig.serves(Status::Ok, &["192.0.2.2:8080"]).await;
    rig.end().await;

    let mut rig = Rig::start(&server, scratch.path(), Bounds { hold: None, ..bounds() }).await;
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.2:8080"]).await;
    server.set("web.example", A, Script::NoSuchName(0));
    rig.serves(Status::Held, &["192.0.2.2:8080"]).await;
    rig.settle(1_500).await;
    rig.serves(Status::Held, &["192.0.2.2:8080"]).await;
    rig.end().await;
}

#[tokio::test]
async fn a_name_that_was_never_resolved_has_no_backends_and_its_status_says_why() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set("web.example", A, Script::Code(ResponseCode::ServFail));
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service(WEB));
    rig.until("SERVFAIL", |rows, _| {
        rows.iter().any(|(_, error)| error.as_ref().is_some_and(|it| it.contains("SERVFAIL")))
    })
    .await;
    assert_eq!(rig.backends().len(), 0);
    rig.reported(|report| report.names.first().is_some_and(|name| name.problem.is_some())).await;
    assert_eq!(rig.reports.borrow().names[0].state, NameState::Pending);
    server.set_addresses("web.example", 1, &["192.0.2.1"]);
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    rig.end().await;
}

/// The documentation once said that the service has the status NoBackends.
#[tokio::test]
async fn a_name_that_was_never_resolved_takes_nothing_from_the_addresses_next_to_it() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set("web.example", A, Script::NoSuchName(1));
    let mut rig = Rig::start(&server, scratch.path(), Bounds { hold: Some(0), ..bounds() }).await;
    rig.file(&service("backends = [\"192.0.2.9:80\", \"web.example:8080\"]"));
    rig.serves(Status::Ok, &["192.0.2.9:80"]).await;
    rig.reported(|report| report.names.first().is_some_and(|name| name.problem.is_some())).await;
    rig.serves(Status::Ok, &["192.0.2.9:80"]).await;
    server.set("web.example", A, Script::Code(ResponseCode::ServFail));
    rig.settle(500).await;
    rig.serves(Status::Ok, &["192.0.2.9:80"]).await;
    let maps = rig.end().await;
    let mut rig = Rig::with(&[server.address], scratch.path(), bounds(), maps).await;
    rig.file(&service("backends = [\"192.0.2.9:80\", \"web.example:8080\"]"));
    rig.settle(500).await;
    rig.serves(Status::Ok, &["192.0.2.9:80"]).await;
    rig.end().await;
}

#[tokio::test]
async fn aliases_are_followed_also_if_the_server_does_not() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    let chain = vec![
        alias("web.example", 300, "lb.example"),
        alias("lb.example", 60, "node.example"),
        address("node.example", 5, "192.0.2.1"),
    ];
    server.set("web.example", A, Script::Records(chain, Vec::new()));
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    // An answer without the records of the alias.
    let mut partial = server_answer("web.example", "other.example");
    server.set("web.example", A, Script::Records(std::mem::take(&mut partial), Vec::new()));
    server.set_addresses("other.example", 5, &["192.0.2.9"]);
    rig.serves(Status::Ok, &["192.0.2.9:8080"]).await;
    rig.end().await;
}

fn server_answer(owner: &str, target: &str) -> Vec<hickory_proto::rr::Record> {
    vec![alias(owner, 5, target)]
}

#[tokio::test]
async fn srv_records_give_ports_weights_and_the_lowest_usable_priority() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    let owner = "_http._tcp.web.example";
    let records = vec![
        srv(owner, 5, [10, 3, 8001], "a.example"),
        srv(owner, 5, [10, 0, 8002], "b.example"),
        srv(owner, 5, [20, 1, 9000], "c.example"),
        srv(owner, 5, [5, 1, 7000], "gone.example"),
        srv(owner, 5, [1, 1, 7000], "."),
    ];
    // One target has its address in the additional section, the other one must be asked for.
    let additional = vec![address("a.example", 5, "192.0.2.1")];
    server.set(owner, SRV, Script::Records(records, additional));
    server.set_addresses("b.example", 5, &["192.0.2.2"]);
    server.set_addresses("c.example", 5, &["192.0.2.3"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service(FROM));
    rig.serves(Status::Ok, &["192.0.2.1:8001 x3", "192.0.2.2:8002"]).await;
    // The next priority, when the targets of the lower ones are gone.
    server.set(owner, SRV, Script::Records(vec![srv(owner, 5, [20, 1, 9000], "c.example")], Vec::new()));
    rig.serves(Status::Ok, &["192.0.2.3:9000"]).await;
    // Targets that have no address leave the last ones in use.
    server.set(owner, SRV, Script::Records(vec![srv(owner, 5, [1, 1, 1], "gone.example")], Vec::new()));
    rig.serves(Status::Held, &["192.0.2.3:9000"]).await;
    assert!(rig.error().contains("none of the targets has an address"), "{}", rig.error());
    // The service is decidedly not available (RFC 2782), which empties nothing either.
    server.set(owner, SRV, Script::Records(vec![srv(owner, 5, [0, 0, 0], ".")], Vec::new()));
    rig.serves(Status::Held, &["192.0.2.3:9000"]).await;
    rig.end().await;
}

#[tokio::test]
async fn a_truncated_answer_and_one_of_a_thousand_records_are_repeated_over_tcp() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 5, &["192.0.2.1"]);
    server.truncate();
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    assert!(server.asked().1 > 0);
    let many: Vec<String> = (0..1_000).map(|n| format!("203.0.{}.{}", n / 250, n % 250 + 1)).collect();
    server.set_addresses("web.example", 5, &many.iter().map(String::as_str).collect::<Vec<_>>());
    rig.until("1,000 backends", |rows, backends| backends.len() == 1_000 && rows[0].0 == Status::Ok).await;
    rig.end().await;
}

#[tokio::test]
async fn an_answer_with_ttl_0_is_asked_again_after_the_minimum() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 0, &["192.0.2.1"]);
    let mut rig = Rig::start(&server, scratch.path(), Bounds { min_ttl: 200, max_ttl: 300, ..bounds() }).await;
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    rig.settle(1_000).await;
    let (udp, _) = server.asked();
    assert!((2..=7).contains(&udp), "{udp} questions in a second");
    rig.end().await;
}

#[tokio::test]
async fn an_address_that_nodelb_serves_itself_is_left_out() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 1, &["198.51.100.10", "192.0.2.1"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service("backends = [\"web.example:80\"]"));
    rig.serves(Status::Ok, &["192.0.2.1:80"]).await;
    rig.settle(1_500).await;
    let report = rig.reports.borrow().clone();
    let problem = report.names[0].problem.clone().unwrap_or_default();
    assert!(problem.starts_with("198.51.100.10:80 is left out"), "{problem}");
    assert!(report.source.as_ref().unwrap().problems[0].contains("198.51.100.10:80"), "{report:?}");
    rig.end().await;
}

#[tokio::test]
async fn both_families_are_asked_for_if_the_frontends_have_both() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 1, &["192.0.2.1", "2001:db8::1"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    let frontends = "[[service]]\nname = \"shop/web\"\nfrontends = [\"198.51.100.10:80\", \"[2001:db8:f::1]:80\"]\n";
    rig.file(&format!("{frontends}backends = [{{ address = \"web.example:80\", node = \"a\" }}]\n"));
    rig.serves(Status::Ok, &["192.0.2.1:80", "[2001:db8::1]:80"]).await;
    rig.end().await;
}

#[tokio::test]
async fn the_second_server_answers_while_the_first_one_fails() {
    let (first, second, scratch) = (Server::start().await, Server::start().await, tempfile::tempdir().unwrap());
    first.set("web.example", A, Script::Silence);
    second.set_addresses("web.example", 1, &["192.0.2.1"]);
    let servers = [first.address, second.address];
    let mut rig = Rig::with(&servers, scratch.path(), bounds(), MemoryDatapath::new(LIMITS)).await;
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    for _ in 0..100 {
        // On a slow machine, the second one may be late, too, and then the first one is asked again.
        if second.asked().0 >= first.asked().0 + 2 {
            rig.end().await;
            return;
        }
        rig.settle(200).await;
    }
    panic!("a server that does not respond is asked last for a while: {:?}, {:?}", first.asked(), second.asked());
}

/// A server that answers with an error for one name is not avoided: another server may know other names.
#[tokio::test]
async fn a_server_that_answers_with_an_error_stays_the_first() {
    let (first, second, scratch) = (Server::start().await, Server::start().await, tempfile::tempdir().unwrap());
    first.set("broken.example", A, Script::Code(ResponseCode::ServFail));
    first.set_addresses("web.example", 1, &["192.0.2.1"]);
    second.set("broken.example", A, Script::Code(ResponseCode::Refused));
    let servers = [first.address, second.address];
    let mut rig = Rig::with(&servers, scratch.path(), bounds(), MemoryDatapath::new(LIMITS)).await;
    let broken =
        "[[service]]\nname = \"shop/broken\"\nfrontends = [\"198.51.100.11:80\"]\nbackends = [\"broken.example:80\"]\n";
    rig.file(&format!("{broken}{}", service(WEB)));
    rig.until("a backend", |_, backends| backends.len() == 1).await;
    rig.settle(2_000).await;
    assert_eq!(rig.backends(), ["192.0.2.1:8080".to_owned()].into());
    assert_eq!(rig.status().iter().filter(|(status, _)| *status == Status::Ok).count(), 1, "{:?}", rig.status());
    rig.end().await;
}

#[tokio::test]
async fn a_new_name_that_no_server_answers_for_is_a_failure_although_other_names_have_answers() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 60, &["192.0.2.1"]);
    server.set("dead.example", A, Script::Code(ResponseCode::ServFail));
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service("backends = [\"web.example:8080\", \"dead.example:8080\"]"));
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    rig.reported(|report| {
        let Some(report) = &report.source else { return false };
        let is_named = report.problems.iter().any(|it| it.contains("dead.example"));
        report.state == SourceState::LastGood && is_named
    })
    .await;
    rig.end().await;
}

/// It waited until each of the others had failed once.
#[tokio::test]
async fn new_names_that_no_server_answers_for_delay_no_other_service() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    let dead: Vec<String> = (0..600).map(|n| format!("\"dead-{n}.example:80\"")).collect();
    (0..600).for_each(|n| server.set(&format!("dead-{n}.example"), A, Script::Silence));
    server.set_addresses("web.example", 60, &["192.0.2.1"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    let slow = format!(
        "[[service]]\nname = \"slow/x\"\nfrontends = [\"198.51.100.11:80\"]\nbackends = [{}]\n",
        dead.join(", ")
    );
    rig.file(&format!("{slow}{}", service(WEB)));
    rig.until("a backend", |_, backends| backends.len() == 1).await;
    assert!(server.asked().0 < 600, "{:?}", server.asked());
    rig.end().await;
}

#[tokio::test]
async fn a_thousand_services_with_one_name_need_one_query() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 60, &["192.0.2.1"]);
    let bounds = Bounds { min_ttl: 60_000, max_ttl: 60_000, ..bounds() };
    let mut rig = Rig::start(&server, scratch.path(), bounds).await;
    let service = |n: usize| {
        let frontend = format!("198.51.{}.{}:80", 100 + n / 250, n % 250 + 1);
        format!("[[service]]\nname = \"shop/web-{n}\"\nfrontends = [\"{frontend}\"]\nbackends = [\"web.example:80\"]\n")
    };
    rig.file(&(0..1_000).map(service).collect::<String>());
    rig.until("all services", |rows, _| rows.len() == 1_000 && rows.iter().all(|(it, _)| *it == Status::Ok)).await;
    // On a busy machine, the question may be repeated before the answer is read.
    let (over_udp, over_tcp) = server.asked();
    assert!((1..=3).contains(&over_udp) && over_tcp == 0, "{over_udp} over UDP, {over_tcp} over TCP");
    rig.end().await;
}

#[tokio::test]
async fn a_restart_without_a_server_keeps_the_backends() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 1, &["192.0.2.1"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    let dead = server.address;
    let maps = rig.end().await;
    drop(server);
    assert!(scratch.path().join("names.json").exists());

    // With the last answers.
    let mut rig = Rig::with(&[dead], scratch.path(), bounds(), maps).await;
    rig.file(&service(WEB));
    rig.serves(Status::Held, &["192.0.2.1:8080"]).await;
    let maps = rig.end().await;

    // Without them, the maps still have the backend.
    std::fs::remove_file(scratch.path().join("names.json")).unwrap();
    let mut rig = Rig::with(&[dead], scratch.path(), bounds(), maps).await;
    rig.file(&service(WEB));
    rig.settle(1_000).await;
    assert_eq!(rig.backends(), ["192.0.2.1:8080".to_owned()].into());
    rig.end().await;
}

/// A killed daemon that has stored older answers would replace the backends in the maps by them.
#[tokio::test]
async fn an_answer_in_use_is_stored_without_waiting_for_a_tick() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 1, &["192.0.2.1"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    rig.settle(1_500).await;
    server.set_addresses("web.example", 1, &["192.0.2.2"]);
    rig.serves(Status::Ok, &["192.0.2.2:8080"]).await;
    rig.task.abort();
    let stored = || std::fs::read_to_string(scratch.path().join("names.json"));
    let is_stored = || stored().is_ok_and(|text| text.contains("192.0.2.2"));
    for _ in 0..1_200 {
        if is_stored() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not stored");
}

#[tokio::test]
async fn the_report_names_a_name_as_soon_as_a_file_does() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    let mut reports = rig.reports.clone();
    rig.settle(1_500).await;
    rig.file(&service(WEB));
    let first = timeout(Duration::from_secs(20), reports.changed()).await;
    assert!(first.is_ok_and(|changed| changed.is_ok()) && !reports.borrow().names.is_empty());
    rig.end().await;
}

#[tokio::test]
async fn a_service_that_gets_a_name_for_an_address_is_never_without_backends() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 1, &["192.0.2.1"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    rig.file(&service("backends = [\"192.0.2.9:80\"]"));
    rig.serves(Status::Ok, &["192.0.2.9:80"]).await;
    assert!(rig.engine.snapshot(Moment(0)).facts.named.is_empty());
    rig.file("# none");
    rig.until("nothing", |rows, _| rows.is_empty()).await;
    rig.end().await;
}

#[tokio::test]
async fn a_service_keeps_its_backends_until_its_new_name_has_an_answer() {
    let (server, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    server.set_addresses("web.example", 1, &["192.0.2.1"]);
    let mut rig = Rig::start(&server, scratch.path(), bounds()).await;
    let olds =
        [(WEB, "192.0.2.1:8080", "one.example"), ("backends = [\"192.0.2.9:80\"]", "192.0.2.9:80", "two.example")];
    for (old, backend, name) in olds {
        let new = service(&format!("backends = [\"{name}:8080\"]"));
        rig.file(&service(old));
        rig.serves(Status::Ok, &[backend]).await;
        server.set(name, A, Script::Silence);
        rig.file(&new);
        rig.settle(1_000).await;
        assert_eq!(rig.backends(), [backend.to_owned()].into(), "while no server answers");
        server.set_addresses(name, 1, &["192.0.2.3"]);
        rig.serves(Status::Ok, &["192.0.2.3:8080"]).await;
        rig.file("# none");
        rig.until("nothing", |rows, backends| rows.is_empty() && backends.is_empty()).await;
    }
    // A name that does not exist is an answer.
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    server.set("none.example", A, Script::NoSuchName(1));
    rig.file(&service("backends = [\"none.example:8080\"]"));
    rig.serves(Status::NoBackends, &[]).await;
    // The previous name returns.
    rig.file(&service(WEB));
    rig.serves(Status::Ok, &["192.0.2.1:8080"]).await;
    rig.end().await;
}

#[tokio::test]
async fn the_servers_of_the_system_are_read_again() {
    let (first, scratch) = (Server::start().await, tempfile::tempdir().unwrap());
    first.set_addresses("web.example", 1, &["192.0.2.1"]);
    std::fs::write(scratch.path().join("resolv.conf"), "search example\nnameserver 127.0.0.9\n").unwrap();
    let mut rig = Rig::with(&[], scratch.path(), bounds(), MemoryDatapath::new(LIMITS)).await;
    rig.file(&service(WEB));
    rig.until("no answer", |rows, _| {
        rows.iter().any(|(_, error)| error.as_ref().is_some_and(|it| it.contains("127.0.0.9:53")))
    })
    .await;
    std::fs::write(scratch.path().join("resolv.conf"), "nameserver 127.0.0.8\nnameserver 127.0.0.7\n").unwrap();
    rig.until("the new servers", |rows, _| {
        rows.iter().any(|(_, error)| error.as_ref().is_some_and(|it| it.contains("127.0.0.8:53")))
    })
    .await;
    rig.end().await;
}
