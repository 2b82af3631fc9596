use nodelb_datapath::HookMethod;

use super::*;
use crate::devices::mode::Decision;
use crate::devices::uplinks::{Device, Reason};

fn report() -> DevicesReport {
    let device = |ifindex, name: &str, role| Device {
        ifindex,
        name: name.into(),
        kind: "physical".into(),
        mtu: 1500,
        l2_length: 14,
        v4: Some("203.0.113.1".parse().unwrap()),
        v6: None,
        role,
    };
    let row = |device, is_attached, error: Option<&str>| DeviceReport {
        device,
        is_attached,
        error: error.map(str::to_owned),
    };
    DevicesReport {
        failure: None,
        decision: Some(Decision { activity: Activity::On, reason: "because".into() }),
        method: Some(HookMethod::Tcx),
        repairs: 2,
        devices: vec![
            row(device(2, "eth0", Role::Uplink), true, None),
            row(device(3, "tap0", Role::Pod), false, Some("refused")),
            row(device(4, "eth1", Role::Unused(Reason::Down)), false, None),
        ],
    }
}

fn text(cells: &[Cell]) -> Vec<String> {
    cells.iter().map(|cell| format!("{cell:?}")).collect()
}

#[test]
fn each_device_has_a_role_and_a_state() {
    let report = report();
    let rows: Vec<_> = report.devices.iter().map(|row| text(&device(row))).collect();
    assert!(rows[0][3].contains("uplink") && rows[0][4].contains("attached") && rows[0][5].contains("203.0.113.1"));
    assert!(rows[1][3].contains("pod") && rows[1][4].contains("failed") && rows[1][8].contains("refused"));
    assert!(rows[2][3].contains("none") && rows[2][4].contains("unused") && rows[2][7].contains("it is down"));
    let row = text(&packets(&report));
    assert!(row[0].contains("on") && row[1].contains("tcx") && row[2].contains('2') && row[3].contains("because"));
}

#[test]
fn without_packets_the_table_says_so() {
    let row = text(&packets(&DevicesReport::default()));
    assert!(row[0].contains("off") && row[3].contains("packets.mode"), "{row:?}");
}
