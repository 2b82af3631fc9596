//! `/devices`: whether packets of clients outside the node are translated, and at which network devices.

use nodelb_report::rows::{DeviceRow, Devices, PacketsRow, ROLES};

use super::state::AdminState;
use crate::devices::mode::Activity;
use crate::devices::report::{DeviceReport, DevicesReport};
use crate::devices::uplinks::Role;

/// Returns the packet path in general, and one row per device.
pub(super) fn devices(state: &AdminState) -> Devices {
    let report = state.devices();
    Devices { packets: packets(&report), devices: report.devices.iter().map(device).collect() }
}

fn packets(report: &DevicesReport) -> PacketsRow {
    let (activity, reason) = match &report.decision {
        Some(decision) => (decision.activity, decision.reason.as_str()),
        None => (Activity::Off, "packets.mode is \"off\", or the devices have not been read yet"),
    };
    PacketsRow {
        translation: activity.name().into(),
        hooks: report.method.map(|method| method.to_string()),
        repairs: report.repairs,
        reason: reason.into(),
    }
}

fn device(report: &DeviceReport) -> DeviceRow {
    let device = &report.device;
    let [uplink, pod, none] = ROLES;
    let (role, reason) = match &device.role {
        Role::Uplink => (uplink, device.kept.as_ref().map(|reason| format!("{reason}, and was an uplink before"))),
        Role::Pod => (pod, None),
        Role::PodBridge(port) => {
            (pod, Some(format!("packets between its ports pass it by: add {port} to packets.pod-devices")))
        }
        Role::Unused(reason) => (none, Some(reason.to_string())),
    };
    DeviceRow {
        device: device.name.to_string(),
        index: device.ifindex.into(),
        kind: device.kind.to_string(),
        role: role.into(),
        programs: report.state().name().into(),
        source_addresses: device.sources.iter().map(ToString::to_string).collect(),
        mtu: device.entry.mtu.into(),
        reason,
        xdp: report.xdp.as_ref().map(ToString::to_string),
        error: report.error.clone().or_else(|| report.ahead.clone()),
    }
}

#[cfg(test)]
#[path = "tests/devices.rs"]
mod tests;
