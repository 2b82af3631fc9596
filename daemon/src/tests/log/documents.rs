//! Checks the documents that are generated from the table of messages, and that the table has every journal line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, str};

use nodelb_host::messages::{FIELDS, MESSAGES, Message, MessageId};

use crate::generated;
use crate::log::limit;

#[test]
fn ids_are_random_and_given_once() {
    let ids: BTreeSet<MessageId> = MESSAGES.iter().map(|message| message.id).collect();
    assert_eq!(ids.len(), MESSAGES.len(), "an id is given twice");
    for Message { name, id, subject, explanation, remedy } in MESSAGES {
        // Version 4 of RFC 9562, as systemd-id128 generates ids.
        assert_eq!((id.0 >> 76 & 0xf, id.0 >> 62 & 0b11), (4, 0b10), "{name}: make the id with `systemd-id128 new`");
        assert!(!subject.ends_with('.') && subject.len() < 80, "{name}: {subject}");
        assert!(explanation.ends_with('.') && remedy.ends_with('.'), "{name}");
    }
}

/// The name in `@FIELD@` must be a field.
#[test]
fn the_explanations_name_fields_that_exist() {
    for message in MESSAGES {
        for text in [message.explanation, message.remedy] {
            let named = text.split('@').skip(1).step_by(2);
            for name in named {
                assert!(FIELDS.iter().any(|(field, _)| field.to_uppercase() == name), "{}: {name}", message.name);
            }
        }
    }
}

const CATALOG: &str = "contrib/systemd/nodelb.catalog";

/// The format of systemd's catalogue, see <https://systemd.io/CATALOG>.
fn catalog() -> String {
    let mut text = "\
# What nodelb's journal messages mean: `journalctl -x` shows it. Generated from daemon/host/src/messages.rs:
# UPDATE=1 cargo test -p nodelb --lib log
"
    .to_owned();
    for Message { id, subject, explanation, remedy, .. } in MESSAGES {
        let body = wrapped(&format!("{explanation}\n\nWhat to do: {remedy}"));
        text.push_str(&format!(
            "\n-- {id}\nSubject: {subject}\nDefined-By: nodelb\nDocumentation: man:nodelb(8)\n\n{body}"
        ));
    }
    text
}

/// Lines of at most 80 columns.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    for paragraph in text.split('\n') {
        let mut column = 0;
        for word in paragraph.split_whitespace() {
            if column > 0 && column + 1 + word.len() > 80 {
                out.push('\n');
                column = 0;
            }
            if column > 0 {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += word.len();
        }
        out.push('\n');
    }
    out
}

/// The catalogue is generated from the table. `UPDATE=1` rewrites it.
#[test]
fn the_catalogue_is_the_table() {
    generated::is_whole_file(CATALOG, &catalog());
}

/// As strict as systemd's own reader: entries with headers and a text each, without duplicates.
#[test]
fn the_catalogue_can_be_read() {
    let text = catalog();
    let mut entries = BTreeMap::new();
    for entry in text.split("\n-- ").skip(1) {
        let (head, body) = entry.split_once("\n\n").expect("an empty line behind the headers");
        let mut lines = head.lines();
        let id = lines.next().unwrap();
        assert!(id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()), "{id}");
        let headers: Vec<_> = lines.map(|line| line.split_once(": ").expect(line).0).collect();
        assert_eq!(headers, ["Subject", "Defined-By", "Documentation"]);
        assert!(!body.trim().is_empty() && !body.lines().any(|line| line.starts_with("-- ")), "{body}");
        assert!(entries.insert(id, body).is_none());
    }
    assert_eq!(entries.len(), MESSAGES.len());
}

/// systemd's own tool accepts the catalogue, if it is installed.
#[test]
fn systemd_reads_the_catalogue() {
    let root = tempfile::tempdir().unwrap();
    let directory = root.path().join("usr/lib/systemd/catalog");
    fs::create_dir_all(&directory).unwrap();
    fs::create_dir_all(root.path().join("var/lib/systemd/catalog")).unwrap();
    fs::write(directory.join("nodelb.catalog"), catalog()).unwrap();
    let run = |arguments: &[&str]| Command::new("journalctl").arg("--root").arg(root.path()).args(arguments).output();
    // A machine without systemd does not need the catalogue.
    let Ok(output) = run(&["--update-catalog"]) else { return };
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = run(&["--list-catalog"]).unwrap();
    let listed = str::from_utf8(&listed.stdout).unwrap();
    for Message { id, subject, .. } in MESSAGES {
        assert!(listed.lines().any(|line| line.starts_with(&id.to_string()) && line.ends_with(subject)), "{subject}");
    }
}

const INTRODUCTION: &str = "\
# Journal

Generated from `daemon/host/src/messages.rs`: `UPDATE=1 cargo test -p nodelb --lib log` rewrites it.

Each line has a message id, which identifies the message regardless of its text. `journalctl -x` shows below each line what
the message means and what to do; the text is in `/usr/lib/systemd/catalog/nodelb.catalog`, in the sources
[contrib/systemd/nodelb.catalog](../contrib/systemd/nodelb.catalog).

    journalctl -u nodelb -x
    journalctl -u nodelb SERVICE=shop/web
    journalctl MESSAGE_ID=@HELD@    # all services that were held

nodelb logs only changes. Per minute it logs at most @BURST@ messages with the same id and level, and at most @SAME@ warnings
with the same text; it counts the others and logs their number in one line. Outside systemd, the lines go to standard error,
without the id.

## Fields

";

/// `docs/journal.md` is generated from the tables. `UPDATE=1` rewrites it.
#[test]
fn the_document_is_the_table() {
    let held = MESSAGES.iter().find(|message| message.name == "SERVICE_HELD").unwrap().id.to_string();
    let numbers = [("@BURST@", limit::BURST.to_string()), ("@SAME@", limit::SAME.to_string()), ("@HELD@", held)];
    let fill = |text: String, (place, number): &(&str, String)| text.replace(place, number);
    let mut text = numbers.iter().fold(INTRODUCTION.to_owned(), fill);
    for (name, meaning) in FIELDS {
        text.push_str(&format!("- `{}`: {meaning}\n", name.to_uppercase()));
    }
    text.push_str("\n## Messages\n\n");
    for Message { name, id, subject, .. } in MESSAGES {
        text.push_str(&format!("- {name}: {subject} (`{id}`)\n"));
    }
    generated::is_whole_file("docs/journal.md", &text);
}

/// The Rust sources of all packages, without tests.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// Each `warn!(...)` and similar call: `FILE:LINE` and the text between the parentheses.
fn calls() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for package in ["", "cli", "core", "datapath", "host", "kube", "report", "sources"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(package).join("src"), &mut files);
    }
    let mut calls = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for level in ["error!(", "warn!(", "info!("] {
            for (start, _) in text.match_indices(level) {
                let line = text[..start].rsplit('\n').next().unwrap_or_default();
                let is_word = line.chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
                if is_word || line.trim_start().starts_with("//") {
                    continue;
                }
                let at = format!("{}:{}", file.display(), text[..start].lines().count());
                calls.push((at, arguments(&text[start + level.len()..]).to_owned()));
            }
        }
    }
    calls
}

/// The text up to the closing parenthesis.
fn arguments(text: &str) -> &str {
    let (mut depth, mut is_text, mut is_escaped) = (1, false, false);
    for (index, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_text => is_escaped = true,
            '"' => is_text = !is_text,
            '(' if !is_text => depth += 1,
            ')' if !is_text => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..index];
        }
    }
    panic!("a call without an end: {text}");
}

/// Every logging call begins with its message id. The only exception is the limiter, which passes ids on.
#[test]
fn every_line_has_an_id_and_every_id_a_line() {
    let calls = calls();
    assert!(calls.len() > 100, "{}", calls.len());
    let mut used = BTreeSet::new();
    for (at, arguments) in &calls {
        let id = arguments.trim_start().strip_prefix("message_id = %").unwrap_or_else(|| {
            panic!("{at}: begin with `message_id = %messages::...`, see daemon/host/src/messages.rs: {arguments}")
        });
        match id.strip_prefix("messages::") {
            Some(name) => used.insert(name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap()),
            None => {
                assert!(at.contains("/log/limit.rs:"), "{at}: {arguments}");
                continue;
            }
        };
    }
    let known: BTreeSet<_> = MESSAGES.iter().map(|message| message.name).collect();
    assert_eq!(used, known, "a message that is never logged");
}

/// The table contains all fields, and each of them occurs in a line.
#[test]
fn every_field_is_documented() {
    let mut used = BTreeSet::new();
    for (at, arguments) in calls() {
        let arguments = arguments.replace("env!(\"CARGO_PKG_VERSION\")", "env");
        let head = arguments.split('"').next().unwrap();
        for field in head.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let name = field.split(['=', ' ']).next().unwrap().trim_start_matches(['%', '?']);
            assert!(FIELDS.iter().any(|(known, _)| *known == name), "{at}: the field {name} is not in FIELDS");
            used.insert(name.to_owned());
        }
    }
    let known: BTreeSet<_> = FIELDS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(used, known, "a field that no line has");
}
