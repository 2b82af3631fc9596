use serde_json::{Value, json};

use super::*;
use crate::diagnose::finding::Kind;

fn report() -> Report {
    let finding =
        Finding::new(Severity::Critical, Kind::NotReady, "none is ready").evidence(["pod a"]).remedy("look at it");
    let fine = Finding::new(Severity::Ok, Kind::Works, "it answers");
    Report {
        service: "shop/web".into(),
        severity: Severity::Critical,
        witnesses: vec!["the daemon on this node".into(), "no apiserver".into()],
        findings: vec![finding, fine],
    }
}

#[test]
fn people_read_numbered_findings() {
    let expected = "\
shop/web: CRITICAL (asked: the daemon on this node; no apiserver)

1. CRITICAL: none is ready
   - pod a
   => look at it

2. ok: it answers
";
    assert_eq!(report().to_text(), expected);
}

#[test]
fn programs_read_the_same() {
    let reported: Value = serde_json::from_str(&report().to_json().unwrap()).unwrap();
    let first = json!({
        "severity": "critical", "kind": "not-ready", "what": "none is ready", "evidence": ["pod a"], "remedy": "look at it",
    });
    assert_eq!(reported["findings"][0], first);
    assert_eq!(reported["findings"][1]["remedy"], Value::Null);
    assert_eq!((&reported["service"], &reported["severity"]), (&json!("shop/web"), &json!("critical")));
}
