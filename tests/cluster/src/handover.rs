//! What the flows of the phases of a hand-over counted, as Markdown.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Judged;
use crate::traffic::Count;

/// A phase: its name, and the counts of each place that clients are at.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    name: String,
    places: BTreeMap<String, Vec<Count>>,
}

impl Phase {
    #[cfg(test)]
    pub(crate) fn new(name: &str, places: BTreeMap<String, Vec<Count>>) -> Self {
        Self { name: name.to_owned(), places }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether nodelb does not run in it: what fails is for comparison.
    fn is_control(&self) -> bool {
        self.name.ends_with(" with kube-proxy")
    }

    /// The counts, each with its place.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&str, &Count)> {
        self.places.iter().flat_map(|(place, counts)| counts.iter().map(move |count| (place.as_str(), count)))
    }
}

/// Reads `DIRECTORY/NUMBER-PHASE/PLACE.json`, with spaces of the name as `_`.
pub(crate) fn phases(directory: &Path) -> Result<Vec<Phase>, String> {
    let mut phases = Vec::new();
    for (name, path) in entries(directory)?.into_iter().filter(|(_, path)| path.is_dir()) {
        let mut places = BTreeMap::new();
        for (file, path) in entries(&path)? {
            let Some(place) = file.strip_suffix(".json") else { continue };
            let text = fs::read_to_string(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            places.insert(place.to_owned(), counts(&text).map_err(|error| format!("{}: {error}", path.display()))?);
        }
        let name = name.split_once('-').map_or(name.as_str(), |(_number, name)| name).replace('_', " ");
        phases.push(Phase { name, places });
    }
    Ok(phases)
}

fn entries(directory: &Path) -> Result<BTreeMap<String, std::path::PathBuf>, String> {
    let failed = |error: std::io::Error| format!("cannot list {}: {error}", directory.display());
    let entry = |entry: fs::DirEntry| (entry.file_name().to_string_lossy().into_owned(), entry.path());
    fs::read_dir(directory).map_err(failed)?.map(|found| found.map(entry).map_err(failed)).collect()
}

/// A place without any count is one where the clients have failed.
fn counts(text: &str) -> Result<Vec<Count>, String> {
    let counts: Vec<Count> =
        text.lines().map(serde_json::from_str).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    if counts.is_empty() { Err("no flows".to_owned()) } else { Ok(counts) }
}

/// How many exchanges of a flow may fail in a phase.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    phase: String,
    flow: String,
    most: u64,
    reason: String,
}

/// Reads the documented numbers: phase (`*` for all), flow (a part of `PLACE: FLOW`), the most that may fail, and the reason, with tabs.
pub(crate) fn expected(text: &str) -> Result<Vec<Expected>, String> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let fields: Vec<_> = line.split('\t').collect();
            let [phase, flow, most, reason] = fields[..] else { return Err(format!("not four fields: {line}")) };
            let most = most.parse().map_err(|error| format!("{line}: {error}"))?;
            Ok(Expected { phase: phase.to_owned(), flow: flow.to_owned(), most, reason: reason.to_owned() })
        })
        .collect()
}

/// The table, and the failures that are not documented.
pub(crate) fn table(phases: &[Phase], expected: &[Expected]) -> Judged {
    let mut text =
        String::from("| phase | flows | exchanges | failed | of these, documented |\n|---|---|---|---|---|\n");
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    if phases.is_empty() {
        problems.push("no phases".to_owned());
    }
    for phase in phases {
        let (mut flows, mut ok, mut failed, mut documented) = (0, 0, 0, 0);
        for (place, count) in phase.counts() {
            flows += 1;
            ok += count.ok;
            failed += count.failed;
            let flow = format!("{place}: {}", count.flow);
            let rule = expected
                .iter()
                .find(|rule| (rule.phase == phase.name || rule.phase == "*") && flow.contains(&rule.flow));
            let found = format!(
                "{}: {flow}: {} of {} failed ({})",
                phase.name,
                count.failed,
                count.ok + count.failed,
                count.failures
            );
            match rule {
                _ if count.ok == 0 => problems.push(format!("{found}, none succeeded")),
                _ if count.failed == 0 => {}
                _ if phase.is_control() => notes.push(format!("- {found}")),
                Some(rule) if count.failed <= rule.most => {
                    documented += count.failed;
                    notes.push(format!("- {found}: {}", rule.reason));
                }
                _ => problems.push(found),
            }
        }
        if flows == 0 {
            problems.push(format!("{}: no flows", phase.name));
        }
        let documented = if phase.is_control() { "-".to_owned() } else { documented.to_string() };
        text.push_str(&format!("| {} | {flows} | {} | {failed} | {documented} |\n", phase.name, ok + failed));
    }
    for note in notes {
        text.push_str(&format!("\n{note}"));
    }
    for problem in &problems {
        text.push_str(&format!("\n- **not documented:** {problem}"));
    }
    Judged { text: text.trim_end().to_owned(), problems }
}

#[cfg(test)]
#[path = "tests/handover.rs"]
mod tests;
