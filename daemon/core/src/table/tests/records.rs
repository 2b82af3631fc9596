use std::sync::Arc;

use super::MANY;
use crate::change::Change;
use crate::model::service::{Origin, Service, ServiceName, Slice, SliceName, Source};
use crate::table::Table;

fn name(number: usize) -> ServiceName {
    ServiceName::new("a", &format!("s{number}"))
}

/// A round finds the record of each service, whether its name is that of the record or another copy, and whether or not
/// it was worthwhile to visit all records first.
#[test]
fn services_are_found_by_place_and_by_name() {
    let mut table = Table::default();
    for number in 0..MANY {
        table.apply(Change::UpsertService(Service::new(name(number), Source::Files)));
    }
    let names: Vec<ServiceName> = table.names().cloned().collect();
    let records = table.records();
    for count in [1, MANY] {
        let search = records.search(count);
        for known in &names {
            let copy = ServiceName::new(&known.namespace, &known.name);
            let found = [known, &copy].map(|name| search.owner(name).expect("described"));
            let expected = table.owner(known).expect("described");
            assert!(found.iter().all(|(service, _)| Arc::ptr_eq(service, expected.0)), "{known}, {count} searches");
        }
        assert!(search.owner(&name(MANY)).is_none());
    }
}

/// A service that is reported after its slices is found by the address of the name that they made it dirty with.
#[test]
fn a_record_keeps_the_name_that_its_slices_have() {
    let (mut table, service) = (Table::default(), name(1));
    let slice = Slice {
        name: SliceName::new("a", "slice"),
        service: service.clone(),
        source: Source::Files,
        origin: Origin::default(),
        ports: Vec::new(),
        problem: None,
    };
    table.apply(Change::UpsertSlice(slice));
    table.apply(Change::UpsertService(Service::new(name(1), Source::Files)));
    assert_eq!(table.names().map(ServiceName::place).collect::<Vec<_>>(), [service.place()]);
}
