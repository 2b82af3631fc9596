use std::sync::Arc;

use strum::IntoEnumIterator;

use crate::explain::changed::{ChangedServices, changed_services};
use crate::explain::reports;
use crate::explain::rows::FrontendReport;
use crate::filter::Filter;
use nodelb_core::change::Change;
use nodelb_core::config::EngineConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::engine::Engine;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::{Addr, L4Addr, Protocol};
use nodelb_core::model::moment::Moment;
use nodelb_core::model::node::NodeFacts;
use nodelb_core::model::service::{
    Backend, BackendState, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName,
    SlicePort, Source, TrafficPolicy,
};
use nodelb_core::snapshot::Snapshot;
use nodelb_core::state::entries::MapState;

const LIMITS: Limits = Limits { frontends: 12, services: 9, slots: 30, affinity: 4, outside: 0, source_ranges: 0 };
const ROUNDS: u64 = 3_000;

/// Pseudo-random numbers from a linear congruential generator with Knuth's factor.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn name(number: u64) -> ServiceName {
    ServiceName::new("shop", &format!("web-{number}"))
}

fn l4(text: &str) -> L4Addr {
    text.parse().unwrap()
}

/// A change with few names, addresses and backends, so that services conflict.
fn change(numbers: &mut Numbers) -> Change {
    let who = name(numbers.below(6));
    match numbers.below(8) {
        0 => Change::RemoveService(who, Source::Files),
        1 => Change::RemoveSlice(SliceName::new(&who.namespace, &who.name), Source::Files),
        2 => Change::Node(NodeFacts {
            name: "here".into(),
            addresses: [l4(&format!("192.0.2.{}:1", numbers.below(3))).addr].into(),
            ..NodeFacts::default()
        }),
        3 | 4 => {
            let specs = (0..=numbers.below(3)).map(|_| FrontendSpec {
                addr: l4(&format!("198.51.100.{}:1", numbers.below(5))).addr,
                port: 80 + u16::try_from(numbers.below(2)).unwrap(),
                kind: FrontendKind::iter().nth(usize::try_from(numbers.below(5)).unwrap()).unwrap(),
            });
            let port = ServicePort { name: "http".into(), protocol: Protocol::Tcp, frontends: specs.collect() };
            let created = Some(numbers.below(3)).filter(|created| *created > 0);
            let internal_policy = if numbers.below(3) == 0 { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
            Change::UpsertService(Service {
                ports: vec![port],
                created,
                internal_policy,
                ..Service::new(who, Source::Files)
            })
        }
        _ => {
            let backend = |number: u64, state: u64| Backend {
                state: [BackendState::Active, BackendState::NotReady][usize::try_from(state).unwrap()],
                ..Backend::new(Addr::from(std::net::IpAddr::from([10, 1, 0, u8::try_from(number).unwrap()])), 8080)
            };
            let backends = (0..numbers.below(4)).map(|_| backend(numbers.below(4), numbers.below(2))).collect();
            Change::UpsertSlice(Slice {
                name: SliceName::new(&who.namespace, &who.name),
                service: who,
                source: Source::Files,
                origin: Origin::default(),
                ports: vec![SlicePort { name: "http".into(), protocol: Protocol::Tcp, backends }],
                problem: None,
            })
        }
    }
}

fn rows(snapshot: &Snapshot, of: &ServiceName) -> Vec<FrontendReport> {
    let rows = reports::frontends(snapshot, &Filter::for_service(of));
    rows.into_iter().map(|row| FrontendReport { since: Moment(0), ..row }).collect()
}

/// After any change, with full maps, and where the maps accept a change later, a service that is not named has the same
/// rows as before.
#[test]
fn a_service_that_is_not_named_has_the_same_rows_as_before() {
    let config = EngineConfig { sources: [Source::Files].into(), max_services: 9, ..EngineConfig::default() };
    let mut engine = Engine::new(config, MapState::default());
    let mut faults = Numbers(2);
    let mut datapath = MemoryDatapath::new(LIMITS).with_fault(Box::new(move |_| faults.below(4) == 0));
    engine.change(Change::Synced { source: Source::Files, incomplete: None });
    let mut numbers = Numbers(1);
    let mut before = Arc::new(engine.snapshot(Moment(0)));
    let (mut named_some, mut named_all) = (0, 0);
    for round in 1..ROUNDS {
        for _ in 0..numbers.below(3) {
            engine.change(change(&mut numbers));
        }
        engine.reconcile(&mut datapath, Moment(round * 1_000));
        let after = Arc::new(engine.snapshot(Moment(round * 1_000)));
        match changed_services(&before, &after) {
            ChangedServices::All => named_all += 1,
            ChangedServices::Services(named) => {
                named_some += 1;
                for other in (0..6).map(name).filter(|name| !named.contains(name)) {
                    assert_eq!(rows(&after, &other), rows(&before, &other), "round {round}: {other}");
                }
            }
        }
        // A reader does not see every snapshot.
        if numbers.below(3) > 0 {
            before = after;
        }
    }
    assert!(named_some > named_all && named_all > 10, "{named_some} {named_all}");
}

#[test]
fn nothing_differs_from_itself() {
    let engine = Engine::new(EngineConfig::default(), MapState::default());
    let snapshot = engine.snapshot(Moment(0));
    assert_eq!(changed_services(&snapshot.clone(), &snapshot), ChangedServices::Services(Default::default()));
}
