//! Clients outside the node while the settings and the devices of the node change, and sockets of the node
//! with ports of services.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nodelb_prober::{Backend, Plan, Probe, Transport};
use socket2::{Domain, Socket, Type};

use crate::host::{Daemon, Host, eventually, get, socket};
use crate::lab::{CLIENT, Lab, NODE_A, POD_A1, POD_B};
use crate::lab_services::{ON_A1, ON_B, PACKETS_ON, Service};
use crate::network::ip;
use crate::outside::{TRANSPORTS, start, wait_for_programs};
use crate::outside_more::{addresses, ask_line, run};
use crate::sandbox::{self, command};
use crate::talk::{SHORT, Server, TIMEOUT, Talk, ask};

fn in_lab(test: &str, body: impl FnOnce(&Host, &Lab, [Service; 2])) {
    run(&format!("outside_changes::{test}"), body);
}

/// Makes the daemon read this configuration.
pub(crate) fn reload(host: &Host, daemon: &Daemon, packets: &str, activity: &str) {
    host.configure(&PACKETS_ON.replace("mode = \"on\"", packets));
    reload_until(daemon, activity);
}

/// Makes the daemon read its configuration, and waits until its devices show this.
pub(crate) fn reload_until(daemon: &Daemon, activity: &str) {
    daemon.signal(Signal::SIGHUP);
    eventually(activity, || get("/devices").is_some_and(|devices| devices.to_string().contains(activity)));
}

#[test]
fn without_answers_a_service_without_backends_is_silent() {
    in_lab("without_answers_a_service_without_backends_is_silent", |host, lab, _| {
        host.configure(&format!("{PACKETS_ON}answer = false\n"));
        let service = Service::new(1, &[]);
        let _daemon = start(host, &[&service]);
        for address in addresses(&[service]) {
            for transport in TRANSPORTS {
                let answer = lab.client.run(|| ask(&address, transport, SHORT));
                assert_eq!(answer, Err(ErrorKind::TimedOut), "{address} {transport:?}");
            }
        }
    });
}

#[test]
fn draining_keeps_connections_and_begins_none_until_it_ends() {
    in_lab("draining_keeps_connections_and_begins_none_until_it_ends", |host, lab, services| {
        let daemon = start(host, &[&services[0], &services[1]]);
        let open = |to: &str, transport| lab.client.run(|| Talk::open(to, transport, TIMEOUT)).unwrap();
        let mut talks: Vec<Talk> =
            addresses(&services).iter().flat_map(|to| TRANSPORTS.map(|transport| open(to, transport))).collect();
        talks.iter_mut().for_each(|talk| assert!(talk.ask().is_ok() && talk.ask().is_ok()));
        for _ in 0..2 {
            reload(host, &daemon, "mode = \"drain\"", "draining");
            talks.iter_mut().for_each(|talk| assert!(talk.ask().is_ok(), "while draining"));
            for to in addresses(&services) {
                assert!(lab.client.run(|| ask(&to, Transport::Tcp, SHORT)).is_err(), "{to}: a new one while draining");
            }
            reload(host, &daemon, "mode = \"on\"", "\"on\"");
            talks.iter_mut().for_each(|talk| assert!(talk.ask().is_ok(), "after draining"));
            for to in addresses(&services) {
                assert!(lab.client.run(|| ask(&to, Transport::Tcp, TIMEOUT)).is_ok(), "{to}: a new one after draining");
            }
        }
    });
}

#[test]
fn packets_are_switched_off_and_on_by_restarts() {
    in_lab("packets_are_switched_off_and_on_by_restarts", |host, lab, services| {
        let served = |is_expected: bool| {
            for to in addresses(&services) {
                let answer = lab.client.run(|| ask(&to, Transport::Tcp, if is_expected { TIMEOUT } else { SHORT }));
                assert_eq!(answer.is_ok(), is_expected, "{to}: {answer:?}");
            }
        };
        start(host, &[&services[0], &services[1]]).stop();
        served(true);
        for _ in 0..2 {
            host.configure(&PACKETS_ON.replace("\"on\"", "\"off\""));
            let daemon = host.start();
            served(false);
            daemon.stop();
            host.configure(PACKETS_ON);
            start(host, &[]).stop();
            served(true);
        }
        host.cleanup();
        served(false);
        let shown = sandbox::program("bpftool").args(["net", "show", "dev", "uplink"]).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(!shown.contains("packet_"), "left at the device: {shown}");
        let qdisc = sandbox::program("tc").args(["qdisc", "show", "dev", "uplink"]).output().unwrap();
        assert!(!String::from_utf8_lossy(&qdisc.stdout).contains("clsact"), "a qdisc is left");
    });
}

#[test]
fn the_node_may_use_the_number_of_a_node_port_for_its_own_sockets() {
    in_lab("the_node_may_use_the_number_of_a_node_port_for_its_own_sockets", |host, lab, services| {
        host.configure(&format!("{PACKETS_ON}unknown = \"reset\"\n"));
        let _daemon = start(host, &[&services[0], &services[1]]);
        let _server = lab.client.run(|| Server::start("client", &CLIENT, 9_000));
        let _own = Server::start("own", &NODE_A, 30_999);
        for (family, to) in [format!("{}:9000", CLIENT[0]), format!("[{}]:9000", CLIENT[1])].iter().enumerate() {
            for port in [30_001, 30_002] {
                let to = socket(to);
                let own = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
                own.bind(&SocketAddr::new(NODE_A[family].parse().unwrap(), port).into()).unwrap();
                own.connect_timeout(&to.into(), TIMEOUT).unwrap_or_else(|error| panic!("{to} from {port}: {error}"));
                let mut stream = TcpStream::from(own);
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
                assert!(ask_line(&mut stream).is_ok_and(|answer| answer.starts_with("client")));
            }
        }
        for to in [format!("{}:30999", NODE_A[0]), format!("[{}]:30999", NODE_A[1])] {
            for transport in TRANSPORTS {
                assert_eq!(lab.client.run(|| ask(&to, transport, TIMEOUT)).unwrap().name, "own", "{to}");
            }
        }
    });
}

#[test]
fn a_client_on_the_node_reaches_node_ports_through_its_socket() {
    in_lab("a_client_on_the_node_reaches_node_ports_through_its_socket", |host, _, services| {
        let daemon = start(host, &[&services[0], &services[1]]);
        for (service, name) in services.iter().zip(["a1", "b"]) {
            for to in service.node_ports() {
                assert_eq!(ask_from_the_node(&daemon, &to), name, "{to}");
            }
        }
    });
}

/// The file that moves a process into the cgroup of the node.
pub(crate) fn processes_of_the_node(daemon: &Daemon) -> String {
    let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", daemon.pid())).unwrap();
    let cgroup = cgroup.trim().rsplit_once(':').unwrap().1.to_owned();
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let mount = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|line| line[2] == "cgroup2");
    format!("{}{cgroup}/cgroup.procs", mount.unwrap()[1])
}

/// The name that a server returns to a process in the cgroup of the node, over TCP.
pub(crate) fn ask_from_the_node(daemon: &Daemon, to: &str) -> String {
    let procs = processes_of_the_node(daemon);
    let (ip, port) = to.rsplit_once(':').unwrap();
    let path = format!("{}/{port}", ip.trim_matches(['[', ']']));
    let script = format!("echo $$ >{procs} && exec 3<>/dev/tcp/{path} && echo '?' >&3 && head -n1 <&3");
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains('?'), "{to}: {output:?}");
    text.split(' ').next().unwrap().to_owned()
}

/// A client that connects to each service all the time.
fn probes(lab: &Lab, services: &[Service], rate: u32) -> Vec<Probe> {
    let each = services.iter().flat_map(Service::load_balancer);
    each.flat_map(|to| TRANSPORTS.map(|transport| Plan { rate, timeout: TIMEOUT, ..Plan::new(socket(&to), transport) }))
        .map(|plan| lab.client.run(|| Probe::start(plan)))
        .collect()
}

/// Servers of the prober for the services 3 and 4.
fn backends(lab: &Lab) -> ([Service; 2], [Backend; 2]) {
    let begin = |name, pod: [&str; 2], port| {
        let listen = pod.map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
        let listen: Vec<_> = TRANSPORTS.into_iter().flat_map(|each| listen.map(|at| (each, at))).collect();
        Backend::start(name, &listen).unwrap()
    };
    let near = lab.pod_a1.run(|| begin("a1", POD_A1, 8_003));
    let far = lab.pod_b.run(|| begin("b", POD_B, 8_004));
    ([Service::new(3, &[ON_A1]), Service::new(4, &[ON_B])], [near, far])
}

#[test]
fn devices_that_come_and_go_disturb_no_connection() {
    in_lab("devices_that_come_and_go_disturb_no_connection", |host, lab, _| {
        let (services, _backends) = backends(lab);
        let _daemon = start(host, &[&services[0], &services[1]]);
        let probes = probes(lab, &services, 40);
        for number in 0..100 {
            ip(&["link", "add", &format!("storm{number}"), "type", "veth", "peer", "name", &format!("other{number}")]);
            ip(&["link", "set", &format!("storm{number}"), "up"]);
            if number % 2 == 1 {
                ip(&["link", "del", &format!("storm{number}")]);
            }
        }
        for number in (0..100).step_by(2) {
            ip(&["link", "del", &format!("storm{number}")]);
        }
        for probe in probes {
            let tally = probe.finish();
            assert_eq!(tally.failures(), 0, "{tally}");
        }
        eventually("the report has none of the devices", || {
            !get("/devices").unwrap()["devices"].to_string().contains("storm")
        });
    });
}

#[test]
fn programs_that_another_process_detaches_are_attached_again() {
    in_lab("programs_that_another_process_detaches_are_attached_again", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        let pins = host.pinned();
        let links: Vec<_> =
            pins.iter().filter(|pin| pin.file_name().unwrap().to_string_lossy().starts_with("packets-")).collect();
        assert_eq!(links.len(), 2, "{pins:?}");
        let repairs = || get("/devices").unwrap()["packets"]["repairs"].as_u64().unwrap();
        let before = repairs();
        for link in links {
            command("bpftool", &["link", "detach", "pinned", link.to_str().unwrap()]);
        }
        let [near, _] = services[0].load_balancer();
        assert!(lab.client.run(|| ask(&near, Transport::Tcp, SHORT)).is_err(), "detached");
        eventually("the programs are back", || lab.client.run(|| ask(&near, Transport::Tcp, SHORT)).is_ok());
        eventually("the repair is counted", || repairs() >= before + 2);
    });
}

#[test]
fn connections_live_on_when_the_uplink_goes_down_and_up() {
    in_lab("connections_live_on_when_the_uplink_goes_down_and_up", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        let mut talks: Vec<(String, Talk)> = addresses(&services)
            .into_iter()
            .flat_map(|to| TRANSPORTS.map(|transport| (to.clone(), transport)))
            .map(|(to, transport)| {
                let talk = lab.client.run(|| Talk::open(&to, transport, TIMEOUT)).unwrap();
                (format!("{to} {transport:?}"), talk)
            })
            .collect();
        talks.iter_mut().for_each(|(_, talk)| assert!(talk.ask().is_ok() && talk.ask().is_ok()));
        for pause in [0, 1_500] {
            ip(&["link", "set", "uplink", "down"]);
            thread::sleep(Duration::from_millis(pause));
            restore_uplink();
            for to in addresses(&services) {
                eventually(&format!("{to} is served"), || {
                    lab.client.run(|| ask(&to, Transport::Tcp, Duration::from_millis(500))).is_ok()
                });
            }
            for (to, talk) in &mut talks {
                let answers = [talk.ask(), talk.ask()];
                assert!(answers[1].is_ok(), "{to} after {pause} ms: {answers:?}");
            }
        }
    });
}

/// Sets the uplink up, with what the kernel has removed with its state.
pub(crate) fn restore_uplink() {
    ip(&["link", "set", "uplink", "up"]);
    ip(&["address", "replace", "2001:db8:1::2/64", "dev", "uplink", "nodad"]);
    ip(&["route", "replace", "default", "via", "203.0.113.1"]);
    ip(&["-6", "route", "replace", "default", "via", "2001:db8:1::1"]);
    wait_for_programs("uplink");
}
