//! Whether connections from outside the node are translated now, and why: a pure function over the configured mode and
//! the other service proxies of the node.

use nodelb_core::history::{Event, What};
use nodelb_core::text::listed;
use nodelb_datapath::packets::{Draining, PacketSettings, UnknownPackets};

use super::proxies::Findings;
use crate::config::{PacketMode, Packets, Snat, Unknown};

/// The maximum number of proxies in one line.
const SHOWN: usize = 4;

/// What is done with packets from outside the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum Activity {
    /// New and existing connections are translated.
    On,
    /// Existing connections are translated, and new ones to services of files.
    Files,
    /// Only existing connections are translated.
    Draining,
    /// No program is attached.
    Off,
}

impl Activity {
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub activity: Activity,
    pub reason: String,
}

impl Decision {
    /// What has changed for connections if it differs from the earlier decision.
    pub(super) fn event(&self) -> Event {
        let text = match self.activity {
            Activity::On => "connections from outside the node are translated",
            Activity::Files => {
                "connections from outside the node to services of files and existing ones are translated, and no new ones \
                 to services of Kubernetes"
            }
            Activity::Draining => "existing connections from outside the node are translated, and no new ones",
            Activity::Off => "connections from outside the node are not translated",
        };
        Event::for_daemon(What::Changed, format!("{text}: {}", self.reason))
    }
}

/// What nodelb does for connections from outside the node before the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// No program is attached.
    Nothing,
    /// Programs are attached, and no connection exists.
    NoConnections,
    /// Programs are attached, and connections may exist.
    Connections,
}

/// What may begin connections that the programs translate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Need {
    /// No address is served for clients outside the node.
    Nothing,
    /// No service of a file is.
    Kubernetes,
    Files,
}

/// Decides on the activity. A proxy that appears gets new connections to services of Kubernetes, and nodelb translates the
/// existing ones until none is left. No other proxy knows services of files. What is not known changes nothing. With
/// [`PacketMode::Auto`], no program is attached as long as none is needed.
pub(crate) fn decide(mode: PacketMode, findings: &Findings, before: Before, need: Need) -> Decision {
    let (activity, reason) = match mode {
        PacketMode::On => (Activity::On, "packets.mode is \"on\"".into()),
        PacketMode::Drain => (Activity::Draining, "packets.mode is \"drain\"".into()),
        PacketMode::Off => (Activity::Off, "packets.mode is \"off\"".into()),
        PacketMode::Auto => match of_findings(findings, before, need) {
            (Activity::On, _) if need == Need::Nothing && before != Before::Connections => {
                (Activity::Off, "no address is served for clients outside the node".into())
            }
            decided => decided,
        },
    };
    Decision { activity, reason }
}

fn of_findings(findings: &Findings, before: Before, need: Need) -> (Activity, String) {
    let auto = "packets.mode is \"auto\"";
    if !findings.proxies.is_empty() {
        let found = listed(&findings.proxies, SHOWN);
        let activity = match before {
            _ if need == Need::Files => Activity::Files,
            Before::Connections => Activity::Draining,
            Before::NoConnections | Before::Nothing => Activity::Off,
        };
        return (activity, format!("{auto} and another service proxy is present: {found}"));
    }
    match &findings.error {
        None => (Activity::On, format!("{auto} and no other service proxy is present")),
        Some(error) if findings.is_complete => {
            (Activity::On, format!("{auto} and no other service proxy was present; now this cannot be read ({error})"))
        }
        Some(error) => {
            let activity = if before == Before::Nothing { Activity::Off } else { Activity::On };
            let reason = format!(
                "{auto} and it cannot be read whether another service proxy is present ({error}): nothing changes. Set \
                 packets.mode to \"on\" if there is none"
            );
            (activity, reason)
        }
    }
}

/// The settings of the programs with this configuration. `has_seen_proxy`: another service proxy is or was on the node.
pub fn settings(packets: &Packets, activity: Activity, has_seen_proxy: bool) -> PacketSettings {
    PacketSettings {
        draining: match activity {
            Activity::Draining => Draining::All,
            Activity::Files => Draining::Kubernetes,
            Activity::On | Activity::Off => Draining::None,
        },
        unknown: match packets.unknown {
            Unknown::Auto if has_seen_proxy => UnknownPackets::AutoWithProxy,
            Unknown::Auto => UnknownPackets::Auto,
            Unknown::Pass => UnknownPackets::Pass,
            Unknown::Reset => UnknownPackets::Reset,
        },
        answers: packets.answer,
        always_masquerades: packets.snat == Snat::Always,
        owns_addresses: !has_seen_proxy,
    }
}

#[cfg(test)]
#[path = "tests/mode.rs"]
mod tests;
