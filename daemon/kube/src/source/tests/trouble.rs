use super::*;

fn failing() -> State {
    State::Failing(LinkError::Status { code: 404, message: "no such thing".into() })
}

#[test]
fn a_long_failure_and_its_end_are_logged_once() {
    let (mut trouble, begun) = (Trouble::default(), Instant::now());
    let at = |seconds| begun + Duration::from_secs(seconds);
    for second in 0..5 {
        trouble.note(at(second), &failing());
        // The watch is accepted and fails immediately.
        trouble.note(at(second), &State::Watching);
        trouble.note(at(second), &failing());
        assert_eq!(trouble.tick(at(second), true), None);
    }
    assert_eq!(trouble.tick(at(5), false), None, "the supervisor tells");
    assert!(matches!(trouble.tick(at(5), true), Some(Transition::Failing(10, LinkError::Status { code: 404, .. }))));
    trouble.note(at(6), &failing());
    assert_eq!(trouble.tick(at(60), true), None, "once");
    trouble.note(at(61), &State::Watching);
    assert_eq!(trouble.tick(at(62), true), None);
    assert_eq!(trouble.tick(at(66), true), Some(Transition::Works));
    assert_eq!(trouble.tick(at(99), true), None);
}

#[test]
fn a_lost_apiserver_is_no_trouble_of_one_kind() {
    let (mut trouble, begun) = (Trouble::default(), Instant::now());
    (0..9).for_each(|_| trouble.note(begun, &failing()));
    trouble.note(begun, &State::Waiting);
    assert_eq!(trouble.tick(begun + STEADY, true), None);
}
