//! Names in running text exist: commands, flags, metrics and routes in documents, alerts and
//! messages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nodelb::admin::metrics::{METRICS, MetricKind};
use nodelb_report::problems::Reason;

use crate::{coverage, pages};

const DOCUMENTS: [&str; 10] = [
    "README.md",
    "ARCHITECTURE.md",
    "config.example.toml",
    "contrib/man/nodelb.8",
    "contrib/man/nodelb.toml.5",
    "contrib/man/nodelb.services.5",
    "contrib/systemd/nodelb.catalog",
    "contrib/prometheus/nodelb.rules.yaml",
    "contrib/grafana/nodelb.json",
    "daemon/host/src/messages.rs",
];

/// These documents, and every page of `docs/`.
fn documents() -> impl Iterator<Item = String> {
    DOCUMENTS.into_iter().map(str::to_owned).chain(pages::all())
}

/// `nodelb COMMAND` in code, with its flags.
#[test]
fn commands_that_are_mentioned_exist() {
    for document in documents() {
        let text = crate::read(&document).replace("\\-", "-");
        for (start, _) in text.match_indices("`nodelb ") {
            check_command(&document, text[start + 1..].split(['`', '\n']).next().unwrap());
        }
    }
}

/// The commands in the texts that nodelb prints: those of problems, and those in every string of its sources.
#[test]
fn commands_that_are_printed_exist() {
    let mut printed = 0;
    for entry in Reason::CATALOGUE.iter().filter(|entry| entry.command.starts_with("nodelb ")) {
        check_command(entry.name, entry.command);
        printed += 1;
    }
    for source in sources(Path::new(crate::ROOT).join("daemon")) {
        let text = std::fs::read_to_string(&source).expect("a source");
        for lead in ["`nodelb ", "run nodelb ", "see nodelb ", "with nodelb "] {
            for (start, _) in text.match_indices(lead) {
                let code = &text[start + lead.len() - "nodelb ".len()..];
                let code = code.split(['`', '"', '\n', '\\', ':', ',', ';', ')', '.']).next().unwrap_or_default();
                let command = code.split_whitespace().nth(1).unwrap_or_default();
                if command.starts_with(|c: char| c.is_ascii_lowercase()) {
                    check_command(&source.display().to_string(), code);
                    printed += 1;
                }
            }
        }
    }
    assert!(printed > 100, "{printed}");
}

/// The sources that may contain printed text.
fn sources(directory: PathBuf) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory of the repository") {
        let path = entry.expect("an entry").path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs" | "toml") => found.push(path),
            _ if path.is_dir() && !path.ends_with("tests") => found.extend(sources(path)),
            _ => {}
        }
    }
    found
}

/// Checks that the command and its long flags exist.
pub(crate) fn check_command(document: &str, code: &str) {
    let commands: BTreeSet<String> = coverage::commands().iter().map(|command| command.get_name().to_owned()).collect();
    let flags = coverage::flags();
    let mut words = code.split_whitespace().skip(1);
    let command = words.next().unwrap_or_default();
    let is_known = commands.contains(command) || command.starts_with("--");
    assert!(is_known, "{document}: `{code}`: there is no command {command}");
    for flag in words.filter(|word| word.starts_with("--")) {
        let flag = flag.split('=').next().unwrap_or(flag);
        assert!(flags.contains(flag), "{document}: `{code}`: there is no flag {flag}");
    }
}

#[test]
fn metrics_that_are_mentioned_exist() {
    for document in documents() {
        let text = crate::read(&document);
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let is_metric = word.starts_with("nodelb_") && !is_something_else(word);
            assert!(!is_metric || is_sample(word), "{document}: there is no metric {word}");
        }
    }
}

/// Crates, a test target, and packages with a version.
fn is_something_else(word: &str) -> bool {
    let is_versioned = word.trim_start_matches("nodelb_").starts_with(|c: char| c.is_ascii_digit());
    is_versioned
        || [
            "nodelb_core",
            "nodelb_report",
            "nodelb_host",
            "nodelb_datapath",
            "nodelb_kube",
            "nodelb_sources",
            "nodelb_cli",
            "nodelb_apiserver",
            "nodelb_",
        ]
        .contains(&word)
}

/// Whether a metric has samples with this name.
pub(crate) fn is_sample(name: &str) -> bool {
    METRICS.iter().any(|metric| match metric.kind {
        // The family name stands for the whole histogram.
        MetricKind::Histogram => {
            ["", "_bucket", "_sum", "_count"].iter().any(|end| name.strip_suffix(end) == Some(metric.name))
        }
        _ => name == metric.name,
    })
}
