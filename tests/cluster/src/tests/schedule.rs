use super::*;
use crate::table;

#[test]
fn tests_that_disturb_others_run_alone() {
    let tests = ["a", "b [Serial]", "", "c [Disruptive] d"].map(ToOwned::to_owned);
    assert_eq!(split(&tests), (vec!["b [Serial]", "c [Disruptive] d"], vec!["a"]));
}

#[test]
fn files_of_tests_with_similar_names_differ() {
    assert_ne!(file_name("a: http"), file_name("a (http)"));
    assert!(file_name(&"x/".repeat(1000)).len() < 200);
}

/// A test program: copies the report that its first argument names to where ginkgo writes it, and exits as the second says.
const PROGRAM: &str =
    r#"for word; do case $word in --ginkgo.json-report=*) cp "$0" "${word#*=}" 2>/dev/null ;; esac; done; exit "$1""#;

fn run_one(report: &str, code: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report");
    fs::write(&file, report).unwrap();
    let command = ["bash", "-c", PROGRAM, file.to_str().unwrap(), code].map(ToOwned::to_owned).to_vec();
    let results = directory.path().join("results");
    let limit = Duration::from_secs(10);
    run(&Plan { tests: vec!["a b".to_owned()], results: results.clone(), jobs: 2, limit, command }).unwrap();
    let text = fs::read_to_string(results.join("results.tsv")).unwrap();
    table::parse(&text).unwrap();
    text
}

fn report(state: &str) -> String {
    let spec = r#"[{"SpecReports": [{"ContainerHierarchyTexts": ["a"], "LeafNodeType": "It", "LeafNodeText": "b", "State": "STATE",
        "Failure": {"Message": "because"}}]}]"#;
    spec.replace("STATE", state)
}

#[test]
fn a_process_and_its_report_decide() {
    assert_eq!(run_one(&report("passed"), "0"), "passed\t0\ta b\t\n");
    assert_eq!(run_one(&report("failed"), "1"), "failed\t0\ta b\tbecause\n");
    assert_eq!(run_one(&report("skipped"), "0"), "skipped\t0\ta b\tbecause\n");
}

#[test]
fn what_did_not_end_well_has_failed() {
    assert!(run_one(&report("passed"), "1").starts_with("failed\t0\ta b\tthe process failed"));
    assert!(run_one("", "0").starts_with("failed\t0\ta b\tno report of ginkgo"));
    assert!(run_one(r#"[{"SpecReports": []}]"#, "0").starts_with("failed\t0\ta b\tthe test did not run"));
}
