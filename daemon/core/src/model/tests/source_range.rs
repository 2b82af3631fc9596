use super::SourceRange;
use crate::model::addr::{Addr, Family};

fn range(text: &str) -> SourceRange {
    SourceRange::from(text.parse::<ipnet::IpNet>().unwrap())
}

#[test]
fn a_range_has_the_form_of_addresses_in_the_maps() {
    let cases = [
        ("10.1.2.3/8", "10.0.0.0/8", 104, Family::Ipv4),
        ("0.0.0.0/0", "0.0.0.0/0", 96, Family::Ipv4),
        ("192.0.2.7/32", "192.0.2.7/32", 128, Family::Ipv4),
        ("::ffff:10.1.2.3/104", "10.0.0.0/8", 104, Family::Ipv4),
        ("2001:db8::7/32", "2001:db8::/32", 32, Family::Ipv6),
        ("::/0", "::/0", 0, Family::Ipv6),
        ("::ffff:0:0/90", "::ffc0:0:0/90", 90, Family::Ipv6),
    ];
    for (text, shown, prefix, family) in cases {
        let found = range(text);
        assert_eq!((found.to_string().as_str(), found.prefix, found.family()), (shown, prefix, family), "{text}");
    }
}

#[test]
fn a_range_contains_the_addresses_of_its_network() {
    let addr = |text: &str| text.parse::<Addr>().unwrap();
    assert!(range("10.0.0.0/8").contains(addr("10.255.0.1")));
    assert!(!range("10.0.0.0/8").contains(addr("11.0.0.1")));
    assert!(!range("10.0.0.0/8").contains(addr("2001:db8::1")));
    assert!(range("0.0.0.0/0").contains(addr("203.0.113.1")) && range("0.0.0.0/0").is_everything());
    assert!(!range("0.0.0.0/0").contains(addr("::1")));
    assert!(range("::/0").contains(addr("2001:db8::1")) && range("::/0").is_everything());
    assert!(!range("2001:db8::/32").contains(addr("2001:db9::1")) && !range("0.0.0.0/1").is_everything());
    assert!(range("192.0.2.7/32").contains(addr("192.0.2.7")) && !range("192.0.2.7/32").contains(addr("192.0.2.6")));
}
