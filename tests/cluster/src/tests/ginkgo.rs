use super::*;

/// As ginkgo writes it, without most fields.
const REPORT: &str = r#"[{"SuitePath": "/tests", "SuiteSucceeded": false, "SpecReports": [
    {"ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed"},
    {"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "should serve (a|b)", "State": "passed"},
    {"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "should reject", "State": "failed",
     "Failure": {"Message": "not\n  rejected", "Location": {"LineNumber": 7}}},
    {"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "should be slow", "State": "timedout",
     "Failure": {"Message": "A suite timeout occurred"}},
    {"ContainerHierarchyTexts": ["[sig-network] Zones"], "LeafNodeType": "It", "LeafNodeText": "should spread", "State": "skipped",
     "Failure": {"Message": "needs six nodes"}},
    {"ContainerHierarchyTexts": ["[sig-network] Zones"], "LeafNodeType": "It", "LeafNodeText": "other", "State": "skipped"}
]}]"#;

#[test]
fn outcomes() {
    let of = |name| outcome(REPORT, name);
    let result = |state, reason: &str| Ok(Outcome { state, reason: reason.to_owned() });
    assert_eq!(of("[sig-network] Services should serve (a|b)"), result(State::Passed, ""));
    assert_eq!(of("[sig-network] Services should reject"), result(State::Failed, "not rejected"));
    assert_eq!(of("[sig-network] Services should be slow"), result(State::Failed, "A suite timeout occurred"));
    assert_eq!(of("[sig-network] Zones should spread"), result(State::Skipped, "needs six nodes"));
}

#[test]
fn a_test_that_did_not_run_has_no_outcome() {
    assert!(outcome(REPORT, "[sig-network] Zones other").is_err());
    assert!(outcome(REPORT, "[sig-network] Services").is_err());
    assert!(outcome(r#"[{"SpecReports": null}]"#, "x").is_err());
    assert!(outcome("", "x").is_err());
}

#[test]
fn names_of_a_dry_run() {
    assert_eq!(names(REPORT), Ok(vec!["[sig-network] Services should serve (a|b)".to_owned()]));
}

#[test]
fn a_focus_matches_the_name_only() {
    assert_eq!(focus("[sig] a.b (c|d)"), r"\[sig\] a\.b \(c\|d\)$");
}

#[test]
fn tests_that_cannot_run_are_counted() {
    let names = ["a [X] b", "c", "d [X]"].map(ToOwned::to_owned).to_vec();
    let (can, cannot) = select(names, &[("[X]".to_owned(), "no X".to_owned())]);
    assert_eq!((can, cannot), (vec!["c".to_owned()], BTreeMap::from([("no X".to_owned(), 2)])));
}
