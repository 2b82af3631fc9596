//! Restarts while the API server cannot be reached: the lists of the maps stay, and health checks and drains, which are facts
//! of this run, change them.

use super::*;
use crate::history::{Event, Kernel};
use crate::model::drain::{Drain, DrainCause, Drained, Drains};
use crate::model::health_check::HealthCheck;
use crate::model::service::Hints;

const B: [&str; 3] = ["192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80"];

struct Node {
    engine: Engine,
    datapath: MemoryDatapath,
    now: Moment,
}

impl Node {
    /// After a restart without the API server.
    fn restarted(datapath: MemoryDatapath) -> Self {
        let sources = BTreeSet::from([Source::Kubernetes]);
        let config = EngineConfig { sources, max_services: LIMITS.services, ..EngineConfig::default() };
        let engine = Engine::new(config, datapath.dump().expect("readable"));
        Self { engine, datapath, now: Moment(0) }
    }

    /// The maps of a node that served these backends, with the effects of these changes.
    fn serving(list: Slice, changes: impl IntoIterator<Item = Change>) -> MemoryDatapath {
        let mut node = Self::restarted(MemoryDatapath::new(LIMITS));
        node.send([described(), Change::UpsertSlice(list), synced_kubernetes()].into_iter().chain(changes));
        node.datapath
    }

    fn send(&mut self, changes: impl IntoIterator<Item = Change>) -> Vec<Event> {
        changes.into_iter().for_each(|change| self.engine.change(change));
        let mut events = Vec::new();
        for _ in 0..3 {
            self.now = self.now.plus(10_000);
            events.extend(self.engine.reconcile(&mut self.datapath, self.now).events);
        }
        events
    }

    /// The backends in the maps: of all nodes, and of this one.
    fn lists(&self) -> [Vec<String>; 2] {
        let realised = &self.engine.realised;
        let frontend = &realised.frontends[&l4("198.51.100.10:80")];
        let entry = realised.services.get(&frontend.service).expect("its service");
        [&entry.cluster, &entry.local].map(|list| list.iter().map(|slot| socket(slot.addr)).collect())
    }

    fn list(&self) -> Vec<String> {
        self.lists()[0].clone()
    }
}

fn socket(at: L4Addr) -> String {
    format!("{}:{}", at.addr, at.port)
}

fn described() -> Change {
    let service = service("shop/web", "198.51.100.10:80");
    let check = Some(Arc::new(HealthCheck::default()));
    Change::UpsertService(Service { source: Source::Kubernetes, health_check: check, ..service })
}

fn list(backends: &[&str]) -> Slice {
    let origin = Origin { object: "EndpointSlice shop/web-x".into(), ..Origin::default() };
    Slice { source: Source::Kubernetes, origin, ..slice("shop/web", "a", backends) }
}

fn synced_kubernetes() -> Change {
    Change::Synced { source: Source::Kubernetes, incomplete: None }
}

fn failed(backends: &[&str]) -> Change {
    let failed = backends.iter().map(|text| ((l4(text).addr, l4(text).port), "refused".into()));
    Change::Quarantine(name("shop/web"), failed.collect())
}

fn drains(backends: &[&str]) -> Drains {
    let drain = Drain { by: "root".into(), since: 0, until: None };
    backends.iter().map(|text| (text.parse::<Drained>().expect("valid in a test"), drain.clone())).collect()
}

fn drained(backends: &[&str]) -> Change {
    Change::Drains(name("shop/web"), drains(backends), Some(DrainCause::Begun("by root".into())))
}

fn undrained(backends: &[&str]) -> Change {
    Change::Drains(name("shop/web"), drains(backends), Some(DrainCause::Ended("undrain by root".into())))
}

fn whats(events: &[Event]) -> Vec<(What, &str)> {
    events.iter().map(|event| (event.what, &*event.cause.origin.object)).collect()
}

#[test]
fn a_backend_that_recovers_before_the_sync_is_used() {
    let mut node = Node::restarted(Node::serving(list(&B[..2]), [failed(&B[..1])]));
    assert_eq!(whats(&node.send([failed(&B[..1]), described(), Change::UpsertSlice(list(&B[..2]))])), []);
    let events = node.send([failed(&[])]);
    assert_eq!(whats(&events), [(What::Changed, "health checks (192.0.2.1:80 is healthy again)")]);
    assert_eq!((node.list(), events[0].detail.clone()), (vec![B[0].to_owned(), B[1].to_owned()], None));
    assert_eq!(whats(&node.send([failed(&B[1..2])])), [(What::Changed, "health checks (192.0.2.2:80: refused)")]);
    assert_eq!(node.list(), [B[0]]);
}

#[test]
fn an_undrain_before_the_sync_takes_effect() {
    for all in [&B[..1], &B[..2]] {
        let mut node = Node::restarted(Node::serving(list(&B[..2]), [drained(all)]));
        let remembered = Change::Drains(name("shop/web"), drains(all), None);
        assert_eq!(whats(&node.send([remembered, described(), Change::UpsertSlice(list(&B[..2]))])), []);
        assert_eq!(whats(&node.send([undrained(&all[1..])])), [(What::Undrained, "undrain by root")]);
        assert!(node.list().contains(&B[0].to_owned()), "{:?}", node.list());
    }
}

/// Otherwise one pod that came while nodelb was down disables all checks of its service.
#[test]
fn checks_change_a_list_that_is_not_the_reported_one() {
    let mut node = Node::restarted(Node::serving(list(&B[..2]), []));
    node.send([described(), Change::UpsertSlice(list(&B))]);
    assert_eq!(node.list(), B[..2], "the new one waits");
    let events = node.send([failed(&B[..1])]);
    assert_eq!(whats(&events), [(What::Changed, "health checks (192.0.2.1:80: refused)")]);
    assert_eq!((node.list(), &events[0].kernel), (vec![B[1].to_owned()], &Kernel::Done));
    node.send([failed(&B[..2])]);
    assert_eq!(node.list(), [B[2]], "none of the others works");
}

/// The failed backend is in the maps only: the object that waits for the sync has others.
#[test]
fn checks_change_a_list_that_shares_no_backend_with_the_reported_one() {
    let mut node = Node::restarted(Node::serving(list(&B[..1]), []));
    node.send([described(), Change::UpsertSlice(list(&B[1..2]))]);
    assert_eq!(node.list(), [B[0]], "the new one waits");
    node.send([failed(&B[..1])]);
    assert_eq!(node.list(), [B[1]]);
}

#[test]
fn a_list_that_would_be_empty_stays_until_the_sync() {
    let mut node = Node::restarted(Node::serving(list(&B[..1]), []));
    node.send([described(), Change::UpsertSlice(list(&B[..1]))]);
    assert_eq!(whats(&node.send([drained(&B[..1])])), [(What::Drained, "by root")]);
    assert_eq!(node.list(), [B[0]]);
    assert_eq!(whats(&node.send([synced_kubernetes()]))[0], (What::Emptied, "by root"));
    assert_eq!(node.list(), [] as [&str; 0]);
}

/// Both drains were over when nodelb started, and the checks keep the other backend out.
#[test]
fn a_backend_returns_by_the_end_of_its_own_drain() {
    let mut node = Node::restarted(Node::serving(list(&B), [failed(&B[1..2]), drained(&B[..2])]));
    let remembered = Change::Drains(name("shop/web"), drains(&B[..2]), None);
    node.send([remembered, failed(&B[1..2]), described(), Change::UpsertSlice(list(&B)), synced_kubernetes()]);
    let ends = |backend: &str, left: &[&str]| {
        let cause = DrainCause::Ended(format!("end of the drain of {backend}").into());
        Change::Drains(name("shop/web"), drains(left), Some(cause))
    };
    let events = node.send([ends(B[0], &B[1..2]), ends(B[1], &[])]);
    let ended = |event: &Event| (event.what, event.cause.origin.object.to_string(), event.added.shown.clone());
    let expected = [(B[0], vec![l4(B[0])]), (B[1], Vec::new())];
    let expected = expected.map(|(at, added)| (What::Undrained, format!("end of the drain of {at}"), added));
    assert_eq!(events.iter().map(ended).collect::<Vec<_>>(), expected);
}

/// The state file has a drain that the maps do not have.
#[test]
fn a_drain_from_before_the_start_is_the_cause_of_what_it_empties() {
    let mut node = Node::restarted(Node::serving(list(&B[..1]), []));
    let remembered = Change::Drains(name("shop/web"), drains(&B[..1]), None);
    let events = node.send([remembered, described(), Change::UpsertSlice(list(&B[..1])), synced_kubernetes()]);
    assert_eq!(whats(&events)[0], (What::Emptied, "drain of 192.0.2.1:80 by root"));
}

#[test]
fn the_last_backend_of_a_zone_may_fail_before_the_sync() {
    let hinted = || {
        let mut list = list(&B[..2]);
        for (backend, zone) in list.ports[0].backends.iter_mut().zip(["z1", "z2"]) {
            backend.zone = Some(zone.into());
            backend.hints = Some(Arc::new(Hints { zones: vec![zone.into()], nodes: vec![] }));
        }
        list
    };
    let in_zone = || Change::Node(NodeFacts { name: "n1".into(), zone: "z1".into(), ..NodeFacts::default() });
    let mut node = Node::restarted(Node::serving(hinted(), [in_zone()]));
    node.send([in_zone(), described(), Change::UpsertSlice(hinted())]);
    assert_eq!(node.list(), [B[0]]);
    node.send([failed(&B[..1])]);
    assert_eq!(node.list(), [B[1]]);
}

#[test]
fn the_last_backend_of_the_node_may_fail_before_the_sync() {
    let here = || {
        let mut list = list(&B[..2]);
        list.ports[0].backends[0].node = Some("n1".into());
        list
    };
    let on_node = || Change::Node(NodeFacts { name: "n1".into(), ..NodeFacts::default() });
    let mut node = Node::restarted(Node::serving(here(), [on_node()]));
    node.send([on_node(), described(), Change::UpsertSlice(here())]);
    node.send([failed(&B[..1])]);
    assert_eq!(node.lists(), [vec![B[1].to_owned()], vec![B[0].to_owned()]], "clients of the node avoid it");
}

#[test]
fn what_waits_for_another_source_says_so() {
    let datapath = Node::serving(list(&B[..1]), []);
    let sources = BTreeSet::from([Source::Kubernetes, Source::Files]);
    let config = EngineConfig { sources, max_services: LIMITS.services, ..EngineConfig::default() };
    let engine = Engine::new(config, datapath.dump().expect("readable"));
    let mut node = Node { engine, datapath, now: Moment(0) };
    node.send([described(), Change::UpsertSlice(list(&[])), synced_kubernetes()]);
    let snapshot = node.engine.snapshot(node.now);
    let address = l4("198.51.100.10:80");
    let status = snapshot.status_of(&snapshot.rows[&address], 0, address);
    assert_eq!(status.status, Status::Kept);
    assert!(
        status.error.is_some_and(|why| why.contains("before nodelb started, until nodelb has read files, which may"))
    );
}

/// 2,000 random sequences of checks, drains and restarts, all before the sync.
#[test]
fn checks_and_drains_take_effect_in_any_order_before_the_sync() {
    let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut draw = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        usize::try_from(random >> 40).expect("24 bits")
    };
    let subset = |bits: usize| -> Vec<&str> { (0..3).filter(|n| bits >> n & 1 == 1).map(|n| B[n]).collect() };
    for sequence in 0..2_000 {
        let mut datapath = Node::serving(list(&B), []);
        let (mut bad, mut out, mut expected) = (0, 0, subset(7));
        for step in 0..6 {
            let mut node = Node::restarted(datapath);
            let remembered = Change::Drains(name("shop/web"), drains(&subset(out)), None);
            node.send([remembered, failed(&subset(bad)), described(), Change::UpsertSlice(list(&B))]);
            for _ in 0..draw() % 3 {
                if draw() % 2 == 0 {
                    bad = draw() % 8;
                    node.send([failed(&subset(bad))]);
                } else {
                    out = draw() % 8;
                    node.send([drained(&subset(out))]);
                }
                // The last resort is what fails, and not what is drained. What would be empty stays.
                let chosen = [!bad & !out & 7, !out & 7].into_iter().find(|bits| *bits > 0);
                expected = chosen.map_or(expected, subset);
                assert_eq!(
                    node.list(),
                    expected,
                    "sequence {sequence}, step {step}: failed {bad:03b}, drained {out:03b}"
                );
            }
            datapath = node.datapath;
        }
    }
}

/// The state directory does not answer: the maps show what was drained.
#[test]
fn drains_that_cannot_be_read_are_kept_as_the_maps_have_them() {
    let mut node = Node::restarted(Node::serving(list(&B[..2]), [drained(&B[..1])]));
    node.send([Change::DrainsUnread(true), described(), Change::UpsertSlice(list(&B[..2]))]);
    assert_eq!(node.list(), [B[1]]);
    node.send([synced_kubernetes()]);
    assert_eq!(node.list(), [B[1]]);
    assert_eq!(node.engine.snapshot(node.now).facts.drains(&name("shop/web")).map(Drains::len), Some(1));
    // What comes later was not drained.
    node.send([Change::UpsertSlice(list(&B))]);
    assert_eq!(node.list(), B[1..]);
    node.send([Change::DrainsUnread(false), Change::Drains(name("shop/web"), drains(&B[..1]), None)]);
    assert_eq!(node.list(), B[1..]);
    node.send([undrained(&[])]);
    assert_eq!(node.list(), B);
}

#[test]
fn unread_drains_end_with_the_read_and_empty_no_service() {
    for rest in [&B[1..2], &B[2..]] {
        let mut node = Node::restarted(Node::serving(list(&B[..2]), [drained(&B[..1])]));
        let all = [&B[..1], rest].concat();
        node.send([Change::DrainsUnread(true), described(), Change::UpsertSlice(list(&all)), synced_kubernetes()]);
        let is_replaced = rest == &B[2..];
        assert_eq!(node.list(), if is_replaced { all.clone() } else { rest.to_vec() });
        node.send([Change::DrainsUnread(false)]);
        assert_eq!(node.list(), all);
    }
}
