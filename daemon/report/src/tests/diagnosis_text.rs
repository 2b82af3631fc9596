use super::*;
use crate::rows::{FindingKind, SkippedRow};

fn finding(kind: FindingKind, severity: FindingSeverity, what: &str) -> FindingRow {
    FindingRow {
        severity,
        kind,
        explained_by: None,
        since: None,
        file: None,
        line: None,
        what: what.into(),
        evidence: Vec::new(),
        remedy: None,
        command: None,
        is_detail: false,
    }
}

fn diagnosis() -> Diagnosis {
    let cause = FindingRow {
        since: Some(Time(97_000)),
        command: Some("nodelb backends shop/web".into()),
        ..finding(FindingKind::NotReady, FindingSeverity::Critical, "none of its 2 pods is ready")
    };
    let skipped = |what: &str, option: Option<&str>| SkippedRow {
        what: what.into(),
        reason: "403 Forbidden".into(),
        option: option.map(Into::into),
    };
    let derived = finding(FindingKind::FrontendRefused, FindingSeverity::Critical, "a connection fails");
    let detail = finding(FindingKind::Works, FindingSeverity::Ok, "1 backend answers from here");
    Diagnosis {
        service: "shop/web".into(),
        node: "n1".into(),
        time: Time(100_000),
        severity: FindingSeverity::Critical,
        daemon: true,
        apiserver: None,
        findings: vec![
            cause.evidence(["pod a", "pod b"]).remedy("look at it"),
            FindingRow { explained_by: Some(FindingKind::NotReady), ..derived },
            FindingRow { is_detail: true, ..detail },
        ],
        not_checked: vec![
            skipped("Events", Some("--kubeconfig")),
            skipped("Pods", Some("--kubeconfig")),
            skipped("cluster DNS", Some("--verbose")),
            skipped("whether 10.96.0.10:53/UDP answers", None),
        ],
        connections: Vec::new(),
    }
}

fn text(diagnosis: &Diagnosis, style: &Style) -> String {
    diagnosis.text(Time(0), style)
}

#[test]
fn people_read_the_causes_and_one_line_of_what_was_not_checked() {
    let expected = "\
shop/web: CRITICAL

1. CRITICAL: none of its 2 pods is ready (for 3s)
   - pod a
   - pod b
   => look at it
   $ nodelb backends shop/web

1 more finding follows from this; see --verbose.
Not checked: Events, Pods (use --kubeconfig), cluster DNS (use --verbose), whether 10.96.0.10:53/UDP answers
Based on: the daemon on this node; no API server; no connections
";
    assert_eq!(text(&diagnosis(), &Style::default()), expected);
}

#[test]
fn everything_is_shown_on_request() {
    let text = text(&diagnosis(), &Style { wide: true, ..Style::default() });
    for part in [
        "\n2. CRITICAL: a connection fails\n   - follows from not-ready\n",
        "\n3. OK: 1 backend answers from here\n",
        "\n   - Events: 403 Forbidden\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(!text.contains("see --verbose"), "{text}");
}

#[test]
fn details_are_shown_when_nothing_is_wrong() {
    let mut diagnosis = diagnosis();
    diagnosis.findings.drain(..2);
    diagnosis.severity = FindingSeverity::Ok;
    let text = text(&diagnosis, &Style::default());
    assert!(text.starts_with("shop/web: No problems found.\n\n1. OK: 1 backend answers from here\n"), "{text}");
}

#[test]
fn lines_are_wrapped_and_names_cannot_command_the_terminal() {
    let mut diagnosis = diagnosis();
    let long = "a word ".repeat(40);
    diagnosis.findings[0].what = format!("{long}\u{1b}[31m");
    diagnosis.findings[0].evidence = vec![long.clone()];
    diagnosis.findings[0].remedy = Some(long);
    for width in [40, 80, 100] {
        let text = text(&diagnosis, &Style { width: Some(width), ..Style::default() });
        let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(longest <= width, "{width}: {text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(
            text.lines().filter(|line| line.starts_with("   a word") || line.starts_with("   word")).count() > 1,
            "{text}"
        );
    }
}
