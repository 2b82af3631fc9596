//! The packet path together with firewalls, a network plugin that masquerades by iptables, programs of others
//! at the same device, a tunnel between the nodes, and several uplinks.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use nodelb_prober::Transport;

use crate::host::{Daemon, Host, eventually, get};
use crate::lab::{CLIENT, Lab, NODE_A, POD_A1, POD_A2};
use crate::lab_services::{PACKETS_ON, Service};
use crate::network::ip;
use crate::outside::{TRANSPORTS, start, wait_for_programs};
use crate::outside_more::{addresses, run};
use crate::outside_network::{assert_all_answer, nft, talks};
use crate::sandbox::{self, command};
use crate::talk::{SHORT, Server, TIMEOUT, Talk, ask};

/// Service 1 has a backend on node A, service 2 one on node B.
fn in_lab(test: &str, body: impl FnOnce(&Host, &Lab, [Service; 2])) {
    run(&format!("outside_coexistence::{test}"), body);
}

/// Queries each address of the service; all answers are of this kind.
fn assert_served(lab: &Lab, service: &Service, is_expected: bool) {
    for to in addresses(std::slice::from_ref(service)) {
        for transport in TRANSPORTS {
            let answer = lab.client.run(|| ask(&to, transport, if is_expected { TIMEOUT } else { SHORT }));
            assert_eq!(answer.is_ok(), is_expected, "{to} {transport:?}: {answer:?}");
        }
    }
}

#[test]
fn a_firewall_that_forwards_nothing_stops_only_packets_to_pods_of_the_node() {
    in_lab("a_firewall_that_forwards_nothing_stops_only_packets_to_pods_of_the_node", |host, lab, services| {
        nft("
            table inet firewall {
                chain forward { type filter hook forward priority 0; policy drop; }
            }");
        let _daemon = start(host, &[&services[0], &services[1]]);
        assert_served(lab, &services[0], false);
        assert_served(lab, &services[1], true);
        // The rules that docs/packets.md requires: clients may reach pods.
        nft("
            add rule inet firewall forward ct state established,related accept
            add rule inet firewall forward ct state invalid drop
            add rule inet firewall forward ip daddr 203.0.113.32/27 accept
            add rule inet firewall forward ip6 daddr 2001:db8:a1::/64 accept");
        assert_served(lab, &services[0], true);
        assert_served(lab, &services[1], true);
    });
}

#[test]
fn a_plugin_that_masquerades_by_iptables_changes_no_answer() {
    in_lab("a_plugin_that_masquerades_by_iptables_changes_no_answer", |host, lab, services| {
        let rules = [("iptables", "203.0.113.32/27", "224.0.0.0/4"), ("ip6tables", "2001:db8:a1::/64", "ff00::/8")];
        for (program, pods, multicast) in rules {
            let rule = |words: &str| command(program, &["-w"].into_iter().chain(words.split(' ')).collect::<Vec<_>>());
            rule("-t nat -N PLUGIN-POSTRTG");
            rule("-t nat -A POSTROUTING -j PLUGIN-POSTRTG");
            rule(&format!("-t nat -A PLUGIN-POSTRTG -s {pods} -d {pods} -j RETURN"));
            rule(&format!("-t nat -A PLUGIN-POSTRTG -s {pods} ! -d {multicast} -j MASQUERADE --random-fully"));
            rule(&format!("-t nat -A PLUGIN-POSTRTG ! -s {pods} -d {pods} -j RETURN"));
            rule("-A FORWARD -m conntrack --ctstate INVALID -j DROP");
        }
        let _daemon = start(host, &[&services[0], &services[1]]);
        let mut talks = talks(lab, &services);
        assert_all_answer(&mut talks, "with iptables");
        for family in [0, 1] {
            let to = &services[0].load_balancer()[family];
            let seen = lab.client.run(|| ask(to, Transport::Tcp, TIMEOUT)).unwrap().seen;
            assert_eq!(seen.to_string(), CLIENT[family], "the pod sees the client");
        }
        command("conntrack", &["-F"]);
        assert_all_answer(&mut talks, "after conntrack -F");
        for program in ["iptables", "ip6tables"] {
            command(program, &["-w", "-t", "nat", "-F"]);
            command(program, &["-w", "-F"]);
        }
        assert_all_answer(&mut talks, "after iptables -F");
    });
}

/// A plugin masquerades with any port, and some are NodePorts: the answers arrive at the port of a service.
#[test]
fn a_pod_that_is_masqueraded_with_the_port_of_a_service_gets_its_answers() {
    in_lab("a_pod_that_is_masqueraded_with_the_port_of_a_service_gets_its_answers", |host, lab, services| {
        const PORT: u16 = 9_000;
        let port = services[0].node_ports()[0].rsplit_once(':').unwrap().1.to_owned();
        for (family, pod) in [("ip", POD_A2[0]), ("ip6", POD_A2[1])] {
            nft(&format!(
                "table {family} plugin {{
                    chain postrouting {{
                        type nat hook postrouting priority 100; policy accept;
                        {family} saddr {pod} meta l4proto {{ tcp, udp }} masquerade to :{port}
                    }}
                }}"
            ));
        }
        let _far = lab.client.run(|| Server::start("far", &CLIENT, PORT));
        let _daemon = start(host, &[&services[0], &services[1]]);
        for (client, node) in CLIENT.into_iter().zip(NODE_A) {
            let to = SocketAddr::new(client.parse().unwrap(), PORT).to_string();
            for transport in TRANSPORTS {
                let mut talk = lab.pod_a2.run(|| Talk::open(&to, transport, TIMEOUT)).unwrap();
                for number in 0..5 {
                    let answer = talk.ask().unwrap_or_else(|error| panic!("{to} {transport:?} {number}: {error}"));
                    assert_eq!(
                        (&*answer.name, answer.seen.to_string()),
                        ("far", node.to_owned()),
                        "{to} {transport:?}"
                    );
                }
            }
        }
        assert_served(lab, &services[0], true);
    });
}

/// Its answers leave from the NodePort, as the requests of a pod that is masqueraded with this port.
#[test]
fn a_flow_that_another_proxy_has_begun_keeps_its_port() {
    in_lab("a_flow_that_another_proxy_has_begun_keeps_its_port", |host, lab, services| {
        const PORT: u16 = 9_100;
        let to = services[1].node_ports();
        let port = to[0].rsplit_once(':').unwrap().1.to_owned();
        let mut flows = Vec::new();
        for ((family, pod), to) in [("ip", POD_A1[0]), ("ip6", POD_A1[1])].into_iter().zip(to) {
            let backend = SocketAddr::new(pod.parse().unwrap(), PORT);
            nft(&format!(
                "table {family} proxy {{
                    chain prerouting {{
                        type nat hook prerouting priority -100; policy accept;
                        iifname uplink udp dport {port} dnat to {backend}
                    }}
                }}"
            ));
            let backend = lab.pod_a1.run(|| UdpSocket::bind(backend)).unwrap();
            let any = SocketAddr::new(if family == "ip" { "0.0.0.0" } else { "::" }.parse().unwrap(), 0);
            let client = lab.client.run(|| UdpSocket::bind(any)).unwrap();
            client.set_read_timeout(Some(TIMEOUT)).unwrap();
            client.connect(&*to).unwrap();
            client.send(b"request").unwrap();
            let (_, from) = backend.recv_from(&mut [0; 16]).unwrap();
            flows.push((client, backend, from));
        }
        let _daemon = start(host, &[&services[0], &services[1]]);
        for (client, backend, from) in &flows {
            for _ in 0..3 {
                backend.send_to(b"answer", from).unwrap();
                assert_eq!(client.recv(&mut [0; 16]).unwrap(), 6, "{from}");
            }
        }
    });
}

/// Routes packets of clients to the node by this link.
fn route_by(lab: &Lab, [v4, v6]: [&str; 2]) {
    lab.router.ip(&format!("route replace 198.51.100.0/24 via {v4}"));
    lab.router.ip(&format!("-6 route replace 2001:db8:f::/48 via {v6}"));
}

#[test]
fn packets_of_a_connection_may_arrive_by_several_uplinks() {
    in_lab("packets_of_a_connection_may_arrive_by_several_uplinks", |host, lab, services| {
        const SECOND: [&str; 2] = ["203.0.113.42", "2001:db8:4::2"];
        lab.add_second_uplink();
        // Loose: the source must only be reachable by any device.
        for device in ["all", "uplink", "second", "pod-a1"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), "2").unwrap();
        }
        host.configure(&format!("{PACKETS_ON}devices = [\"auto\", \"second\"]\n"));
        let _daemon = start(host, &[&services[0], &services[1]]);
        wait_for_programs("second");
        let mut talks = talks(lab, &services);
        for (number, gateway) in [SECOND, NODE_A, SECOND, NODE_A].into_iter().enumerate() {
            route_by(lab, gateway);
            assert_all_answer(&mut talks, &format!("after change {number} of the route"));
            assert_served(lab, &services[0], true);
            assert_served(lab, &services[1], true);
        }
        // Answers leave by the second uplink, while requests arrive by the first one.
        ip(&["route", "replace", "203.0.113.8/29", "via", "203.0.113.41"]);
        ip(&["-6", "route", "replace", "2001:db8:2::/64", "via", "2001:db8:4::1"]);
        assert_all_answer(&mut talks, "with answers by the second uplink");
        route_by(lab, SECOND);
        assert_all_answer(&mut talks, "with both directions by the second uplink");
    });
}

#[test]
fn backends_behind_a_tunnel_are_reached() {
    in_lab("backends_behind_a_tunnel_are_reached", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        let vxlan = |local: &str, remote: &str| {
            format!("link add vx type vxlan id 7 dstport 4789 local {local} remote {remote} dev uplink")
        };
        let here = |words: &str| ip(&words.split(' ').collect::<Vec<_>>());
        here(&vxlan("203.0.113.2", "203.0.113.18"));
        here("address add 203.0.113.97/30 dev vx");
        here("address add 2001:db8:6::1/64 dev vx nodad");
        here("link set vx up");
        lab.node_b.ip(&vxlan("203.0.113.18", "203.0.113.2"));
        lab.node_b.ip("address add 203.0.113.98/30 dev vx");
        lab.node_b.ip("address add 2001:db8:6::2/64 dev vx nodad");
        lab.node_b.ip("link set vx up");
        wait_for_programs("vx");
        here("route replace 203.0.113.64/27 via 203.0.113.98");
        here("-6 route replace 2001:db8:b1::/64 via 2001:db8:6::2");
        for (family, to) in services[1].load_balancer().iter().enumerate() {
            for transport in TRANSPORTS {
                // The first packet may wait for the neighbour.
                eventually(&format!("{to} {transport:?}"), || lab.client.run(|| ask(to, transport, SHORT)).is_ok());
                let answer = lab.client.run(|| ask(to, transport, TIMEOUT)).unwrap();
                assert_eq!(answer.seen.to_string(), ["203.0.113.97", "2001:db8:6::1"][family], "{to} {transport:?}");
            }
            let text = "x".repeat(1_000_000);
            let mut talk = lab.client.run(|| Talk::open(to, Transport::Tcp, 4 * TIMEOUT)).unwrap();
            let answer = talk.send(&text).unwrap_or_else(|error| panic!("{to}: {error}"));
            assert!(answer.trim_end().ends_with(&text), "{to}: a megabyte through the smaller MTU");
        }
        assert_all_answer(&mut talks(lab, &services), "through the tunnel");
    });
}

/// Compiles and loads the program of another owner. Returns the pins of the program and its map.
fn load_watcher(host: &Host, name: &str) -> [PathBuf; 2] {
    let object = host.path("watcher.o");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/watcher.bpf.c");
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let compile = sandbox::program("clang")
        .args(["-target", "bpf", "-g", "-O2", "-Wall", "-Werror", &headers, "-c", "-o"])
        .args([&object, &source])
        .output()
        .unwrap();
    assert!(compile.status.success(), "{}", String::from_utf8_lossy(&compile.stderr));
    let directory = host.pins.parent().unwrap().join(name);
    let (program, maps) = (directory.join("watch"), directory.join("maps"));
    std::fs::create_dir(&directory).unwrap();
    let [object, program_path, maps_path] = [&object, &program, &maps].map(|path| path.to_str().unwrap());
    command("bpftool", &["prog", "load", object, program_path, "type", "tc", "pinmaps", maps_path]);
    [program, maps.join("seen")]
}

/// How many packets the watcher has seen from the client to this address.
fn seen(map: &Path, target: &str) -> u64 {
    let output = sandbox::program("bpftool").args(["-j", "map", "dump", "pinned"]).arg(map).output().unwrap();
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let bytes = |text: &str| serde_json::Value::from(text.parse::<std::net::Ipv4Addr>().unwrap().octets().to_vec());
    let row = rows.as_array().unwrap().iter().map(|row| &row["formatted"]);
    let of =
        |row: &&serde_json::Value| row["key"]["target"] == bytes(target) && row["key"]["source"] == bytes(CLIENT[0]);
    row.filter(of).filter_map(|row| row["value"].as_u64()).sum()
}

/// Waits until nodelb has moved so many programs to the front and reports this program in front of its own.
fn wait_for_front(daemon: &Daemon, moved: u64, ahead: Option<&str>) {
    daemon.signal(Signal::SIGHUP);
    eventually(&format!("{moved} moved, {ahead:?} in front"), || {
        let page = get("/devices").unwrap_or_default();
        let uplink = page["devices"].as_array().into_iter().flatten().find(|row| row["device"] == "uplink");
        let error = uplink.and_then(|row| row["error"].as_str());
        page["packets"]["repairs"] == moved && error == ahead
    });
    // Until then, clients outside may not have been served. Records of an earlier run have more text after this.
    eventually(&format!("{moved} moves in the history of this run"), || {
        let history = get("/history").unwrap_or_default().to_string();
        history.matches("nodelb has moved its program to the front\"").count() as u64 == moved
    });
}

#[test]
fn programs_of_others_see_packets_before_and_after_the_translation() {
    in_lab("programs_of_others_see_packets_before_and_after_the_translation", |host, lab, services| {
        const SERVICE: [&str; 2] = ["198.51.100.101", "198.51.100.102"];
        let tcx = host.path("tcx");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/tcx.c");
        let build = sandbox::program("clang").args(["-Wall", "-Werror", "-O1", "-o"]).args([&tcx, &source]).output();
        let build = build.unwrap();
        assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
        // The kernel detaches an earlier link a moment after its last reference is dropped.
        let attach = |program: &Path, place: &str, link: &str| {
            let link = program.with_file_name(link);
            let attach = || Command::new(&tcx).args([program, Path::new("uplink"), Path::new(place), &link]).status();
            eventually("the program is attached", || attach().unwrap().success());
        };
        // One that is there first: nodelb does not replace it.
        let [early, early_map] = load_watcher(host, "early");
        attach(&early, "after", "link");
        let daemon = start(host, &[&services[0], &services[1]]);
        let [before, before_map] = load_watcher(host, "before");
        attach(&before, "before", "link");
        wait_for_front(&daemon, 1, None);
        // The kernel detaches it, and it comes to the front again: nodelb reports it and does not fight.
        std::fs::remove_file(before.with_file_name("link")).unwrap();
        attach(&before, "before", "link");
        let text = "the program watch runs before nodelb's at ingress";
        wait_for_front(&daemon, 1, Some(text));
        let status = get("/status").unwrap();
        assert!(status["problems"].to_string().contains(text), "{status}");
        // And a filter of the qdisc, which runs after all tcx programs.
        let [filter, filter_map] = load_watcher(host, "filter");
        command("tc", &["qdisc", "add", "dev", "uplink", "clsact"]);
        let object = ["object-pinned", filter.to_str().unwrap()];
        command("tc", &[&["filter", "add", "dev", "uplink", "ingress", "bpf", "da"], &object[..]].concat());
        let mut talks = talks(lab, &services);
        let check = |when: &str, is_in_front: bool| {
            let count = |target| [&before_map, &early_map, &filter_map].map(|map| seen(map, target));
            let start = [count(SERVICE[0]), count(POD_A1[0]), count(SERVICE[1])];
            for service in &services {
                for transport in TRANSPORTS {
                    let to = &service.load_balancer()[0];
                    assert!(lab.client.run(|| ask(to, transport, TIMEOUT)).is_ok(), "{when}: {to}");
                }
            }
            let end = [count(SERVICE[0]), count(POD_A1[0]), count(SERVICE[1])];
            let more = |row: usize| [0, 1, 2].map(|column: usize| end[row][column] > start[row][column]);
            // In front of nodelb's program packets are untranslated, behind it translated; those that are
            // redirected are not seen behind it.
            assert_eq!(
                (more(0), more(1), more(2)),
                ([is_in_front, false, false], [!is_in_front, true, true], [is_in_front, false, false]),
                "{when}: {start:?} {end:?}"
            );
        };
        check("at first", true);
        assert_all_answer(&mut talks, "with other programs");
        daemon.kill();
        check("after kill -9", true);
        let daemon = host.start();
        wait_for_front(&daemon, 1, None);
        check("after a restart", false);
        assert_all_answer(&mut talks, "after a restart");
        daemon.stop();
        host.cleanup();
        for program in [&early, &before] {
            std::fs::remove_file(program.with_file_name("link")).unwrap();
        }
        let listed = sandbox::program("tc").args(["filter", "show", "dev", "uplink", "ingress"]).output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(listed.contains("watch"), "the filter of another owner and its qdisc stay: {listed}");
    });
}
