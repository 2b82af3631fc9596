//! Maps that fail one operation in ten, and maps that are too small: desired entries arrive
//! eventually, and removed ones do not leak.

use std::collections::BTreeSet;

use nodelb_core::change::Change;
use nodelb_core::datapath::{Datapath, Limits};
use nodelb_core::engine::EngineSizes;
use nodelb_core::model::addr::Addr;
use nodelb_core::model::service::FrontendKind;
use nodelb_core::packets::admission::Refusal;
use nodelb_core::state::entries::backends_of;
use nodelb_core::trace::{Verdict, admits, trace};
use nodelb_report::explain::explanation::{self, Client, ConnectResult};
use nodelb_report::explain::reports;
use proptest::prelude::*;

use crate::cases;
use crate::memory_maps;
use crate::model::{Host, Maps, ROOMY};
use crate::world::{changes, destinations, facts, guard, host, host_with, removal};

fn empty_sizes() -> EngineSizes {
    let mut host = host();
    host.send_synced();
    host.settle();
    host.engine.sizes()
}

/// Removes all facts and checks that nothing is left.
fn assert_nothing_leaks(host: &mut Host, changes: &[Change]) -> Result<(), TestCaseError> {
    host.send(facts(changes).iter().filter_map(removal));
    host.send_synced();
    prop_assert!(host.settle(), "empty, and still something to do");
    prop_assert_eq!(host.engine.sizes(), empty_sizes());
    prop_assert_eq!(Maps::slots_used(&host.maps.maps), 0);
    prop_assert_eq!(host.text(), "");
    prop_assert_eq!(&host.held(), &host.engine.snapshot(host.now).desired);
    Ok(())
}

/// The report of every address matches the behaviour of the maps, and every missing entry has an
/// error.
fn assert_reports_are_true(host: &Host) -> Result<(), TestCaseError> {
    let (held, snapshot) = (host.held(), host.engine.snapshot(host.now));
    let addresses: Vec<Addr> = snapshot.facts.node().addresses.iter().copied().collect();
    for to in destinations() {
        let explanation = explanation::explain(&snapshot, to, Client::Host);
        let end = match trace(&held, &guard().nodeport_range, to) {
            Verdict::Forwarded(..) | Verdict::Refused(..) if !admits(&held, to, &addresses) => {
                ConnectResult::Refused(Refusal::NotAdmitted)
            }
            Verdict::Forwarded(_, slots) => ConnectResult::Forwarded(backends_of(slots).count()),
            Verdict::Refused(_, errno) => ConnectResult::Refused(errno),
            Verdict::PassedThrough => ConnectResult::PassedThrough,
        };
        let is_explained = explanation.found.as_ref().is_some_and(|found| !found.is_in_kernel)
            && explanation.claims.first().is_some_and(|row| row.error.is_some());
        prop_assert!(
            explanation.result == end || is_explained,
            "{} is explained as {:?} but ends as {:?}",
            to,
            explanation.result,
            end
        );
    }
    let reported: BTreeSet<Addr> = snapshot.unanswered_node_addrs().map(|(addr, _)| addr).collect();
    let missing: BTreeSet<Addr> =
        snapshot.desired.node_addrs.iter().filter(|a| !held.node_addrs.contains(*a)).copied().collect();
    prop_assert_eq!(&reported, &missing, "the node's addresses that the maps lack are reported, and no others");
    for row in
        reports::frontends(&snapshot, &Default::default()).iter().filter(|row| row.kind == FrontendKind::NodePort)
    {
        let of_family = |addr: &&Addr| addr.family() == row.address.addr.family();
        if let Some(first) = missing.iter().find(of_family).filter(|_| row.status.is_in_maps()) {
            let error = row.error.as_deref().unwrap_or_default();
            // A row has one error, and the lack of a usable backend has priority.
            prop_assert!(
                error.contains(&first.to_string()) || row.backends.is_empty(),
                "{} lacks {}: {}",
                row.address,
                first,
                error
            );
        }
    }
    Ok(())
}

fn tight() -> impl Strategy<Value = Limits> {
    let packets = (0..4_u32, 0..3_u32);
    (2..8_u32, 2..8_u32, 0..400_u32, packets).prop_map(|(frontends, services, slots, (outside, source_ranges))| {
        Limits { frontends, services, slots, affinity: 1, outside, source_ranges }
    })
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn one_failure_in_ten_delays_and_leaks_nothing(changes in changes(40), seed in any::<u64>()) {
        let mut host = host_with(memory_maps::create(ROOMY, Some(seed)));
        for (index, change) in changes.iter().enumerate() {
            host.send([change.clone()]);
            host.round();
            if index == changes.len() / 3 {
                host.send_synced();
            }
            if index == changes.len() / 2 {
                host.restart();
                host.send(facts(&changes[..=index]));
                host.send_synced();
            }
        }
        host.send_synced();
        prop_assert!(host.settle(), "seed {}", seed);
        prop_assert_eq!(&host.held(), &host.engine.snapshot(host.now).desired);
        prop_assert_eq!(host.engine.sizes().failed, 0);
        assert_nothing_leaks(&mut host, &changes)?;
    }

    /// Where the maps for outside clients are full, the addresses show it, and everything else is as if they were not.
    #[test]
    fn full_maps_of_outside_clients_concern_only_them(changes in changes(32), outside in 0..4_u32, ranges in 0..3_u32) {
        let limits = Limits { outside, source_ranges: ranges, ..ROOMY };
        let mut hosts = [limits, ROOMY].map(|limits| host_with(memory_maps::create(limits, None)));
        for host in &mut hosts {
            host.send(changes.iter().cloned());
            host.send_synced();
            host.settle();
        }
        let [tight, roomy] = hosts;
        let (held, all) = (tight.held(), roomy.held());
        prop_assert_eq!((&held.frontends, &held.services, &held.node_addrs), (&all.frontends, &all.services, &all.node_addrs));
        prop_assert_eq!(held.outside.len(), all.outside.len().min(outside as usize));
        prop_assert_eq!(held.source_ranges.len(), all.source_ranges.len().min(ranges as usize));
        let rows = reports::frontends(&tight.engine.snapshot(tight.now), &Default::default());
        for (address, entry) in &all.outside {
            let row = rows.iter().find(|row| row.address == *address).expect("an outside frontend is a frontend");
            let lacks_range = all.ranges_of(entry.service).any(|range| !held.source_ranges.contains(&(entry.service, range)));
            let is_whole = held.outside.contains_key(address) && !(entry.has_ranges && lacks_range);
            let text = row.error.clone().unwrap_or_default();
            prop_assert_eq!(text.contains("packets.max-outside") || text.contains("packets.max-source-ranges"), !is_whole, "{}", text);
        }
    }

    /// Entries that fit work, and the others report which map is full; neither leak.
    #[test]
    fn full_maps_keep_what_fits_and_leak_nothing(
        changes in changes(40),
        (limits, node_addrs) in (tight(), 0..3_u32),
        seed in any::<Option<u64>>(),
    ) {
        let maps = memory_maps::create(limits, seed).with_node_addrs(node_addrs);
        let mut host = host_with(maps);
        host.send_synced();
        for change in &changes {
            host.send([change.clone()]);
            host.round();
            prop_assert!(host.held().frontends.len() <= host.maps.limits().frontends as usize);
        }
        host.settle();
        host.maps.maps.clear_fault();
        host.settle();
        let snapshot = host.engine.snapshot(host.now);
        for row in reports::frontends(&snapshot, &Default::default()) {
            let text = row.error.unwrap_or_default();
            let is_done = row.status.is_in_maps();
            // A frontend can be in the desired state although all its backends are refused, unhealthy or drained,
            let is_about_backends = ["refused", "health checks", "drained"].iter().any(|why| text.contains(why));
            let mentions_backends = is_done && row.backends.is_empty() && is_about_backends;
            // or although the node has no address that accepts it.
            let mentions_addresses = is_done && (text.starts_with("not answered: ") || text.starts_with("not answered on"));
            prop_assert!(is_done == text.is_empty() || mentions_backends || mentions_addresses, "{:?} {}", row.status, text);
        }
        assert_reports_are_true(&host)?;
        assert_nothing_leaks(&mut host, &changes)?;
    }
}
