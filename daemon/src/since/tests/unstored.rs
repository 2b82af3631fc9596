use nodelb_core::history::{Addresses, History, Stamp};
use nodelb_core::model::addr::{Family, Protocol};
use nodelb_core::model::service::Source;
use nodelb_core::state::entries::{FrontendEntry, ServiceEntry, ServiceId};
use nodelb_core::state::slot::{BackendId, Slot};

use super::*;

const WEB: &str = "198.51.100.1:80/TCP";
const BACKEND: &str = "192.0.2.1:80/TCP";

fn at(text: &str) -> L4Addr {
    text.parse().unwrap()
}

fn port() -> PortKey {
    let service = "shop/web".parse().unwrap();
    PortKey { service, port: "http".into(), protocol: Protocol::Tcp, family: Family::Ipv4 }
}

/// Maps with shop/web, with a backend or without.
fn maps(has_backends: bool) -> MapState {
    let slots = has_backends.then(|| Slot { addr: at(BACKEND), backend: BackendId(1) });
    let cluster: Arc<[Slot]> = slots.into_iter().collect();
    let tag = Some(OwnerTag::new(&port(), Source::Files));
    let entry = ServiceEntry { local: Arc::clone(&cluster), cluster, has_backends, tag, ..ServiceEntry::default() };
    let frontend = FrontendEntry { service: ServiceId(1), inside_local: false, outside_local: false };
    let mut maps = MapState::default();
    maps.services.insert(ServiceId(1), Arc::new(entry));
    maps.frontends.insert(at(WEB), frontend);
    maps
}

fn stored(status: Status, since: u64) -> Statuses {
    let (service, _) = OwnerTag::hashes_of(&port());
    [((at(WEB), service), Lasting { status, since: Moment(since) })].into_iter().collect()
}

/// Events of these times: with their backend that came, and the addresses that they are about.
fn records(events: &[(u64, What, bool, bool)]) -> Vec<Record> {
    let mut history = History::default();
    for (time, what, has_added, is_about) in events {
        let list = |is_there: bool, text| is_there.then(|| at(text)).into_iter().collect::<Addresses>();
        let event = Event::for_port(&Arc::new(port()), Some(Source::Files), *what, Cause::default());
        let event = Event { added: list(*has_added, BACKEND), frontends: list(*is_about, WEB), ..event };
        history.add(event, Stamp { at: *time, to_kernel: 0 });
    }
    history.after(0).map(|record| Record::clone(record)).collect()
}

fn followed(mut statuses: Statuses, records: &[Record], maps: &MapState) -> Vec<(Status, u64)> {
    follow(&mut statuses, records, maps, |at| Some(Moment(at.checked_sub(1_000)?)));
    statuses.values().map(|it| (it.status, it.since.0)).collect()
}

/// nodelb was killed 200 ms after an outage had ended.
#[test]
fn an_event_that_is_later_than_the_stored_status_decides_since_when() {
    let outage = [(2_000, What::Emptied, false, false), (5_000, What::Changed, true, false)];
    assert_eq!(followed(stored(Status::NoBackends, 1_000), &records(&outage), &maps(true)), [(Status::Ok, 4_000)]);
    // The stored status is older than both.
    assert_eq!(followed(stored(Status::Ok, 7), &records(&outage), &maps(true)), [(Status::Ok, 4_000)]);
    assert_eq!(followed(stored(Status::Ok, 7), &records(&outage[..1]), &maps(false)), [(Status::NoBackends, 1_000)]);
    // It is up to date.
    let more = [outage[0], outage[1], (9_000, What::Changed, true, false)];
    assert_eq!(followed(stored(Status::Ok, 4_000), &records(&more), &maps(true)), [(Status::Ok, 4_000)]);
    // A new address, which was not stored at all.
    let added = records(&[(3_000, What::Added, true, true)]);
    assert_eq!(followed(Statuses::new(), &added, &maps(true)), [(Status::Ok, 2_000)]);
    let added = records(&[(3_000, What::Added, false, true)]);
    assert_eq!(followed(Statuses::new(), &added, &maps(false)), [(Status::NoBackends, 2_000)]);
    // An event before the boot.
    assert_eq!(followed(Statuses::new(), &records(&[(999, What::Added, true, true)]), &maps(true)), []);
}

#[test]
fn checks_and_holds_are_followed() {
    let turns = [(2_000, What::LastResort), (3_000, What::Recovered), (4_000, What::Held), (5_000, What::Released)];
    let turns = turns.map(|(at, what)| (at, what, false, false));
    let expected = [Status::LastResort, Status::Ok, Status::Held, Status::Ok];
    for (count, status) in (1..).zip(expected) {
        let since = u64::try_from(count).unwrap() * 1_000;
        let found = followed(stored(Status::Ok, 7), &records(&turns[..count]), &maps(true));
        assert_eq!(found, [(status, since)]);
    }
    // The end of Kept changes nothing.
    let confirmed = records(&[(2_000, What::Released, false, false)]);
    assert_eq!(followed(stored(Status::Ok, 7), &confirmed, &maps(true)), [(Status::Ok, 7)]);
}

#[test]
fn what_the_maps_refute_is_not_believed() {
    let refilled = records(&[(5_000, What::Changed, true, false)]);
    assert_eq!(followed(stored(Status::NoBackends, 7), &refilled, &maps(false)), [(Status::NoBackends, 7)]);
    let mut failed = refilled;
    failed[0].event.kernel = Kernel::Failed("full".into());
    assert_eq!(followed(stored(Status::NoBackends, 7), &failed, &maps(true)), [(Status::NoBackends, 7)]);
}

#[test]
fn a_change_that_was_not_stored_at_all_is_an_event_that_claims_no_time_and_no_cause() {
    let found = |status, has_backends| {
        let events = unrecorded(&stored(status, 7), &[port()], &maps(has_backends));
        events.iter().map(|event| (event.what, event.frontends.shown.clone())).collect::<Vec<_>>()
    };
    assert_eq!(found(Status::NoBackends, true), [(What::Changed, vec![at(WEB)])]);
    assert_eq!(found(Status::Ok, false), [(What::Emptied, vec![at(WEB)])]);
    assert_eq!(found(Status::LastResort, true), []);
    assert_eq!(found(Status::NoBackends, false), []);
    assert_eq!(found(Status::Refused, true), [], "the maps had it for a reason that is in the history");
    assert_eq!(unrecorded(&stored(Status::Ok, 7), &[], &maps(false)), [], "its name is not known");
}
