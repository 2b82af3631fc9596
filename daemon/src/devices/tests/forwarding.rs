use super::*;

#[test]
fn the_setting_that_keeps_packets_from_being_forwarded_is_named_and_only_for_the_families_in_use() {
    let root = tempfile::tempdir().unwrap();
    let set = |setting: &str, value: &str| {
        let path = root.path().join(setting);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{value}\n")).unwrap();
    };
    let (v4, both) = (BTreeSet::from([Family::Ipv4]), BTreeSet::from([Family::Ipv4, Family::Ipv6]));
    let disabled = |families| {
        let found = disabled(root.path(), families, &["eth0", "eth1"])?;
        Some(found.into_iter().flat_map(|it| it.settings).collect::<Vec<_>>())
    };
    assert_eq!(disabled(&v4), None, "it cannot be read");
    for (setting, value) in [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "0")] {
        set(setting, value);
    }
    for device in ["eth0", "eth1"] {
        set(&format!("ipv4/conf/{device}/forwarding"), "1");
        set(&format!("ipv6/conf/{device}/forwarding"), "0");
    }
    assert_eq!(disabled(&v4), Some(vec![]));
    assert_eq!(disabled(&both), Some(vec!["net.ipv6.conf.all.forwarding is 0".into()]));
    set("ipv6/conf/all/forwarding", "1");
    assert_eq!(disabled(&both), Some(vec![]), "the setting of a device is none of IPv6's forwarding");
    set("ipv4/conf/eth1/forwarding", "0");
    assert_eq!(disabled(&v4), Some(vec!["net.ipv4.conf.eth1.forwarding is 0".into()]));
    assert_eq!(everywhere(root.path(), Family::Ipv4, &["eth0", "eth1"]), Some(None));
    set("ipv4/conf/eth0/forwarding", "0");
    set("ipv4/ip_forward", "0");
    assert_eq!(disabled(&v4), Some(vec!["net.ipv4.ip_forward is 0".into()]));
}
