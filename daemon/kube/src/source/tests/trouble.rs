use super::*;

fn failing() -> State {
    State::Failing(LinkError::Status { code: 404, message: "no such thing".into() })
}

#[test]
fn what_fails_for_long_is_told_once_and_so_is_its_end() {
    let (mut trouble, begun) = (Trouble::default(), Instant::now());
    let at = |seconds| begun + Duration::from_secs(seconds);
    for second in 0..5 {
        trouble.note(at(second), &failing());
        // The watch is accepted and fails immediately.
        trouble.note(at(second), &State::Watching);
        trouble.note(at(second), &failing());
        assert_eq!(trouble.beat(at(second), true), None);
    }
    assert_eq!(trouble.beat(at(5), false), None, "the supervisor tells");
    assert!(matches!(trouble.beat(at(5), true), Some(Turn::Failing(10, LinkError::Status { code: 404, .. }))));
    trouble.note(at(6), &failing());
    assert_eq!(trouble.beat(at(60), true), None, "once");
    trouble.note(at(61), &State::Watching);
    assert_eq!(trouble.beat(at(62), true), None);
    assert_eq!(trouble.beat(at(66), true), Some(Turn::Works));
    assert_eq!(trouble.beat(at(99), true), None);
}

#[test]
fn a_lost_apiserver_is_no_trouble_of_one_kind() {
    let (mut trouble, begun) = (Trouble::default(), Instant::now());
    (0..9).for_each(|_| trouble.note(begun, &failing()));
    trouble.note(begun, &State::Waiting);
    assert_eq!(trouble.beat(begun + STEADY, true), None);
}
