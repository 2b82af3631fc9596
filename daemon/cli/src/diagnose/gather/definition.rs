//! The line of a service file that defines a service. The command reads the files itself, because a file that is refused
//! has no services; a file that it may not read has no lines.

use std::fs::File;
use std::io::Read;

use nodelb_core::model::service::ServiceName;

use crate::diagnose::facts::{Definition, ServiceRow, SourceRow};

/// The maximum size of a file in bytes, and the maximum number of files that are read.
const MAX_SIZE: u64 = 4 << 20;
const FILES: usize = 64;

/// Returns the definition of a service in the file that its row names, or in one that is not served.
pub(super) fn find(services: &[ServiceRow], sources: &[SourceRow], name: &ServiceName) -> Option<Definition> {
    let is_file = |row: &&SourceRow| row.source.eq_ignore_ascii_case("files");
    let origin =
        |file: &str| services.iter().any(|row| row.origin == file || row.origin.ends_with(&format!("/{file}")));
    let line = |row: &SourceRow| read(&row.path).and_then(|text| line_of(&text, name));
    if let Some(row) = sources.iter().filter(is_file).find(|row| origin(&row.path)) {
        return Some(Definition { line: line(row), file: row.path.clone() });
    }
    // What is kept from before the start has no origin.
    if services.iter().any(|row| !row.origin.is_empty()) {
        return None;
    }
    let refused = sources.iter().filter(is_file).filter(|row| row.state != "Ok").take(FILES);
    let mut found = refused.filter_map(|row| {
        let line = line(row);
        let quoted = row.problems.iter().any(|problem| problem.contains(&format!("service {name}:")));
        (line.is_some() || quoted).then(|| Definition { file: row.path.clone(), line })
    });
    found.next()
}

fn read(path: &str) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_SIZE).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the line, from 1: `name = "shop/web"` in TOML; in YAML and JSON, the `name` of metadata that also has the
/// namespace.
fn line_of(text: &str, name: &ServiceName) -> Option<u64> {
    let full = name.to_string();
    let is_toml = |line: &str| value(line, '=').is_some_and(|(key, value)| key == "name" && value == full);
    let by_name = text.lines().position(is_toml);
    let line = by_name.or_else(|| {
        let has =
            |line: &str, wanted: (&str, &str)| line.split([',', '{', '}']).any(|it| value(it, ':') == Some(wanted));
        let lines: Vec<&str> = text.lines().collect();
        let is_name = |at: &usize| has(lines[*at], ("name", &name.name));
        // The neighbours are the other lines of the metadata, in the same document.
        let is_in_namespace = |at: &usize| {
            let is_same = |line: &&&str| !line.starts_with("---");
            let before = lines[..*at].iter().rev().take_while(is_same).take(3);
            let mut near = before.chain(lines[*at..].iter().take_while(is_same).take(4));
            &*name.namespace == "default" || near.any(|line| has(line, ("namespace", &name.namespace)))
        };
        (0..lines.len()).filter(is_name).find(is_in_namespace)
    });
    u64::try_from(line?).ok().map(|line| line + 1)
}

/// Returns the key and the value of a line, without quotes.
fn value(line: &str, separator: char) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(separator)?;
    Some((bare(key), bare(value)))
}

fn bare(text: &str) -> &str {
    text.split(" #").next().unwrap_or(text).trim().trim_start_matches("- ").trim_matches(['"', '\'', ' '])
}

#[cfg(test)]
#[path = "tests/definition.rs"]
mod tests;
