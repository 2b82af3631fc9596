//! JSON reports of ginkgo, the framework of upstream's tests.

use std::collections::BTreeMap;

use serde::Deserialize;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Passed,
    Skipped,
    Failed,
}

impl State {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
}

/// The result of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) state: State,
    /// Why it failed or was skipped, in one line; empty if it passed.
    pub(crate) reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    #[serde(default)]
    spec_reports: Option<Vec<Spec>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    #[serde(default)]
    failure: Failure,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Failure {
    message: String,
}

impl Spec {
    fn name(&self) -> String {
        let mut parts = self.container_hierarchy_texts.clone().unwrap_or_default();
        parts.push(self.leaf_node_text.clone());
        parts.join(" ")
    }
}

fn specs(report: &str) -> Result<Vec<Spec>, String> {
    let suites: Vec<Suite> = serde_json::from_str(report).map_err(|error| format!("no report of ginkgo: {error}"))?;
    Ok(suites.into_iter().flat_map(|suite| suite.spec_reports.unwrap_or_default()).collect())
}

/// The names of the tests that a dry run would run.
pub(crate) fn names(report: &str) -> Result<Vec<String>, String> {
    let mut names: Vec<_> = specs(report)?
        .iter()
        .filter(|spec| spec.leaf_node_type == "It" && spec.state == "passed")
        .map(Spec::name)
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// Reads the tests that cannot run on this cluster: a part of the name, a tab, and the reason. Returns the tests that can,
/// and how many cannot for each reason.
pub(crate) fn select(names: Vec<String>, not_run: &[(String, String)]) -> (Vec<String>, BTreeMap<String, usize>) {
    let mut reasons = BTreeMap::new();
    let can = |name: &String| match not_run.iter().find(|(part, _)| name.contains(part.as_str())) {
        Some((_, reason)) => {
            *reasons.entry(reason.clone()).or_default() += 1;
            false
        }
        None => true,
    };
    (names.into_iter().filter(can).collect(), reasons)
}

/// The result of the test with this name. Also fails if the suite itself failed, before the test ran.
pub(crate) fn outcome(report: &str, name: &str) -> Result<Outcome, String> {
    let specs = specs(report)?;
    let spec = specs.iter().find(|spec| spec.leaf_node_type == "It" && spec.name() == name);
    let state = match spec.map(|spec| spec.state.as_str()) {
        Some("passed") => State::Passed,
        Some("skipped") if spec.is_some_and(|spec| !spec.failure.message.is_empty()) => State::Skipped,
        // Not selected: a suite that fails before it skips all tests.
        Some("skipped") | None => return Err("the test did not run".to_owned()),
        Some(_) => State::Failed,
    };
    let reason = if state == State::Passed { String::new() } else { spec.map(reason).unwrap_or_default() };
    Ok(Outcome { state, reason })
}

/// The longest reason in a table, in characters.
const LONGEST: usize = 240;

fn reason(spec: &Spec) -> String {
    let line = spec.failure.message.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(LONGEST).collect()
}

/// The regular expression of Go that selects only this test.
pub(crate) fn focus(name: &str) -> String {
    let mut expression = String::new();
    for letter in name.chars() {
        if letter.is_ascii_punctuation() {
            expression.push('\\');
        }
        expression.push(letter);
    }
    expression + "$"
}

#[cfg(test)]
#[path = "tests/ginkgo.rs"]
mod tests;
