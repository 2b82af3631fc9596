//! What waits until more is known is done as soon as nothing speaks against it any more, whatever has ended the wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use nodelb_core::change::Change;
use nodelb_core::model::service::Source;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::cases;
use crate::world::{SOURCES, change, changes, facts, settled};

#[derive(Clone, Debug)]
enum Step {
    /// A fact from before the start.
    Again(Index),
    Changed(Box<Change>),
    /// A source is synced, completely or without one file.
    Synced(Source, bool),
    Round,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<Index>().prop_map(Step::Again),
        4 => change().prop_map(|change| Step::Changed(Box::new(change))),
        1 => (select(&SOURCES[..]), any::<bool>()).prop_map(|(source, is_whole)| Step::Synced(source, is_whole)),
        2 => Just(Step::Round),
    ];
    prop::collection::vec(step, 1..40)
}

fn synced(source: Source, is_whole: bool) -> Change {
    let incomplete = (!is_whole).then(|| Arc::from("b.toml: line 3"));
    Change::Synced { source, incomplete }
}

proptest! {
    #![proptest_config(cases(2_048))]

    /// A source that repeats what it has reported makes the engine look at everything that waits: there must be nothing
    /// left to do.
    #[test]
    fn what_waits_is_done_without_a_further_touch(world in changes(24), steps in steps()) {
        let mut host = settled(&world);
        let before = facts(&world);
        host.restart();
        let mut said: BTreeMap<Source, bool> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Again(index) if !before.is_empty() => host.send([index.get(&before).clone()]),
                Step::Again(_) => {}
                Step::Changed(change) => host.send([*change]),
                Step::Synced(source, is_whole) => {
                    said.insert(source, is_whole);
                    host.send([synced(source, is_whole)]);
                }
                Step::Round => drop(host.round()),
            }
        }
        prop_assert!(host.settle());
        let before = host.text();
        host.send(said.into_iter().map(|(source, is_whole)| synced(source, is_whole)));
        host.settle();
        prop_assert_eq!(before, host.text());
    }
}
