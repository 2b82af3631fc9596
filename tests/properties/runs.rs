//! The allocation of lists in the `slots` map, compared with a model of each slot.

use nodelb_core::model::moment::Moment;
use nodelb_core::state::runs::{Need, REST_MILLIS, Run, Runs};
use proptest::prelude::*;

use crate::cases;

const LIMIT: u32 = 24;

#[derive(Clone, Debug)]
enum Step {
    Allocate(u32),
    Free(prop::sample::Index),
    FreeUnpublished(prop::sample::Index),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..10_u32).prop_map(Step::Allocate),
        3 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => any::<prop::sample::Index>().prop_map(Step::FreeUnpublished),
        1 => (0..REST_MILLIS * 2).prop_map(Step::Wait),
    ]
}

/// When each slot may be written again; `None` while it is in use.
struct Model {
    free_from: Vec<Option<Moment>>,
}

impl Model {
    fn range(run: Run) -> std::ops::Range<usize> {
        run.first as usize..(run.first + run.len) as usize
    }

    fn has_room(&self, len: u32, now: Moment) -> bool {
        let is_free = |from: &Option<Moment>| from.is_some_and(|from| from <= now);
        len == 0 || self.free_from.windows(len as usize).any(|window| window.iter().all(is_free))
    }
}

proptest! {
    #![proptest_config(cases(2_048))]

    /// Runs never overlap, are never reused within the grace period, and an allocation succeeds whenever it fits.
    #[test]
    fn runs_agree_with_a_model_that_knows_each_slot(steps in prop::collection::vec(step(), 1..60)) {
        let mut runs = Runs::new(LIMIT);
        let mut model = Model { free_from: vec![Some(Moment(0)); LIMIT as usize] };
        let (mut held, mut now): (Vec<Run>, Moment) = (Vec::new(), Moment(0));
        for step in steps {
            match step {
                Step::Allocate(len) => match runs.allocate(Need { list: len, run: len, ..Need::default() }, now) {
                    Some(run) => {
                        prop_assert_eq!(run.len, len);
                        for from in &mut model.free_from[Model::range(run)] {
                            prop_assert!(from.take().is_some_and(|from| from <= now), "{:?} at {:?}", run, now);
                        }
                        held.push(run);
                    }
                    None => prop_assert!(!model.has_room(len, now), "no run of {} at {:?}", len, now),
                },
                Step::Free(index) if !held.is_empty() => {
                    let run = held.swap_remove(index.index(held.len()));
                    runs.free(run, now);
                    model.free_from[Model::range(run)].fill(Some(now.plus(REST_MILLIS)));
                }
                Step::FreeUnpublished(index) if !held.is_empty() => {
                    let run = held.swap_remove(index.index(held.len()));
                    runs.free_unpublished(run);
                    model.free_from[Model::range(run)].fill(Some(now));
                }
                Step::Wait(millis) => now = now.plus(millis),
                Step::Free(_) | Step::FreeUnpublished(_) => {}
            }
            prop_assert_eq!(runs.used(), held.iter().map(|run| run.len).sum::<u32>());
        }
        for run in held.drain(..) {
            runs.free(run, now);
        }
        prop_assert_eq!(runs.allocate(Need { list: LIMIT, run: LIMIT, ..Need::default() }, now.plus(REST_MILLIS)), Some(Run { first: 0, len: LIMIT }));
    }
}
