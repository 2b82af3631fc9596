//! Clients outside the node: their packets are translated at network devices. The clients are pods whose processes no
//! socket hook sees, because nodelb is attached to another cgroup.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nodelb_prober::Transport;

use crate::host::{Daemon, Host, answer, backend, connect, eventually, get};
use crate::pod::Pod;
use crate::sandbox::{self, command};

/// The node's addresses towards the first and the second pod.
pub(crate) const NODE: [&str; 2] = ["203.0.113.129:30080", "203.0.113.133:30080"];

/// A service with a NodePort, and one backend on this node.
pub(crate) const SERVICE: &str = "apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  clusterIP: 198.51.100.80
  clusterIPs: [198.51.100.80]
  ports:
  - {name: a, port: 80, nodePort: 30080, protocol: TCP}
  - {name: b, port: 80, nodePort: 30080, protocol: UDP}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: a, port: 8080, protocol: TCP}, {name: b, port: 8080, protocol: UDP}]
endpoints: [{addresses: [192.0.2.11]}]
";

/// A node with these keys in `[packets]`.
pub(crate) fn configure(host: &Host, packets: &str) {
    host.configure(&format!(
        "[node]\nnodeport-addresses = [\"203.0.113.128/25\"]\n[packets]\ndevices = [\"pod*\"]\n{packets}\n"
    ));
}

/// The row of `/devices` for a device.
fn device(name: &str) -> Option<serde_json::Value> {
    get("/devices")?["devices"].as_array()?.iter().find(|row| row["device"] == name).cloned()
}

pub(crate) fn is_attached(name: &str) -> bool {
    device(name).is_some_and(|row| row["programs"] == "attached" && row["role"] == "uplink")
}

fn translation() -> String {
    get("/devices").map_or_else(String::new, |page| page["packets"]["translation"].as_str().unwrap().into())
}

/// Whether each of several connections from the pod to the NodePort is answered.
pub(crate) fn works(pod: &Pod, node: &str) -> bool {
    pod.run(|| {
        [Transport::Tcp, Transport::Udp].into_iter().all(|transport| connect(node, transport, 5).failures() == 0)
    })
}

/// A backend that repeats what each connection sends.
fn echo(address: &str) {
    let listener = TcpListener::bind(address).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || drop(io::copy(&mut &stream, &mut &stream)));
        }
    });
}

/// A connection of the pod.
fn talk_to(pod: &Pod, node: &str) -> TcpStream {
    let stream = pod.run(|| TcpStream::connect(node).unwrap());
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// Sends a byte over the connection and waits for it.
fn talk(mut stream: &TcpStream) {
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

fn start(host: &Host) -> Daemon {
    host.serve("web.yaml", SERVICE);
    let daemon = host.start();
    eventually("programs at pod0", || is_attached("pod0"));
    daemon
}

#[test]
fn outside_clients_reach_a_nodeport() {
    sandbox::run("outside_devices::outside_clients_reach_a_nodeport", |sandbox| {
        let host = Host::without_the_test(sandbox);
        configure(&host, "mode = \"on\"");
        let (client, _backend) = (Pod::new(0), backend("1", "192.0.2.11:8080"));
        let daemon = start(&host);
        eventually("an answer", || works(&client, NODE[0]));
        let listed = get("/connections?service=shop/web").unwrap();
        let row = &listed["connections"][0];
        assert_eq!((&row["backend"], &row["path"]), (&"192.0.2.11:8080/TCP".into(), &"stack".into()), "{listed}");
        assert!(row["client"].as_str().unwrap().starts_with("203.0.113.130:"), "{listed}");
        let metrics = answer("/metrics", "text/plain").unwrap();
        assert!(!metrics.contains("nodelb_packet_translated_total{direction=\"reverse\"} 0"), "{metrics}");
        assert!(metrics.contains("nodelb_packet_devices{state=\"attached\"} 1"), "{metrics}");

        // Nothing is interrupted when the daemon is not there.
        daemon.kill();
        assert!(works(&client, NODE[0]));
        let daemon = host.start();
        assert!(works(&client, NODE[0]));
        daemon.stop();
        assert!(works(&client, NODE[0]));
        host.cleanup();
        assert!(!works(&client, NODE[0]), "no program is left");
    });
}

#[test]
fn a_connection_outlives_restarts() {
    sandbox::run("outside_devices::a_connection_outlives_restarts", |sandbox| {
        let host = Host::without_the_test(sandbox);
        configure(&host, "mode = \"on\"");
        let client = Pod::new(0);
        echo("192.0.2.11:8080");
        let mut daemon = start(&host);
        eventually("the service", || client.run(|| TcpStream::connect(NODE[0]).is_ok()));
        let stream = talk_to(&client, NODE[0]);
        talk(&stream);
        for sizes in ["", "max-connections = 1000\nmax-handshakes = 1000", "max-connections = 500"] {
            daemon.kill();
            configure(&host, &format!("mode = \"on\"\n{sizes}"));
            talk(&stream);
            daemon = host.start();
            talk(&stream);
        }
        let listed = get("/connections").unwrap();
        assert!(listed["connections"].as_array().unwrap().iter().any(|row| row["state"] == "established"), "{listed}");
        daemon.stop();
    });
}

#[test]
fn a_new_device_gets_programs_within_a_second() {
    sandbox::run("outside_devices::a_new_device_gets_programs_within_a_second", |sandbox| {
        let host = Host::without_the_test(sandbox);
        configure(&host, "mode = \"on\"");
        let (_first, _backend) = (Pod::new(0), backend("1", "192.0.2.11:8080"));
        let daemon = start(&host);
        let second = Pod::new(1);
        let came = Instant::now();
        eventually("programs at pod1", || is_attached("pod1"));
        assert!(came.elapsed() < Duration::from_secs(1), "{:?}", came.elapsed());
        eventually("an answer", || works(&second, NODE[1]));
        command("ip", &["link", "del", "pod1"]);
        eventually("the device to be forgotten", || device("pod1").is_none());
        let links = host.pinned().into_iter().filter(|path| path.to_string_lossy().contains("packets-"));
        assert_eq!(links.count(), 2, "those of pod0");
        daemon.stop();
    });
}

/// Gives a device another name, for which it is down for a moment.
fn rename(from: &str, to: &str) {
    command("ip", &["link", "set", from, "down"]);
    command("ip", &["link", "set", from, "name", to]);
    command("ip", &["link", "set", to, "up"]);
}

/// Found as: every connection from outside failed, and status, trace, devices and history said that they are served.
#[test]
fn a_device_with_another_name_is_a_problem_until_it_has_its_own_again() {
    sandbox::run("outside_devices::a_device_with_another_name_is_a_problem_until_it_has_its_own_again", |sandbox| {
        let host = Host::without_the_test(sandbox);
        configure(&host, "mode = \"on\"");
        let (client, _backend) = (Pod::new(0), backend("1", "192.0.2.11:8080"));
        let daemon = start(&host);
        eventually("an answer", || works(&client, NODE[0]));
        let says = |path: &str, text: &str| get(path).is_some_and(|page| page.to_string().contains(text));
        let trace = format!("/trace?to={}&from=203.0.113.130", NODE[0]);
        assert!(!says("/status", "OutsideUntranslated") && !says(&trace, "PassedThrough"));
        rename("pod0", "wan0");
        let why = "no device leads to other machines";
        eventually("the problem", || says("/status", "OutsideUntranslated") && says("/status", why));
        assert!(!works(&client, NODE[0]));
        assert_eq!(translation(), "off");
        // A device that is down has no address for a moment.
        eventually("the trace", || says(&trace, "PassedThrough") && says(&trace, why));
        eventually("the events", || says("/history", "programs from device pod0") && says("/history", why));
        eventually("the frontends", || says("/frontends", "\"outside\":\"Off\""));
        rename("wan0", "pod0");
        eventually("the end of the problem", || !says("/status", "OutsideUntranslated"));
        eventually("an answer", || works(&client, NODE[0]));
        daemon.stop();
    });
}

/// While nodelb drains, the same device has connections, which end.
#[test]
fn draining_without_a_device_translates_nothing() {
    sandbox::run("outside_devices::draining_without_a_device_translates_nothing", |sandbox| {
        let host = Host::without_the_test(sandbox);
        configure(&host, "mode = \"drain\"");
        let _client = Pod::new(0);
        let daemon = start(&host);
        rename("pod0", "wan0");
        eventually("the device", || device("wan0").is_some_and(|row| row["programs"] == "unused"));
        let is_reported = (0..50).any(|_| {
            thread::sleep(Duration::from_millis(100));
            translation() == "off"
        });
        let check = answer("/status", "text/plain").unwrap();
        assert!(is_reported, "no device has the programs: {}; {check}", translation());
        daemon.stop();
    });
}

/// The maps have room for 256 devices that lead to other machines. What does not fit harms no other device, and nothing says
/// that a connection is served that is not.
#[test]
fn devices_that_do_not_fit_harm_no_other() {
    sandbox::run("outside_devices::devices_that_do_not_fit_harm_no_other", |sandbox| {
        let host = Host::without_the_test(sandbox);
        configure(&host, "mode = \"on\"");
        let (client, _backend) = (Pod::new(0), backend("1", "192.0.2.11:8080"));
        let pair = |n: u32| {
            let ends = [("a", 77), ("b", 78)]
                .map(|(end, net)| format!("link set {end}{n} up\naddr add 10.{net}.{n}.1/30 dev {end}{n}\n"));
            format!("link add a{n} type veth peer name b{n}\n{}", ends.concat())
        };
        host.write("links", &(0..128).map(pair).collect::<String>());
        command("ip", &["-batch", host.path("links").to_str().unwrap()]);
        host.serve("web.yaml", SERVICE);
        let daemon = host.start();
        eventually("the devices", || device("b127").is_some());
        let is_answered = (0..20).any(|_| {
            thread::sleep(Duration::from_millis(500));
            works(&client, NODE[0])
        });
        let frontends = get("/frontends").unwrap_or_default().to_string();
        let devices = get("/devices").unwrap_or_default()["packets"].to_string();
        assert_eq!(is_answered, frontends.contains("\"outside\":\"Served\""), "what is said: {frontends}, {devices}");
        assert!(is_answered, "pod0 has room in the maps: {}", host.log());
        daemon.stop();
    });
}

#[test]
fn draining_leaves_new_connections_to_others() {
    sandbox::run("outside_devices::draining_leaves_new_connections_to_others", |sandbox| {
        let host = Host::without_the_test(sandbox);
        configure(&host, "mode = \"on\"");
        let client = Pod::new(0);
        echo("192.0.2.11:8080");
        let daemon = start(&host);
        let connects = || client.run(|| TcpStream::connect(NODE[0]).is_ok());
        eventually("the service", connects);
        let stream = talk_to(&client, NODE[0]);
        talk(&stream);
        configure(&host, "mode = \"drain\"");
        daemon.signal(Signal::SIGHUP);
        eventually("the new mode", || translation() == "draining");
        assert!(!connects(), "the node itself does not listen there");
        talk(&stream);
        configure(&host, "mode = \"on\"");
        daemon.signal(Signal::SIGHUP);
        eventually("the first mode", || translation() == "on");
        assert!(connects());
        daemon.stop();
    });
}

#[test]
fn without_an_address_to_serve_no_program_is_attached() {
    sandbox::run("outside_devices::without_an_address_to_serve_no_program_is_attached", |sandbox| {
        let host = Host::without_the_test(sandbox);
        configure(&host, "mode = \"auto\"");
        let (client, _backend) = (Pod::new(0), backend("1", "192.0.2.11:8080"));
        let daemon = host.start();
        eventually("the devices", || device("pod0").is_some());
        let reason = get("/devices").unwrap()["packets"]["reason"].as_str().unwrap().to_owned();
        assert_eq!(
            (translation().as_str(), reason.as_str()),
            ("off", "no address is served for clients outside the node")
        );
        assert!(!is_attached("pod0"));
        host.serve("web.yaml", SERVICE);
        eventually("programs at pod0", || is_attached("pod0"));
        assert!(works(&client, NODE[0]));
        daemon.kill();
        let daemon = host.start();
        assert!(works(&client, NODE[0]));
        eventually("the devices", || is_attached("pod0"));
        daemon.stop();
    });
}

/// Maps of another kind under the name of the connections: the packet path cannot start.
#[test]
fn a_failed_packet_path_harms_nothing_else() {
    sandbox::run("outside_devices::a_failed_packet_path_harms_nothing_else", |sandbox| {
        let host = Host::new(sandbox);
        host.configure("[packets]\nmode = \"off\"");
        host.serve("web.yaml", SERVICE);
        let _backend = backend("1", "192.0.2.11:8080");
        host.start().stop();
        let version = host.pins.join("v1");
        fs::hard_link(version.join("g1/services"), version.join("connections")).unwrap();
        for (mode, is_ready) in [("auto", true), ("on", false)] {
            host.configure(&format!("[packets]\nmode = \"{mode}\""));
            let daemon = host.start();
            eventually("the service", || connect("198.51.100.80:80", Transport::Tcp, 3).failures() == 0);
            eventually("readiness", || get("/readyz").is_some() == is_ready);
            let status = answer("/status", "text/plain").unwrap();
            assert!(status.contains("the packet programs cannot be started: "), "{status}");
            assert!(status.contains("Correct the error and restart nodelb"), "{status}");
            assert_eq!(translation(), "off");
            eventually("the journal", || host.log().contains("the packet programs cannot be started: "));
            daemon.stop();
        }
        // Services are updated, too.
        host.withdraw("web.yaml");
        let daemon = host.start();
        eventually("the update", || connect("198.51.100.80:80", Transport::Tcp, 1).failures() == 1);
        daemon.stop();
    });
}

/// kube-proxy in its nftables mode has a table of its name.
#[test]
fn another_service_proxy_is_found() {
    sandbox::run("outside_devices::another_service_proxy_is_found", |sandbox| {
        let host = Host::without_the_test(sandbox);
        configure(&host, "mode = \"auto\"");
        let _client = Pod::new(0);
        command("nft", &["add", "table", "ip", "kube-proxy"]);
        command("nft", &["add", "chain", "ip", "kube-proxy", "services"]);
        host.serve("web.yaml", SERVICE);
        let daemon = host.start();
        eventually("kube-proxy is found", || {
            let page = get("/devices").unwrap_or_default();
            page["packets"]["reason"].as_str().is_some_and(|it| it.contains("the nftables table kube-proxy"))
        });
        eventually("no other proxy serves a file", || translation() == "files" && is_attached("pod0"));
        command("nft", &["delete", "chain", "ip", "kube-proxy", "services"]);
        command("nft", &["add", "table", "ip", "nat"]);
        daemon.signal(Signal::SIGHUP);
        eventually("a table without chains translates nothing", || translation() == "on");
        command("nft", &["add", "chain", "ip", "nat", "KUBE-SERVICES"]);
        daemon.signal(Signal::SIGHUP);
        eventually("the other proxy gets new connections of its services", || translation() == "files");
        assert!(is_attached("pod0"), "connections continue");
        command("nft", &["delete", "table", "ip", "nat"]);
        daemon.signal(Signal::SIGHUP);
        eventually("the other proxy is gone", || translation() == "on");
        for iptables in ["iptables-legacy", "ip6tables-legacy"] {
            command(iptables, &["-t", "filter", "-N", "KUBE-SERVICES"]);
            daemon.signal(Signal::SIGHUP);
            eventually("the chain of iptables-legacy", || translation() == "files");
            command(iptables, &["-t", "filter", "-X", "KUBE-SERVICES"]);
            daemon.signal(Signal::SIGHUP);
            eventually("the chain is gone", || translation() == "on");
        }
        daemon.stop();
    });
}

/// Every user can listen on kube-proxy's ports, and make rules in a network namespace of his own.
#[test]
fn a_process_without_privileges_does_not_end_the_service() {
    sandbox::run("outside_devices::a_process_without_privileges_does_not_end_the_service", |sandbox| {
        let host = Host::without_the_test(sandbox);
        configure(&host, "mode = \"auto\"");
        let _client = Pod::new(0);
        host.serve("web.yaml", SERVICE);
        let daemon = host.start();
        eventually("programs at pod0", || is_attached("pod0"));
        let _metrics = ["127.0.0.1:10249", "0.0.0.0:10256", "[::1]:10249"].map(|it| TcpListener::bind(it).unwrap());
        command("unshare", &["--net", "nft", "add table ip kube-proxy; add chain ip kube-proxy services"]);
        daemon.signal(Signal::SIGHUP);
        let searched = get("/devices").unwrap_or_default()["packets"]["reason"].clone();
        thread::sleep(Duration::from_secs(1));
        let page = get("/devices").unwrap_or_default();
        assert_eq!((translation().as_str(), &page["packets"]["reason"]), ("on", &searched));
        daemon.kill();
        let daemon = host.start();
        eventually("the same after a start", || translation() == "on");
        daemon.stop();
    });
}
