//! Connections through a service: their distribution, the address that clients see, and errors.

use std::time::{Duration, Instant};

use nodelb_prober::Transport;

use crate::host::{Host, backend, connect, errno, eventually, frontend, is_served_by, service};
use crate::sandbox;

const ALL: [Transport; 3] = [Transport::Tcp, Transport::Udp, Transport::UdpUnconnected];

/// Panics unless both backends have answered at least 40 % each, and every client saw the address
/// that it connected to.
fn assert_spread(address: &str, transport: Transport) {
    let tally = connect(address, transport, 600);
    assert_eq!(tally.failures(), 0, "{address} {transport:?}: {tally}");
    assert_eq!(tally.answered.len(), 2, "{address} {transport:?}: {tally}");
    assert!(tally.answered.values().all(|count| *count >= 240), "{address} {transport:?}: {tally}");
}

#[test]
fn spreads_over_all_backends() {
    sandbox::run("traffic::spreads_over_all_backends", |sandbox| {
        let host = Host::new(sandbox);
        let v4 = ["192.0.2.11:8080", "192.0.2.12:8080"];
        let v6 = ["[2001:db8:b::11]:8080", "[2001:db8:b::12]:8080"];
        let _backends = [backend("1", v4[0]), backend("2", v4[1]), backend("3", v6[0]), backend("4", v6[1])];
        host.serve("a.toml", &service("shop/four", &["198.51.100.10:80"], &v4));
        host.serve("b.toml", &service("shop/six", &["[2001:db8:f::10]:80"], &v6));
        let daemon = host.start();
        for transport in ALL {
            assert_spread("198.51.100.10:80", transport);
            assert_spread("[2001:db8:f::10]:80", transport);
            // An IPv6 socket that connects to an IPv4 service.
            assert_spread("[::ffff:198.51.100.10]:80", transport);
        }
        daemon.stop();
        host.cleanup();
        for transport in ALL {
            assert_eq!(errno("198.51.100.10:80", transport), "ENETUNREACH", "after cleanup, {transport:?}");
        }
    });
}

/// What it waits for: `answers_under_way_at_a_cleanup_come_from_the_service` in `sockets/udp.rs`.
#[test]
fn the_command_cleanup_waits_a_second_for_answers_under_way() {
    sandbox::run("traffic::the_command_cleanup_waits_a_second_for_answers_under_way", |sandbox| {
        let host = Host::new(sandbox);
        host.start().stop();
        let begun = Instant::now();
        let output = host.cleanup_command().output().unwrap();
        assert!(output.status.success(), "cleanup: {output:?}");
        assert!(host.nothing_pinned(), "{:?}", host.pinned());
        assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    });
}

#[test]
fn a_service_without_backends_refuses() {
    sandbox::run("traffic::a_service_without_backends_refuses", |sandbox| {
        let host = Host::new(sandbox);
        host.serve("a.toml", &service("shop/none", &["198.51.100.10:80", "[2001:db8:f::10]:80"], &[]));
        let _daemon = host.start();
        for transport in ALL {
            assert_eq!(errno("198.51.100.10:80", transport), "ECONNREFUSED", "{transport:?}");
            assert_eq!(errno("[2001:db8:f::10]:80", transport), "ECONNREFUSED", "{transport:?}");
        }
        assert_eq!(errno("198.51.100.11:80", Transport::Tcp), "ENETUNREACH", "an address without a service");
    });
}

#[test]
fn the_admin_port_is_no_backend() {
    sandbox::run("traffic::the_admin_port_is_no_backend", |sandbox| {
        let host = Host::new(sandbox);
        let _backend = backend("good", "192.0.2.11:8080");
        let admin = ["127.0.0.1:9890", "192.0.2.11:8080"];
        host.serve("a.toml", &service("evil/reader", &["198.51.100.10:80"], &admin));
        host.serve("b.toml", &service("evil/only", &["198.51.100.11:80"], &["127.0.0.1:9890"]));
        let _daemon = host.start();
        assert_eq!(connect("198.51.100.10:80", Transport::Tcp, 50).answered.get("good"), Some(&50));
        assert_eq!(errno("198.51.100.11:80", Transport::Tcp), "ECONNREFUSED");
        let backends = crate::host::get("/backends").unwrap();
        let refused = backends["backends"].as_array().unwrap().iter().filter(|row| row["choice"] == "Refused");
        assert!(refused.count() >= 2, "{backends:#}");
    });
}

#[test]
fn two_services_claim_one_address() {
    sandbox::run("traffic::two_services_claim_one_address", |sandbox| {
        let host = Host::new(sandbox);
        let _backends = [backend("1", "192.0.2.11:8080"), backend("2", "192.0.2.12:8080")];
        host.serve("1.toml", &service("shop/first", &["198.51.100.10:80"], &["192.0.2.11:8080"]));
        host.serve("2.toml", &service("shop/second", &["198.51.100.10:80"], &["192.0.2.12:8080"]));
        let _daemon = host.start();
        assert_eq!(connect("198.51.100.10:80", Transport::Tcp, 20).answered.get("1"), Some(&20));
        let row = frontend("198.51.100.10:80/TCP");
        assert!(row.is_some_and(|row| row["service"] == "shop/first"));
        host.withdraw("1.toml");
        eventually("the second service takes over", || is_served_by("198.51.100.10:80/TCP", &["192.0.2.12:8080/TCP"]));
        assert_eq!(connect("198.51.100.10:80", Transport::Tcp, 20).answered.get("2"), Some(&20));
    });
}
