//! The tables of `docs/operations.md` explain exactly the statuses that the code has.

use nodelb_core::compile::select::Choice;
use nodelb_core::explain::explanation::ConnectResult;
use nodelb_core::model::service::BackendState;
use nodelb_core::source_report::SourceState;
use nodelb_core::state::status::Status;
use nodelb_kube::apiserver::endpoints::pool::ServerStatus;

/// The first cells of the tables below this heading, without the header rows.
fn words(page: &str, heading: &str) -> Vec<String> {
    let begin = format!("\n### {heading}\n");
    let (_, rest) = page.split_once(&begin).ok_or_else(|| format!("no heading {heading}")).expect("a heading");
    let part = rest.split("\n### ").next().expect("a part");
    let cells: Vec<&str> =
        part.lines().filter_map(|line| line.strip_prefix("| ")).filter_map(|row| row.split(" |").next()).collect();
    let titles = ["status", "state", "choice", "verdict"];
    cells.into_iter().filter(|cell| !titles.contains(cell)).map(str::to_owned).collect()
}

#[test]
fn every_status_is_explained() {
    let page = crate::read("docs/operations.md");
    let printed = |all: &[&dyn ToString]| -> Vec<String> { all.iter().map(|word| word.to_string()).collect() };
    let statuses: Vec<String> = ServerStatus::ALL.iter().map(ToString::to_string).collect();
    let sources = printed(&[&SourceState::Ok, &SourceState::LastGood, &SourceState::Error]);
    assert_eq!(words(&page, "Frontends and services"), Status::NAMES);
    assert_eq!(words(&page, "Backends"), [&BackendState::NAMES[..], &Choice::NAMES[..]].concat());
    assert_eq!(words(&page, "Sources"), sources);
    assert_eq!(words(&page, "Apiservers"), statuses);
    assert_eq!(words(&page, "Connections"), ConnectResult::NAMES);
}

/// The checks of a running daemon, in their order. The memory datapath has no programs.
#[test]
fn every_check_of_readiness_is_explained() {
    let (daemon, _) = crate::daemon::Daemon::start();
    let answer: serde_json::Value = serde_json::from_str(&daemon.get("/readyz?output=json")).expect("JSON");
    let page = crate::read("docs/operations.md");
    for row in answer["readyz"].as_array().expect("rows") {
        let check = row["check"].as_str().expect("a name");
        let is_documented = page.lines().any(|line| line.starts_with(&format!("| {check} |")));
        assert!(is_documented, "docs/operations.md does not mention the check {check}");
    }
}

/// Each alert has a first step.
#[test]
fn every_alert_has_a_first_look() {
    let page = crate::read("docs/operations.md");
    for line in crate::read("contrib/prometheus/nodelb.rules.yaml").lines() {
        if let Some(alert) = line.trim().strip_prefix("- alert: ") {
            let is_documented = page.split(|c: char| !c.is_alphanumeric()).any(|word| word == alert);
            assert!(is_documented, "docs/operations.md does not mention {alert}");
        }
    }
}
