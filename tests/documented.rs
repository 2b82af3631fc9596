//! Compares the documentation with the program: commands, flags, routes, metrics, configuration
//! keys and journal messages. Everything that exists is documented, and nothing else is. Also
//! validates the alerts and the dashboard as Prometheus and Grafana do, and checks the names in
//! CONTRIBUTING.md and ARCHITECTURE.md. Needs no privilege.

#[path = "documented/alerts.rs"]
mod alerts;
#[path = "documented/coverage.rs"]
mod coverage;
#[path = "documented/daemon.rs"]
mod daemon;
#[path = "documented/dashboard.rs"]
mod dashboard;
#[path = "documented/expression.rs"]
mod expression;
mod extent;
#[path = "documented/idle_log.rs"]
mod idle_log;
#[path = "documented/limits.rs"]
mod limits;
#[path = "documented/manual.rs"]
mod manual;
#[path = "documented/only_in_test_all.rs"]
mod only_in_test_all;
#[path = "documented/pages.rs"]
mod pages;
#[path = "documented/prose.rs"]
mod prose;
#[path = "documented/rbac.rs"]
mod rbac;
#[path = "documented/recipes.rs"]
mod recipes;
#[path = "documented/shipped.rs"]
mod shipped;
#[path = "documented/statuses.rs"]
mod statuses;
#[path = "documented/version.rs"]
mod version;

use std::path::Path;

/// The folder of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The text of a page below a heading such as `## Recipes`, until the next one of its level.
fn part<'a>(page: &'a str, heading: &str) -> &'a str {
    let (level, _) = heading.split_once(' ').expect("a heading");
    let (_, rest) =
        page.split_once(&format!("\n{heading}\n")).ok_or_else(|| format!("no heading {heading}")).expect("a page");
    rest.split(&format!("\n{level} ")).next().expect("a part")
}

/// A file of the repository.
fn read(path: &str) -> String {
    let path = Path::new(ROOT).join(path);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()));
    text.expect("a file of the repository")
}
