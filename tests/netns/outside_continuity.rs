//! Connections of outside clients while nodelb is killed, restarted and resized, and while its
//! services change.

use std::cell::RefCell;
use std::net::SocketAddr;

use nodelb_prober::{Backend, Plan, Probe, Transport};

use crate::crash::at_every_step;
use crate::host::{Host, eventually, say, socket};
use crate::lab::{Lab, POD_A1, POD_A2, POD_B};
use crate::lab_services::{ON_A1, ON_A2, ON_B, PACKETS_ON, Service};
use crate::outside::{TRANSPORTS, start};
use crate::sandbox;
use crate::talk::{Server, TIMEOUT, Talk};

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
