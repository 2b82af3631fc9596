//! Among claims of equal rank, the current owner keeps its address: in any order, across restarts,
//! with files that are added during downtime, and while another file cannot be read.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_core::change::Change;
use nodelb_core::history::Event;
use nodelb_core::model::addr::L4Addr;
use nodelb_core::model::service::{
    FrontendKind, FrontendSpec, Origin, Service, ServiceName, ServicePort, Slice, Source,
};
use nodelb_report::explain::reports;
use nodelb_report::explain::rows::FrontendReport;
use proptest::prelude::*;
use proptest::sample::select;

use crate::cases;
use crate::memory_maps;
use crate::model::{Host, ROOMY};
use crate::world::{described, facts, l4, rank};

const NAMES: [&str; 4] = ["aaa/thief", "shop/a", "shop/web", "zzz/last"];
const ADDRESSES: [&str; 3] = ["198.51.100.1:80", "198.51.100.2:80", "198.51.100.3:80"];
const FILES: [&str; 4] = ["a.toml", "shop.toml", "m.yaml", "zz-new.toml"];

/// A service in a file, often in conflict with another, and its slice, which may be empty.
fn entry() -> impl Strategy<Value = [Change; 2]> {
    let created = prop_oneof![6 => Just(None), 1 => Just(Some(100)), 1 => Just(Some(200))];
    let addresses = prop::collection::btree_set(select(&ADDRESSES), 1..3);
    (select(&NAMES), select(&FILES), addresses, created, any::<bool>()).prop_map(
        |(name, file, addresses, created, has_backends)| {
            let name: ServiceName = name.parse().expect("valid");
            let frontend = |text: &&str| FrontendSpec { addr: l4(text).addr, port: 80, kind: FrontendKind::Static };
            let protocol = nodelb_core::model::addr::Protocol::Tcp;
            let frontends = addresses.iter().map(frontend).collect();
            let service = Service {
                origin: Origin { object: file.into(), ..Origin::default() },
                created,
                ports: vec![ServicePort { name: "".into(), protocol, frontends }],
                ..Service::new(name.clone(), Source::Files)
            };
            // Each service has its own backend, which identifies the owner of an address.
            let last = NAMES.iter().position(|other| **other == name.to_string()).expect("one of them") + 1;
            let backend =
                nodelb_core::model::service::Backend::new(format!("192.0.2.{last}").parse().expect("valid"), 8080);
            let backends = if has_backends { vec![backend] } else { Vec::new() };
            let slice = Slice {
                name: nodelb_core::model::service::SliceName::new(&name.namespace, &name.name),
                service: name,
                source: Source::Files,
                origin: Origin { object: file.into(), ..Origin::default() },
                ports: vec![nodelb_core::model::service::SlicePort { name: "".into(), protocol, backends }],
                problem: None,
            };
            [Change::UpsertService(service), Change::UpsertSlice(slice)]
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    /// Adds or replaces a file.
    Write([Change; 2]),
    /// Removes a service.
    Remove(&'static str),
    /// Restarts the daemon after these files were added and a service was removed. All files are sent in this order, in
    /// rounds of this size.
    Restart { added: Vec<[Change; 2]>, removed: Option<&'static str>, order: Vec<usize>, round: usize },
    /// A restart while the file of one service cannot be read at first.
    RestartWithout { unread: prop::sample::Index, added: Vec<[Change; 2]>, written: Option<[Change; 2]> },
}

fn step() -> impl Strategy<Value = Step> {
    let added = || prop::collection::vec(entry(), 0..3);
    let order = prop::collection::vec(0..16_usize, 16);
    prop_oneof![
        4 => entry().prop_map(Step::Write),
        1 => select(&NAMES).prop_map(Step::Remove),
        2 => (added(), prop::option::of(select(&NAMES)), order, 1..6_usize)
            .prop_map(|(added, removed, order, round)| Step::Restart { added, removed, order, round }),
        2 => (any::<prop::sample::Index>(), added(), prop::option::of(entry()))
            .prop_map(|(unread, added, written)| Step::RestartWithout { unread, added, written }),
    ]
}

impl Step {
    /// Whether the service changes twice during the restart, so that its claims in between differ
    /// from those at the end.
    fn changes_twice(&self, owner: &ServiceName) -> bool {
        let Self::RestartWithout { added, written: Some(written), .. } = self else { return false };
        let is_of_owner = |change: &Change| name_of(change) == Some(owner);
        added.iter().flatten().any(is_of_owner) && written.iter().any(is_of_owner)
    }

    /// Whether a service that changes twice claims the address in between.
    fn is_claimed_in_between(&self, address: &L4Addr) -> bool {
        let Self::RestartWithout { added, written: Some(written), .. } = self else { return false };
        let changes = |name: &ServiceName| written.iter().any(|change| name_of(change) == Some(name));
        added.iter().flatten().any(|change| match change {
            Change::UpsertService(service) => {
                changes(&service.name) && crate::world::claims_of(service).contains(address)
            }
            _ => false,
        })
    }
}

fn name_of(change: &Change) -> Option<&ServiceName> {
    match change {
        Change::UpsertService(service) => Some(&service.name),
        Change::UpsertSlice(slice) => Some(&slice.service),
        _ => None,
    }
}

struct Run {
    host: Host,
    facts: Vec<Change>,
}

impl Run {
    fn new() -> Self {
        let mut host = Host::new(memory_maps::create(ROOMY, None), [Source::Files], Default::default());
        host.send_synced();
        host.settle();
        Self { host, facts: Vec::new() }
    }

    fn rows(&self) -> Vec<FrontendReport> {
        reports::frontends(&self.host.engine.snapshot(self.host.now), &Default::default())
    }

    /// The owner of each address according to the kernel.
    fn owners(&self) -> BTreeMap<L4Addr, ServiceName> {
        let mut owners = BTreeMap::new();
        let snapshot = self.host.engine.snapshot(self.host.now);
        for row in self.rows().into_iter().filter(|row| !row.status.is_denied()) {
            let held = snapshot.realised.frontends.get(&row.address);
            if held.is_some_and(|held| {
                snapshot.service_of(held.service).is_some_and(|of| of.starts_with(&format!("{}/TCP", row.service)))
            }) {
                owners.insert(row.address, row.service);
            }
        }
        owners
    }

    fn learn(&mut self, changes: impl IntoIterator<Item = Change>) -> Vec<Change> {
        let changes: Vec<Change> = changes.into_iter().collect();
        self.facts.extend(changes.clone());
        self.facts = facts(&self.facts);
        changes
    }

    fn forget(&mut self, name: &ServiceName) {
        self.facts.retain(|fact| name_of(fact) != Some(name));
    }

    fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Write(entry) => {
                let changes = self.learn(entry.clone());
                self.host.send(changes);
                self.host.settle();
            }
            Step::Remove(name) => {
                let name: ServiceName = name.parse().expect("valid");
                let gone: Vec<Change> =
                    self.facts.iter().filter(|fact| name_of(fact) == Some(&name)).cloned().collect();
                self.forget(&name);
                self.host.send(gone.iter().filter_map(crate::world::removal));
                self.host.settle();
            }
            Step::Restart { added, removed, order, round } => {
                self.learn(added.iter().flatten().cloned());
                removed.iter().for_each(|name| self.forget(&name.parse().expect("valid")));
                self.host.restart();
                let mut sent: Vec<(usize, Change)> =
                    self.facts.iter().cloned().enumerate().map(|(at, fact)| (order[at % order.len()], fact)).collect();
                sent.sort_by_key(|(turn, _)| *turn);
                for changes in sent.chunks(*round) {
                    self.host.send(changes.iter().map(|(_, change)| change.clone()));
                    self.host.round();
                }
                self.host.send_synced();
                self.host.settle();
            }
            Step::RestartWithout { unread, added, written } => self.restart_without(unread, added, written.as_ref())?,
        }
        Ok(())
    }

    /// The services of the unread file stay, whatever else claims their addresses, unless an older
    /// service does.
    fn restart_without(
        &mut self,
        unread: &prop::sample::Index,
        added: &[[Change; 2]],
        written: Option<&[Change; 2]>,
    ) -> Result<(), TestCaseError> {
        let names: Vec<ServiceName> = described(&self.facts).into_keys().collect();
        if names.is_empty() {
            return Ok(());
        }
        let name = unread.get(&names).clone();
        let before = self.host.held();
        let owned: Vec<L4Addr> = self.owners().into_iter().filter(|(_, owner)| *owner == name).map(|it| it.0).collect();
        self.learn(added.iter().flatten().filter(|change| name_of(change) != Some(&name)).cloned());
        self.host.restart();
        let is_read = |change: &&Change| name_of(change) != Some(&name);
        let mut sent: Vec<Change> = self.facts.iter().filter(is_read).cloned().collect();
        self.host.send(sent.clone());
        self.host.send([Change::Synced { source: Source::Files, incomplete: Some("broken.toml".into()) }]);
        self.host.settle();
        if let Some(entry) = written.filter(|entry| entry.iter().all(|change| is_read(&change))) {
            let changes = self.learn(entry.clone());
            sent.extend(changes.clone());
            self.host.send(changes);
            self.host.settle();
        }
        let (held, services) = (self.host.held(), described(&self.facts));
        let rank_of = |name: &ServiceName| services.get(name).map(|service| rank(service));
        for address in owned {
            let is_outranked = described(&facts(&sent))
                .values()
                .any(|other| crate::world::claims_of(other).contains(&address) && Some(rank(other)) < rank_of(&name));
            if !is_outranked {
                prop_assert_eq!(
                    held.frontends.get(&address),
                    before.frontends.get(&address),
                    "{} of {}",
                    address,
                    name
                );
                let entry = before.frontends.get(&address).and_then(|entry| before.services.get(&entry.service));
                let now = held.frontends.get(&address).and_then(|entry| held.services.get(&entry.service));
                prop_assert_eq!(now, entry, "{} of {}", address, name);
            }
        }
        // Now the file is readable.
        self.host.send(self.facts.clone());
        self.host.send_synced();
        self.host.settle();
        Ok(())
    }
}

proptest! {
    #![proptest_config(cases(1_024))]

    #[test]
    fn among_equals_the_owner_keeps_its_address(steps in prop::collection::vec(step(), 1..16)) {
        let mut run = Run::new();
        for step in &steps {
            let (before, ranks) = (run.owners(), ranks(&run.facts));
            run.apply(step)?;
            let (after, services) = (run.owners(), described(&run.facts));
            for (address, owner) in &before {
                let Some(service) = services.get(owner) else { continue };
                if step.changes_twice(owner) {
                    continue;
                }
                if !crate::world::claims_of(service).contains(address) || ranks.get(owner) != Some(&rank(service)) {
                    continue;
                }
                let now = after.get(address);
                if step.is_claimed_in_between(address) {
                    // An older claim may have had the address meanwhile: then any of the others may
                    // get it.
                    continue;
                }
                let is_older = now.and_then(|now| services.get(now)).is_some_and(|now| rank(now) < rank(service));
                prop_assert!(now == Some(owner) || is_older, "{} goes from {} to {:?} by {:?}", address, owner, now, step);
            }
            // Every claimed address has an owner.
            let claimed: BTreeSet<L4Addr> = services.values().flat_map(|it| crate::world::claims_of(it)).collect();
            prop_assert!(claimed.iter().eq(after.keys()), "{:?} {:?}", claimed, after);
        }
    }

    /// Every loss of an address is in the history, with the name of a service, also what happens during a restart.
    #[test]
    fn the_history_tells_who_has_lost_an_address(steps in prop::collection::vec(step(), 1..16)) {
        let mut run = Run::new();
        for step in &steps {
            let (before, last) = (run.owners(), run.host.history.last());
            run.apply(step)?;
            let after = run.owners();
            for (address, owner) in before.iter().filter(|(address, owner)| after.get(address) != Some(owner)) {
                let tells = |event: &Event| {
                    let service = event.port.as_ref().map(|port| &port.service);
                    let is_about = event.frontends.shown.iter().chain(&event.withdrawn.shown).any(|it| it == address);
                    is_about && service.is_some_and(|it| it == owner || Some(it) == after.get(address))
                };
                let reported: Vec<&Event> = run.host.history.after(last).map(|record| &record.event).collect();
                prop_assert!(reported.iter().any(|it| tells(it)), "{} of {} by {:?}: {:?}", address, owner, step, reported);
            }
        }
    }

    /// Without previous state, the first file by name gets the address, whatever the names of the
    /// services.
    #[test]
    fn with_empty_maps_the_first_file_has_the_address(entries in prop::collection::vec(entry(), 1..6), turn in 0..6_usize) {
        let sent = facts(&entries.into_iter().flatten().collect::<Vec<_>>());
        let mut host = Host::new(memory_maps::create(ROOMY, None), [Source::Files], Default::default());
        let mut rotated = sent.clone();
        rotated.rotate_left(turn % sent.len());
        host.send(rotated);
        host.send_synced();
        host.settle();
        let services = described(&sent);
        for row in reports::frontends(&host.engine.snapshot(host.now), &Default::default()) {
            if row.status.is_denied() {
                continue;
            }
            let claimants = services.values().filter(|it| crate::world::claims_of(it).contains(&row.address));
            let first = claimants.min_by_key(|it| (rank(it), &it.origin.object, &it.name)).expect("claimed");
            prop_assert_eq!(&row.service, &first.name);
        }
    }
}

fn ranks(facts: &[Change]) -> BTreeMap<ServiceName, u64> {
    described(facts).into_iter().map(|(name, service)| (name, rank(service))).collect()
}
