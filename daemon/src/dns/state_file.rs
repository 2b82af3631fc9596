//! The last answers, kept in the state directory over a restart or reboot: the daemon starts without a DNS server and
//! serves the backends that it knew. Owns the format of the file.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use nodelb_core::messages;
use nodelb_kube::state_file::{self, Limits, SavedState, StateFile};
use serde::{Deserialize, Serialize};
use tracing::info;

use super::answer::Records;
use super::names::Known;
use crate::files::named::{DnsName, Question};

/// The name of the file in the state directory.
const NAME: &str = "names.json";

const VERSION: u32 = 1;

/// Maximum size of the file in bytes, enough for a few hundred thousand addresses.
const MAX_BYTES: usize = 32 << 20;

/// Maximum length in characters of the name of a server that is read from the file.
const MAX_SERVER: usize = 64;

/// The last records by question.
pub(super) type Answers = BTreeMap<Question, Known>;

#[derive(Serialize, Deserialize)]
struct Form {
    version: u32,
    answers: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    question: Question,
    records: Records,
    server: String,
    since: u64,
}

fn read(path: &Path) -> io::Result<Answers> {
    let form: Option<Form> = state_file::read_json(path, MAX_BYTES, VERSION)?;
    let mut answers = Answers::new();
    for Entry { question, records, server, since } in form.into_iter().flat_map(|form| form.answers) {
        let is_name = |name: &DnsName| DnsName::of_labels(name.as_str()).is_ok_and(|it| it == *name);
        let is_valid = is_name(&question.name)
            && match &records {
                Records::Addresses(addresses) => !addresses.is_empty(),
                Records::Targets(targets) => {
                    !targets.is_empty() && targets.iter().all(|target| target.port > 0 && is_name(&target.name))
                }
            };
        let server: String = server.chars().filter(|c| !c.is_control()).take(MAX_SERVER).collect();
        if is_valid {
            answers.insert(question, Known { records, server: server.into(), since });
        }
    }
    Ok(answers)
}

fn write(path: &Path, answers: &Answers) -> io::Result<()> {
    let entry = |(question, known): (&Question, &Known)| Entry {
        question: question.clone(),
        records: known.records.clone(),
        server: known.server.to_string(),
        since: known.since,
    };
    let form = Form { version: VERSION, answers: answers.iter().map(entry).collect() };
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    state_file::write_json(path, &form)
}

/// Reads the file: nothing, with a warning, if this fails or takes too long.
pub(super) async fn load(directory: &Path, limits: Limits) -> SavedState<Answers> {
    let path = directory.join(NAME);
    let consequence = "backends with names are not known until a DNS server answers";
    let saved = state_file::load(&path, limits.timeout, consequence, read).await.unwrap_or_default();
    if !saved.is_empty() {
        info!(
            message_id = %messages::STATE_LOADED,
            "the last answers to {} DNS questions are in use until a DNS server answers", saved.len()
        );
    }
    let consequence = "after a restart, backends with names would be unknown until a DNS server answers";
    SavedState::new(saved, StateFile::start(path, consequence, limits, |path, answers: Arc<_>| write(path, &answers)))
}

#[cfg(test)]
#[path = "tests/state_file.rs"]
mod tests;
