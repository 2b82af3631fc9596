//! Whether the kernel forwards packets of clients outside the node to backends that are not processes of this node.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nodelb_core::model::addr::Family;

/// The settings that keep the kernel from forwarding packets of these families that arrive at these devices; `None` if
/// they cannot be read. `root` is `/proc/sys/net`. The setting of the device decides; the general one sets all of them.
pub(crate) fn disabled(root: &Path, families: &BTreeSet<Family>, devices: &[&str]) -> Option<Vec<String>> {
    let mut disabled = Vec::new();
    for family in families {
        let off = at_devices(root, *family, devices);
        match everywhere(root, *family, devices)? {
            Some(general) => disabled.push(general),
            None => disabled.extend(off),
        }
    }
    Some(disabled)
}

/// The general setting, if it and those of all devices are off; `None` if it cannot be read.
pub(crate) fn everywhere(root: &Path, family: Family, devices: &[&str]) -> Option<Option<String>> {
    let setting = match family {
        Family::Ipv4 => "ipv4/ip_forward",
        Family::Ipv6 => "ipv6/conf/all/forwarding",
    };
    let is_everywhere = is_off(root, setting)? && at_devices(root, family, devices).len() == devices.len();
    Some(is_everywhere.then(|| format!("net.{} is 0", setting.replace('/', "."))))
}

fn at_devices(root: &Path, family: Family, devices: &[&str]) -> Vec<String> {
    let version = if family == Family::Ipv4 { "ipv4" } else { "ipv6" };
    // A device that has just gone receives nothing.
    let is_off = |device: &&&str| is_off(root, &format!("{version}/conf/{device}/forwarding")).unwrap_or(false);
    let off = devices.iter().filter(is_off);
    off.map(|device| format!("net.{version}.conf.{device}.forwarding is 0")).collect()
}

fn is_off(root: &Path, setting: &str) -> Option<bool> {
    Some(fs::read_to_string(root.join(setting)).ok()?.trim() == "0")
}

#[cfg(test)]
#[path = "tests/forwarding.rs"]
mod tests;
