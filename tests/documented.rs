//! Walks everything that can be asked of nodelb, and everything it says by itself: commands and flags, routes, metrics,
//! configuration keys, journal messages. Each is documented, and nothing is documented that does not exist. Also reads what
//! is built on them as strictly as those who will: the alerts and the dashboard. Needs no privilege.

#[path = "documented/alerts.rs"]
mod alerts;
#[path = "documented/daemon.rs"]
mod daemon;
#[path = "documented/dashboard.rs"]
mod dashboard;
#[path = "documented/expression.rs"]
mod expression;
#[path = "documented/manual.rs"]
mod manual;
#[path = "documented/pages.rs"]
mod pages;
#[path = "documented/prose.rs"]
mod prose;
#[path = "documented/rbac.rs"]
mod rbac;
#[path = "documented/shipped.rs"]
mod shipped;
#[path = "documented/silence.rs"]
mod silence;
#[path = "documented/statuses.rs"]
mod statuses;
#[path = "documented/walk.rs"]
mod walk;

use std::path::PathBuf;

/// A file of the repository.
fn read(path: &str) -> String {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()));
    text.expect("a file of the repository")
}
