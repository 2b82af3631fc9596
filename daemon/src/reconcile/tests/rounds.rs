use super::*;

#[test]
fn the_number_stands_still_between_rounds_only() {
    let rounds = Rounds::default();
    let before = rounds.resting();
    assert!(before.is_some());
    assert_eq!(rounds.resting(), before);
    rounds.begin();
    assert_eq!(rounds.resting(), None);
    rounds.end();
    assert!(rounds.resting().is_some());
    assert_ne!(rounds.resting(), before);
}
