//! Connections of outside clients while nodelb is killed, restarted and resized, while its services
//! change, and during a flood.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nodelb_prober::{Backend, Plan, Probe, Transport};

use crate::crash::at_every_step;
use crate::host::{Host, eventually, say, socket};
use crate::lab::{Lab, POD_A1, POD_A2, POD_B};
use crate::lab_services::{ON_A1, ON_A2, ON_B, PACKETS_ON, Service};
use crate::outside::{TRANSPORTS, start};
use crate::sandbox;
use crate::talk::{Server, TIMEOUT, Talk, ask};

/// Long-lived connections of each transport and address.
const TALKS: usize = 25;

/// Clients of one service that connect all the time, and clients of another that stay connected.
struct Load {
    probes: Vec<Probe>,
    talks: Vec<Talk>,
}

impl Load {
    fn start(lab: &Lab, [stays, probed]: &[Service; 2]) -> Self {
        let mut load = Self { probes: Vec::new(), talks: Vec::new() };
        for address in probed.load_balancer().iter().chain(&probed.node_ports()) {
            for transport in TRANSPORTS {
                let plan = Plan { rate: 125, timeout: TIMEOUT, ..Plan::new(socket(address), transport) };
                load.probes.push(lab.client.run(|| Probe::start(plan)));
            }
        }
        for address in stays.load_balancer().iter().chain(&stays.node_ports()) {
            for transport in TRANSPORTS {
                for _ in 0..TALKS {
                    let talk = lab.client.run(|| Talk::open(address, transport, TIMEOUT));
                    load.talks.push(talk.unwrap_or_else(|error| panic!("{address} {transport:?}: {error}")));
                }
            }
        }
        load.assert_unharmed("at the start");
        load
    }

    fn assert_unharmed(&mut self, when: &str) {
        for (number, talk) in self.talks.iter_mut().enumerate() {
            if let Err(error) = talk.ask() {
                panic!("{when}: connection {number} from port {}: {error}", talk.port());
            }
        }
        for probe in &self.probes {
            let tally = probe.tally();
            assert_eq!(tally.failures(), 0, "{when}: {tally}");
        }
    }

    fn finish(mut self) {
        self.assert_unharmed("at the end");
        let tallies = self.probes.into_iter().map(Probe::finish);
        let exchanges: u64 = tallies
            .map(|tally| {
                assert_eq!(tally.failures(), 0, "{tally}");
                tally.answered.values().sum::<u64>()
            })
            .sum();
        assert!(exchanges > 100, "only {exchanges} exchanges");
        say(&format!("{exchanges} exchanges, none failed"));
    }
}

fn in_lab(test: &str, body: impl FnOnce(&Host, &Lab, &[Service; 2])) {
    sandbox::run(&format!("outside_continuity::{test}"), |sandbox| {
        let host = Host::without_the_test(sandbox);
        let lab = Lab::new();
        host.configure(PACKETS_ON);
        let mut servers = vec![lab.pod_a1.run(|| Server::start("a1", &POD_A1, 8_001))];
        servers.push(lab.pod_a2.run(|| Server::start("a2", &POD_A2, 8_001)));
        servers.push(lab.pod_b.run(|| Server::start("b", &POD_B, 8_001)));
        let probed = |name, pod: [&str; 2]| {
            let listen = pod.map(|ip| SocketAddr::new(ip.parse().unwrap(), 8_002));
            let listen: Vec<_> = TRANSPORTS.into_iter().flat_map(|each| listen.map(|at| (each, at))).collect();
            Backend::start(name, &listen).unwrap()
        };
        let mut backends = vec![lab.pod_a1.run(|| probed("a1", POD_A1))];
        backends.push(lab.pod_b.run(|| probed("b", POD_B)));
        body(&host, &lab, &[Service::new(1, &[ON_A1, ON_A2, ON_B]), Service::new(2, &[ON_A1, ON_B])]);
    });
}

#[test]
fn no_connection_is_lost_when_nodelb_is_killed_restarted_or_resized() {
    in_lab("no_connection_is_lost_when_nodelb_is_killed_restarted_or_resized", |host, lab, services| {
        let daemon = start(host, &[&services[0], &services[1]]);
        let mut load = Load::start(lab, services);
        daemon.kill();
        load.assert_unharmed("after kill -9");
        let daemon = host.start();
        load.assert_unharmed("after the start");
        daemon.stop();
        load.assert_unharmed("after the stop");
        host.configure(&format!("max-slots = 9999\n{PACKETS_ON}max-connections = 20000\n"));
        let daemon = host.start();
        load.assert_unharmed("after a start with other limits");
        daemon.kill();
        load.assert_unharmed("after another kill -9");
        let _daemon = host.start();
        load.finish();
    });
}

#[test]
fn no_connection_is_lost_when_nodelb_dies_at_any_step_of_a_start() {
    in_lab("no_connection_is_lost_when_nodelb_dies_at_any_step_of_a_start", |host, lab, services| {
        start(host, &[&services[0], &services[1]]).stop();
        let load = RefCell::new(Load::start(lab, services));
        let steps = at_every_step(
            host,
            |_| {},
            |n| {
                load.borrow_mut().assert_unharmed(&format!("crash after operation {n}"));
                host.start().stop();
                load.borrow_mut().assert_unharmed(&format!("restart after operation {n}"));
            },
        );
        assert!(steps >= 5, "only {steps} crash points");
        load.into_inner().finish();
    });
}

#[test]
fn no_connection_is_lost_while_other_backends_come_and_go() {
    in_lab("no_connection_is_lost_while_other_backends_come_and_go", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        let address = &services[0].load_balancer()[0];
        let mut talks = Vec::new();
        for _ in 0..200 {
            let mut talk = lab.client.run(|| Talk::open(address, Transport::Tcp, TIMEOUT)).unwrap();
            let name = talk.ask().unwrap().name;
            talks.push((talk, name));
        }
        for endpoints in [&[ON_A1][..], &[ON_B], &[ON_A2, ON_B], &[ON_A1, ON_A2, ON_B]] {
            Service::new(1, endpoints).apply(host);
            eventually("the new backends", || {
                let row = crate::host::frontend(&format!("{address}/TCP")).unwrap();
                row["backends"].as_array().unwrap().len() == endpoints.len()
            });
            for (talk, name) in &mut talks {
                assert_eq!(&talk.ask().unwrap().name, name, "a TCP connection keeps its backend");
            }
        }
    });
}

#[test]
fn a_flood_of_handshakes_breaks_no_connection() {
    in_lab("a_flood_of_handshakes_breaks_no_connection", |host, lab, services| {
        let _daemon = start(host, &[&services[0], &services[1]]);
        let address = &services[0].load_balancer()[0];
        let mut talks: Vec<Talk> =
            (0..200).map(|_| lab.client.run(|| Talk::open(address, Transport::Tcp, TIMEOUT)).unwrap()).collect();
        // The second question moves a connection out of the table of handshakes.
        for talk in &mut talks {
            assert!(talk.ask().is_ok() && talk.ask().is_ok());
        }
        let is_done = AtomicBool::new(false);
        let served = thread::scope(|scope| {
            scope.spawn(|| {
                lab.client.run(|| flood([198, 51, 100, 101].into(), 80, 300_000));
                is_done.store(true, Ordering::Relaxed);
            });
            let mut served = 0;
            while !is_done.load(Ordering::Relaxed) {
                served += u32::from(lab.client.run(|| ask(address, Transport::Tcp, TIMEOUT)).is_ok());
            }
            served
        });
        for (number, talk) in talks.iter_mut().enumerate() {
            assert!(talk.ask().is_ok(), "connection {number} after the flood");
        }
        say(&format!("{served} new connections during the flood"));
        assert!(served > 0, "no new connection during the flood");
    });
}

/// Sends TCP SYNs from random addresses of 198.18.0.0/15, which have no route back.
fn flood(to: Ipv4Addr, port: u16, count: u32) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::RAW, Some(255.into())).unwrap();
    socket.set_header_included_v4(true).unwrap();
    let target = SocketAddr::from((to, 0)).into();
    let mut seed = 1_u64;
    for _ in 0..count {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = (seed >> 32).to_be_bytes();
        let source = [198, 18 | (random[4] & 1), random[5], random[6]];
        let packet = syn(source, to.octets(), u16::from_be_bytes([random[7], random[4]]) | 1024, port);
        // A full queue of the device drops the packet: so would a network.
        drop(socket.send_to(&packet, &target));
    }
}

/// An IPv4 packet with a TCP SYN; the kernel fills in the header's checksum.
fn syn(source: [u8; 4], target: [u8; 4], source_port: u16, target_port: u16) -> [u8; 40] {
    let mut packet = [0; 40];
    packet[..4].copy_from_slice(&[0x45, 0, 0, 40]);
    packet[8..10].copy_from_slice(&[64, 6]);
    packet[12..16].copy_from_slice(&source);
    packet[16..20].copy_from_slice(&target);
    packet[20..22].copy_from_slice(&source_port.to_be_bytes());
    packet[22..24].copy_from_slice(&target_port.to_be_bytes());
    packet[32..34].copy_from_slice(&[0x50, 0x02]);
    packet[34..36].copy_from_slice(&1024_u16.to_be_bytes());
    let mut sum: u32 = 6 + 20;
    for word in packet[12..].chunks(2) {
        sum += u32::from(u16::from_be_bytes([word[0], word[1]]));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [high, low] = u16::try_from(!sum & 0xffff).unwrap().to_be_bytes();
    packet[36..38].copy_from_slice(&[high, low]);
    packet
}
