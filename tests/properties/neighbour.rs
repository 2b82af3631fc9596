//! Two tenants share maps that are too small for both. The first one stays within what it had; whatever the other one asks
//! for, the first one's clients get what they would get without it.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_core::change::Change;
use nodelb_core::compile::guard::Guard;
use nodelb_core::config::PacketsConfig;
use nodelb_core::datapath::Limits;
use nodelb_core::memory::MemoryDatapath;
use nodelb_core::model::addr::Protocol;
use nodelb_core::model::health_check::{HealthCheck, Quarantine};
use nodelb_core::model::service::{
    Backend, FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, SliceName, SlicePort, Source,
};
use proptest::prelude::*;

use crate::cases;
use crate::model::Host;
use crate::world::l4;

const LIMITS: Limits =
    Limits { frontends: 130, services: 130, slots: 256, affinity: 16, outside: 130, source_ranges: 64 };

/// The services of the first tenant, and the backends that each has at most. The part of the map that has no owner has room
/// for two such lists.
const OWN: u8 = 3;
/// The neighbour's service that is there first.
const FIRST: u8 = 99;
const MOST: u8 = 4;

#[derive(Clone, Debug)]
enum Step {
    /// An own service gets these of its backends, and clients in another range may connect.
    Own(u8, u8, u8),
    /// These of its backends fail their checks.
    Fail(u8, u8),
    /// A service of the neighbour has this many backends and source ranges.
    Other(u8, u8, u8),
    /// The neighbour's services from this number on, so many, have this many backends each.
    Others(u8, u8, u8),
    Gone(u8),
    Restart,
    /// The maps are empty, and the state directory is still there.
    Reboot,
    Wait(u64),
}

fn step(has_reboot: bool) -> impl Strategy<Value = Step> {
    let own = (0..OWN, 1_u8..1 << MOST, 0_u8..4).prop_map(|(which, mask, range)| Step::Own(which, mask, range));
    // In a map that becomes empty, what the neighbour has is served whole, or not at all.
    let others = (0_u8..60, 0_u8..30, 1..=MOST)
        .prop_map(move |(first, count, most)| Step::Others(first, count, if has_reboot { 1 } else { most }));
    let other = if has_reboot {
        (0_u8..30).prop_map(|number| Step::Other(number, 1, 0)).boxed()
    } else {
        (0_u8..30, 0_u8..60, 0_u8..20)
            .prop_map(|(which, backends, ranges)| Step::Other(which, backends, ranges))
            .boxed()
    };
    prop_oneof![
        3 => own,
        2 => (0..OWN, 0_u8..1 << MOST).prop_map(|(which, mask)| Step::Fail(which, mask)),
        4 => other,
        4 => others,
        2 => (0_u8..30).prop_map(Step::Gone),
        1 => (4_u8..20).prop_map(|ranges| Step::Other(FIRST, MOST, ranges)),
        1 => Just(if has_reboot { Step::Reboot } else { Step::Restart }),
        1 => (0_u64..6_000).prop_map(Step::Wait),
    ]
}

fn name(number: u8, is_own: bool) -> ServiceName {
    // Some of the neighbour's names come before the own ones, and some after them.
    let namespace = if is_own { "m" } else { ["b", "z"][usize::from(number % 2)] };
    ServiceName::new(namespace, &format!("s{number}"))
}

fn described(number: u8, is_own: bool, backends: impl Iterator<Item = u8>, ranges: &[String]) -> [Change; 2] {
    let (name, network) = (name(number, is_own), if is_own { "198.51.100" } else { "203.0.113" });
    let address = l4(&format!("{network}.{number}:80/TCP"));
    let frontends = vec![FrontendSpec { addr: address.addr, port: 80, kind: FrontendKind::LoadBalancer }];
    let source_ranges = ranges.iter().map(|text| text.parse().expect("a network")).collect::<Vec<_>>();
    let service = Service {
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::Tcp, frontends }],
        source_ranges: Some(source_ranges).filter(|ranges| !ranges.is_empty()),
        health_check: is_own.then(|| HealthCheck::default().into()),
        ..Service::new(name.clone(), Source::Files)
    };
    let backend = |last: u8| Backend::new(l4(&format!("192.0.2.{last}:8080")).addr, 8080);
    let ports = vec![SlicePort { name: "".into(), protocol: Protocol::Tcp, backends: backends.map(backend).collect() }];
    let slice = Slice {
        name: SliceName::new(&name.namespace, &name.name),
        service: name,
        source: Source::Files,
        origin: Origin::default(),
        ports,
        problem: None,
    };
    [Change::UpsertService(service), Change::UpsertSlice(slice)]
}

fn own(which: u8, mask: u8, range: u8) -> [Change; 2] {
    let backends = (0..MOST).filter(|bit| mask & 1 << bit != 0).map(|bit| 1 + which * MOST + bit);
    described(which, true, backends, &[format!("10.{range}.0.0/16")])
}

struct Play {
    host: Host,
    facts: BTreeMap<ServiceName, [Change; 2]>,
    failed: BTreeMap<ServiceName, Quarantine>,
}

impl Play {
    /// Part of the neighbour is there first.
    fn new(limits: Limits) -> Self {
        let mut play = Self::without_own(limits);
        (0..OWN).for_each(|which| play.describe(name(which, true), own(which, (1 << MOST) - 1, 0)));
        play.host.send_synced();
        play.host.settle();
        play
    }

    fn without_own(limits: Limits) -> Self {
        let mut host = Host::new(MemoryDatapath::new(limits), [Source::Files], Guard::default());
        host.packets = PacketsConfig { is_on: true, ..PacketsConfig::default() };
        host.restart();
        let mut play = Self { host, facts: BTreeMap::new(), failed: BTreeMap::new() };
        play.take(&Step::Other(FIRST, MOST, 4));
        play
    }

    fn describe(&mut self, name: ServiceName, changes: [Change; 2]) {
        self.host.send(changes.clone());
        self.facts.insert(name, changes);
    }

    /// The sources report everything after a start.
    fn report(&mut self) {
        self.host.send(self.failed.iter().map(|(name, failed)| Change::Quarantine(name.clone(), failed.clone())));
        self.host.send(self.facts.values().flatten().cloned());
        self.host.round();
        self.host.send_synced();
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Own(which, mask, range) => self.describe(name(which, true), own(which, mask, range)),
            Step::Fail(which, mask) => {
                let backend = |bit: u8| l4(&format!("192.0.2.{}:8080", 1 + which * MOST + bit)).addr;
                let bits = (0..MOST).filter(|bit| mask & 1 << bit != 0);
                let failed: Quarantine = bits.map(|bit| ((backend(bit), 8080), "refused".into())).collect();
                self.host.send([Change::Quarantine(name(which, true), failed.clone())]);
                self.failed.insert(name(which, true), failed);
            }
            Step::Other(number, backends, ranges) => {
                let ranges: Vec<String> = (0..ranges).map(|last| format!("172.16.{number}.{last}/32")).collect();
                let backends = (0..backends).map(|last| 100 + last);
                self.describe(name(number, false), described(number, false, backends, &ranges));
            }
            Step::Others(first, count, backends) => {
                for number in first..first + count {
                    let backends = (0..backends).map(|last| 100 + last);
                    self.describe(name(number, false), described(number, false, backends, &[]));
                }
            }
            Step::Gone(number) => {
                if let Some([_, Change::UpsertSlice(slice)]) = self.facts.remove(&name(number, false)) {
                    self.host.send([
                        Change::RemoveService(slice.service.clone(), Source::Files),
                        Change::RemoveSlice(slice.name.clone(), Source::Files),
                    ]);
                }
            }
            Step::Restart => {
                self.host.restart();
                self.report();
            }
            Step::Reboot => {
                self.host.reboot();
                self.report();
            }
            Step::Wait(millis) => self.host.now = self.host.now.plus(millis),
        }
        self.host.settle();
    }

    /// After a restart, lists own only what they have: what they had is forgotten.
    fn take_reopened(&mut self, step: &Step) {
        if matches!(step, Step::Restart) {
            self.host.maps.maps.reopen();
        }
        self.take(step);
    }

    /// The own services have all their backends at a restart, as the room for what they lack then is free for all.
    fn take_whole(&mut self, step: &Step) {
        if matches!(step, Step::Restart) {
            (0..OWN).for_each(|which| {
                self.take(&Step::Fail(which, 0));
                self.take(&Step::Own(which, (1 << MOST) - 1, 0));
            });
        }
        self.take_reopened(step);
    }

    /// What clients of the own services get: the backends, and who may connect.
    fn own(&self) -> Vec<(u8, BTreeSet<String>, BTreeSet<String>)> {
        let maps = self.host.held();
        let row = |which: u8| {
            let address = l4(&format!("198.51.100.{which}:80/TCP"));
            let id = maps.outside.get(&address).map(|entry| entry.service)?;
            let lead = maps.frontends.get(&address).map(|entry| entry.service);
            assert_eq!(lead, Some(id), "both kinds of clients get the same service");
            let backends = maps.services.get(&id)?.cluster.iter().map(|slot| slot.addr.to_string()).collect();
            Some((which, backends, maps.ranges_of(id).map(|range| range.to_string()).collect()))
        };
        (0..OWN).filter_map(row).collect()
    }
}

fn compare(steps: &[Step], limits: Limits) -> Result<(), TestCaseError> {
    let (mut among, mut alone) = (Play::new(limits), Play::new(limits));
    prop_assert_eq!(alone.own().len(), usize::from(OWN));
    for step in steps {
        among.take_whole(step);
        if !matches!(step, Step::Other(..) | Step::Others(..) | Step::Gone(..)) {
            alone.take_whole(step);
        }
        prop_assert_eq!(among.own(), alone.own(), "after {:?}", step);
    }
    Ok(())
}

/// The neighbour's services fill one of the bounds each time.
const FEW_IDS: Limits = Limits { services: 64, ..LIMITS };
const FEW_FRONTENDS: Limits = Limits { frontends: 64, ..LIMITS };
const FEW_OUTSIDE: Limits = Limits { outside: 64, ..LIMITS };
const FEW_SLOTS: Limits = Limits { slots: 128, ..LIMITS };

fn is_of_neighbour(step: &Step) -> bool {
    !matches!(step, Step::Own(..) | Step::Fail(..))
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn a_neighbour_that_fills_the_maps_changes_nothing(steps in prop::collection::vec(step(false), 1..24)) {
        compare(&steps, LIMITS)?;
    }

    #[test]
    fn the_first_service_of_a_namespace_is_served_next_to_a_neighbour_that_fills_the_maps(
        steps in prop::collection::vec(step(false).prop_filter("the neighbour's", is_of_neighbour), 1..24),
        limits in prop_oneof![Just(LIMITS), Just(FEW_IDS), Just(FEW_FRONTENDS), Just(FEW_OUTSIDE), Just(FEW_SLOTS)],
        is_restarted in any::<bool>(),
    ) {
        let mut play = Play::without_own(limits);
        play.host.send_synced();
        play.host.settle();
        steps.iter().for_each(|step| play.take_reopened(step));
        // More than fit.
        play.take(&Step::Others(0, 90, 3));
        (0..4).for_each(|number| play.take(&Step::Other(number, 3, 19)));
        if is_restarted {
            play.take_reopened(&Step::Restart);
        }
        // One backend: a small map has what is free in parts that have no room for more.
        play.describe(name(0, true), described(0, true, 1..2, &["10.0.0.0/16".into()]));
        play.host.settle();
        let own = play.own();
        let sizes: Vec<_> = own.iter().map(|(_, backends, ranges)| (backends.len(), ranges.len())).collect();
        prop_assert_eq!(sizes, [(1, 1)]);
        for step in &steps {
            play.take_reopened(step);
            prop_assert_eq!(play.own(), own.clone(), "after {:?}", step);
        }
    }

    #[test]
    fn after_a_reboot_neither(steps in prop::collection::vec(step(true), 1..24)) {
        compare(&steps, Limits { services: 30, ..LIMITS })?;
    }
}
