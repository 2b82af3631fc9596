//! No event in nodelb's life removes all backends from a frontend that has some before and after:
//! promise 3.

use std::collections::{BTreeMap, BTreeSet};

use nodelb_core::change::Change;
use nodelb_core::model::addr::{Addr, Family, L4Addr};
use nodelb_core::model::service::{ServiceName, Source, TrafficPolicy};
use nodelb_core::state::entries::{MapOp, MapState, ServiceEntry, ServiceId};
use nodelb_core::trace::{Verdict, trace};
use proptest::prelude::*;

use crate::cases;
use crate::model::Host;
use crate::world::{
    CLIENTS, SOURCES, all_passed, changes, changes_and_order, contested, destinations, disputed, facts, guard,
    reordered, settled, without,
};

/// Where a client is.
#[derive(Clone, Copy, Debug)]
enum From {
    ThisNode,
    Outside,
}

/// Every address that a client on the node or outside might connect to.
fn connections() -> impl Iterator<Item = (From, L4Addr)> {
    destinations().into_iter().flat_map(|to| [(From::ThisNode, to), (From::Outside, to)])
}

/// The service that a client reaches at the address, and its possible backends; `None` if there are
/// none.
fn reached(state: &MapState, (from, to): (From, L4Addr)) -> Option<(ServiceId, BTreeSet<L4Addr>)> {
    let (id, slots) = match from {
        From::ThisNode => match trace(state, &guard().nodeport_range, to) {
            Verdict::Forwarded(id, slots) => (id, slots),
            _ => return None,
        },
        From::Outside => {
            let (id, entry, view) = outside(state, to)?;
            (id, if view { &*entry.local } else { &*entry.cluster })
        }
    };
    (!slots.is_empty()).then(|| (id, slots.iter().map(|slot| slot.addr).collect()))
}

/// The service that clients outside reach at the address, and whether they get the local view.
fn outside(state: &MapState, to: L4Addr) -> Option<(ServiceId, &ServiceEntry, bool)> {
    let any = if to.addr.family() == Family::Ipv4 { Addr::UNSPECIFIED_V4 } else { Addr::UNSPECIFIED_V6 };
    let nodeport = || state.outside.get(&L4Addr { addr: any, ..to }).filter(|_| state.node_addrs.contains(&to.addr));
    let entry = state.outside.get(&to).or_else(nodeport)?;
    Some((entry.service, &**state.services.get(&entry.service)?, entry.local))
}

/// The service that a client outside with this address may connect to at the destination.
fn admitting(state: &MapState, client: Addr, to: L4Addr) -> Option<ServiceId> {
    let entry = state.outside.get(&to)?;
    let is_admitted = || state.ranges_of(entry.service).any(|range| range.contains(client));
    (!entry.has_ranges || is_admitted()).then_some(entry.service)
}

/// No operation admits a client to a service at an address that admits it neither before nor after. If the address
/// moves to another service, the old one may already admit the clients in its new ranges.
fn assert_none_is_let_in(before: &MapState, after: &MapState, log: &[(MapOp, bool)]) -> Result<(), TestCaseError> {
    let clients = CLIENTS.map(|text| text.parse::<Addr>().expect("valid"));
    for (state, op) in prefixes(before, log) {
        for (to, client) in state.outside.keys().flat_map(|to| clients.map(|client| (*to, client))) {
            let Some(id) = admitting(&state, client, to) else { continue };
            let led = |then: &MapState| then.outside.get(&to) == state.outside.get(&to);
            let is_in_ranges = |then: &MapState| then.ranges_of(id).any(|range| range.contains(client));
            let is_restricted = state.outside[&to].has_ranges && (led(before) || led(after));
            let may = [before, after]
                .map(|then| is_restricted && is_in_ranges(then) || admitting(then, client, to) == Some(id));
            prop_assert!(may.contains(&true), "{} reaches {} at {} after {:?}", client, id, to, op);
        }
    }
    Ok(())
}

/// All backends in either view of the entry.
fn lists(state: &MapState, id: ServiceId) -> impl Iterator<Item = L4Addr> {
    let entry = state.services.get(&id);
    entry.into_iter().flat_map(|entry| entry.cluster.iter().chain(entry.local.iter())).map(|slot| slot.addr)
}

/// The states after each successful operation, in order.
fn prefixes<'a>(before: &MapState, log: &'a [(MapOp, bool)]) -> impl Iterator<Item = (MapState, &'a MapOp)> {
    let mut state = before.clone();
    log.iter().filter(|(_, is_done)| *is_done).map(move |(op, _)| {
        state.apply(op);
        (state.clone(), op)
    })
}

/// Whether services swap addresses in a cycle: then every order of single operations has a gap.
fn has_circle(before: &MapState, after: &MapState) -> bool {
    let mut moves: BTreeMap<ServiceId, BTreeSet<ServiceId>> = BTreeMap::new();
    for (address, held) in &before.frontends {
        if let Some(wanted) = after.frontends.get(address).filter(|wanted| wanted.service != held.service) {
            moves.entry(held.service).or_default().insert(wanted.service);
        }
    }
    let reaches_itself = |start: &ServiceId| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![*start]);
        while let Some(id) = open.pop() {
            let next = moves.get(&id).into_iter().flatten().copied().filter(|next| seen.insert(*next));
            open.extend(next.collect::<Vec<_>>());
        }
        seen.contains(start)
    };
    moves.keys().any(reaches_itself)
}

/// After every operation, a frontend that has backends before and after has one that is live before
/// or after.
fn assert_no_gap(before: &MapState, after: &MapState, log: &[(MapOp, bool)]) -> Result<(), TestCaseError> {
    for to in connections() {
        let (Some((old, _)), Some((new, _))) = (reached(before, to), reached(after, to)) else { continue };
        let live: BTreeSet<L4Addr> = lists(before, old).chain(lists(after, new)).collect();
        for (state, op) in prefixes(before, log) {
            let Some((_, backends)) = reached(&state, to) else {
                return Err(TestCaseError::fail(format!("{to:?} has no backend after {op:?}")));
            };
            prop_assert!(backends.is_subset(&live), "{:?} leads to {:?} after {:?}", to, backends, op);
        }
    }
    Ok(())
}

/// After every operation, each service that had a backend in the kernel at the start has one.
fn assert_nothing_taken(held: &MapState, log: &[(MapOp, bool)]) -> Result<(), TestCaseError> {
    for to in connections().filter(|to| reached(held, *to).is_some()) {
        for (state, op) in prefixes(held, log) {
            prop_assert!(reached(&state, to).is_some(), "{:?} has no backend after {:?}", to, op);
        }
    }
    Ok(())
}

/// The content of the maps without the addresses of services that both sources describe: there, one
/// description reports that it removes what the other one adds.
fn without_twins(host: &Host, facts: &[Change]) -> MapState {
    let described_by = |source: Source| -> BTreeSet<&ServiceName> {
        let services = facts.iter().filter_map(|change| match change {
            Change::UpsertService(service) if service.source == source => Some(&service.name),
            _ => None,
        });
        services.collect()
    };
    let twins = &described_by(SOURCES[0]) & &described_by(SOURCES[1]);
    let snapshot = host.engine.snapshot(host.now);
    let ids: BTreeSet<ServiceId> =
        snapshot.ports().filter(|(_, key)| twins.contains(&key.service)).map(|(id, _)| id).collect();
    let held = host.held();
    let frontends = held.frontends.into_iter().filter(|(_, entry)| !ids.contains(&entry.service)).collect();
    let outside = held.outside.into_iter().filter(|(_, entry)| !ids.contains(&entry.service)).collect();
    MapState { frontends, outside, ..held }
}

fn synced(index: usize) -> Change {
    Change::Synced { source: SOURCES[index], incomplete: None }
}

/// A change to an existing object, so that changes of one round affect each other.
#[derive(Clone, Debug)]
enum Tweak {
    FlipInternalPolicy,
    /// Moves all backends to this node.
    MoveTo(&'static str),
    /// Gives the addresses of a service to another one, which gets the index of the first again.
    SwapPorts(prop::sample::Index),
}

fn tweaks() -> impl Strategy<Value = Vec<(prop::sample::Index, Tweak)>> {
    let tweak = prop_oneof![
        2 => Just(Tweak::FlipInternalPolicy),
        2 => prop::sample::select(&["n1", "n2"]).prop_map(Tweak::MoveTo),
        1 => any::<prop::sample::Index>().prop_map(Tweak::SwapPorts),
    ];
    prop::collection::vec((any::<prop::sample::Index>(), tweak), 0..8)
}

/// Applies the tweaks to the facts; returns the changes.
fn tweaked(facts: &mut [Change], tweaks: &[(prop::sample::Index, Tweak)]) -> Vec<Change> {
    let mut changed = Vec::new();
    for (index, tweak) in tweaks.iter().filter(|_| !facts.is_empty()).collect::<Vec<_>>() {
        let at = index.index(facts.len());
        match (&mut facts[at], tweak) {
            (Change::UpsertService(service), Tweak::FlipInternalPolicy) => {
                service.internal_policy = match service.internal_policy {
                    TrafficPolicy::Cluster => TrafficPolicy::Local,
                    TrafficPolicy::Local => TrafficPolicy::Cluster,
                };
            }
            (Change::UpsertSlice(slice), Tweak::MoveTo(node)) => {
                let backends = slice.ports.iter_mut().flat_map(|port| &mut port.backends);
                backends.for_each(|backend| backend.node = Some((*node).into()));
            }
            (Change::UpsertService(service), Tweak::SwapPorts(other)) => {
                let ports = service.ports.clone();
                if let Change::UpsertService(other) = &mut facts[other.index(facts.len())] {
                    let others = std::mem::replace(&mut other.ports, ports);
                    changed.push(Change::UpsertService(other.clone()));
                    if let Change::UpsertService(service) = &mut facts[at] {
                        service.ports = others;
                    }
                }
            }
            _ => continue,
        }
        changed.push(facts[at].clone());
    }
    changed
}

proptest! {
    #![proptest_config(cases(768))]

    #[test]
    fn no_prefix_of_a_round_leaves_a_gap(
        world in changes(32),
        rounds in prop::collection::vec((tweaks(), changes(4)), 1..6),
    ) {
        let mut host = settled(&world);
        let mut sent = facts(&world);
        for (tweaks, changes) in rounds {
            let before = host.held();
            host.send(tweaked(&mut sent, &tweaks));
            host.send(changes.iter().cloned());
            sent.extend(changes);
            sent = facts(&sent);
            host.round();
            let after = host.held();
            if !has_circle(&before, &after) {
                assert_no_gap(&before, &after, &host.maps.log)?;
            }
            assert_none_is_let_in(&before, &after, &host.maps.log)?;
        }
    }

    /// Killed at any time, restarted, and given the same facts in another order, all at once.
    #[test]
    fn a_restart_with_the_same_facts_changes_nothing((world, order) in changes_and_order(24)) {
        let mut host = settled(&world);
        let held = host.held();
        host.restart();
        let order: Vec<usize> = order.into_iter().filter(|index| *index < facts(&world).len()).collect();
        host.send(reordered(&facts(&world), &order));
        host.round();
        assert_nothing_taken(&held, &host.maps.log)?;
        host.send_synced();
        host.settle();
        let again = host.held();
        prop_assert_eq!(&again.frontends, &held.frontends);
        prop_assert_eq!(&again.node_addrs, &held.node_addrs);
        prop_assert_eq!((&again.outside, &again.uplinks), (&held.outside, &held.uplinks));
        for entry in held.frontends.values() {
            prop_assert_eq!(again.services.get(&entry.service), held.services.get(&entry.service));
        }
        // An entry without references cannot be identified and may get another id. Otherwise
        // nothing changes at all.
        let is_unpointed = |id: ServiceId| !held.frontends.values().any(|entry| entry.service == id);
        if !held.services.keys().copied().any(is_unpointed) {
            prop_assert_eq!(&host.maps.log, &[]);
        }
    }

    /// Restarted with different facts, which arrive one by one, files first: nothing is removed
    /// before all sources have synced.
    #[test]
    fn nothing_is_removed_before_all_sources_have_synced(
        world in changes(24),
        meanwhile in changes(12),
        first in 0..2_usize,
        is_incomplete: bool,
    ) {
        let mut host = settled(&world);
        let all: Vec<Change> = world.iter().chain(&meanwhile).cloned().collect();
        let held = without_twins(&host, &facts(&all));
        host.restart();
        let mut log = Vec::new();
        let is_of = |change: &&Change, index: usize| match change {
            Change::UpsertService(service) => service.source == SOURCES[index],
            Change::UpsertSlice(slice) => slice.source == SOURCES[index],
            _ => index == first,
        };
        for index in [first, 1 - first] {
            for change in facts(&all).iter().filter(|change| is_of(change, index)) {
                host.send([change.clone()]);
                host.round();
                log.append(&mut host.maps.log);
            }
            if index == first || is_incomplete {
                let incomplete = is_incomplete.then(|| "web.toml: line 3".into());
                host.send([Change::Synced { source: SOURCES[index], incomplete }]);
            }
            host.round();
            log.append(&mut host.maps.log);
        }
        // NodePorts are accepted on the node's addresses; only the node and its Node object can
        // remove an address.
        let then = settled(&facts(&all)).held();
        let addrs = then.node_addrs.intersection(held.node_addrs.clone());
        // A source may report that an address is not for clients outside any more. Of several services with the address, the one
        // that had it may do so, before the one that will have it arrives.
        let contested = contested(&facts(&all));
        let is_outside = |to: &L4Addr| then.outside.contains_key(to) && !contested.contains(to);
        let outside = held.outside.into_iter().filter(|(to, _)| is_outside(to)).collect();
        assert_nothing_taken(&MapState { node_addrs: addrs, outside, ..held }, &log)?;
        if !facts(&all).iter().any(|change| matches!(change, Change::NodeObject(_))) {
            // NodePorts stay where they are until Kubernetes has sent the Node object or reported
            // that there is none.
            host.send([Change::NodeObject(None)]);
        }
        host.send([synced(0), synced(1)]);
        // Until they are checked, backends are as the maps had them.
        host.send(all_passed());
        host.settle();
        let then = settled(&[facts(&all), all_passed()].concat());
        let disputed = disputed(&facts(&all));
        prop_assert_eq!(without(&host.text(), &disputed), without(&then.text(), &disputed));
    }
}
