use nodelb_core::model::service::ServiceName;
use nodelb_core::state::status::Status;
use nodelb_report::rows::{self, FindingSeverity as Severity};
use nodelb_report::time::Time;
use serde_json::{Value, json};

use super::*;
use crate::diagnose::facts::{Daemon, Facts, Probe};
use crate::diagnose::rows::to_ages;

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A node on which all is well, and what is changed of it.
fn found(change: impl FnOnce(&mut Packets, &mut KernelSettings)) -> Vec<Finding> {
    found_at(&["0.0.0.0:30080/TCP", "[::]:30080/TCP"], change)
}

/// The same for a service that clients outside the node reach at these addresses.
fn found_at(addresses: &[&str], change: impl FnOnce(&mut Packets, &mut KernelSettings)) -> Vec<Finding> {
    findings(&Context::new(&facts(addresses, change)))
}

fn facts(addresses: &[&str], change: impl FnOnce(&mut Packets, &mut KernelSettings)) -> Facts {
    let backend =
        |address: &str| if address.starts_with('[') { "[2001:db8:1::1]:8080/TCP" } else { "10.1.0.1:8080/TCP" };
    let served = addresses.iter().map(
        |address| json!({"address": address, "type": "NodePort", "outside": "Served", "backends": [backend(address)]}),
    );
    let frontends = typed(Value::Array(served.collect()));
    let devices = json!([
        {"device": "eth0", "role": "uplink", "programs": "attached", "mtu": 1500},
        {"device": "tunl0", "role": "uplink", "programs": "attached", "mtu": 1450},
    ]);
    let mut packets = Packets {
        translation: "on".into(),
        devices: typed(devices),
        snat_ports: "auto".into(),
        limits: typed(
            json!([{"map": "connections", "used": 80, "limit": 100, "config_key": "packets.max-connections"}]),
        ),
        ..Packets::default()
    };
    let mut kernel = KernelSettings {
        forwards_v4: Some(true),
        forwards_v6: Some(true),
        local_ports: Some((32_768, 60_999)),
        ..KernelSettings::default()
    };
    change(&mut packets, &mut kernel);
    Facts {
        service: ServiceName::new("shop", "web"),
        now: 0,
        node: "a".into(),
        stored: None,
        daemon: Probe::Ok(Daemon { packets: Some(packets), frontends, ..Daemon::default() }),
        cluster: Probe::Skipped,
        connect_tests: Vec::new(),
        dns: None,
        kernel,
        outside_cgroup: None,
    }
}

/// The only finding, with the problem of this name and this evidence.
fn check(name: &str, evidence: &str, change: impl FnOnce(&mut Packets, &mut KernelSettings)) {
    let found = found(change);
    let [finding] = &found[..] else { panic!("{name}: {found:?}") };
    let entry = catalogue::packet_problem(name).unwrap();
    assert_eq!((finding.severity, finding.kind), (entry.severity, Kind::PacketPath), "{name}");
    let text = serde_json::to_string(finding).unwrap();
    assert!(text.contains(evidence), "{name}: {text}");
    assert!(text.contains(&serde_json::to_string(&entry.problem).unwrap()), "{name}: {text}");
}

fn connection(backend: &str, path: &str, state: &str, age: f64) -> Value {
    json!({"client": "203.0.113.3:40000/TCP", "backend": backend, "path": path, "state": state, "first_packet": age})
}

/// The only finding, that backends do not answer, with this evidence, and the remedy for this case.
fn check_silence(evidence: &str, case: &str, change: impl FnOnce(&mut Packets, &mut KernelSettings)) {
    let found = found(change);
    let [finding] = &found[..] else { panic!("{case}: {found:?}") };
    assert_eq!((finding.severity, finding.kind), (Severity::Warning, Kind::Unanswered), "{case}");
    assert!(finding.evidence.iter().any(|line| line.contains(evidence)), "{case}: {finding:?}");
    assert_eq!(finding.remedy.as_ref(), catalogue::finding(Kind::Unanswered).remedies.get(case), "{case}");
}

/// While an older connection existed, even one that was closing, the new ones were no finding (A1 of the operators' findings).
#[test]
fn an_older_connection_that_was_answered_hides_no_silence() {
    check_silence("10.1.0.1:8080/TCP has not answered 2 connections", "stack", |packets, _| {
        let row = |state, age| typed(connection("10.1.0.1:8080/TCP", "stack", state, age));
        packets.connections =
            vec![row("closing", 16.0), row("unanswered", 13.0), row("unanswered", 20.0), row("unanswered", 4.0)];
    });
}

#[test]
fn a_firewall_that_drops_forwarded_packets_is_named() {
    check_silence("the policy of the chain FORWARD of the table filter is drop", "firewall", |packets, kernel| {
        packets.connections = vec![typed(connection("10.1.0.1:8080/TCP", "stack", "unanswered", 9.0))];
        kernel.forward_drops = vec!["the chain FORWARD of the table filter".into()];
    });
    let elsewhere = |packets: &mut Packets, kernel: &mut KernelSettings| {
        packets.connections = vec![typed(connection("10.1.0.1:8080/TCP", "redirect", "unanswered", 9.0))];
        kernel.forward_drops = vec!["the chain FORWARD of the table filter".into()];
    };
    check_silence("10.1.0.1:8080/TCP", "redirect", elsewhere);
}

/// The advice was to capture on the device of a pod.
#[test]
fn a_backend_with_an_address_of_the_host_is_behind_its_input() {
    check_silence("10.1.0.1:8080/TCP has not answered 1 connection", "host", |packets, kernel| {
        packets.connections = vec![typed(connection("10.1.0.1:8080/TCP", "stack", "unanswered", 9.0))];
        kernel.addresses = vec![("eth0".into(), "10.1.0.1".parse().unwrap())];
        kernel.forward_drops = vec!["the chain FORWARD of the table filter".into()];
    });
    let mut facts = silent(&["198.51.100.1:80/TCP"], |_, kernel| {
        kernel.addresses = vec![("eth0".into(), "10.1.0.1".parse().unwrap())];
    });
    let found = findings(&Context::new(&facts));
    let expected = catalogue::finding(Kind::Unanswered).remedies.get("host");
    assert_eq!(found[0].remedy.as_ref(), expected, "without its connections, too");
    let Probe::Ok(daemon) = &mut facts.daemon else { unreachable!() };
    daemon.frontends[0].backends.push("10.1.0.2:8080/TCP".into());
    assert_ne!(findings(&Context::new(&facts))[0].remedy.as_ref(), expected, "or it is the one in a pod");
}

/// A service of which the status says that its backends do not answer.
fn silent(addresses: &[&str], change: impl FnOnce(&mut Packets, &mut KernelSettings)) -> Facts {
    let mut facts = facts(addresses, change);
    let Probe::Ok(daemon) = &mut facts.daemon else { unreachable!() };
    daemon.services = typed(json!([{"service": "shop/web", "source": "files"}]));
    daemon.problems = typed(json!([{
        "severity": "critical", "reason": "Unanswered", "object": "shop/web", "since": null,
        "cause": "the last 3 connections got no answer", "command": "nodelb diagnose shop/web",
        "blocks_readiness": false,
    }]));
    facts
}

/// The silence came first, with the advice to look at the backends.
#[test]
fn packets_that_the_kernel_does_not_forward_explain_the_silence() {
    let waiting = |backend: &str| typed(connection(backend, "stack", "unanswered", 9.0));
    let facts = silent(&["198.51.100.1:80/TCP"], |packets, kernel| {
        packets.connections = vec![waiting("10.1.0.1:8080/TCP")];
        kernel.forwards_v4 = Some(false);
    });
    let found = crate::diagnose::rules::findings(&facts);
    let [cause, silence] = &found[..] else { panic!("{found:?}") };
    assert_eq!((cause.kind, cause.severity, cause.explained_by), (Kind::PacketPath, Severity::Critical, None));
    assert_eq!(cause.evidence, ["net.ipv4.ip_forward is 0"]);
    assert_eq!((silence.kind, silence.explained_by), (Kind::Unanswered, Some(Kind::PacketPath)));
    assert!(silence.evidence[0].starts_with("10.1.0.1:8080/TCP has not answered"), "{silence:?}");
    // Packets to the host itself, and those of the other family, need no forwarding of IPv4.
    for backend in ["10.1.0.9:8080/TCP", "[2001:db8:1::1]:8080/TCP"] {
        let facts = silent(&["198.51.100.1:80/TCP"], |packets, kernel| {
            packets.connections = vec![waiting(backend)];
            kernel.forwards_v4 = Some(false);
            kernel.addresses = vec![("eth0".into(), "10.1.0.9".parse().unwrap())];
        });
        let found = crate::diagnose::rules::findings(&facts);
        let [silence, cause] = &found[..] else { panic!("{backend}: {found:?}") };
        assert_eq!((silence.kind, silence.explained_by), (Kind::Unanswered, None), "{backend}");
        assert_eq!((cause.kind, cause.severity), (Kind::PacketPath, Severity::Warning), "{backend}");
    }
}

/// A backend on another machine was said to be on this node, and not to answer (V10 of the findings about IPv6).
#[test]
fn a_link_local_client_is_no_silence_of_a_backend() {
    check("link-local", "[fe80::2]:40000/TCP to [2001:db8:1::11]:8080/TCP", |packets, _| {
        let row = connection("[2001:db8:1::11]:8080/TCP", "stack", "unanswered", 9.0);
        let mut row: ConnectionRow = typed(row);
        row.client = "[fe80::2]:40000/TCP".into();
        packets.connections = vec![row];
    });
}

/// The status remembers what connections do not show any more, or never do.
#[test]
fn what_the_status_says_of_silence_is_a_finding() {
    for (forward, case) in [("", ""), ("direct", "direct"), ("tunnel", "tunnel")] {
        let mut facts = facts(&["198.51.100.1:80/TCP"], |_, _| ());
        let Probe::Ok(daemon) = &mut facts.daemon else { unreachable!() };
        daemon.problems = typed(json!([{
            "severity": "critical", "reason": "Unanswered", "object": "shop/web", "since": null,
            "cause": "the last 3 connections got no answer", "command": "nodelb diagnose shop/web",
            "blocks_readiness": false,
        }]));
        daemon.frontends = typed(json!([{
            "address": "198.51.100.1:80/TCP", "type": "Static", "outside": "Served", "backends": ["10.1.0.1:8080/TCP"],
            "flags": [format!("Forward={forward}")],
        }]));
        let found = findings(&Context::new(&facts));
        let [finding] = &found[..] else { panic!("{forward}: {found:?}") };
        assert_eq!((finding.severity, finding.kind), (Severity::Critical, Kind::Unanswered));
        assert_eq!(finding.what, "the last 3 connections got no answer");
        let entry = catalogue::finding(Kind::Unanswered);
        assert_eq!(
            finding.remedy.as_ref().unwrap(),
            entry.remedies.get(case).unwrap_or(entry.remedy.as_ref().unwrap())
        );
    }
}

/// The columns have the names and types that the daemon sends: a row that cannot be read is left out, and its finding, too.
#[test]
fn rows_of_the_daemon_are_read() {
    let now = Time(1_000_000);
    let ago = |seconds: u64| Time(now.0 - seconds * 1_000);
    let drop = serde_json::to_value(rows::DropRow {
        reason: "no-route".into(),
        verdict: "dropped".into(),
        service: None,
        packets: 3,
        first: ago(9),
        last: ago(5),
        description: None,
    });
    let waiting = serde_json::to_value(rows::ConnectionRow {
        client: "203.0.113.3:40000/TCP".into(),
        frontend: "198.51.100.1:80/TCP".into(),
        backend: "10.1.0.1:8080/TCP".into(),
        source_address: None,
        path: "stack".into(),
        state: "unanswered".into(),
        last_packet: ago(1),
        first_packet: ago(9),
        bytes: 60,
        service: "shop/web:http/TCP/IPv4".into(),
    });
    let [drop, waiting] = [drop, waiting].map(|row| {
        let mut row = row.unwrap();
        to_ages(&mut row, now);
        row
    });
    check("no-route", "3 packets dropped, the last one 5s ago", |packets, _| packets.drops = vec![typed(drop)]);
    check_silence("10.1.0.1:8080/TCP has not answered 1 connection", "stack", |packets, _| {
        packets.connections = vec![typed(waiting)];
    });
}

#[test]
fn a_sound_node_has_no_finding() {
    assert_eq!(found(|_, _| ()), []);
}

#[test]
fn what_is_not_translated_is_said_first() {
    check("off", "packets.mode", |packets, kernel| {
        (packets.translation, packets.reason) = ("off".into(), "packets.mode is \"off\"".into());
        kernel.forwards_v4 = Some(false);
    });
    for translation in ["draining", "files"] {
        check("leaves-to-others", "kube-proxy", |packets, _| {
            (packets.translation, packets.reason) = (translation.into(), "the nftables table kube-proxy".into());
        });
    }
}

#[test]
fn a_service_of_a_file_that_no_proxy_translates_is_a_warning() {
    for translation in ["off", "draining"] {
        let mut facts = facts(&["198.51.100.1:80/TCP"], |packets, _| {
            (packets.translation, packets.reason) = (translation.into(), "the nftables table kube-proxy".into());
        });
        let Probe::Ok(daemon) = &mut facts.daemon else { unreachable!() };
        daemon.services = typed(json!([{"service": "shop/web", "source": "files"}]));
        let found = findings(&Context::new(&facts));
        let [finding] = &found[..] else { panic!("{translation}: {found:?}") };
        assert_eq!((finding.severity, finding.kind), (Severity::Warning, Kind::PacketPath), "{translation}");
        assert!(finding.what.contains("do not know services of files"), "{finding:?}");
    }
}

/// The advice was packets.mode = "on", which gives the service no address of another one.
#[test]
fn a_service_without_its_addresses_is_not_said_to_be_untranslated() {
    let found = |statuses: [Status; 2]| {
        let mut facts = facts(&["198.51.100.1:80/TCP", "198.51.100.2:80/TCP"], |packets, _| {
            (packets.translation, packets.reason) = ("off".into(), "the nftables table kube-proxy".into());
        });
        let Probe::Ok(daemon) = &mut facts.daemon else { unreachable!() };
        daemon.services = typed(json!([{"service": "shop/web", "source": "files"}]));
        for (row, status) in daemon.frontends.iter_mut().zip(statuses) {
            row.status = Some(status);
            row.outside = if status.is_denied() { "Refused" } else { "Off" }.into();
        }
        daemon.frontends.push(typed(json!({"address": "10.96.0.1:80/TCP", "outside": "NodeOnly", "status": "OK"})));
        findings(&Context::new(&facts))
    };
    assert_eq!(found([Status::Conflict, Status::Refused]), []);
    assert_eq!(found([Status::Conflict, Status::Ok]).len(), 1, "it has the other address");
}

#[test]
fn devices_without_programs_and_with_those_of_others_are_found() {
    check("device-failed", "eth0: no permission", |packets, _| {
        packets.devices[0].programs = "failed".into();
        packets.devices[0].error = Some("no permission".into());
    });
    check("program-in-front", "the program other runs before nodelb's", |packets, _| {
        packets.devices[0].error = Some("the program other runs before nodelb's at ingress".into());
    });
    check("no-xdp", "eth0: the driver does not support it", |packets, _| {
        packets.devices[0].xdp = Some("none: the driver does not support it".into());
    });
    check("device-excluded", "the device eth1", |packets, _| {
        let row = json!({"device": "eth1", "role": "none", "programs": "unused", "reason": "in packets.except"});
        packets.devices.push(typed(row));
    });
    for device in OTHERS {
        check("other-programs", device, |packets, _| {
            packets.devices.push(typed(json!({"device": device, "role": "none", "programs": "unused"})));
        });
    }
}

/// Once, the setting of IPv4 was reported on a node without an IPv4 address.
#[test]
fn only_packets_that_the_node_receives_and_sends_on_need_forwarding() {
    let at = |addresses: &'static [&str]| {
        move |_: &mut Packets, kernel: &mut KernelSettings| {
            (kernel.forwards_v4, kernel.forwards_v6) = (Some(false), Some(true));
            let named = |address: &&str| ("eth0".to_owned(), address.parse().unwrap());
            kernel.addresses = addresses.iter().map(named).collect();
        }
    };
    assert_eq!(found(at(&["127.0.0.1", "2001:db8:1::2", "fe80::2"])), [], "no client reaches it over IPv4");
    assert_eq!(found(at(&["203.0.113.2", "10.1.0.1"])), [], "the backend is this host");
    assert_eq!(found(at(&["203.0.113.2"])).len(), 1);
}

#[test]
fn a_family_that_no_client_uses_needs_no_forwarding() {
    let disabled = |_: &mut Packets, kernel: &mut KernelSettings| kernel.forwards_v6 = Some(false);
    assert_eq!(found_at(&["198.51.100.1:80/TCP", "0.0.0.0:30080/TCP"], disabled), []);
    assert_eq!(found_at(&["198.51.100.1:80/TCP", "[::]:30080/TCP"], disabled).len(), 1);
}

#[test]
fn settings_of_the_kernel_are_compared() {
    check("forwarding", "net.ipv4.ip_forward is 0", |_, kernel| kernel.forwards_v4 = Some(false));
    check("forwarding", "net.ipv6.conf.all.forwarding is 0", |_, kernel| kernel.forwards_v6 = Some(false));
    check("snat-overlap", "30000-40000", |packets, _| packets.snat_ports = "30000-40000".into());
    assert_eq!(found(|packets, _| packets.snat_ports = "10000-32767".into()), []);
    assert_eq!(found(|_, kernel| *kernel = KernelSettings::default()), [], "unknown settings are no problem");
}

#[test]
fn backends_that_never_answered_are_found() {
    let waiting = |path: &str| vec![typed(connection("10.1.0.1:8080/TCP", path, "unanswered", 9.0))];
    check_silence("10.1.0.1:8080/TCP has not answered 1 connection", "redirect", |packets, _| {
        packets.connections = waiting("redirect");
    });
    check_silence("203.0.113.3:40000/TCP", "stack", |packets, _| packets.connections = waiting("stack"));
    let answered = |packets: &mut Packets, _: &mut KernelSettings| {
        packets.connections = waiting("stack");
        packets.connections.push(typed(connection("10.1.0.1:8080/TCP", "stack", "established", 8.0)));
    };
    assert_eq!(found(answered), [], "it has answered a later one");
    let young = |packets: &mut Packets, _: &mut KernelSettings| {
        packets.connections = vec![typed(connection("10.1.0.1:8080/TCP", "stack", "unanswered", 2.0))];
    };
    assert_eq!(found(young), [], "it may still answer");
}

/// One question and its answer over UDP: the backend was said not to have answered.
#[test]
fn a_flow_of_one_datagram_in_each_direction_is_answered() {
    let flow = |packets: &mut Packets, _: &mut KernelSettings| {
        packets.connections = vec![typed(connection("10.1.0.1:53/UDP", "stack", "handshake", 9.0))];
    };
    assert_eq!(found(flow), []);
}

#[test]
fn a_strict_rp_filter_is_a_suspect_where_packets_may_return_by_another_device() {
    let strict = |packets: &mut Packets, kernel: &mut KernelSettings| {
        kernel.strict_devices = vec!["eth0".into(), "lo".into()];
        packets.connections = vec![typed(connection("10.1.0.1:8080/TCP", "stack", "unanswered", 9.0))];
    };
    let rp_filter = &catalogue::packet_problem("rp-filter").unwrap().problem;
    let has_it = |found: Vec<Finding>| serde_json::to_string(&found).unwrap().contains(rp_filter);
    assert!(has_it(found(strict)));
    assert!(
        !has_it(found(|packets, kernel| {
            strict(packets, kernel);
            packets.devices.pop();
        })),
        "there is only one uplink"
    );
    assert_eq!(found(|_, kernel| kernel.strict_devices = vec!["eth0".into()]), [], "all backends answer");
}

#[test]
fn a_map_that_is_nearly_full_is_found() {
    check("nearly-full", "connections: 81 of 100 (packets.max-connections)", |packets, _| {
        packets.limits[0].used = Some(81);
    });
    assert_eq!(found(|packets, _| (packets.limits[0].used, packets.limits[0].map) = (Some(100), EVICTING.into())), []);
    assert_eq!(found(|packets, _| packets.limits[0].used = None), []);
}

#[test]
fn recent_drops_are_explained_by_their_reason() {
    let drop =
        |reason: &str, last: f64| typed(json!({"reason": reason, "verdict": "dropped", "packets": 3, "last": last}));
    let reasons = ["no-route", "no-forwarding", "mtu", "no-port", "no-local-backend", "source-range", "no-room"];
    for reason in reasons.into_iter().chain([
        "mtu-no-df",
        "reverse-path",
        "fragment-rate",
        "served-source",
        "ipsec",
        "encapsulation",
        "tunnel-source",
    ]) {
        check(reason, "3 packets dropped, the last one 5s ago", |packets, _| packets.drops = vec![drop(reason, 5.0)]);
    }
    assert_eq!(found(|packets, _| packets.drops = vec![drop("no-route", RECENT + 1.0)]), [], "long ago");
    assert_eq!(found(|packets, _| packets.drops = vec![drop("short", 5.0)]), [], "no problem of the service");
    let severity = |reason: &str| catalogue::packet_problem(reason).unwrap().severity;
    assert_eq!((severity("no-port"), severity("source-range")), (Severity::Warning, Severity::Info));
}

/// The client is refused at once, so that no status has it.
#[test]
fn packets_that_come_back_from_the_machine_of_a_backend_are_explained() {
    let mut facts = facts(&["198.51.100.1:80/TCP"], |packets, _| {
        packets.drops = vec![typed(json!({"reason": "ttl", "verdict": "icmp", "packets": 3, "last": 5.0}))];
    });
    assert_eq!(findings(&Context::new(&facts)), [], "of a path that is too long");
    let Probe::Ok(daemon) = &mut facts.daemon else { unreachable!() };
    daemon.frontends[0].flags = vec!["Forward=direct".into()];
    let found = findings(&Context::new(&facts));
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert!(finding.remedy.as_deref().unwrap().contains("ip address add"), "{finding:?}");
}

/// Once, "52 packets rst".
#[test]
fn drops_are_said_in_words_and_with_the_service() {
    let verdicts = [
        ("rst", "refused with RST"),
        ("icmp", "answered with ICMP"),
        ("passed", "passed to the network stack"),
        ("dropped", "dropped"),
    ];
    for (verdict, fate) in verdicts {
        let evidence = format!("52 packets of shop/web:http/TCP/IPv4 {fate}, the last one 5s ago");
        check("no-port", &evidence, |packets, _| {
            packets.drops = vec![typed(json!({
                "reason": "no-port", "verdict": verdict, "service": "shop/web:http/TCP/IPv4", "packets": 52,
                "last": 5.0,
            }))];
        });
    }
}

/// Only rp_filter was named, and it was 0.
#[test]
fn a_client_without_a_route_is_named_with_rp_filter() {
    let entry = catalogue::packet_problem("reverse-path").unwrap();
    assert!(entry.problem.contains("the node has no route to them"), "{}", entry.problem);
    for text in ["no route to the client (`ip route get CLIENT`)", "rp_filter to 2"] {
        assert!(entry.remedy.contains(text), "{}", entry.remedy);
    }
}
