use super::*;
use crate::traffic::Count;

fn phase(name: &str, failed: u64) -> Phase {
    let count =
        |kind: &str, failed| Count { flow: format!("web {kind}"), ok: 10, failed, failures: "1 RESET".to_owned() };
    Phase::new(name, BTreeMap::from([("outside".to_owned(), vec![count("new-tcp", failed), count("new-udp", 0)])]))
}

#[test]
fn nodelb_may_not_fail_more_often() {
    let judge = |nodelb, other| table(&[phase("nodelb", nodelb), phase("kube-proxy", other)]);
    assert!(judge(1, 1).problems.is_empty());
    assert_eq!(judge(1, 0).problems, ["new-tcp: 1 failed with nodelb, 0 with kube-proxy"]);
    let text = judge(1, 2).text;
    assert!(text.contains("\n| new-tcp | 11 | 1 | 12 | 2 |\n| new-udp | 10 | 0 | 10 | 0 |\n"), "{text}");
    assert!(text.ends_with("- nodelb: outside: web new-tcp: 1 of 11 failed (1 RESET)\n- kube-proxy: outside: web new-tcp: 2 of 12 failed (1 RESET)"), "{text}");
}

#[test]
fn both_runs_must_exist() {
    assert_eq!(table(&[phase("nodelb", 0)]).problems.len(), 1);
}
