//! The services that a node reaches its apiserver through are never emptied, whatever the source and other changes do,
//! and whenever the daemon dies: promise 3.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_core::change::Change;
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::drain::{Drain, Drained, Drains};
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName,
    SlicePort, Source, TrafficPolicy,
};
use nodelb_core::state::entries::MapState;
use nodelb_core::state::status::Status;
use nodelb_core::trace::{Verdict, trace};
use nodelb_report::explain::drains::keeps_drained;
use nodelb_report::explain::reports;
use nodelb_report::filter::Filter;
use proptest::prelude::*;
use proptest::sample::select;

use crate::cases;
use crate::memory_maps;
use crate::model::{Host, ROOMY};
use crate::world::{SOURCES, change, disputed, facts, guard, l4, without};

/// The protected services: by name; by the load balancer's address; by an address of the node; by a
/// backend.
const PROTECTED: [(&str, &[(&str, FrontendKind)]); 4] = [
    ("default/kubernetes", &[("192.168.0.1:443", FrontendKind::ClusterIP)]),
    (
        "default/kubernetes-intranet",
        &[("192.168.0.2:443", FrontendKind::ClusterIP), ("10.15.1.8:443", FrontendKind::LoadBalancer)],
    ),
    ("a/nodeport", &[("192.168.0.3:443", FrontendKind::ClusterIP), ("0.0.0.0:31443", FrontendKind::NodePort)]),
    ("a/shared", &[("192.168.0.4:443", FrontendKind::ClusterIP)]),
];

const DESTINATIONS: [&str; 6] =
    ["192.168.0.1:443", "192.168.0.2:443", "192.168.0.3:443", "192.168.0.4:443", "10.15.1.8:443", "203.0.113.1:31443"];

/// The known apiservers. The last three are not backends.
const APISERVERS: [&str; 3] = ["192.0.2.1:6443", "10.15.1.8:443", "203.0.113.1:31443"];
/// The first is an apiserver, the last is refused.
const BACKENDS: [&str; 4] = ["192.0.2.1:6443", "192.0.2.2:6443", "192.0.2.3:6443", "127.0.0.1:6443"];

#[derive(Clone, Debug)]
enum Step {
    Change(Change),
    /// The drains of one of the services, by the indexes of backends.
    Drain(usize, BTreeSet<usize>),
    Round,
    Restart(Vec<usize>),
    Reboot,
}

fn at(text: &str) -> (Addr, u16) {
    (l4(text).addr, l4(text).port)
}

fn service(index: usize, version: u8) -> Service {
    let (name, frontends) = PROTECTED[index];
    let spec = |(text, kind): &(&str, FrontendKind)| FrontendSpec { addr: at(text).0, port: at(text).1, kind: *kind };
    Service {
        origin: Origin { resource_version: version.to_string().into(), ..Origin::default() },
        created: Some(1),
        ports: vec![ServicePort {
            name: "https".into(),
            protocol: l4(frontends[0].0).protocol,
            frontends: frontends.iter().map(spec).collect(),
        }],
        external_policy: if version.is_multiple_of(2) { TrafficPolicy::Cluster } else { TrafficPolicy::Local },
        affinity_seconds: version.is_multiple_of(3).then_some(60),
        ..Service::new(name.parse().expect("valid"), Source::Kubernetes)
    }
}

/// A slice of one of the services. For the one that is protected by its backend, it has that
/// backend or none.
fn slice(index: usize, number: usize, backends: Vec<(usize, BackendState)>) -> Slice {
    let name: ServiceName = PROTECTED[index].0.parse().expect("valid");
    let backend = |(at_index, state): (usize, BackendState)| {
        let text = BACKENDS[if index == 3 { 0 } else { at_index }];
        Backend { state, node: Some("n1".into()), ..Backend::new(at(text).0, at(text).1) }
    };
    let ports = vec![SlicePort {
        name: "https".into(),
        protocol: Protocol::Tcp,
        backends: backends.into_iter().map(backend).collect(),
    }];
    Slice {
        // Equal names in one namespace: the slice moves from one service to the other.
        name: SliceName::new(&name.namespace, &format!("slice-{number}")),
        service: name,
        source: Source::Kubernetes,
        origin: Origin::default(),
        ports,
        problem: None,
    }
}

fn slices() -> impl Strategy<Value = Slice> {
    let states = select(&[BackendState::Active, BackendState::NotReady, BackendState::Terminating]);
    let backends = prop::collection::vec((0..BACKENDS.len(), states), 0..3);
    (0..PROTECTED.len(), 0..2_usize, backends).prop_map(|(index, number, backends)| slice(index, number, backends))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let removal = slices().prop_map(|slice| Change::RemoveSlice(slice.name, slice.source));
    let annotated = (0..PROTECTED.len(), any::<u8>());
    let other = change().prop_filter("the node stays", |change| !matches!(change, Change::Node(_)));
    let step = prop_oneof![
        6 => slices().prop_map(Change::UpsertSlice).prop_map(Step::Change),
        3 => removal.prop_map(Step::Change),
        2 => annotated.prop_map(|(index, version)| Step::Change(Change::UpsertService(service(index, version)))),
        2 => other.prop_map(Step::Change),
        1 => select(&["n1", "n2"]).prop_map(|name| Step::Change(node(name))),
        2 => (0..PROTECTED.len(), prop::collection::btree_set(0..3_usize, 0..4))
            .prop_map(|(index, backends)| Step::Drain(index, backends)),
        8 => Just(Step::Round),
        1 => prop::collection::vec(0..64_usize, 64).prop_map(Step::Restart),
        1 => Just(Step::Reboot),
    ];
    prop::collection::vec(step, 1..40)
}

fn node(name: &str) -> Change {
    let addresses = ["203.0.113.1", "203.0.113.2"].map(|text| text.parse().expect("valid")).into();
    let nodeport_addresses = vec!["0.0.0.0/0".parse().expect("an entry")];
    Change::Node(NodeFacts { name: name.into(), addresses, nodeport_addresses, ..NodeFacts::default() })
}

fn apiservers() -> Change {
    Change::Apiservers(APISERVERS.iter().map(|text| at(text)).collect())
}

fn reached(state: &MapState, to: &str) -> Option<BTreeSet<L4Addr>> {
    match trace(state, &guard().nodeport_range, l4(to)) {
        Verdict::Forwarded(_, slots) => Some(slots.iter().map(|slot| slot.addr).collect()),
        _ => None,
    }
}

/// The backends of the service that its source reports as ready, except the one that is refused.
fn ready(sent: &[Change], full: &str) -> BTreeSet<L4Addr> {
    let slices = facts(sent).into_iter().filter_map(|change| match change {
        Change::UpsertSlice(slice) if slice.service.to_string() == full => Some(slice),
        _ => None,
    });
    let backends = slices.flat_map(|slice| slice.ports).flat_map(|port| port.backends);
    let ready = backends.filter(|backend| matches!(backend.state, BackendState::Active | BackendState::Terminating));
    let addresses = ready.map(|backend| L4Addr::new(backend.addr, backend.port, Protocol::Tcp));
    addresses.filter(|at| *at != l4(BACKENDS[3])).collect()
}

/// A host, its facts, and the addresses that have had a backend.
struct Watched {
    host: Host,
    sent: Vec<Change>,
    answered: BTreeSet<&'static str>,
}

impl Watched {
    fn new(seed: Option<u64>) -> Self {
        let mut host = Host::new(memory_maps::create(ROOMY, seed), SOURCES, guard());
        let sent = [node("n1"), apiservers()]
            .into_iter()
            .chain((0..PROTECTED.len()).map(|index| Change::UpsertService(service(index, 0))));
        let sent: Vec<Change> = sent.collect();
        host.send(sent.iter().cloned());
        host.send_synced();
        host.settle();
        Self { host, sent, answered: BTreeSet::new() }
    }

    /// After every operation, every address that had a backend has one that is not refused.
    fn check(&mut self, before: &MapState) -> Result<(), TestCaseError> {
        let mut state = before.clone();
        for (op, _) in self.host.maps.log.iter().filter(|(_, is_done)| *is_done) {
            state.apply(op);
            for to in &self.answered {
                let backends = reached(&state, to);
                prop_assert!(backends.is_some(), "{} has no backend after {:?}", to, op);
                prop_assert!(!backends.unwrap_or_default().contains(&l4(BACKENDS[3])), "{} is refused", BACKENDS[3]);
            }
        }
        let held = self.host.held();
        for to in DESTINATIONS {
            if reached(&held, to).is_some() {
                self.answered.insert(to);
            } else {
                prop_assert!(!self.answered.contains(to), "{} has lost its backends", to);
            }
        }
        Ok(())
    }

    fn round(&mut self) -> Result<(), TestCaseError> {
        let before = self.host.held();
        self.host.round();
        self.check(&before)
    }

    fn settle(&mut self) -> Result<(), TestCaseError> {
        let before = self.host.held();
        prop_assert!(self.host.settle(), "never settles");
        self.check(&before)?;
        self.check_ready()
    }

    /// Each list has a backend that its source reports as ready, if there is one.
    fn check_ready(&self) -> Result<(), TestCaseError> {
        let held = self.host.held();
        for (index, (full, frontends)) in PROTECTED.iter().enumerate() {
            let ready = ready(&self.sent, full);
            for (text, kind) in *frontends {
                let to = if *kind == FrontendKind::NodePort { DESTINATIONS[5] } else { text };
                let list = reached(&held, to).unwrap_or_default();
                let is_served = ready.is_empty() || !list.is_disjoint(&ready);
                prop_assert!(is_served, "{} {} has {:?}, and {:?} are ready", index, to, list, ready);
            }
        }
        Ok(())
    }

    /// A drain is refused exactly if the engine would not carry it out.
    fn drain(&mut self, index: usize, backends: &BTreeSet<usize>) -> Result<(), TestCaseError> {
        self.settle()?;
        let name: ServiceName = PROTECTED[index].0.parse().expect("valid");
        let drained = |index: &usize| Drained { addr: at(BACKENDS[*index]).0, port: Some(at(BACKENDS[*index]).1) };
        let drain = || Drain { by: "root".into(), since: 0, until: None };
        let drains: Drains = backends.iter().map(|index| (drained(index), drain())).collect();
        let snapshot = self.host.engine.snapshot(self.host.now);
        let kept = backends.iter().map(|index| keeps_drained(&snapshot, &name, (drained(index), &drains)));
        let kept: Vec<bool> = kept.collect();
        let change = Change::Drains(name, drains, None);
        self.sent.push(change.clone());
        self.host.send([change]);
        self.settle()?;
        let to = DESTINATIONS[index];
        let list = reached(&self.host.held(), to).unwrap_or_default();
        let used: Vec<bool> = backends.iter().map(|index| list.contains(&l4(BACKENDS[*index]))).collect();
        prop_assert_eq!(used, kept, "{} has {:?}", to, list);
        Ok(())
    }

    /// Sends all facts to a new daemon: those of the address pool and the node first, the others in
    /// this order.
    fn resend(&mut self, order: &[usize]) -> Result<(), TestCaseError> {
        let mut rest: BTreeMap<usize, Change> = facts(&self.sent).into_iter().enumerate().collect();
        let is_first = |change: &Change| matches!(change, Change::Node(_) | Change::Apiservers(_) | Change::Drains(..));
        let first: Vec<Change> = rest.values().filter(|change| is_first(change)).cloned().collect();
        rest.retain(|_, change| !is_first(change));
        self.host.send(first);
        for index in order {
            if let Some(change) = rest.remove(index) {
                self.host.send([change]);
                self.round()?;
            }
        }
        self.host.send(rest.into_values().collect::<Vec<_>>());
        self.round()?;
        self.host.send_synced();
        self.settle()
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Change(change) => {
                self.host.send([change.clone()]);
                self.sent.push(change);
                Ok(())
            }
            Step::Drain(index, backends) => self.drain(index, &backends),
            Step::Round => self.round(),
            Step::Restart(order) => {
                self.settle()?;
                self.host.restart();
                self.resend(&order)
            }
            Step::Reboot => {
                self.settle()?;
                let answered = std::mem::take(&mut self.answered);
                self.host.reboot();
                self.resend(&[])?;
                prop_assert!(answered.is_subset(&self.answered), "{:?} are forgotten", answered);
                Ok(())
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn the_route_to_the_apiserver_is_never_lost(steps in steps(), seed in prop::option::weighted(0.3, any::<u64>())) {
        let mut watched = Watched::new(seed);
        for step in steps {
            watched.take(step)?;
        }
        watched.settle()?;
        let snapshot = watched.host.engine.snapshot(watched.host.now);
        for row in reports::frontends(&snapshot, &Filter::default()) {
            let is_explained = row.error.is_some() || !matches!(row.status, Status::Held | Status::Refused | Status::Conflict);
            prop_assert!(is_explained, "{:?}", row);
        }
        // Deleting the service is intentional: nothing of it stays.
        let names = PROTECTED.iter().map(|(name, _)| name.parse().expect("valid"));
        watched.host.send(names.map(|name| Change::RemoveService(name, Source::Kubernetes)));
        watched.host.settle();
        let snapshot = watched.host.engine.snapshot(watched.host.now);
        prop_assert_eq!((snapshot.held().count(), snapshot.remembered().len()), (0, 0));
        prop_assert!(DESTINATIONS.iter().all(|to| reached(&watched.host.held(), to).is_none()));
    }

    /// After the source has backends again, the state is as if it always had them.
    #[test]
    fn a_hold_leaves_no_trace(steps in steps()) {
        let mut watched = Watched::new(None);
        for step in steps {
            watched.take(step)?;
        }
        let full = (0..PROTECTED.len()).map(|index| {
            let mut slice = slice(index, 0, vec![(0, BackendState::Active)]);
            slice.name.name = format!("own-{index}").into();
            Change::UpsertSlice(slice)
        });
        let full: Vec<Change> = full.collect();
        watched.sent.extend(full.clone());
        watched.host.send(full);
        watched.settle()?;
        let mut scratch = Host::new(memory_maps::create(ROOMY, None), SOURCES, guard());
        scratch.send(facts(&watched.sent));
        scratch.send_synced();
        scratch.settle();
        let disputed = disputed(&facts(&watched.sent));
        prop_assert_eq!(without(&watched.host.text(), &disputed), without(&scratch.text(), &disputed));
    }
}
