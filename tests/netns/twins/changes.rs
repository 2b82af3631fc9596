//! What changes about a host: the sections of `changes.txt`, each with its way back.

use std::str::FromStr;

use crate::network::ip;
use crate::sandbox::command;

use super::Case;

/// Which of the two clients reach alone, or what differs although they reach both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub(super) enum Only {
    Nodelb,
    Stack,
    /// The source address that the backend sees differs.
    Source,
}

/// A difference that the documentation has.
pub(super) struct Excuse {
    only: Only,
    /// The numbers of the services that have it.
    services: Vec<u16>,
    /// What the documentation says.
    pub(super) text: &'static str,
}

#[derive(Default)]
pub(super) struct Change {
    pub(super) name: &'static str,
    /// Changes with one of these in common exclude each other.
    concerns: Vec<&'static str>,
    begin: String,
    end: String,
    pub(super) excuse: Option<Excuse>,
}

impl Change {
    /// All of them, in the order of the file.
    pub(super) fn all() -> Vec<Self> {
        let sections = include_str!("changes.txt").split("\n# ").skip(1);
        sections.map(Self::parse).collect()
    }

    fn parse(section: &'static str) -> Self {
        let (name, lines) = section.split_once('\n').unwrap();
        let mut change = Self { name, ..Self::default() };
        for line in lines.lines().filter(|line| !line.is_empty()) {
            let (kind, rest) = line.split_once(' ').unwrap();
            match kind {
                "concerns:" => change.concerns = rest.split(", ").collect(),
                "differs:" => {
                    let (what, text) = rest.split_once(": ").unwrap();
                    let (only, services) = what.split_once(' ').unwrap();
                    let services = services.split(' ').map(|number| number.parse().unwrap()).collect();
                    change.excuse = Some(Excuse { only: Only::from_str(only).unwrap(), services, text });
                }
                "+" => change.begin += &format!("{rest}\n"),
                "-" => change.end += &format!("{rest}\n"),
                _ => panic!("a line of changes.txt: {line}"),
            }
        }
        change
    }

    pub(super) fn begin(&self) {
        shell(&self.begin);
    }

    pub(super) fn end(&self) {
        shell(&self.end);
    }

    pub(super) fn excludes(&self, other: &Self) -> bool {
        self.concerns.iter().any(|word| other.concerns.contains(word))
    }

    pub(super) fn excuses(&self, only: Only, case: &Case) -> bool {
        self.excuse.as_ref().is_some_and(|it| it.only == only && it.services.contains(&case.number))
    }
}

/// Runs the lines as commands of the node.
fn shell(lines: &str) {
    command("sh", &["-e", "-c", lines]);
    // No neighbour is known from before.
    ip(&["neigh", "flush", "all"]);
}
