use super::*;

/// Once, `--address [2001:db8::1]` was refused, although every table shows addresses in this form.
#[test]
fn every_form_of_an_address_is_accepted() {
    for (text, expected) in [
        ("10.1.0.1", "10.1.0.1"),
        ("::ffff:10.1.0.1", "10.1.0.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("[fe80::1%eth0]", "fe80::1"),
    ] {
        assert_eq!(address(text).unwrap().to_string(), expected, "{text}");
    }
    for text in ["[10.1.0.1]", "[2001:db8::1", "2001:db8::1]", "10.1.0.1:80", "10.1.0.1%eth0", "fe80::1%", "web"] {
        let error = address(text).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_zone_is_left_out_with_and_without_a_port() {
    assert_eq!(without_zone("[fe80::1%eth0]:80/TCP"), "[fe80::1]:80/TCP");
    assert_eq!(without_zone("2001:db8::1%eth0"), "2001:db8::1%eth0");
    assert_eq!(backend("[fe80::1%eth0]:8080").unwrap().to_string(), "[fe80::1]:8080");
    assert_eq!(backend("10.1.0.1:8080").unwrap().to_string(), "10.1.0.1:8080");
    assert!(backend("web").is_err());
}
