//! The final state depends only on the facts, not on the order of changes.

use nodelb_core::change::Change;
use nodelb_core::compile::select::Choice;
use nodelb_core::model::service::{FrontendKind, ServiceName};
use nodelb_core::trace::{self, Verdict};
use nodelb_report::explain::reports;
use nodelb_report::explain::rows::FrontendReport;
use nodelb_report::filter::Filter;
use nodelb_report::rows::described;
use proptest::prelude::*;

use crate::cases;
use crate::model::{Host, dump};
use crate::world::{changes, changes_and_order, disputed, facts, host, reordered, without};

/// A host after these changes, sent at once.
fn host_after(changes: &[Change]) -> Host {
    let mut host = host();
    host.send(changes.iter().cloned());
    host.send_synced();
    host.settle();
    host
}

/// The desired state with names instead of ids, which depend on the order.
fn desired(host: &Host) -> String {
    let snapshot = host.engine.snapshot(host.now);
    dump(&snapshot.desired, |id| snapshot.service_of(id))
}

/// The rows of `/frontends` without their ages, which depend on the order.
fn frontends(host: &Host) -> Vec<FrontendReport> {
    let mut rows = reports::frontends(&host.engine.snapshot(host.now), &Filter::default());
    rows.iter_mut().for_each(|row| row.since = nodelb_core::model::moment::Moment(0));
    rows
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn any_order_ends_in_the_same_desired((changes, order) in changes_and_order(24), rounds in any::<u32>()) {
        let one = host_after(&changes);
        let mut other = host();
        for (index, change) in reordered(&changes, &order).into_iter().enumerate() {
            other.send([change]);
            if rounds >> (index % 32) & 1 == 1 {
                other.round();
            }
        }
        other.send_synced();
        other.settle();
        // Among equals, the first claim has the address: tests/properties/owners.rs.
        let disputed = disputed(&facts(&changes));
        prop_assert_eq!(without(&desired(&one), &disputed), without(&desired(&other), &disputed));
        let rows = |host| frontends(host).into_iter().filter(|row| !disputed.contains(&row.address));
        prop_assert!(rows(&one).eq(rows(&other)));
        prop_assert_eq!(without(&one.text(), &disputed), without(&other.text(), &disputed));
    }

    #[test]
    fn one_change_at_a_time_equals_all_from_scratch(changes in changes(24)) {
        let mut one = host();
        one.send_synced();
        for end in 1..=changes.len() {
            one.send([changes[end - 1].clone()]);
            prop_assert!(one.settle());
            let scratch = host_after(&facts(&changes[..end]));
            let disputed = disputed(&facts(&changes[..end]));
            let (one_desired, scratch) = (without(&desired(&one), &disputed), without(&desired(&scratch), &disputed));
            prop_assert_eq!(one_desired, scratch, "after {} changes", end);
            prop_assert_eq!(&one.held(), &one.engine.snapshot(one.now).desired);
        }
    }

    /// Step 4 of the incident.
    #[test]
    fn an_unused_fact_causes_no_operation(changes in changes(24), version in "[0-9]{1,4}") {
        let mut host = host_after(&changes);
        host.send(facts(&changes).into_iter().map(|change| match change {
            Change::UpsertService(mut service) => {
                service.origin.resource_version = version.as_str().into();
                Change::UpsertService(service)
            }
            Change::UpsertSlice(mut slice) => {
                slice.origin.resource_version = version.as_str().into();
                Change::UpsertSlice(slice)
            }
            other => other,
        }));
        let round = host.round();
        prop_assert_eq!((round.compiled.len(), host.maps.log.len()), (0, 0));
    }

    #[test]
    fn reports_agree_with_what_the_kernel_holds(changes in changes(24)) {
        let host = host_after(&changes);
        let snapshot = host.engine.snapshot(host.now);
        let rows = reports::frontends(&snapshot, &Filter::default());
        let owners: Vec<&FrontendReport> = rows.iter().filter(|row| row.status.is_in_maps()).collect();
        // A frontend in the desired state has an error only if all its backends are refused, or if
        // it is accepted on no address of the node.
        let is_explained = |row: &FrontendReport| match &row.error {
            Some(_) => row.status.is_denied() || row.backends.is_empty() || row.kind == FrontendKind::NodePort,
            None => !row.status.is_denied(),
        };
        prop_assert!(rows.iter().all(is_explained));
        let (held, canaries) = (host.held(), 2);
        prop_assert_eq!(owners.len(), held.frontends.len() - canaries);
        for row in &owners {
            let entry = held.frontends.get(&row.address);
            let name = entry.and_then(|entry| snapshot.service_of(entry.service)).unwrap_or_default();
            prop_assert!(name.starts_with(&format!("{}", row.service)), "{} at {}", name, row.address);
            if row.kind == FrontendKind::NodePort {
                continue;
            }
            let reached: Vec<_> = match trace::verdict(&snapshot, row.address) {
                Verdict::Forwarded(_, slots) => slots.chunk_by(|a, b| a.addr == b.addr).map(|run| run[0].addr).collect(),
                _ => Vec::new(),
            };
            prop_assert_eq!(&row.backends, &reached);
        }
    }

    #[test]
    fn filters_only_narrow(changes in changes(24)) {
        let host = host_after(&changes);
        let snapshot = host.engine.snapshot(host.now);
        let frontends = reports::frontends(&snapshot, &Filter::default());
        let backends = reports::backends(&snapshot, &Filter::default());
        for service in described::services(&snapshot, &Filter::default()) {
            let name: ServiceName = service.service.unwrap().parse().unwrap();
            let filter = Filter::for_service(&name);
            let own: Vec<_> = frontends.iter().filter(|row| row.service == name).cloned().collect();
            prop_assert_eq!(reports::frontends(&snapshot, &filter), own);
            let own: Vec<_> = backends.iter().filter(|row| row.service == name).cloned().collect();
            prop_assert!(service.status.is_denied() || service.selectable <= own.len() as u64);
            prop_assert!(own.iter().filter(|row| row.choice == Choice::Selected).count() as u64 >= service.selectable);
            prop_assert_eq!(reports::backends(&snapshot, &filter), own);
        }
        for row in &frontends {
            let filter = Filter { address: Some(row.address.addr), ..Filter::default() };
            let same: Vec<_> = frontends.iter().filter(|r| r.address.addr == row.address.addr).cloned().collect();
            prop_assert_eq!(reports::frontends(&snapshot, &filter), same);
        }
    }
}
