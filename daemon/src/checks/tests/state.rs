use super::*;

/// Takes answers, `+` for good and `-` for bad, with rise 2 and fall 3. Returns the state after each, `H` or `U`.
fn received(mut health: HealthState, answers: &str) -> String {
    let mut record = |answer| {
        let before = health.failure().is_none();
        let answer = if answer == '+' { Ok(()) } else { Err("connection refused".into()) };
        let turned = health.record(answer, 2, 3);
        let is_healthy = health.failure().is_none();
        assert_eq!(turned, before != is_healthy);
        if is_healthy { 'H' } else { 'U' }
    };
    answers.chars().map(&mut record).collect()
}

#[test]
fn the_first_answer_decides_and_then_it_takes_several() {
    for starts_healthy in [true, false] {
        for (answers, states) in [
            ("+--+---+-++-", "HHHHHHUUUUHH"),
            ("--++", "UUUH"),
            ("-+-++", "UUUUH"),
            ("+---", "HHHU"),
            ("+-+-+-+-", "HHHHHHHH"),
        ] {
            assert_eq!(
                received(HealthState::new(starts_healthy, false), answers),
                states,
                "{answers} after {starts_healthy}"
            );
        }
    }
}

#[test]
fn what_was_unhealthy_before_a_restart_needs_its_rise() {
    assert_eq!(received(HealthState::unhealthy("no answer within 2 s".into()), "+-++"), "UUUH");
}

#[test]
fn another_question_is_decided_by_its_first_answer() {
    let mut health = HealthState::new(true, false);
    assert!(health.record(Err("HTTP 404".into()), 2, 3));
    let undecided = health.undecided();
    assert_eq!(undecided.failure().map(|error| &**error), Some("HTTP 404"), "the state stays until then");
    assert_eq!(undecided.condition(), Condition::Unchecked);
    assert_eq!(received(undecided, "+-"), "HH");
}

#[test]
fn the_error_is_the_last_one() {
    let mut health = HealthState::new(false, false);
    assert_eq!(health.failure().map(|error| &**error), Some("not checked yet"));
    for error in ["connection refused", "HTTP 503"] {
        health.record(Err(error.into()), 1, 1);
        assert_eq!(health.failure().map(|error| &**error), Some(error));
    }
    assert!(health.record(Ok(()), 1, 1));
    assert_eq!((health.failure(), health.condition()), (None, Condition::Healthy));
}

#[test]
fn what_was_healthy_until_a_moment_ago_needs_as_many_bad_answers_as_ever() {
    for starts_healthy in [true, false] {
        let mut health = HealthState::new(starts_healthy, true);
        assert!(!health.record(Err("lost".into()), 2, 3));
        assert!(!health.record(Err("lost".into()), 2, 3));
        assert_eq!(health.condition(), Condition::Healthy);
        assert!(health.record(Err("lost".into()), 2, 3));
    }
}
