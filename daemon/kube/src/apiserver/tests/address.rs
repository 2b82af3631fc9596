use super::*;

#[test]
fn only_what_one_host_can_have_is_an_address() {
    for good in [
        "192.0.2.1:6443",
        "169.254.128.7:60002",
        "127.0.0.1:6443",
        "[2001:db8::1]:6443",
        "api.example.com:1",
        "api.example.com.:6443",
        "api_1.example.com:6443",
    ] {
        assert_eq!(good.parse::<Address>().map(|address| address.to_string()).as_deref(), Ok(good));
    }
    for bad in [
        "0.0.0.0:6443",
        "[::]:6443",
        "224.0.0.1:6443",
        "255.255.255.255:6443",
        "[ff02::1]:6443",
        "[fe80::1]:6443",
        "[::ffff:0.0.0.0]:6443",
    ] {
        let error = bad.parse::<Address>().unwrap_err();
        assert!(matches!(&error, AddressError::Unusable(text, _) if text == bad), "{error}");
        assert!(error.to_string().ends_with("; write an address that the apiserver itself listens on"), "{error}");
    }
    for bad in [".:6443", "api..example.com:6443", "api.example.com..:6443", "192.0.2.1.:6443", "api.1.:6443", "a b:1"]
    {
        assert!(matches!(bad.parse::<Address>(), Err(AddressError::Form(_))), "{bad}");
    }
    let error = "bob:hunter2@api.example.com:6443".parse::<Address>().unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    assert_eq!("[fe80::1%2]:6443".parse::<Address>(), Err(AddressError::Form("[fe80::1%2]:6443".into())));
}

#[test]
fn only_addresses_of_other_hosts_outside_of_services_may_be_learned() {
    let nets = ["10.96.0.0/12".parse().unwrap(), "2001:db8:96::/112".parse().unwrap()];
    let is_frontend = |at: SocketAddr| at == "192.0.2.80:443".parse().unwrap();
    let refused = |text: &str| reason_not_to_learn(text.parse().unwrap(), &nets, &is_frontend).is_some();
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
