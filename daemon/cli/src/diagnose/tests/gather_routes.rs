use super::*;

#[test]
fn routes_are_read_with_the_mtu_of_their_device() {
    let root = std::env::temp_dir().join(format!("nodelb-routes-{}", std::process::id()));
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let v4 = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
    let (any, mask) = (v4([0; 4]), v4([255, 255, 255, 0]));
    let rows = [
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT".into(),
        format!("eth0\t{any}\t{}\t0003\t0\t0\t100\t{any}\t0\t0\t0", v4([192, 0, 2, 1])),
        format!("eth0\t{}\t{any}\t0001\t0\t0\t0\t{mask}\t1400\t0\t0", v4([192, 0, 2, 0])),
        format!("*\t{}\t{any}\t0200\t0\t0\t0\t{mask}\t0\t0\t0", v4([192, 0, 3, 0])),
    ];
    write("net/route", &rows.join("\n"));
    let (zero, prefix) = ("0".repeat(32), format!("20010db8{}", "0".repeat(24)));
    let rows = [
        format!("{prefix} 20 {zero} 00 {zero} 00000100 00000001 00000000 00000001     eth0"),
        format!("{zero} 00 {zero} 00 fe80{}1 00000400 00000001 00000000 00000003     eth1", "0".repeat(27)),
        format!("{prefix} 80 {zero} 00 {zero} 00000000 00000001 00000000 80200001       lo"),
    ];
    write("net/ipv6_route", &rows.join("\n"));
    write("devices/eth0/mtu", "1500\n");
    let found = routes_in(&root.join("net"), &root.join("devices"));
    fs::remove_dir_all(&root).unwrap();
    let route = |to: &str, length, device: &str, has_gateway, (metric, mtu)| Route {
        to: to.parse().unwrap(),
        length,
        device: device.into(),
        has_gateway,
        metric,
        mtu,
    };
    let expected = [
        route("0.0.0.0", 0, "eth0", true, (100, 1_500)),
        route("192.0.2.0", 24, "eth0", false, (0, 1_400)),
        route("2001:db8::", 32, "eth0", false, (256, 1_500)),
        route("::", 0, "eth1", true, (1_024, 0)),
    ];
    assert_eq!(found, expected);
    assert_eq!(routes_in(Path::new("/nonexistent"), Path::new("/nonexistent")), []);
}

#[test]
fn the_loopback_address_is_an_address_of_the_host() {
    assert!(addresses().iter().any(|(device, ip)| device == "lo" && ip.is_loopback()), "{:?}", addresses());
}
