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
