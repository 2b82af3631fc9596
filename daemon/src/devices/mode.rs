//! Whether connections from outside the node are translated now, and why: a pure function over the configured mode and
//! the other service proxies of the node.

use nodelb_core::text::listed;

use super::proxies::Findings;
use crate::config::PacketMode;

/// The maximum number of proxies in one line.
const SHOWN: usize = 4;

/// What is done with packets from outside the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// New and existing connections are translated.
    On,
    /// Only existing connections are translated.
    Draining,
    /// No program is attached.
    Off,
}

impl Activity {
    /// The names, for `/devices`.
    pub const NAMES: [&'static str; 3] = ["on", "draining", "off"];

    /// The name.
    pub fn name(self) -> &'static str {
        let [on, draining, off] = Self::NAMES;
        match self {
            Self::On => on,
            Self::Draining => draining,
            Self::Off => off,
        }
    }
}

/// The activity with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What is done.
    pub activity: Activity,
    /// Why.
    pub reason: String,
}

/// Decides on the activity. `was_on` says whether programs are attached: then a proxy that appears gets only new
/// connections.
pub(crate) fn decide(mode: PacketMode, findings: &Findings, was_on: bool) -> Decision {
    let found = || listed(&findings.proxies, SHOWN);
    let (activity, reason) = match mode {
        PacketMode::On => (Activity::On, "packets.mode is \"on\"".into()),
        PacketMode::Drain => (Activity::Draining, "packets.mode is \"drain\"".into()),
        PacketMode::Off => (Activity::Off, "packets.mode is \"off\"".into()),
        PacketMode::Auto if !findings.proxies.is_empty() => {
            let activity = if was_on { Activity::Draining } else { Activity::Off };
            (activity, format!("packets.mode is \"auto\" and another service proxy is present: {}", found()))
        }
        PacketMode::Auto => match &findings.rules_unknown {
            None => (Activity::On, "packets.mode is \"auto\" and no other service proxy is present".into()),
            Some(error) => (
                Activity::On,
                format!(
                    "packets.mode is \"auto\" and no other service proxy was found; rules of nftables cannot be read \
                     ({error})"
                ),
            ),
        },
    };
    Decision { activity, reason }
}

#[cfg(test)]
#[path = "tests/mode.rs"]
mod tests;
