use super::*;

fn need(len: u32) -> nodelb_core::state::runs::Need {
    nodelb_core::state::runs::Need { list: len, run: len, ..Default::default() }
}

#[test]
fn resting_slots_are_taken_until_they_have_rested() {
    let (mut runs, usage) = (Runs::new(100), SlotUsage::default());
    let run = runs.allocate(need(40), Moment(5)).unwrap();
    runs.allocate(need(10), Moment(5)).unwrap();
    runs.free(run, Moment(6));
    usage.set(&runs, Moment(6));
    assert_eq!([Moment(6), Moment(5 + REST_MILLIS), Moment(6 + REST_MILLIS)].map(|at| usage.taken(at)), [50, 50, 10]);
}
