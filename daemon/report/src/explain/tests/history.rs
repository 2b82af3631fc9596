use nodelb_core::history::{Addresses, Event, Kernel, Stamp, What};
use nodelb_core::model::addr::{Family, Protocol};
use nodelb_core::model::cause::Cause;
use nodelb_core::model::service::{PortKey, Source};

use super::*;

#[path = "../../../../core/src/tests/history/rig.rs"]
mod rig;
use rig::*;

#[test]
fn an_address_selects_the_events_that_name_it_and_those_of_its_services() {
    let mut history = History::default();
    let removed = [l4("192.0.2.1:8080")].into_iter().collect();
    history.add(Event { removed, ..changed("shop/web") }, at(1));
    history.add(changed("shop/web"), at(1));
    history.add(changed("shop/other"), at(1));
    let filter = |addr: &str| Filter { address: Some(addr.parse().expect("valid in a test")), ..Filter::default() };
    assert_eq!(sequences(&select(&history, &filter("192.0.2.1"), &BTreeSet::new())), [1]);
    assert!(select(&history, &filter("192.0.2.10"), &BTreeSet::new()).is_empty());
    let behind = BTreeSet::from([key("shop/web").service.clone()]);
    assert_eq!(sequences(&select(&history, &filter("198.51.100.1"), &behind)), [1, 2]);
}

/// The address moved from one service to another, and the records show both, until each gave it up.
#[test]
fn an_address_selects_the_events_of_its_former_services_until_they_gave_it_up() {
    let mut history = History::default();
    let addresses = || [l4("198.51.100.1:80")].into_iter().collect::<Addresses>();
    history.add(changed("shop/web"), at(1));
    history.add(Event { withdrawn: addresses(), ..changed("shop/web") }, at(2));
    history.add(changed("shop/web"), at(3));
    history.add(Event { frontends: addresses(), ..event("shop/new", What::Added, Kernel::Done) }, at(3));
    history.add(changed("shop/other"), at(4));
    let filter = Filter { address: Some(l4("198.51.100.1:80").addr), ..Filter::default() };
    assert_eq!(sequences(&select(&history, &filter, &BTreeSet::new())), [1, 2, 4]);
    let last = last_withdrawal(&history, &[l4("198.51.100.1:80")]).expect("it is recorded");
    assert_eq!((last.sequence, last.event.port.as_ref()), (2, Some(&key("shop/web"))));
    assert!(last_withdrawal(&history, &[l4("198.51.100.1:81")]).is_none(), "another port");

    let mut restored = History::default();
    history.after(0).for_each(|record| restored.restore(Record::clone(record)));
    assert_eq!(last_withdrawal(&restored, &[l4("198.51.100.1:80")]).map(|record| record.sequence), Some(2));
    let service = Filter { service: Some("shop/web".parse().expect("valid in a test")), ..filter };
    assert_eq!(sequences(&select(&restored, &service, &BTreeSet::new())), [1, 2]);
}
