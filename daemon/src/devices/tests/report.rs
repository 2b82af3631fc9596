use nodelb_core::model::uplink::UplinkEntry;

use super::*;
use crate::devices::uplinks::Role;

fn device(name: &str, role: Role, error: Option<&str>) -> DeviceReport {
    let is_attached = role == Role::Uplink && error.is_none();
    let device = Device {
        ifindex: 1,
        name: name.into(),
        kind: "physical".into(),
        xdp: nodelb_datapath::XdpFit::Fits,
        entry: UplinkEntry { mtu: 1500, l2_length: 14, ..UplinkEntry::default() },
        role,
    };
    DeviceReport { device, is_attached, error: error.map(str::to_owned), ahead: None, xdp: None }
}

fn report(activity: Activity, devices: Vec<DeviceReport>) -> DevicesReport {
    let decision = Some(Decision { activity, reason: "packets.mode is \"on\"".into() });
    DevicesReport { decision, devices, ..DevicesReport::default() }
}

#[test]
fn readiness_needs_programs_at_every_uplink() {
    assert!(!DevicesReport::default().check().passed, "the devices are not known yet");
    let uplink = |error| device("eth0", Role::Uplink, error);
    let attached = report(Activity::On, vec![uplink(None)]).check();
    assert_eq!((attached.passed, attached.detail.as_str()), (true, "programs attached at eth0"));
    let failed = report(Activity::Draining, vec![uplink(Some("EPERM")), device("eth1", Role::Uplink, None)]).check();
    assert!(!failed.passed && failed.detail.contains("at eth0:"), "{failed:?}");
    assert!(report(Activity::On, Vec::new()).check().passed, "a node without a network is as ready as it can be");
    let off = report(Activity::Off, vec![uplink(Some("EPERM"))]).check();
    assert!(off.passed && off.detail.contains("packets.mode"), "{off:?}");
}
