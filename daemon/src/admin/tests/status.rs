use nodelb_core::problems::Reason;
use nodelb_core::status_report::StatusReport;

use super::status;
use crate::admin::Now;
use crate::admin::fixture::unsynced;
use crate::generated;

#[test]
fn the_summary_survives_json_and_says_that_the_node_is_not_ready() {
    let report = status(&unsynced(), Now::default());
    assert!(!report.ready);
    assert!(report.problems.iter().any(|problem| problem.blocks_readiness));
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<StatusReport>(&json).unwrap(), report);
}

/// The table of `docs/operations.md` is the catalogue. `UPDATE=1` rewrites it.
#[test]
fn the_catalogue_of_problems_is_documented() {
    let rows = Reason::CATALOGUE.iter().map(|entry| {
        let command = entry.command.replace("{}", "SERVICE");
        let alerts = if entry.alerts.is_empty() { "-".to_owned() } else { entry.alerts.join(", ") };
        format!("| {} | {} | {} | `{command}` | {alerts} |\n", entry.name, entry.severity, entry.meaning)
    });
    let table: String = rows.collect::<String>() + "\n";
    generated::is_part_of_file("docs/operations.md", ("|---|---|---|---|---|", "The table is generated"), &table);
}
