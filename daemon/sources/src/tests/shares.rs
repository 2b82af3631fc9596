use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn share(service: &str, was_silent: bool) -> Share {
    Share { service: service.parse().unwrap(), was_silent }
}

/// Begins what may begin; returns how many of each service there are then.
fn fill(shares: &mut Shares<usize>) -> BTreeMap<String, usize> {
    let mut begun = BTreeMap::new();
    while let Some((share, _)) = shares.begin() {
        *begun.entry(share.service.to_string()).or_default() += 1;
    }
    begun
}

fn counts<const N: usize>(counts: [(&str, usize); N]) -> BTreeMap<String, usize> {
    counts.into_iter().map(|(service, count)| (service.to_owned(), count)).collect()
}

#[test]
fn no_service_takes_all_the_room() {
    let mut shares = Shares::new(64);
    (0..1_000).for_each(|number| shares.wait(&share("s/big", false), number));
    assert_eq!(fill(&mut shares), counts([("s/big", 16)]));
    (0..1_000).for_each(|number| shares.wait(&share(&format!("s/x{number}"), false), number));
    assert_eq!(fill(&mut shares).values().sum::<usize>(), 16, "all of the namespace have half");
    (0..3).for_each(|number| shares.wait(&share("f/fast", false), number));
    assert_eq!(fill(&mut shares), counts([("f/fast", 3)]));
}

#[test]
fn what_was_silent_is_apart() {
    let mut shares = Shares::new(64);
    (0..1_000).for_each(|number| shares.wait(&share("s/big", true), number));
    fill(&mut shares);
    shares.wait(&share("s/big", false), 1_000);
    assert_eq!(shares.begin(), Some((share("s/big", false), 1_000)));
}

#[test]
fn who_has_the_least_open_is_next_and_then_who_waited_longest() {
    let mut shares = Shares::new(4_096);
    for (number, service) in ["b/x", "b/x", "b/y", "a/x", "a/x"].into_iter().enumerate() {
        shares.wait(&share(service, false), number);
    }
    let order: Vec<usize> = std::iter::from_fn(|| Some(shares.begin()?.1)).collect();
    assert_eq!(order, [3, 0, 4, 2, 1]);
}

/// Quick work leaves nothing open, so that only the turns count.
#[test]
fn services_take_turns() {
    let mut shares = Shares::new(4);
    for (number, service) in ["a/x", "a/x", "a/x", "a/y", "a/y", "b/x", "b/x"].into_iter().enumerate() {
        shares.wait(&share(service, false), number);
    }
    let next = || {
        let (share, work) = shares.begin()?;
        shares.end(&share);
        Some(work)
    };
    assert_eq!(std::iter::from_fn(next).collect::<Vec<_>>(), [0, 5, 3, 6, 1, 4, 2]);
}

proptest! {
    /// Nothing is lost, comes twice or exceeds the room; nothing waits while nothing is open; and nothing is left at the end.
    #[test]
    fn everything_begins_once(
        room in 1_usize..12,
        steps in prop::collection::vec((0_usize..6, any::<bool>(), any::<prop::sample::Index>(), 0_u8..3), 1..200),
    ) {
        let services = ["a/x", "a/y", "b/x", "c/x", "c/y", "c/z"];
        let (mut shares, mut open, mut begun, mut count) = (Shares::new(room), Vec::new(), Vec::new(), 0);
        let mut take = |shares: &mut Shares<usize>, open: &mut Vec<Share>| {
            while let Some((share, work)) = shares.begin() {
                open.push(share);
                begun.push(work);
            }
        };
        for (service, was_silent, which, kind) in steps {
            match kind {
                0 if !open.is_empty() => shares.end(&open.swap_remove(which.index(open.len()))),
                1 => take(&mut shares, &mut open),
                _ => {
                    shares.wait(&share(services[service], was_silent), count);
                    count += 1;
                }
            }
            prop_assert!(open.len() <= room && shares.open() == open.len());
        }
        loop {
            take(&mut shares, &mut open);
            let Some(ended) = open.pop() else { break };
            shares.end(&ended);
        }
        begun.sort_unstable();
        prop_assert_eq!(begun, (0..count).collect::<Vec<_>>());
        prop_assert!(shares.services.is_empty() && shares.waiting.is_empty() && shares.namespaces.of.is_empty());
        prop_assert!(shares.namespaces.order.is_empty());
    }
}
