//! Reads which devices the node has now, and what they are for.

use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use nodelb_core::model::uplink::Uplink;
use tokio::time::timeout;

use super::uplinks::{self, Device, Role};
use crate::config::Config;
use crate::node::addresses::Machine;
use crate::node::netlink;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads all devices, outside of the runtime's workers.
pub(super) async fn read(config: Arc<Config>) -> io::Result<(Machine, Vec<Device>)> {
    let read = tokio::task::spawn_blocking(move || read_now(&config));
    timeout(TIMEOUT, read).await?.map_err(io::Error::other)?
}

pub(super) fn read_now(config: &Config) -> io::Result<(Machine, Vec<Device>)> {
    let mut machine = netlink::read()?;
    machine.interfaces.values_mut().for_each(|interface| interface.is_strict = is_strict(&interface.name));
    let routes = netlink::read_routes(uplinks::candidates(&machine))?;
    let devices = uplinks::devices(&machine, &routes, config);
    Ok((machine, devices))
}

/// Whether the device accepts IPv4 packets only by the way back to their source. As in the kernel, the larger of the two
/// values counts.
fn is_strict(device: &str) -> bool {
    let value = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter")).unwrap_or_default();
        text.trim().parse().unwrap_or(0_u8)
    };
    value("all").max(value(device)) == 1
}

/// The uplink for the maps; `None` if the device is not one.
pub(super) fn uplink(device: &Device) -> Option<Uplink> {
    let Device { ifindex, name, entry, .. } = device;
    (device.role == Role::Uplink).then(|| Uplink { ifindex: *ifindex, name: Arc::clone(name), entry: *entry })
}
