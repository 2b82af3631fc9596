use nodelb_report::rows::FindingSeverity as Severity;

use super::*;

fn of(kinds: &[(Kind, Severity)]) -> Vec<(Kind, Severity, Option<Kind>)> {
    let new = kinds.iter().map(|(kind, severity)| catalogue::finding(*kind).new_finding("x").severity(*severity));
    let mut findings: Vec<Finding> = new.collect();
    relate(&mut findings);
    findings.iter().map(|finding| (finding.kind, finding.severity, finding.explained_by)).collect()
}

#[test]
fn a_cause_comes_first_and_is_as_severe_as_its_consequences() {
    let found = of(&[
        (Kind::NoSuchService, Severity::Critical),
        (Kind::LoadBalancerPending, Severity::Warning),
        (Kind::ApiserverAway, Severity::Warning),
        (Kind::NotSynced, Severity::Warning),
    ]);
    let by = Some(Kind::ApiserverAway);
    assert_eq!(
        found,
        [
            (Kind::ApiserverAway, Severity::Critical, None),
            (Kind::LoadBalancerPending, Severity::Warning, None),
            (Kind::NoSuchService, Severity::Critical, by),
            (Kind::NotSynced, Severity::Warning, by),
        ]
    );
}

#[test]
fn a_finding_without_its_cause_stays_visible() {
    let found = of(&[(Kind::FrontendRefused, Severity::Critical), (Kind::BackendUnreachable, Severity::Warning)]);
    assert!(found.iter().all(|(.., explained_by)| explained_by.is_none()), "{found:?}");
}

/// The slice of a service that a file describes is not in use: it explains nothing, and is no reason for alarm.
#[test]
fn what_is_suppressed_explains_nothing_and_raises_nothing() {
    let found = of(&[
        (Kind::SliceEmptied, Severity::Critical),
        (Kind::DefinedTwice, Severity::Warning),
        (Kind::NoBackends, Severity::Critical),
    ]);
    assert_eq!(
        found,
        [
            (Kind::NoBackends, Severity::Critical, None),
            (Kind::DefinedTwice, Severity::Warning, None),
            (Kind::SliceEmptied, Severity::Critical, Some(Kind::DefinedTwice)),
        ]
    );
}
