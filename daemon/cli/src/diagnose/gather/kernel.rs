//! Reads settings of this host's kernel, which any user may do.

use std::fs;
use std::path::Path;

use super::routes;
use crate::diagnose::facts::KernelSettings;

/// The value of `rp_filter` for strict checks.
const STRICT: u8 = 1;

/// Reads the settings of the network namespace of this command.
pub(super) fn settings() -> KernelSettings {
    let routes = routes::routes_in(Path::new("/proc/net"), Path::new("/sys/class/net"));
    KernelSettings { addresses: routes::addresses(), routes, ..settings_in(Path::new("/proc/sys/net")) }
}

fn settings_in(net: &Path) -> KernelSettings {
    let read = |path: &str| fs::read_to_string(net.join(path)).ok();
    let flag = |path: &str| Some(read(path)?.trim() != "0");
    let number = |path: &str| read(path)?.trim().parse::<u8>().ok();
    let all = number("ipv4/conf/all/rp_filter").unwrap_or(0);
    let devices = fs::read_dir(net.join("ipv4/conf")).into_iter().flatten().flatten();
    let names = devices.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !matches!(name.as_str(), "all" | "default")).collect();
    names.sort_unstable();
    // The kernel applies the larger value of `all` and the device.
    let is_strict = |name: &String| {
        let own = number(&format!("ipv4/conf/{name}/rp_filter")).unwrap_or(0);
        own.max(all) == STRICT
    };
    let strict_devices = names.iter().filter(|name| is_strict(name)).cloned().collect();
    // Here, too, the larger value applies.
    let is_below = |name: &str, key: &str, least: u8| {
        let of = |device: &str| number(&format!("ipv4/conf/{device}/{key}"));
        of(name).is_some_and(|own| own.max(of("all").unwrap_or(0)) < least)
    };
    let answers = |name: &&String| is_below(name, "arp_ignore", 1) || is_below(name, "arp_announce", 2);
    let arp_devices = names.iter().filter(|name| *name != "lo").filter(answers).cloned().collect();
    let local_ports = read("ipv4/ip_local_port_range").and_then(|text| {
        let mut ports = text.split_whitespace().map(str::parse::<u16>);
        Some((ports.next()?.ok()?, ports.next()?.ok()?))
    });
    KernelSettings {
        forwards_v4: flag("ipv4/ip_forward"),
        forwards_v6: flag("ipv6/conf/all/forwarding"),
        strict_devices,
        local_ports,
        arp_devices,
        ..KernelSettings::default()
    }
}

#[cfg(test)]
#[path = "../tests/gather_kernel.rs"]
mod tests;
