//! Reports services that stay in the kernel although no source describes them: in `/readyz` and `/status` while the
//! state lasts, and once in the journal.

use nodelb_core::engine::{Kept, KeptBecause};
use nodelb_core::messages;
use tracing::warn;

/// The text of the check `reconcile` after the first full reconcile.
pub(super) fn reconciled(kept: &[Kept]) -> String {
    let reported: Vec<String> = kept.iter().filter_map(describe).collect();
    match reported.as_slice() {
        [] => "every source is synced and the first full reconcile is done".into(),
        reported => format!("the first full reconcile is done, but {}", reported.join("; and ")),
    }
}

/// Logs the sources that are not configured. A file that cannot be read has its own line.
pub(super) fn warn(kept: &[Kept]) {
    for it in kept.iter().filter(|it| it.because == KeptBecause::NotConfigured) {
        if let Some(text) = describe(it) {
            warn!(message_id = %messages::SOURCE_ABSENT, "{text}");
        }
    }
}

/// What is missing, the consequence, and what to do. `None` if nothing of an absent source is left.
fn describe(Kept { source, ports, because }: &Kept) -> Option<String> {
    let count = match ports {
        0 => "no service port is".to_owned(),
        1 => "1 service port is".to_owned(),
        ports => format!("{ports} service ports are"),
    };
    match because {
        KeptBecause::NotConfigured if *ports == 0 => None,
        KeptBecause::NotConfigured => Some(format!(
            "{source} is no longer configured as a source: {count} kept as last known and not updated; configure \
             [{source}] again, or set {source}.enabled to false to remove them"
        )),
        KeptBecause::Incomplete(what) => Some(format!(
            "the source {source} is incomplete: {what}; {count} kept from before the start until it is read"
        )),
    }
}

#[cfg(test)]
#[path = "tests/kept.rs"]
mod tests;
