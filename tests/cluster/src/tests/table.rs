use super::*;

fn results(text: &str) -> Results {
    parse(&text.replace(' ', "\t")).unwrap()
}

#[test]
fn the_last_run_counts() {
    let results = results("failed 3 a slow\npassed 4 a \nfailed 1 b no\n");
    assert_eq!(results.failed(), ["b"]);
    assert_eq!(results.count(State::Passed), 1);
}

#[test]
fn damaged_results_are_refused() {
    for text in ["passed\t3\ta", "passed\tx\ta\t", "good\t3\ta\t"] {
        assert!(parse(text).is_err(), "{text}");
    }
    assert!(reasons("a test without a reason").is_err() && known("a\tb").is_err() && known("a\tb\tc").is_err());
}

#[test]
fn only_unexplained_failures_are_problems() {
    let nodelb = results(
        "passed 1 a \nfailed 2 b b-reason\nfailed 3 c c-reason\nfailed 4 d d-reason\nskipped 0 e e-reason\nfailed 5 f f-reason\n",
    );
    let kube_proxy = results("passed 2 b \npassed 3 c \nfailed 4 d d-reason\n");
    let known = known("# comment\nc\tdesign\tby design\nb\tboth\tthe machine\nd\tboth\tthe machine\n").unwrap();
    let judged = compare(&nodelb, &kube_proxy, &known);
    assert_eq!(
        judged.problems,
        ["nodelb fails, kube-proxy passes: b: b-reason", "nodelb fails, not run with kube-proxy: f: f-reason"]
    );
    for row in [
        "| nodelb | 1 | 4 | 1 |",
        "| kube-proxy, those that nodelb did not pass | 2 | 1 | 0 |",
        "| b | failed | passed | the machine |",
        "| c | failed | passed | by design |",
        "| d | failed | failed | the machine |",
        "| e | skipped | not run | e-reason |",
        "| a | 1 s | - |",
        "| d | **failed** after 4 s | **failed** after 4 s |",
    ] {
        assert!(judged.text.lines().any(|line| line == row), "{row}\n{}", judged.text);
    }
}

#[test]
fn cells_do_not_end_the_row() {
    assert_eq!(short("[sig-network] a|b <c>"), "a\\|b &lt;c>");
}

#[test]
fn the_known_differences_are_readable() {
    assert!(!known(include_str!("../../differences.tsv")).unwrap().is_empty());
    assert!(!reasons(include_str!("../../not-run.tsv")).unwrap().is_empty());
}
