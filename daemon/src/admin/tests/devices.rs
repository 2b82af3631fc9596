use std::sync::Arc;

use strum::VariantNames;

use nodelb_core::model::uplink::UplinkEntry;
use nodelb_datapath::{HookMethod, XdpState};
use nodelb_report::output::schema::ColumnKind;
use nodelb_report::rows::Row;

use super::*;
use crate::devices::mode::Decision;
use crate::devices::report::HookState;
use crate::devices::uplinks::{Device, Reason};

fn report() -> DevicesReport {
    let device = |ifindex, name: &str, role| Device {
        ifindex,
        name: name.into(),
        kind: "physical".into(),
        xdp: nodelb_datapath::XdpFit::Fits,
        entry: UplinkEntry {
            v4: Some("203.0.113.1".parse().unwrap()),
            mtu: 1500,
            l2_length: 14,
            ..UplinkEntry::default()
        },
        sources: ["203.0.113.1".parse().unwrap()].into(),
        kept: None,
        role,
    };
    let row = |device, is_attached, error: Option<&str>| DeviceReport {
        device,
        is_attached,
        error: error.map(str::to_owned),
        ahead: None,
        xdp: None,
    };
    DevicesReport {
        failure: None,
        is_cut_off: false,
        has_other_proxy: false,
        ways: Arc::default(),
        policies: Arc::default(),
        decision: Some(Decision { activity: Activity::On, reason: "because".into() }),
        is_needed: true,
        is_outside_served: true,
        missing: Vec::new(),
        method: Some(HookMethod::Tcx),
        repairs: 2,
        devices: vec![
            row(device(2, "eth0", Role::Uplink), true, None),
            row(device(3, "tap0", Role::Pod), false, Some("refused")),
            row(device(4, "eth1", Role::Unused(Reason::Down)), false, None),
        ],
    }
}

#[test]
fn each_device_has_a_role_and_a_state() {
    let report = report();
    let rows: Vec<DeviceRow> = report.devices.iter().map(device).collect();
    let seen: Vec<_> = rows.iter().map(|row| (row.role.as_str(), row.programs.as_str())).collect();
    assert_eq!(seen, [("uplink", "attached"), ("pod", "failed"), ("none", "unused")]);
    assert_eq!(rows[0].source_addresses, ["203.0.113.1"]);
    assert_eq!(rows[1].error.as_deref(), Some("refused"));
    let ahead = DeviceReport { ahead: Some("the program other".into()), ..report.devices[0].clone() };
    let row = device(&ahead);
    assert_eq!((row.programs.as_str(), row.error.as_deref()), ("attached", Some("the program other")));
    for (state, text) in
        [(XdpState::Native, "native"), (XdpState::Foreign { program: 7 }, "none: the XDP program with id 7")]
    {
        let report = DevicesReport {
            devices: vec![DeviceReport { xdp: Some(state.clone()), ..report.devices[0].clone() }],
            ..report.clone()
        };
        let is_shown = device(&report.devices[0]).xdp.is_some_and(|shown| shown.starts_with(text));
        let is_taken =
            report.xdp_taken().iter().any(|line| line.starts_with("XDP is not used on eth0, because the program"));
        assert!(is_shown && is_taken == (state != XdpState::Native), "{state:?}");
        assert!(report.programs_ahead().is_empty(), "packets are translated all the same");
    }
    assert!(rows[2].reason.as_ref().is_some_and(|reason| reason.contains("it is down")), "{rows:?}");
    let row = packets(&report);
    assert_eq!((row.translation.as_str(), row.hooks.as_deref(), row.repairs), ("on", Some("tcx"), 2));
    assert_eq!(row.reason, "because");
}

/// The columns name every word that the daemon has.
#[test]
fn roles_and_states_are_those_of_the_columns() {
    let words = |at: usize| match DeviceRow::schema().columns[at].kind {
        ColumnKind::OneOf(words) => words.to_vec(),
        _ => panic!("column {at} has no words"),
    };
    assert_eq!((words(3), words(4)), (ROLES.to_vec(), HookState::VARIANTS.to_vec()));
    let ColumnKind::OneOf(activities) = PacketsRow::schema().columns[0].kind else { panic!("no words") };
    assert_eq!(activities, Activity::VARIANTS);
}

#[test]
fn without_packets_the_table_says_so() {
    let row = packets(&DevicesReport::default());
    assert!(row.translation == "off" && row.reason.contains("packets.mode"), "{row:?}");
}
