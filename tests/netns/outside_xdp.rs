//! Clients outside the node where known connections to the other node are translated by XDP.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nodelb_prober::Transport;

use crate::crash::at_steps;
use crate::host::{Daemon, Host, eventually, get, say};
use crate::lab::{Lab, UPLINK};
use crate::lab_services::{ON_B, PACKETS_ON, Service};
use crate::network::ip;
use crate::outside::{TRANSPORTS, wait_for_programs};
use crate::outside_changes::restore_uplink;
use crate::outside_continuity::with_backends;
use crate::outside_load::{Load, every};
use crate::sandbox::{self, command};
use crate::seeded::number;
use crate::talk::{TIMEOUT, Talk};

/// The values of `packets.xdp`, with what `nodelb devices` says of the uplink.
const OFF: (&str, Option<&str>) = ("off", None);
const AUTO: (&str, Option<&str>) = ("auto", Some("native"));
const GENERIC: (&str, Option<&str>) = ("generic", Some("generic"));

/// Starts the daemon with this value, and waits until the uplink is as it says.
fn start(host: &Host, mode: (&str, Option<&str>)) -> Daemon {
    configure(host, mode);
    let daemon = host.start();
    wait_for_programs(UPLINK);
    wait_for(mode);
    daemon
}

fn configure(host: &Host, mode: (&str, Option<&str>)) {
    host.configure(&format!("{PACKETS_ON}xdp = \"{}\"\n", mode.0));
}

fn wait_for((value, says): (&str, Option<&str>)) {
    eventually(&format!("xdp = {value:?}"), || {
        let page = get("/devices").unwrap_or_default();
        let uplink = page["devices"].as_array().into_iter().flatten().find(|row| row["device"] == UPLINK);
        uplink.is_some_and(|row| row["xdp"].as_str() == says)
    });
}

/// Lets the client and the other node send packets with their whole checksums, as from a wire. The device at the other end
/// of the uplink takes the packets of XDP programs only with GRO.
fn like_a_wire(lab: &Lab) {
    lab.router.run(|| command("ethtool", &["-K", "node-a", "gro", "on"]));
    for (place, device) in [(&lab.client, UPLINK), (&lab.node_b, UPLINK), (&lab.pod_b, "eth0")] {
        place.run(|| command("ethtool", &["-K", device, "tx", "off"]));
    }
}

/// The number of packets that the program has sent.
fn sent_early() -> u64 {
    let output = sandbox::program("ethtool").args(["-S", UPLINK]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let counts = text.lines().filter_map(|line| line.trim().split_once("_xdp_redirect: "));
    counts.map(|(_, count)| count.parse::<u64>().unwrap()).sum()
}

/// Exchanges on one connection of each transport and family.
fn exchange(lab: &Lab, service: &Service, count: usize) {
    for address in service.load_balancer() {
        for transport in TRANSPORTS {
            let talk = lab.client.run(|| Talk::open(&address, transport, TIMEOUT));
            let mut talk = talk.unwrap_or_else(|error| panic!("{address} {transport:?}: {error}"));
            for number in 0..count {
                let text = "x".repeat(1 + 97 * number % 1_300);
                let answer =
                    talk.send(&text).unwrap_or_else(|error| panic!("{address} {transport:?} {number}: {error}"));
                assert!(answer.trim_end().ends_with(&text), "{address} {transport:?} {number}");
            }
            if transport == Transport::Tcp {
                let text = "y".repeat(300_000);
                let answer = talk.send(&text).unwrap_or_else(|error| panic!("{address}: {error}"));
                assert!(answer.trim_end().ends_with(&text), "{address}: many packets");
            }
        }
    }
}

#[test]
fn known_connections_to_another_node_pass_xdp_in_both_directions() {
    with_backends(
        "outside_xdp::known_connections_to_another_node_pass_xdp_in_both_directions",
        |host, lab, services| {
            const EXCHANGES: usize = 30;
            let service = services[0].clone().on(&[ON_B]);
            service.apply(host);
            for is_wire in [false, true] {
                if is_wire {
                    like_a_wire(lab);
                }
                for mode in [OFF, GENERIC, AUTO] {
                    let daemon = start(host, mode);
                    let before = sent_early();
                    exchange(lab, &service, EXCHANGES);
                    let sent = sent_early() - before;
                    say(&format!(
                        "xdp = {mode:?}, whole checksums: {is_wire}: {sent} packets sent by XDP in the driver"
                    ));
                    let expected = if is_wire && mode == AUTO { 4 * EXCHANGES as u64 } else { 0 };
                    assert!(sent >= expected && (expected > 0 || sent == 0), "{sent}");
                    daemon.stop();
                }
            }
        },
    );
}

/// Each step is a start of the daemon. Without a daemon, the programs go on.
#[test]
fn no_connection_is_lost_when_xdp_is_switched() {
    with_backends("outside_xdp::no_connection_is_lost_when_xdp_is_switched", |host, lab, services| {
        like_a_wire(lab);
        services.iter().for_each(|service| service.apply(host));
        let mut daemon = start(host, OFF);
        let mut load = Load::start(lab, services);
        for round in 1..=number("OUTSIDE_ROUNDS", 1) {
            for mode in [GENERIC, AUTO, AUTO, OFF, AUTO, GENERIC, OFF] {
                let before = sent_early();
                daemon.kill();
                load.assert_unharmed(&format!("round {round}, killed before {mode:?}"));
                daemon = start(host, mode);
                load.assert_unharmed(&format!("round {round}, {mode:?}"));
                say(&format!("{mode:?}: {} packets sent by XDP in the driver", sent_early() - before));
            }
            for mode in [AUTO, GENERIC] {
                daemon.stop();
                daemon = start(host, mode);
                load.during(&format!("round {round}, {mode:?}, the uplink goes down and up"), || {
                    ip(&["link", "set", UPLINK, "down"]);
                    thread::sleep(Duration::from_millis(1_200));
                    restore_uplink();
                    wait_for(mode);
                });
            }
        }
        load.finish();
    });
}

/// `OUTSIDE_STRIDE=1` kills nodelb after each operation, otherwise after each tenth one.
#[test]
fn no_connection_is_lost_when_nodelb_dies_at_any_step_of_a_switch_of_xdp() {
    let test = "outside_xdp::no_connection_is_lost_when_nodelb_dies_at_any_step_of_a_switch_of_xdp";
    with_backends(test, |host, lab, services| {
        like_a_wire(lab);
        services.iter().for_each(|service| service.apply(host));
        start(host, OFF).stop();
        let load = RefCell::new(Load::start(lab, services));
        let mut steps = 0;
        for (from, to) in [(OFF, AUTO), (AUTO, GENERIC), (GENERIC, OFF)] {
            let go_back = || {
                start(host, from).stop();
                configure(host, to);
            };
            go_back();
            steps += at_steps(
                host,
                every("OUTSIDE_STRIDE", 10),
                |_| {},
                |n| {
                    load.borrow_mut().assert_unharmed(&format!("{to:?}, crash after operation {n}"));
                    go_back();
                },
            );
        }
        assert!(steps >= 30, "only {steps} crash points");
        load.into_inner().finish();
    });
}

/// Loads the program of another owner; returns its pin.
fn load_early(host: &Host) -> PathBuf {
    let (object, pin) = (host.path("early.o"), host.pins.parent().unwrap().join("early"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients/early.bpf.c");
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let [source, object, program] = [&source, &object, &pin].map(|path| path.to_str().unwrap());
    command("clang", &["-target", "bpf", "-g", "-O2", &headers, "-c", "-o", object, source]);
    command("bpftool", &["prog", "load", object, program, "type", "xdp"]);
    pin
}

/// nodelb has dropped all capabilities when the other program leaves.
#[test]
fn xdp_begins_when_a_program_of_others_has_left_while_nodelb_runs() {
    let test = "outside_xdp::xdp_begins_when_a_program_of_others_has_left_while_nodelb_runs";
    with_backends(test, |host, lab, services| {
        like_a_wire(lab);
        services.iter().for_each(|service| service.apply(host));
        let pin = load_early(host);
        command("ip", &["link", "set", "dev", UPLINK, "xdpdrv", "pinned", pin.to_str().unwrap()]);
        configure(host, AUTO);
        let _daemon = host.start();
        wait_for_programs(UPLINK);
        let text = "of other software is attached";
        eventually("the other program", || get("/devices").is_some_and(|page| page.to_string().contains(text)));
        let mut load = Load::start(lab, services);
        load.assert_unharmed("a program of others");
        let status = get("/status").unwrap();
        assert!(status["problems"].to_string().contains("of other software is there"), "{status}");
        command("ip", &["link", "set", "dev", UPLINK, "xdpdrv", "off"]);
        wait_for(AUTO);
        let before = sent_early();
        load.assert_unharmed("none of others");
        assert!(sent_early() > before);
        load.finish();
    });
}
