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
#[path = "documented/idle_log.rs"]
mod idle_log;
#[path = "documented/manual.rs"]
mod manual;
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

use std::path::PathBuf;

/// A file of the repository.
fn read(path: &str) -> String {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()));
    text.expect("a file of the repository")
}
