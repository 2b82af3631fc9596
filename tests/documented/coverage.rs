//! The documentation covers exactly what exists.

use std::collections::BTreeSet;

use nodelb::admin::metrics::METRICS;
use nodelb_host::messages::{FIELDS, MESSAGES};

use crate::daemon::Daemon;
use crate::manual::{Manual, plain};

type Names = BTreeSet<String>;

fn names<'t>(texts: impl IntoIterator<Item = &'t str>) -> Names {
    texts.into_iter().map(str::to_owned).collect()
}

/// Panics with the differences unless both sets are equal.
fn agree(exists: &Names, documented: &Names, place: &str) {
    let missing: Vec<_> = exists.difference(documented).collect();
    let made_up: Vec<_> = documented.difference(exists).collect();
    assert!(missing.is_empty(), "{place} does not mention {missing:?}");
    assert!(made_up.is_empty(), "{place} mentions {made_up:?}, which does not exist");
}

fn page() -> Manual {
    Manual::open("contrib/man/nodelb.8")
}

/// The commands that users run.
pub(crate) fn commands() -> Vec<clap::Command> {
    let mut all = nodelb_cli::command();
    all.build();
    all.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help").cloned().collect()
}

#[test]
fn every_command_is_documented() {
    let exists = names(commands().iter().map(clap::Command::get_name));
    let listed: Names = page().entries("COMMANDS").iter().flat_map(|entry| words(entry)).collect();
    agree(&exists, &listed, "COMMANDS of nodelb(8)");
    let synopsis: Vec<String> = page().section("SYNOPSIS").lines().map(plain).collect();
    for command in commands() {
        assert!(command.get_about().is_some(), "{} has no help", command.get_name());
        let is_named = |line: &String| words(line).any(|word| word == command.get_name());
        assert!(synopsis.iter().any(is_named), "SYNOPSIS of nodelb(8) does not mention {}", command.get_name());
    }
}

/// `services|frontends [--type TYPE]` has the words services, frontends, --type and TYPE. The first
/// word of an entry counts.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split([' ', ',', '|', '[', ']', '='])
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect::<Vec<_>>()
        .into_iter()
}

/// The long flags of all commands.
pub(crate) fn flags() -> Names {
    let mut exists = names(["--help", "--version"]);
    for command in commands() {
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let is_own = !["help", "version"].contains(&argument.get_id().as_str());
            assert!(!is_own || argument.get_help().is_some(), "{} {}: no help", command.get_name(), argument.get_id());
            exists.extend(argument.get_long().map(|long| format!("--{long}")));
        }
    }
    exists
}

#[test]
fn every_flag_is_documented() {
    let entries = page().entries("OPTIONS");
    let listed: Names = entries.iter().flat_map(|entry| words(entry)).filter(|word| word.starts_with("--")).collect();
    agree(&flags(), &listed, "OPTIONS of nodelb(8)");
    let synopsis: Names =
        page().section("SYNOPSIS").lines().flat_map(|line| words(&plain(line)).collect::<Vec<_>>()).collect();
    let unknown: Vec<_> = synopsis.iter().filter(|word| word.starts_with("--") && !flags().contains(*word)).collect();
    assert!(unknown.is_empty(), "SYNOPSIS of nodelb(8): {unknown:?}");
}

/// Queries a daemon for its routes and their parameters.
#[test]
fn every_route_and_parameter_is_documented() {
    let (daemon, _) = Daemon::start();
    let answer: serde_json::Value = serde_json::from_str(&daemon.get("/?output=json")).unwrap();
    let rows = answer["routes"].as_array().unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let exists: Names = rows.iter().map(|row| text(&row["route"])).collect();
    let page = page();
    let entries = page.entries("ADMIN API");
    let listed: Names = entries.iter().flat_map(|entry| words(entry)).filter(|word| word.starts_with('/')).collect();
    agree(&exists, &listed, "ADMIN API of nodelb(8)");

    let section: String = page.section("ADMIN API").lines().map(|line| plain(line) + "\n").collect();
    let parameters: Names = rows.iter().flat_map(|row| row["parameters"].as_array().unwrap()).map(text).collect();
    for parameter in &parameters {
        let name = parameter.split('=').next().unwrap();
        let is_documented = section.split(|c: char| !c.is_alphanumeric() && c != '-').any(|word| word == name);
        assert!(is_documented, "ADMIN API of nodelb(8) does not mention the parameter {parameter}");
    }
    // The routes in machine-readable form.
    let openapi: serde_json::Value = serde_json::from_str(&daemon.get("/openapi.json")).unwrap();
    let described = names(openapi["paths"].as_object().unwrap().keys().map(String::as_str));
    agree(&exists, &described, "/openapi.json");
}

#[test]
fn every_metric_is_documented() {
    let exists = names(METRICS.iter().map(|metric| metric.name));
    assert!(page().section("METRICS").contains("docs/metrics.md"), "METRICS of nodelb(8) refers to the list");
    agree(&exists, &first_cells("docs/metrics.md"), "docs/metrics.md");
}

/// The first column of the document's tables, or what its lists begin with, as code.
fn first_cells(path: &str) -> Names {
    let text = crate::read(path);
    text.lines()
        .filter_map(|line| line.strip_prefix("| `").or_else(|| line.strip_prefix("- `")))
        .filter_map(|row| row.split('`').next())
        .map(str::to_owned)
        .collect()
}

/// `section.key` for every key of the example; a unit test compares the example with the code.
#[test]
fn every_configuration_key_is_documented() {
    let (mut section, mut exists) = (String::new(), Names::new());
    for line in crate::read("config.example.toml").lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.to_owned();
        } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            exists.insert(format!("{section}.{key}"));
        }
    }
    assert!(exists.len() > 20, "{exists:?}");
    let page = Manual::open("contrib/man/nodelb.toml.5");
    let mut listed = Names::new();
    for heading in page.headings().filter(|heading| heading.starts_with('[')) {
        let section = plain(heading);
        let section = section.trim_matches(['[', ']']);
        for entry in page.entries(heading) {
            // A key of a nested table, such as [[kubernetes.apiserver]], is documented in the entry
            // of the table.
            listed.extend(entry.split_once(" = ").map(|(key, _)| format!("{section}.{key}")));
        }
    }
    agree(&exists, &listed, "nodelb.toml(5)");
}

#[test]
fn every_message_and_field_is_documented() {
    let ids: Names = MESSAGES.iter().map(|message| message.id.to_string()).collect();
    let text = crate::read("docs/journal.md");
    let is_id = |code: &&str| code.len() == 32 && code.chars().all(|c| c.is_ascii_hexdigit());
    let listed = names(text.split('`').skip(1).step_by(2).filter(is_id));
    agree(&ids, &listed, "docs/journal.md");
    let catalogue: Names = crate::read("contrib/systemd/nodelb.catalog")
        .lines()
        .filter_map(|line| line.strip_prefix("-- "))
        .map(str::to_owned)
        .collect();
    agree(&ids, &catalogue, "contrib/systemd/nodelb.catalog");
    let fields: Names = FIELDS.iter().map(|(name, _)| name.to_uppercase()).collect();
    agree(&fields, &first_cells("docs/journal.md"), "docs/journal.md");
}
