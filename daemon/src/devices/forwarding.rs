//! Whether the kernel forwards packets of clients outside the node to backends that are not processes of this node.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nodelb_core::model::addr::Family;
use nodelb_core::snapshot::Snapshot;
use nodelb_host::messages;
use nodelb_report::problems::{self, NotForwarding};
use tracing::{info, warn};

/// What was logged about packets that the kernel does not forward, or not from each device, so that it is logged once.
#[derive(Debug, Default)]
pub(super) struct ForwardingLog {
    disabled: Option<String>,
    strict: Option<String>,
}

impl ForwardingLog {
    /// Logs that services need packets to be forwarded at these devices, and the kernel does not do so, or not from every client.
    pub(super) fn look(&mut self, root: &Path, snapshot: &Snapshot, devices: &[&str]) {
        let families = snapshot.realised.outside.keys().map(|address| address.addr.family()).collect();
        let disabled = disabled(root, &families, devices).unwrap_or_default();
        let cause = problems::unforwarded(snapshot, &disabled).map(|it| it.cause);
        if let Some(cause) = cause.as_ref().filter(|cause| self.disabled.as_ref() != Some(*cause)) {
            warn!(message_id = %messages::NOT_FORWARDING, "{cause}");
        }
        self.disabled = cause;
        let strict = problems::needed_strict(snapshot);
        if let Some(strict) = strict.as_ref().filter(|strict| self.strict.as_ref() != Some(*strict)) {
            info!(message_id = %messages::REVERSE_PATH_STRICT, "{strict}");
        }
        self.strict = strict;
    }
}

/// The settings that keep the kernel from forwarding packets of these families that arrive at these devices; `None` if
/// they cannot be read. `root` is `/proc/sys/net`. For IPv4, the setting of the device decides, and the general one sets all of
/// them; for IPv6, the kernel looks only at the general one.
pub(crate) fn disabled(root: &Path, families: &BTreeSet<Family>, devices: &[&str]) -> Option<Vec<NotForwarding>> {
    let mut disabled = Vec::new();
    for family in families.iter().copied() {
        let general = everywhere(root, family, devices)?;
        let is_everywhere = general.is_some();
        let settings = general.map_or_else(|| at_devices(root, family, devices), |general| vec![general]);
        if !settings.is_empty() {
            disabled.push(NotForwarding { family, settings, is_everywhere });
        }
    }
    Some(disabled)
}

/// The general setting, if it is off, and for IPv4 those of all devices are, too; `None` if it cannot be read.
pub(crate) fn everywhere(root: &Path, family: Family, devices: &[&str]) -> Option<Option<String>> {
    let (setting, devices) = match family {
        Family::Ipv4 => ("ipv4/ip_forward", devices),
        Family::Ipv6 => ("ipv6/conf/all/forwarding", &[][..]),
    };
    let is_everywhere = is_off(root, setting)? && at_devices(root, family, devices).len() == devices.len();
    Some(is_everywhere.then(|| format!("net.{} is 0", setting.replace('/', "."))))
}

fn at_devices(root: &Path, family: Family, devices: &[&str]) -> Vec<String> {
    if family == Family::Ipv6 {
        return Vec::new();
    }
    // A device that has just gone receives nothing.
    let is_off = |device: &&&str| is_off(root, &format!("ipv4/conf/{device}/forwarding")).unwrap_or(false);
    devices.iter().filter(is_off).map(|device| format!("net.ipv4.conf.{device}.forwarding is 0")).collect()
}

fn is_off(root: &Path, setting: &str) -> Option<bool> {
    Some(fs::read_to_string(root.join(setting)).ok()?.trim() == "0")
}

#[cfg(test)]
#[path = "tests/forwarding.rs"]
mod tests;
