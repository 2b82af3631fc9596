//! Whatever a round changes for connections is in an event of that round, also over restarts, in random sequences. A start
//! with empty maps is an exception: it is one event for each source.

use std::collections::BTreeMap;

use super::*;
use crate::state::entries::backends_of;
use crate::state::owner::hash_of;

const NAMES: [&str; 5] = ["shop/a", "shop/b", "shop/c", "shop/d", "shop/e"];

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }
}

/// What a source describes: addresses and backends, by the index of a service.
type Described = BTreeMap<usize, (Vec<usize>, Vec<usize>)>;

/// What connections get: the service and its backends, by address.
type Effects = BTreeMap<L4Addr, (u32, Vec<L4Addr>)>;

fn effects(run: &Run) -> Effects {
    let maps = run.engine.snapshot(run.now).realised;
    let effect = |address: &L4Addr| {
        let entry = maps.service_at(*address)?;
        Some((*address, (entry.tag?.service, backends_of(&entry.cluster).map(|(at, _)| at).collect())))
    };
    maps.frontends.keys().filter_map(effect).collect()
}

fn changes(number: usize, (addresses, backends): &(Vec<usize>, Vec<usize>)) -> [Change; 2] {
    let source = source_of(number);
    let mut it = service(NAMES[number], WEB);
    let spec =
        |n: &usize| FrontendSpec { addr: l4(&format!("198.51.100.{n}:80")).addr, port: 80, kind: FrontendKind::Static };
    it.ports[0].frontends = addresses.iter().map(spec).collect();
    let created = (source == Source::Kubernetes).then_some(number as u64);
    let backends: Vec<String> = backends.iter().map(|n| format!("192.0.2.{n}:80")).collect();
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    let list = Slice { source, ..slice(NAMES[number], NAMES[number], &backends) };
    [Change::UpsertService(Service { source, created, ..it }), Change::UpsertSlice(list)]
}

/// The last two services are in Kubernetes.
fn source_of(number: usize) -> Source {
    if number < 3 { Source::Files } else { Source::Kubernetes }
}

fn describe(described: &mut Described, random: &mut Random) -> usize {
    let number = random.below(NAMES.len());
    let some = |random: &mut Random, of: usize| (1..=of).filter(|_| random.below(3) == 0).collect::<Vec<_>>();
    match random.below(4) {
        0 => drop(described.remove(&number)),
        _ => drop(described.insert(number, (some(random, 6), some(random, 3)))),
    }
    number
}

/// The addresses of which a change is in no event.
fn unreported(before: &Effects, after: &Effects, round: &Round) -> Vec<String> {
    let services: BTreeSet<u32> =
        round.events.iter().filter_map(|event| Some(hash_of(&event.port.as_ref()?.service))).collect();
    let is_named = |at: &L4Addr| round.events.iter().any(|event| event.names(at.addr));
    let lacks = |at: &&L4Addr| {
        let (had, has) = (before.get(at), after.get(at));
        let is_reported = |effect: &(u32, Vec<L4Addr>)| services.contains(&effect.0);
        had != has
            && !has.map_or_else(
                || is_named(at),
                |has| is_reported(has) && (had.is_some_and(|had| had.0 == has.0) || is_named(at)),
            )
    };
    let addresses: BTreeSet<L4Addr> = before.keys().chain(after.keys()).copied().collect();
    addresses.iter().filter(lacks).map(|at| format!("{at}: {:?}, then {:?}", before.get(at), after.get(at))).collect()
}

fn play(seed: u64) {
    let mut random = Random(seed);
    let mut run = Run::first();
    run.engine = engine_of_both(&run.datapath);
    let mut described = Described::new();
    (0..6).for_each(|_| _ = describe(&mut described, &mut random));
    let all = |described: &Described| described.iter().flat_map(|(n, it)| changes(*n, it)).collect::<Vec<_>>();
    run.send(all(&described).into_iter().chain([synced(), synced_kubernetes()]));
    for step in 0..12 {
        let (mut batches, mut was_empty): (Vec<Vec<Change>>, bool) = (Vec::new(), false);
        if random.below(3) == 0 {
            was_empty = effects(&run).is_empty();
            let (names, statuses) = (names_of(&run), run.engine.snapshot(run.now).statuses());
            (0..random.below(4)).for_each(|_| _ = describe(&mut described, &mut random));
            run = Run { engine: engine_of_both(&run.datapath), now: run.now.plus(60_000), ..run };
            run.engine.recall(statuses, run.now);
            run.engine.recall_ports(names);
            let of = |source| described.iter().filter(move |(n, _)| source_of(**n) == source);
            let read = |source| of(source).flat_map(|(n, it)| changes(*n, it)).collect::<Vec<_>>();
            batches.push(read(Source::Files).into_iter().chain([synced()]).collect());
            // The objects of Kubernetes come one after the other.
            batches.extend(read(Source::Kubernetes).into_iter().map(|change| vec![change]));
            batches.push(vec![synced_kubernetes()]);
        } else {
            let number = describe(&mut described, &mut random);
            batches.push(match described.get(&number) {
                Some(it) => changes(number, it).into(),
                None => vec![Change::RemoveService(name(NAMES[number]), source_of(number))],
            });
        }
        for batch in batches {
            let before = effects(&run);
            run.now = run.now.plus(10_000);
            let round = run.send(batch);
            let lost = unreported(&before, &effects(&run), &round);
            assert!(lost.is_empty() || was_empty, "seed {seed}, step {step}: {lost:#?}\n{:#?}", round.events);
        }
    }
}

#[test]
fn whatever_changes_for_connections_is_in_an_event_of_the_round() {
    (1..=400).for_each(play);
}
