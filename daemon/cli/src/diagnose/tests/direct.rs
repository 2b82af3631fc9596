use nodelb_core::model::service::ServiceName;
use serde_json::{Value, json};

use super::*;
use crate::diagnose::facts::{Facts, Probe};

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// What is found about a service with the backend 10.1.0.1:80, which the node reaches on eth1, if it is forwarded this way.
fn found(forward: &str, change: impl FnOnce(&mut Daemon, &mut KernelSettings)) -> Vec<(&'static str, Vec<String>)> {
    let flags = if forward.is_empty() { json!([]) } else { json!([format!("Forward={forward}")]) };
    let frontends = json!([
        {"address": "198.51.100.1:80/TCP", "type": "LoadBalancer", "flags": flags, "outside": "Served"},
        {"address": "0.0.0.0:30080/TCP", "type": "NodePort", "outside": "Served"},
    ]);
    let connections = json!([{"backend": "10.1.0.1:80/TCP", "path": "redirect", "state": "established"}]);
    let mut daemon = Daemon {
        services: typed(json!([{"service": "shop/web", "source": "files", "forward": forward}])),
        frontends: typed(frontends),
        backends: typed(json!([{"address": "10.1.0.1:80/TCP", "choice": "Selected"}])),
        packets: Some(Packets { connections: typed(connections), ..Packets::default() }),
        ..Daemon::default()
    };
    let mut kernel = KernelSettings {
        addresses: vec![("eth1".into(), "10.1.0.9".parse().unwrap())],
        arp_devices: vec!["eth0".into()],
        routes: vec![
            route("0.0.0.0", 0, true, 1_500),
            route("10.1.0.0", 24, false, 1_600),
            route("::", 0, true, 1_500),
        ],
        ..KernelSettings::default()
    };
    change(&mut daemon, &mut kernel);
    let packets = daemon.packets.clone().unwrap();
    let facts = Facts {
        service: ServiceName::new("shop", "web"),
        now: 0,
        node: "a".into(),
        stored: None,
        daemon: Probe::Ok(daemon),
        cluster: Probe::Skipped,
        connect_tests: Vec::new(),
        dns: None,
        kernel,
        outside_cgroup: None,
    };
    let context = Context::new(&facts);
    let mut found = problems(&context, &packets);
    found.append(&mut of_backend(&context));
    found.retain(|(_, evidence)| !evidence.is_empty());
    found
}

fn route(to: &str, length: u8, has_gateway: bool, mtu: u32) -> Route {
    Route { to: to.parse().unwrap(), length, device: "eth1".into(), has_gateway, metric: 0, mtu }
}

#[track_caller]
fn check(found: &[(&str, Vec<String>)], name: &str, evidence: &str) {
    let [(is, lines)] = found else { panic!("{found:?}") };
    assert_eq!((*is, &*lines.join("\n")), (name, evidence));
    assert!(catalogue::packet_problem(name).is_some(), "{name}");
}

#[test]
fn a_sound_service_has_no_finding() {
    for forward in ["", "direct", "tunnel"] {
        assert_eq!(found(forward, |_, _| ()), [], "{forward}");
    }
}

#[test]
fn a_router_in_front_of_a_direct_backend_is_found() {
    let behind = |_: &mut Daemon, kernel: &mut KernelSettings| kernel.routes[1].has_gateway = true;
    check(&found("direct", behind), "direct-gateway", "the route to 10.1.0.1:80/TCP leads to a router on eth1");
    assert_eq!(found("tunnel", behind), []);
    assert_eq!(found("", behind), []);
}

#[test]
fn an_mtu_without_room_for_the_tunnel_is_found() {
    let with = |forward, mtu| found(forward, move |_, kernel| kernel.routes[1].mtu = mtu);
    let line = |mtu: u32| format!("10.1.0.1:80/TCP: the MTU on eth1 is {mtu}, which leaves {} in the tunnel", mtu - 20);
    check(&with("tunnel", 1_500), "tunnel-mtu", &line(1_500));
    check(&with("tunnel", 1_290), "tunnel-mtu-low", &line(1_290));
    assert_eq!(with("tunnel", 1_520), []);
    assert_eq!(with("tunnel", 0), []);
    assert_eq!(with("direct", 1_290), []);
    let v6 = found("tunnel", |daemon, kernel| {
        daemon.backends[0].address = "[2001:db8::1]:80/TCP".into();
        kernel.routes.push(route("2001:db8::", 64, false, 1_310));
    });
    check(&v6, "tunnel-mtu-low", "[2001:db8::1]:80/TCP: the MTU on eth1 is 1310, which leaves 1270 in the tunnel");
}

#[test]
fn the_machine_of_a_direct_backend_needs_the_address_and_must_not_answer_for_it() {
    let has = |addresses: &[(&str, &str)], outside: &str| {
        found("direct", |daemon, kernel| {
            daemon.frontends[0].outside = outside.into();
            let own = addresses.iter().map(|(device, ip)| ((*device).to_owned(), ip.parse().unwrap()));
            kernel.addresses.extend(own);
        })
    };
    let backend = ("eth1", "10.1.0.1");
    check(&has(&[backend], "Off"), "direct-address", "no device has the address of 198.51.100.1:80/TCP");
    assert_eq!(has(&[backend], "Served"), [], "nodelb translates the packets");
    assert_eq!(has(&[], "Off"), [], "no backend is here");
    let loopback = [backend, ("lo", "198.51.100.1")];
    let line = "arp_ignore is less than 1, or arp_announce less than 2, on eth0";
    check(&has(&loopback, "Refused"), "direct-arp", line);
    assert_eq!(has(&[backend, ("eth0", "198.51.100.1")], "Refused"), [], "keepalived has assigned it");
}

#[test]
fn forwarded_datagrams_say_what_cannot_be_seen() {
    let found = |backend: &str| {
        found("tunnel", |daemon, _| {
            let row = daemon.packets.as_mut().unwrap().connections.first_mut().unwrap();
            (row.path, row.state, row.backend) = ("tunnel".into(), "forwarded".into(), backend.into());
        })
    };
    check(&found("10.1.0.1:80/UDP"), "direct-unseen", "10.1.0.1:80/UDP has 1 connection");
    assert_eq!(found("10.1.0.1:80/TCP"), [], "the status has it");
}

#[test]
fn the_longest_route_is_taken_and_then_the_one_with_the_lowest_metric() {
    let far = Route { metric: 9, ..route("10.1.0.0", 24, true, 1) };
    let routes = vec![far, route("10.1.0.0", 24, false, 2), route("10.0.0.0", 8, false, 3), route("::", 0, false, 4)];
    let kernel = KernelSettings { routes, ..KernelSettings::default() };
    let mtu = |ip: &str| kernel.route_to(ip.parse().unwrap()).map(|route| route.mtu);
    let found = ["10.1.0.1", "10.1.1.1", "192.0.2.1", "2001:db8::1"].map(mtu);
    assert_eq!(found, [Some(2), Some(3), None, Some(4)]);
}
