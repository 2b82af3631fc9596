//! From single findings to a diagnosis: which finding explains which, and their order. The catalogue has the relations.

use std::cmp::Reverse;

use nodelb_report::rows::{FindingKind as Kind, FindingRow as Finding};

use super::catalogue;

/// Sets what explains each finding, unless its rule has done so, and sorts them: the causes, the most severe first and of
/// equally severe ones in the order of the catalogue, then what they explain. A cause is as severe as what it explains.
pub(super) fn relate(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| place(finding.kind));
    for at in 0..findings.len() {
        let (causes, rest) = findings.split_at_mut(at);
        let Some(finding) = rest.first_mut() else { break };
        let is_suppressed = |finding: &Finding| {
            let by = |kind| catalogue::finding(kind).suppresses.contains(&finding.kind);
            finding.explained_by.is_some_and(by)
        };
        let cause = causes.iter().filter(|cause| !is_suppressed(cause)).find(|cause| {
            let entry = catalogue::finding(cause.kind);
            entry.explains.contains(&finding.kind) || entry.suppresses.contains(&finding.kind)
        });
        finding.explained_by = finding.explained_by.or(cause.map(|cause| cause.kind));
    }
    for at in (0..findings.len()).rev() {
        let (kind, severity) = (findings[at].kind, findings[at].severity);
        let Some(cause) = findings[at].explained_by else { continue };
        if catalogue::finding(cause).explains.contains(&kind) {
            let causes = findings.iter_mut().filter(|finding| finding.kind == cause);
            causes.for_each(|finding| finding.severity = finding.severity.max(severity));
        }
    }
    findings.sort_by_key(|finding| (finding.explained_by.is_some(), Reverse(finding.severity), place(finding.kind)));
}

fn place(kind: Kind) -> usize {
    catalogue::findings().iter().position(|entry| entry.kind == kind).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "tests/finding.rs"]
mod tests;
