//! Full maps: who is served stays served, and can change.

use super::rig::*;
use super::*;

/// Lets the engine do what is due until this time.
fn run_until(engine: &mut Engine, datapath: &mut MemoryDatapath, end: Moment) {
    while let Some(due) = engine.next_round().filter(|due| *due < end) {
        engine.reconcile(datapath, due);
        engine.end_round(datapath, due);
    }
}

fn backends_of(datapath: &MemoryDatapath, address: &str) -> Vec<String> {
    let maps = datapath.dump().expect("memory can be read");
    let id = maps.frontends[&l4(address)].service;
    maps.services[&id].cluster.iter().map(|slot| slot.addr.to_string()).collect()
}

/// Another tenant had taken the last slot: drains, removals and failed health checks of this one had no effect.
#[test]
fn a_served_list_changes_and_shrinks_in_a_map_that_others_have_filled() {
    let mut datapath = MemoryDatapath::new(Limits { slots: 64, services: 128, frontends: 256, ..LIMITS });
    let mut engine = engine_with(&datapath);
    upsert(&mut engine, "m/shop", "198.51.100.1:80/TCP", &["192.0.2.1:80/TCP", "192.0.2.2:80/TCP"]);
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    (0..100).for_each(|number| describe(&mut engine, &format!("b/s{number}"), &format!("203.0.113.{number}:80/TCP")));
    engine.reconcile(&mut datapath, Moment(1));
    assert!(engine.sizes().failed > 30, "the map is full: {:?}", engine.sizes());

    let failed = [(l4("192.0.2.1:80/TCP").addr, 80)];
    let quarantine = failed.into_iter().map(|backend| (backend, "refused".into())).collect();
    let checked = Service { health_check: Some(Arc::default()), ..service("m/shop", "198.51.100.1:80/TCP") };
    engine.change(Change::UpsertService(checked));
    engine.change(Change::Quarantine(name("m/shop"), quarantine));
    engine.reconcile(&mut datapath, Moment(2));
    assert_eq!(backends_of(&datapath, "198.51.100.1:80"), ["192.0.2.2:80/TCP"]);
    engine.change(Change::UpsertSlice(slice("m/shop", "a", &["192.0.2.3:80/TCP"])));
    engine.reconcile(&mut datapath, Moment(3));
    assert_eq!(backends_of(&datapath, "198.51.100.1:80"), ["192.0.2.3:80/TCP"]);
}

/// The old range went, the new one did not fit before, and the one that waited longest took the room.
#[test]
fn a_service_exchanges_its_ranges_in_a_map_that_another_has_filled() {
    let mut datapath = MemoryDatapath::new(Limits { source_ranges: 3, ..ROOM });
    let mut engine = engine_on(&datapath, ON);
    let with = |full: &str, address: &str, ranges: &[String]| {
        let ranges = ranges.iter().map(|text| text.parse().expect("a network")).collect();
        let kind = FrontendKind::LoadBalancer;
        let mut service = Service { source_ranges: Some(ranges), ..service(full, address) };
        service.ports[0].frontends[0].kind = kind;
        service
    };
    let own = |range: &str| with("shop/a", "198.51.100.1:80/TCP", &[range.to_owned()]);
    engine.change(Change::UpsertService(own("192.0.2.0/24")));
    engine.change(Change::UpsertSlice(slice("shop/a", "a", &["192.0.2.1:80/TCP"])));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    let others: Vec<String> = (0..9).map(|number| format!("203.0.113.{number}/32")).collect();
    engine.change(Change::UpsertService(with("other/b", "198.51.100.2:80/TCP", &others)));
    engine.change(Change::UpsertSlice(slice("other/b", "b", &["192.0.2.1:80/TCP"])));
    engine.reconcile(&mut datapath, Moment(1));

    engine.change(Change::UpsertService(own("192.0.0.0/16")));
    engine.reconcile(&mut datapath, Moment(2));
    let ranges = |datapath: &MemoryDatapath| {
        let maps = datapath.dump().expect("memory can be read");
        let id = maps.frontends[&l4("198.51.100.1:80")].service;
        maps.ranges_of(id).map(|range| range.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ranges(&datapath), ["192.0.0.0/16"]);
    run_until(&mut engine, &mut datapath, Moment(20_000));
    assert_eq!(ranges(&datapath), ["192.0.0.0/16"]);
}

/// The first service of another namespace found no id, because one namespace had all.
#[test]
fn the_last_ids_are_for_namespaces_with_few() {
    let mut datapath = MemoryDatapath::new(Limits { services: 65, frontends: 256, slots: 256, ..LIMITS });
    let mut engine = engine_with(&datapath);
    (0..80).for_each(|number| describe(&mut engine, &format!("b/s{number}"), &format!("203.0.113.{number}:80/TCP")));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    let of_b = datapath.dump().expect("memory can be read").services.len();
    assert_eq!(of_b, 65 - 2, "with the canary's");
    run_until(&mut engine, &mut datapath, Moment(20_000));
    upsert(&mut engine, "m/shop", "198.51.100.1:80/TCP", &["192.0.2.1:80/TCP"]);
    engine.reconcile(&mut datapath, Moment(20_000));
    assert_eq!(backends_of(&datapath, "198.51.100.1:80"), ["192.0.2.1:80/TCP"]);
    let rows = claimed(&engine.snapshot(Moment(20_000)));
    let errors: BTreeSet<&str> = rows.iter().filter_map(|row| row.error.as_deref()).collect();
    let text = "map services is full (65 entries) but for namespaces with few: raise datapath.max-services and restart nodelb, or \
                remove services of this namespace";
    assert_eq!(errors, [text].into());
    // Who is served stays served, also with other ports and addresses.
    describe(&mut engine, "b/s1", "203.0.113.201:80/TCP");
    let mut renamed = service("b/s2", "203.0.113.2:80/TCP");
    renamed.ports[0].name = "other".into();
    engine.change(Change::UpsertService(renamed));
    run_until(&mut engine, &mut datapath, Moment(40_000));
    engine.reconcile(&mut datapath, Moment(40_000));
    let maps = datapath.dump().expect("memory can be read");
    assert!(["203.0.113.201:80", "203.0.113.2:80"].into_iter().all(|at| maps.frontends.contains_key(&l4(at))));
    // What it gives back is for others until the last part is whole.
    engine.change(Change::RemoveService(name("b/s3"), Source::Files));
    run_until(&mut engine, &mut datapath, Moment(60_000));
    engine.reconcile(&mut datapath, Moment(60_000));
    assert_eq!(datapath.dump().expect("memory can be read").services.len(), of_b);
}

/// The same with addresses.
#[test]
fn the_last_frontends_are_for_namespaces_with_few() {
    let mut datapath = MemoryDatapath::new(Limits { services: 256, frontends: 66, slots: 256, ..LIMITS });
    let mut engine = engine_with(&datapath);
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    (0..80).for_each(|number| describe(&mut engine, &format!("b/s{number}"), &format!("203.0.113.{number}:80/TCP")));
    engine.reconcile(&mut datapath, Moment(0));
    upsert(&mut engine, "m/shop", "203.0.113.250:80/TCP", &["192.0.2.1:80/TCP"]);
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(backends_of(&datapath, "203.0.113.250:80"), ["192.0.2.1:80/TCP"]);
    // An address that replaces another one.
    let served = datapath.dump().expect("memory can be read").frontends;
    assert!(served.contains_key(&l4("203.0.113.1:80")) && served.len() == 65, "{}", served.len());
    describe(&mut engine, "b/s1", "203.0.113.201:80/TCP");
    engine.reconcile(&mut datapath, Moment(2));
    let served = datapath.dump().expect("memory can be read").frontends;
    assert!(served.contains_key(&l4("203.0.113.201:80")) && served.len() == 65, "{}", served.len());
    let refused = |engine: &Engine| {
        let rows = claimed(&engine.snapshot(Moment(2)));
        rows.iter().find(|row| row.status == Status::Refused).and_then(|row| row.error.clone())
    };
    let text = "map frontends is full (66 entries) but for namespaces with few: raise datapath.max-frontends and restart nodelb, or \
                remove services of this namespace";
    assert_eq!(refused(&engine).as_deref(), Some(text));
}

/// It waited for the end of a pause of up to five seconds.
#[test]
fn who_waits_for_an_id_gets_it_as_soon_as_one_has_rested() {
    let mut datapath = MemoryDatapath::new(Limits { services: 4, ..LIMITS });
    let mut engine = engine_with(&datapath);
    (1..=5).for_each(|number| describe(&mut engine, &format!("a/s{number}"), &format!("198.51.100.{number}:80/TCP")));
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    run_until(&mut engine, &mut datapath, Moment(60_000));
    engine.change(Change::RemoveService(name("a/s1"), Source::Files));
    engine.reconcile(&mut datapath, Moment(60_000));
    engine.end_round(&mut datapath, Moment(60_000));
    run_until(&mut engine, &mut datapath, Moment(61_200));
    assert_eq!(datapath.dump().expect("memory can be read").services.len(), 4, "with the canary's");
}

/// The one with the lower name was served instead: all services of a tenant that had stayed within its bounds were lost.
#[test]
fn after_a_reboot_a_full_map_serves_those_that_it_served_before() {
    let limits = Limits { services: 6, ..LIMITS };
    let mut datapath = MemoryDatapath::new(limits);
    let mut engine = engine_with(&datapath);
    let describe_all = |engine: &mut Engine, namespace: &str, network: &str| {
        (1..=4).for_each(|number| {
            describe(engine, &format!("{namespace}/s{number}"), &format!("{network}.{number}:80/TCP"));
        });
    };
    let served = |engine: &Engine| {
        let rows = claimed(&engine.snapshot(Moment(0))).into_iter();
        rows.filter(|row| row.status == Status::Ok).map(|row| row.address.to_string()).collect::<Vec<_>>()
    };
    describe_all(&mut engine, "m", "198.51.100");
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(0));
    describe_all(&mut engine, "b", "203.0.113");
    engine.reconcile(&mut datapath, Moment(1));
    let (before, statuses) = (served(&engine), engine.snapshot(Moment(1)).statuses());
    assert_eq!(before.len(), 5, "{before:?}");

    let mut datapath = MemoryDatapath::new(limits);
    let mut engine = engine_with(&datapath);
    engine.recall_served(&statuses);
    // What was not served before is described first.
    describe_all(&mut engine, "b", "203.0.113");
    engine.reconcile(&mut datapath, Moment(0));
    describe_all(&mut engine, "m", "198.51.100");
    engine.reconcile(&mut datapath, Moment(1));
    assert_eq!(served(&engine), before);
    engine.change(synced());
    engine.reconcile(&mut datapath, Moment(2));
    engine.change(Change::RemoveService(name("m/s1"), Source::Files));
    engine.reconcile(&mut datapath, Moment(3));
    run_until(&mut engine, &mut datapath, Moment(10_000));
    assert_eq!(served(&engine).len(), 5, "what is expected no more takes no room");
}
