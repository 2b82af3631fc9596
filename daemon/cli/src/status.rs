//! `nodelb status`: prints the summary of the daemon and the node. The exit code shows whether something is wrong.

use std::process::ExitCode;

use nodelb_report::problems::Severity;
use nodelb_report::status_report::StatusReport;

use super::answer::decode;
use super::asking::Asking;
use crate::exit::Failure;

/// The exit code when there are problems, and when the node is not ready.
const PROBLEMS: u8 = 1;
const NOT_READY: u8 = 2;

pub(super) fn run(asking: &Asking) -> Result<ExitCode, Failure> {
    let body = asking.get("/status", &[])?;
    let report: StatusReport = decode(&body)?;
    asking.show(&body, &report)?;
    Ok(exit_code(&report))
}

/// A notice is no reason for a script to act.
fn exit_code(report: &StatusReport) -> ExitCode {
    let is_bad = report.problems.iter().any(|problem| problem.severity > Severity::Notice);
    match (report.ready, is_bad) {
        (false, _) => NOT_READY.into(),
        (true, true) => PROBLEMS.into(),
        (true, false) => ExitCode::SUCCESS,
    }
}
