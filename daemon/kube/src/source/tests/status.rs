use super::*;

fn row_of(state: &State, is_listed: bool, tally: &Tally) -> SourceReport {
    let status = WatchStatus { state: state.clone(), ..WatchStatus::new(Scope::all(Kind::EndpointSlice)) };
    status.row(tally, is_listed)
}

#[test]
fn a_watch_that_fails_serves_what_it_knew() {
    let failing = State::Failing(LinkError::Broken("reset".into()));
    assert_eq!(row_of(&failing, true, &Tally::default()).state, SourceState::LastGood);
    assert_eq!(row_of(&failing, false, &Tally::default()).state, SourceState::Error);
    let remembered = Tally { served: 3, ..Tally::default() };
    let report = row_of(&State::Waiting, false, &remembered);
    assert_eq!((report.state, report.slices, report.services), (SourceState::LastGood, 3, 0));
    assert_eq!((report.problems.len(), report.notices.len()), (0, 1), "nothing has failed");
    let asking = row_of(&State::Asking, true, &Tally::default());
    assert_eq!((asking.state, asking.problems.len()), (SourceState::LastGood, 1));
    assert_eq!(row_of(&State::Watching, true, &Tally::default()).problems, [""; 0]);
}

#[test]
fn a_missing_permission_names_the_command_that_shows_it() {
    let state = State::Failing(LinkError::Forbidden("User \"x\" cannot watch".into()));
    let problem = &row_of(&state, false, &Tally::default()).problems[0];
    assert!(problem.contains("kubectl auth can-i watch endpointslices.discovery.k8s.io --all-namespaces"), "{problem}");
}

#[test]
fn a_missing_permission_in_a_namespace_names_it_and_the_remedy() {
    let scope = Scope { namespace: Some("shop".into()), ..Scope::all(Kind::Service) };
    let state = State::Failing(LinkError::Forbidden("User \"x\" cannot watch".into()));
    let row = WatchStatus { state, ..WatchStatus::new(scope) }.row(&Tally::default(), false);
    assert_eq!((&*row.path, row.kind), ("services/shop", Some("services")));
    let problem = &row.problems[0];
    assert!(problem.starts_with("services in namespace shop may not be read"), "{problem}");
    assert!(problem.contains("kubectl auth can-i watch services --namespace shop`"), "{problem}");
    assert!(problem.ends_with("(/usr/share/nodelb/kubernetes/rbac-namespaces.yaml)"), "{problem}");
}

#[test]
fn a_service_that_does_not_exist_is_noticed() {
    let names = vec!["web".into()];
    let scope = Scope { namespace: Some("shop".into()), names, ..Scope::all(Kind::Service) };
    let status = WatchStatus { state: State::Watching, ..WatchStatus::new(scope) };
    let found = Tally { served: 1, ..Tally::default() };
    assert_eq!((status.row(&Tally::default(), true).notices.len(), status.row(&found, true).notices.len()), (1, 0));
}

#[test]
fn what_was_skipped_is_counted_and_shown() {
    let tally = Tally {
        skipped: 12,
        left_out: 3,
        problems: (0..12).map(|n| format!("ns/s{n}: no sense")).collect(),
        ..Tally::default()
    };
    let report = row_of(&State::Watching, true, &tally);
    assert_eq!((report.problems.len(), report.notices.len()), (12, 1));
    assert!(report.problems[0].starts_with("12 skipped") && report.problems[11] == "and 2 more");
}

fn failing() -> State {
    State::Failing(LinkError::Status { code: 404, message: "no such thing".into() })
}

#[test]
fn a_long_failure_is_logged_once_and_so_is_its_end() {
    let (mut failures, begun) = (Failures::default(), Instant::now());
    let at = |seconds| begun + Duration::from_secs(seconds);
    for second in 0..5 {
        failures.record(at(second), &failing());
        // The watch is accepted and fails immediately.
        failures.record(at(second), &State::Watching);
        failures.record(at(second), &failing());
        assert_eq!(failures.transition(at(second), true), None);
    }
    assert_eq!(failures.transition(at(5), false), None, "the supervisor logs it");
    assert!(matches!(
        failures.transition(at(5), true),
        Some(Transition::Failing(10, LinkError::Status { code: 404, .. }))
    ));
    failures.record(at(6), &failing());
    assert_eq!(failures.transition(at(60), true), None, "once");
    failures.record(at(61), &State::Watching);
    assert_eq!(failures.transition(at(62), true), None);
    assert_eq!(failures.transition(at(66), true), Some(Transition::Works));
    assert_eq!(failures.transition(at(99), true), None);
}

#[test]
fn a_lost_apiserver_is_not_a_failure_of_one_kind() {
    let (mut failures, begun) = (Failures::default(), Instant::now());
    (0..9).for_each(|_| failures.record(begun, &failing()));
    failures.record(begun, &State::Waiting);
    assert_eq!(failures.transition(begun + STABLE_AFTER, true), None);
}
