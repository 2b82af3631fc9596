use nodelb_core::model::uplink::UplinkEntry;

use super::*;
use crate::config::Config;
use crate::devices::uplinks::{Reason, Role};

fn device(name: &str, role: Role, error: Option<&str>) -> DeviceReport {
    let is_attached = role == Role::Uplink && error.is_none();
    let device = Device {
        ifindex: 1,
        name: name.into(),
        kind: "physical".into(),
        xdp: nodelb_datapath::XdpFit::Fits,
        entry: UplinkEntry { mtu: 1500, l2_length: 14, ..UplinkEntry::default() },
        sources: [].into(),
        kept: None,
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
    let idle = report(Activity::Off, vec![uplink(Some("EPERM"))]);
    let off = DevicesReport { is_needed: true, ..idle.clone() }.check();
    assert!(off.passed && off.detail.contains("packets.mode"), "{off:?}");
    assert_eq!(idle.check().detail, "no address is served for clients outside the node", "that is no fault");
}

/// Found as: after `ip link set uplink name wan0`, every connection from outside failed, and every command said OK.
#[test]
fn without_a_device_for_the_programs_nothing_is_translated() {
    let effect = |devices: &[DeviceReport], missing: &[&str], is_outside_served| {
        let missing = missing.iter().map(ToString::to_string).collect();
        let report = DevicesReport { is_outside_served, missing, ..report(Activity::On, devices.to_vec()) };
        let planned = report.decision.clone().unwrap();
        let Decision { activity, reason } = report.in_effect(planned);
        (activity, reason, DevicesReport { decision: Some(Decision { activity, reason: String::new() }), ..report })
    };
    let lo = device("lo", Role::Unused(Reason::Loopback), None);
    let (activity, reason, report) = effect(std::slice::from_ref(&lo), &["uplink"], true);
    assert_eq!(activity, Activity::Off);
    assert_eq!(
        reason,
        "no device leads to other machines; the node has no device uplink, which packets.devices names: correct the name \
         and reload nodelb, unless the device is made later"
    );
    assert_eq!(report.missing_devices(), None, "the reason says it");
    let (activity, reason, _) = effect(std::slice::from_ref(&lo), &[], true);
    assert!(activity == Activity::Off && reason.contains("nodelb devices says why"), "{reason}");
    assert_eq!(effect(std::slice::from_ref(&lo), &["uplink"], false).0, Activity::On, "no client outside needs it");
    let refused = device("eth0", Role::Uplink, Some("EPERM"));
    assert_eq!(effect(&[refused], &[], true).0, Activity::On, "the failed check reports it");
    let eth0 = || vec![lo.clone(), device("eth0", Role::Uplink, None)];
    let (activity, reason, report) = effect(&eth0(), &["eth1"], true);
    assert_eq!((activity, reason.as_str()), (Activity::On, "packets.mode is \"on\""));
    assert!(report.missing_devices().is_some_and(|text| text.starts_with("the node has no device eth1, which")));
    assert_eq!(effect(&eth0(), &["eth1"], false).2.missing_devices(), None);
    assert_eq!(effect(&eth0(), &[], true).2.missing_devices(), None);
}

#[test]
fn only_a_name_without_a_wildcard_can_be_missing() {
    let config = Config::parse("[packets]\ndevices = [\"auto\", \"eth0\", \"eth1\", \"wg*\"]\n").unwrap();
    let devices = [device("eth0", Role::Uplink, None).device];
    assert_eq!(missing_of(&config.packets.devices, &devices), ["eth1"]);
}

/// With packets.pod-devices, a device of a pod has the programs, too, and leads to no other machine.
#[test]
fn a_device_of_a_pod_is_none_that_leads_to_other_machines() {
    let pod = DeviceReport { is_attached: true, ..device("veth1", Role::Pod, None) };
    let devices = vec![device("lo", Role::Unused(Reason::Loopback), None), pod];
    let report =
        DevicesReport { is_outside_served: true, missing: vec!["uplink".into()], ..report(Activity::On, devices) };
    let planned = report.decision.clone().unwrap();
    assert_eq!(report.in_effect(planned).activity, Activity::Off);
}
