use ipnet::IpNet;

use super::*;
use crate::state::entries::FrontendEntry;

const LIMITS: Limits = Limits { services: 64, frontends: 64, slots: 64, affinity: 1, outside: 64, source_ranges: 1 };

fn put(number: u8, id: u32) -> MapOp {
    let address = format!("203.0.113.{number}:80/TCP").parse().expect("an address");
    MapOp::PutFrontend(address, FrontendEntry { service: ServiceId(id), inside_local: false, outside_local: false })
}

#[test]
fn the_last_part_is_for_those_that_hold_less_than_is_left() {
    assert!(may_take(64, 3, 60, 1), "two stay");
    assert!(!may_take(64, 2, 60, 1));
    assert!(may_take(64, 2, 1, 1) && !may_take(64, 2, 2, 1));
    assert!(may_take(64, 1, 0, 1) && !may_take(64, 0, 0, 1));
    assert!(may_take(31, 1, 30, 1), "a small bound has no last part");
}

#[test]
fn operations_of_one_batch_count_together() {
    let mut shares = Shares::new(&Realised::default());
    shares.own(ServiceId(1), &"b".into());
    shares.own(ServiceId(2), &"m".into());
    let mut ops: Vec<MapOp> = (0..80).map(|number| put(number, 1)).chain([put(100, 2), put(101, 2)]).collect();
    let refused = shares.take_out(&mut ops, (&Realised::default(), LIMITS), |_, _, _| false);
    assert_eq!((ops.len(), refused.len()), (63, 19), "62 of the one, and half of the rest of the other");
    let mut ops = vec![put(0, 1)];
    shares.take_out(&mut ops, (&Realised::default(), Limits { frontends: 1, ..LIMITS }), |_, _, _| false);
    assert_eq!(ops.len(), 1);
}

#[test]
fn what_may_be_of_a_namespace_counts_for_it() {
    let mut realised = Realised::default();
    (0..61).for_each(|number| realised.apply(&put(number, 1)));
    let mut shares = Shares::new(&realised);
    assert_eq!((shares.held("b", Bound::Frontends), shares.held("m", Bound::Frontends)), (61, 61));
    shares.own(ServiceId(1), &"b".into());
    assert_eq!((shares.held("b", Bound::Frontends), shares.held("m", Bound::Frontends)), (61, 0));
    assert_eq!((shares.held("b", Bound::Services), shares.held("m", Bound::Services)), (1, 0));
    (0..61).for_each(|_| shares.note_lead(Bound::Frontends, Some(ServiceId(1)), None));
    shares.forget(ServiceId(1));
    assert_eq!((shares.held("b", Bound::Frontends), shares.left(Bound::Frontends, LIMITS)), (0, 64));
    assert_eq!((shares.by_id.len(), shares.by_namespace.len()), (1, 1), "the canary");
}

#[test]
fn source_ranges_count_for_the_namespace_of_their_service() {
    let put = |id, last| {
        let range = format!("10.0.0.{last}/32").parse::<IpNet>().expect("a network");
        MapOp::PutSourceRange(ServiceId(id), range.into())
    };
    let mut realised = Realised::default();
    (0..61).for_each(|last| realised.apply(&put(1, last)));
    let mut shares = Shares::new(&realised);
    shares.own(ServiceId(1), &"b".into());
    shares.own(ServiceId(2), &"m".into());
    let limits = Limits { source_ranges: 64, ..LIMITS };
    // One that is there, two of the namespace with many, and two of another one.
    let mut ops = vec![put(1, 0), put(1, 100), put(1, 101), put(2, 0), put(2, 1)];
    let refused = shares.take_out(&mut ops, (&realised, limits), |_, _, _| false);
    assert_eq!(ops, [put(1, 0), put(1, 100), put(2, 0)]);
    assert_eq!(refused.len(), 2);
}

/// In a full map, the old address of a service is removed before the new one fits: it then counted as a new service.
#[test]
fn what_a_service_had_is_known_after_its_removal() {
    let mut shares = Shares::new(&Realised::default());
    shares.own(ServiceId(1), &"b".into());
    shares.note_lead(Bound::Frontends, None, Some(ServiceId(1)));
    shares.note_lead(Bound::Frontends, Some(ServiceId(1)), None);
    assert_eq!((shares.count(ServiceId(1), Bound::Frontends), shares.most(ServiceId(1), Bound::Frontends)), (0, 1));
    shares.forget(ServiceId(1));
    assert_eq!(shares.most(ServiceId(1), Bound::Frontends), 0);
}
