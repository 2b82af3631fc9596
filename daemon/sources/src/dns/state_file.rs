//! The last answers and the backends in use, kept in the state directory over a restart or reboot: the daemon starts
//! without a DNS server and serves the backends that it knew. Owns the format of the file.

use std::io;
use std::path::{Path, PathBuf};

use nodelb_core::model::moment::Moment;
use nodelb_core::model::named::{DnsName, NameRecords, NamedAddress, Question, refusal};
use nodelb_core::text;
use nodelb_host::clock::boot_id;
use nodelb_host::messages;
use nodelb_host::state_file::{self, Limits, SavedState};
use serde::{Deserialize, Serialize};
use tracing::info;

use super::answer::Records;
use super::entry::{Held, Known, Saved};

const NAME: &str = "names.json";

const VERSION: u32 = 1;

/// Maximum size of the file in bytes, enough for a few hundred thousand addresses.
const MAX_BYTES: usize = 32 << 20;

/// Maximum length in characters of the name of a server that is read from the file.
const MAX_SERVER: usize = 64;

/// Maximum length in characters of a problem that is read from the file.
const MAX_PROBLEM: usize = 512;

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    answers: Vec<Entry>,
    /// Earlier versions neither write nor read this.
    #[serde(default)]
    used: Vec<UsedEntry>,
    /// The boot since which `gone` counts.
    #[serde(default)]
    boot: String,
}

#[derive(Serialize, Deserialize)]
struct UsedEntry {
    question: Question,
    #[serde(flatten)]
    records: NameRecords,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    question: Question,
    #[serde(flatten)]
    known: Known,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gone: Option<(u64, u64)>,
}

pub(super) fn read(path: &Path) -> io::Result<Saved> {
    let form: Option<Form> = state_file::read_json(path, MAX_BYTES, VERSION)?;
    let mut saved = Saved::default();
    let Some(Form { answers, used, boot, .. }) = form else { return Ok(saved) };
    let is_of_boot = boot_id().is_ok_and(|current| current == boot);
    let is_name = |name: &DnsName| DnsName::of_labels(name.as_str()).is_ok_and(|it| it == *name);
    for Entry { question, mut known, problem, gone } in answers {
        let is_valid = is_name(&question.name)
            && match &known.records {
                Records::Addresses(addresses) => !addresses.is_empty(),
                Records::Targets(targets) => {
                    !targets.is_empty() && targets.iter().all(|target| target.port > 0 && is_name(&target.name))
                }
            };
        if is_valid {
            known.server = text::limited(&known.server, MAX_SERVER).into();
            if let Some(problem) = problem.filter(|_| is_of_boot) {
                let gone_since = gone.map(|(since, unix)| (Moment(since), unix));
                saved.held.insert(
                    question.clone(),
                    Held { problem: text::limited(&problem, MAX_PROBLEM).into(), gone_since },
                );
            }
            saved.answers.insert(question, known);
        }
    }
    for UsedEntry { question, mut records } in used {
        let is_usable =
            |address: &NamedAddress| refusal(address.addr).is_none() && address.srv.is_none_or(|srv| srv.0 > 0);
        records.priorities.iter_mut().for_each(|priority| priority.retain(is_usable));
        records.priorities.retain(|priority| !priority.is_empty());
        records.server = text::limited(&records.server, MAX_SERVER).into();
        records.is_recalled = true;
        if !records.priorities.is_empty() && is_name(&question.name) {
            saved.used.insert(question, records);
        }
    }
    Ok(saved)
}

fn write(path: &Path, saved: &Saved) -> io::Result<()> {
    let answer = |(question, known): (&Question, &Known)| Entry {
        question: question.clone(),
        known: known.clone(),
        problem: saved.held.get(question).map(|held| held.problem.to_string()),
        gone: saved.held.get(question).and_then(|held| held.gone_since).map(|(since, unix)| (since.0, unix)),
    };
    let used = |(question, records): (&Question, &NameRecords)| UsedEntry {
        question: question.clone(),
        records: records.clone(),
    };
    let form = Form {
        version: VERSION,
        answers: saved.answers.iter().map(answer).collect(),
        used: saved.used.iter().map(used).collect(),
        boot: boot_id()?,
    };
    state_file::write_json(path, MAX_BYTES, &form)
}

/// What the previous run has stored, and the file for what this one stores.
pub type Stored = SavedState<Saved>;

pub(super) async fn load(directory: &Path, limits: Limits) -> Stored {
    load_with(directory.join(NAME), limits, read).await
}

pub(super) async fn load_with(
    path: PathBuf,
    limits: Limits,
    read: impl Fn(&Path) -> io::Result<Saved> + Send + Sync + 'static,
) -> Stored {
    let unread = "backends with names are not known until a DNS server answers";
    let unwritten = "after a restart, backends with names would be unknown until a DNS server answers";
    SavedState::open(path, [unread, unwritten], limits, read, write).await
}

/// Logs what the previous run has stored.
pub(super) fn log(saved: &Saved) {
    if !saved.answers.is_empty() {
        info!(
            message_id = %messages::STATE_LOADED,
            "the last answers to {} DNS questions are in use until a DNS server answers", saved.answers.len()
        );
    }
}

#[cfg(test)]
#[path = "tests/state_file.rs"]
mod tests;
