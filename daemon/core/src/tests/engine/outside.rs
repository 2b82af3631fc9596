//! Addresses for clients outside the node, the ranges of these clients, and the uplinks.

use super::rig::{ON, ROOM, backends, engine_on, exposed};
use super::*;
use crate::model::service::TrafficPolicy;
use crate::model::uplink::{Uplink, UplinkEntry};
use crate::state::entries::MAX_UPLINKS;

fn uplink(ifindex: u32) -> Uplink {
    Uplink {
        ifindex,
        name: format!("eth{ifindex}").into(),
        entry: UplinkEntry {
            v4: None,
            v6: None,
            mtu: 1_500,
            l2_length: 14,
            is_v4_source: false,
            is_v6_source: false,
            is_strict: false,
        },
    }
}

/// The lines of the dump that belong to clients outside the node.
fn lines(engine: &Engine, datapath: &MemoryDatapath) -> Vec<String> {
    let text = text(engine, datapath);
    let is_of_outside = |line: &&str| ["outside", "range", "uplink"].iter().any(|kind| line.starts_with(kind));
    text.lines().filter(is_of_outside).map(|line| line.replace(":http/TCP/IPv4", "")).collect()
}

#[test]
fn outside_clients_are_served_at_the_addresses_for_them() {
    let mut datapath = MemoryDatapath::new(ROOM);
    let mut engine = engine_on(&datapath, ON);
    engine.change(Change::UpsertService(exposed(Some(&["192.0.2.128/25", "2001:db8::/32"]))));
    backends(&mut engine);
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    let served = [
        "outside  0.0.0.0:30080/TCP  shop/web  cluster",
        "outside  198.51.100.1:80/TCP  shop/web  cluster  ranges",
        "outside  198.51.100.2:80/TCP  shop/web  cluster",
        "range    192.0.2.128/25  shop/web",
    ];
    assert_eq!(lines(&engine, &datapath), served);
    assert!(text(&engine, &datapath).contains("192.0.2.2:8080/TCP]  bindable  rings\n"));

    let (external_policy, all) = (TrafficPolicy::Local, exposed(Some(&["0.0.0.0/0"])));
    engine.change(Change::UpsertService(Service { external_policy, ..all }));
    let round = engine.reconcile(&mut datapath, Moment(1));
    let served = [
        "outside  0.0.0.0:30080/TCP  shop/web  local",
        "outside  198.51.100.1:80/TCP  shop/web  local",
        "outside  198.51.100.2:80/TCP  shop/web  local",
    ];
    assert_eq!(
        (lines(&engine, &datapath), round.done),
        (served.map(String::from).to_vec(), 8),
        "the service has no ranges any more"
    );

    engine.change(Change::RemoveService(name("shop/web"), Source::Files));
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!((text(&engine, &datapath), datapath.slots_used().0), (String::new(), 0));
}

#[test]
fn cluster_ips_and_rings_need_their_settings() {
    let mut datapath = MemoryDatapath::new(ROOM);
    let mut engine = engine_on(&datapath, PacketsConfig { cluster_ips: true, is_consistent: false, ..ON });
    engine.change(Change::UpsertService(exposed(None)));
    backends(&mut engine);
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    assert_eq!(lines(&engine, &datapath).len(), 4);
    assert!(!text(&engine, &datapath).contains("rings"));

    let mut engine = engine_on(&datapath, PacketsConfig::default());
    engine.change(Change::UpsertService(exposed(Some(&["192.0.2.128/25"]))));
    backends(&mut engine);
    engine.change(Change::Uplinks(vec![uplink(2)]));
    engine.reconcile(&mut datapath, Moment(1));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!(lines(&engine, &datapath), Vec::<String>::new(), "nothing is desired while packets are off");
}

/// The slices of a service often arrive after the service itself.
#[test]
fn a_restart_leads_clients_to_no_empty_list_and_admits_no_other_client() {
    let mut datapath = MemoryDatapath::new(ROOM);
    let mut engine = engine_on(&datapath, ON);
    engine.change(Change::UpsertService(exposed(Some(&["192.0.2.128/25"]))));
    backends(&mut engine);
    engine.change(Change::Uplinks(vec![uplink(2)]));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    let before = lines(&engine, &datapath);

    let mut engine = engine_on(&datapath, ON);
    let (external_policy, changed) = (TrafficPolicy::Local, exposed(None));
    engine.change(Change::UpsertService(Service { external_policy, ..changed }));
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(lines(&engine, &datapath), before, "the source has not reported everything");
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(2));
    let served = [
        "outside  0.0.0.0:30080/TCP  shop/web  local",
        "outside  198.51.100.1:80/TCP  shop/web  local",
        "outside  198.51.100.2:80/TCP  shop/web  local",
        "uplink   2  none  none  mtu=1500 l2=14",
    ];
    assert_eq!(lines(&engine, &datapath), served, "and the uplinks are not reported yet");
}

#[test]
fn uplinks_follow_the_last_report_and_refused_ones_are_named() {
    let mut datapath = MemoryDatapath::new(ROOM);
    let mut engine = engine_on(&datapath, ON);
    engine.change(Change::Uplinks(vec![uplink(2), uplink(3)]));
    engine.reconcile(&mut datapath, Moment(0));
    engine.change(Change::Uplinks(vec![Uplink { entry: UplinkEntry { mtu: 9_000, ..uplink(3).entry }, ..uplink(3) }]));
    let round = engine.reconcile(&mut datapath, Moment(1));
    assert_eq!((lines(&engine, &datapath), round.done), (vec!["uplink   3  none  none  mtu=9000 l2=14".into()], 2));

    engine.change(Change::Uplinks((1..=MAX_UPLINKS + 1).map(uplink).collect()));
    let round = engine.reconcile(&mut datapath, Moment(2));
    let [(device, error)] = &round.refused_uplinks[..] else { panic!("{:?}", round.refused_uplinks) };
    assert_eq!((&**device, error.contains("packets.except")), ("eth257", true), "{error}");
    engine.change(Change::Uplinks((2..=MAX_UPLINKS + 1).map(uplink).collect()));
    let mut accepted = Vec::new();
    for now in [3, 4, 200] {
        accepted.extend(engine.reconcile(&mut datapath, Moment(now)).accepted_uplinks);
    }
    assert_eq!((accepted, engine.sizes().failed), (vec!["eth257".into()], 0));
}

#[test]
fn an_address_whose_ranges_do_not_fit_says_so() {
    let mut datapath = MemoryDatapath::new(Limits { source_ranges: 1, ..ROOM });
    let mut engine = engine_on(&datapath, ON);
    engine.change(Change::UpsertService(exposed(Some(&["192.0.2.128/25", "192.0.2.0/26"]))));
    backends(&mut engine);
    engine.change(synced());
    let round = engine.reconcile(&mut datapath, Moment(0));
    let [(address, error)] = &round.errors[..] else { panic!("{:?}", round.errors) };
    assert_eq!(*address, l4("198.51.100.1:80"));
    assert_eq!(&**error, "map source_ranges is full (1 entries): raise packets.max-source-ranges and restart nodelb");
    engine.change(Change::UpsertService(exposed(Some(&["192.0.2.128/25"]))));
    assert_eq!(engine.reconcile(&mut datapath, Moment(1)).healed, [l4("198.51.100.1:80")]);
}
