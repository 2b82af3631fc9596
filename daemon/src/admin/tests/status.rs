use nodelb_cli::diagnose::catalogue;
use nodelb_core::model::moment::Moment;
use nodelb_report::problems::Reason;
use nodelb_report::rows::Diagnosis;
use nodelb_report::status_report::StatusReport;
use nodelb_report::time::Clocks;
use strum::EnumMessage;

use super::status;
use crate::admin::fixture::{always, kubernetes, unsynced};
use crate::admin::state::AdminState;
use crate::admin::tables::tests::apiservers::report;
use crate::config::Config;
use crate::generated;

#[test]
fn the_summary_survives_json_and_says_that_the_node_is_not_ready() {
    let report = status(&unsynced(), Clocks::default());
    assert!(!report.ready);
    assert!(report.problems.iter().any(|problem| problem.blocks_readiness));
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<StatusReport>(&json).unwrap(), report);
}

#[test]
fn the_keys_that_select_services_are_named() {
    let selection = |keys: &str| {
        let config = always(Config::parse(&format!("[kubernetes]\n{keys}\n")).unwrap());
        let state = AdminState { config, kubernetes: Some(kubernetes(report())), ..unsynced() };
        let now = Clocks { moment: Moment(21_000), ..Clocks::default() };
        status(&state, now).apiserver.unwrap().selection
    };
    assert_eq!(selection(""), None);
    let keys = "kubernetes.label-selector = team=shopp and kubernetes.namespaces = shop, pay";
    let found = selection("label-selector = \"team=shopp\"\nnamespaces = [\"shop\", \"pay\"]");
    assert_eq!(found.as_deref(), Some(keys));
}

/// The table of `docs/operations.md` is the catalogue. `UPDATE=1` rewrites it.
#[test]
fn the_catalogue_of_problems_is_documented() {
    let rows = Reason::CATALOGUE.iter().map(|entry| {
        let alerts = if entry.alerts.is_empty() { "-".to_owned() } else { entry.alerts.join(", ") };
        format!("| {} | {} | {} | {alerts} |\n", entry.name, entry.severity, entry.meaning)
    });
    let table = format!("|---|---|---|---|\n{}\n", rows.collect::<String>());
    generated::is_part_of_file(
        "docs/operations.md",
        ("| reason | severity | meaning | alerts |", "The table is generated"),
        &table,
    );
}

/// The lists of `docs/diagnose.md` are the catalogue of findings and the fields of the rows. `UPDATE=1` rewrites them.
#[test]
fn the_findings_of_diagnose_are_documented() {
    let rows = catalogue::findings().iter().map(|entry| {
        let severity = format!("{:?}", entry.severity).to_lowercase();
        let meaning = entry.kind.get_documentation().unwrap_or_default().trim_end_matches('.');
        format!("- `{}`, {severity}: {meaning}\n", entry.kind)
    });
    let list = format!("\n{}\n", rows.collect::<String>());
    generated::is_part_of_file("docs/diagnose.md", ("## Findings", "The findings are generated"), &list);
    let schema = schemars::schema_for!(Diagnosis).to_value();
    let whole = fields(&schema, "");
    let parts = [("FindingRow", "findings"), ("SkippedRow", "not_checked"), ("ConnectTestRow", "connections")];
    let parts: String = parts.iter().map(|(row, list)| fields(&schema["$defs"][row], &format!("{list}[]."))).collect();
    let list = format!("\n{whole}{parts}\n");
    generated::is_part_of_file("docs/diagnose.md", ("`null`.", "The fields are generated"), &list);
}

/// The fields of a schema as a list.
fn fields(schema: &serde_json::Value, prefix: &str) -> String {
    let properties = schema["properties"].as_object().unwrap();
    let rows = properties.iter().map(|(name, of)| {
        let meaning = of["description"].as_str().unwrap().trim_end_matches('.').replace('\n', " ");
        format!("- `{prefix}{name}`: {meaning}\n")
    });
    rows.collect()
}
