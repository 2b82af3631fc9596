use std::time::Duration;

use nodelb_core::model::service::ServiceName;
use nodelb_report::rows::FindingRow;

use super::*;
use crate::diagnose::facts::{ConnectTest, KernelSettings, Probe};

fn facts() -> Facts {
    let test = |outcome| ConnectTest { to: "10.96.0.10:53/TCP".into(), is_backend: false, outcome, peer: None };
    let refused = Outcome::Failed("ECONNREFUSED".into(), Duration::from_micros(1_234));
    Facts {
        service: ServiceName::new("shop", "web"),
        now: 1_800_000_000,
        node: "a".into(),
        daemon: Probe::Failed("nothing listens".into()),
        stored: None,
        cluster: Probe::Skipped,
        connect_tests: vec![test(refused), test(Outcome::Unprovable)],
        dns: None,
        kernel: KernelSettings::default(),
        outside_cgroup: None,
    }
}

#[test]
fn programs_get_data() {
    let diagnosis = diagnosis(&facts(), Time(1_800_000_000_500));
    let json = serde_json::to_value(&diagnosis).unwrap();
    assert_eq!(json["time"], "2027-01-15T08:00:00.500Z");
    assert_eq!((&json["severity"], &json["daemon"]), (&"critical".into(), &false.into()));
    let connection = serde_json::json!({
        "to": "10.96.0.10:53/TCP", "is_backend": false, "accepted": false, "error": "ECONNREFUSED", "milliseconds": 1.234,
    });
    assert_eq!(json["connections"], serde_json::json!([connection]), "UDP proves nothing");
    assert_eq!(json["not_checked"][0]["what"], "whether 10.96.0.10:53/TCP answers");
    assert_eq!(serde_json::from_value::<Diagnosis>(json).unwrap(), diagnosis);
}

#[test]
fn a_service_that_does_not_exist_is_not_an_outage() {
    let mut diagnosis = diagnosis(&facts(), Time(0));
    assert_eq!(exit_code(&diagnosis), ExitCode::from(2));
    let first = |kind| FindingRow { kind, ..catalogue::finding(kind).new_finding("x") };
    diagnosis.findings.insert(0, first(FindingKind::NoSuchService));
    assert_eq!(exit_code(&diagnosis), ExitCode::from(4));
    // The service may exist.
    diagnosis.findings.insert(0, first(FindingKind::ApiserverAway));
    assert_eq!(exit_code(&diagnosis), ExitCode::from(2));
}
