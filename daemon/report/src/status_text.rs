//! The text of `nodelb status`: one screen, the problems first.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::durations;
use crate::output::table::{GREEN, RED, Style, YELLOW};
use crate::output::wrap;
use crate::problems::{Problem, Severity};
use crate::rows::Answer;
use crate::status_report::{ChangeSummary, StatusReport};
use crate::time::Time;
use nodelb_core::model::service::{BackendState, Source};
use nodelb_core::source_report::SourceState;
use nodelb_core::state::status::Status;
use nodelb_core::text::signed;

/// The maximum number of problems in text, unless all are requested.
const SHOWN: usize = 10;
/// The column of what stands below the line of a problem.
const BELOW: usize = 12;
/// What ends a clause of a cause.
const CLAUSES: [&str; 2] = [": ", "; "];
/// The maximum width of the column of objects.
const OBJECT: usize = 28;
/// The maximum number of addresses of a change, unless all are requested.
const ADDRESSES: usize = 4;

impl Answer for StatusReport {
    fn text(&self, _: Time, style: &Style) -> String {
        let mut out = String::new();
        push_head(&mut out, self, style);
        push_problems(&mut out, self, style);
        push_absence(&mut out, self, style);
        push_counts(&mut out, self, style);
        push_changes(&mut out, self, style);
        out
    }
}

fn push_line(out: &mut String, style: &Style, text: &str) {
    wrap::push_line(out, text, style.width.unwrap_or(usize::MAX));
    out.push('\n');
}

fn push_head(out: &mut String, report: &StatusReport, style: &Style) {
    let (word, colour) = match (report.ready, report.problems.first().map(|it| it.severity)) {
        (false, _) => ("NOT READY", RED),
        (true, Some(Severity::Critical)) => ("READY", YELLOW),
        (true, _) => ("READY", GREEN),
    };
    let kernel = match &report.kernel {
        None => "maps in memory".to_owned(),
        Some(kernel) if kernel.missing_features.is_empty() => format!("kernel {} (all features)", kernel.release),
        Some(kernel) => {
            format!("kernel {} ({} optional features missing)", kernel.release, kernel.missing_features.len())
        }
    };
    let up = durations::human(report.uptime_seconds.saturating_mul(1_000));
    wrap::push_display(out, format_args!("{}  nodelb {}  up {up}  ", report.node, report.version));
    wrap::push_display(out, format_args!("{}  {kernel}\n", style.paint(colour, word)));
    let missing = report.kernel.iter().flat_map(|kernel| &kernel.missing_features);
    for feature in missing.filter(|_| style.wide) {
        push_line(out, style, &format!("  missing: {feature}"));
    }
}

fn push_problems(out: &mut String, report: &StatusReport, style: &Style) {
    let problems = &report.problems;
    if problems.is_empty() {
        out.push_str("No problems found.\n");
        return;
    }
    wrap::push_display(out, format_args!("PROBLEMS ({})\n", problems.len()));
    let shown = if style.wide || style.width.is_none() { problems.len() } else { problems.len().min(SHOWN) };
    let object = problems[..shown].iter().map(|it| it.object.chars().count()).max().unwrap_or_default().min(OBJECT);
    for problem in &problems[..shown] {
        push_problem(out, problem, (object, report.time), style);
    }
    if shown < problems.len() {
        wrap::push_display(out, format_args!("  and {} more: nodelb status -o wide\n", problems.len() - shown));
    }
}

/// What to do if there is nothing to serve.
fn push_absence(out: &mut String, report: &StatusReport, style: &Style) {
    let selection = report.apiserver.as_ref().and_then(|apiserver| apiserver.selection.as_deref());
    if let Some(keys) = selection.filter(|_| lacks_kubernetes_services(report)) {
        let text = format!(
            "No Kubernetes services: {keys} selects no Service that nodelb serves; to change it, edit \
             /etc/nodelb/nodelb.toml and restart nodelb"
        );
        push_line(out, style, &wrap::printable(&text));
    } else if report.problems.is_empty() && report.counts.services == 0 && report.apiserver.is_none() {
        let next = "No services: add a file to files.directory (/etc/nodelb/services.d unless `nodelb config` says \
                    otherwise), or configure [kubernetes] in /etc/nodelb/nodelb.toml";
        push_line(out, style, next);
    }
}

/// Whether everything that is selected of the cluster is known, and no service is among it.
fn lacks_kubernetes_services(report: &StatusReport) -> bool {
    let kubernetes = Source::Kubernetes.to_string();
    let mut places = report.sources.iter().filter(|place| place.source == kubernetes).peekable();
    places.peek().is_some() && places.all(|place| place.state == SourceState::Ok && place.services == 0)
}

/// One line: severity, object, age, cause; and the next command, if there is room. What does not fit stands below.
fn push_problem(out: &mut String, problem: &Problem, (object, now): (usize, Time), style: &Style) {
    let word = problem.severity.to_string().to_uppercase();
    let colour = match problem.severity {
        Severity::Critical => RED,
        Severity::Warning => YELLOW,
        Severity::Notice => "",
    };
    let age = problem.since.map_or_else(|| "-".into(), |since| durations::human(since.age(now)));
    let gap = " ".repeat(8_usize.saturating_sub(word.len()));
    let name = wrap::printable(&problem.object);
    wrap::push_display(out, format_args!("  {}{gap}  {name:<object$}  {age:<5}  ", style.paint(colour, &word)));
    let start = 2 + 8 + 2 + object.max(name.chars().count()) + 2 + 5.max(age.len()) + 2;
    let (cause, command) = (wrap::printable(&problem.cause), wrap::printable(&problem.command));
    let width = style.width.unwrap_or(usize::MAX);
    let (head, rest) = split_clause(&cause, width.saturating_sub(start));
    out.push_str(head);
    let mut taken = start + head.chars().count();
    if !rest.is_empty() {
        end_line(out);
        wrap::push_spaces(out, BELOW);
        taken = BELOW + wrap::push_words(out, rest, (0, width.saturating_sub(BELOW)), BELOW);
    }
    if taken.saturating_add(2 + command.chars().count()) <= width {
        out.push_str("  ");
    } else {
        end_line(out);
        wrap::push_spaces(out, BELOW.min(width.saturating_sub(command.chars().count()).max(4)));
    }
    wrap::push_display(out, format_args!("{command}\n"));
}

fn end_line(out: &mut String) {
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}

/// The clauses of a text that fit into so many characters, and the others; if not even the first one fits, its words that do.
fn split_clause(text: &str, room: usize) -> (&str, &str) {
    if text.chars().count() <= room {
        return (text, "");
    }
    let fits = |(at, _): &(usize, &str)| text[..*at].chars().count() <= room;
    let ends = CLAUSES.iter().flat_map(|end| text.match_indices(end)).filter(fits);
    match ends.max().or_else(|| text.match_indices(' ').rfind(fits)) {
        Some((at, end)) => (&text[..at], &text[at + end.len()..]),
        None => ("", text),
    }
}

fn push_counts(out: &mut String, report: &StatusReport, style: &Style) {
    let counts = &report.counts;
    let services =
        detail(&counts.services_by_status, |status| *status != Status::Ok || counts.services_by_status.len() > 1);
    let frontends = detail(&counts.frontends_by_status, |status| *status != Status::Ok);
    let backends = detail(&counts.backends_by_state, |state| *state != BackendState::Active);
    let objects = format!(
        "services {}{services}   frontends {}{frontends}   backends {}{backends}",
        counts.services, counts.frontends, counts.backends
    );
    push_line(out, style, &objects);
    let mut parts = Vec::new();
    if let Some(apiserver) = &report.apiserver {
        let received = apiserver.last_response.map(|at| durations::human(at.age(report.time)));
        parts.push(match (&apiserver.address, received) {
            (Some(address), Some(received)) => format!("API server {address}, last response {received} ago"),
            (Some(address), None) => format!("API server {address}"),
            (None, _) => "no API server in use".into(),
        });
    }
    let failed = report.sources.iter().filter(|source| source.state != SourceState::Ok).count();
    parts.push(if failed == 0 {
        "sources ok".into()
    } else {
        format!("sources: {failed} of {} failed", report.sources.len())
    });
    parts.extend(report.checks.iter().filter(|check| !check.passed).map(|check| format!("{} failed", check.name)));
    push_line(out, style, &parts.join("   "));
    // For connections from outside the node, also a good state has a reason, such as a kube-proxy that is present.
    for check in report.checks.iter().filter(|check| check.passed && check.name == "devices") {
        push_line(out, style, &format!("outside: {}", check.detail));
    }
}

/// Formats as ` (211 OK, 1 Held)`; empty if no number is worth showing.
fn detail<K: Display + Ord>(counts: &BTreeMap<K, usize>, is_shown: impl Fn(&K) -> bool) -> String {
    let shown = counts.iter().filter(|(key, number)| **number > 0 && is_shown(key));
    let parts: Vec<String> = shown.map(|(key, number)| format!("{number} {key}")).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

fn push_changes(out: &mut String, report: &StatusReport, style: &Style) {
    if report.changes.is_empty() {
        return;
    }
    out.push_str("LAST CHANGES\n");
    let service = |change: &ChangeSummary| match change.services.len() {
        0 | 1 => change.service.clone().unwrap_or_else(|| "nodelb".into()),
        several => format!("{several} services"),
    };
    let width =
        report.changes.iter().map(|change| service(change).chars().count()).max().unwrap_or_default().min(OBJECT);
    let addresses = if style.wide || style.width.is_none() { usize::MAX } else { ADDRESSES };
    for change in &report.changes {
        let age = durations::human(change.time.age(report.time));
        let start = format!("  {age:<5}  {:<width$}  {:<10}  ", service(change), change.change);
        let indent = start.chars().count();
        wrap::push_display(out, &start);
        let room = style.width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(20));
        let shown = what(change, addresses, |detail| {
            let why = detail.split_once(": ").map_or(detail, |(_, why)| why);
            style.width.is_some() && !style.wide && report.problems.iter().take(SHOWN).any(|it| it.cause.contains(why))
        });
        wrap::push_words(out, &wrap::printable(&shown), (0, room), indent);
        out.push('\n');
    }
}

/// With at most this number of addresses, and without a detail that is known, formats as
/// `-10.1.0.1:8080/TCP  EndpointSlice shop/web rv 15, bob`.
fn what(change: &ChangeSummary, addresses: usize, is_known: impl Fn(&str) -> bool) -> String {
    let mut backends: Vec<String> = signed('+', &change.added).chain(signed('-', &change.removed)).collect();
    let more = backends.len().saturating_sub(addresses);
    backends.truncate(addresses);
    if more > 0 {
        backends.push(format!("and {more} more"));
    }
    let mut cause = change.object.clone().unwrap_or_default();
    cause.extend(change.resource_version.as_ref().map(|version| format!(" rv {version}")));
    cause.extend(change.writer.as_ref().map(|writer| format!(", {writer}")));
    let detail = change.detail.as_deref().map(|detail| if is_known(detail) { "see above" } else { detail });
    let parts = [backends.join(" "), cause, detail.unwrap_or_default().to_owned()];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
#[path = "tests/status_text.rs"]
mod tests;
