use super::*;

#[test]
fn settings_are_read_and_the_larger_rp_filter_counts() {
    let net = std::env::temp_dir().join(format!("nodelb-sysctl-{}", std::process::id()));
    let write = |path: &str, text: &str| {
        let path = net.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("ipv4/ip_forward", "1\n");
    write("ipv6/conf/all/forwarding", "0\n");
    write("ipv4/ip_local_port_range", "32768\t60999\n");
    for (device, value) in [("all", "0"), ("default", "1"), ("eth0", "1"), ("eth1", "2"), ("eth2", "0")] {
        write(&format!("ipv4/conf/{device}/rp_filter"), value);
    }
    write("ipv4/conf/eth0/arp_ignore", "1");
    write("ipv4/conf/eth0/arp_announce", "2");
    write("ipv4/conf/eth1/arp_ignore", "0");
    write("ipv4/conf/lo/arp_ignore", "0");
    let found = settings_in(&net);
    fs::remove_dir_all(&net).unwrap();
    let expected = KernelSettings {
        forwards_v4: Some(true),
        forwards_v6: Some(false),
        strict_devices: vec!["eth0".into()],
        local_ports: Some((32_768, 60_999)),
        arp_devices: vec!["eth1".into()],
        ..KernelSettings::default()
    };
    assert_eq!(found, expected);
    assert_eq!(settings_in(Path::new("/nonexistent")), KernelSettings::default());
}
