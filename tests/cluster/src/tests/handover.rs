use super::*;

fn phase(name: &str, flow: &str, ok: u64, failed: u64) -> Phase {
    let count = Count { flow: flow.to_owned(), ok, failed, failures: "2 RESET".to_owned() };
    Phase { name: name.to_owned(), places: BTreeMap::from([("pod-node1".to_owned(), vec![count])]) }
}

#[test]
fn what_failed_needs_a_documented_number() {
    let rules = expected("# comment\nreboot\tweb long-tcp\t2\tits node is gone\n").unwrap();
    let judge = |flow, failed| table(&[phase("reboot", flow, 10, failed)], &rules).problems.len();
    assert_eq!(judge("web long-tcp", 2), 0);
    assert_eq!(judge("web long-tcp", 3), 1);
    assert_eq!(judge("web new-tcp", 2), 1);
    assert_eq!(judge("web new-tcp", 0), 0);
}

/// The same events with kube-proxy are for comparison.
#[test]
fn what_fails_with_kube_proxy_needs_no_documented_number() {
    let judged = table(&[phase("reboot with kube-proxy", "web", 5, 2)], &[]);
    assert_eq!(judged.problems, [] as [&str; 0]);
    assert!(judged.text.contains("\n| reboot with kube-proxy | 1 | 7 | 2 | - |\n"), "{}", judged.text);
    assert!(
        judged.text.ends_with("- reboot with kube-proxy: pod-node1: web: 2 of 7 failed (2 RESET)"),
        "{}",
        judged.text
    );
    assert_eq!(table(&[phase("reboot with kube-proxy", "web", 0, 2)], &[]).problems.len(), 1);
}

#[test]
fn a_phase_without_answers_fails() {
    assert_eq!(table(&[phase("a", "web", 0, 0)], &[]).problems.len(), 1);
    assert_eq!(table(&[Phase { name: "a".to_owned(), places: BTreeMap::new() }], &[]).problems.len(), 1);
    assert_eq!(table(&[], &[]).problems.len(), 1);
}

#[test]
fn the_table_has_a_row_for_each_phase() {
    let judged = table(&[phase("a", "web", 8, 0), phase("b", "web", 5, 2)], &expected("b\tweb\t2\tbecause\n").unwrap());
    assert!(judged.text.contains("\n| a | 1 | 8 | 0 | 0 |\n| b | 1 | 7 | 2 | 2 |\n"), "{}", judged.text);
    assert!(judged.text.ends_with("- b: pod-node1: web: 2 of 7 failed (2 RESET): because"), "{}", judged.text);
}

#[test]
fn phases_are_read_in_order() {
    let directory = tempfile::tempdir().unwrap();
    for (name, ok) in [("2-to_nodelb", 2), ("1-upgrade", 1)] {
        fs::create_dir(directory.path().join(name)).unwrap();
        let line = format!(r#"{{"flow": "web", "ok": {ok}, "failed": 0, "failures": ""}}"#);
        fs::write(directory.path().join(name).join("outside.json"), line).unwrap();
    }
    let found = phases(directory.path()).unwrap();
    assert_eq!(found.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(), ["upgrade", "to nodelb"]);
    assert_eq!(found[1].places["outside"][0].ok, 2);
    fs::write(directory.path().join("1-upgrade").join("pod.json"), "").unwrap();
    assert!(phases(directory.path()).is_err());
}

#[test]
fn the_documented_numbers_are_readable() {
    expected(include_str!("../../expected.tsv")).unwrap();
}
