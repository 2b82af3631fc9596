use nodelb_core::model::service::ServiceName;

use super::*;

fn turn(is_healthy: bool) -> Transition {
    let failure = (!is_healthy).then(|| "connection refused".into());
    Transition { service: ServiceName::new("shop", "web"), backend: ([192, 0, 2, 11], 8080).into(), failure }
}

#[test]
fn the_first_few_are_logged_by_name_and_the_others_counted() {
    let mut journal = Journal::default();
    for _ in 0..3 {
        let by_name = (0..1_000).filter(|_| journal.admits(&turn(false))).count();
        assert_eq!(by_name, 5);
        let expected = "health checks: 995 more backends quarantined; see `nodelb backends`";
        assert_eq!(journal.summary().as_deref(), Some(expected));
    }
    let by_name = (0..7).filter(|index| journal.admits(&turn(index % 2 == 0))).count();
    assert_eq!(by_name, 5);
    let expected = "health checks: 1 more backend quarantined, 1 more backend used again; see `nodelb backends`";
    assert_eq!(journal.summary().as_deref(), Some(expected));
}

#[test]
fn a_steady_state_is_silent() {
    let mut journal = Journal::default();
    assert_eq!(journal.summary(), None);
    assert!(journal.admits(&turn(true)));
    assert_eq!(journal.summary(), None);
}

#[test]
fn checks_that_cannot_be_sent_are_reported_until_one_is() {
    let mut journal = Journal::default();
    journal.note_asked();
    assert_eq!(journal.tick(Moment(1)), None);
    journal.cannot_ask(&"network is unreachable".into());
    let unsent = journal.tick(Moment(2)).unwrap();
    let text = "health checks could not be sent: network is unreachable; their backends keep their state";
    assert_eq!((unsent.0, &*unsent.1), (Moment(2), text));
    assert_eq!(journal.tick(Moment(3)), Some(unsent), "nothing was tried");
    journal.note_asked();
    assert_eq!(journal.tick(Moment(4)), None);
}
