//! The step `status`: the problems that `nodelb status` shows first, and its exit code.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use nodelb_core::history::History;
use nodelb_core::model::service::Source;
use nodelb_core::snapshot::Snapshot;
use nodelb_core::source_report::{SourceReport, SourceState};
use nodelb_report::explain::summary::Summary;
use nodelb_report::problems::{Observed, Problem, Severity, problems};
use nodelb_report::time::{Clocks, Time};

use crate::runner::File;

/// The problems, one per line, without times, which depend on the number of attempts.
pub(crate) fn status(snapshot: Snapshot, files: &BTreeMap<PathBuf, File>) -> String {
    let observed = Observed {
        clocks: Clocks { moment: snapshot.at, time: Time(snapshot.at.0) },
        sources: files.iter().map(|(path, file)| Arc::new(report(path, file))).collect(),
        summary: Arc::new(Summary::new(&snapshot)),
        snapshot: Arc::new(snapshot),
        history: Arc::new(History::default()),
        ..Observed::default()
    };
    let found = problems(&observed);
    let code = i32::from(found.iter().any(|problem| problem.severity > Severity::Notice));
    let lines: String = found.iter().map(line).collect();
    format!("{lines}exit code {code}\n")
}

fn line(problem: &Problem) -> String {
    let Problem { severity, reason, object, cause, command, .. } = problem;
    format!("{severity} {reason}  {object}  {cause}  {command}\n")
}

fn report(path: &std::path::Path, file: &File) -> SourceReport {
    let state = match (file.problems.is_empty(), &file.content) {
        (true, _) => SourceState::Ok,
        (false, Some(_)) => SourceState::LastGood,
        (false, None) => SourceState::Error,
    };
    SourceReport {
        source: Source::Files,
        path: path.display().to_string(),
        kind: None,
        state,
        services: 0,
        slices: 0,
        content: None,
        notices: Vec::new(),
        problems: file.problems.clone(),
        since: 0,
        last_received: None,
    }
}
