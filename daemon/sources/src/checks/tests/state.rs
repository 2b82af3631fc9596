use super::*;

/// A check with rise 2 and fall 3.
fn check(starts_healthy: bool) -> HealthCheck {
    HealthCheck { starts_healthy, rise: 2, fall: 3, ..HealthCheck::default() }
}

/// Takes answers, `+` for good and `-` for bad. Returns the state after each, `H` or `U`.
fn received(mut health: HealthState, check: &HealthCheck, answers: &str) -> String {
    let mut record = |answer| {
        let before = health.is_healthy(check);
        let answer = if answer == '+' { Ok(()) } else { Err("connection refused".into()) };
        let turned = health.record(answer, check);
        let is_healthy = health.is_healthy(check);
        assert_eq!(turned, before != is_healthy);
        if is_healthy { 'H' } else { 'U' }
    };
    answers.chars().map(&mut record).collect()
}

fn error(health: &HealthState) -> Option<&str> {
    health.verdict()?.as_ref().err().map(|error| &**error)
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
                received(HealthState::default(), &check(starts_healthy), answers),
                states,
                "{answers} after {starts_healthy}"
            );
        }
    }
}

#[test]
fn what_was_unhealthy_before_a_restart_needs_its_rise() {
    assert_eq!(received(HealthState::continued(Err("no answer within 2 s".into())), &check(true), "+-++"), "UUUH");
}

#[test]
fn another_question_is_decided_by_its_first_answer() {
    let mut health = HealthState::default();
    assert!(health.record(Err("HTTP 404".into()), &check(true)));
    let undecided = health.undecided();
    assert_eq!(error(&undecided), Some("HTTP 404"), "the state stays until then");
    assert_eq!(undecided.condition(), Condition::Unchecked);
    assert_eq!(received(undecided, &check(true), "+-"), "HH");
}

#[test]
fn the_error_is_the_last_one() {
    let once = HealthCheck { rise: 1, fall: 1, ..check(false) };
    let mut health = HealthState::default();
    assert_eq!((health.verdict(), health.condition()), (None, Condition::Unchecked));
    for text in ["connection refused", "HTTP 503"] {
        health.record(Err(text.into()), &once);
        assert_eq!(error(&health), Some(text));
    }
    assert!(health.record(Ok(()), &once));
    assert_eq!((error(&health), health.condition()), (None, Condition::Healthy));
}

#[test]
fn what_was_healthy_until_a_moment_ago_needs_as_many_bad_answers_as_ever() {
    for starts_healthy in [true, false] {
        let mut health = HealthState::continued(Ok(()));
        assert!(!health.record(Err("lost".into()), &check(starts_healthy)));
        assert!(!health.record(Err("lost".into()), &check(starts_healthy)));
        assert_eq!(health.condition(), Condition::Healthy);
        assert!(health.record(Err("lost".into()), &check(starts_healthy)));
    }
}
