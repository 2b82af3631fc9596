//! The results of upstream's tests with nodelb and with kube-proxy, as Markdown.

use std::collections::BTreeMap;

use crate::Judged;
use crate::ginkgo::State;

/// Of each test, every run in the order of time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Results(BTreeMap<String, Vec<Run>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    state: State,
    seconds: u64,
    reason: String,
}

/// Reads `results.tsv`: state, seconds, name, reason.
pub(crate) fn parse(text: &str) -> Result<Results, String> {
    let mut results = Results::default();
    for line in text.lines() {
        let fields: Vec<_> = line.split('\t').collect();
        let [state, seconds, name, reason] = fields[..] else { return Err(format!("not a result: {line}")) };
        let state = match state {
            "passed" => State::Passed,
            "skipped" => State::Skipped,
            "failed" => State::Failed,
            _ => return Err(format!("unknown state: {line}")),
        };
        let seconds = seconds.parse().map_err(|_not_a_number| format!("not a number of seconds: {line}"))?;
        results.0.entry(name.to_owned()).or_default().push(Run { state, seconds, reason: reason.to_owned() });
    }
    Ok(results)
}

impl Results {
    /// The last run counts: a test runs again if the machine, not the proxy, was the reason for the first failure.
    fn last(&self, name: &str) -> Option<&Run> {
        self.0.get(name).and_then(|runs| runs.last())
    }

    fn count(&self, state: State) -> usize {
        self.0.keys().filter(|name| self.last(name).is_some_and(|run| run.state == state)).count()
    }

    pub(crate) fn failed(&self) -> Vec<&str> {
        let failed = |name: &&String| self.last(name).is_some_and(|run| run.state == State::Failed);
        self.0.keys().filter(failed).map(String::as_str).collect()
    }
}

/// Why a test does not pass.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Known {
    name: String,
    /// nodelb may fail it although kube-proxy passes.
    by_design: bool,
    reason: String,
}

/// Reads the known failures: a part of the name of a test, `design` or `both` (kube-proxy fails, too), and the reason.
pub(crate) fn known(text: &str) -> Result<Vec<Known>, String> {
    let known = |(name, rest): (String, String)| match rest.split_once('\t') {
        Some((kind @ ("design" | "both"), reason)) => {
            Ok(Known { name, by_design: kind == "design", reason: reason.to_owned() })
        }
        _ => Err(format!("{name}: neither design nor both")),
    };
    reasons(text)?.into_iter().map(known).collect()
}

/// Reads lines with a part of the name of a test, a tab, and the reason.
pub(crate) fn reasons(text: &str) -> Result<Vec<(String, String)>, String> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let split = |line: &str| line.split_once('\t').map(|(name, reason)| (name.to_owned(), reason.to_owned()));
    lines.map(|line| split(line).ok_or_else(|| format!("not a name, a tab and a reason: {line}"))).collect()
}

/// The table, and the failures that need an explanation.
pub(crate) fn compare(nodelb: &Results, kube_proxy: &Results, known: &[Known]) -> Judged {
    let mut text = String::from("| | passed | failed | skipped |\n|---|---|---|---|\n");
    for (proxy, results) in [("nodelb", nodelb), ("kube-proxy, those that nodelb did not pass", kube_proxy)] {
        let count = |state| results.count(state);
        let counts = (count(State::Passed), count(State::Failed), count(State::Skipped));
        line(&mut text, format_args!("| {proxy} | {} | {} | {} |", counts.0, counts.1, counts.2));
    }
    let mut problems = Vec::new();
    line(&mut text, format_args!("\n### Not passed\n\n| test | nodelb | kube-proxy | reason |\n|---|---|---|---|"));
    for name in nodelb.0.keys() {
        let Some(run) = nodelb.last(name).filter(|run| run.state != State::Passed) else { continue };
        let other = kube_proxy.last(name);
        let known = known.iter().find(|known| name.contains(&known.name));
        let passes = other.is_some_and(|other| other.state == State::Passed);
        if run.state == State::Failed && passes && !known.is_some_and(|known| known.by_design) {
            problems.push(format!("nodelb fails, kube-proxy passes: {name}: {}", run.reason));
        }
        if run.state == State::Failed && other.is_none() {
            problems.push(format!("nodelb fails, not run with kube-proxy: {name}: {}", run.reason));
        }
        let cells = (short(name), run.state.name(), other.map_or("not run", |other| other.state.name()));
        let reason = cell(known.map_or(&run.reason, |known| &known.reason));
        line(&mut text, format_args!("| {} | {} | {} | {reason} |", cells.0, cells.1, cells.2));
    }
    line(&mut text, format_args!("\n### All tests\n\n| test | nodelb | kube-proxy |\n|---|---|---|"));
    for name in nodelb.0.keys() {
        let runs = |results: &Results| results.0.get(name).map_or_else(|| "-".to_owned(), |runs| all(runs));
        line(&mut text, format_args!("| {} | {} | {} |", short(name), runs(nodelb), runs(kube_proxy)));
    }
    text.pop();
    Judged { text, problems }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.push_str(&format!("{arguments}\n"));
}

fn all(runs: &[Run]) -> String {
    let one = |run: &Run| match run.state {
        State::Passed => format!("{} s", run.seconds),
        State::Skipped => "skipped".to_owned(),
        State::Failed => format!("**failed** after {} s", run.seconds),
    };
    runs.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn short(name: &str) -> String {
    cell(name.strip_prefix("[sig-network] ").unwrap_or(name))
}

/// Without what Markdown or HTML would read.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
