use std::sync::Arc;

use super::MANY;
use crate::change::Change;
use crate::model::service::{Service, ServiceName, Source};
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
