use std::net::IpAddr;

use super::{Addr, AddrError, Family, L4Addr, Protocol};

fn l4(text: &str) -> L4Addr {
    text.parse().expect("valid in a test")
}

#[test]
fn text_form_is_canonical_and_round_trips() {
    for text in ["10.96.7.7:80/TCP", "[2001:db8::7]:53/UDP", "0.0.0.0:30080/TCP", "[::]:30080/SCTP"] {
        assert_eq!(l4(text).to_string(), text);
    }
    assert_eq!(l4("192.0.2.1:80").to_string(), "192.0.2.1:80/TCP");
    assert_eq!(l4("[2001:DB8:0::7]:80/tcp").to_string(), "[2001:db8::7]:80/TCP");
}

/// A dual-stack socket connects to `::ffff:192.0.2.1`. It must reach the same frontend as an IPv4 socket.
#[test]
fn mapped_ipv6_is_the_ipv4_address() {
    assert_eq!(l4("[::ffff:192.0.2.1]:80"), l4("192.0.2.1:80"));
    assert_eq!(l4("[::ffff:192.0.2.1]:80").addr.family(), Family::Ipv4);
}

#[test]
fn the_two_wildcards_differ() {
    assert_ne!(Addr::UNSPECIFIED_V4, Addr::UNSPECIFIED_V6);
    assert!(Addr::UNSPECIFIED_V4.is_unspecified() && Addr::UNSPECIFIED_V6.is_unspecified());
}

#[test]
fn bad_text_is_refused_with_the_text_quoted() {
    let zeros = |text: &str, plain: &str| AddrError::LeadingZeros(text.into(), plain.into());
    assert_eq!("10.0.0.01".parse::<Addr>(), Err(zeros("10.0.0.01", "10.0.0.1")));
    assert_eq!("010.00.0.1:80/UDP".parse::<L4Addr>(), Err(zeros("010.00.0.1:80", "10.0.0.1:80")));
    assert_eq!(super::parse_net("10.96.0.01"), Err(zeros("10.96.0.01", "10.96.0.1")));
    for text in ["10.0.0.0256", "10.0.00", "01.2.3.4.5", "fe80::01%eth0", "", "..."] {
        assert_eq!(text.parse::<Addr>(), Err(AddrError::Address(text.into())), "more is wrong than zeros");
    }
    assert_eq!("192.0.2.1:0".parse::<L4Addr>(), Err(AddrError::PortZero("192.0.2.1:0".into())));
    assert_eq!("192.0.2.1:80/ICMP".parse::<L4Addr>(), Err(AddrError::Protocol("ICMP".into())));
    for text in ["192.0.2.1", "[fe80::1%2]:80", "[fe80::1%0]:80", "host:80", "", "/TCP", "192.0.2.1:65536"] {
        assert!(text.parse::<L4Addr>().is_err(), "{text}");
    }
}

#[test]
fn protocol_numbers_are_ianas() {
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        assert_eq!(Protocol::from_repr(protocol.number()), Some(protocol));
    }
    assert_eq!(Protocol::from_repr(1), None);
}

#[test]
fn predicates_are_those_of_the_standard_library() {
    let texts = [
        "0.0.0.0",
        "::",
        "::1",
        "127.0.0.1",
        "127.255.1.2",
        "128.0.0.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "169.254.1.2",
        "169.253.1.2",
        "10.0.0.1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:0:0:1",
        "::fffe:10.0.0.1",
        "::10.0.0.1",
    ];
    for text in texts {
        let (addr, ip): (Addr, IpAddr) =
            (text.parse().expect("valid in a test"), text.parse().expect("valid in a test"));
        assert_eq!(addr.ip(), ip, "{text}");
        assert_eq!(addr.family() == Family::Ipv4, ip.is_ipv4(), "{text}");
        assert_eq!(addr.is_unspecified(), ip.is_unspecified(), "{text}");
        assert_eq!(addr.is_loopback(), ip.is_loopback(), "{text}");
        assert_eq!(addr.is_multicast(), ip.is_multicast() || text == "255.255.255.255", "{text}");
    }
}

/// A quick answer must never hide that an address may not be used.
#[test]
fn an_ordinary_address_is_not_special() {
    let v4 = (0..=u16::MAX).map(u16::to_be_bytes).map(|[a, b]| IpAddr::from([a, b, 0, 0]));
    let v6 = (0..=u16::MAX).map(|high| IpAddr::from([high, 0, 0, 0, 0, 0, 0, 1]));
    let mut ordinary = 0;
    for addr in v4.chain(v6).map(Addr::from).filter(|addr| addr.is_ordinary()) {
        let is_special = addr.is_unspecified() || addr.is_loopback() || addr.is_multicast() || addr.is_link_local();
        assert!(!is_special, "{addr}");
        ordinary += 1;
    }
    assert_eq!(ordinary, (126 + 41 + 54) * 256 + 8192);
    assert!(!Addr::UNSPECIFIED_V4.is_ordinary() && !Addr::LOOPBACK_V6.is_ordinary());
}
