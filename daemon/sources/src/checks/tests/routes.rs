use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// A target was checked, or is no longer checked.
#[derive(Clone, Copy, Debug)]
enum Step {
    Asked { has_route: bool },
    Left,
}

fn step() -> impl Strategy<Value = (u64, u64, Step)> {
    let step = prop_oneof![3 => any::<bool>().prop_map(|has_route| Step::Asked { has_route }), 1 => Just(Step::Left)];
    (0..20u64, 0..6u64, step)
}

proptest! {
    /// In any order of answers: a family counts as reachable exactly while one of its targets had a route at its last
    /// check, not too long ago. Targets with even numbers are IPv4.
    #[test]
    fn a_family_leads_anywhere_while_a_target_has_had_a_route_lately(
        steps in prop::collection::vec(step(), 0..40),
        window in 0..60u64,
    ) {
        let (mut routes, mut last, mut now) = (Routes::default(), BTreeMap::new(), Moment(1_000));
        for (pause, id, step) in steps {
            now = now.plus(pause);
            let (target, family) = (TargetId(id), FAMILIES[usize::from(id % 2 == 1)]);
            match step {
                Step::Asked { has_route: true } => {
                    routes.note(target, family, now);
                    last.insert(id, (family, now));
                }
                Step::Asked { has_route: false } | Step::Left => {
                    routes.forget(target);
                    last.remove(&id);
                }
            }
            let after = Moment(now.0 - window);
            for family in FAMILIES {
                let expected = last.values().any(|(of, asked)| *of == family && after < *asked);
                prop_assert_eq!(routes.lead_anywhere(family, after), expected);
            }
        }
    }

    /// Targets with different intervals, some long, and the moment when the host's network goes down: the evidence from
    /// before that moment makes no target fail so often that it turns.
    #[test]
    fn a_network_that_goes_down_turns_no_target(
        targets in prop::collection::vec((1..100u64, 2..6u8, 0..60_000u64), 1..20),
        percents in prop::collection::vec(90..=110u64, 1..50),
        down_at in 60_000..120_000u64,
    ) {
        let mut routes = Routes::default();
        let checks: Vec<HealthCheck> = targets
            .iter()
            .map(|(seconds, fall, _)| HealthCheck {
                interval: Duration::from_secs(*seconds),
                fall: *fall,
                ..HealthCheck::default()
            })
            .collect();
        let mut asked: BTreeSet<(Moment, usize)> =
            targets.iter().enumerate().map(|(number, (.., first))| (Moment(*first), number)).collect();
        let mut failures = vec![0; targets.len()];
        let mut jitter = percents.iter().cycle();
        while let Some((now, number)) = asked.pop_first().filter(|(now, _)| now.0 < down_at + 600_000) {
            let (target, check) = (TargetId(number as u64), &checks[number]);
            if now.0 < down_at {
                routes.note(target, Family::Ipv4, now);
            } else {
                routes.forget(target);
                let counts = routes.lead_anywhere(Family::Ipv4, evidence_after(check, now));
                failures[number] += u8::from(counts);
                prop_assert!(failures[number] < check.fall, "{check:?} at {now:?}, down since {down_at}");
            }
            let millis = targets[number].0 * 1_000 * jitter.next().expect("never ends") / 100;
            asked.insert((now.plus(millis), number));
        }
    }
}

#[test]
fn a_route_that_is_missing_for_long_counts_without_other_evidence() {
    let check = HealthCheck { interval: Duration::from_secs(10), fall: 2, ..HealthCheck::default() };
    let (mut routes, target) = (Routes::default(), TargetId(1));
    // Three times two intervals, each up to a tenth shorter.
    for (seconds, expected) in [(100, false), (110, false), (153, false), (154, true), (170, true)] {
        assert_eq!(routes.note_missing(target, &check, Moment(seconds * 1_000)), expected, "{seconds}");
    }
    routes.note(target, Family::Ipv4, Moment(180_000));
    assert!(!routes.note_missing(target, &check, Moment(190_000)), "it had a route meanwhile");
    routes.leave(target);
    assert!(!routes.note_missing(target, &check, Moment(300_000)), "a target that is followed again");
}
