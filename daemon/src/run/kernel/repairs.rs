//! What is reported about links and pins that another process had removed.

use nodelb_core::text::counted;
use nodelb_datapath::Repair;
use nodelb_host::messages;
use tracing::warn;

use crate::reconcile::CANARY_EVERY;

/// Logs the repairs one by one, and returns a sentence about those that affected connections, and one about the others.
pub(super) fn repaired(repairs: &[Repair]) -> Vec<String> {
    let (lasted, lost): (Vec<_>, Vec<_>) = repairs.iter().partition(|repair| repair.lasted);
    let lost = (!lost.is_empty()).then(|| {
        let (programs, seconds) = (counted(lost.len(), "program"), CANARY_EVERY.as_secs());
        (
            format!(
                "reattached {programs} that another process had detached or replaced; connections through these hooks were \
                 not translated for up to {seconds} s"
            ),
            lost,
        )
    });
    let lasted = (!lasted.is_empty()).then(|| {
        let pins = counted(lasted.len(), "pin");
        (
            format!(
                "recreated {pins} that another process had removed or hidden; the programs stayed attached, and no \
                 connection was affected"
            ),
            lasted,
        )
    });
    let all = lost.into_iter().chain(lasted).map(|(text, repairs)| {
        let each: Vec<&str> = repairs.iter().map(|repair| repair.what.as_str()).collect();
        warn!(message_id = %messages::LINKS_REPAIRED, "{text}: {}", each.join("; "));
        match &each[..] {
            [first] => format!("{text}: {first}"),
            _ => format!("{text} (the journal names them)"),
        }
    });
    all.collect()
}

#[cfg(test)]
#[path = "tests/repairs.rs"]
mod tests;
