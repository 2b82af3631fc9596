use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const FAMILIES: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// A target was asked, or is not asked any more.
#[derive(Clone, Copy, Debug)]
enum Step {
    Asked { has_route: bool },
    Left,
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let step = prop_oneof![3 => any::<bool>().prop_map(|has_route| Step::Asked { has_route }), 1 => Just(Step::Left)];
    (0..6u64, step)
}

proptest! {
    /// Whatever the order of answers: a family leads anywhere exactly while one of its targets had a route when it was asked
    /// last. The targets with an even number are of IPv4.
    #[test]
    fn a_family_leads_anywhere_while_a_target_has_a_route(steps in prop::collection::vec(step(), 0..40)) {
        let (mut routes, mut last) = (Routes::default(), BTreeMap::new());
        for (id, step) in steps {
            let (target, family) = (TargetId(id), FAMILIES[usize::from(id % 2 == 1)]);
            match step {
                Step::Asked { has_route } => {
                    routes.note(target, family, has_route);
                    last.insert(id, (family, has_route));
                }
                Step::Left => {
                    routes.forget(target);
                    last.remove(&id);
                }
            }
            for family in FAMILIES {
                prop_assert_eq!(routes.leads_anywhere(family), last.values().any(|known| *known == (family, true)));
            }
        }
    }
}
