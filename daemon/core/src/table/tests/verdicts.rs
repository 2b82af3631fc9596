use std::collections::BTreeSet;
use std::sync::Arc;

use crate::change::Change;
use crate::model::addr::{Addr, L4Addr, Protocol};
use crate::model::health_check::HealthCheck;
use crate::model::service::{Backend, BackendState, Origin, Service, ServiceName, Slice, SliceName, SlicePort, Source};
use crate::state::entries::{MapState, ServiceEntry, ServiceId, Slot};
use crate::state::ids::BackendIds;
use crate::state::owner::{OwnerTag, hash_of};
use crate::table::Table;

fn name() -> ServiceName {
    ServiceName::new("shop", "web")
}

fn addr(last: u8) -> Addr {
    format!("192.0.2.{last}").parse().expect("valid")
}

/// A service whose backends are unhealthy until they are checked.
fn described(source: Source) -> Change {
    let check = HealthCheck { starts_healthy: false, ..HealthCheck::default() };
    Change::UpsertService(Service { health_check: Some(Arc::new(check)), ..Service::new(name(), source) })
}

fn listed_as(source: Source, protocol: Protocol, backends: Vec<Backend>) -> Change {
    Change::UpsertSlice(Slice {
        name: SliceName::new("shop", "web"),
        service: name(),
        source,
        origin: Origin::default(),
        ports: vec![SlicePort { name: "".into(), protocol, backends }],
        problem: None,
    })
}

fn listed(lasts: &[u8]) -> Change {
    listed_as(Source::Files, Protocol::Tcp, lasts.iter().map(|last| Backend::new(addr(*last), 80)).collect())
}

fn passed(lasts: &[u8]) -> Change {
    Change::Passed(name(), lasts.iter().map(|last| (addr(*last), 80)).collect())
}

fn synced() -> Change {
    Change::Synced { source: Source::Files, incomplete: None }
}

/// A table of a start with these backends of the file source in the maps.
fn table(used: &[u8], unchecked: &BTreeSet<Source>) -> Table {
    let mut ids = BackendIds::new(&MapState::default());
    let view: Vec<(L4Addr, u16)> = used.iter().map(|last| (L4Addr::new(addr(*last), 80, Protocol::Tcp), 1)).collect();
    let cluster: Arc<[Slot]> = ids.replace(&[], &view).0;
    let tag = Some(OwnerTag { source: Source::Files, service: hash_of(&name()), port: 0 });
    let mut maps = MapState::default();
    maps.services.insert(ServiceId(1), Arc::new(ServiceEntry { cluster, tag, ..ServiceEntry::default() }));
    Table::new(&maps, unchecked)
}

/// The last numbers of the unhealthy backends after these changes.
fn unhealthy(table: &mut Table, changes: impl IntoIterator<Item = Change>) -> Vec<String> {
    changes.into_iter().for_each(|change| drop(table.apply(change)));
    let failed = table.quarantine(&name()).cloned().unwrap_or_default();
    failed.into_keys().map(|(addr, _)| addr.to_string().replace("192.0.2.", "")).collect()
}

#[test]
fn a_backend_without_a_result_is_as_its_service_says() {
    let mut table = table(&[], &BTreeSet::new());
    assert_eq!(unhealthy(&mut table, [listed(&[1, 2]), described(Source::Files)]), ["1", "2"]);
    assert_eq!(unhealthy(&mut table, [passed(&[1])]), ["2"]);
    assert_eq!(unhealthy(&mut table, [listed(&[1, 2, 3])]), ["2", "3"], "in the round that lists it");
    let failed = Change::Quarantine(name(), [((addr(1), 80), "refused".into())].into());
    assert_eq!(unhealthy(&mut table, [passed(&[]), failed]), ["1", "2", "3"]);
    assert_eq!(&*table.quarantine(&name()).expect("unhealthy")[&(addr(1), 80)], "refused");
    let healthy = Service { health_check: Some(Arc::default()), ..Service::new(name(), Source::Files) };
    assert_eq!(unhealthy(&mut table, [Change::UpsertService(healthy)]), ["1"]);
    assert_eq!(unhealthy(&mut table, [Change::Quarantine(name(), [].into())]), [""; 0]);
}

#[test]
fn what_is_not_checked_is_not_unhealthy() {
    let mut table = table(&[], &BTreeSet::new());
    let down = Backend { state: BackendState::Maintenance, ..Backend::new(addr(1), 80) };
    let backends = vec![down, Backend { weight: 0, ..Backend::new(addr(2), 80) }];
    assert_eq!(
        unhealthy(&mut table, [described(Source::Files), listed_as(Source::Files, Protocol::Tcp, backends)]),
        [""; 0]
    );
    let udp = listed_as(Source::Files, Protocol::Udp, vec![Backend::new(addr(1), 80)]);
    assert_eq!(unhealthy(&mut table, [udp]), [""; 0]);
}

/// Otherwise no backend of such a source would ever be used.
#[test]
fn a_source_without_checks_has_no_unhealthy_backends() {
    let of_kubernetes = || listed_as(Source::Kubernetes, Protocol::Tcp, vec![Backend::new(addr(1), 80)]);
    for (unchecked, expected) in [(BTreeSet::new(), 1), ([Source::Kubernetes].into(), 0)] {
        let mut table = table(&[], &unchecked);
        assert_eq!(unhealthy(&mut table, [described(Source::Kubernetes), of_kubernetes()]).len(), expected);
    }
}

/// A restart takes no backend out of use.
#[test]
fn a_backend_that_the_maps_had_at_the_start_is_healthy_until_it_has_a_result() {
    let mut table = table(&[1, 2], &BTreeSet::new());
    assert_eq!(unhealthy(&mut table, [listed(&[1, 3]), described(Source::Files)]), ["3"]);
    assert_eq!(
        unhealthy(&mut table, [synced(), listed(&[1, 2])]),
        ["2"],
        "listed after its source had reported everything"
    );
    let failed = Change::Quarantine(name(), [((addr(1), 80), "refused".into())].into());
    assert_eq!(unhealthy(&mut table, [failed]), ["1", "2"]);
}

#[test]
fn a_service_that_is_removed_and_created_again_is_new() {
    let mut table = table(&[1], &BTreeSet::new());
    assert_eq!(unhealthy(&mut table, [listed(&[1]), described(Source::Files)]), [""; 0]);
    let again = [Change::RemoveService(name(), Source::Files), described(Source::Files)];
    assert_eq!(unhealthy(&mut table, again), ["1"]);
}
