//! The tables of `docs/operations.md` explain exactly the statuses that the code has.

use std::collections::BTreeSet;
use std::process::Command;

use strum::{IntoEnumIterator, VariantNames};

use nodelb_core::compile::select::Choice;
use nodelb_core::model::service::BackendState;
use nodelb_core::source_report::SourceState;
use nodelb_core::state::status::Status;
use nodelb_kube::apiserver::endpoints::pool::ServerStatus;
use nodelb_report::explain::explanation::ConnectResult;

/// The first cells of the tables below this heading, without the header rows.
fn words(page: &str, heading: &str) -> Vec<String> {
    let part = crate::part(page, &format!("### {heading}"));
    let cells: Vec<&str> =
        part.lines().filter_map(|line| line.strip_prefix("| ")).filter_map(|row| row.split(" |").next()).collect();
    let titles = ["status", "state", "choice", "verdict"];
    cells.into_iter().filter(|cell| !titles.contains(cell)).map(str::to_owned).collect()
}

#[test]
fn every_status_is_explained() {
    let page = crate::read("docs/operations.md");
    let printed = |all: &[&dyn ToString]| -> Vec<String> { all.iter().map(|word| word.to_string()).collect() };
    let statuses: Vec<String> = ServerStatus::iter().map(|status| status.to_string()).collect();
    let sources = printed(&[&SourceState::Ok, &SourceState::LastGood, &SourceState::Error]);
    assert_eq!(words(&page, "Frontends and services"), Status::VARIANTS);
    assert_eq!(words(&page, "Backends"), [BackendState::VARIANTS, Choice::VARIANTS].concat());
    assert_eq!(words(&page, "Sources"), sources);
    assert_eq!(words(&page, "Apiservers"), statuses);
    assert_eq!(words(&page, "Connections"), ConnectResult::VARIANTS);
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

/// All checks that can fail, as the sources of the daemon have them.
#[test]
fn every_check_that_can_fail_is_explained() {
    let page = crate::read("docs/operations.md");
    let mut found = BTreeSet::new();
    for path in ["status.rs", "run/kernel.rs", "devices/report.rs", "reconcile.rs"] {
        let text = crate::read(&format!("daemon/src/{path}"));
        let made = text.split("Check::failed(\"").skip(1);
        found.extend(made.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    }
    assert!(found.len() >= 5, "{found:?}");
    for check in found {
        let is_documented = page.lines().any(|line| line.starts_with(&format!("| {check} |")));
        assert!(is_documented, "docs/operations.md does not mention the check {check}");
    }
}

/// `nodelb status` of this daemon: the exit code, and its list of problems.
fn status(daemon: &crate::daemon::Daemon) -> (Option<i32>, String, serde_json::Value) {
    let run = |output: &str| {
        let admin = daemon.admin.to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nodelb"));
        command.args(["status", "--admin", &admin, "--output", output]).output().expect("the binary starts")
    };
    let text = run("text");
    let data: serde_json::Value = serde_json::from_slice(&run("json").stdout).expect("JSON");
    (text.status.code(), String::from_utf8(text.stdout).expect("UTF-8"), data)
}

/// Nothing is translated with maps in memory, and a missing kubeconfig explains why nothing is synced.
#[test]
fn status_names_maps_in_memory_and_a_missing_kubeconfig() {
    let (daemon, _) = crate::daemon::Daemon::start();
    let (code, text, data) = status(&daemon);
    assert_eq!((code, &data["ready"]), (Some(1), &true.into()), "{text}");
    assert_eq!(data["problems"][0]["reason"], "NotTranslated", "{data:#}");
    assert!(text.contains("PROBLEMS (1)\n  CRITICAL  datapath"), "{text}");
    drop(daemon);
    let more = "[kubernetes]\nenabled = true\nkubeconfig = \"/nonexistent/kubeconfig\"\n";
    let (daemon, _) = crate::daemon::Daemon::start_with(more, "kubeconfig");
    // The services directory has just changed, so it is listed twice.
    let waits_for_files = |data: &serde_json::Value| data["problems"].to_string().contains("sync of: files");
    let mut statuses = std::iter::repeat_with(|| status(&daemon));
    let (code, text, data) = statuses.find(|(_, _, data)| !waits_for_files(data)).expect("it has no end");
    assert_eq!((code, &data["ready"]), (Some(2), &false.into()), "{text}");
    let first = &data["problems"][0];
    assert_eq!((&first["reason"], &first["blocks_readiness"]), (&"NoApiserver".into(), &true.into()), "{data:#}");
    assert!(first["cause"].as_str().is_some_and(|cause| cause.contains("/nonexistent/kubeconfig")), "{data:#}");
    // `diagnose` has the same cause in the same words, although the daemon knows no service at all.
    let admin = daemon.admin.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nodelb"));
    command.args(["diagnose", "default/kubernetes", "--admin", &admin, "-o", "json", "--config"]);
    let output = command.arg(daemon.config()).output().expect("the binary starts");
    let diagnosis: nodelb_report::rows::Diagnosis = serde_json::from_slice(&output.stdout).expect("JSON");
    let cause = &diagnosis.findings[0];
    assert_eq!((output.status.code(), cause.kind.to_string().as_str()), (Some(2), "apiserver-away"), "{diagnosis:#?}");
    assert_eq!(first["cause"], cause.what.as_str());
    let is_cause = |finding: &&nodelb_report::rows::FindingRow| finding.explained_by.is_none();
    // The maps of this daemon are in memory, which no other finding explains.
    let causes = diagnosis.findings.iter().filter(is_cause).map(|finding| finding.kind.to_string());
    assert_eq!(causes.collect::<Vec<_>>(), ["apiserver-away", "not-translated"], "{diagnosis:#?}");
}
