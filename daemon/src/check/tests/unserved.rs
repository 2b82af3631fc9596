use std::fs;

use nodelb_core::model::uplink::UplinkEntry;

use super::*;

/// What is found about these service files on a host with the address 192.0.2.1 that forwards no IPv4 packets.
fn found(entries: &str, keys: &str) -> Unserved {
    found_with(2, entries, keys)
}

/// The same, with the uplinks eth2 to this one; at eth3, the way back is checked.
fn found_with(last_uplink: u32, entries: &str, keys: &str) -> Unserved {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("web.toml"), entries).unwrap();
    fs::create_dir_all(scratch.path().join("ipv4")).unwrap();
    fs::write(scratch.path().join("ipv4/ip_forward"), "0\n").unwrap();
    let config = Config::parse(&format!("[files]\ndirectory = {:?}\n{keys}", scratch.path())).unwrap();
    let uplink = |ifindex, name: &str| Uplink {
        ifindex,
        name: name.into(),
        entry: UplinkEntry { v4: "192.0.2.1".parse().ok(), is_strict: ifindex == 3, ..UplinkEntry::default() },
    };
    let host = Host {
        addresses: ["192.0.2.1".parse::<Addr>().unwrap()].into(),
        sysctls: scratch.path().to_owned(),
        uplinks: (2..=last_uplink).map(|ifindex| uplink(ifindex, &format!("eth{ifindex}"))).collect(),
        dropping: vec![
            DroppingChain { name: "the chain FORWARD of iptables-legacy".into(), family: Some(Family::Ipv4) },
            DroppingChain { name: "the chain FORWARD of ip6tables-legacy".into(), family: Some(Family::Ipv6) },
        ],
    };
    // Of the documentation networks, 192.0.2.0/24 is behind this host.
    let device = |addr: &str| if addr.starts_with("192.0.2.") { 9 } else { 2 };
    let way = |addr: Addr| Way { device: device(&addr.to_string()), has_gateway: addr.to_string() == "192.0.2.200" };
    unserved_on(&config, &host, |addresses| addresses.into_iter().map(|addr| (addr, way(addr))).collect())
}

fn entry(frontend: &str, backend: &str, more: &str) -> String {
    format!("[[service]]\nname = \"shop/web\"\nfrontends = [\"{frontend}\"]\nbackends = [\"{backend}\"]\n{more}\n")
}

/// `nodelb check-config` said "Configuration OK" about services that no host serves.
#[test]
fn an_address_that_no_host_serves_is_a_problem_and_one_that_this_host_refuses_a_notice() {
    for frontend in ["127.0.0.1:7777", "169.254.1.1:80"] {
        let Unserved { problems, notices } = found(&entry(frontend, "192.0.2.1:8080", ""), "");
        assert!(problems.len() == 1 && notices.is_empty(), "{problems:?} {notices:?}");
        assert!(
            problems[0].contains(&format!("service shop/web: {frontend}/TCP will not be served: ")),
            "{problems:?}"
        );
    }
    let bypassed = found(&entry("198.51.100.1:80", "192.0.2.1:8080", ""), "[datapath]\nbypass = [\"198.51.100.0/24\"]");
    assert_eq!(bypassed.problems.len(), 1, "no host with this configuration serves it");
    let Unserved { problems, notices } = found(&entry("192.0.2.1:80", "192.0.2.1:8080", ""), "");
    assert!(problems.is_empty() && notices.len() == 1, "{problems:?} {notices:?}");
    assert!(notices[0].starts_with("note: ") && notices[0].contains("is an address of this node"), "{notices:?}");
}

/// The kernel discards packets to such an address that arrive by a device: the service worked on the host alone.
#[test]
fn a_loopback_backend_for_clients_outside_is_a_problem() {
    let service = |backend, more| entry("198.51.100.1:80", backend, more);
    let problems = |entries: &str, keys| found(entries, keys).problems;
    let outside = problems(&service("127.0.0.1:8081", "outside = true"), "");
    assert_eq!(outside.len(), 1, "{outside:?}");
    assert!(outside[0].contains("cannot reach the backend 127.0.0.1:8081/TCP, a loopback address"), "{outside:?}");
    assert_eq!(problems(&service("127.0.0.1:8081", ""), ""), [""; 0]);
    assert_eq!(problems(&service("192.0.2.1:8081", "outside = true"), ""), [""; 0]);
    assert_eq!(problems(&service("127.0.0.1:8081", "outside = true"), "[packets]\nmode = \"off\""), [""; 0]);
}

/// Every client failed until an administrator looked at the packets.
#[test]
fn a_host_that_does_not_forward_is_noted_if_a_backend_of_clients_outside_is_elsewhere() {
    let notices = |backend, more| found(&entry("198.51.100.1:80", backend, more), "").notices;
    let elsewhere = notices("203.0.113.11:8080", "outside = true");
    assert_eq!(elsewhere.len(), 1, "{elsewhere:?}");
    let start =
        "note: net.ipv4.ip_forward is 0 on this host: clients outside the node will not reach backends of shop/web";
    assert!(elsewhere[0].starts_with(start), "{elsewhere:?}");
    assert_eq!(notices("192.0.2.1:8080", "outside = true"), [""; 0], "its own processes");
    assert_eq!(notices("203.0.113.11:8080", ""), [""; 0], "only processes of the host are clients");
}

/// Docker makes FORWARD drop packets: clients hung, and the first sign of it was what they said.
#[test]
fn a_chain_that_drops_forwarded_packets_is_noted_if_backends_are_behind_it() {
    let notices = |backend, more| found(&entry("198.51.100.1:80", backend, more), "").notices;
    let pod = notices("192.0.2.7:8080", "outside = true");
    let start = "note: the chain FORWARD of iptables-legacy drops forwarded packets that no rule accepts: clients outside the \
                 node reach the backends of shop/web";
    assert!(pod.iter().any(|notice| notice.starts_with(start)), "{pod:?}");
    assert!(!pod.iter().any(|notice| notice.contains("ip6tables")), "{pod:?}");
    let drops = |notices: Vec<String>| notices.iter().any(|notice| notice.contains("drops forwarded"));
    assert!(!drops(notices("203.0.113.11:8080", "outside = true")), "redirected past the chain");
    assert!(!drops(notices("192.0.2.1:8080", "outside = true")), "its own processes");
    assert!(!drops(notices("192.0.2.7:8080", "")), "only processes of the host are clients");
}

#[test]
fn strict_checks_of_the_way_back_are_noted_if_there_are_several_ways() {
    let service = entry("198.51.100.1:80", "192.0.2.1:8080", "outside = true");
    let notices = |last_uplink| found_with(last_uplink, &service, "").notices;
    assert_eq!(notices(2), [""; 0]);
    let several = notices(4);
    assert_eq!(several.len(), 1, "{several:?}");
    assert!(several[0].starts_with("note: rp_filter is 1 on eth3: packets of a client"), "{several:?}");
}

/// Backends behind a second way out that is no uplink answered no client.
#[test]
fn a_device_without_programs_that_leads_to_a_router_is_noted() {
    let notices = |backend, more| found(&entry("198.51.100.1:80", backend, more), "").notices;
    let is_noted = |notices: Vec<String>| notices.iter().any(|notice| notice.contains("leads to a router"));
    assert!(is_noted(notices("192.0.2.200:8080", "outside = true")));
    assert!(!is_noted(notices("192.0.2.200:8080", "")), "only processes of the host are clients");
    assert!(!is_noted(notices("192.0.2.7:8080", "outside = true")), "the backend is on the device itself");
    assert!(!is_noted(notices("203.0.113.200:8080", "outside = true")), "an uplink");
}

/// Such services were translated, and only `nodelb trace` said so.
#[test]
fn direct_return_that_is_not_allowed_is_noted() {
    let notices = |more: &str, keys| found(&entry("198.51.100.1:80", "192.0.2.1:80", more), keys).notices;
    for forward in ["direct", "tunnel"] {
        let more = format!("outside = true\nforward = \"{forward}\"");
        let noted = notices(&more, "");
        assert_eq!(noted.len(), 1, "{noted:?}");
        let start = format!("note: forward = \"{forward}\" has no effect, because packets.direct-return is not true: ");
        assert!(noted[0].starts_with(&start) && noted[0].contains("to shop/web are translated; "), "{noted:?}");
        assert_eq!(notices(&more, "[packets]\ndirect-return = true"), [""; 0]);
        assert_eq!(notices(&more, "[packets]\nmode = \"off\""), [""; 0], "nothing is translated either");
    }
    assert_eq!(notices("outside = true\nforward = \"translate\"", ""), [""; 0]);
    assert_eq!(notices("outside = true", ""), [""; 0]);
}
