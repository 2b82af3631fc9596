//! Findings as text or as JSON. Pure.

use std::fmt::Write;

use serde::Serialize;

use super::facts::{Facts, Probe};
use super::finding::{Finding, Severity};

/// Everything that the command prints.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    service: String,
    severity: Severity,
    /// The witnesses that were asked, and how they were reached.
    witnesses: Vec<String>,
    findings: Vec<Finding>,
}

impl Report {
    pub(super) fn new(facts: &Facts, findings: Vec<Finding>) -> Self {
        let severity = findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Ok);
        let daemon = match &facts.daemon {
            Probe::Ok(_) => "the daemon on this node",
            Probe::Failed(_) => "no daemon",
            Probe::Skipped => "not the daemon",
        };
        let cluster = match &facts.cluster {
            Probe::Ok(cluster) => format!("an apiserver: {}", cluster.via),
            Probe::Failed(_) => "no apiserver".into(),
            Probe::Skipped => "no Kubernetes".into(),
        };
        let connect_tests = match facts.connect_tests.len() {
            0 => "no connections".into(),
            number => format!("{number} connections"),
        };
        Self {
            service: facts.service.to_string(),
            severity,
            witnesses: vec![daemon.into(), cluster, connect_tests],
            findings,
        }
    }

    pub(super) fn severity(&self) -> Severity {
        self.severity
    }

    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Returns one numbered paragraph per finding, the most severe first.
    pub(super) fn to_text(&self) -> String {
        let mut text = format!("{}: {} (asked: {})\n", self.service, word(self.severity), self.witnesses.join("; "));
        for (place, finding) in self.findings.iter().enumerate() {
            // Writing to a string does not fail.
            let _ = writeln!(text, "\n{}. {}: {}", place + 1, word(finding.severity), finding.what);
            for evidence in &finding.evidence {
                let _ = writeln!(text, "   - {evidence}");
            }
            if !finding.remedy.is_empty() {
                let _ = writeln!(text, "   => {}", finding.remedy);
            }
        }
        text
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Ok => "ok",
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "CRITICAL",
    }
}

#[cfg(test)]
#[path = "tests/show.rs"]
mod tests;
