//! Non-interference between objects: whatever happens to one service (its name, the server's answers about it, its file,
//! its slices, its health checks, the state file, in any order, with restarts at any point), no entry of another one
//! changes, and it loses its own backends only if its operator says so or a documented hold has ended.
//!
//! `INTERFERENCE_SEQUENCES=n` sets the number of sequences, and `PROPTEST_RNG_SEED=n` repeats a run.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::named::{DnsName, Question, RecordType};
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};
use nodelb_core::table::Facts;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::answer::{Answer, Records, Target};
use super::entry::Saved;
use super::names::{Bounds, MAX_PAUSE, Names, Reply};
use super::servers::Servers;
use crate::files::merge::{Merged, merge};
use crate::files::parse;

#[path = "../../../../../tests/interference/steps.rs"]
mod steps;

use steps::{Expected, Form, HOLD, Says, Step, Stored, any_form, any_node_step, any_own_step};

pub(super) const LIMITS: Limits =
    Limits { frontends: 65_536, services: 65_536, slots: 524_288, affinity: 1_024, outside: 0, source_ranges: 0 };

const BOUNDS: Bounds = Bounds { min_ttl: 1_000, max_ttl: 10_000, hold: Some(HOLD) };

/// A rule without which the property must fail, besides those of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The backends in use are stored, not only the last answers.
    InUseIsStored,
    /// The answers of the previous run are sent before the files are read.
    RecalledComesFirst,
    /// A server that is silent about one name is not asked last about others.
    SilenceAboutOneName,
    /// A server that is silent about many names of one service is not asked last about others.
    SilenceAboutOneService,
}

const A: &str = "198.51.100.10:80";
const B: &str = "198.51.100.11:8080";
const D: &str = "198.51.100.12:80";
const C: &str = "198.51.100.13:80";
const KA: &str = "198.51.100.14:80";
const B_BACKEND: &str = "192.0.2.9:8080";
const C_BACKEND: &str = "192.0.2.19:80";

fn l4(text: &str) -> L4Addr {
    let at: SocketAddr = text.parse().unwrap();
    L4Addr::new(Addr::from(at.ip()), at.port(), Protocol::Tcp)
}

/// The content of the directory: the broken service's file may be unreadable, and one service is there at first only.
fn merged(form: Form, has_a: bool, has_d: bool) -> &'static Merged {
    static ALL: LazyLock<BTreeMap<(bool, bool, bool), Merged>> = LazyLock::new(|| {
        let all = (0..8).map(|bits| (bits & 1 > 0, bits & 2 > 0, bits & 4 > 0));
        all.map(|(is_srv, has_a, has_d)| ((is_srv, has_a, has_d), read_files(is_srv, has_a, has_d))).collect()
    });
    &ALL[&(form != Form::Address, has_a, has_d)]
}

fn read_files(is_srv: bool, has_a: bool, has_d: bool) -> Merged {
    let from = if is_srv { "backends-from = \"srv:_http._tcp.a.example\"" } else { "backends = [\"a.example:8080\"]" };
    let entry = |name: &str, frontend: &str, backends: &str| {
        format!("[[service]]\nname = \"shop/{name}\"\nfrontends = [\"{frontend}\"]\n{backends}\n")
    };
    let files = [
        ("a.toml", has_a.then(|| entry("a", A, from))),
        ("b.toml", Some(entry("b", B, "backends = [\"b.example:8080\"]"))),
        ("d.toml", has_d.then(|| entry("d", D, "backends = [\"192.0.2.99:80\"]"))),
    ];
    let content = |(path, text): (&str, Option<String>)| {
        let path = PathBuf::from(path);
        let content = parse(&path, text?.as_bytes()).unwrap_or_else(|problems| panic!("{problems:?}"));
        Some((path, Arc::new(content)))
    };
    merge(&files.into_iter().filter_map(content).collect())
}

/// A service in Kubernetes with its slice.
fn of_kubernetes(name: &str, frontend: &str, backends: &[SocketAddr]) -> [Change; 2] {
    let frontend = l4(frontend);
    let service = ServiceName::new("k", name);
    let kind = FrontendKind::ClusterIP;
    let frontends = vec![FrontendSpec { addr: frontend.addr, port: frontend.port, kind }];
    let backends = backends.iter().map(|at| Backend::new(Addr::from(at.ip()), at.port())).collect();
    [
        Change::UpsertService(Service {
            ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, frontends }],
            ..Service::new(service.clone(), Source::Kubernetes)
        }),
        Change::UpsertSlice(Slice {
            name: SliceName::new("k", name),
            service,
            source: Source::Kubernetes,
            origin: Origin::default(),
            ports: vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends }],
            problem: None,
        }),
    ]
}

/// The resolver with the engine, as in `run`, without sockets, tasks and a clock.
struct Node {
    without: Option<Rule>,
    form: Form,
    now: Moment,
    says: Says,
    servers: Servers,
    names: Names,
    files: Merged,
    /// What names.json had at some time before.
    older: Option<Saved>,
    /// Whether the daemon could not read the file of the service since its start.
    is_broken: bool,
    is_file_broken: bool,
    has_d: bool,
    engine: Engine,
    datapath: MemoryDatapath,
    endpoints: Option<u8>,
    expected: Expected,
}

fn servers() -> [SocketAddr; 2] {
    ["192.0.2.53:53", "192.0.2.54:53"].map(|text| text.parse().unwrap())
}

fn new_engine(datapath: &MemoryDatapath) -> Engine {
    let sources = [Source::Files, Source::Kubernetes].into();
    let config = EngineConfig { sources, max_services: 2_000, ..EngineConfig::default() };
    let mut engine = Engine::new(config, datapath.dump().unwrap());
    engine.change(Change::Node(NodeFacts::default()));
    engine
}

fn new_servers() -> Servers {
    let mut list = Servers::default();
    list.set(&servers());
    list
}

impl Node {
    fn new(form: Form, without: Option<Rule>) -> Self {
        let datapath = MemoryDatapath::new(LIMITS);
        let mut node = Self {
            without,
            form,
            now: Moment(0),
            says: Says::Usable(1),
            servers: new_servers(),
            names: Names::new(BOUNDS, 1),
            files: Merged::default(),
            older: None,
            is_broken: false,
            is_file_broken: false,
            has_d: true,
            engine: new_engine(&datapath),
            datapath,
            endpoints: Some(1),
            expected: Expected::default(),
        };
        node.start();
        node
    }

    fn has(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// What follows a start of the daemon: the stored state of Kubernetes, and the files.
    fn start(&mut self) {
        let changes = of_kubernetes("c", C, &[C_BACKEND.parse().unwrap()]);
        changes.into_iter().for_each(|change| self.engine.change(change));
        self.change_endpoints();
        self.engine.change(Change::Synced { source: Source::Kubernetes, incomplete: None });
        self.read_files();
        self.go_on();
    }

    fn change_endpoints(&mut self) {
        let backends = |count: u8| (0..count).map(|host| SocketAddr::from(([192, 0, 2, 120 + host], 80)));
        match self.endpoints {
            Some(count) => {
                let changes = of_kubernetes("a", KA, &backends(count).collect::<Vec<_>>());
                changes.into_iter().for_each(|change| self.engine.change(change));
            }
            None => self.engine.change(Change::RemoveSlice(SliceName::new("k", "a"), Source::Kubernetes)),
        }
    }

    /// A batch of the file source.
    fn read_files(&mut self) {
        let new = merged(self.form, !self.is_broken, self.has_d);
        let changes = self.files.changes_to(new);
        self.files = new.clone();
        changes.into_iter().for_each(|change| self.engine.change(change));
        let incomplete = self.is_broken.then(|| "a.toml is broken".into());
        self.engine.change(Change::Synced { source: Source::Files, incomplete });
        self.publish();
    }

    /// Asks what is due, and tells the engine, until nothing is due.
    fn go_on(&mut self) {
        loop {
            let mut was_due = false;
            while let Some((_, question)) = self.names.take_due(self.now) {
                was_due = true;
                let reply = self.ask(&question.name, question.record);
                self.names.answer(&question, reply, self.now, self.now.0 / 1_000);
            }
            self.publish();
            if !was_due {
                return;
            }
        }
    }

    /// Rounds of the engine, after which the resolver sees the names.
    fn publish(&mut self) {
        self.names.take_news().into_iter().for_each(|change| self.engine.change(change));
        for _ in 0..3 {
            self.engine.reconcile(&mut self.datapath, self.now);
        }
        let facts = self.engine.snapshot(self.now).facts;
        self.names.follow(
            Arc::new(facts.named.iter().map(|(slice, it)| (slice.clone(), Arc::clone(it))).collect()),
            self.now,
        );
        if !self.is_broken {
            self.names.forget_recalled();
        }
    }

    /// What the servers say to a question, and how they behave.
    fn ask(&mut self, name: &DnsName, record: RecordType) -> Reply {
        let is_a = name.as_str().ends_with("a.example");
        for server in self.servers.in_order(self.now) {
            let is_first = server == servers()[0];
            let says = match (is_first, is_a) {
                (true, true) => self.says,
                (true, false) => Says::Usable(9),
                (false, true) if self.says == Says::Nothing => Says::Nothing,
                (false, _) => Says::NoSuchName,
            };
            if matches!(says, Says::Silence | Says::Nothing) {
                self.note_silence(server, name);
            } else {
                self.servers.note_response(server);
            }
            if let Some(answer) = answer(says, record, self.form) {
                if is_a {
                    let is_srv = record == RecordType::Srv;
                    self.expected.receive(says, (self.form, is_srv), (HOLD, self.now.0));
                }
                return Reply::Answered(server.to_string().into(), answer);
            }
        }
        Reply::Failed("no server answers".into())
    }

    fn note_silence(&mut self, server: SocketAddr, name: &DnsName) {
        let mut asking = self.names.asking();
        if !self.has(Rule::SilenceAboutOneName) {
            (asking.names, asking.services) = (1, 1);
        }
        if !self.has(Rule::SilenceAboutOneService) {
            asking.services = 1;
        }
        self.servers.note_silence(server, (name, &asking), self.now);
    }

    fn saved(&self) -> Saved {
        self.names.saved(&self.engine.snapshot(self.now).facts)
    }

    fn restart(&mut self, stored: Stored, is_rebooted: bool) {
        let mut saved = self.saved();
        saved.held.retain(|question, _| saved.answers.contains_key(question));
        let is_of_a = |text: &str| text.contains("a.example");
        if !self.has(Rule::InUseIsStored) {
            saved.used.clear();
        }
        match stored {
            Stored::Kept => {}
            Stored::Lost => saved = Saved::default(),
            Stored::Outdated => saved = self.older.take().unwrap_or(saved),
            Stored::OfEarlierVersion => (saved.used, saved.held) = Default::default(),
            Stored::Damaged => {
                saved.answers.retain(|question, _| !is_of_a(question.name.as_str()));
                saved.held.retain(|question, _| !is_of_a(question.name.as_str()));
                saved.used.retain(|question, _| !is_of_a(question.name.as_str()));
            }
        }
        self.expected.is_stored &= stored == Stored::Kept;
        if stored == Stored::Outdated && is_rebooted {
            // Nothing tells that the file is outdated.
            self.expected.backend = None;
        }
        if is_rebooted {
            self.datapath = MemoryDatapath::new(LIMITS);
        }
        // Neither names.json nor the maps have it, such as after a reboot with a broken file.
        if !self.expected.is_stored && self.backends(A).is_none_or(|backends| backends.is_empty()) {
            self.expected.backend = None;
        }
        self.names = Names::new(BOUNDS, 1);
        let recalled = self.names.recall(saved, self.now);
        let held = self.names.saved(&Facts::default()).held;
        let is_own =
            |question: &&Question| is_of_a(question.name.as_str()) && !question.name.as_str().starts_with("host");
        self.expected.gone_since =
            held.keys().find(is_own).and_then(|question| held[question].gone_since).map(|(since, _)| since.0);
        self.servers = new_servers();
        self.files = Merged::default();
        (self.is_broken, self.has_d) = (self.is_file_broken, false);
        self.engine = new_engine(&self.datapath);
        if self.has(Rule::RecalledComesFirst) {
            recalled.into_iter().for_each(|change| self.engine.change(change));
        }
        self.start();
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Say(says) => {
                self.older.get_or_insert(self.saved());
                self.says = says;
            }
            Step::Wait(millis) => {
                // As often as the daemon would ask.
                let end = Moment(self.now.0 + millis);
                while self.now < end {
                    self.now = Moment((self.now.0 + MAX_PAUSE / 3).min(end.0));
                    self.go_on();
                }
            }
            Step::Restart { stored, is_rebooted } => self.restart(stored, is_rebooted),
            // A daemon that has read the file keeps its content.
            Step::Break => self.is_file_broken = true,
            Step::Repair => {
                self.is_file_broken = false;
                if self.is_broken {
                    self.is_broken = false;
                    self.read_files();
                }
            }
            Step::Endpoints(count) => {
                self.endpoints = count;
                self.change_endpoints();
            }
            Step::Check(has_failed) => {
                let at = self.expected.backend.as_deref().map(l4).filter(|_| has_failed);
                let failed = at.into_iter().map(|at| ((at.addr, at.port), "refused".into())).collect();
                self.engine.change(Change::Quarantine(ServiceName::new("shop", "a"), failed));
            }
        }
        self.go_on();
    }

    /// The backends that an address leads to; `None` if it is no frontend.
    fn backends(&self, address: &str) -> Option<BTreeSet<String>> {
        let dump = self.datapath.dump().unwrap();
        let entry = dump.services.get(&dump.frontends.get(&l4(address))?.service)?;
        Some(
            entry.cluster.iter().map(|slot| SocketAddr::new(slot.addr.addr.ip(), slot.addr.port).to_string()).collect(),
        )
    }

    /// Whether the property holds; otherwise why not.
    fn check(&self) -> Result<(), String> {
        let leads = |address: &str, to: &str| match self.backends(address) {
            Some(backends) if backends == [to.to_owned()].into() => Ok(()),
            found => Err(format!("{address} leads to {found:?}, not to {to}")),
        };
        leads(B, B_BACKEND)?;
        leads(C, C_BACKEND)?;
        // The server knows its name, so that it is not held either.
        let facts = self.engine.snapshot(self.now).facts;
        let of_b = facts.slices_of(Source::Files).find(|slice| &*slice.service.name == "b" && slice.problem.is_some());
        if let Some(Slice { problem: Some(why), .. }) = of_b {
            return Err(format!("{B} is held: {why}"));
        }
        let is_d_there = self.backends(D).is_some();
        if is_d_there && !self.has_d && !self.is_broken {
            return Err(format!("{D} was removed and is still there"));
        }
        match &self.expected.backend {
            Some(expected) if !(self.is_broken && self.backends(A).is_none()) => leads(A, expected),
            _ => Ok(()),
        }
    }
}

fn answer(says: Says, record: RecordType, form: Form) -> Option<Answer> {
    let addresses = |text: String| Records::Addresses(vec![text.parse().unwrap()]);
    Some(match (says, record) {
        (Says::Silence | Says::Nothing | Says::Error, _) => return None,
        (Says::Empty, _) => Answer::Empty(Some(2)),
        (Says::NoSuchName, _) => Answer::NoSuchName(Some(2)),
        (_, RecordType::Srv) => {
            let target = |number| {
                let name = DnsName::of_labels(&format!("host{number}.a.example")).unwrap();
                Target { priority: 0, weight: 1, port: 8_080, name, addresses: Vec::new() }
            };
            let Form::Srv(count) = form else { return None };
            Answer::Records(Records::Targets((0..count).map(target).collect()), 2)
        }
        (Says::Usable(host), _) => Answer::Records(addresses(format!("192.0.2.{host}")), 2),
        (Says::OwnFrontend, _) => Answer::Records(addresses("198.51.100.11".into()), 2),
        (Says::NoHost, _) => Answer::Records(addresses("0.0.0.0".into()), 2),
    })
}

fn any_sequence() -> impl Strategy<Value = (Form, Vec<Step>)> {
    let any_step = prop_oneof![1 => any_own_step(), 1 => any_node_step()];
    (any_form(), prop::collection::vec(any_step, 1..14))
}

fn run(form: Form, steps: &[Step], without: Option<Rule>) -> Result<(), String> {
    let mut node = Node::new(form, without);
    node.check()?;
    for (number, step) in steps.iter().enumerate() {
        node.apply(*step);
        node.check().map_err(|why| format!("after step {number}, {step:?}: {why}"))?;
    }
    Ok(())
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

#[test]
fn what_happens_to_one_service_changes_no_other_and_takes_nothing_from_it() {
    let cases = std::env::var("INTERFERENCE_SEQUENCES").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000);
    let result =
        runner(cases).run(&any_sequence(), |(form, steps)| run(form, &steps, None).map_err(TestCaseError::fail));
    result.unwrap_or_else(|failed| panic!("{failed}"));
}

#[test]
fn without_one_of_the_rules_something_is_lost() {
    for rule in [Rule::InUseIsStored, Rule::RecalledComesFirst, Rule::SilenceAboutOneName, Rule::SilenceAboutOneService]
    {
        let result = runner(5_000)
            .run(&any_sequence(), |(form, steps)| run(form, &steps, Some(rule)).map_err(TestCaseError::fail));
        assert!(result.is_err(), "{rule:?} can be removed, and nothing is lost");
    }
}
