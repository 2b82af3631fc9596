use super::*;

#[test]
fn only_addresses_of_other_hosts_outside_of_services_may_be_learned() {
    let nets = ["10.96.0.0/12".parse().unwrap(), "2001:db8:96::/112".parse().unwrap()];
    let is_frontend = |at: SocketAddr| at == "192.0.2.80:443".parse().unwrap();
    let refused = |text: &str| refusal(text.parse().unwrap(), &nets, &is_frontend).is_some();
    for good in ["192.0.2.1:6443", "169.254.128.7:60002", "[2001:db8::1]:6443", "192.0.2.80:6443", "10.95.0.1:443"] {
        assert!(!refused(good), "{good}");
    }
    for bad in [
        "192.0.2.1:0",
        "0.0.0.0:6443",
        "[::]:6443",
        "224.0.0.1:6443",
        "255.255.255.255:6443",
        "127.0.0.1:6443",
        "[::1]:6443",
        "[fe80::1]:6443",
        "10.96.0.1:443",
        "[::ffff:10.96.0.1]:443",
        "[2001:db8:96::1]:443",
        "192.0.2.80:443",
        "[::ffff:192.0.2.80]:443",
    ] {
        assert!(refused(bad), "{bad}");
    }
}
