//! `/devices`: whether packets of clients outside the node are translated, and at which network devices.

use nodelb_core::output::schema::{Column, Schema};
use nodelb_core::output::table::{Cell, Page, Table};

use super::state::AdminState;
use crate::devices::mode::Activity;
use crate::devices::report::{DeviceReport, DevicesReport, HookState};
use crate::devices::uplinks::Role;

/// The columns of the devices.
pub(super) static DEVICES: Schema<[Column; 9]> = Schema {
    name: "devices",
    columns: [
        Column::name("Device"),
        Column::number("Index"),
        Column::text("Kind"),
        Column::one_of("Role", &ROLES),
        Column::one_of("Programs", &HookState::NAMES),
        Column::list("Source-Addresses"),
        Column::number("MTU"),
        Column::text("Reason"),
        Column::text("Error"),
    ],
};

/// What a device is used for.
const ROLES: [&str; 3] = ["uplink", "pod", "none"];

/// The columns of the row about packets in general.
pub(super) static PACKETS: Schema<[Column; 4]> = Schema {
    name: "packets",
    columns: [
        Column::one_of("Translation", &Activity::NAMES),
        Column::text("Hooks"),
        Column::number("Repairs"),
        Column::text("Reason"),
    ],
};

/// Returns one row about packets in general, and one per device.
pub(super) fn devices(state: &AdminState) -> Page {
    let report = state.devices();
    Page(vec![Table::new(&PACKETS, [packets(&report)]), Table::new(&DEVICES, report.devices.iter().map(device))])
}

fn packets(report: &DevicesReport) -> [Cell; 4] {
    let (activity, reason) = match &report.decision {
        Some(decision) => (decision.activity, decision.reason.as_str()),
        None => (Activity::Off, "packets.mode is \"off\", or the devices have not been read yet"),
    };
    [Cell::text(activity.name()), Cell::optional(report.method), Cell::Number(report.repairs), Cell::text(reason)]
}

fn device(report: &DeviceReport) -> [Cell; 9] {
    let device = &report.device;
    let [uplink, pod, none] = ROLES;
    let (role, reason) = match &device.role {
        Role::Uplink => (uplink, None),
        Role::Pod => (pod, None),
        Role::Unused(reason) => (none, Some(reason)),
    };
    [
        Cell::Shared(device.name.clone()),
        Cell::Number(device.ifindex.into()),
        Cell::text(&device.kind),
        Cell::text(role),
        Cell::text(report.state().name()),
        Cell::list([device.v4, device.v6].into_iter().flatten()),
        Cell::Number(device.mtu.into()),
        Cell::optional(reason),
        Cell::optional(report.error.as_ref()),
    ]
}

#[cfg(test)]
#[path = "tests/devices.rs"]
mod tests;
