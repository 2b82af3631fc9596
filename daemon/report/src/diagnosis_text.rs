//! The text of `nodelb diagnose`: the causes, numbered, each with evidence and remedy.

use crate::durations;
use crate::output::table::{GREEN, RED, Style, YELLOW};
use crate::output::wrap;
use crate::rows::{Answer, Diagnosis, FindingRow, FindingSeverity};
use crate::time::Time;
use nodelb_core::text::counted;

impl Answer for Diagnosis {
    fn text(&self, _: Time, style: &Style) -> String {
        let mut out = String::new();
        push_head(&mut out, self, style);
        let (shown, hidden): (Vec<_>, Vec<_>) =
            self.findings.iter().partition(|finding| is_shown(self, finding, style));
        for (place, finding) in shown.iter().enumerate() {
            push_finding(&mut out, place + 1, (finding, self.time), style);
        }
        push_tail(&mut out, self, hidden.iter().filter(|finding| finding.explained_by.is_some()).count(), style);
        out
    }
}

/// Whether the finding is one of those that people need: a cause, and a detail only if nothing is wrong.
fn is_shown(diagnosis: &Diagnosis, finding: &FindingRow, style: &Style) -> bool {
    let is_needed = !finding.is_detail || diagnosis.severity < FindingSeverity::Warning;
    style.wide || finding.explained_by.is_none() && is_needed
}

fn word(severity: FindingSeverity) -> &'static str {
    match severity {
        FindingSeverity::Ok => "OK",
        FindingSeverity::Info => "NOTICE",
        FindingSeverity::Warning => "WARNING",
        FindingSeverity::Critical => "CRITICAL",
    }
}

fn painted(severity: FindingSeverity, style: &Style) -> String {
    let colour = match severity {
        FindingSeverity::Ok => GREEN,
        FindingSeverity::Info => "",
        FindingSeverity::Warning => YELLOW,
        FindingSeverity::Critical => RED,
    };
    style.paint(colour, word(severity))
}

/// Appends a paragraph: what `start` describes begins the first line, and the other lines are indented as its text.
fn push_paragraph(out: &mut String, text: &str, (taken, indent): (usize, usize), style: &Style) {
    let room = style.width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(20));
    let text = wrap::printable(text);
    wrap::push_words(out, &text, (taken.saturating_sub(indent), room), indent);
    out.push('\n');
}

fn push_head(out: &mut String, diagnosis: &Diagnosis, style: &Style) {
    let severity = diagnosis.severity;
    if severity < FindingSeverity::Warning {
        let what = style.paint(GREEN, "No problems found.");
        wrap::push_display(out, format_args!("{}: {what}\n", diagnosis.service));
    } else {
        wrap::push_display(out, format_args!("{}: {}\n", diagnosis.service, painted(severity, style)));
    }
}

fn push_finding(out: &mut String, number: usize, (finding, now): (&FindingRow, Time), style: &Style) {
    let start = format!("{number}. {}:", word(finding.severity));
    wrap::push_display(out, format_args!("\n{number}. {}:", painted(finding.severity, style)));
    let since = finding.since.map(|since| format!(" (for {})", durations::human(since.age(now)))).unwrap_or_default();
    push_paragraph(out, &format!("{}{since}", finding.what), (start.len(), 3), style);
    for evidence in &finding.evidence {
        out.push_str("   - ");
        push_paragraph(out, evidence, (5, 5), style);
    }
    if let Some(cause) = finding.explained_by {
        wrap::push_display(out, format_args!("   - follows from {cause}\n"));
    }
    if let Some(remedy) = &finding.remedy {
        out.push_str("   => ");
        push_paragraph(out, remedy, (6, 6), style);
    }
    if let Some(command) = &finding.command {
        wrap::push_display(out, format_args!("   $ {}\n", wrap::printable(command)));
    }
}

/// Appends what was not checked, what is not shown, and who answered.
fn push_tail(out: &mut String, diagnosis: &Diagnosis, hidden: usize, style: &Style) {
    out.push('\n');
    if hidden > 0 {
        let noun = if hidden == 1 { "finding follows" } else { "findings follow" };
        push_paragraph(out, &format!("{hidden} more {noun} from this; see --verbose."), (0, 0), style);
    }
    if !diagnosis.not_checked.is_empty() {
        push_paragraph(out, &format!("Not checked: {}", skipped(diagnosis)), (0, 0), style);
    }
    if style.wide {
        for row in &diagnosis.not_checked {
            out.push_str("   - ");
            push_paragraph(out, &format!("{}: {}", row.what, row.reason), (5, 5), style);
        }
    }
    let daemon = if diagnosis.daemon { "the daemon on this node" } else { "no daemon" };
    let apiserver =
        diagnosis.apiserver.as_ref().map_or_else(|| "no API server".into(), |it| format!("API server {it}"));
    let connections = match diagnosis.connections.len() {
        0 => "no connections".into(),
        number => counted(number, "connection"),
    };
    push_paragraph(out, &format!("Based on: {daemon}; {apiserver}; {connections}"), (0, 0), style);
}

/// Formats as `Events, Pods (use --kubeconfig), cluster DNS (use --verbose)`: each option once, after its subjects.
fn skipped(diagnosis: &Diagnosis) -> String {
    let rows = &diagnosis.not_checked;
    let each = rows.iter().enumerate().map(|(place, row)| {
        let is_last = rows.get(place + 1).is_none_or(|next| next.option != row.option);
        match row.option.as_ref().filter(|_| is_last) {
            Some(option) => format!("{} (use {option})", row.what),
            None => row.what.clone(),
        }
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[path = "tests/diagnosis_text.rs"]
mod tests;
